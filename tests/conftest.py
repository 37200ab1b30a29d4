"""What tests of several folders share, and one thread a process: several run at once and would fight for the cores."""

import os
import signal
from contextlib import contextmanager

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore Ctrl-C


@pytest.fixture
def stopping(monkeypatch):
    """`with stopping(n)`: the n-th time that jobs report their progress, the current one is stopped, as with Ctrl-C."""

    @contextmanager
    def stop_at(last):
        count = 0

        def stop(progress, run):
            nonlocal count
            count += 1
            run.stopped = count == last

        with monkeypatch.context() as patch:
            patch.setattr("prequential.runs.job.ProgressWriter.__call__", stop)
            yield

    return stop_at
