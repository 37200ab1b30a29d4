"""Split-EMNIST over the number of streams and the learning rate: without replay there is no learning in context.

Shows: the final average accuracy by the step size, a line for each number of replay streams.

Settings (paper): as `split-emnist`, streams 1, 2, 4, 8, 16 and step sizes 3e-5, 1e-4, 3e-4, 1e-3. Small: 20 tasks of 300 with
streams 1, 4, 8 and step sizes 2e-4, 5e-4, 1e-3. Medium: 100 tasks of 300 with the small networks, streams 1, 2, 4, 8,
16 and step sizes 1e-4, 2e-4, 5e-4, 1e-3, three seeds; of the second and third those at the best step size of the first
are run before the others.

Hardware and time: 2 cores; small 10 minutes a seed, medium three hours of a core with AVX-512, without tier 4.

Expected: with one stream the learner usually does not learn to use its context; more streams help.
"""

from __future__ import annotations

from dataclasses import replace

from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.rate_sweeps import LEAST_RATES, AtBestRate, at_best_rate, edge_of_loser, too_few_rates
from prequential.experiments.split_emnist import IN_CONTEXT, sizes
from prequential.experiments.verdicts import judge
from prequential.plots.studies import draw_lines

STREAM = "emnist"


def trials(request: Request) -> list[Trial]:
    """All values with all step sizes; at medium scale with the first seed."""
    return [trial for trial in _grid(request) if request.scale != "medium" or trial.tags["seed"] == 0]


def trials_after(request: Request, results: Results) -> list[Trial]:
    """At medium scale the other seeds: claims compare at the best step sizes, so those come first."""

    def tier(trial: Trial) -> int:
        best = at_best_rate(results.where(streams=trial.tags["streams"]), "step")
        return 2 if best is not None and len(best.rates) >= LEAST_RATES and best.rate == trial.tags["step"] else 4

    other = [trial for trial in _grid(request) if request.scale == "medium" and trial.tags["seed"] > 0]
    return [replace(trial, tier=tier(trial)) for trial in other]


def _grid(request: Request) -> list[Trial]:
    base, run = sizes(request)
    steps, streams = request.of(
        ((2e-4, 5e-4, 1e-3), (1, 4, 8)),
        ((5e-4, 2e-4, 1e-3, 1e-4), (1, 8, 4, 2, 16)),
        ((1e-4, 3e-4, 1e-3, 3e-5), (1, 8, 4, 2, 16)),
    )
    return [
        trial
        for number in streams
        for i, step in enumerate(steps)
        for trial in over_seeds(
            request,
            base.changed(num_streams=number, learning_rate=step * base.width, extractor_learning_rate=step),
            {"streams": number, "step": step},
            run=run,
            tier=1 if request.small else 1 + i // 3,
        )
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    lines = {}
    for number in sorted(results.values("streams")):
        of = results.where(streams=number)
        name = f"{number} stream{'s' if number > 1 else ''}"
        lines[name] = {step: [o.accuracy for o in of.where(step=step).outcomes] for step in sorted(of.values("step"))}
    return {
        "replay": CaptionedFigure(
            draw_lines(lines, over="step size"), "Average accuracy by step size and number of replay streams."
        )
    }


def claims(results: Results) -> list[Claim]:
    found = {number: at_best_rate(results.where(streams=number), "step") for number in results.values("streams")}
    best: dict[int, AtBestRate] = {number: found[number] for number in sorted(found) if found[number] is not None}  # type: ignore[misc]
    numbers = list(best)
    few = "" if len(numbers) > 1 else "not run: a second number of streams"
    said = "best step sizes " + ", ".join(f"E {number}: {of.rate:g}" for number, of in best.items())
    ends = [numbers[0], numbers[-1]] if numbers else []
    return [
        judge(
            "Without replay the learner does not learn to use its context.",
            paper="Without replay, the model usually does not learn to use in-context information effectively to make "
            "predictions.",
            measure="accuracy over the last ten tasks, at the best step size",
            criterion=f"below {100 * IN_CONTEXT:.0f} % with E = 1, and at least 20 points more with the largest E",
            arms={f"E {number}": best[number].results.by_seed("last_tasks") for number in ends},
            effect=lambda alone, many: min(IN_CONTEXT - alone, many - alone - 0.2),
            least=0.0,
            beside=said,
            unless=few or too_few_rates(best),
        ),
        judge(
            "More streams help.",
            paper="Average accuracy at the end of the sequence for different amount of replay (epochs) and learning-rates.",
            criterion="at its best step size, the largest E has at least 5 points of average accuracy more than E = 1",
            arms={f"E {number}": of.accuracy for number, of in best.items()},
            effect=lambda *values: values[-1] - values[0],
            least=0.05,
            beside=said,
            unless=few or too_few_rates(best) or edge_of_loser(best[ends[0]] if ends else None),
        ),
    ]
