"""Split-EMNIST with what goes beyond the paper: no struggling start, at fewer multiply-accumulates.

Shows: error and log-loss of the first and last ten tasks, accuracy per task, and accuracy within early, middle and late
tasks, of the paper's method and of `method="mixed"`: three heads mixed by what they were worth, predicting with an
average of the parameters.

Settings: the paper's method as in `split-emnist`, with which it shares runs, and once more with the step size and
schedule of mixed. Mixed: the same networks but for hidden layers of 640 instead of 1024, and 7 streams instead of 8,
which pays for the average's own pass; step size 3e-4, falling with the square root from example 25,000 on. Small and
medium: the small networks of `split-emnist`, 20 tasks of 300 and 100 tasks of 300, one step size and schedule.

Hardware and time: 2 cores; paper scale 25 to 50 minutes for each of the three runs of a seed in float32, small 4
minutes a seed.

Expected: the mixed learner is ahead of the paper's in every tenth of the stream, and far ahead in the first.
"""

from __future__ import annotations

from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import figures_of_tasks, measures, sizes
from prequential.experiments.verdicts import judge, paired

__all__ = ["STREAM", "claims", "figures", "measures", "trials"]
STREAM = "emnist"
FALLING = {  # step size and schedule of mixed at the paper's size
    "learning_rate": 256 * 3e-4,
    "extractor_learning_rate": 3e-4,
    "lr_decay": "inverse-sqrt",
    "lr_decay_examples": 25_000,
}


def trials(request: Request) -> list[Trial]:
    paper, run = sizes(request)
    mixed = paper.changed(method="mixed", num_streams=7, mlp_width=5 * paper.width // 2)
    plain = over_seeds(request, paper, {"method": "paper"}, run=run)
    if request.scale != "paper":
        return [*plain, *over_seeds(request, mixed, {"method": "mixed"}, run=run)]
    return [
        *plain,
        *over_seeds(request, mixed.changed(**FALLING), {"method": "mixed"}, run=run),
        *over_seeds(request, paper.changed(**FALLING), {"method": "paper", "schedule": "falling"}, run=run),
    ]


def _arms(results: Results) -> dict[str, Results]:
    """What is compared, by name; the plain method with the schedule of mixed where there are two schedules."""
    same, constant = (results.where(method="paper", schedule=schedule) for schedule in ("falling", None))
    arms = {"the paper's": constant, "the paper's, falling rate": same, "mixed": results.where(method="mixed")}
    return {name: of for name, of in arms.items() if of.outcomes}


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_tasks(results, _arms(results))


def claims(results: Results) -> list[Claim]:
    mixed, constant = results.where(method="mixed"), results.where(method="paper", schedule=None)
    plain = results.where(method="paper", schedule="falling") if results.request.scale == "paper" else constant
    shares = list(paired(lambda a, b: a / b, mixed.by_seed("macs"), plain.by_seed("macs")).values())
    dearer = "mixed costs more multiply-accumulates" if any(share > 1 for share in shares) else ""
    cost = f"{shares[0]:.2f} times the multiply-accumulates" if shares else ""
    how = "at the same step size and schedule"

    def compare(says: str, what: str, other: Results, least: float, how: str, beside: str = "") -> Claim:
        return judge(
            f"(Not in the paper.) {says}",
            measure="accuracy over the first ten tasks"
            if what == "first_tasks"
            else "average accuracy over the stream",
            criterion=f"{how}, at least {100 * least:.0f} points more than the paper's method, at no more "
            "multiply-accumulates",
            arms={"the paper's": other.by_seed(what), "mixed": mixed.by_seed(what)},
            effect=lambda plain, own: own - plain,
            least=least,
            beside=beside,
            unless=dearer,
        )

    found = [
        compare("The slow start can be avoided at no extra cost.", "first_tasks", plain, 0.1, how, cost),
        compare("The average gains too.", "accuracy", plain, 0.01, how),
    ]
    if results.request.scale == "paper":
        constantly = "the paper's method at its own constant step size"
        found.append(compare("... and against the paper's own schedule.", "accuracy", constant, 0.01, constantly))
    return found
