"""How the benchmarks measure: several works in turns in one run, so that noise meets all of them alike.

A part of the suite is a module with `measure(quick) -> list[Row]`. A row is one figure: a ratio of two things that were
measured in the same run, or an exponent fitted to such measurements.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Unit = Literal["x", "%", "exponent"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of the table."""

    name: str
    ratio: float | None
    """The median over the rounds; None where it could not be measured, and `note` says why."""
    best: float | None = None
    """The ratio of the fastest rounds of both: what a quiet moment gives."""
    target: float | None = None
    """What it should reach."""
    holds: bool = True
    """Whether what the target asks for beside the figure holds, such as a higher accuracy."""
    unit: Unit = "x"
    meaning: str = ""
    """What over what."""
    lower_is_better: bool = False
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each of the things compared, in the order of the rounds."""
    note: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    """Where the time goes, as shares of it."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """A growth curve: `size`, `seconds` per example, `bytes`."""

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None where there is none or nothing was measured."""
        if self.target is None or self.ratio is None:
            return None
        return self.holds and (self.ratio <= self.target if self.lower_is_better else self.ratio >= self.target)

    def say(self, number: float | None) -> str:
        """A number of this row, with its unit."""
        if number is None:
            return ""
        return {"%": f"{100 * number:.0f} %", "x": f"{number:.2f} x", "exponent": f"{number:+.2f}"}[self.unit]

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {**asdict(self), "reached": self.reached}


def in_turns(
    works: dict[str, Callable[[], object]], rounds: int, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each work, measured one after the other, several times over; one more time before, to warm up.

    By `time.process_time` it is the time of the CPU, for works of one thread on a machine that others use.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(rounds + 1):
        for name, work in works.items():
            begun = clock()
            work()
            if round_:
                seconds[name].append(clock() - begun)
    return seconds


def compared(
    name: str,
    seconds: dict[str, list[float]],
    *,
    slow: str,
    fast: str,
    works: tuple[float, float] = (1.0, 1.0),
    **more: Any,
) -> Row:
    """The row that says how many times as fast `fast` is as `slow`.

    Parameters
    ----------
    name
        Of the row.
    seconds
        What `in_turns` gave.
    slow, fast
        Which two are compared.
    works
        How much work one round of each is, where it is not the same.
    more
        Other fields of the row.
    """
    ratios = per_round(seconds[slow], seconds[fast], works)
    best = per_round([min(seconds[slow])], [min(seconds[fast])], works)[0]
    kept = {key: seconds[key] for key in (slow, fast)}
    return Row(name=name, ratio=statistics.median(ratios), best=best, seconds=kept, **more)


def per_round(slow: Sequence[float], fast: Sequence[float], works: tuple[float, float] = (1.0, 1.0)) -> list[float]:
    """Round by round, how many times as fast the second is as the first.

    >>> per_round([4.0, 6.0], [2.0, 2.0])
    [2.0, 3.0]
    """
    return [(a / works[0]) / (b / works[1]) for a, b in zip(slow, fast, strict=True)]


def missing(name: str, why: str, **more: Any) -> Row:
    """The row of something that cannot be measured here."""
    return Row(name=name, ratio=None, note=why, **more)
