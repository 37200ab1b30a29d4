"""A batch learner that is fitted again whenever its past has grown by a tenth: retraining, as most people do it."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from prequential.baselines.batch_models import BatchModel, FittedModel, Frequencies, check_model
from prequential.baselines.library_models import check_model_options, library_errors, smoothed
from prequential.errors import BadSetting
from prequential.labels import join_rows, num_seen_before
from prequential.learners.base import check_missing
from prequential.learners.journaled import JournaledLearner
from prequential.learners.log_proba import prior_log_proba
from prequential.memory_limits import check_fits

BLOCK = 4096  # examples read from the past at a time


class Refit(JournaledLearner):
    """LightGBM or a classifier of scikit-learn, fitted on all of the past and again whenever that has grown by a tenth.

    Between two fits the model stays as it is. Only labels that have arrived are fitted on, so that late labels need
    nothing else. Its probabilities are mixed with a little of the uniform distribution, so that no label has
    probability 0. Images are flattened to vectors of pixels.

    With `lags`, the labels that arrived last are features, too. A row of the past is fitted on with the labels that had
    arrived when it was asked, just as it is predicted, however late labels come.

    The past is read again from the stream or from the learner's journal. A fit holds its examples in memory, 8 bytes
    per feature, and so no more than `window` of them; after it, the model alone is kept, and, with `lags` where labels
    come late, 4 bytes for each of these examples. All fits together see each example about eleven times: their time
    grows linearly with the stream where that of one fit does. A loaded learner fits its model once again.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    model
        "lightgbm", or "sklearn:" and the path of a class inside scikit-learn: "sklearn:ensemble.RandomForestClassifier".
        Each needs the extra of that name.
    settings
        Its arguments: plain values. {"class": "...", ...} is itself an object of the library.
    window
        It is fitted on the latest so many examples. None: on all, whatever memory that takes.
    growth
        It is fitted again when the past, or where that is longer the window, has got this part of it in new examples.
    start
        The first fit is after so many examples; before it, each label is as probable as it was frequent.
    lags
        So many of the labels that arrived last are features.
    smoothing
        Weight of the uniform distribution in the probabilities.
    standardize
        Whether features are standardized by the examples of the fit. None: for scikit-learn they are, for LightGBM not.
    missing
        Whether features may be NaN.
    seed
        Given to the model where it takes a random state.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(300, 3))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> learner = Refit(2, model="sklearn:tree.DecisionTreeClassifier")
    >>> charges = learner.observe(x, y)
    >>> print(f"{charges.correct[100:].mean():.2f}")
    0.99
    """

    small_state = True

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        model: str = "lightgbm",
        settings: dict[str, Any] | None = None,
        window: int | None = 1_000_000,
        growth: float = 0.1,
        start: int = 20,
        lags: int = 0,
        smoothing: float = 0.01,
        standardize: bool | None = None,
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(classes, missing=missing)
        check_model_options(settings, smoothing, seed)
        if window is not None and window < 1:
            raise BadSetting(f"window ({window}) must be at least 1")
        if not growth > 0:
            raise BadSetting(f"growth ({growth}) must be above 0")
        if start < 1:
            raise BadSetting(f"start ({start}) must be at least 1")
        if not 0 <= lags <= 1000:
            raise BadSetting(f"lags ({lags}) must be at least 0 and at most 1,000")
        self.model, self.settings = model, dict(settings or {})
        self.window, self.growth, self.start, self.lags = window, growth, start, lags
        self.smoothing, self.standardize, self.seed = smoothing, standardize, seed
        self._library, self._path = check_model(model, self.settings, seed)
        self._standardized = self._library == "sklearn" if standardize is None else standardize
        if not (self._library == "lightgbm" and standardize is None):
            check_missing(missing, self._standardized)
        self._fitted: FittedModel | None = None
        self._call: tuple[np.ndarray, np.ndarray] | None = None  # inside a call: what is learned in it
        self._num_learned = self._num_fitted = 0  # examples learned, and those of them up to the last fit
        self._recent: list[int] = []  # class ids of the latest `lags` labels, newest first
        self._late = array("i")  # how late labels came, of the latest examples; empty as long as none was late
        # of how many: those of the last fit, and those since
        self._kept = None if window is None else int(window * (1 + growth)) + 1

    def _predict(self, x: np.ndarray) -> np.ndarray:
        lagged = np.full((len(x), self.lags), -1)
        lagged[:, : len(self._recent)] = self._recent
        return self._log_proba(x, lagged, self.num_seen)

    def _log_proba(self, x: np.ndarray, lagged: np.ndarray, num_seen: int) -> np.ndarray:
        if not self._num_fitted:
            return prior_log_proba(len(x), num_seen, self.labels.capacity)
        fitted = self._ready()
        with library_errors(self.model, self.position):
            p = fitted.proba(_flat(x), lagged, self.labels.capacity)
        return smoothed(p, num_seen, self.labels.capacity, self.smoothing)

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        return self._predict_and_take(x, x, class_ids)

    def _observe_late(self, rows: np.ndarray, class_ids: np.ndarray, since: int) -> np.ndarray:
        # labels arrive between the rows that are asked, just as where they come at once; only they are others' labels
        return self._predict_and_take(rows[len(rows) - len(class_ids) :], rows[: len(class_ids)], class_ids)

    def _predict_and_take(self, asked: np.ndarray, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        """Predicts each of the rows asked, and then learns the next of x; log-probabilities (n, capacity)."""
        self._call = x, class_ids
        num_seen, parts, start = num_seen_before(class_ids, self.num_seen), [], 0
        while start < len(class_ids):
            stop = min(self._num_learned_at_next_fit() - self._num_learned + start, len(class_ids))
            stop = start + int(np.searchsorted(num_seen[start:stop], num_seen[start], side="right"))
            lagged = self._lagged_labels(np.concatenate([self._recent[::-1], class_ids[start:stop]]), stop - start)
            parts.append(self._log_proba(asked[start:stop], lagged, int(num_seen[start])))
            self._take(class_ids[start:stop], None if self._lags is None else self._lags[start:stop])
            start = stop
        self._ready()
        return join_rows(parts, num_seen, self.labels.capacity)

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self._call, start = (x, class_ids), 0
        while start < len(class_ids):
            stop = min(self._num_learned_at_next_fit() - self._num_learned + start, len(class_ids))
            self._take(class_ids[start:stop], None if self._lags is None else self._lags[start:stop])
            start = stop
        self._ready()

    def _release_snapshot(self) -> None:
        self._call = None

    def _lagged_labels(self, ids: np.ndarray, count: int) -> np.ndarray:
        """The labels (count, lags) that came before each of so many examples, of which ids has those that are known.

        The last of ids is the label of the last of these examples.
        """
        known = np.concatenate([np.full(self.lags, -1), ids]).astype(np.int64)
        at = len(known) - count + np.arange(count)
        return np.asarray(known[at[:, None] - 1 - np.arange(self.lags)])

    def _take(self, class_ids: np.ndarray, late: np.ndarray | None) -> None:
        """Counts examples of which the last may be the one before a fit."""
        if self.lags:
            self._recent = [*class_ids[::-1][: self.lags].tolist(), *self._recent][: self.lags]
            if self._late or (late is not None and late.any()):
                if not self._late:
                    self._late.extend([0] * min(self._num_learned, self._kept or self._num_learned))
                self._late.extend([0] * len(class_ids) if late is None else np.minimum(late, 2**31 - 1).tolist())
                if self._kept is not None and len(self._late) > 2 * self._kept:
                    self._late = self._late[-self._kept :]  # another array: a call that fails goes back to this one
        at_next_fit, self._num_learned = self._num_learned_at_next_fit(), self._num_learned + len(class_ids)
        if self._num_learned == at_next_fit:
            self._fitted, self._num_fitted = None, self._num_learned

    def _num_learned_at_next_fit(self) -> int:
        return self._num_fitted + max(1, int(min(self._num_fitted, self.window or self._num_fitted) * self.growth))

    def _ready(self) -> FittedModel:
        """The model; where a fit is due, or after loading, it is fitted first."""
        if self._fitted is None:
            self._fitted = self._fit(self._num_fitted)
        return self._fitted

    def _fit(self, stop: int) -> FittedModel:
        """A model fitted on the examples up to this one."""
        begin = 0 if self.window is None else max(0, stop - self.window)
        features = _flat(np.empty((1, *(self.shape or ())))).shape[1]
        check_fits(
            8.0 * (features + self.lags) * (stop - begin), f"window ({self.window}) with {stop - begin:,} examples"
        )
        x, lags = np.empty((stop - begin, features)), np.zeros(stop - begin, dtype=np.int64)
        class_ids, late, count = np.empty(stop - begin, dtype=np.int64), np.asarray(self._late), 0
        first_late = self._num_learned - len(late)
        for start in range(begin, stop, BLOCK):
            rows, ids = self._past(start, min(start + BLOCK, stop))
            part = slice(count, count + len(ids))
            x[part], class_ids[part] = _flat(rows), ids
            known = late[max(start - first_late, 0) : max(start + len(ids) - first_late, 0)]
            lags[part.stop - len(known) : part.stop] = known
            count += len(ids)
        x, class_ids, lags = x[:count], class_ids[:count], lags[:count]
        if count < min(self.start, self.window or self.start) or len(np.unique(class_ids)) < 2:
            return Frequencies(class_ids)
        known = np.concatenate([np.full(self.lags, -1), class_ids])
        asked_at = np.arange(count) - lags
        lagged = known[np.maximum(self.lags + asked_at[:, None] - 1 - np.arange(self.lags), 0)]  # (n, lags); -1: none
        with library_errors(self.model, self.position):
            return BatchModel(
                self._library, self._path, self.settings, self.seed, standardize=self._standardized, x=x, lagged=lagged,
                class_ids=class_ids,
            )  # fmt: skip

    def _past(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Examples and class ids of the past, without those that are damaged on disk.

        Those that were handed over in this call are taken from it, and not from the stream or the journal.
        """
        rows, ids = [], []
        if start < self.position:
            chunk = self.memory.read(start, min(stop, self.position))
            rows.append(chunk.x)
            ids.append(np.asarray(self.labels.assign(chunk.y), dtype=np.int64))
        if stop > self.position:
            assert self._call is not None
            part = slice(max(start - self.position, 0), stop - self.position)
            rows.append(self._call[0][part])
            ids.append(self._call[1][part])
        return np.concatenate(rows), np.concatenate(ids)

    def _state_dict(self) -> dict[str, Any]:
        return {
            "num_fitted": self._num_fitted,
            "recent": list(self._recent),
            "late": np.array(self._late, dtype=np.int32),
        }

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self._fitted, self._num_learned, self._num_fitted = None, self.position, int(state["num_fitted"])
        self._recent = [int(class_id) for class_id in state["recent"]]
        self._late = array("i", np.asarray(state["late"], dtype=np.int32).tolist())

    def _snapshot(self) -> Any:
        return self._fitted, self._num_learned, self._num_fitted, self._recent, self._late, len(self._late)

    def _restore(self, snapshot: Any) -> None:
        self._fitted, self._num_learned, self._num_fitted, self._recent, self._late, late = snapshot
        del self._late[late:]

    def _take_copy(self, other: Self, *, snapshot: bool) -> None:
        if snapshot and other._num_fitted:
            other._ready()  # a snapshot has no past to fit it on
        super()._take_copy(other, snapshot=snapshot)
        self._fitted = other._fitted


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(np.float64)
