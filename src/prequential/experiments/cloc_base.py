"""CLOC: the paper's base model beside a small one, on a million examples.

Shows: average accuracy over the stream, and of the latest examples, of the base model (4 blocks, D 1024) and of the model
that all other experiments have at medium scale (2 blocks, D 128); what both cost.

Settings (paper): the base model has 4 blocks, D 1024, C 512, S 256, 8 streams, step size 0.03/D; the small one 2 blocks,
D 128, C 256, S 64, 4 streams, step size 0.18/D; all of CLOC. Medium: the same models on 1,000,000 of `photos`. Neither
is tuned here: the base model's settings are the paper's, the small model's those of `cloc-features`. Small: models of 4
blocks with D 64 and 2 blocks with D 32 on 5,000 examples, which only shows that it works.

Hardware and time: 2 cores; small a minute, medium 11 to 13 hours with one seed.

Medium with one seed (`--seeds 1`): ten minutes of a core for the small model (7.0e12 multiply-accumulates) and, in tier
4, 11 to 13 hours for the base model (1.15e15, at 25 to 30 thousand million a second).

Expected: the larger model is better. With one seed the claim cannot be decided, whatever comes out.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import BASE, SMALL, STREAM, beside, figure_of_latest, too_short
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import judge
from prequential.plots.comparison import draw_accuracies
from prequential.settings import Settings

__all__ = ["STREAM", "claims", "figures", "trials"]
TINY = {"window": 64, "chunk_size": 32, "num_streams": 2}
LATE = 4  # the tier of the base model, which takes half a day


def trials(request: Request) -> list[Trial]:
    models: dict[str, Settings] = {"small": SMALL, "base": BASE}
    if request.small:
        models = {"small": SMALL.changed(width=32, **TINY), "base": BASE.changed(width=64, **TINY)}
    run = request.of({"examples": 5_000}, {"examples": 1_000_000}, {})
    return [
        trial
        for model, settings in models.items()
        for trial in over_seeds(
            request, settings, {"model": model}, run=run, tier=LATE if model == "base" and not request.small else 1
        )
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = results.groups("model")
    return {
        "curves": CaptionedFigure(
            draw_accuracies({results.request.stream: groups}),
            "Average accuracy so far of the base model and a small one.",
        ),
        "latest": figure_of_latest(groups),
    }


def claims(results: Results) -> list[Claim]:
    arms = {model: results.where(model=model) for model in ("base", "small")}
    return [
        judge(
            "The base model is better than a small one.",
            paper="Larger models are generally better.",
            criterion="the base model has at least 2 points of average accuracy more than the small one",
            arms={model: of.by_seed() for model, of in arms.items()},
            effect=lambda base, small: base - small,
            least=0.02,
            beside="; ".join(part for part in (beside(arms), _costs(arms)) if part),
            unless=too_short(results),
        )
    ]


def _costs(arms: dict[str, Results]) -> str:
    """What a run of each of them costs."""
    said = [
        f"{model} {of.mean('macs'):.1e} multiply-accumulates and {of.mean('seconds') / 3600:.2g} hours"
        for model, of in arms.items()
        if of.by_seed("macs")
    ]
    return f"a run takes {', '.join(said)}" if said else ""
