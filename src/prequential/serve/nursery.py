"""The process from which workers are forked: it has imported everything, so that a worker is there at once.

It is forked itself, before the web process has threads. Where it dies it is started again as a program of its own,

    python -m prequential.serve.nursery HANDLE OPTIONS

The web process sends a socket for each worker that it wants, and gets the number of the process that has it. When the
web process is gone, the nursery ends, and so do the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

PID = struct.Struct("<q")


class Nursery:
    """Where the web process gets its workers from.

    Parameters
    ----------
    options
        Those of the workers.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self._asking = asyncio.Lock()
        self._control, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._control.close()
            _run(theirs, options)
            os._exit(0)
        theirs.close()
        self._control.setblocking(False)

    async def new_worker(self, connection: socket.socket) -> int:
        """Starts a worker that has this connection; the number of its process."""
        async with self._asking:
            for attempt in (1, 2):
                try:
                    return await self._ask(connection)
                except OSError:
                    if attempt == 2:
                        raise
                    self._start_again()
        raise AssertionError

    async def _ask(self, connection: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        socket.send_fds(self._control, [b"w"], [connection.fileno()])
        data = await loop.sock_recv(self._control, PID.size)
        if len(data) < PID.size:
            raise ConnectionError("the nursery has ended")
        return int(PID.unpack(data)[0])

    def _start_again(self) -> None:
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "prequential.serve.nursery", str(theirs.fileno()), json.dumps(self.options)]
        os.set_inheritable(theirs.fileno(), True)
        self._pid = os.posix_spawn(sys.executable, command, os.environ)
        theirs.close()
        self._control.setblocking(False)

    def close(self) -> None:
        """Lets it end."""
        self._control.close()


def _run(control: socket.socket, options: dict[str, Any]) -> None:
    """Forks a worker for each socket that comes, until nobody is there to send one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the web process says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers that have ended leave nothing behind
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from prequential.serve.worker import run_worker

    warm_up()
    while True:
        data, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run_worker(handles[0], options)
            os._exit(0)
        for handle in handles:
            os.close(handle)
        control.sendall(PID.pack(pid))


def warm_up() -> None:
    """Lets a small learner learn a few rows: what torch imports and sets up at its first step is then there."""
    import torch

    from prequential.learners.transformer.learner import Learner

    torch.set_num_threads(1)
    learner = Learner(width=8, depth=1, window=4, chunk_size=2, num_streams=2)
    for i in range(6):
        learner.predict({"a": float(i)}, id=i)
        learner.learn(id=i, y=i % 2)
    del learner
    gc.collect()


if __name__ == "__main__":
    _run(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
