"""Split-EMNIST: the pi-transformer against the 2-token transformer, which learns more slowly.

Shows: accuracy over time and per task for both models, averaged over data seeds.

Settings (paper): as `split-emnist`; the 2-token model has a window of 1024 tokens, as many examples. Small: as
`split-emnist`, 30 tasks of 300. Medium: the small networks, 100 tasks of 300, three seeds.

Hardware and time: 2 cores; small 5 minutes a seed, medium 20 minutes, paper scale 30 minutes of a core a run in
float32 with AVX-512.

Expected: the same behavior, but 2-token needs more examples and more tasks to get there.
"""

from __future__ import annotations

from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import sizes, too_short
from prequential.experiments.verdicts import judge
from prequential.plots.studies import draw_instantaneous, draw_task_curves

STREAM = "emnist"


def trials(request: Request) -> list[Trial]:
    base, run = sizes(request, (30, 300))
    pi = over_seeds(request, base, {"model": "pi"}, run=run)
    two = base.changed(model="two-token", window=2 * base.window)
    return pi + over_seeds(request, two, {"model": "two-token"}, run=run)


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = results.groups("model")
    return {
        "curves": CaptionedFigure(
            draw_instantaneous(groups), "Accuracy of both models over the latest examples and over all so far."
        ),
        "tasks": CaptionedFigure(draw_task_curves(groups), "Accuracy and log-loss of each task for both models."),
    }


def claims(results: Results) -> list[Claim]:
    pi, two = results.where(model="pi"), results.where(model="two-token")
    return [
        judge(
            "pi is ahead of 2-token: it needs fewer examples.",
            paper="The 2-token approach is learning slower in the sense that it requires more samples and more tasks to "
            "achieve the same performance.",
            criterion="at least 2 points of average accuracy more",
            arms={"pi": pi.by_seed(), "2-token": two.by_seed()},
            effect=lambda one, other: one - other,
            least=0.02,
        ),
        judge(
            "2-token behaves generally the same.",
            paper="We repeat the experiments with the 2-token architecture and observe generally the same behaviour.",
            measure="accuracy over the first ten and the last ten tasks",
            criterion="with 2-token too the last ten tasks have at least 20 points more than the first ten",
            arms={f"{name} ten tasks": two.by_seed(f"{name}_tasks") for name in ("first", "last")},
            effect=lambda first, last: last - first,
            least=0.2,
            unless=too_short(two),
        ),
    ]
