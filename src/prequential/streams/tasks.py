"""The paper's piecewise-stationary streams: tasks with random classes and a random label map, from any labeled set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.streams.cache import array_hash
from prequential.streams.stream import Chunk, Stream

TASKS_KEPT = 32  # tasks whose drawn indices stay in memory; more than the readers of any one run


class Pool:
    """The examples of a stream by arrays of positions, read on demand; returned by a stream's `pool()`."""

    def __init__(self, stream: Stream, take: Callable[[np.ndarray], np.ndarray]) -> None:
        self.stream, self._take = stream, take
        self.missing = stream.missing

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        return self._take(positions)

    def fingerprint(self) -> str:
        """That of the stream, labels included."""
        return self.stream.fingerprint()


class SplitStream(Stream):
    """A stream of tasks, each with its own random classes and its own random map from class to label.

    In each task `ways` classes are drawn, and their order is the label map. Then, for every example, a label is drawn
    uniformly, and an image of its class: without replacement inside the task, starting over with a fresh
    permutation when the class has no more. A task depends on `seed` and its own number alone, so any range
    can be read without the ones before it, and the same seed gives the same stream on any machine: only the raw
    bits of the Philox counter generator are used.

    Parameters
    ----------
    x
        The examples: an array, a memory map, or anything that can be indexed by an array of integers, such as what
        `pool()` of a stream of arrays, images or features gives. Only those of a range that is read are asked for;
        in memory are 8 bytes for each example, and its class.
    y
        Their classes, numbers or text.
    tasks
        How many tasks the stream has.
    ways
        How many classes each task has; the labels are 0..ways-1.
    task_length
        How many examples each task has.
    seed
        Another seed gives another stream.

    Examples
    --------
    >>> import numpy as np
    >>> stream = SplitStream(np.arange(60.0).reshape(30, 2), np.arange(30) % 3, tasks=4, ways=2, task_length=5)
    >>> len(stream), stream.task_starts().tolist()
    (20, [0, 5, 10, 15])
    >>> stream.read(4, 7).y
    [0, 0, 1]
    """

    def __init__(
        self,
        x: Any,
        y: Sequence[Hashable] | np.ndarray,
        *,
        tasks: int = 100,
        ways: int = 10,
        task_length: int = 1000,
        seed: int = 0,
    ) -> None:
        if len(x) != len(y):
            raise BadInput(f"got {len(x)} examples and {len(y)} classes, expected as many of both")
        for name, value in {"tasks": tasks, "ways": ways, "task_length": task_length}.items():
            if value < 1:
                raise BadSetting(f"{name} ({value}) must be at least 1")
        if not 0 <= seed < 2**64:
            raise BadSetting(f"seed ({seed}) must be in 0..2**64-1")
        if isinstance(y, np.ma.MaskedArray) and (masked := np.flatnonzero(np.ma.getmaskarray(y))).size:
            raise BadInput(f"example {masked[0]}: the class is masked, expected a class")
        y = np.asarray(y)
        if y.shape != (len(x),):
            raise BadInput(f"the classes have shape {y.shape}, expected ({len(x)},), one for each example")
        try:
            names, of_example, counts = np.unique(y, return_inverse=True, return_counts=True)
        except TypeError as error:
            raise BadInput(f"the classes cannot be put in order ({error}); expected all numbers or all text") from None
        if ways > len(names):
            raise BadSetting(f"ways ({ways}) must be at most the number of classes in the data ({len(names)})")
        has_mask = isinstance(x, np.ma.MaskedArray) and bool(np.ma.getmaskarray(x).any())
        if isinstance(x, np.ma.MaskedArray):
            x = np.ma.filled(x.astype(float), np.nan) if has_mask else x.data
        self.x, self.y = x, y
        self.names: list[Hashable] = names.tolist()  # the classes of the data, sorted
        self.tasks, self.ways, self.task_length, self.seed = tasks, ways, task_length, seed
        self.classes = ways
        self.missing = has_mask or bool(getattr(x, "missing", False))
        self._pools = np.split(np.argsort(of_example.ravel(), kind="stable"), np.cumsum(counts)[:-1])
        self._task = lru_cache(maxsize=TASKS_KEPT)(self._draw)
        self._content: str | None = None

    def __len__(self) -> int:
        return self.tasks * self.task_length

    def task_starts(self) -> np.ndarray:
        """The position of the first example of each task."""
        return np.arange(self.tasks) * self.task_length

    def task_classes(self, task: int) -> list[Hashable]:
        """The classes of a task, in the order of its labels 0..ways-1."""
        return [self.names[k] for k in self._classes(self._bits(task))]

    def fingerprint(self) -> str:
        """A hash of the data and the parameters; the data is hashed once, at the first call."""
        if self._content is None:
            own = getattr(self.x, "fingerprint", None)  # of images that are decoded when they are read
            self._content = own() if own else array_hash(self.x, self.y)
        parameters = f"split {self._content} {self.tasks} {self.ways} {self.task_length} {self.seed}"
        return hashlib.sha256(parameters.encode()).hexdigest()[:32]

    def _read(self, start: int, stop: int) -> Chunk:
        first, last = start // self.task_length, (stop - 1) // self.task_length
        drawn = [self._task(task) for task in range(first, last + 1)]
        labels = np.concatenate([part[0] for part in drawn])
        indices = np.concatenate([part[1] for part in drawn])
        here = slice(start - first * self.task_length, stop - first * self.task_length)
        x = np.asarray(self.x[indices[here]])
        if x.dtype.kind == "f":
            wrong = np.argwhere(np.isinf(x) if self.missing else ~np.isfinite(x))
            if len(wrong):
                row, *feature = (int(i) for i in wrong[0])
                raise BadInput(
                    f"example {start + row}, which is row {indices[here][row]} of the data: feature "
                    f"{', '.join(map(str, feature))} is {x[row, *feature]}, expected a finite number"
                )
        return Chunk(x, labels[here].tolist())

    def _bits(self, task: int) -> np.random.Philox:
        return np.random.Philox(key=np.array([self.seed, task], np.uint64))

    def _classes(self, bits: np.random.Philox) -> np.ndarray:
        return _permutation(bits, len(self._pools))[: self.ways]

    def _draw(self, task: int) -> tuple[np.ndarray, np.ndarray]:
        """The labels and the indices into the data of one task's examples."""
        bits = self._bits(task)
        chosen = self._classes(bits)
        # the remainder is off from uniform by less than ways / 2**64
        labels = (bits.random_raw(self.task_length) % np.uint64(self.ways)).astype(np.int64)
        indices = np.empty(self.task_length, np.int64)
        for label, name in enumerate(chosen):
            wanted = np.flatnonzero(labels == label)
            pool = self._pools[name]
            rounds = -(-len(wanted) // len(pool))
            order = [_permutation(bits, len(pool)) for _ in range(rounds)] or [np.empty(0, np.int64)]
            indices[wanted] = pool[np.concatenate(order)[: len(wanted)]]
        return labels, indices


def _permutation(bits: np.random.Philox, n: int) -> np.ndarray:
    # sorting raw bits, because Generator.permutation may change between NumPy versions
    return np.argsort(bits.random_raw(n), kind="stable")


def checked_images(
    path: Path, x: np.ndarray, y: np.ndarray, *, shape: tuple[int, ...], classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Images and their classes as they were read from a path, if they are images of this shape and of these classes."""
    if x.shape[1:] != shape or y.shape != x.shape[:1] or len(x) == 0:
        raise BadInput(
            f"{path} holds images of shape {x.shape} and labels of shape {y.shape}, expected "
            f"(n, {', '.join(map(str, shape))}) and (n,)"
        )
    bad = np.flatnonzero((np.asarray(y) < 0) | (np.asarray(y) >= classes)) if y.dtype.kind in "iu" else [0]
    if len(bad):
        raise BadInput(f"{path}, image {bad[0]}: the label is {y[bad[0]]}, expected a whole number in 0..{classes - 1}")
    return x, y
