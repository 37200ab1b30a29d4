"""CLOC from scratch: an image network learned online together with the transformer.

Shows: accuracy over the stream with the extractor learned jointly, against the same without context.

Settings (paper): ConvNeXt-T with LayerNorm at 160 × 160, step size 3e-4; pi with 2 blocks, D 1024, S 256, C 2048, 8
streams, step size 0.01/D, on `cloc:METADATA --images FOLDER`. Small: CLOC's photos are not available and `photos` has
no images, so ConvNeXt-T learns from 10,000 small CIFAR-100 images of ten classes (S 32, C 256, 2 streams, D 128): that
it learns from scratch, and no more. Medium: the same with three seeds. It needs `--stream cifar100:PATH`.

Hardware and time: 2 cores; small 15 minutes.

Expected on CLOC: 67 %, more than with frozen ResNet features (59 %).
"""

from __future__ import annotations

from prequential.experiments.experiment import PAPER, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import judge, not_run
from prequential.plots.studies import draw_instantaneous

STREAM = "cifar100"
WAYS = 10  # classes of the small one
BASE = PAPER.changed(extractor="convnext", extractor_learning_rate=3e-4, depth=2)


def trials(request: Request) -> list[Trial]:
    if request.scale != "paper":
        settings = BASE.changed(width=128, chunk_size=32, window=256, num_streams=2, learning_rate=0.06)
        run = {"tasks": 1, "task_length": 10_000, "ways": WAYS}
    else:
        settings = BASE.changed(width=1024, chunk_size=256, window=2048, num_streams=8, learning_rate=0.01)
        run = {}
    return [
        trial
        for name, window in (("with context", settings.window), ("no attention", 0))
        for trial in over_seeds(request, settings.changed(window=window), {"learner": name}, run=run)
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    return {
        "scratch": CaptionedFigure(
            draw_instantaneous(results.groups("learner")),
            "Accuracy with the image network learned online, with and without context.",
        )
    }


def claims(results: Results) -> list[Claim]:
    arms = {
        f"{name} context": results.where(learner=tag).by_seed()
        for name, tag in (("with", "with context"), ("without", "no attention"))
    }
    fixed = "ten classes that never change need no context" if not results.request.of(0, 0, 1) else ""
    cost = "CLOC's photographs are needed, and {} runs of 2e18 to 4e18 multiply-accumulates each"
    found = [
        judge(
            "Learned from scratch, the network and the context work together.",
            paper="In both cases we almost double the archived average accuracy: 67 % (Ours, from scratch).",
            criterion="with context at least 5 points of average accuracy more than without",
            arms=arms,
            effect=lambda with_it, without: with_it - without,
            least=0.05,
            unless=fixed,
        ),
        not_run(
            "From scratch, replay beyond 10 streams hurts.",
            paper="... as exemplified by the decline of predictive performance as a result of increasing E beyond ≈ 10.",
            criterion="E = 16 has at least 1 point of average accuracy less than E = 8",
            why=cost.format("two"),
        ),
        not_run(
            "From scratch, a larger window helps more than on given features.",
            paper="Learned representations can take better advantage of large context windows C.",
            criterion="C = 2048 gains at least 1 point more over C = 512 from scratch than on given features",
            why=cost.format("two"),
        ),
        not_run(
            "2-token from scratch does as well as pi.",
            paper="Both the 2-token and the privilledge-transformer approaches reach unprecedented levels of predictive "
            "performance.",
            criterion="2-token with 10 blocks is within 2 points of pi with 2",
            why=cost.format("two"),
        ),
    ]
    if results.request.of(1, 1, 0):
        found.insert(
            1,
            judge(
                "(Not in the paper.) Learned online from scratch, the image network gets far beyond chance.",
                criterion=f"with and without context more than twice chance, which is {1 / WAYS:.0%}",
                arms=arms,
                effect=lambda with_it, without: min(with_it, without) - 2 / WAYS,
                least=0.0,
            ),
        )
    return found
