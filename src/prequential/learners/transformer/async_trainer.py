"""Gradient steps that run behind the predictions, so that no prediction waits for one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from prequential.errors import BadSetting
from prequential.learners.transformer.distributed import here
from prequential.learners.transformer.trainer import Examples, Replay, Trainer
from prequential.settings import Settings


class TrainerBehind(Trainer):
    """A trainer that predicts, and behind it another one that takes the steps, in a thread of its own.

    The one behind takes exactly the steps of a trainer without one in front. When a chunk is complete, the one in
    front waits for the steps on the chunk before, which are normally long over, takes over the parameters they led to,
    and hands the new chunk back. So while chunk n + 1 is predicted, the parameters are always those after the steps on
    chunk n - 1, however fast or slow these were: what is predicted depends on the examples alone, to the bit. The one
    in front has a context and weights of the heads of its own, made with the parameters it predicts with.

    What goes wrong behind is raised, as it is, by the next call and by all after it.

    Parameters
    ----------
    settings
        What the network is made of and how it learns.
    given
        What the network takes and gives, as for `Trainer`.
    """

    def __init__(self, settings: Settings, **given: Any) -> None:
        if here().count > 1:
            # their messages must come in the same order everywhere, which two threads do not promise
            raise BadSetting(f"async_steps (True) needs one process, but {here().count} share the streams")
        super().__init__(settings.changed(num_streams=1, ema_decay=0.0), **given)  # it replays nothing
        self._back = Trainer(settings, **given, reports=False)  # the same network: it starts from the same seed
        self.readers = self._back.readers
        self._steps: Future[None] | None = None  # under way or done, until the next chunk is complete
        self._worker: ThreadPoolExecutor | None = None  # with one thread, so that it ends when nobody holds it

    @property
    def _keeps(self) -> bool:
        """Whether the one behind keeps its parameters where they are, so that they are copied and not taken over."""
        return self.settings.graphs or self._back.shown is not self._back.model

    @property
    def skipped(self) -> int:
        return self._back.skipped

    @property
    def busy(self) -> bool:
        """Whether steps are under way."""
        return self._steps is not None and not self._steps.done()

    def check(self) -> None:
        """Raises what went wrong behind, without waiting for what is under way."""
        if not self.busy:
            self.wait()

    def wait(self) -> None:
        """Waits until no steps are under way; raises what went wrong."""
        if self._steps is not None:
            self._steps.result()

    def predict(self, x: np.ndarray, known: int) -> np.ndarray:
        self.check()
        with _threads(1):
            return super().predict(x, known)

    def extend_context(self, examples: Examples) -> np.ndarray:
        self.check()
        with _threads(1):
            return super().extend_context(examples)

    def score(self, examples: Examples) -> np.ndarray:
        log_p = self._pass(examples)
        self._level()
        return log_p

    def turn(self, chunk: Examples, replay: Replay, *, position: int, following: int) -> np.ndarray:
        """The chunk's log-probabilities; from here on its steps are taken behind what comes next."""
        log_p = self._pass(chunk)
        # the past is read here, as streams need not bear two readers at a time; all work on it is done behind
        first = position < self.settings.chunk_size
        past = [] if first else [replay(reader) for reader in range(len(self.readers))]

        def take_steps() -> None:
            self._level()
            self._back.take_steps(chunk, past.__getitem__, position=position, following=following)

        self._steps = self._thread().submit(take_steps)
        return log_p

    def state_dict(self) -> dict[str, Any]:
        """Everything, after the steps under way; they are not taken over before the next chunk is complete."""
        self.wait()
        front = super().state_dict()
        return {"front": {part: front[part] for part in FRONT}, "back": self._back.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.wait()
        self._back.load_state_dict(state["back"])
        super().load_state_dict({**state["back"], "optimiser": {}, "replay_contexts": [], **state["front"]})

    def _pass(self, chunk: Examples) -> np.ndarray:
        """The chunk's log-probabilities; what follows is predicted with the parameters that steps so far led to."""
        self.check()
        with _threads(1):
            log_p = super().score(chunk)
        self.wait()
        for ours, theirs in zip(self.model.parameters(), self._back.shown.parameters(), strict=True):
            # an average goes on where it is, and a graph finds parameters only where they were when it was captured
            if self._keeps:
                ours.data.copy_(theirs.data)
            else:  # the older parameters are left to the one behind, to write over
                ours.data, theirs.data = theirs.data, ours.data
        return log_p

    def _level(self) -> None:
        """Gives the one behind the parameters that were taken over from it, to go on from."""
        if self._keeps:
            return
        with torch.no_grad():
            for ours, theirs in zip(self.model.parameters(), self._back.model.parameters(), strict=True):
                theirs.copy_(ours)

    def _thread(self) -> ThreadPoolExecutor:
        if self._worker is None:
            threads = torch.get_num_threads()
            self._worker = ThreadPoolExecutor(1, "steps-behind")
            self._worker.submit(_set_threads, max(1, threads - 1)).result()  # one core is left to the predictions
            torch.set_num_threads(threads)  # the last number set is also what threads yet to come start with
        return self._worker


FRONT = ("parameters", "context", "neighbours", "mixer")  # what differs between the one in front and the one behind


def _set_threads(count: int) -> int:
    """Lets torch compute on so many cores what this thread asks for, other threads as before; the number until then."""
    before = torch.get_num_threads()  # asked first: the first time, a thread takes over the number that was set last
    torch.set_num_threads(count)
    return before


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Computes on so many cores: a prediction on more would wait for those that the steps behind it are using."""
    before = _set_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
