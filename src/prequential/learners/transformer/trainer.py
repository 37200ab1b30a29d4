"""Online training: gradient steps on the chunk that has just been scored, and on those of the replay streams."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from prequential.errors import BadCheckpoint
from prequential.learners.transformer.batch import Batch, ReplayBatch
from prequential.learners.transformer.beside import Beside
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.engine import Choice, make_steps
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.passes import NetworkPass
from prequential.learners.transformer.steps import EMAUpdate, Steps, StepsTaken
from prequential.models.extractors import has_dropout
from prequential.models.extractors.own import OwnExtractor
from prequential.models.transformer import Transformer
from prequential.settings import Settings

T = TypeVar("T")
Take = Callable[[EMAUpdate | None], StepsTaken]  # takes the steps on a chunk
NOTHING = nullcontext()  # a context in which nothing is held


class Trainer:
    """The model, its optimizer and its EMA (the exponential moving average of its parameters).

    Parameters
    ----------
    model
        What is trained.
    settings
        How it learns.
    ranks
        The processes that share the streams.
    engine
        What computes.
    predicts
        Whether predictions come from here. Otherwise (steps that run asynchronously) they have a model of their own.
    """

    def __init__(
        self,
        model: Transformer,
        settings: Settings,
        ranks: Ranks,
        *,
        engine: Choice = Choice("torch"),  # noqa: B008 (a named tuple)
        predicts: bool = True,
    ) -> None:
        ranks.check(settings.num_streams, settings.updates)
        self.engine = engine
        self.model, self.settings, self.ranks = model, settings, ranks
        self.device = model.rotary.table.device
        self.ema_model = copy.deepcopy(model).requires_grad_(False).eval() if settings.effective_ema_decay else model
        self.optimizer = Optimizer(model, settings)
        self.steps: Steps = make_steps(engine, model, self.optimizer, ranks)
        self.num_steps = 0
        # a pass that learns looks back on keys and values that the trained parameters have made
        self.contexts = [model.new_context() for _ in range(settings.num_streams)]  # the reported stream's first
        self.prediction_model = self.ema_model
        self._dropout = has_dropout(model)
        # predictions share the context of the reported stream where they come from the trained parameters
        self._shares_context = predicts and self.ema_model is model
        self.prediction_context = self.contexts[0] if self._shares_context else model.new_context()

    @property
    def busy(self) -> bool:
        """Whether steps are under way; here they are over when a call returns."""
        return False

    @property
    def separate(self) -> bool:
        """Whether a chunk takes a pass to predict it beside the one to learn from it."""
        # an extractor of one's own may have batch statistics, which would show later examples of a chunk to earlier ones
        own = isinstance(self.model.extractor, OwnExtractor)
        return self._dropout or own or self.ema_model is not self.model

    @property
    def skipped_steps(self) -> int:
        """Gradient steps that were not taken because the gradient was not finite."""
        return self.optimizer.skipped

    def predicting(self) -> AbstractContextManager[None]:
        """To be held while something is predicted."""
        return NOTHING

    def check(self) -> None:
        """Raises what went wrong in steps since the last call, if anything did."""

    def wait(self) -> None:
        """Waits until no steps are under way."""

    def finish(self) -> None:
        """Says that a chunk takes no steps: predictions go on from those that were taken."""

    def train_chunk(
        self,
        batch: Batch,
        replay: Iterable[ReplayBatch],
        position: int,
        *,
        forward: Callable[[], NetworkPass | None],
        commit: Callable[[NetworkPass | None], T],
    ) -> T:
        """A step on the chunk that begins at this position, and one on each replay stream's (or one on all together).

        Parameters
        ----------
        batch, replay
            The chunk, and those of the replay streams.
        position
            Of the chunk's first example.
        forward
            Predicts the chunk, where that takes a pass of its own.
        commit
            Is given the pass over the chunk from before any step. Gives what this gives.
        """
        take, ema = self._prepare(self._steps_of(batch, replay), position), self._ema_update(position)
        if self._steps_beside:
            return self._train_beside(take, ema, forward, commit)
        passed = forward() if self.separate else None
        return commit(self._take(take, ema) or passed)

    def _ema_update(self, position: int) -> EMAUpdate | None:
        """What the EMA does after the steps on the chunk at this position: it follows faster in the first turns."""
        turn = position // self.settings.chunk_size + 1
        decay = min(self.settings.effective_ema_decay, turn / (turn + 9))
        return None if self.ema_model is self.model else EMAUpdate(self.ema_model, decay)

    @property
    def _steps_beside(self) -> bool:
        """Whether steps are taken while the chunk is predicted: where they share nothing and there is a core for them."""
        apart = self.ema_model is not self.model and not self._shares_context
        return apart and self.engine.name == "native" and torch.get_num_threads() > 1

    def _train_beside(
        self,
        take: Take,
        ema: EMAUpdate | None,
        forward: Callable[[], NetworkPass | None],
        commit: Callable[[NetworkPass | None], T],
    ) -> T:
        """Predicts with the EMA while the parameters are trained; it follows them when it is not needed any more."""
        over, predicted = Event(), False  # the prediction of the chunk, and whether it went well

        def train() -> None:
            self._take(take)
            over.wait()
            if ema is not None and predicted:
                self.steps.update_ema(ema)

        steps = Beside(train)
        try:
            passed = forward()
            predicted = True
            over.set()
            return commit(passed)
        finally:
            over.set()
            steps.join()

    def _steps_of(self, batch: Batch, replay: Iterable[ReplayBatch]) -> Iterator[dict[int, Batch]]:
        """The batches of each step, by the number of their streams among all."""
        if self.settings.updates == "joint":
            yield {0: batch, **dict(self._replayed(replay))}
            return
        yield {0: batch}
        for stream, past in self._replayed(replay):
            yield {stream: past}

    def _replayed(self, replay: Iterable[ReplayBatch]) -> Iterator[tuple[int, Batch]]:
        """The streams that replay something, by their number among all, and what."""
        for replayed in replay:
            if replayed.restarts:
                self.contexts[replayed.stream + 1].clear()
            if len(replayed.batch):  # of a chunk that is damaged on disk, nothing may be left
                yield replayed.stream + 1, replayed.batch

    def _prepare(self, steps: Iterable[dict[int, Batch]], position: int) -> Take:
        """What takes gradient steps."""
        self.optimizer.set_learning_rate(position)
        return self.steps.prepare(
            steps, self.contexts, number=self.num_steps, report=self._shares_context, threads=self._num_threads()
        )

    def _num_threads(self) -> int:
        """How many threads the steps may use."""
        return torch.get_num_threads()

    def _take(self, take: Take, ema: EMAUpdate | None = None) -> NetworkPass | None:
        """Takes them; the pass over the reported stream (0), where it can serve as the prediction."""
        taken = take(ema)
        self.num_steps += taken.num_steps
        return None if self.separate else taken.passed

    def grow(self, num_classes: int, like: int) -> None:
        """Makes room for more class ids, none of which is in the steps so far; `like` is one that is free, too."""
        self.wait()
        models = {id(model): model for model in (self.model, self.ema_model, self.prediction_model)}.values()
        # all of it is made before any of it is used: without memory for it, nothing has changed
        tables = [model.grown_tables(num_classes, like) for model in models]
        moments = self.optimizer.grown_moments(tables[0], num_classes, like)
        for model, grown in zip(models, tables, strict=True):
            model.grow(num_classes, grown)
        self.optimizer.grow(moments)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": _copies(self.model),
            "ema_model": {} if self.ema_model is self.model else _copies(self.ema_model),
            "optimizer": self.optimizer.state_dict(),
            "contexts": self._context_states(),
            "num_steps": self.num_steps,
            "skipped_steps": self.skipped_steps,
        }

    def _context_states(self) -> list[dict[str, Any]]:
        """The contexts of all streams; in the first process of several, those of the others too."""
        owned = {i: c.state_dict() for i, c in enumerate(self.contexts) if self.ranks.owns(i)}
        found = self.ranks.gather(owned)
        return [found[i] if i in found else c.state_dict() for i, c in enumerate(self.contexts)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_parameters(self.model, state["model"])
        if self.ema_model is not self.model:
            load_parameters(self.ema_model, state["ema_model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for context, saved in zip(self.contexts, state["contexts"], strict=True):
            context.load_state_dict(saved)
        self.num_steps = int(state["num_steps"])
        self.optimizer.skipped = int(state["skipped_steps"])


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def load_parameters(network: nn.Module, saved: dict[str, Any]) -> None:
    """Copies saved parameters into a network, in place."""
    for name, parameter in network.state_dict().items():
        if name not in saved:
            raise BadCheckpoint(f"parameter {name} is missing")
        value = torch.as_tensor(saved[name])
        if value.shape != parameter.shape:
            raise BadCheckpoint(f"parameter {name} has shape {tuple(value.shape)}, expected {tuple(parameter.shape)}")
        parameter.data.copy_(value)
