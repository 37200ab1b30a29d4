"""What tests of many runs share."""

from contextlib import contextmanager

import pytest


@pytest.fixture
def stopping(monkeypatch):
    """`with stopping(n)`: the n-th time that runs tell of their progress, the one at hand is stopped, as with Ctrl-C."""

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
