"""Passes and gradient steps by the native core, on the parameters, moments and KV caches that torch has."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from prequential.learners.log_proba import uniform_where_nan
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.optimizer import Optimizer
from prequential.learners.transformer.passes import NetworkPass
from prequential.models.kv_cache import Context
from prequential.models.transformer import Transformer
from prequential.native.transformer import NativePass, NativeTransformer, StreamInput


class NativePasses:
    """The passes of a model by the native core.

    Parameters
    ----------
    model
        What predicts.
    """

    def __init__(self, model: Transformer) -> None:
        self._native = NativeTransformer(model)

    @property
    def model(self) -> Transformer:
        return self._native.model

    def predict(self, queries: Queries, context: Context) -> tuple[np.ndarray, Any]:
        x, num_seen, look = queries.x, queries.num_seen, queries.lookback
        if look is None and len(x) == 1:
            log_probs, reuse = self._native.predict_one(x, int(num_seen[0]), context)
            return uniform_where_nan(log_probs), reuse
        past = context.current(beyond=look is not None)
        if look is not None:
            return _log_probs(self._native.predict_late(x, num_seen, past, look)), None
        return _log_probs(self._native.predict_next(x, num_seen, past)), None

    def append(self, reuse: Any, class_ids: np.ndarray, context: Context) -> bool:
        self._native.append_one(reuse, int(class_ids[0]), context)
        return True

    def forward(self, batch: Batch, context: Context, *, current: bool = False) -> NetworkPass:
        context.reserve(batch.max_lag)
        look = batch.lookback
        past = context.current(beyond=look is not None) if current else context.committed(beyond=look is not None)
        threads = torch.get_num_threads()
        passed = self._native.forward(batch.x, batch.class_ids, batch.num_seen, past, look, threads=threads)
        return NetworkPass(_log_probs(passed), passed.new)


class NativeSteps:
    """The steps of a model by the native core, which splits streams over as many threads as torch may use.

    Parameters
    ----------
    model, optimizer
        What is trained; the moments are those of the optimizer, so that either engine goes on from them.
    """

    def __init__(self, model: Transformer, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._native = NativeTransformer(model, optimizer.adamw)
        self._average: NativeTransformer | None = None

    def step(
        self, batches: dict[int, Batch], contexts: list[Context], *, number: int, log_probs: bool
    ) -> dict[int, NetworkPass]:
        streams = []
        for stream, batch in batches.items():
            context, look = contexts[stream], batch.lookback
            context.reserve(batch.max_lag)
            past = context.committed(beyond=look is not None)
            streams.append(StreamInput(batch.x, batch.class_ids, batch.num_seen, past, look))
        done = self._native.step(streams, log_probs=log_probs, threads=torch.get_num_threads())
        if not done.finite:
            self._optimizer.skip()
        return {
            stream: NetworkPass(_log_probs(passed) if log_probs else [], passed.new)
            for stream, passed in zip(batches, done.passes, strict=True)
        }

    def update_ema(self, ema_model: Transformer, decay: float) -> None:
        if self._average is None or self._average.model is not ema_model:
            self._average = NativeTransformer(ema_model)
        self._average.update_ema(self._native, decay)


def _log_probs(passed: NativePass) -> np.ndarray:
    assert passed.log_probs is not None
    return uniform_where_nan(passed.log_probs.numpy())
