"""Work in forked processes that are killed with kill -9, at a random time or at a random file operation.

A process that has imported everything forks one child for each attempt, so a kill costs milliseconds and not the import
of torch. A child counts its file operations, those of the processes it starts included, in a shared counter. At the n-th
it kills itself: before the operation, after it, or for a write after a part of the data. The seed fixes which, so what
was found can be found again. SQLite and NumPy's memory maps write without Python; kills at a random time hit those.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPERATIONS = (
    "open", "write", "pwrite", "fsync", "fdatasync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir",
    "ftruncate", "truncate", "link", "symlink",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SLOWEST = 120.0  # seconds that an attempt may take

# A message of the child to the harness, such as "learned example 7": sent after the work had returned.
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Kill:
    """When an attempt is killed."""

    operation: int | None = None  # at this file operation
    where: str = "before"  # before it, after it, or inside: after a part of a write
    seconds: float | None = None  # after so much time
    group: bool = True  # whether the processes that it started are killed as well


@dataclass
class Outcome:
    """How an attempt ended."""

    state: str  # finished, killed or failed; finished after a kill where a process that was started was killed
    told: list[dict[str, Any]] = field(default_factory=list)
    operations: int = 0
    seconds: float = 0.0
    group: int = 0  # its process group
    killed: bool = False
    why: str = ""


def draw_kill(draws: random.Random, operations: int, seconds: float) -> Kill:
    """A kill at a random operation (three of four) or time, within what the whole work takes.

    Two of three come early, so that many kills fall on one work and on its first files.
    """
    group, share = draws.random() < 0.5, draws.choice((1.0, 0.3, 0.1))
    operations, seconds = round(operations * share), seconds * share
    if draws.random() < 0.75:
        where = draws.choice(["before", "inside", "after"])
        return Kill(operation=draws.randint(1, max(operations, 1)), where=where, group=group)
    return Kill(seconds=draws.uniform(0.0, seconds), group=group)


def attempt(work: Callable[[Tell], Any], log: Path, kill: Kill | None = None) -> Outcome:
    """Forks a child that does the work, and kills it when its time has come.

    Parameters
    ----------
    work
        What is done; what it returns is the last message told.
    log
        Where the child's output is appended.
    kill
        When it is killed; None: never.
    """
    counter = mmap.mmap(-1, 16)
    reading, writing = os.pipe()
    begun = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        _child(work, log, kill, counter, writing)
    os.close(writing)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)  # the child does so as well: whoever comes first
    due = None if kill is None or kill.seconds is None else begun + kill.seconds
    received, killed = b"", False
    while True:
        wait = SLOWEST if due is None or killed else max(0.0, due - time.monotonic())
        ready, _, _ = select.select([reading], [], [], wait)
        if ready:
            piece = os.read(reading, 1 << 16)
            if not piece:
                break
            received += piece
        elif killed or due is None:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            return Outcome("failed", why=f"it was not done after {SLOWEST:.0f} seconds", group=child)
        else:
            assert kill is not None
            (os.killpg if kill.group else os.kill)(child, signal.SIGKILL)
            killed = True
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if kill is not None and kill.group and os.WIFSIGNALED(status):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # a process that was forked in the moment of the kill
    told = [json.loads(line) for line in received.splitlines() if line.endswith(b"}")]
    operations, happened = struct.unpack("q", counter[:8])[0], killed or bool(counter[8])
    outcome = Outcome("finished", told, operations, time.monotonic() - begun, child, happened)
    if os.WIFSIGNALED(status):
        outcome.state = "killed" if os.WTERMSIG(status) == signal.SIGKILL else "failed"
        outcome.why = f"signal {os.WTERMSIG(status)}"
    elif os.WEXITSTATUS(status):
        # where one of the processes it had started was killed, it ends with an error and is to go on when started again
        outcome.state = "killed" if happened else "failed"
        outcome.why = next((message["failed"] for message in told if "failed" in message), "no word")
    return outcome


def end_group(group: int) -> None:
    """Kills what is left of an attempt's processes, and waits until they are gone."""
    for _ in range(1000):
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return
        time.sleep(0.005)


def _child(work: Callable[[Tell], Any], log: Path, kill: Kill | None, counter: mmap.mmap, writing: int) -> None:
    """Does the work and ends the process, whatever happens."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        write = os.write

        def tell(message: dict[str, Any]) -> None:
            write(writing, json.dumps(message).encode() + b"\n")

        try:
            with counted(kill, counter):
                told = work(tell)
            tell(told if isinstance(told, dict) else {"done": True})
            code = 0
        except BaseException as error:
            traceback.print_exc()
            tell({"failed": f"{type(error).__name__}: {error}"[:400]})
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


@contextlib.contextmanager
def counted(kill: Kill | None, counter: mmap.mmap) -> Iterator[None]:
    """Counts file operations, and at the n-th kills this process or its group."""
    main = os.getpid()

    def end() -> None:
        if kill is not None and kill.group:
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def due() -> bool:
        count = struct.unpack("q", counter[:8])[0] + 1
        counter[:8] = struct.pack("q", count)
        if kill is None or kill.operation is None or count < kill.operation or counter[8]:
            return False
        counter[8] = 1  # once, where several processes count
        return True

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            if name == "open" and not _writes(*arguments, **named):
                return original(*arguments, **named)
            if name in ("write", "pwrite") and arguments[0] in (1, 2):
                return original(*arguments, **named)
            if not due():
                return original(*arguments, **named)
            assert kill is not None
            if kill.where == "inside" and name in ("write", "pwrite"):
                original(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
            elif kill.where == "after":
                original(*arguments, **named)
            end()

        return operation

    before = {name: getattr(os, name) for name in OPERATIONS}
    opening = builtins.open, io.open
    for name, original in before.items():
        setattr(os, name, wrapped(name, original))
    builtins.open = io.open = wrapped("open", builtins.open)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(os, name, original)
        builtins.open, io.open = opening
        assert os.getpid() == main


def _writes(path: Any, mode: Any = "r", *_: Any, **named: Any) -> bool:
    """Whether an `os.open` or an `open` is for writing."""
    mode = named.get("flags", mode)
    return bool(mode & WRITING) if isinstance(mode, int) else any(letter in str(mode) for letter in "wax+")


class ForkedJob:
    """What `subprocess.Popen` is to a comparison or sweep, but forked: nothing has to be imported again."""

    def __init__(self, run_job: Callable[..., Any], directory: Path, trust: bool) -> None:
        self.returncode: int | None = None
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            log = os.open(directory / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.closerange(3, 1024)  # as `Popen` does: locks and pipes of the parent are none of its business
            run_job(directory, parent, trust=trust)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        return self._wait(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def fork_jobs() -> None:
    """From now on, jobs of this process are forked."""
    from prequential.runs import pool
    from prequential.runs.job import Job, run_job
    from prequential.sweeps import sweep

    def start(job: Job, threads: int = 1, *, trust: bool = False) -> subprocess.Popen[bytes]:
        return ForkedJob(run_job, job.directory, trust)  # type: ignore[return-value]

    for module in (pool, sweep):
        setattr(module, "start_job", start)  # noqa: B010 (mypy knows it as no part of sweep)
