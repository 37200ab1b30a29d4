"""A worker process: holds the learners of many tenants and applies their requests, a tenant at a time, in turn.

Predictions that wait go before labels; a label that would have to wait for gradient steps lets them go first.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
import traceback
import warnings
from collections import OrderedDict, deque
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from prequential.errors import DamageWarning, EngineWarning, PrequentialError
from prequential.serve.failures import Failure, explained, is_storage
from prequential.serve.framing import Message, frame, split
from prequential.serve.group_commit import GroupCommit
from prequential.serve.nats_client import NatsThread
from prequential.serve.open_tenants import OpenTenants
from prequential.serve.page_data import page_content, recent_predictions
from prequential.serve.quotas import Quotas
from prequential.serve.tenant_learner import TenantLearner
from prequential.serve.work import Work

TURN = 64  # predictions of one tenant before the next one's turn
IDLE_SECONDS = 0.001  # between two looks where everything waits for gradient steps
TIDY_SECONDS = 1.0


class Waiting:
    """The requests of a tenant that wait."""

    def __init__(self) -> None:
        self.asks: deque[Message] = deque()
        self.works: deque[Work] = deque()
        self.others: deque[Message] = deque()

    def __bool__(self) -> bool:
        return bool(self.asks or self.works or self.others)

    def __len__(self) -> int:
        return len(self.asks) + len(self.works) + len(self.others)


class Worker:
    """Applies requests until the web process is gone or says stop.

    Parameters
    ----------
    connection
        The socket to the web process.
    home
        The directory of the service.
    durability
        "sync": a reply comes after a sync; "interval": the disk is synced every second.
    memory
        Bytes that this process may take before tenants that are not in use are closed.
    trust
        Whether settings of tenants may name code to import.
    log
        The servers of NATS that have the logs; None: they are in the homes of the learners.
    """

    def __init__(
        self,
        connection: socket.socket,
        home: Path,
        *,
        durability: str = "sync",
        memory: int = 1 << 31,
        trust: bool = False,
        log: str | None = None,
    ) -> None:
        self.connection = connection
        self.tenants = OpenTenants(home, memory=memory, trust=trust, nats=None if log is None else NatsThread(log))
        self.waiting: OrderedDict[str, Waiting] = OrderedDict()
        self.subscribed: dict[str, int] = {}
        self.following: list[str] = []  # tenants of other processes, which this one may have to take over
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._problem: str | None = None  # of the disk
        self._gone = self._stopping = False
        self._tidied = time.monotonic()
        self.commits = GroupCommit(self.send, 1.0 if durability == "interval" else 0.0, self._disk)

    def run(self) -> None:
        """Works until there is nobody to work for."""
        self.send([[0, "ready", None]])
        moved = True
        while not self._gone:
            self._take_in(0.0 if self.waiting and moved else IDLE_SECONDS if self.waiting else TIDY_SECONDS)
            if self._stopping and not self.waiting:
                break
            moved = False
            for _ in range(len(self.waiting)):
                name, waiting = self.waiting.popitem(last=False)
                moved |= self._serve(name, waiting)
                if waiting:
                    self.waiting[name] = waiting
                self._take_in(0.0)
            if time.monotonic() - self._tidied > TIDY_SECONDS:
                self._tidied = time.monotonic()
                self.tenants.tidy()
                if self.following and not self.waiting:
                    self.following.append(name := self.following.pop(0))
                    self.tenants.follow(name)
        if not self._gone:
            self.commits.close()
            self.tenants.close_all()
            self.send([[0, "stopped", None]])

    def send(self, messages: list[Message]) -> None:
        if messages:
            try:
                with self._sending:
                    self.connection.sendall(frame(messages))
            except OSError:
                self._gone = True

    def _take_in(self, seconds: float) -> None:
        """Takes the requests that have come; waits for some for at most so long."""
        while select.select([self.connection], [], [], seconds)[0]:
            try:
                data = self.connection.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                self._gone = True
                return
            self._buffer += data
            for message in split(self._buffer):
                self._sort(message)
            seconds = 0.0

    def _sort(self, message: Message) -> None:
        number, operation, tenant, content = message
        if tenant is None:
            self._control(number, operation, content)
            return
        waiting = self.waiting.setdefault(tenant, Waiting())
        if operation == "predict":
            waiting.asks.append(message)
        elif operation == "learn":
            waiting.works.append(Work(number, content))
        else:
            waiting.others.append(message)

    def _control(self, number: int, operation: str, content: Any) -> None:
        if operation == "stop":
            self._stopping = True
            return
        if operation == "subscribe":
            self.subscribed[content] = self.subscribed.get(content, 0) + 1
        elif operation == "unsubscribe":
            self.subscribed[content] = self.subscribed.get(content, 0) - 1
            if self.subscribed[content] <= 0:
                del self.subscribed[content]
        elif operation == "follow":
            self.following = list(content)
        elif operation == "own":
            self.tenants.follow(content[0], open=content[1])
        elif operation == "release":  # another process has the tenant now, or it is deleted
            name, save = content
            with suppress(PrequentialError):
                self.tenants.close(name, save=save)
        if number:
            self.send([[number, 200, self._figures() if operation == "figures" else None]])

    def _figures(self) -> dict[str, Any]:
        tenants = {name: tenant.figures() for name, tenant in self.tenants.items()}
        return {
            "process": os.getpid(),
            "memory": self.tenants.memory_used(),
            "open": len(tenants),
            "opened": self.tenants.opened,
            "closed": self.tenants.closed,
            "waiting": {name: len(waiting) for name, waiting in self.waiting.items()},
            "problem": self._problem,
            "tenants": tenants,
        }

    # One tenant's turn.

    def _serve(self, name: str, waiting: Waiting) -> bool:
        """Applies what waits for one tenant; whether anything was done."""
        try:
            tenant = self.tenants.get(name)
        except Exception as error:
            return self._refuse(waiting, error)
        replies: list[Message] = []
        done = self._ask(tenant, waiting, replies)
        done |= self._learn(tenant, waiting, replies)
        while waiting.others:
            replies.append(self._other(tenant, waiting.others.popleft()))
        events = tenant.flush()
        if name in self.subscribed and events:
            self.send([[0, "events", [name, events]]])
        if done:
            tenant.log.commit(replies, self.commits)
        else:
            self.send(replies)
        return done or bool(replies)

    def _ask(self, tenant: TenantLearner, waiting: Waiting, replies: list[Message]) -> bool:
        wrote = False
        count = min(TURN, len(waiting.asks))
        if count > 1:
            made = tenant.predict_together([message[3] for message in islice(waiting.asks, count)])
            if made is not None:
                replies += [[waiting.asks.popleft()[0], 200, [one]] for one in made]
                return True
        for _ in range(count):
            number, _, _, content = waiting.asks.popleft()
            try:
                replies.append([number, 200, tenant.predict(content)])
                wrote |= content["remember"]
            except Exception as error:
                replies.append(self._failed(number, error))
        return wrote

    def _learn(self, tenant: TenantLearner, waiting: Waiting, replies: list[Message]) -> bool:
        wrote = False
        for _ in range(TURN):
            if not waiting.works:
                break
            together = tenant.learn_together(waiting.works)
            if together:
                replies += [[waiting.works.popleft().number, 200, results] for results in together]
                wrote = True
                continue
            work = waiting.works[0]
            before = work.at
            try:
                results = tenant.learn(work)
            except Exception as error:
                waiting.works.popleft()
                replies.append(self._failed(work.number, error))
                continue
            wrote |= work.at > before
            if results is None:
                break
            waiting.works.popleft()
            replies.append([work.number, 200, results])
        return wrote

    def _other(self, tenant: TenantLearner, message: Message) -> Message:
        number, operation, name, content = message
        try:
            match operation:
                case "state":
                    return [number, 200, {**tenant.state(), "bytes": tenant.checks.size()}]
                case "figures":
                    waiting = self.waiting.get(name)
                    return [number, 200, {**tenant.figures(), "log_lag": 0 if waiting is None else len(waiting)}]
                case "recent":
                    return [number, 200, recent_predictions(tenant)]
                case "series":
                    return [number, 200, tenant.scores.series()]
                case "page":
                    return [number, 200, page_content(tenant)]
                case "quotas":
                    tenant.checks.quotas = Quotas.from_dict(content)
                    return [number, 200, None]
                case "close":
                    self.tenants.close(name, save=bool(content))
                    return [number, 200, None]
            return [number, 404, Failure(404, f"unknown operation {operation}").to_json()]
        except Exception as error:
            return self._failed(number, error)

    def _refuse(self, waiting: Waiting, error: Exception) -> bool:
        """Answers everything that waits for a tenant that cannot be opened."""
        numbers = [message[0] for message in (*waiting.asks, *waiting.others)] + [work.number for work in waiting.works]
        waiting.asks.clear()
        waiting.works.clear()
        waiting.others.clear()
        self.send([self._failed(number, error) for number in numbers])
        return True

    def _failed(self, number: int, error: Exception) -> Message:
        if is_storage(error):
            self._disk(error)
        failure = explained(error)
        if failure.status == 500:
            print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
        return [number, failure.status, failure.to_json()]

    def _disk(self, error: Exception | None) -> None:
        self._problem = None if error is None else explained(error).message


def run_worker(handle: int, options: dict[str, Any]) -> None:
    """A worker in this process, with the socket of this number to the web process."""
    warnings.simplefilter("ignore")
    warnings.simplefilter("default", DamageWarning)
    warnings.simplefilter("default", EngineWarning)
    torch.set_num_threads(1)
    given = dict(options)
    try:
        Worker(socket.socket(fileno=handle), Path(given.pop("home")), **given).run()
    except BaseException:  # the process is a fork: it must not go on anywhere else
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
