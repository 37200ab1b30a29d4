"""A growing index of vectors in which near ones are found fast, and which resumes to the bit (faiss HNSW).

No HNSW library saves the generator that draws the level of each new item, so a reloaded index goes on differently.
Here each level follows from the seed and the item's number, and is handed to faiss before the item.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch

from prequential.errors import MissingExtra
from prequential.storage.checkpoint import allow


class NeighborIndex:
    """Finds the nearest of all vectors that were added, by cosine.

    The items are distributed over `shards` graphs, which are built and searched in parallel, with at most as many
    threads as PyTorch uses; the result does not depend on that number. (faiss can add to one graph with several
    threads, but then the graph differs from run to run.) New vectors wait until there are `block` of them, because each
    insertion costs faiss a pass over the whole index; the waiting ones are searched exactly. So every item is found
    from the moment it was added, and adding one by one gives the same results as adding many at once.

    Parameters
    ----------
    width
        Length of the vectors.
    links
        Links per item and level (M); twice as many on the ground level.
    ef_construction, ef_search
        How many candidates are kept while linking, and while searching.
    block
        How many items are inserted at once.
    shards
        How many graphs.
    half
        Whether to keep vectors as float16: half the memory.
    seed
        Seed of the levels.

    Examples
    --------
    >>> index = NeighborIndex(2, block=2)
    >>> index.add(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=np.float32))
    >>> similarity, item = index.search(np.array([[2.0, 0.1]], dtype=np.float32), 2)
    >>> item.tolist()
    [[0, 2]]
    """

    def __init__(
        self,
        width: int,
        *,
        links: int = 25,
        ef_construction: int = 200,
        ef_search: int = 128,
        block: int = 256,
        shards: int = 2,
        half: bool = False,
        seed: int = 0,
    ) -> None:
        self.width, self.links, self.block, self.seed = width, links, block, seed
        allow(1000 * shards + 100 * links + 8 * width, f"{shards} shards of {width} features with {links} links")
        self._kind = (shards, half, ef_construction, ef_search)
        self._shards = self._new_shards()
        self.waiting = np.zeros((0, width), dtype=np.float32)

    def _new_shards(self) -> list[Any]:
        faiss, made = load_faiss(), []
        shards, half, ef_construction, ef_search = self._kind
        for _ in range(shards):
            if half:
                fp16 = faiss.ScalarQuantizer.QT_fp16
                index = faiss.IndexHNSWSQ(self.width, fp16, self.links, faiss.METRIC_INNER_PRODUCT)
            else:
                index = faiss.IndexHNSWFlat(self.width, self.links, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction, index.hnsw.efSearch = ef_construction, ef_search
            made.append(index)
        return made

    def __len__(self) -> int:
        return sum(int(index.ntotal) for index in self._shards) + len(self.waiting)

    def search(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines (n, k) and numbers (n, k) of the nearest items, nearest first; number -1 where there are none."""
        return self._search(unit(x), k, self.waiting, np.ones((len(x), len(self.waiting)), dtype=bool))

    def search_and_add(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `search` and `add` in turn: each row is searched among all before it. The rows must fit into the block."""
        x = unit(x)
        exact = np.concatenate([self.waiting, x])
        before = np.arange(len(exact)) < len(self.waiting) + np.arange(len(x))[:, None]
        found = self._search(x, k, exact, before)
        self._append(x)
        return found

    def add(self, x: np.ndarray) -> None:
        """Adds vectors (n, width); they are numbered in the order they come."""
        self._append(unit(x))

    def _append(self, x: np.ndarray) -> None:
        waiting = np.concatenate([self.waiting, x])
        while len(waiting) >= self.block:
            self._insert(waiting[: self.block])
            waiting = waiting[self.block :]
        self.waiting = waiting

    def truncate(self, count: int, waiting: np.ndarray) -> None:
        """Goes back to the first `count` items, the last of which are the `waiting` ones; not for float16.

        faiss cannot remove items, so the graphs are built again, which takes as long as it did the first time.
        """
        inserted, shards = count - len(waiting), len(self._shards)
        if inserted < sum(int(index.ntotal) for index in self._shards):
            items = np.empty((inserted, self.width), dtype=np.float32)
            for shard, index in enumerate(self._shards):
                items[shard::shards] = index.reconstruct_n(0, len(range(shard, inserted, shards)))
            self._shards = self._new_shards()
            for start in range(0, inserted, self.block):
                self._insert(items[start : start + self.block])
        self.waiting = waiting

    def state_dict(self) -> dict[str, Any]:
        faiss = load_faiss()
        return {"graphs": [faiss.serialize_index(index) for index in self._shards], "waiting": self.waiting.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        faiss = load_faiss()
        self._shards = [faiss.deserialize_index(graph) for graph in state["graphs"]]
        self.waiting = state["waiting"].copy()

    def _search(self, x: np.ndarray, k: int, exact: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest among the graphs' items and the allowed ones of `exact`, all of them unit vectors."""
        inserted = sum(int(index.ntotal) for index in self._shards)
        cosine = np.where(allowed, x @ exact.T, -np.inf)
        item = np.where(allowed, inserted + np.arange(len(exact)), -1)
        parts = [(cosine, item)]
        if inserted:
            found = self._each_shard(lambda shard, index: index.search(x, k))
            for shard, (similarity, local) in enumerate(found):
                number = np.where(local < 0, -1, local * len(self._shards) + shard)
                parts.append((np.where(local < 0, -np.inf, similarity), number))
        cosine, item = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
        if cosine.shape[1] < k:
            short = ((0, 0), (0, k - cosine.shape[1]))
            cosine, item = np.pad(cosine, short, constant_values=-np.inf), np.pad(item, short, constant_values=-1)
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(cosine, order, 1), np.take_along_axis(item, order, 1)

    def _insert(self, x: np.ndarray) -> None:
        inserted = sum(int(index.ntotal) for index in self._shards)
        random = np.random.Generator(np.random.Philox(key=[self.seed, inserted]))
        # faiss counts levels from 1; 15 are enough for 25^15 items
        levels = np.minimum(-np.log1p(-random.random(len(x))) / math.log(max(self.links, 2)), 14).astype(int) + 1
        shards = len(self._shards)

        def insert(shard: int, index: Any) -> None:
            first = (shard - inserted) % shards  # item i lives in shard i % shards
            for level in levels[first::shards].tolist():
                index.hnsw.levels.push_back(level)
            mine = np.ascontiguousarray(x[first::shards])
            if len(mine):
                index.add(mine)

        self._each_shard(insert)

    def _each_shard(self, work: Callable[[int, Any], Any]) -> list[Any]:
        threads = min(len(self._shards), torch.get_num_threads())  # no more than the user, or OMP_NUM_THREADS, allows
        return list(_pool(threads).map(work, range(len(self._shards)), self._shards))


def unit(x: np.ndarray) -> np.ndarray:
    """The rows with length 1; a row of zeros stays."""
    length = np.sqrt((x.astype(np.float64) ** 2).sum(1, keepdims=True))
    return np.ascontiguousarray(x / np.maximum(length, 1e-12), dtype=np.float32)


def load_faiss() -> Any:
    try:
        return importlib.import_module("faiss")
    except ImportError:
        raise MissingExtra("finding nearest neighbors", "neighbors") from None


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """A thread pool, each thread with faiss's own threads off: a fixed order of work, and no global setting changed."""
    faiss = load_faiss()
    return ThreadPoolExecutor(threads, "neighbors", initializer=faiss.omp_set_num_threads, initargs=(1,))
