"""CLOC: the paper's Table 1, the rows that learn on given features.

Shows: average accuracy of every baseline and of the transformer. `prequential compare table1` is the same as a comparison, with tables in
LaTeX and with the order of the rows checked.

Settings: the baselines' own; the transformer's as in `cloc-features`. Small: the first 500,000 of `photos`, and the claims are about the
last tenth of them: at the start, which is most of a short stream, the transformer has not found out yet what its context is for.

Hardware and time: 2 cores; small 30 minutes.

Expected on CLOC: last label 12 %, no image 18 %, no attention 19 %, ER 20 %, ACM 26 %, Kalman 30 %, Replay Streams 38 %,
both with a network learned online 37 %, transformer 59 %.
"""

from __future__ import annotations

import numpy as np

from prequential.drawing.comparison import draw_accuracies
from prequential.drawing.studies import draw_instantaneous
from prequential.experiments.base import Ask, Claim, Drawn, Found, Trial, over_seeds
from prequential.experiments.cloc import STREAM, base, examples, judged
from prequential.running.table1 import LEARNED, OWN, PAPER, check_order, misplaced

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(ask: Ask) -> list[Trial]:
    return [
        trial
        for learner in PAPER
        for trial in over_seeds(ask, base(ask), {"learner": learner}, learner=learner, run=examples(ask, 25))
    ]


def figures(found: Found) -> dict[str, Drawn]:
    groups = {_short(name): found.where(learner=name).scores() for name in found.values("learner")}
    ranked = sorted(groups, key=lambda name: -float(np.mean([scores.accuracy for scores in groups[name]])))
    best = {name: groups[name] for name in ranked[:5]}
    return {
        "table": Drawn(draw_accuracies({found.ask.stream: groups}), "Average accuracy so far of every row of Table 1."),
        "latest": Drawn(
            draw_instantaneous(best, max(1, groups[ranked[0]][0].count // 20)),
            "Accuracy over the latest twentieth, and over all so far, of the best rows.",
        ),
    }


def claims(found: Found) -> list[Claim]:
    spreads = {}
    for learner in found.values("learner"):
        values = judged(found.where(learner=learner))
        spreads[learner] = (sum(values) / len(values), min(values), max(values))
    others = {name: spread[0] for name, spread in spreads.items() if name != OWN}
    second = max(others, key=others.__getitem__)
    own = spreads[OWN][0]
    where, on_average = "", ""
    if found.ask.small:
        where = "over the last tenth "
        on_average = "; over all of it " + " and ".join(
            f"{found.where(learner=name).mean():.1%}" for name in (OWN, second)
        )
    first = check_order(spreads)[0]
    wrong = misplaced({name: spread[0] for name, spread in spreads.items()})
    behind = {above: [_short(below) for below in spreads if (above, below) in wrong] for above in spreads}
    otherwise = [f"{_short(above)} is not above {', '.join(below)}" for above, below in behind.items() if below]
    return [
        Claim(
            "The transformer is ahead of every other row (on CLOC by 21 points).",
            f"{where}transformer {own:.1%}, best of the others {_short(second)} {others[second]:.1%}{on_average}",
            own > others[second],
        ),
        Claim("The order of the rows of Table 1.", where + "; ".join([first.rstrip("."), *otherwise]), not otherwise),
    ]


def _short(learner: str) -> str:
    """The name of a row without its settings."""
    if learner in LEARNED:
        return f"{learner.partition('(')[0]} (learned)" if "(" in learner else learner
    return learner.partition("(")[0]
