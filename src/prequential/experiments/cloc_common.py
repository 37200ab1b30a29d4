"""What the experiments on CLOC's features have in common.

The stream is `photos`, a stand-in, unless another is given with `--stream`: a folder of features extracted from CLOC, or
features of real images on real photo records, made like CLOC (`geo-images:FEATURES(records=FILE, length=500000,
overlay_days=13, typical_share=0.38)`).

At medium scale all of them use the same model and the first 500,000 examples, so that they share runs: the model as it
is stands in `cloc-features`, `cloc-table`, `cloc-stopping` and in every sweep, and is run once.
"""

from __future__ import annotations

from dataclasses import replace

from prequential.evaluation.scores import Scores
from prequential.experiments.experiment import PAPER, CaptionedFigure, Request, Results, Trial, over_seeds
from prequential.experiments.rate_sweeps import LEAST_RATES, AtBestRate, at_best_rate
from prequential.experiments.verdicts import say_share, t_interval
from prequential.plots.studies import draw_instantaneous
from prequential.settings import Settings
from prequential.streams.spec import StreamSpec, write_spec

STREAM = "photos"
SMALL = PAPER.changed(width=128, depth=2, window=256, chunk_size=64, num_streams=4, learning_rate=0.18)
SETTINGS = {"streams": "num_streams", "chunk": "chunk_size"}  # what tags of trials and their folders stand for
BASE = PAPER.changed(width=1024, depth=4, window=512, chunk_size=256, num_streams=8, learning_rate=0.03)
SMALL_EXAMPLES = 20_000
MEDIUM_EXAMPLES = 500_000
REAL = "geo-images"
AS_CLOC = {  # options of real records
    "length": 500_000,  # three times the records
    "overlay_days": 13,  # 6.6 seconds a photo; on CLOC about 6.5
    "typical_share": 0.38,  # the image alone has 19 %, as on CLOC, by the learner that stands for it there
}
PAPER_EXAMPLES = 37_093_769  # of CLOC, as the paper downloaded it
RATES = (0.06, 0.18, 0.5)
MEDIUM_RATES = (0.18, 0.06, 0.5, 0.02, 1.5)  # the most valuable first
FURTHEST = 9  # times the highest, or a share of the lowest of them: where the grid ends in any case
PAPER_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
TOO_FEW = 100_000  # examples of the stand-ins in which a transformer has hardly begun to use its context


def base(request: Request) -> Settings:
    settings: Settings = request.of(SMALL, SMALL, BASE)
    return settings


def examples(request: Request, share: float = 1.0) -> dict[str, int]:
    """How much of the stream is run over; all of it at paper scale."""
    given: dict[str, int] = request.of({"examples": int(SMALL_EXAMPLES * share)}, {"examples": MEDIUM_EXAMPLES}, {})
    return given


def with_option(stream: str, option: str, value: int) -> str:
    """A stream that is drawn at random with an option changed; any other stays as it is.

    >>> with_option("photos(fit=1)", "seed", 7), with_option("features:cloc", "seed", 7)
    ('photos(fit=1,seed=7)', 'features:cloc')
    >>> with_option("geo-images:f(records=r.npz)", "seed", 7)
    'geo-images:f(records=r.npz, seed=7)'
    """
    spec = StreamSpec.parse(stream)
    options = {**spec.options, option: value}
    if spec.name == REAL:
        return write_spec(spec.source, options)
    if spec.source != STREAM:
        return stream
    return f"{STREAM}({','.join(f'{name}={of}' for name, of in options.items())})"


def two_token(pi: Settings) -> Settings:
    """The 2-token model beside a pi-transformer: twice as deep, as in the paper, and two tokens an example."""
    return pi.changed(model="two-token", depth=2 * pi.depth, window=2 * pi.window)


def too_short(results: Results) -> str:
    """Why nothing can be said about a short run on a stand-in for CLOC: its context is not used yet."""
    if not results.outcomes or results.examples >= TOO_FEW or results.request.kind not in (STREAM, REAL):
        return ""
    return f"the runs of {results.examples:,} examples are too short: the context is not used yet"


def latest(arms: dict[str, Results]) -> str:
    """The accuracies over the last tenth, which stand beside the averages."""
    found = {name: list(of.by_seed("last_tenth").values()) for name, of in arms.items()}
    said = ", ".join(f"{name} {say_share(t_interval(values))}" for name, values in found.items() if values)
    return f"over the last tenth {said}" if said else ""


def nats(arms: dict[str, Results]) -> str:
    """The log-losses over the whole stream, which stand beside the accuracies."""
    found = {name: list(of.by_seed("log_loss").values()) for name, of in arms.items()}
    said = ", ".join(f"{name} {t_interval(values).mean:.3f}" for name, values in found.items() if values)
    return f"in nats {said}" if said else ""


def beside(arms: dict[str, Results]) -> str:
    """Both measures that decide nothing."""
    return "; ".join(part for part in (nats(arms), latest(arms)) if part)


def figure_of_latest(groups: dict[str, list[Scores]]) -> CaptionedFigure:
    """How each of them does late in the stream, where its start no longer counts."""
    shortest = min(scores.count for some in groups.values() for scores in some)
    return CaptionedFigure(
        draw_instantaneous(groups, max(1, shortest // 20)), "Accuracy over the latest twentieth, and over all so far."
    )


# Sweeps: a setting, with several learning rates for each of its values.


def swept(request: Request, tag: str, values: tuple[int, ...], *, both: bool = False) -> list[Trial]:
    """Every value of the setting that a tag stands for, with every learning rate; with 2-token beside pi if `both`.

    At medium scale in this order: all values at the usual rate with all seeds; other rates with the first seed; 2-token,
    which costs several times as much, with the first seed. The rest comes after that, see `swept_further`.
    """
    grid = _grid(request, tag, values, both)
    if request.scale != "medium":
        return grid
    return _in_order([replace(trial, tier=_tier(trial)) for trial in grid if not _is_further(trial)])


def swept_further(
    request: Request, results: Results, tag: str, values: tuple[int, ...], *, both: bool = False
) -> list[Trial]:
    """At medium scale, what `swept` leaves out: other rates with other seeds, and all of 2-token with other seeds.

    Claims compare values at their best rates, with all seeds. So those at the rate that is best so far come first. Then
    those at the lowest rate, of the smallest and the largest value: whether it is robust there is a claim, too. Where the
    best rate is the last of the grid and clearly better than its neighbor, the grid goes on beyond it.
    """
    if request.scale != "medium":
        return []

    def best_so_far(trial: Trial) -> AtBestRate | None:
        return at_best_rate(results.where(**{"model": trial.tags.get("model"), tag: trial.tags[tag]}))

    found = []
    for trial in _grid(request, tag, values, both):
        best = best_so_far(trial)
        two_token = "model" in trial.tags
        if trial.tags["rate"] == MEDIUM_RATES[0] and best is not None and (rate := _beyond(best)):
            tags = {**trial.tags, "rate": rate}
            settings = trial.settings.changed(learning_rate=rate)
            found.append(replace(trial, tags=tags, settings=settings, tier=3 if two_token else 2))
        if _is_further(trial):
            known = best is not None and len(best.rates) >= LEAST_RATES and best.rate == trial.tags["rate"]
            low = trial.tags["rate"] == min(MEDIUM_RATES) and trial.tags[tag] in (min(values), max(values))
            tier = (3 if two_token else 2) if known else 3 if low and not two_token else 4
            found.append(replace(trial, tier=tier))
    return _in_order(found)


def _grid(request: Request, tag: str, values: tuple[int, ...], both: bool) -> list[Trial]:
    rates: tuple[float, ...] = request.of(RATES, MEDIUM_RATES, PAPER_RATES)
    found = []
    for model in ("pi", "two-token") if both and not request.small else ("pi",):
        for value in values:
            pi = base(request).changed(**{SETTINGS.get(tag, tag): value})
            settings = two_token(pi) if model == "two-token" else pi
            for rate in rates:
                tags = {**({"model": model} if model == "two-token" else {}), tag: value, "rate": rate}
                found += over_seeds(request, settings.changed(learning_rate=rate), tags, run=examples(request))
    return found


def _beyond(best: AtBestRate) -> float:
    """The next rate beyond the grid, where the best one is at its edge and may not be the best of all; or else 0."""
    if best.rising and max(MEDIUM_RATES) <= best.rate < FURTHEST * max(MEDIUM_RATES):
        return round(3 * best.rate, 6)
    if best.rising and min(MEDIUM_RATES) / FURTHEST < best.rate <= min(MEDIUM_RATES):
        return round(best.rate / 3, 6)
    return 0.0


def _is_further(trial: Trial) -> bool:
    return bool((trial.tags["rate"] != MEDIUM_RATES[0] or "model" in trial.tags) and trial.tags["seed"] > 0)


def _tier(trial: Trial) -> int:
    """That of a trial which `swept` gives."""
    place = MEDIUM_RATES.index(trial.tags["rate"])
    if "model" in trial.tags:
        return 3 if place < LEAST_RATES else 4
    return 1 if place == 0 else 2 if place < LEAST_RATES else 3


def _in_order(trials: list[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: (trial.tier, trial.tags["seed"]))
