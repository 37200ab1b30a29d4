"""kNN: the nearest of many past examples, an expert that needs no training."""

from __future__ import annotations

from ctypes import c_int64, memmove
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prequential.labels import log_class_prior
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.expert import Predicted
from prequential.learners.transformer.experts.metric import LearnedMetric, Neighbors
from prequential.models.heads import mix_with_prior
from prequential.models.kv_cache import KVCache
from prequential.native.experts import NativeExperts, address

NEAREST = 15  # k
PRIOR_WEIGHT = 0.5  # of the prior of the labels, in average votes


class _Columns(NamedTuple):
    """Where the neighbors of one example are, for a metric that learns from them."""

    key: np.ndarray  # (1, F) the example as the metric scales it
    at: np.ndarray  # (1, k) their columns; -1: there is none
    past: int  # how many columns there were


class _Found(NamedTuple):
    """What was found for one example after the chunk boundary."""

    x: np.ndarray  # (1, ...)
    num_seen: int
    log_probs: np.ndarray  # (1, 1, K)
    columns: _Columns | None


class KNNExpert:
    """Predicts the labels of the nearest of the latest examples, far beyond the window, by distance of the inputs.

    A network needs thousands of examples to learn what the inputs of a small table mean; neighbors know it from the
    first ones on, as long as the table does not change. When it does, the mixer soon gives them no weight.

    Parameters
    ----------
    memory
        How many of the latest examples are kept.
    chunk_size
        How many examples a chunk has.
    width
        How many of the inputs are compared: the first ones.
    num_classes
        How many labels there can be.
    learn_metric
        Whether it learns how much each input counts, from the labels of whole chunks. The memory then holds scaled inputs.
    native
        What finds the neighbors in the native core, where it does.

    Examples
    --------
    >>> knn = KNNExpert(memory=4, chunk_size=2, width=1, num_classes=2)
    >>> _ = knn.commit(Batch(np.float32([[0], [9]]), np.array([0, 1]), np.array([0, 1])))
    >>> knn.predict(Queries(np.float32([[8]]), num_seen=np.array([2]))).log_probs.argmax().item()
    1
    """

    num_predictions = 1

    def __init__(
        self,
        *,
        memory: int,
        chunk_size: int,
        width: int,
        num_classes: int,
        learn_metric: bool = False,
        native: NativeExperts | None = None,
    ) -> None:
        self.memory, self.width, self.num_classes = memory, width, num_classes
        self._metric = LearnedMetric(width=width, prior_weight=PRIOR_WEIGHT) if learn_metric else None
        self._native = native
        self._chunk_size = chunk_size
        self._past = KVCache(
            depth=1, window=memory, chunk_tokens=chunk_size, key_width=width, device=torch.device("cpu"), labels=True
        )
        # in the native core: what was found for all examples after the chunk boundary, if they came one by one
        self._found: list[_Found] = []

    @property
    def metric(self) -> LearnedMetric | None:
        """What scales the inputs; None: nothing does."""
        return self._metric

    @property
    def past(self) -> KVCache:
        """The examples it compares with, as the metric scales them."""
        return self._past

    def remember_found(
        self, x: np.ndarray, num_seen: int, log_probs: np.ndarray, at: np.ndarray | None, past: int
    ) -> None:
        """What was found for an example that is in `past` now, after so many others, with neighbors in columns `at`."""
        self._found.append(_Found(x, num_seen, log_probs, None if at is None else _Columns(x, at.copy(), past)))

    def predict(self, queries: Queries) -> Predicted:
        if self._native is not None:
            start, stop = self._past.current_span(beyond=queries.missing is not None)
            if len(queries) == 1 and queries.missing is None:
                return Predicted(*self._search_one(queries.x, queries.num_seen))
            visible = None
            if queries.missing is not None:
                last = stop - start - queries.missing
                visible = np.array([last - self.memory, last], np.int64)
            return Predicted(self._search(self._scaled(queries.x), (start, stop), None, visible, queries.num_seen))
        past = self._past.current(beyond=queries.missing is not None)
        hidden = None if queries.missing is None else self._hidden_from(queries.missing, past[0].shape[2])
        knn_probs = self._knn_probs(self._keys(queries.x), past, None, hidden)
        return Predicted(self._log_probs(knn_probs, queries.num_seen))

    def extend(self, batch: Batch, predicted: Predicted | None = None) -> np.ndarray:
        log_probs, columns = (None, None) if predicted is None else predicted
        if self._native is not None and batch.lags is None and len(batch) == 1:
            if log_probs is None or (columns is None and self._metric is not None):
                log_probs, columns = self._search_one(batch.x, batch.num_seen)
            self._append(batch.x if columns is None else columns.key, batch.class_ids)
            self._found.append(_Found(batch.x, int(batch.num_seen[0]), log_probs, columns))
            return log_probs
        if self._native is not None and len(batch) == 1:
            return self._extend_late(batch, log_probs)
        keys, labels = self._keys(batch.x), torch.from_numpy(batch.class_ids)
        if log_probs is None and self._native is not None:
            log_probs, _ = self._neighbors_of(batch, self._past.current_span())
        if log_probs is None:
            knn_probs = self._knn_probs(keys, self._past.current(), labels, _hidden_later(batch.lags, len(batch)))
            log_probs = self._log_probs(knn_probs, batch.num_seen)
        self._found = []
        if batch.lags is not None:  # what is asked before some of these labels arrived sees as many others
            self._past.reserve(self._chunk_size)
        self._past.extend((keys[None, None], labels[None, None, :, None]))
        return log_probs

    def commit(self, batch: Batch) -> np.ndarray:
        if self._native is not None and (log_probs := self._commit_found(batch)) is not None:
            return log_probs
        keys, labels = self._keys(batch.x), torch.from_numpy(batch.class_ids)
        if self._native is not None:
            log_probs, ages = self._neighbors_of(batch, self._past.committed_span())
        else:
            found = self._find(keys, self._past.committed(), labels, _hidden_later(batch.lags, len(batch)))
            log_probs, ages = self._log_probs(self._vote(found), batch.num_seen), found.ages
        if batch.lags is not None:  # as in `extend`: the state depends on the examples alone, not on how they came
            self._past.reserve(self._chunk_size)
        self._past.commit((keys[None, None], labels[None, None, :, None]))
        self._learn_metric(batch, ages)
        return log_probs

    def _learn_metric(self, batch: Batch, ages: np.ndarray | None) -> None:
        """A step of the metric on a chunk that was just committed; what is in memory is scaled as what comes."""
        n = len(batch)
        if self._metric is None or ages is None or not ages.any() or n > self.memory:
            return
        # of a label that was seen; others have no neighbors
        prior = 1 / np.minimum(batch.num_seen + 1, self.num_classes)
        before, first = self._metric.scale, self._past.committed_span()[1] - n
        if self._native is not None:
            self._metric.step(
                self._native.metric_gradient(
                    self._memory(0), first, ages, prior, width=self.width, prior_weight=PRIOR_WEIGHT,
                    sharpness=self._metric.sharpness,
                )
            )  # fmt: skip
            start, stop = self._past.current_span(beyond=True)
            self._native.scale_rows(self._memory(start)[0], stop - start, self._metric.scale / before)
        else:
            keys, labels = (part[0, 0].numpy() for part in self._past.buffers)
            row = first + np.arange(n)[:, None]
            found, at = ages > 0, row - ages
            squares = np.square(keys[row] - keys[at]) * found[..., None]
            same = labels[at, 0] == batch.class_ids[:, None]
            self._metric.learn(Neighbors(squares, same, found, prior))
            self._past.scale_keys(torch.from_numpy(self._metric.scale / before))

    def grow(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def macs(self) -> float:
        return float(self.memory * self.width)

    def state_dict(self) -> dict[str, Any]:
        """Of one size from the start on: what is not there yet is 0."""
        kept = self._past.state_dict()
        x, class_ids = torch.as_tensor(kept["k"])[0, 0], torch.as_tensor(kept["v"])[0, 0, :, 0]
        room = (0, self.memory + self._chunk_size + int(kept.get("num_beyond", 0)) - len(class_ids))
        return {
            "x": F.pad(x, (0, 0, *room)),
            "class_ids": F.pad(class_ids, room),
            "count": len(class_ids),
            "num_fresh": kept["num_fresh"],
            **({"num_beyond": kept["num_beyond"]} if "num_beyond" in kept else {}),
            **({} if self._metric is None else {"metric": self._metric.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._found = []
        count = int(state["count"])
        x, class_ids = torch.as_tensor(state["x"])[:count], torch.as_tensor(state["class_ids"])[:count]
        kept = {"k": x[None, None], "v": class_ids[None, None, :, None], "num_fresh": state["num_fresh"]}
        self._past.load_state_dict({**kept, "num_beyond": state.get("num_beyond", 0)})
        if self._metric is not None:
            self._metric.load_state_dict(state["metric"])

    # In the native core: each row uses one range of columns, those of the past and then those of the rows before it.

    def _neighbors_of(self, batch: Batch, span: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Log-probabilities (1, n, K) of labeled examples that come after this part of the past, each as it was asked.

        Also the ages (n, k) of their neighbors, where a metric learns from them.
        """
        n, past = len(batch), span[1] - span[0]
        at = None if self._metric is None else np.empty((n, NEAREST), np.int64)
        position = past + np.arange(n)
        last = position if batch.lags is None else position - batch.lags
        own = batch.class_ids if n > 1 else None
        visible = np.array([position - self.memory, last], np.int64)
        log_probs = self._search(self._scaled(batch.x), span, own, visible, batch.num_seen, at)
        return log_probs, None if at is None else _ages(at, past)

    def _extend_late(self, batch: Batch, log_probs: np.ndarray | None) -> np.ndarray:
        """The same as `extend` for one example whose label came late."""
        assert batch.lags is not None
        start, stop = self._past.current_span()
        past, key = stop - start, self._scaled(batch.x)
        if log_probs is None:
            visible = np.array([[past - self.memory], [past - int(batch.lags[0])]])
            log_probs = self._search(key, (start, stop), None, visible, batch.num_seen)
        self._found = []
        self._past.reserve(self._chunk_size)
        self._append(key, batch.class_ids)
        return log_probs

    def _search_one(self, x: np.ndarray, num_seen: np.ndarray) -> tuple[np.ndarray, _Columns | None]:
        """Log-probabilities (1, 1, K) of the next example, and what a metric learns from, where there is one."""
        span = self._past.current_span()
        if self._metric is None:
            return self._search(x, span, None, None, num_seen), None
        key, at = self._scaled(x), np.empty((1, NEAREST), np.int64)
        return self._search(key, span, None, None, num_seen, at), _Columns(key, at, span[1] - span[0])

    def _commit_found(self, batch: Batch) -> np.ndarray | None:
        """Commits a chunk whose examples came one by one: what was found for them then would be found again.

        None where that is not so, and nothing has changed.
        """
        found, self._found = self._found, []
        fresh = self._past.current_span()[1] - self._past.committed_span()[1]
        if not self._is_start_of(batch, found, fresh):
            return None
        for i in range(len(found), len(batch)):
            x, num_seen = batch.x[i : i + 1], batch.num_seen[i : i + 1]
            log_probs, columns = self._search_one(x, num_seen)
            found.append(_Found(x, int(num_seen[0]), log_probs, columns))
            self._append(x if columns is None else columns.key, batch.class_ids[i : i + 1])
        self._past.commit_added()
        if self._metric is not None:
            columns_of = [cast(_Columns, one.columns) for one in found]
            at, past = np.concatenate([one.at for one in columns_of]), np.array([one.past for one in columns_of])
            self._learn_metric(batch, np.where(at < 0, 0, past[:, None] - at))
        return np.concatenate([one.log_probs for one in found], 1)

    def _is_start_of(self, batch: Batch, found: list[_Found], fresh: int) -> bool:
        """Whether `found` is of all `fresh` examples after the boundary, and the chunk begins with these."""
        k = len(found)
        if not 0 < k == fresh <= len(batch) or batch.lags is not None:
            return False
        if (
            found[0].log_probs.shape[2] != self.num_classes
            or [one.num_seen for one in found] != batch.num_seen[:k].tolist()
        ):
            return False
        return np.array_equal(np.concatenate([one.x for one in found]), batch.x[:k])

    def _search(
        self,
        keys: np.ndarray,
        span: tuple[int, int],
        own: np.ndarray | None,
        visible: np.ndarray | None,
        num_seen: np.ndarray,
        at: np.ndarray | None = None,
    ) -> np.ndarray:
        """`NativeExperts.knn` of keys (n, at least F) in this part of the past."""
        assert self._native is not None
        past = (*self._memory(span[0])[:2], span[1] - span[0])
        return self._native.knn(
            keys, past, own, visible, num_seen, width=self.width, num_classes=self.num_classes, nearest=NEAREST,
            prior_weight=PRIOR_WEIGHT, sharpness=1.0 if self._metric is None else self._metric.sharpness, at=at,
        )[None]  # fmt: skip

    def _memory(self, start: int) -> tuple[int, int, int]:
        """Where keys and labels from a place in the buffers on are, and how many there is room for."""
        keys, labels = self._past.buffers
        return keys.data_ptr() + 4 * start * self.width, labels.data_ptr() + 8 * start, labels.shape[2] - start

    def _append(self, key: np.ndarray, class_ids: np.ndarray) -> None:
        """Adds one example after the chunk boundary; much faster than tensors do it."""
        keys, labels, _ = self._memory(self._past.room_for(1))
        memmove(keys, address(key), 4 * self.width)
        c_int64.from_address(labels).value = int(class_ids[0])
        self._past.count_added(1)

    def _hidden_from(self, missing: np.ndarray, past: int) -> Tensor:
        """Which of the past examples each query may not use, (n, P): those without a label yet, and older ones."""
        age = np.arange(past, 0, -1)
        return torch.from_numpy((age <= missing[:, None]) | (age > missing[:, None] + self.memory))

    def _keys(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(self._scaled(x))[:, : self.width].float()

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        """x (n, at least F), of which the first F are compared as they are."""
        return x if self._metric is None else x[:, : self.width] * self._metric.scale

    def _log_probs(self, knn_probs: Tensor, num_seen: np.ndarray) -> np.ndarray:
        prior = log_class_prior(num_seen, self.num_classes)
        return mix_with_prior(knn_probs, None if prior is None else torch.from_numpy(prior)).numpy()[None]

    def _knn_probs(
        self, x: Tensor, past: tuple[Tensor, Tensor], own: Tensor | None, hidden: Tensor | None = None
    ) -> Tensor:
        return self._vote(self._find(x, past, own, hidden))

    def _find(
        self, x: Tensor, past: tuple[Tensor, Tensor], own: Tensor | None, hidden: Tensor | None = None
    ) -> _Nearest:
        """The nearest neighbors of x (n, F).

        Where x has labels (`own`), its examples are neighbors of those after them. What is `hidden`, (n, latest ones),
        is no neighbor: its label came later than the question.
        """
        keys, labels = past[0][0, 0], past[1][0, 0, :, 0]
        if own is not None and len(own) > 1:
            keys, labels = torch.cat([keys, x]), torch.cat([labels, own])
        # squared distances, without the part that is the same for all of a row
        distance = torch.addmm(keys.square().sum(1)[None], x, keys.T, alpha=-2)  # (n, P)
        if own is not None and len(own) > 1:
            n, before = len(own), len(labels) - len(own)
            square = torch.ones(n, n, dtype=torch.bool)
            distance[:, before:].masked_fill_(square.triu(), torch.inf)  # itself and later ones
            if before + n > self.memory:  # those that the last of them push out, for each from the one before it on
                distance[:, :n].masked_fill_(square.tril(before - self.memory - 1), torch.inf)
        if hidden is not None:
            latest = min(hidden.shape[1], len(labels))
            distance[:, len(labels) - latest :].masked_fill_(hidden[:, hidden.shape[1] - latest :], torch.inf)
        nearest, at = distance.topk(min(NEAREST, len(labels)), largest=False, sorted=False)
        nearest = nearest + x.square().sum(1, keepdim=True)
        finite = nearest.isfinite()  # those too far for a number do not count
        return _Nearest(labels, at, nearest.clamp_(min=0).masked_fill_(~finite, 0), finite, len(past[0][0, 0]))

    def _vote(self, found: _Nearest) -> Tensor:
        """The weights of the labels among the nearest neighbors, (n, K); they sum to less than 1."""
        knn_probs = torch.zeros(len(found.at), self.num_classes)
        if not len(found.labels):
            return knn_probs
        nearest, finite = found.distance, found.finite
        count = finite.sum(1, keepdim=True).clamp_(min=1)
        relative = nearest / (nearest.sum(1, keepdim=True) / count + 1e-9)
        if self._metric is not None:
            relative *= self._metric.sharpness
        weight = torch.exp(-relative) * finite
        total = weight.sum(1, keepdim=True)
        return knn_probs.scatter_add_(1, found.labels[found.at], weight / (total * (1 + PRIOR_WEIGHT / count) + 1e-9))


class _Nearest(NamedTuple):
    """The nearest neighbors of n examples, among N in memory."""

    labels: Tensor  # (N,) of all there are
    at: Tensor  # (n, k) where the nearest are
    distance: Tensor  # (n, k) squared
    finite: Tensor  # (n, k) whether it is one: those too far or hidden are not
    past: int  # how many of the N came before the n

    @property
    def ages(self) -> np.ndarray:
        """(n, k) how many examples ago they came; 0: there is none."""
        return _ages(self.at.masked_fill(~self.finite, -1).numpy(), self.past)


def _ages(at: np.ndarray, past: int) -> np.ndarray:
    """How many examples before each of n the columns (n, k) are, after so many of the past; 0 where there is none."""
    return np.where(at < 0, 0, past + np.arange(len(at))[:, None] - at)


def _hidden_later(lags: np.ndarray | None, n: int) -> Tensor | None:
    """Which of the latest examples, they themselves included, each of n examples may not use; None: its own later ones."""
    if lags is None:
        return None
    own = n if n > 1 else 0  # one alone is not among the columns
    position = np.arange(-int(lags.max(initial=0)), own)
    return torch.from_numpy(position >= (np.arange(n) - lags)[:, None])
