"""CLOC: the paper's Table 1, the rows that learn on given features.

Shows: average accuracy of every baseline and of the transformer. `prequential compare table1` is the same as a
comparison, with tables in LaTeX and with the order of the rows checked.

Settings: at medium scale every row that has settings is tuned with the same effort: five values of the option that
matters most (`tuning.py`), its own among them, each on 200,000 examples of a stream that is not reported
(`photos(seed=1000)`). The value with the highest average accuracy there is used for the table: the first 500,000 of
`photos` with three seeds (ACM in tier 3), then (tier 4, ACM in tier 5) the first 2,000,000. Claims are about the longest
of these lengths that all rows have with two seeds. Sizes are not tuned here: the transformer's are those of
`cloc-features`, with which it shares runs, and were chosen on `photos`; the baselines' are their own. Small: the first
500,000 of `photos`, every row as it is. Paper: the same on all of CLOC.

Hardware and time: 2 cores; small 30 minutes, with ACM an hour and a half; medium 11 hours.

Medium in hours of a core with AVX-512, half as fast without: 1 to tune and for the table of 500,000 with three seeds, 2
for 2,000,000; for ACM about 4 and 15.

Expected on CLOC: last label 12 %, no image 18 %, no attention 19 %, ER 20 %, ACM 26 %, Kalman 30 %, Replay Streams 38
%, both with a network learned online 37 %, transformer 59 %.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from prequential.comparisons.table1 import OWN, PAPER, check_order, misplaced, row_name
from prequential.experiments.cloc_common import STREAM, base, beside, examples, figure_of_latest, too_short
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.tuning import (
    TIERS,
    TUNING,
    edge_of_row,
    figure_of_tuning,
    say_settings,
    table_trials,
    tuning_trials,
)
from prequential.experiments.verdicts import LOG_LOSS, BySeed, judge, say_share, t_interval
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials", "trials_after"]


def trials(request: Request) -> list[Trial]:
    """At medium scale those that tune the rows, and otherwise the table itself."""
    if request.scale == "medium":
        return tuning_trials(request)
    return [
        trial
        for row in PAPER
        for trial in over_seeds(
            request, base(request), {"learner": row}, learner=row, run=examples(request, 25), tier=TIERS.get(row, 1)
        )
    ]


def trials_after(request: Request, results: Results) -> list[Trial]:
    """The table, of the rows whose tuning is complete."""
    return table_trials(request, results) if request.scale == "medium" else []


def figures(results: Results) -> dict[str, CaptionedFigure]:
    found = {}
    table, tuning = reported(results), figure_of_tuning(results)
    if table.outcomes:
        groups = table.groups("learner", row_name)
        ranked = sorted(groups, key=lambda name: -float(np.mean([scores.accuracy for scores in groups[name]])))
        settings = say_settings(results, [row for row in PAPER if row in table.values("learner")])
        found["table"] = CaptionedFigure(
            draw_accuracies({results.request.stream: groups}),
            f"Average accuracy so far of every row of Table 1{', ' * bool(settings)}{settings}.",
        )
        found["latest"] = figure_of_latest(
            {name: groups[name] for name in ranked if name in (*ranked[:5], row_name(OWN))}
        )
    return found if tuning is None else {**found, "tuning": tuning}


def reported(results: Results) -> Results:
    """The runs that claims are about: the longest that all rows have with two seeds, or else that most rows have."""
    table = replace(results, outcomes=tuple(o for o in results.outcomes if o.tags.get("stage") != TUNING))

    def rank(length: int | None) -> tuple[int, int, int]:
        seeds = [len(table.where(learner=row, length=length)) for row in PAPER]
        rows = [count for count in seeds if count]
        return len(rows), min([*rows, 2]), length or 0

    lengths = {o.tags.get("length") for o in table.outcomes}
    return table.where(length=max(lengths, key=rank)) if lengths else table


def claims(results: Results) -> list[Claim]:
    table = reported(results)
    rows = {row: of for row in PAPER if (of := table.where(learner=row)).outcomes}
    absent = [row_name(row) for row in PAPER if row not in rows]
    unless = too_short(table) or (f"not run: {', '.join(absent)}" if absent else "")
    means = {row: of.mean() for row, of in rows.items()}
    accuracy = {row: of.by_seed() for row, of in rows.items()}
    losses = {row: loss for row, of in rows.items() if (loss := of.by_seed("log_loss"))}
    best_rows = [*sorted(rows, key=means.__getitem__)[-3:], OWN]
    ahead = "The transformer is ahead of every other row"
    paper = "Ours (Superv. ResNet) 59 %, the best of the others 38 %."

    def against(found: dict[str, BySeed], sign: int) -> tuple[dict[str, BySeed], str, str]:
        """The transformer and the best of the other rows; their settings; whether the one behind is at an edge."""
        score = {name: sign * t_interval(list(of.values())).mean for name, of in found.items()}
        second = max((name for name in score if name != OWN), key=score.__getitem__, default=None)
        kept = [OWN] if second is None else [OWN, second]
        behind = min(kept, key=lambda name: score.get(name, 0.0)) if len(kept) == 2 and OWN in score else None
        arms = {row_name(name): found.get(name, {}) for name in kept}
        return arms, say_settings(results, kept), edge_of_row(results, behind)

    by_accuracy, accuracy_settings, accuracy_edge = against(accuracy, 1)
    by_loss, loss_settings, loss_edge = against(losses, -1)
    return [
        judge(
            f"{ahead}, by average accuracy.",
            paper=paper,
            criterion="at least 1 point of average accuracy more than the best of the others (on CLOC 21)",
            arms=by_accuracy,
            effect=lambda own, other: own - other,
            least=0.01,
            beside=_joined(
                beside({row_name(name): rows[name] for name in best_rows if name in rows}),
                _other_lengths(results, table),
                accuracy_settings,
            ),
            unless=unless or accuracy_edge,
        ),
        judge(
            f"{ahead}, by cumulative log-loss.",
            paper="We aim to find a predictive model that minimizes the cumulative log-loss.",
            measure=LOG_LOSS,
            criterion="at least 0.05 nats less than the best of the others that give probabilities",
            arms=by_loss,
            effect=lambda own, other: other - own,
            least=0.05,
            beside=loss_settings,
            unless=unless or loss_edge,
        ),
        judge(
            "The order of the rows of Table 1.",
            paper="Table 1: last label 12 %, no image 18 %, no attention 19 %, ER 20 %, ACM 26 %, Kalman 30 %, Replay "
            "Streams 38 %, with a learned network 37 % and 37 %, transformer 59 %.",
            criterion="every pair of rows is in the paper's order by average accuracy (the worst pair decides)",
            arms={row_name(row): of for row, of in accuracy.items()},
            effect=lambda *values: _worst_pair(dict(zip(accuracy, values, strict=True))),
            least=0.0,
            beside=_joined(*_order(means), say_settings(results, list(rows))),
            unless=unless or _edge_of_order(results, means),
        ),
    ]


def _other_lengths(results: Results, table: Results) -> str:
    """How the transformer and the two best others do at the lengths that the claims are not about."""
    said = []
    for length in (n for n in results.values("length") if n not in table.values("length")):
        of = results.where(length=length)
        means = {row: of.where(learner=row).by_seed() for row in of.values("learner")}
        best = sorted((row for row in means if row != OWN), key=lambda row: -t_interval([*means[row].values()]).mean)
        shown = [
            f"{row_name(row)} {say_share(t_interval([*means[row].values()]))}"
            for row in [OWN, *best[:2]]
            if row in means
        ]
        said.append(f"with {length:,} examples {', '.join(shown)}")
    return "; ".join(said)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


# The order of the rows.


def _order(means: dict[str, float]) -> list[str]:
    """How many pairs of rows are in the paper's order, and which are not."""
    if not means:
        return []
    wrong = misplaced(means)
    behind = {above: [row_name(below) for below in means if (above, below) in wrong] for above in means}
    otherwise = [f"{row_name(above)} is not above {', '.join(below)}" for above, below in behind.items() if below]
    return [check_order({row: (mean, mean, mean) for row, mean in means.items()})[0].rstrip("."), *otherwise]


def _edge_of_order(results: Results, means: dict[str, float]) -> str:
    """Why the order is open: rows that are behind could change it with values beyond those tried.

    These are the rows of all misplaced pairs; where there is none, that of the closest pair.
    """
    behind = dict.fromkeys(above for above, _ in misplaced(means))
    if not behind and (pairs := _pairs(means)):
        behind = dict.fromkeys([min(pairs, key=lambda pair: means[pair[0]] - means[pair[1]])[1]])
    edges = [edge_of_row(results, row) for row in behind]
    return edges[0] if edges and all(edges) else ""


def _worst_pair(found: dict[str, float]) -> float:
    """By how much the worst pair of rows is in the paper's order."""
    return min((found[above] - found[below] for above, below in _pairs(found)), default=float("nan"))


def _pairs(found: dict[str, float]) -> list[tuple[str, str]]:
    return [(above, below) for above in found for below in found if PAPER[above] > PAPER[below]]
