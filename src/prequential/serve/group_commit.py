"""Group commit: one sync for all writes that wait, in a thread, while the next requests are computed."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from prequential.serve.failures import explained
from prequential.serve.framing import Message
from prequential.storage.files import storage
from prequential.storage.platforms import CLOEXEC, NOFOLLOW, sync_data

Send = Callable[[list[Message]], None]


class GroupCommit:
    """Sends replies when what they acknowledge is on disk.

    Parameters
    ----------
    send
        Sends replies.
    interval
        Seconds between two syncs; 0: replies wait for the sync. Otherwise they do not, and a power cut loses at most what
        came since (a killed process loses nothing either way).
    failed
        Called with an error of the disk, and with None when it works again.
    """

    def __init__(self, send: Send, interval: float, failed: Callable[[Exception | None], None]) -> None:
        self.send, self._interval, self._failed = send, interval, failed
        self._waiting: queue.SimpleQueue[tuple[set[Path], list[Message]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def commit(self, paths: set[Path], replies: list[Message]) -> None:
        """Takes replies that acknowledge what was written to some files."""
        if self._interval:
            self.send(replies)
            replies = []
        self._waiting.put((paths, replies))

    def close(self) -> None:
        """Syncs and sends what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            paths: set[Path] = set()
            replies: list[Message] = []
            entry = self._waiting.get()
            while entry is not None:
                paths |= entry[0]
                replies += entry[1]
                try:
                    entry = self._waiting.get_nowait()
                except queue.Empty:
                    break
            going = entry is not None
            self._sync(paths, replies)
            if self._interval and going:
                time.sleep(self._interval)

    def _sync(self, paths: set[Path], replies: list[Message]) -> None:
        try:
            sync_files(paths)
            self._failed(None)
        except Exception as error:
            self._failed(error)
            failure = explained(error)
            replies = [[reply[0], failure.status, failure.to_json()] for reply in replies]
        if replies:
            self.send(replies)


def sync_files(paths: set[Path]) -> None:
    """Makes what was written to some files survive a power cut."""
    for path in paths:
        with storage(path):
            try:
                handle = os.open(path, os.O_RDONLY | CLOEXEC | NOFOLLOW)
            except FileNotFoundError:  # replaced by one that was synced when it was made
                continue
            try:
                sync_data(handle)
            finally:
                os.close(handle)
