"""CLOC: the paper's Table 1, the rows that learn on given features.

Shows: average accuracy of every baseline and of the transformer. `prequential compare table1` is the same as a
comparison, with tables in LaTeX and with the order of the rows checked.

Settings: the baselines' own; the transformer's as in `cloc-features`. Small: the first 500,000 of `photos`, and the
claims are about the last tenth of them: at the start, which is most of a short stream, the transformer has not found
out yet what its context is for.

Hardware and time: 2 cores; small 30 minutes.

Expected on CLOC: last label 12 %, no image 18 %, no attention 19 %, ER 20 %, ACM 26 %, Kalman 30 %, Replay Streams 38
%, both with a network learned online 37 %, transformer 59 %.
"""

from __future__ import annotations

import numpy as np

from prequential.comparisons.table1 import LEARNED, OWN, PAPER, check_order, misplaced
from prequential.experiments.cloc_common import STREAM, base, describe_judged, examples, figure_of_latest, judged
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(request: Request) -> list[Trial]:
    return [
        trial
        for learner in PAPER
        for trial in over_seeds(
            request, base(request), {"learner": learner}, learner=learner, run=examples(request, 25)
        )
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = {_short(name): results.where(learner=name).scores() for name in results.values("learner")}
    ranked = sorted(groups, key=lambda name: -float(np.mean([scores.accuracy for scores in groups[name]])))
    return {
        "table": CaptionedFigure(
            draw_accuracies({results.request.stream: groups}), "Average accuracy so far of every row of Table 1."
        ),
        "latest": figure_of_latest({name: groups[name] for name in ranked[:5]}),
    }


def claims(results: Results) -> list[Claim]:
    rows = {learner: results.where(learner=learner) for learner in results.values("learner")}
    means = {learner: judged(of) for learner, of in rows.items()}
    second = max((learner for learner in means if learner != OWN), key=means.__getitem__)
    wrong = misplaced(means)
    behind = {above: [_short(below) for below in means if (above, below) in wrong] for above in means}
    otherwise = [f"{_short(above)} is not above {', '.join(below)}" for above, below in behind.items() if below]
    ahead = f"transformer {means[OWN]:.1%}, best of the others {_short(second)} {means[second]:.1%}"
    order = "; ".join([_pairs_in_order(means), *otherwise])
    on_average = {learner: of.mean() for learner, of in rows.items()}
    return [
        Claim(
            "The transformer is ahead of every other row (on CLOC by 21 points).",
            describe_judged(ahead, f"{on_average[OWN]:.1%} and {on_average[second]:.1%}", results.request),
            means[OWN] > means[second],
        ),
        Claim(
            "The order of the rows of Table 1.",
            describe_judged(order, _pairs_in_order(on_average), results.request),
            not otherwise,
        ),
    ]


def _pairs_in_order(means: dict[str, float]) -> str:
    return check_order({learner: (mean, mean, mean) for learner, mean in means.items()})[0].rstrip(".")


def _short(learner: str) -> str:
    """The name of a row without its settings."""
    if learner in LEARNED:
        return f"{learner.partition('(')[0]} (learned)" if "(" in learner else learner
    return learner.partition("(")[0]
