"""Split-EMNIST over the number of streams and the learning rate: without replay there is no learning in context.

Shows: the final average accuracy by the step size, a line for each number of replay streams.

Settings (paper): as `split-emnist`, streams 1, 2, 4, 8, 16 and step sizes 3e-5, 1e-4, 3e-4. Small: 20 tasks of 300 with
streams 1, 4, 8 and step sizes 2e-4, 5e-4, 1e-3.

Hardware and time: 2 cores; small 10 minutes a seed.

Expected: with one stream the learner usually does not learn to use its context; more streams help.
"""

from __future__ import annotations

from prequential.experiments.experiment import ON_IMAGES, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.split_emnist import SMALL
from prequential.plots.studies import draw_lines

STREAM = "emnist"


def trials(request: Request) -> list[Trial]:
    tasks, length = (20, 300) if request.small else (100, 1000)
    base = SMALL if request.small else ON_IMAGES
    streams, steps = ((1, 4, 8), (2e-4, 5e-4, 1e-3)) if request.small else ((1, 2, 4, 8, 16), (3e-5, 1e-4, 3e-4))
    return [
        trial
        for number in streams
        for step in steps
        for trial in over_seeds(
            request,
            base.changed(num_streams=number, learning_rate=step * base.width, extractor_learning_rate=step),
            {"streams": number, "step": step},
            run={"tasks": tasks, "task_length": length},
        )
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    lines = {
        f"{number} stream{'s' if number > 1 else ''}": {
            step: [o.accuracy for o in results.where(streams=number, step=step).outcomes]
            for step in results.values("step")
        }
        for number in results.values("streams")
    }
    return {
        "replay": CaptionedFigure(
            draw_lines(lines, over="step size"), "Average accuracy by step size and number of replay streams."
        )
    }


def claims(results: Results) -> list[Claim]:
    best = {
        number: results.where(streams=number).best("streams", "step")[number] for number in results.values("streams")
    }
    says = ", ".join(f"{number} streams {mean:.1%} (step size {step:g})" for number, (step, mean) in best.items())
    numbers = sorted(best)
    alone = results.where(streams=numbers[0], step=best[numbers[0]][0]).tasks("last_tasks")
    many = results.where(streams=numbers[-1], step=best[numbers[-1]][0]).tasks("last_tasks")
    return [
        Claim(
            "Without replay the learner does not learn to use its context.",
            f"over the last ten tasks {alone:.1%} without replay, {many:.1%} with {numbers[-1]} streams",
            alone < 0.35 and many > alone + 0.2,
        ),
        Claim("More streams help.", f"best average of each: {says}", best[numbers[-1]][1] > best[numbers[0]][1]),
    ]
