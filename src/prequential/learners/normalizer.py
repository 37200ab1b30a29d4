"""Standardization with statistics of the past only, which no broken value reaches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from prequential.errors import BadCheckpoint
from prequential.learners.outliers import FAR, LEVEL, LOOKS, Guard, Hint, Look
from prequential.native.experts import Limits, NativeExperts, address, as_float64
from prequential.storage.checkpoint import allow

LARGEST = 1e100  # larger values count as this, so that their squares are numbers
UNSCALED = 1e6  # features that are not standardized are clipped at this
NEAR = 9.0  # a chunk whose values are within so many deviations has none that is FAR, if as many came before it
SHOWN = 2.0  # what a value that is left out looks like, in deviations
LEAST = 1e-4  # of its deviation over all of the past, that of the latest examples is taken to be at least

# counts of values, their means and their sums of squared distances from these: (n, columns) each, or (columns,)
Statistics = tuple[np.ndarray, np.ndarray, np.ndarray]


class After(NamedTuple):
    """What the statistics are after examples: after each of them, and what else is kept after the last."""

    rows: Statistics  # from the native core, only those after the last
    guard: Guard
    out: np.ndarray | None = None  # (n, width) the values that are left out; None: none is


class Normalizer:
    """Brings each feature to mean 0 and deviation 1, by the statistics of what has been seen up to that example.

    x_t itself counts (it is known when y_t is predicted), which bounds the result from the very first example on:
    no value among the first n can be more than sqrt(n) deviations from their mean. A feature that has never varied
    gives 0, and so does a missing one (NaN), which is its mean.

    A value more than 20 deviations from the mean, and outside the range of the first values, does not count: no single
    broken value and no code for "not measured" decides what the others look like. It is given as 2 deviations: unusual,
    but too small to drown the other features. The first 32 differing values are
    looked at together, as any of them may be the broken one. Where most values are left out, the feature has a new
    level, and its statistics begin anew. `outliers.Guard` keeps what that takes.

    Parameters
    ----------
    width
        How many features.
    recent
        Beside the features by all of the past, also give them by about so many of the latest examples, where `forget`
        is called: the result has twice as many columns.
    clip
        The largest result, in deviations.
    native
        What computes in the native core, where it does: all rows but those with which first values are found broken, or
        a feature is at a new level.

    Examples
    --------
    >>> normalizer = Normalizer(1)
    >>> x = np.array([[10.0], [20.0], [30.0]])
    >>> normalizer.transform(x).ravel().tolist() == [0, 1, np.float32(1.5**0.5)]
    True
    >>> normalizer.update(x)
    >>> normalizer.apply(x).ravel().astype(int).tolist()
    [-1, 0, 1]
    """

    def __init__(
        self, width: int, *, recent: int | None = None, clip: float = 10.0, native: NativeExperts | None = None
    ) -> None:
        self.width, self.recent, self.clip, self._native = width, recent, clip, native
        self._limits = Limits(FAR, LARGEST, clip, SHOWN)
        columns = width if recent is None else 2 * width
        allow(24 * columns + 150 * width, f"the statistics of {width} features")
        self.count = np.zeros(columns)  # values counted
        self.mean = np.zeros(columns)
        self.square = np.zeros(columns)  # sum of squared distances from the mean
        self.guard = Guard.new(width)

    def update(self, x: np.ndarray) -> None:
        """Takes the examples (n, width) into the statistics."""
        if len(x):
            after = self._along(*self._read(x)) if self._native is None else self._along_native(x)[1]
            self.take(after)

    def take(self, after: After) -> None:
        """Goes on with the last of these statistics."""
        if len(after.rows[0]) == 1:
            self.count, self.mean, self.square = (part[0] for part in after.rows)
        else:  # not the whole of it is kept
            self.count, self.mean, self.square = (part[-1].copy() for part in after.rows)
        self.guard = after.guard

    def forget(self) -> None:
        """Makes the examples so far weigh no more than `recent` of them in the statistics that are of the latest.

        A step of its own, because when it is done must not depend on the sizes in which the examples come. For the same
        reason, what these statistics take the values of the next chunk as is decided here.
        """
        if self.recent is None:
            return
        w = self.width
        kept = np.minimum(1.0, self.recent / np.maximum(self.count, 1))
        kept[:w] = 1.0
        self.count, self.square = self.count * kept, self.square * kept
        deviation = np.sqrt(self.square / np.maximum(self.count, 1))
        reach = FAR * np.maximum(deviation[w:], LEAST * deviation[:w])
        started = np.isfinite(self.guard.low)
        floor = np.where(started, self.mean[w:] - reach, -np.inf)
        ceiling = np.where(started, self.mean[w:] + reach, np.inf)
        self.guard = self.guard.reaching(floor, ceiling)

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Consecutive new examples, each by everything before it and itself. Changes nothing."""
        return self.transform_sequence(x)[0]

    def transform_sequence(self, x: np.ndarray) -> tuple[np.ndarray, After]:
        """The same, and the statistics after each of them."""
        if self._native is not None:
            return self._along_native(x)
        x64, measured = self._read(x)
        after = self._along(x64, measured)
        return self._scale(x64, measured, after.rows, after.out), after

    def transform_each(self, x: np.ndarray) -> np.ndarray:
        """New examples, each as if it were the next one: by the past and itself, not by its neighbors. Changes nothing."""
        x64, measured = self._read(x)
        far = self._far(x64) & measured[:, : self.width]
        rows = self._after(x64, measured & ~self._twice(far) if far.any() else measured)
        for i in np.flatnonzero(self._due(x64[:, : self.width], measured[:, : self.width], far)):
            after = self._next(x64[i : i + 1], measured[i : i + 1])
            far[i] = False if after.out is None else after.out[0]
            for part, one in zip(rows, after.rows, strict=True):
                part[i] = one[0]
        return self._scale(x64, measured, rows, far if far.any() else None)

    def peek(self, x: np.ndarray) -> tuple[np.ndarray, After]:
        """One new example (1, width), and the statistics with it, as `transform` and `update` have them."""
        return self.transform_sequence(x)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Examples of the past, all by the statistics as they are now. Changes nothing."""
        x64, measured = self._read(x)
        far = self._far(x64) & measured[:, : self.width]
        return self._scale(x64, measured, self._own(), far if far.any() else None)

    @property
    def calm(self) -> bool:
        """Whether the next row changes nothing but the sums, unless it has a value that is left out."""
        return self._native is not None and not (self.guard.alert or self.guard.changed_lately)

    @property
    def limits(self) -> Limits:
        """What is far, and how large values and results are at most, for the native core."""
        return self._limits

    def hints(self) -> list[Hint]:
        """Values far outside a feature's range that recur, at most one for each feature."""
        return self.guard.hints()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "square": self.square, "guard": self.guard.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.square = (np.array(state[name], np.float64) for name in ("count", "mean", "square"))
        columns = self.width if self.recent is None else 2 * self.width
        if any(part.shape != (columns,) for part in self._own()):
            shapes = ", ".join(str(part.shape) for part in self._own())
            raise BadCheckpoint(f"statistics of {self.width} features have shapes {shapes}, expected {(columns,)}")
        if state.get("guard") is not None:
            self.guard = Guard.of_state(state["guard"], self.width)
        else:  # from a version that counted every value
            self.guard = Guard.of_old(*(part[: self.width] for part in self._own()))

    # The statistics after consecutive rows.

    def _along_native(self, x: np.ndarray) -> tuple[np.ndarray, After]:
        """Rows normalized in the native core, up to one in which more happens; that one here, and so on."""
        x, moved, start = as_float64(x), self, 0
        parts: list[np.ndarray] = []
        full = self.guard.alert or self.guard.changed_lately
        while True:
            features, after, done = moved._native_rows(x[start:] if start else x, full)
            if start + done == len(x):
                return features if not start else np.concatenate([*parts, features]), after
            if done:
                parts.append(features[:done])
                moved, start = moved.moved(after), start + done
            if not full:
                full = True
                continue
            x64, measured = moved._read(x[start : start + 1])
            after = moved._next(x64, measured)
            parts.append(moved._scale(x64, measured, after.rows, after.out))
            start += 1
            if start == len(x):
                return np.concatenate(parts), after
            moved = moved.moved(after)

    def _native_rows(self, x: np.ndarray, full: bool) -> tuple[np.ndarray, After, int]:
        """Features (n, columns) of rows, what the statistics are after them, and how many rows that holds for.

        Where it is not `full`, it stops before rows with values that are left out, and with new first values.
        """
        assert self._native is not None
        guard = self.guard
        statistics = np.array((self.count, self.mean, self.square))
        start, left, changes = guard.for_native(full, len(x))
        ranges = guard.addresses
        if "low" in changes:
            ranges = (address(changes["low"]), address(changes["high"]), *ranges[2:])
        out, done = self._native.normalize(x, statistics, ranges, start, left, self._limits)
        if done and changes:
            guard = guard.after_rows(changes)
        count, mean, square = statistics[:, None]
        return out, After((count, mean, square), guard), done

    def moved(self, after: After) -> Normalizer:
        """The same normalizer with these statistics; arrays are never changed in place, so that both can be used."""
        moved = object.__new__(Normalizer)  # as copy.copy does, which takes ten times as long
        moved.__dict__.update(self.__dict__)
        moved.take(after)
        return moved

    def _along(self, x64: np.ndarray, measured: np.ndarray) -> After:
        """The statistics after each of the rows."""
        if len(x64) == 1:
            return self._next(x64, measured)
        rows = self._plain(x64, measured)
        guard, due = self._watched(x64, measured, rows)
        at = np.flatnonzero(due < len(x64))
        if not len(at):
            return After(rows, guard)
        # in these features something happens that changes what follows it; all others are done
        part = self._part(at)
        columns = part._columns_in(at, self.width)
        redone = part._one_by_one(x64[:, columns], measured[:, columns], int(due[at].min()))
        for whole, of_part in zip(rows, redone.rows, strict=True):
            whole[:, columns] = of_part
        out = np.zeros((len(x64), self.width), dtype=bool)
        out[:, at] = redone.out
        return After(rows, guard.with_part(at, redone.guard), out)

    def _one_by_one(self, x64: np.ndarray, measured: np.ndarray, due: int) -> After:
        """The same for rows in which something happens, first in row `due`: that row alone, and so on with what is left."""
        done: list[Statistics] = []
        start, n = 0, len(x64)
        out = np.zeros((n, self.width), dtype=bool)
        while start < n:
            if due > start:  # nothing happens in these
                piece = slice(start, due)
                rows = self._plain(x64[piece], measured[piece])
                after = After(rows, self._watched(x64[piece], measured[piece], rows)[0])
            else:
                after = self._next(x64[start : start + 1], measured[start : start + 1])
                out[start] = False if after.out is None else after.out[0]
            self.take(after)
            done.append(after.rows)
            start += len(after.rows[0])
            if start < n and self._far(x64[start : start + 1]).any():
                due = start
            elif start < n and start > due:
                rest = slice(start, n)
                rows = self._plain(x64[rest], measured[rest])
                due = start + int(self._watched(x64[rest], measured[rest], rows)[1].min())
        count, mean, square = (np.concatenate(parts) for parts in zip(*done, strict=True))
        return After((count, mean, square), self.guard, out)

    def _watched(self, x64: np.ndarray, measured: np.ndarray, rows: Statistics) -> tuple[Guard, np.ndarray]:
        """What the guard is after rows if all of them count, and for each feature the row with which that ceases to hold.

        That is a row with a value that is left out, or one at which first values are left out. n: it holds.
        """
        n, w = len(x64), self.width
        x64, measured = x64[:, :w], measured[:, :w]
        due = np.full(w, n)
        steady: np.ndarray | int = 0  # the first row from which on values may be left out
        guard = self.guard.calmed(measured)
        if len(guard.starting):
            starting, steady = guard.starting, np.zeros(w, dtype=np.int64)
            guard, ended, looks = guard.started(x64, measured)
            steady[starting] = ended + 1
            for look in looks:
                at = starting[look.at]
                due[at] = np.where(look.changes, np.minimum(due[at], look.row), due[at])
            guard = guard.looked(looks) if looks else guard
        # far from the mean: first by what holds for all rows, then by the statistics before each
        distance = np.abs(x64 - self.mean[:w])
        distance = (distance if measured.all() else np.where(measured, distance, 0.0)).max(0)
        at = np.flatnonzero(
            ((distance * distance * self.count[:w] > NEAR * NEAR * self.square[:w]) | (self.count[:w] < n))
            & (steady < n)
        )
        if len(at):
            before = [
                np.concatenate([own[None, at], part[:-1, at]]) for own, part in zip(self._own(), rows, strict=True)
            ]
            far = _far(x64[:, at], before, guard.low[at], guard.high[at]) & measured[:, at]
            if not isinstance(steady, int):
                far &= np.arange(n)[:, None] >= steady[at]
            due[at] = np.minimum(due[at], np.where(far.any(0), far.argmax(0), n))
        return guard, due

    def _next(self, x64: np.ndarray, measured: np.ndarray) -> After:
        """After one row."""
        guard, w = self.guard, self.width
        far = self._far(x64)
        if far.any():
            far &= measured[:, :w]
        rows = self._after(x64, measured & ~self._twice(far) if far.any() else measured)
        if not len(guard.starting) and not guard.alert and not far.any():
            return After(rows, guard)
        x64, measured, moved = x64[:, :w], measured[:, :w], np.empty(0, dtype=np.int64)
        looks: list[Look] = []
        if len(guard.starting):
            guard, _, looks = guard.started(x64, measured)
        if far.any():
            guard, moved = guard.left_out(np.flatnonzero(far[0]), x64[0], measured[0])
        else:
            guard = guard.calmed(measured)
        if looks:
            rows, guard = self._cut(rows, guard, looks), guard.looked(looks)
        if not far.any():
            return After(rows, guard)
        if len(moved):
            rows, guard = self._moved_to(moved, x64[0, moved], rows, guard)
            far[0, moved] = False
        return After(rows, guard, far)

    def _cut(self, rows: Statistics, guard: Guard, looks: list[Look]) -> Statistics:
        """The statistics of one row made anew from the first values, where some of these are left out."""
        for look in looks:
            there = look.changes
            weight = (look.weight * ~look.broken)[:, there]
            count = weight.sum(0)
            mean = (weight * look.values[:, there]).sum(0) / count
            square = (weight * (look.values[:, there] - mean) ** 2).sum(0)
            self._set(rows, guard.starting[look.at[there]], (count, mean, square))
        return rows

    def _moved_to(self, at: np.ndarray, x: np.ndarray, rows: Statistics, guard: Guard) -> tuple[Statistics, Guard]:
        """With features `at` at a new level, to which these values belong; or at the one before it, if they do."""
        now = np.array([part[0, at] for part in rows])  # (3, k)
        former = guard.former[:, at]
        count, mean, square, low, high = former
        back = (count > 0) & ~_far(x, (count, mean, square), low, high)
        again, anew = at[back], at[~back]
        if len(again):  # it goes to and fro between two: both count, and as much
            n = np.minimum(now[0], count)[back]
            shared = (now[2] / now[0] + square / np.maximum(count, 1))[back] * n + n * (now[1] - mean)[back] ** 2 / 2
            self._set(rows, again, (2 * n, (now[1] + mean)[back] / 2, shared))
            guard = guard.widened(again, low[back], high[back])
        if len(anew):
            self._set(rows, anew, (np.ones(len(anew)), x[~back], np.zeros(len(anew))))
            left = np.concatenate([now, guard.low[at][None], guard.high[at][None]])[:, ~back]
            guard = guard.restarted(anew, x[~back], left)
        return rows, guard

    def _set(self, rows: Statistics, at: np.ndarray, to: Statistics) -> None:
        """Sets the statistics of one row, of all of the past and of the latest examples alike."""
        for part, value in zip(rows, to, strict=True):
            part[0, at] = value
        if self.recent is not None:
            kept = np.minimum(1.0, self.recent / np.maximum(to[0], 1))
            for part, value in zip(rows, (to[0] * kept, to[1], to[2] * kept), strict=True):
                part[0, at + self.width] = value

    def _far(self, x64: np.ndarray) -> np.ndarray:
        """Which values, each as the next one, are left out."""
        w = self.width
        x64 = x64[:, :w]
        distance = x64 - self.mean[:w]
        far = distance * distance * self.count[:w] > FAR * FAR * self.square[:w]
        return np.asarray(far & ((x64 < self.guard.low) | (x64 > self.guard.high)) if far.any() else far)

    def _due(self, x64: np.ndarray, measured: np.ndarray, far: np.ndarray) -> np.ndarray:
        """Which rows, each as the next one, change more than the sums."""
        guard = self.guard
        due = np.zeros(len(x64), dtype=bool)
        if len(guard.starting):
            look = np.isin(guard.filled + 1, LOOKS)
            there = guard.starting[look]
            due |= (measured[:, there] & (x64[:, there] != guard.first[look])).any(1)
        if guard.alert:
            due |= (far & measured & (guard.run + 7 >= 7 * LEVEL)).any(1)
        return due

    # The sums.

    def _own(self) -> Statistics:
        return self.count, self.mean, self.square

    def _plain(self, x64: np.ndarray, measured: np.ndarray) -> Statistics:
        """The statistics after each of the rows, if all of them count."""
        if len(x64) == 1:
            return self._after(x64, measured)
        x64 = self._within_reach(x64)
        # distances from the old mean (or the first value), not from 0: squares of large offsets would cancel badly
        first = np.take_along_axis(x64, measured.argmax(0)[None], axis=0)[0]
        shift = np.where(self.count > 0, self.mean, first)
        step = np.where(measured, x64 - shift, 0.0)
        more = np.cumsum(measured, 0) if not measured.all() else np.arange(1, len(x64) + 1)[:, None]
        return self._moved(more, shift, np.cumsum(step, 0), np.cumsum(step * step, 0))

    def _after(self, x64: np.ndarray, measured: np.ndarray) -> Statistics:
        """The statistics after each of the rows alone."""
        x64 = self._within_reach(x64)
        shift = np.where(self.count > 0, self.mean, x64)
        step = np.where(measured, x64 - shift, 0.0)
        return self._moved(measured, shift, step, step * step)

    def _moved(self, more: np.ndarray, shift: np.ndarray, total: np.ndarray, squares: np.ndarray) -> Statistics:
        """The statistics with so many more values, whose distances from `shift` and their squares have these sums."""
        count = self.count + more
        n = np.maximum(count, 1)
        square = self.square + squares - total * total / n
        return count, shift + total / n, np.maximum(square, 0.0)

    def _read(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values (n, columns) in float64 with 0 where they are missing, and where they are not."""
        return _measured(self._twice(x))

    def _twice(self, x: np.ndarray) -> np.ndarray:
        return x if self.recent is None else np.concatenate([x, x], 1)

    def _within_reach(self, x64: np.ndarray) -> np.ndarray:
        """The values as the statistics take them."""
        if self.recent is None or (reach := self.guard.reach) is None:
            return x64
        return np.asarray(np.minimum(np.maximum(x64, reach[0]), reach[1]))

    def _scale(
        self, x64: np.ndarray, measured: np.ndarray, by: Statistics, out: np.ndarray | None = None
    ) -> np.ndarray:
        count, mean, square = by
        deviation = np.sqrt(square / np.maximum(count, 1))
        varies = deviation > 1e-9 * np.abs(mean)  # below that it is rounding, not variation
        scaled = (x64 - mean) / np.where(varies, deviation, 1.0)
        scaled = _within(np.where(varies & measured, scaled, 0.0), self.clip).astype(np.float32)
        return scaled if out is None else np.where(self._twice(out), np.sign(scaled) * np.float32(SHOWN), scaled)

    def _part(self, at: np.ndarray) -> Normalizer:
        """Of the features `at` alone."""
        part = Normalizer(len(at), recent=self.recent, clip=self.clip)  # not native: it goes through single rows
        columns = part._columns_in(at, self.width)
        part.count, part.mean, part.square = (value[columns] for value in self._own())
        part.guard = self.guard.part(at)
        return part

    def _columns_in(self, at: np.ndarray, width: int) -> np.ndarray:
        return at if self.recent is None else np.concatenate([at, at + width])


def _far(x: np.ndarray, by: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    count, mean, square = by
    distance = x - mean
    return np.asarray((distance * distance * count > FAR * FAR * square) & ((x < low) | (x > high)))


def bounded(x: np.ndarray) -> np.ndarray:
    """Features that are not standardized, within what a network can compute with: one of 1e30 overflows its products."""
    return _within(x, UNSCALED)


def _measured(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values in float64 with 0 where they are missing, and where they are not."""
    x64 = _within(x.astype(np.float64), LARGEST)
    measured = ~np.isnan(x64)
    return np.where(measured, x64, 0.0), measured


def _within(x: np.ndarray, limit: float) -> np.ndarray:
    # np.clip takes several times as long for one example
    return np.asarray(np.minimum(np.maximum(x, -limit), limit))
