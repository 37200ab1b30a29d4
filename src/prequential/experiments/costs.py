"""What a trial costs in multiply-accumulates, and in time on a GPU as fast as the paper's."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from prequential.experiments.cloc_common import PAPER_EXAMPLES
from prequential.experiments.experiment import Request, Trial
from prequential.models.make import make_model
from prequential.registry import TRANSFORMERS
from prequential.settings import Settings
from prequential.specs import parse_call

# The shape of an example and the number of labels of the streams that experiments run on by default.
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "emnist": ((28, 28, 1), 10),
    "cifar100": ((32, 32, 3), 10),
    "photos": ((128,), 713),
    "digits": ((64,), 10),
    "geo-images": ((32, 32, 3), 434),
}
FEATURES = {"geo-images": 1280}  # of an image by efficientnet-lite0, where a trial runs on given features
CLOC_FEATURES, CLOC_IMAGES = ((2048,), 713), ((160, 160, 3), 713)
# "between 10^14 and 10^17 FLOPs to run CLOC. This corresponds to walltimes between 15 minutes and 12 hours on a single
# GPU", where the paper counts multiply-accumulates: 10^17 in 12 hours.
GPU_MACS_PER_SECOND = 1e17 / (12 * 3600)
# settings that a forward pass does not depend on
OF_STEPS = ("freeze_at", "learning_rate", "weight_decay", "lr_decay", "lr_decay_examples", "num_streams")


def macs_of(trial: Trial, request: Request) -> float | None:
    """Multiply-accumulates of a trial, by the counter of the models; None for learners that are no transformers.

    >>> from prequential.experiments import find_experiment
    >>> request = Request(scale="paper", seeds=1, stream="photos")
    >>> base = find_experiment("cloc-features").trials(request)[0]
    >>> f"{macs_of(base, request):.1e}"  # the paper: between 10^14 and 10^17
    '4.5e+16'
    """
    name, options = parse_call(trial.learner)
    if name not in TRANSFORMERS:
        return None
    settings = trial.settings.changed(**TRANSFORMERS[name], **options, seed=0)
    shape, classes = _shape(request, settings)
    usual = Settings()
    forward = _forward(settings.changed(**{name: getattr(usual, name) for name in OF_STEPS}), shape, classes)
    length = length_of(trial, request)
    learned = length if settings.freeze_at is None else min(settings.freeze_at, length)
    return forward * (3 * settings.num_streams * learned + (length - learned))


def length_of(trial: Trial, request: Request) -> int:
    """How many examples a trial has."""
    run: dict[str, Any] = {**trial.run, **request.reading}
    if run.get("tasks") or run.get("task_length"):
        length = int(run.get("tasks") or 100) * int(
            run.get("task_length") or (200 if request.kind == "digits" else 1000)
        )
        return min(length, run.get("examples") or length)
    return int(run.get("examples") or PAPER_EXAMPLES)


def gpu_hours(macs: float) -> float:
    """Hours on one GPU that does as many multiply-accumulates a second as the paper's."""
    return macs / GPU_MACS_PER_SECOND / 3600


def _shape(request: Request, settings: Settings) -> tuple[tuple[int, ...], int]:
    kind = request.kind
    if request.scale == "paper" and settings.extractor == "convnext":
        return CLOC_IMAGES
    if kind == "photos" and request.scale == "paper":
        return CLOC_FEATURES
    if settings.extractor in ("none", "auto") and kind in FEATURES:
        return (FEATURES[kind],), SHAPES[kind][1]
    return SHAPES.get(kind, CLOC_FEATURES)


@cache
def _forward(settings: Settings, shape: tuple[int, ...], classes: int) -> float:
    """Multiply-accumulates of a forward pass of one example; the model is made without its weights."""
    extractor = settings.extractor
    if extractor == "auto":
        extractor = "none" if len(shape) == 1 else "convnet"
    with torch.device("meta"):
        model = make_model(settings, features=shape[0], extractor=extractor, shape=shape, num_classes=classes)
    return model.macs_per_example() + model.extractor_macs()
