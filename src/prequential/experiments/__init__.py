"""The paper's experiments, each one file: what it runs, what it draws, and which claims it puts to the test."""

from __future__ import annotations

import importlib
from types import ModuleType

from prequential.errors import BadSetting
from prequential.specs import nearest

NAMES = (
    "split-emnist",
    "split-emnist-lengths",
    "split-emnist-mixed",
    "split-emnist-replay",
    "split-emnist-two-token",
    "split-cifar",
    "cloc-features",
    "cloc-table",
    "cloc-stopping",
    "cloc-window",
    "cloc-streams",
    "cloc-width",
    "cloc-chunk",
    "cloc-two-token",
    "cloc-scratch",
    "cloc-oracle",
    "cloc-pareto",
    "cloc-base",
    "description-length",
)


def find_experiment(name: str) -> ModuleType:
    """The file of an experiment.

    >>> find_experiment("split-emnist").__doc__.splitlines()[0]
    'Split-EMNIST: a transformer that struggles at first becomes a few-shot learner.'
    """
    if name not in NAMES:
        raise BadSetting(f"unknown experiment {name!r}{nearest(name, NAMES)}")
    return importlib.import_module(f"prequential.experiments.{name.replace('-', '_')}")
