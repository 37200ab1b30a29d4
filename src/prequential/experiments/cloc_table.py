"""CLOC: the paper's Table 1, the rows that learn on given features.

Shows: average accuracy of every baseline and of the transformer. `prequential compare table1` is the same as a
comparison, with tables in LaTeX and with the order of the rows checked.

Settings: the baselines' own, not tuned on this stream; the transformer's as in `cloc-features`, with which it shares
runs. Small and medium: the first 500,000 of `photos`; medium with three seeds, the slow ones last.

Hardware and time: 2 cores; small 30 minutes, with ACM an hour and a half.

Expected on CLOC: last label 12 %, no image 18 %, no attention 19 %, ER 20 %, ACM 26 %, Kalman 30 %, Replay Streams 38
%, both with a network learned online 37 %, transformer 59 %.
"""

from __future__ import annotations

import numpy as np

from prequential.comparisons.table1 import LEARNED, OWN, PAPER, check_order, misplaced
from prequential.experiments.cloc_common import STREAM, base, beside, examples, figure_of_latest, too_short
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import LOG_LOSS, BySeed, judge, t_interval
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials"]
SLOW = {"kalman-network": 2, "acm": 3}  # the tiers of those that take longest


def trials(request: Request) -> list[Trial]:
    return [
        trial
        for learner in PAPER
        for trial in over_seeds(
            request,
            base(request),
            {"learner": learner},
            learner=learner,
            run=examples(request, 25),
            tier=SLOW.get(learner, 1),
        )
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = results.groups("learner", _short)
    ranked = sorted(groups, key=lambda name: -float(np.mean([scores.accuracy for scores in groups[name]])))
    return {
        "table": CaptionedFigure(
            draw_accuracies({results.request.stream: groups}), "Average accuracy so far of every row of Table 1."
        ),
        "latest": figure_of_latest({name: groups[name] for name in ranked[:5]}),
    }


def claims(results: Results) -> list[Claim]:
    rows = {learner: results.where(learner=learner) for learner in PAPER if results.where(learner=learner).outcomes}
    absent = [_short(learner) for learner in PAPER if learner not in rows]
    missing = f"not run: {', '.join(absent)}" if absent else ""
    means = {learner: of.mean() for learner, of in rows.items()}
    wrong = misplaced(means)
    behind = {above: [_short(below) for below in means if (above, below) in wrong] for above in means}
    otherwise = [f"{_short(above)} is not above {', '.join(below)}" for above, below in behind.items() if below]
    accuracy = {learner: of.by_seed() for learner, of in rows.items()}
    losses = {learner: loss for learner, of in rows.items() if (loss := of.by_seed("log_loss"))}
    best_rows = [*sorted(rows, key=means.__getitem__)[-3:], OWN]
    ahead = "The transformer is ahead of every other row"
    paper = "Ours (Superv. ResNet) 59 %, the best of the others 38 %."

    def against(found: dict[str, BySeed], sign: int) -> dict[str, BySeed]:
        """The transformer and the best of the other rows."""
        others = {name: sign * t_interval(list(of.values())).mean for name, of in found.items() if name != OWN}
        second = max(others, key=others.__getitem__, default=None)
        kept = [OWN] if second is None else [OWN, second]
        return {_short(name): found.get(name, {}) for name in kept}

    return [
        judge(
            f"{ahead}, by average accuracy.",
            paper=paper,
            criterion="at least 1 point of average accuracy more than the best of the others (on CLOC 21)",
            arms=against(accuracy, 1),
            effect=lambda own, other: own - other,
            least=0.01,
            beside=beside({_short(name): rows[name] for name in best_rows if name in rows}),
            unless=too_short(results) or missing,
        ),
        judge(
            f"{ahead}, by cumulative log-loss.",
            paper="We aim to find a predictive model that minimizes the cumulative log-loss.",
            measure=LOG_LOSS,
            criterion="at least 0.05 nats less than the best of the others that give probabilities",
            arms=against(losses, -1),
            effect=lambda own, other: other - own,
            least=0.05,
            unless=too_short(results) or missing,
        ),
        judge(
            "The order of the rows of Table 1.",
            paper="Table 1: last label 12 %, no image 18 %, no attention 19 %, ER 20 %, ACM 26 %, Kalman 30 %, Replay "
            "Streams 38 %, with a learned network 37 % and 37 %, transformer 59 %.",
            criterion="every pair of rows is in the paper's order by average accuracy (the worst pair decides)",
            arms={_short(learner): of for learner, of in accuracy.items()},
            effect=lambda *values: _worst_pair(dict(zip(accuracy, values, strict=True))),
            least=0.0,
            beside="; ".join([_pairs_in_order(means), *otherwise]) if means else "",
            unless=too_short(results) or missing,
        ),
    ]


def _worst_pair(found: dict[str, float]) -> float:
    """By how much the worst pair of rows is in the paper's order."""
    pairs = [found[a] - found[b] for a in found for b in found if PAPER[a] > PAPER[b]]
    return min(pairs) if pairs else float("nan")


def _pairs_in_order(means: dict[str, float]) -> str:
    return check_order({learner: (mean, mean, mean) for learner, mean in means.items()})[0].rstrip(".")


def _short(learner: str) -> str:
    """The name of a row without its settings."""
    if learner in LEARNED:
        return f"{learner.partition('(')[0]} (learned)" if "(" in learner else learner
    return learner.partition("(")[0]
