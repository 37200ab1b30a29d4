"""Online training: gradient steps on the chunk that has just been scored, and on those of the replay streams."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.errors import BadCheckpoint
from prequential.learners.device import on_device
from prequential.learners.transformer.batch import Batch, ReplayBatch
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.engine import Choice
from prequential.learners.transformer.experts.network import NetworkPass, class_prior_tensor
from prequential.learners.transformer.optimizer import Optimizer
from prequential.models.extractors import has_dropout, seed_dropout
from prequential.models.extractors.own import OwnExtractor
from prequential.models.kv_cache import Context, KVState, stack_contexts
from prequential.models.lookback import LookBack
from prequential.models.precision import autocast
from prequential.models.transformer import Transformer
from prequential.settings import Settings


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
        self.num_steps = 0
        # a pass that learns looks back on keys and values that the trained parameters have made
        self.contexts = [model.new_context() for _ in range(settings.num_streams)]  # the reported stream's first
        self.prediction_model = self.ema_model
        self._dropout = has_dropout(model)
        # predictions share the context of the reported stream where they come from the trained parameters
        self._shares_context = predicts and self.ema_model is model
        self.prediction_context = self.contexts[0] if self._shares_context else model.new_context()

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

    @contextmanager
    def predicting(self) -> Iterator[None]:
        """To be held while something is predicted."""
        yield

    def check(self) -> None:
        """Raises what went wrong in steps since the last call, if anything did."""

    def wait(self) -> None:
        """Waits until no steps are under way."""

    def finish(self) -> None:
        """Says that a chunk takes no steps: predictions go on from those that were taken."""

    def train_chunk(self, batch: Batch, replay: Iterable[ReplayBatch], position: int) -> NetworkPass | None:
        """A step on the chunk that begins at this position, and one on each replay stream's (or one on all together).

        Gives the pass over the chunk from before any step, where it can serve as the prediction.
        """
        if self.settings.updates == "joint":
            batches = {0: batch}
            for stream, past in self._replayed(replay):
                batches[stream] = past
            passed = self._step(batches, position)
        else:
            passed = self._step({0: batch}, position)
            for stream, past in self._replayed(replay):
                self._step({stream: past}, position)
        if self.ema_model is not self.model:
            self.update_ema(position // self.settings.chunk_size + 1)
        return None if self.separate else passed

    def _replayed(self, replay: Iterable[ReplayBatch]) -> Iterator[tuple[int, Batch]]:
        """The streams that replay something, by their number among all, and what."""
        for replayed in replay:
            if replayed.restarts:
                self.contexts[replayed.stream + 1].clear()
            if len(replayed.batch):  # of a chunk that is damaged on disk, nothing may be left
                yield replayed.stream + 1, replayed.batch

    def update_ema(self, turn: int) -> None:
        """Moves the EMA towards the parameters, by more in the first turns."""
        decay = min(self.settings.effective_ema_decay, turn / (turn + 9))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.ema_model.parameters()), list(self.model.parameters()), 1 - decay)
            for ours, theirs in zip(self.ema_model.buffers(), self.model.buffers(), strict=True):
                ours.copy_(theirs)  # those of an own extractor, as of batch norm

    def _step(self, batches: dict[int, Batch], position: int) -> NetworkPass | None:
        """One gradient step on the batches of some streams, by number; the pass over the reported one (0), if here."""
        mine = {stream: batch for stream, batch in batches.items() if self.ranks.owns(stream)}
        # a last chunk that is short cannot be stacked with the others; the gradients are summed either way
        lengths = sorted({len(batch) for batch in mine.values()})
        groups = [[stream for stream in mine if len(mine[stream]) == length] for length in lengths]
        self.model.train()
        if self._dropout:
            seed_dropout(self.model, self.settings.seed + 1_000_003 * self.num_steps)
        self.optimizer.set_learning_rate(position)
        stacked = [_stack([mine[i] for i in group], [self.contexts[i] for i in group], self.model) for group in groups]
        passes = [self._forward_backward(stack, len(stack.priors) / len(batches)) for stack in stacked]
        self.ranks.sum_gradients(self.model.parameters())
        self.optimizer.step()
        self.num_steps += 1
        reported = None
        for group, passed in zip(groups, passes, strict=True):
            for row, stream in enumerate(group):
                new = passed.new if len(group) == 1 else passed.new.stream(row)
                if stream == 0:  # always the first of its group
                    reported = NetworkPass(passed.log_probs, new)
                if stream or not self._shares_context:
                    self.contexts[stream].commit(new)
        return reported

    def _forward_backward(self, stack: _Stack, weight: float) -> NetworkPass:
        """A pass over stacked streams, and the gradient of its loss times a weight."""
        with autocast(self.model):
            outs, new = self.model(stack.x, stack.y.view(stack.x.shape[:2]), stack.past, stack.look)
        rows = [
            [head.log_probs(out[row], prior) for head, out in zip(self.model.all_heads, outs, strict=True)]
            for row, prior in enumerate(stack.priors)
        ]
        log_probs = rows[0] if len(rows) == 1 else [torch.cat(of_head) for of_head in zip(*rows, strict=True)]
        loss = self._loss(log_probs, stack.y)
        (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        return NetworkPass([of_head.detach() for of_head in rows[0]], new)

    def _loss(self, log_probs: list[Tensor], y: Tensor) -> Tensor:
        """Every head's own loss; the loss of their mixture would let one rest on what another one can do."""
        losses = [F.nll_loss(of_head, y) for of_head in log_probs]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

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


class _Stack(NamedTuple):
    """Chunks of B streams, all of S examples, and what they look back on."""

    x: Tensor  # (B, S, ...)
    y: Tensor  # (B * S,)
    past: KVState
    priors: list[Tensor | None]  # (S, K) of each stream
    look: LookBack | None = None  # what each example may see, where labels came late


def _stack(batches: list[Batch], contexts: list[Context], model: Transformer) -> _Stack:
    device = model.rotary.table.device
    xs = [on_device(batch.x, device) for batch in batches]
    ys = [on_device(batch.class_ids, device) for batch in batches]
    priors = [class_prior_tensor(model, batch.num_seen) for batch in batches]
    look = _stack_lookbacks(batches)
    if look is not None:
        for batch, context in zip(batches, contexts, strict=True):
            context.reserve(batch.max_lag)
    if len(batches) == 1:
        return _Stack(xs[0][None], ys[0], contexts[0].committed(beyond=look is not None), priors, look)
    return _Stack(torch.stack(xs), torch.cat(ys), stack_contexts(contexts, beyond=look is not None), priors, look)


def _stack_lookbacks(batches: list[Batch]) -> LookBack | None:
    if all(batch.lags is None for batch in batches):
        return None
    return LookBack.of_lags(np.stack([np.zeros(len(b), int) if b.lags is None else b.lags for b in batches]))


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
