"""Gradient steps that run asynchronously, so that no prediction waits for one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from prequential.errors import BadSetting
from prequential.learners.transformer.batch import Batch, ReplayBatch
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.engine import Choice
from prequential.learners.transformer.passes import NetworkPass
from prequential.learners.transformer.trainer import NOTHING, T, Trainer, load_parameters
from prequential.models.transformer import Transformer
from prequential.settings import Settings


class AsyncTrainer(Trainer):
    """A trainer whose steps run in a thread, while predictions come from a copy of the model.

    The steps are exactly those of a synchronous trainer. When a chunk is complete, the steps on the chunk before are
    waited for (they are normally long over), the copy takes over the parameters they led to, and the steps on the new
    chunk begin. So while chunk n + 1 is predicted, the parameters are always those after the steps on chunk n - 1,
    however fast or slow these were: what is predicted depends on the examples alone, to the bit.

    What goes wrong in a step is raised, as it is, by the next call and by all after it.

    Parameters
    ----------
    model, settings, ranks, engine
        As for `Trainer`.
    """

    def __init__(
        self,
        model: Transformer,
        settings: Settings,
        ranks: Ranks,
        *,
        engine: Choice = Choice("torch"),  # noqa: B008 (a named tuple)
    ) -> None:
        if ranks.count > 1:
            # messages between processes must come in one order everywhere, which two threads do not promise
            raise BadSetting(f"async_steps (True) needs one process, but {ranks.count} share the streams")
        super().__init__(model, settings, ranks, engine=engine, predicts=False)
        self.prediction_model = copy.deepcopy(self.ema_model).requires_grad_(False).eval()
        self._steps: Future[None] | None = None  # under way or done, until the next chunk is complete
        self._worker: ThreadPoolExecutor | None = None  # with one thread, so that it ends when nobody holds it

    @property
    def separate(self) -> bool:
        return True

    @property
    def busy(self) -> bool:
        """Whether steps are under way."""
        return self._steps is not None and not self._steps.done()

    def predicting(self) -> AbstractContextManager[None]:
        self.check()
        return NOTHING if self.engine.name == "native" else on_one_thread()  # the core predicts on one thread anyway

    def check(self) -> None:
        if not self.busy:
            self.wait()

    def wait(self) -> None:
        if self._steps is not None:
            self._steps.result()

    def train_chunk(
        self,
        batch: Batch,
        replay: Iterable[ReplayBatch],
        position: int,
        *,
        forward: Callable[[], NetworkPass | None],
        commit: Callable[[NetworkPass | None], T],
    ) -> T:
        """Begins the steps on a chunk, when those on the one before are done and their parameters taken over."""
        passed = forward()
        self.wait()
        self._take_over()
        take, ema = self._prepare(self._steps_of(batch, replay), position), self._ema_update(position)

        def take_steps() -> None:
            self._take(take, ema)

        self._steps = self._thread().submit(take_steps)
        return commit(passed)

    def finish(self) -> None:
        self.wait()
        self._take_over()

    def _take_over(self) -> None:
        ours, theirs = self.prediction_model.state_dict(), self.ema_model.state_dict()
        for name, value in ours.items():
            value.copy_(theirs[name])

    def state_dict(self) -> dict[str, Any]:
        """Everything, after the steps under way; they are not taken over before the next chunk is complete."""
        self.wait()
        saved = {name: value.detach().clone() for name, value in self.prediction_model.state_dict().items()}
        return {**super().state_dict(), "prediction_model": saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.wait()
        super().load_state_dict(state)
        load_parameters(self.prediction_model, state["prediction_model"])

    def _num_threads(self) -> int:
        return max(1, torch.get_num_threads() - 1)  # one core is left to predictions

    def _thread(self) -> ThreadPoolExecutor:
        if self._worker is None:
            threads = torch.get_num_threads()
            self._worker = ThreadPoolExecutor(1, "async-steps")
            self._worker.submit(_set_num_threads, self._num_threads()).result()
            torch.set_num_threads(threads)  # the last number set is also what threads yet to come start with
        return self._worker


def _set_num_threads(count: int) -> int:
    """Lets torch use so many cores for this thread, other threads as before; the number until then."""
    before = torch.get_num_threads()  # asked first: the first time, a thread takes over the number that was set last
    torch.set_num_threads(count)
    return before


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Computes on one core: a prediction on more would wait for those that the steps are using."""
    before = _set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
