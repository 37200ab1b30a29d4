"""ACM: online k nearest neighbors on given features (Prabhu et al. 2023)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from prequential.baselines.neighbor_index import NeighborIndex
from prequential.errors import BadSetting
from prequential.labels import num_seen_before, spread_unseen
from prequential.learners.base import OnlineLearner, check_missing, check_seed
from prequential.learners.chunked import chunk_slices
from prequential.learners.log_proba import uniform_log_proba
from prequential.learners.normalizer import Normalizer, bounded
from prequential.learners.outliers import Hint
from prequential.renames import OPTIONS, takes_old_names
from prequential.storage.checkpoint import allow

SMOOTHINGS = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0])  # pseudo-counts, spread over the labels
FORGET = 0.999  # how the loss of each choice of k and smoothing fades


@takes_old_names(OPTIONS)
class ACM(OnlineLearner):
    """k nearest neighbors among all past examples.

    Every example is kept in an approximate index (HNSW, cosine). Probabilities are the counts of the k nearest labels
    plus pseudo-counts spread over the labels seen and one more, for all others, so that no label has probability 0; a
    tie goes to the nearer label. k and the pseudo-counts are chosen before every example: those with the lowest recent
    log-loss. Images are flattened to vectors of pixels.

    Memory grows with the stream: that is the method. Each example takes 4 bytes per feature (2 with `half`) and about
    220 more; the process takes more than that, since arrays grow by doubling: with 256 features 1,514 bytes per example
    at 100,000 of them (1,585 at 25,000), so 37 million take about 56 GB. Saving makes a copy of all of it. Needs the
    extra "neighbors".

    How many of the true neighbors are found depends on the data. Vectors without any structure are the worst: of 12,000
    Gaussian ones with 256 features, 0.96 of the 10 nearest with `ef_search` 128, 0.83 with 64. At 100,000 examples, 128
    costs 1.7 ms of CPU time per example and 64 costs 1.3 ms, most of it in `shards` parallel threads.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    num_neighbors
        The number k; None chooses it from 1 to `most` during the stream.
    most
        The largest k tried.
    links, ef_construction, ef_search
        Settings of the index: links per item, candidates kept while linking and while searching.
    block
        How many examples are inserted at once. The ones that wait are searched exactly, so nothing is found late.
    shards
        How many graphs share the examples. They are searched side by side, with at most as many threads as PyTorch
        uses.
    half
        Whether to keep features as float16.
    standardize
        Whether features are standardized by past statistics before they are compared and kept.
    missing
        Whether features may be NaN; needs `standardize`, which puts the mean there.
    seed
        Seed of the index.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> y = random.integers(5, size=400)
    >>> x = np.eye(5)[y] + 0.3 * random.normal(size=(400, 5))
    >>> learner = ACM(5, block=50)
    >>> charges = learner.observe(x, y)
    >>> print(f"{charges.correct.mean():.2f}")
    0.93
    """

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        num_neighbors: int | None = None,
        most: int = 16,
        links: int = 25,
        ef_construction: int = 200,
        ef_search: int = 128,
        block: int = 256,
        shards: int = 2,
        half: bool = False,
        standardize: bool = True,
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(classes, missing=missing)
        for name, value in (
            ("num_neighbors", num_neighbors), ("most", most), ("links", links), ("ef_construction", ef_construction),
            ("ef_search", ef_search), ("block", block), ("shards", shards),
        ):  # fmt: skip
            if value is not None and value < 1:
                raise BadSetting(f"{name} ({value}) must be at least 1")
        check_seed(seed)
        check_missing(missing, standardize)
        self._graph: dict[str, Any] = {
            "links": links, "ef_construction": ef_construction, "ef_search": ef_search, "block": block,
            "shards": shards, "half": half, "seed": seed,
        }  # fmt: skip
        self.num_neighbors, self.most, self.standardize = num_neighbors, most, standardize
        self.stride = block
        allow(8 * most * (1 + len(SMOOTHINGS)), f"up to {most} neighbors")
        self.ks = np.arange(1, most + 1) if num_neighbors is None else np.array([num_neighbors])
        self.loss = np.zeros((len(self.ks), len(SMOOTHINGS)))  # recent log-loss of each choice
        self.index: NeighborIndex | None = None  # made when the first example tells the number of features
        self.normalizer: Normalizer | None = None
        self._class_ids = np.zeros(1024, dtype=np.int32)  # of each example; grows by doubling
        self._count = 0

    def config(self) -> dict[str, Any]:
        own = {
            "num_neighbors": self.num_neighbors,
            "most": self.most,
            "standardize": self.standardize,
            "missing": self.missing,
        }
        return {"classes": self.labels.classes, **own, **self._graph}

    def memory_bytes(self) -> int:
        """How much memory the kept examples need; the process takes up to a third more, as arrays grow by doubling."""
        width = self.index.width if self.index is not None else 0
        per_value, links = (2 if self._graph["half"] else 4), self._graph["links"]
        return self._count * int(width * per_value + 4 * (2 * links + 1) + 16)

    def _prepare(self, x: np.ndarray) -> None:
        if self.index is None:
            self._begin(int(np.prod(x.shape[1:])))

    def _begin(self, features: int) -> NeighborIndex:
        self.normalizer = Normalizer(features) if self.standardize else None
        self.index = NeighborIndex(features, **self._graph)
        return self.index

    def _features(self, x: np.ndarray, consecutive: bool) -> np.ndarray:
        flat = x.reshape(len(x), -1)
        if self.normalizer is None:
            return bounded(flat.astype(np.float32))
        return self.normalizer.transform(flat) if consecutive else self.normalizer.transform_each(flat)

    def _classes_of(self, item: np.ndarray) -> np.ndarray:
        """The class ids (n, k) of the found items, -1 where none was found."""
        return np.where(item >= 0, self._class_ids[np.maximum(item, 0)], -1)

    def _log_knn_probs(self, neighbors: np.ndarray, num_seen: int) -> np.ndarray:
        """Log-probabilities (capacity,) from the class ids of the neighbors, nearest first, by the best choice."""
        K = min(num_seen + 1, self.labels.capacity)  # the labels seen, and one for all others
        best, smoothing = divmod(int(self.loss.argmin()), len(SMOOTHINGS))
        neighbors = neighbors[: self.ks[best]]
        neighbors = neighbors[neighbors >= 0]
        # the nearer counts a little more, which decides ties and nothing else
        weight = 1 + 1e-3 / (1 + np.arange(len(neighbors)))
        p = np.bincount(neighbors, weight, minlength=K) + SMOOTHINGS[smoothing] / K
        log_p = np.log(p / p.sum())[None]
        return np.asarray(spread_unseen(log_p, np.array([num_seen]), self.labels.capacity)[0])

    def _update_losses(self, neighbors: np.ndarray, class_id: int, num_seen: int) -> None:
        """Adds the log-loss that each choice of k and smoothing has on this example."""
        right = np.concatenate([[0], np.cumsum(neighbors == class_id)])
        number = np.concatenate([[0], np.cumsum(neighbors >= 0)])
        right, number = right[self.ks][:, None], number[self.ks][:, None]
        p = (right + SMOOTHINGS / min(num_seen + 1, self.labels.capacity)) / (number + SMOOTHINGS)
        self.loss = FORGET * self.loss - np.log(p)

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self.index is None:
            return uniform_log_proba(len(x), self.labels.capacity)
        _, item = self.index.search(self._features(x, consecutive=False), int(self.ks.max()))
        return np.stack([self._log_knn_probs(neighbors, self.num_seen) for neighbors in self._classes_of(item)])

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self._observe(x, class_ids)

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        index = self.index
        assert index is not None
        rows, num_seen = [], num_seen_before(class_ids, self.num_seen)
        for part in chunk_slices(len(x), len(index.waiting), index.block):
            piece = x[part]
            _, item = index.search_and_add(self._features(piece, consecutive=True), int(self.ks.max()))
            if self.normalizer is not None:
                self.normalizer.update(piece.reshape(len(piece), -1))
            self._append(class_ids[part])  # a row's neighbors are always before it
            of_rows = zip(self._classes_of(item), class_ids[part].tolist(), num_seen[part].tolist(), strict=True)
            for neighbors, class_id, seen in of_rows:
                rows.append(self._log_knn_probs(neighbors, seen))
                self._update_losses(neighbors, class_id, seen)
        return np.stack(rows)

    def _append(self, class_ids: np.ndarray) -> None:
        if self._count + len(class_ids) > len(self._class_ids):
            grown = np.zeros(2 * max(len(self._class_ids), self._count + len(class_ids)), dtype=np.int32)
            grown[: self._count] = self._class_ids[: self._count]
            self._class_ids = grown
        self._class_ids[self._count : self._count + len(class_ids)] = class_ids
        self._count += len(class_ids)

    def _hints(self) -> list[Hint]:
        return [] if self.normalizer is None else self.normalizer.hints()

    def _snapshot(self) -> dict[str, Any]:
        if self.index is None or self._graph["half"]:  # rounded vectors would not give the same graph again
            return self._state_dict()
        normalizer = None if self.normalizer is None else self.normalizer.state_dict()
        return {"items": len(self.index), "waiting": self.index.waiting, "loss": self.loss, "normalizer": normalizer}

    def _restore(self, snapshot: dict[str, Any]) -> None:
        if "items" not in snapshot:
            self._load_state_dict(snapshot)
            return
        assert self.index is not None
        self.index.truncate(snapshot["items"], snapshot["waiting"])
        if self.normalizer is not None:
            self.normalizer.load_state_dict(snapshot["normalizer"])
        self._count, self.loss = snapshot["items"], snapshot["loss"]

    def _state_dict(self) -> dict[str, Any]:
        return {
            "index": None if self.index is None else self.index.state_dict(),
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "class_ids": self._class_ids[: self._count].copy(),
            "loss": self.loss.copy(),
            "features": None if self.index is None else self.index.width,
        }

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.index = self.normalizer = None
        if state["index"] is not None:
            self._begin(int(state["features"])).load_state_dict(state["index"])
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        self._class_ids, self._count = state["class_ids"].copy(), len(state["class_ids"])
        self.loss = state["loss"].copy()
