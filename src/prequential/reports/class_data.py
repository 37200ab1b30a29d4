"""What the page shows of classes, as JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np

from prequential.evaluation.scores import Scores
from prequential.reports.rounding import rounded

REFERENCE_POINTS = 200  # of the curves of the majority class and the last label


def class_data(scores: Scores, top: int) -> dict[str, Any]:
    """The most frequent classes with their scores, what they are taken for, and how common they are over time.

    Parameters
    ----------
    scores
        The scores of a run, with its labels.
    top
        How many classes are told apart.
    """
    table, confusion, shares = (
        scores.by_class.table(top),
        scores.by_class.confusion(top),
        scores.by_class.shares(min(top, 8)),
    )
    numbers = {name: rounded(table[name]) for name in ("recall", "precision", "f1")}
    return {
        "many": scores.by_class.num_labels,
        "table": {"label": table["label"], "support": table["support"].tolist(), **numbers},
        "confusion": {"label": confusion["label"], "count": confusion["count"].tolist()},
        "shares": {
            "label": shares["label"],
            "x": shares["position"].tolist(),
            "share": [rounded(row, 3) for row in shares["share"]],
        },
        "references": _references(scores),
    }


def _references(scores: Scores) -> dict[str, Any]:
    """The accuracy of the majority class and of the last label up to some positions."""
    curve = scores.references.curve()
    count = len(curve["position"])
    kept = np.unique(np.round(np.linspace(0, count - 1, min(count, REFERENCE_POINTS))).astype(int))
    return {
        "x": curve["position"][kept].tolist(),
        "majority": rounded(curve["majority"][kept]),
        "lastLabel": rounded(curve["last_label"][kept]),
    }
