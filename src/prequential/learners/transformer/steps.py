"""Gradient steps: one pass with its gradient and one step of AdamW, on the chunks of some streams together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prequential.learners.device import on_device
from prequential.learners.transformer.batch import Batch
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.passes import NetworkPass, class_prior_tensor
from prequential.models.extractors import has_dropout, seed_dropout
from prequential.models.kv_cache import Context, KVState, stack_contexts
from prequential.models.lookback import LookBack
from prequential.models.precision import autocast
from prequential.models.transformer import Transformer


class EMAUpdate(NamedTuple):
    """What follows the parameters after the steps on a chunk: decay × average + (1 - decay) × parameters."""

    model: Transformer
    decay: float


class Steps(Protocol):
    """What an engine does with a model that is trained."""

    def prepare(
        self, steps: Iterable[dict[int, Batch]], contexts: list[Context], *, number: int, report: bool, threads: int
    ) -> Callable[[EMAUpdate | None], StepsTaken]:
        """What takes gradient steps one after the other, each on the batches of some streams, by their number.

        It may be called in another thread, once, while nobody else uses the model and the contexts. It is given what
        follows the parameters after the last step.

        Parameters
        ----------
        steps
            The batches of each step.
        contexts
            Of all streams. They have the batches as committed examples afterwards.
        number
            Of the first step.
        report
            Whether the pass over stream 0 is asked for; its context is then left as it was, as it is committed with
            the prediction.
        threads
            How many threads they may use, where the engine does not decide that itself.
        """
        ...

    def update_ema(self, ema: EMAUpdate) -> None:
        """Moves an average of the parameters towards them."""
        ...


class StepsTaken(NamedTuple):
    """What the steps on a chunk give."""

    num_steps: int
    passed: NetworkPass | None = None  # over stream 0's batch from before its step, where it was asked for


class TorchSteps:
    """The steps of a model by torch: of each stream that belongs to this process, the gradient by autograd.

    Parameters
    ----------
    model, optimizer
        What is trained, and how.
    ranks
        The processes that share the streams.
    """

    def __init__(self, model: Transformer, optimizer: Optimizer, ranks: Ranks) -> None:
        self.model, self.optimizer, self.ranks = model, optimizer, ranks
        self._dropout = has_dropout(model)

    def prepare(
        self, steps: Iterable[dict[int, Batch]], contexts: list[Context], *, number: int, report: bool, threads: int
    ) -> Callable[[EMAUpdate | None], StepsTaken]:
        def take(ema: EMAUpdate | None) -> StepsTaken:
            count, reported = 0, None
            for count, batches in enumerate(steps, 1):
                for stream, passed in self._step(batches, contexts, number + count - 1).items():
                    if stream == 0 and report:
                        reported = passed
                    else:
                        contexts[stream].commit(passed.new)
            if ema is not None:
                self.update_ema(ema)
            return StepsTaken(count, reported)

        return take

    def _step(self, batches: dict[int, Batch], contexts: list[Context], number: int) -> dict[int, NetworkPass]:
        """One gradient step; the pass over each stream that belongs to this process, from before it."""
        mine = {stream: batch for stream, batch in batches.items() if self.ranks.owns(stream)}
        # a last chunk that is short cannot be stacked with the others; the gradients are summed either way
        lengths = sorted({len(batch) for batch in mine.values()})
        groups = [[stream for stream in mine if len(mine[stream]) == length] for length in lengths]
        self.model.train()
        if self._dropout:
            seed_dropout(self.model, self.model.settings.seed + 1_000_003 * number)
        stacked = [_stack([mine[i] for i in group], [contexts[i] for i in group], self.model) for group in groups]
        passes = [self._forward_backward(stack, len(stack.priors) / len(batches)) for stack in stacked]
        self.ranks.sum_gradients(self.model.parameters())
        self.optimizer.step()
        return {
            stream: NetworkPass(passed.log_probs, passed.new if len(group) == 1 else passed.new.stream(row))
            for group, passed in zip(groups, passes, strict=True)
            for row, stream in enumerate(group)
        }

    def update_ema(self, ema: EMAUpdate) -> None:
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.model.parameters()), list(self.model.parameters()), 1 - ema.decay)
            for ours, theirs in zip(ema.model.buffers(), self.model.buffers(), strict=True):
                ours.copy_(theirs)  # those of an own extractor, as of batch norm

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
        return NetworkPass([of_head.detach() for of_head in rows[0]], new)  # of the first: only stream 0's are used

    def _loss(self, log_probs: list[Tensor], y: Tensor) -> Tensor:
        """Every head's own loss; the loss of their mixture would let one rest on what another one can do."""
        losses = [F.nll_loss(of_head, y) for of_head in log_probs]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


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
