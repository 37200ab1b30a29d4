"""CLOC on given features: the transformer against itself without images, without context, and an oracle of labels.

Shows: accuracy over the stream, and of the latest examples, of the pi-transformer, of no-image (labels alone),
no-attention (C = 0: the image alone), of the oracle that is right where the label is among the last 100, and of the
transformer with a learning rate that falls, and with queries that start as keys (not in the paper).

Settings (paper): 4 blocks, D 1024, C 512, S 256, 8 streams, step size 0.03/D, ResNet-50 features; the falling rate is a
cosine over the stream to a tenth. Small and medium: the first 500,000 of `photos`, 2 blocks, D 128, C 256, S 64, 4
streams, step size 0.18/D; medium with three seeds.

Queries that start as keys were seen on the first 200,000 examples of seed 0 before their criterion was written.

Hardware and time: 2 cores; small 15 minutes, medium 40 minutes; the transformer begins to use its context at about
80,000 examples.

Expected on CLOC: 59 % against 18 % without images and 19 % without context.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import (
    PAPER_EXAMPLES,
    STREAM,
    base,
    beside,
    examples,
    figure_of_latest,
    too_short,
)
from prequential.experiments.experiment import CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import judge, not_run
from prequential.plots.comparison import draw_accuracies

__all__ = ["STREAM", "claims", "figures", "trials"]
LEARNERS = {
    "transformer": "transformer",
    "no image": "no-image",
    "no attention": "no-attention",
    "oracle(100)": "oracle(window=100)",
    "last label": "last-label",
}
FALLING = "falling rate"
SIMILAR = "queries as keys"


def trials(request: Request) -> list[Trial]:
    run = examples(request, 25)
    found = [
        trial
        for name, learner in LEARNERS.items()
        for trial in over_seeds(request, base(request), {"learner": name}, learner=learner, run=run)
    ]
    over = run.get("examples", PAPER_EXAMPLES)
    falling = base(request).changed(lr_decay="cosine", lr_decay_examples=over)
    return [
        *found,
        *over_seeds(request, falling, {"learner": FALLING}, run=run, tier=2),
        *over_seeds(request, base(request).changed(query_init="key"), {"learner": SIMILAR}, run=run, tier=2),
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    groups = results.groups("learner")
    found = {
        "curves": CaptionedFigure(
            draw_accuracies({results.request.stream: groups}),
            "Average accuracy so far: with all, without images, without context, and of two that know labels alone.",
        )
    }
    learners = {name: of for name, of in groups.items() if not name.startswith("oracle")}
    return {**found, "latest": figure_of_latest(learners)} if learners else found


def claims(results: Results) -> list[Claim]:
    own, context, image, falling, similar = (
        results.where(learner=name) for name in ("transformer", "no attention", "no image", FALLING, SIMILAR)
    )

    def half(says: str, paper: str, other: Results, name: str) -> Claim:
        arms = {"transformer": own, name: other}
        return judge(
            says,
            paper=paper,
            criterion=f"its average accuracy {name} is below half of that with it (on CLOC a third)",
            arms={arm: of.by_seed() for arm, of in arms.items()},
            effect=lambda with_it, without: with_it / 2 - without,
            least=0.0,
            beside=beside(arms),
            unless=too_short(results),
        )

    def gain(says: str, paper: str, how: str, other: Results, names: tuple[str, str]) -> Claim:
        arms = dict(zip(names, (own, other), strict=True))
        return judge(
            says,
            paper=paper,
            criterion=f"{how} at least 2 points of average accuracy more than {names[0]}",
            arms={arm: of.by_seed() for arm, of in arms.items()},
            effect=lambda plain, changed: changed - plain,
            least=0.02,
            beside=beside(arms),
            unless=too_short(results),
        )

    return [
        half(
            "Without context (C = 0) it collapses.",
            "We train a model with C = 0 ... We obtain an average accuracy of only about 19 %.",
            context,
            "without context",
        ),
        half("The labels alone are not enough.", "Ours (no-image) 18 %, Ours 59 %.", image, "without images"),
        gain(
            "A learning rate that falls helps much.",
            "Much larger gains can be obtained by switching to a different feature extractor, or adding learning-rate "
            "decay.",
            "a cosine to a tenth gives",
            falling,
            ("the constant rate", "falling"),
        ),
        gain(
            "(Not in the paper.) Queries that start as keys use the context sooner.",
            "",
            "queries that start with the weights of the keys give",
            similar,
            ("random ones", "queries as keys"),
        ),
        not_run(
            "Better features help much.",
            paper="Ours (Superv. ResNet) 59 %, Ours (MAE ViT-L) 70 %.",
            criterion="features of MAE ViT-L give at least 2 points more than those of a supervised ResNet-50",
            why="CLOC's photographs (about 2 TB) and both networks are needed; `photos` has one kind of features",
        ),
    ]
