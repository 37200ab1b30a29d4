"""Passes and gradient steps by the native core, on the parameters, moments and KV caches that torch has.

So where the core cannot do one of them, as with late labels in the 2-token transformer, torch does that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from prequential.learners.log_proba import uniform_where_nan
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.passes import NetworkPass, TorchPasses, extend_by_pass
from prequential.learners.transformer.steps import EMAUpdate, StepsTaken, TorchSteps
from prequential.models.kv_cache import Context
from prequential.models.transformer import Transformer
from prequential.native.kv_addresses import visible_ranges
from prequential.native.streams import ChunkInput, NativePass, StreamInput
from prequential.native.transformer import NativeTransformer

FEW = 64  # rows of a pass around which little is to be done


class NativePasses:
    """The passes of a model by the native core.

    Parameters
    ----------
    model
        What predicts.
    """

    def __init__(self, model: Transformer) -> None:
        self._native = NativeTransformer(model)
        # what computes rows with late labels, where the core does not
        self._late = None if self._native.streams.takes_late_labels else TorchPasses(model)

    @property
    def native(self) -> NativeTransformer:
        """What computes them."""
        return self._native

    @property
    def model(self) -> Transformer:
        return self._native.model

    @property
    def takes_labels_away(self) -> bool:
        sizes = self._native.streams.sizes
        return self._late is None and sizes.attention and sizes.example_key_width > 0

    def predict(self, queries: Queries, context: Context) -> tuple[np.ndarray, Any]:
        x, num_seen, look = queries.x, queries.num_seen, queries.lookback
        if look is not None and self._late is not None:
            return self._late.predict(queries, context)
        if look is None and len(x) == 1:
            log_probs, reuse = self._native.predict_one(x, int(num_seen[0]), context)
            return uniform_where_nan(log_probs), reuse
        if look is not None and len(x) <= FEW:
            visible = visible_ranges(look, self.model.settings.window)
            return uniform_where_nan(self._native.pass_late(x, None, num_seen, context, visible)), None
        past = context.current(beyond=look is not None)
        if look is not None:
            return _log_probs(self._native.predict_late(x, num_seen, past, look)), None
        return _log_probs(self._native.predict_next(x, num_seen, past)), None

    def append(self, reuse: Any, class_ids: np.ndarray, context: Context) -> bool:
        self._native.append_one(reuse, int(class_ids[0]), context)
        return True

    def forward(self, batch: Batch, context: Context, *, current: bool = False) -> NetworkPass:
        look = batch.lookback
        if look is not None and self._late is not None:
            return self._late.forward(batch, context, current=current)
        context.reserve(batch.max_lag)
        past = context.current(beyond=look is not None) if current else context.committed(beyond=look is not None)
        threads = torch.get_num_threads()
        passed = self._native.forward(batch.x, batch.class_ids, batch.num_seen, past, look, threads=threads)
        return NetworkPass(_log_probs(passed), passed.new)

    def extend(self, batch: Batch, context: Context) -> list[torch.Tensor] | np.ndarray:
        if batch.lags is None or self._late is not None or not self.model.settings.window:
            return extend_by_pass(self, batch, context)
        whole, n = batch if batch.pending is None else batch.with_pending(), len(batch)
        if len(whole) > FEW:
            return extend_by_pass(self, batch, context)
        context.reserve(whole.max_lag)
        look = whole.lookback
        assert look is not None
        visible = visible_ranges(look, self.model.settings.window)
        if batch.unlabeled:
            visible[0, 2:4] = -batch.unlabeled, 0
        log_probs = self._native.pass_late(
            whole.x, whole.class_ids, whole.num_seen, context, visible, current=batch.pending is None, keep=n
        )
        return uniform_where_nan(log_probs)[:, -n:]


class NativeSteps:
    """The steps of a model by the native core, which splits streams over threads.

    Parameters
    ----------
    model, optimizer
        What is trained; the moments are those of the optimizer, so that either engine goes on from them.
    """

    def __init__(self, model: Transformer, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._native = NativeTransformer(model, optimizer.adamw)
        # as for passes
        self._late = None if self._native.streams.takes_late_labels else TorchSteps(model, optimizer, Ranks())
        self._average: NativeTransformer | None = None

    def prepare(
        self, steps: Iterable[dict[int, Batch]], contexts: list[Context], *, number: int, report: bool, threads: int
    ) -> Callable[[EMAUpdate | None], StepsTaken]:
        steps = list(steps)
        if self._late is not None and any(batch.lags is not None for batches in steps for batch in batches.values()):
            return self._late.prepare(steps, contexts, number=number, report=report, threads=threads)
        inputs = [[self._input(i, batch, contexts[i], report) for i, batch in batches.items()] for batches in steps]
        training = self._native.prepare(inputs, log_probs=report, threads=threads)

        def take(ema: EMAUpdate | None) -> StepsTaken:
            done = training() if ema is None else training(self._of_average(ema.model), ema.decay)
            for _ in range(sum(not step.finite for step in done)):
                self._optimizer.skip()
            if not report:
                return StepsTaken(len(done))
            passed = done[0].passes[0]
            return StepsTaken(len(done), NetworkPass(_log_probs(passed), passed.new))

        return take

    def update_ema(self, ema: EMAUpdate) -> None:
        self._of_average(ema.model).update_ema(self._native, ema.decay)

    def _input(self, stream: int, batch: Batch, context: Context, report: bool) -> StreamInput | ChunkInput:
        context.reserve(batch.max_lag)
        look = batch.lookback
        if stream == 0 and report:
            past = context.committed(beyond=look is not None)
            return StreamInput(batch.x, batch.class_ids, batch.num_seen, past, look)
        return ChunkInput(batch.x, batch.class_ids, batch.num_seen, context, look)

    def _of_average(self, ema_model: Transformer) -> NativeTransformer:
        if self._average is None or self._average.model is not ema_model:
            self._average = NativeTransformer(ema_model)
        return self._average


def _log_probs(passed: NativePass) -> np.ndarray:
    assert passed.log_probs is not None
    return uniform_where_nan(passed.log_probs.numpy())
