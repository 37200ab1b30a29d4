"""Split-EMNIST with what goes beyond the paper: no struggling start, at fewer multiply-accumulates.

Shows: error and log-loss of the first and last ten tasks, accuracy per task, and accuracy within early, middle and late
tasks, of the paper's method, of the same with queries that start as keys (`query_init="key"`), and of `method="mixed"`:
three heads mixed by what they were worth, predicting with an average of the parameters.

Settings: the paper's method as in `split-emnist`, with which it shares runs, and once more with the step size and
schedule of mixed. Mixed: the same networks but for hidden layers of 640 instead of 1024, and 7 streams instead of 8,
which pays for the average's own pass; step size 3e-4, falling with the square root from example 25,000 on. Queries that
start as keys: the paper's method and step size. Small and medium: the small networks of `split-emnist`, 20 tasks of 300
and 100 tasks of 300, one step size and schedule.

Queries that start as keys had been run on digits and `photos` before their criteria were written, not on Split-EMNIST.

Hardware and time: 2 cores; paper scale 20 to 50 minutes for each of the four runs of a seed in float32, small 5
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
    arms = [
        ({"method": "paper"}, paper),
        ({"method": "mixed"}, mixed.changed(**FALLING) if request.scale == "paper" else mixed),
        ({"method": "paper", "queries": "keys"}, paper.changed(query_init="key")),
    ]
    if request.scale == "paper":
        arms.append(({"method": "paper", "schedule": "falling"}, paper.changed(**FALLING)))
    return [trial for tags, settings in arms for trial in over_seeds(request, settings, tags, run=run)]


def _arms(results: Results) -> dict[str, Results]:
    """What is compared, by name; the plain method with the schedule of mixed where there are two schedules."""
    plain = results.where(method="paper")
    arms = {
        "the paper's": plain.where(schedule=None, queries=None),
        "the paper's, falling rate": plain.where(schedule="falling"),
        "the paper's, queries as keys": plain.where(queries="keys"),
        "mixed": results.where(method="mixed"),
    }
    return {name: of for name, of in arms.items() if of.outcomes}


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return figures_of_tasks(results, _arms(results))


def claims(results: Results) -> list[Claim]:
    arms, none = _arms(results), results.where(method="none")
    constant, mixed = arms.get("the paper's", none), arms.get("mixed", none)
    plain = arms.get("the paper's, falling rate", none) if results.request.scale == "paper" else constant
    own = {"mixed": mixed, "queries as keys": arms.get("the paper's, queries as keys", none)}

    def compare(says: str, what: str, name: str, other: Results, least: float, how: str) -> Claim:
        shares = list(paired(lambda a, b: a / b, own[name].by_seed("macs"), other.by_seed("macs")).values())
        dearer = any(share > 1 for share in shares)
        return judge(
            f"(Not in the paper.) {says}",
            measure="accuracy over the first ten tasks"
            if what == "first_tasks"
            else "average accuracy over the stream",
            criterion=f"{how}, at least {100 * least:.0f} points more than the paper's method, at no more "
            "multiply-accumulates",
            arms={"the paper's": other.by_seed(what), name: own[name].by_seed(what)},
            effect=lambda plain, own: own - plain,
            least=least,
            beside=f"{shares[0]:.2f} times the multiply-accumulates" if shares and what == "first_tasks" else "",
            unless=f"{name} costs more multiply-accumulates" if dearer else "",
        )

    same, constantly = "at the same step size and schedule", "the paper's method at its own constant step size"
    slow = "The slow start can be avoided at no extra cost"
    found = [
        compare(f"{slow}.", "first_tasks", "mixed", plain, 0.1, same),
        compare("The average gains too.", "accuracy", "mixed", plain, 0.01, same),
        compare(f"{slow}, by queries that start as keys.", "first_tasks", "queries as keys", constant, 0.1, same),
        compare("The average gains too, by these.", "accuracy", "queries as keys", constant, 0.01, same),
    ]
    if results.request.scale == "paper":
        found.insert(
            2, compare("... and against the paper's own schedule.", "accuracy", "mixed", constant, 0.01, constantly)
        )
    return found
