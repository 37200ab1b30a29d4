"""Claims of the paper, and the one rule by which all of them are decided.

A claim is put as a number for each seed that has to be above `least` for the claim to be true, such as "accuracy with 8
streams minus accuracy with 1". It *holds* if the whole 95 % t interval over the seeds is above `least`, *does not hold*
if the whole interval is below, and otherwise *cannot be said*. With one seed nothing can be said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["holds", "does not hold", "cannot be said"]
BySeed = dict[int, float]

# The 97.5 % quantile of Student's t, by degrees of freedom from 1 on; 1.96 beyond.
T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
ACCURACY = "average accuracy over the stream"
LOG_LOSS = "cumulative log-loss, in nats an example"
ONE_SEED = "one seed"


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and the 95 % t interval around it; with one seed there is none.

    Of a claim on a cube of settings, `seeds` counts these, and `of` says so.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    of: str = "seeds"

    @property
    def half(self) -> float | None:
        return None if self.high is None else self.high - self.mean


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something the paper says, how it is tested, and what was found."""

    says: str
    """In a few words."""
    paper: str = ""
    """In the paper's own words; empty if the paper does not say it."""
    measure: str = ACCURACY
    criterion: str = ""
    """When it holds, with the least effect that counts; written before the runs."""
    found: str
    verdict: Verdict
    reason: str = ""
    """Why it cannot be said."""
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    """The numbers that were compared: by name, then by seed."""
    effect: dict[str, Any] = field(default_factory=dict)
    """The number that must be above `least`: mean, low, high, seeds, least; `of` where these are not seeds."""

    @property
    def holds(self) -> bool | None:
        return {"holds": True, "does not hold": False, "cannot be said": None}[self.verdict]


def t_interval(values: Sequence[float]) -> Interval:
    """The mean over seeds with its 95 % t interval.

    >>> interval = t_interval([0.50, 0.52, 0.54])
    >>> f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    '0.520 [0.470, 0.570]'
    >>> t_interval([0.5]).low is None
    True
    """
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2:
        return Interval(mean, None, None, n)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = (T[n - 2] if n - 2 < len(T) else 1.96) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def deviation_interval(values: Sequence[float]) -> Interval:
    """The standard deviation over seeds with its one-sided 95 % limits, for normal numbers.

    >>> found = deviation_interval([0.85, 0.86, 0.85, 0.84, 0.85])
    >>> f"{found.mean:.4f} [{found.low:.4f}, {found.high:.4f}]"
    '0.0071 [0.0046, 0.0170]'
    """
    n = len(values)
    if n < 2:
        return Interval(math.nan, None, None, n)
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    low, high = (deviation * math.sqrt((n - 1) / _chi_square(n - 1, z)) for z in (1.6449, -1.6449))
    return Interval(deviation, low, high, n)


def _chi_square(freedom: int, z: float) -> float:
    """A quantile of chi-square by Wilson and Hilferty: within 2 % from 4 degrees of freedom on."""
    share = 2 / (9 * freedom)
    return freedom * max(1 - share + z * math.sqrt(share), 1e-3) ** 3


def decide(effect: Interval, least: float, *, unless: str = "") -> tuple[Verdict, str]:
    """The verdict on a claim whose effect must be above `least`, and why if it cannot be said.

    >>> decide(t_interval([0.05, 0.06, 0.055]), 0.02)
    ('holds', '')
    >>> decide(t_interval([0.05, -0.06, 0.055]), 0.02)
    ('cannot be said', 'within seed noise')
    >>> decide(t_interval([0.5]), 0.02)
    ('cannot be said', 'one seed')
    """
    if unless:
        return "cannot be said", unless
    if effect.seeds < 1 or math.isnan(effect.mean):
        return "cannot be said", "not run"
    if effect.low is None or effect.high is None:
        return "cannot be said", ONE_SEED
    if effect.low > least:
        return "holds", ""
    if effect.high < least:
        return "does not hold", ""
    return "cannot be said", "within seed noise" if effect.of == "seeds" else f"within the noise of the {effect.of}"


def paired(function: Callable[..., float], *arms: BySeed) -> BySeed:
    """A number for each seed that all arms have: seeds are paired, since equal seeds have equal streams.

    >>> paired(lambda a, b: a - b, {0: 3.0, 1: 5.0}, {0: 1.0, 2: 9.0})
    {0: 2.0}
    """
    return {seed: function(*(arm[seed] for arm in arms)) for seed in arms[0] if all(seed in arm for arm in arms)}


def judge(
    says: str,
    *,
    arms: dict[str, BySeed],
    effect: Callable[..., float],
    least: float,
    criterion: str,
    paper: str = "",
    measure: str = ACCURACY,
    shown: Callable[[Interval], str] | None = None,
    beside: str = "",
    unless: str = "",
    interval: Callable[[Sequence[float]], Interval] = t_interval,
) -> Claim:
    """Puts a claim to the test.

    Parameters
    ----------
    says, paper, measure, criterion
        As in `Claim`.
    arms
        What is compared: a number for each seed, by name.
    effect
        The number that must be above `least`, from one seed's numbers of all arms in their order.
    least
        The least effect that counts.
    shown
        How the numbers of an arm are written; shares in percent by default.
    beside
        More that was found: other measures, which decide nothing.
    unless
        Why it cannot be said whatever the numbers are.
    interval
        The interval of the effect over the seeds.
    """
    shown = shown or (say_nats if measure == LOG_LOSS else say_share)
    absent = [name for name, values in arms.items() if not values]
    found = ", ".join(f"{name} {shown(t_interval(list(values.values())))}" for name, values in arms.items() if values)
    effects = {} if absent or not arms or unless.startswith("not run") else paired(effect, *arms.values())
    over = interval(list(effects.values())) if effects else Interval(math.nan, None, None, 0)
    if not unless and absent:
        unless = f"no results for {', '.join(absent)}"
    verdict, reason = decide(over, least, unless=unless)
    return Claim(
        says=says,
        paper=paper,
        measure=measure,
        criterion=criterion,
        found="; ".join(part for part in (found, beside) if part) or "nothing",
        verdict=verdict,
        reason=reason,
        values={name: {str(seed): value for seed, value in values.items()} for name, values in arms.items()},
        effect={
            "mean": None if math.isnan(over.mean) else over.mean,
            "low": over.low,
            "high": over.high,
            "seeds": over.seeds,
            "least": least,
            **({} if over.of == "seeds" else {"of": over.of}),
        },
    )


def not_run(says: str, *, paper: str, criterion: str, why: str, measure: str = ACCURACY) -> Claim:
    """A claim for which nothing was run here, with the cost of doing so."""
    return Claim(
        says=says,
        paper=paper,
        measure=measure,
        criterion=criterion,
        found="not run",
        verdict="cannot be said",
        reason=f"not run: {why}",
    )


def say_share(interval: Interval) -> str:
    """A share in percent, with the half width of its interval.

    >>> say_share(Interval(0.5, 0.48, 0.52, 3)), say_share(Interval(0.5, None, None, 1))
    ('50.0 ± 2.0 %', '50.0 %')
    """
    around = "" if interval.half is None else f" ± {100 * interval.half:.1f}"
    return f"{100 * interval.mean:.1f}{around} %"


def say_nats(interval: Interval) -> str:
    """
    >>> say_nats(Interval(2.5, 2.48, 2.52, 3))
    '2.500 ± 0.020 nats'
    """
    return f"{say_number(interval)} nats"


def say_number(interval: Interval) -> str:
    around = "" if interval.half is None else f" ± {interval.half:.3f}"
    return f"{interval.mean:.3f}{around}"


def say_rate(interval: Interval) -> str:
    """A learning rate, from its logarithm to the base 3.

    >>> say_rate(Interval(-1.561, None, None, 1))
    'α₀ 0.18'
    """
    around = "" if not interval.half else f" ×/÷ {3**interval.half:.2g}"
    return f"α₀ {3**interval.mean:.2g}{around}"


def claim_from_json(saved: dict[str, Any]) -> Claim:
    """A claim as `results.json` holds it; earlier versions wrote `holds`: true, false or null.

    >>> claim_from_json({"says": "More is more.", "found": "1 %", "holds": True}).verdict
    'holds'
    """
    known = {name: saved[name] for name in Claim.__dataclass_fields__ if name in saved}
    if "verdict" not in known:
        known["verdict"] = {True: "holds", False: "does not hold", None: "cannot be said"}[saved["holds"]]
    return Claim(**known)
