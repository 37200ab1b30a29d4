"""Which values of a feature are broken: far outside everything that the feature has been.

For every feature a `Guard` keeps what its mean and deviation do not tell: its first values, the range of these, and what
became of values that were left out. Nothing here grows with the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from prequential.errors import BadCheckpoint
from prequential.native.experts import NO_START, LeftOut, Start, address

FAR = 20.0  # a value more than so many deviations from the mean is left out of the statistics
START = 32  # differing values a feature shows before that holds; until then they are kept, to be looked at together
LOOKS = (8, 16, START)  # at so many of them, they are
LOOK_BITS = sum(1 << size for size in LOOKS)
SPREAD = 16.0  # of the first values, those are left out that are so many times as far from the median as 7 of 8 are
LEVEL = 32  # so many more values left out than an eighth of those between them: they are the feature's new level
HINT = 3  # a value left out so many times more often than others of the feature is named


class Hint(NamedTuple):
    """A value far outside a feature's range that recurs: perhaps a code for "not measured"."""

    feature: int
    value: float
    times: int  # how often it came

    def sentence(self, examples: int, name: str | None = None) -> str:
        """What to say of it after so many examples."""
        named = "" if name is None else f" ({name[:60]!r})"
        return (
            f"feature {self.feature}{named} is {self.value:g} in {self.times:,} of {examples:,} examples, far outside its "
            'range: if that means "not measured", give it as missing (NaN, or an empty field)'
        )


@dataclass(frozen=True, eq=False)
class Guard:
    """What is known of `width` features beside their means and deviations. Replaced, never changed in place.

    The first fields are of the features in `starting` only, those that have shown fewer than `START` differing values.
    """

    starting: np.ndarray  # (k,) which features these are
    first: np.ndarray  # (k,) the first value
    same: np.ndarray  # (k,) how often it came
    others: np.ndarray  # (START or 0, k) the values that differ from it, in their order
    filled: np.ndarray  # (k,) how many these are
    cut: np.ndarray  # (k,) whether some of them were left out at the last look
    low: np.ndarray  # (width,) the range of the first values; infinite while a feature is starting
    high: np.ndarray
    floor: np.ndarray  # (width,) what the statistics of the latest examples take values below as, in this chunk
    ceiling: np.ndarray
    run: np.ndarray  # (width,) how many values were left out lately, in eighths
    last: np.ndarray  # (width,) the last of them
    value: np.ndarray  # (width,) the one that recurs most, how often it came, and by how much it leads
    repeats: np.ndarray
    lead: np.ndarray
    former: np.ndarray  # (5, width) count, mean, sum of squares and range at the level before the present one

    # whether more than sums changed since the last `reaching`; the native core then reckons with more of it
    changed_lately: ClassVar[bool] = False

    @staticmethod
    def new(width: int) -> Guard:
        zeros, infinite = np.zeros(width), np.full(width, np.inf)
        return Guard(
            starting=np.arange(width), first=zeros, same=zeros, others=np.zeros((0, width)),
            filled=np.zeros(width, dtype=np.int64), cut=np.zeros(width, dtype=bool), low=-infinite, high=infinite,
            floor=-infinite, ceiling=infinite, run=np.zeros(width, dtype=np.int64), last=zeros, value=zeros,
            repeats=zeros, lead=zeros, former=np.zeros((5, width)),
        )  # fmt: skip

    @staticmethod
    def of_old(count: np.ndarray, mean: np.ndarray, square: np.ndarray) -> Guard:
        """For statistics without one: features that have varied are past their start, with no range to go by."""
        guard = Guard.new(len(count))
        varied = square > 0
        start = {name: getattr(guard, name)[..., ~varied] for name in OF_START}
        start |= {"first": np.where(count > 0, mean, 0.0)[~varied], "same": count[~varied].copy()}
        return replace(guard, **start, low=np.where(varied, mean, -np.inf), high=np.where(varied, mean, np.inf))

    def __deepcopy__(self, memo: dict[int, Any]) -> Guard:
        return self  # it is never changed, and its arrays have to stay where `addresses` says

    def _changed(self, **changes: Any) -> Guard:
        """The same but for some fields; `dataclasses.replace` takes twenty times as long."""
        guard = object.__new__(Guard)
        guard.__dict__.update(self.__dict__)
        guard.__dict__.update(changes)
        for name, sources in CACHED.items():
            if not sources.isdisjoint(changes):
                guard.__dict__.pop(name, None)
        return guard

    @cached_property
    def alert(self) -> bool:
        """Whether values were left out lately."""
        return bool(self.run.any())

    @cached_property
    def reach(self) -> tuple[np.ndarray, np.ndarray] | None:
        """What the statistics of all of the past and of the latest examples take all values within, (2 width,) each."""
        if not np.isfinite(self.floor).any():
            return None
        infinite = np.full(len(self.floor), np.inf)
        return np.concatenate([-infinite, self.floor]), np.concatenate([infinite, self.ceiling])

    @cached_property
    def addresses(self) -> tuple[int, int, int | None, int | None]:
        """Where `low` and `high` are, and `floor` and `ceiling` if these limit anything, for the native core."""
        limits = np.isfinite(self.floor).any()
        reach = (address(self.floor), address(self.ceiling)) if limits else (None, None)
        return (address(self.low), address(self.high), *reach)

    @cached_property
    def start_addresses(self) -> tuple[int, int, int, int]:
        """Where `starting`, `first`, `filled` and `cut` are."""
        return address(self.starting), address(self.first), address(self.filled), address(self.cut)

    def hints(self) -> list[Hint]:
        """The values that were left out and recur, at most one for each feature."""
        at = np.flatnonzero(self.lead >= HINT)
        return [Hint(int(i), float(self.value[i]), int(self.repeats[i])) for i in at]

    def part(self, at: np.ndarray) -> Guard:
        """Of the features `at` alone."""
        kept = np.isin(self.starting, at)
        start: dict[str, Any] = {name: getattr(self, name)[..., kept] for name in OF_START}
        start["starting"] = np.searchsorted(at, start["starting"])
        return self._changed(**start, **{name: getattr(self, name)[..., at] for name in OF_ALL})

    def with_part(self, at: np.ndarray, part: Guard) -> Guard:
        """With what became of the features `at`."""
        kept = ~np.isin(self.starting, at)
        start: dict[str, Any] = {}
        for name in OF_START:
            theirs = getattr(part, name) if name != "starting" else at[part.starting]
            ours = getattr(self, name)[..., kept]
            if ours.ndim > 1 and len(ours) != len(theirs):
                ours, theirs = _with_room(ours), _with_room(theirs)
            start[name] = np.concatenate([ours, theirs], axis=-1)
        order = np.argsort(start["starting"])
        start = {name: value[..., order] for name, value in start.items()}
        whole = {name: getattr(self, name).copy() for name in OF_ALL}
        for name, value in whole.items():
            value[..., at] = getattr(part, name)
        return self._changed(**start, **whole)

    def calmed(self, measured: np.ndarray) -> Guard:
        """After rows of which none is left out."""
        return self._changed(run=np.maximum(self.run - measured.sum(0), 0)) if self.alert else self

    def for_native(self, full: bool, n: int) -> tuple[Start, LeftOut | None, dict[str, np.ndarray]]:
        """What the native core needs of it for n rows, and the arrays that it changes there, for `after_rows`.

        Where it is not `full`, that is no more than how often the first values came.
        """
        k = len(self.starting)
        if not full:
            if not k:
                return NO_START, None, {}
            same = self.same.copy()
            starting_at, first_at, filled_at, cut_at = self.start_addresses
            start = Start(starting_at, first_at, address(same), None, filled_at, cut_at, k, START, LOOK_BITS, SPREAD)
            return start, None, {"same": same}
        sums = np.array((self.last, self.value, self.repeats, self.lead))
        run, width, at = self.run.copy(), 8 * len(self.run), address(sums)
        left = LeftOut(address(run), at, at + width, at + 2 * width, at + 3 * width, 7 * LEVEL)
        changes = dict(zip(("run", "last", "value", "repeats", "lead"), (run, *sums), strict=True))
        if not k:
            return NO_START, left, changes
        first, same, filled = self.first.copy(), self.same.copy(), self.filled.copy()
        others = _with_room(self.others, copy=True)
        arrays = (self.starting, first, same, others, filled, self.cut)
        start = Start(*[address(array) for array in arrays], k, START, LOOK_BITS, SPREAD)
        changes |= {"first": first, "same": same, "others": others, "filled": filled}
        if filled.max() + n >= START:  # a start may end
            changes |= {"low": self.low.copy(), "high": self.high.copy()}
        return start, left, changes

    def after_rows(self, changes: dict[str, np.ndarray]) -> Guard:
        """After rows with which no first values were found broken and no new level began."""
        if "low" in changes:
            goes_on = changes["filled"] < START
            if goes_on.all():
                changes = {name: value for name, value in changes.items() if name not in ("low", "high")}
            else:
                start = {name: changes.get(name, getattr(self, name))[..., goes_on] for name in OF_START}
                changes = changes | start
        guard = self._changed(**changes)
        if "run" in changes:
            guard.__dict__["changed_lately"] = True
        return guard

    def started(self, x: np.ndarray, measured: np.ndarray) -> tuple[Guard, np.ndarray, list[Look]]:
        """After rows (n, width), with the first values they add; the row with which each start ended (n: it did not),
        and the looks on the way there at which values are to be left out, or were before."""
        n, k = len(x), len(self.starting)
        xs, there = x[:, self.starting], measured[:, self.starting]
        first, equal = self.first, xs == self.first
        if equal.all() and there.all() and self.same.all():  # what was constant is so still
            return self._changed(same=self.same + n), np.full(k, n), []
        if not self.same.all():
            row = there.argmax(0)[None]
            first = np.where(self.same > 0, first, np.take_along_axis(xs, row, 0)[0])
            equal = xs == first
        equal &= there
        differs = there & ~equal
        ended = np.full(k, n)
        if not differs.any():
            return self._changed(first=first, same=self.same + equal.sum(0)), ended, []
        place = self.filled + np.cumsum(differs, 0) - 1  # (n, k)
        rows, columns = np.nonzero(differs & (place < START))
        others = _with_room(self.others, copy=True)
        others[place[rows, columns], columns] = xs[rows, columns]
        filled = np.minimum(place[-1] + 1, START)
        looks = []
        for size in LOOKS:
            at = np.flatnonzero((self.filled < size) & (filled >= size))
            if not len(at):
                continue
            row = (differs[:, at] & (place[:, at] == size - 1)).argmax(0)
            weight = np.ones((size + 1, len(at)))
            weight[0] = self.same[at] + np.cumsum(equal[:, at], 0)[row, np.arange(len(at))]
            values = np.concatenate([first[at][None], others[:size, at]])
            broken = _broken(values, weight)
            if size == START:
                ended[at] = row
            for_them = broken.any(0) | self.cut[at]
            if for_them.any() or size == START:
                looks.append(Look(at, row, values, weight, broken, for_them))
        guard = self._changed(first=first, same=self.same + equal.sum(0), others=others, filled=filled)
        return guard, ended, looks

    def looked(self, looks: list[Look]) -> Guard:
        """After these looks: what was found, and without the starts that are over."""
        guard, cut, over = self, self.cut.copy(), np.zeros(len(self.starting), dtype=bool)
        low, high = self.low, self.high
        for look in looks:
            cut[look.at] = look.broken.any(0)
            if len(look.values) == START + 1:
                over[look.at] = True
                low, high = low.copy(), high.copy()
                features = self.starting[look.at]
                low[features] = np.where(look.broken, np.inf, look.values).min(0)
                high[features] = np.where(look.broken, -np.inf, look.values).max(0)
                if look.broken.any():
                    for value, times, broken in zip(look.values, look.weight, look.broken, strict=True):
                        guard = guard.counted(features[broken], value[broken], times[broken])
        start = {name: getattr(guard, name)[..., ~over] for name in OF_START} if over.any() else {}
        return guard._changed(**{**start, "cut": cut[~over], "low": low, "high": high})

    def counted(self, at: np.ndarray, x: np.ndarray, times: np.ndarray | float = 1.0) -> Guard:
        """With these values (k,) of features (k,) counted among those left out, of which the most frequent is kept."""
        value, repeats, lead = self.value.copy(), self.repeats.copy(), self.lead.copy()
        new, again = lead[at] == 0, (lead[at] > 0) & (value[at] == x)
        value[at] = np.where(new, x, value[at])
        repeats[at] = np.where(new, times, repeats[at] + again * times)
        lead[at] = np.maximum(lead[at] + np.where(new | again, times, -times), 0)
        return self._changed(value=value, repeats=repeats, lead=lead)

    def left_out(self, at: np.ndarray, x: np.ndarray, measured: np.ndarray) -> tuple[Guard, np.ndarray]:
        """After a row (width,) of which the features `at` are left out, and which of them are at a new level by it.

        A value that came before it already does not tell: a broken sensor can stay at one for long.
        """
        guard = self.counted(at, x[at])
        run, last = np.maximum(self.run - measured, 0), self.last.copy()
        run[at] = self.run[at] + 7 * (x[at] != last[at])
        last[at] = x[at]
        return guard._changed(run=run, last=last), at[run[at] >= 7 * LEVEL]

    def reaching(self, floor: np.ndarray, ceiling: np.ndarray) -> Guard:
        """With other limits for the statistics of the latest examples."""
        guard = self._changed(floor=floor, ceiling=ceiling)
        guard.__dict__.pop("changed_lately", None)
        return guard

    def restarted(self, at: np.ndarray, x: np.ndarray, former: np.ndarray) -> Guard:
        """With features `at` starting anew from these values; what they were until now is kept as `former`."""
        k = len(at)
        new = replace(Guard.new(k), first=x, same=np.ones(k), former=former)
        return self.with_part(at, new)

    def widened(self, at: np.ndarray, low: np.ndarray, high: np.ndarray) -> Guard:
        """With a wider range for features `at`, which are back where they were before."""
        whole = {name: getattr(self, name).copy() for name in ("low", "high", "floor", "ceiling", "run", "former")}
        whole["low"][at], whole["high"][at] = np.minimum(self.low[at], low), np.maximum(self.high[at], high)
        whole["floor"][at], whole["ceiling"][at] = -np.inf, np.inf
        whole["run"][at], whole["former"][:, at] = 0, 0
        return self._changed(**whole)

    def state_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def of_state(state: dict[str, Any], width: int) -> Guard:
        """What was saved, for so many features."""
        new = Guard.new(width)
        guard = Guard(**{name: np.array(state[name], getattr(new, name).dtype) for name in (*OF_START, *OF_ALL)})
        k = len(guard.starting)
        rows = {"others": (START if len(guard.others) else 0,), "former": (5,)}
        for name in (*OF_START, *OF_ALL):
            value, expected = getattr(guard, name), (*rows.get(name, ()), k if name in OF_START else width)
            if value.shape != expected:
                raise BadCheckpoint(f"{name} of the features has shape {value.shape}, expected {expected}")
        for name, most in (("starting", width), ("filled", START)):
            if ((getattr(guard, name) < 0) | (getattr(guard, name) >= most)).any():
                raise BadCheckpoint(f"{name} of the features is not below {most}")
        return guard


class Look(NamedTuple):
    """A look at the first values of some features."""

    at: np.ndarray  # (k,) which of those starting
    row: np.ndarray  # (k,) with which row it was due
    values: np.ndarray  # (1 + size, k)
    weight: np.ndarray  # (1 + size, k) how often each of them came
    broken: np.ndarray  # (1 + size, k) those to be left out
    changes: np.ndarray  # (k,) whether the statistics are not just those of all values


CACHED = {  # each `cached_property` of a guard, and the fields that it is made of
    "alert": {"run"},
    "reach": {"floor", "ceiling"},
    "addresses": {"low", "high", "floor", "ceiling"},
    "start_addresses": {"starting", "first", "filled", "cut"},
}
OF_START = ("starting", "first", "same", "others", "filled", "cut")
OF_ALL = tuple(field.name for field in fields(Guard) if field.name not in OF_START)


def _with_room(others: np.ndarray, *, copy: bool = False) -> np.ndarray:
    """First values with room for all that are kept."""
    if len(others):
        return others.copy() if copy else others
    return np.zeros((START, others.shape[1]))


def _broken(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Which of the values (n, k) of k features are far from the others.

    Each distance from the median counts once, however often it came: what recurs can be as broken as what does not.
    """
    order = values.argsort(0)
    reached = np.cumsum(np.take_along_axis(weight, order, 0), 0)
    middle = (reached >= reached[-1] / 2).argmax(0)[None]
    median = np.take_along_axis(values, np.take_along_axis(order, middle, 0), 0)
    distance = np.abs(values - median)
    ranked = np.sort(distance, 0)
    further = np.concatenate([ranked[:1] > 0, ranked[1:] > ranked[:-1]])
    count = np.cumsum(further, 0)
    usual = np.take_along_axis(ranked, (count >= np.ceil(count[-1] * 7 / 8)).argmax(0)[None], 0)
    return np.asarray((distance > SPREAD * usual) & (count[-1] >= 7))
