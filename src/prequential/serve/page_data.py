"""What the page shows of one tenant, made in its worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prequential.serve.tenant_learner import TenantLearner

MOST_CLASSES = 50  # in the page's table, the most frequent ones


def recent_predictions(tenant: TenantLearner) -> list[dict[str, Any]]:
    """The latest predictions and their fate, newest first: waiting, right, wrong or expired.

    The scoreboard is saved now and then. What came after its last save is known by the learner, which loses nothing.
    """
    asked, labels = tenant.learner.asked, tenant.learner.labels
    found = []
    for entry in reversed(tenant.scores.recent.values()):
        if entry["fate"] == "waiting" and entry["id"] not in asked.pending:
            class_id = asked.class_id(entry["id"])
            if class_id is not None:
                label = labels[class_id]
                entry = {**entry, "label": label, "fate": "right" if label == entry["predicted"] else "wrong"}
            elif asked.has_expired(entry["id"]):
                entry = {**entry, "fate": "expired"}
        found.append(entry)
    return found


def page_content(tenant: TenantLearner) -> dict[str, Any]:
    """Figures, curves and recent predictions in one reply. Labels are texts, as in the probabilities of a reply."""
    name = tenant.names.name

    def shown(entry: dict[str, Any]) -> dict[str, Any]:
        texts = {key: name(entry[key]) for key in ("predicted", "label") if entry.get(key) is not None}
        return {**entry, **texts}

    figures = tenant.figures()
    counts = figures.pop("counts")
    recall = figures.pop("recall")
    most = sorted(counts, key=lambda text: -counts[text])
    return {
        "figures": figures,
        "classes": [{"label": text, "count": counts[text], "recall": recall[text]} for text in most[:MOST_CLASSES]],
        "more_classes": max(0, len(most) - MOST_CLASSES),
        "state": {**tenant.state(), "bytes": tenant.checks.size()},
        "series": tenant.scores.series(),
        "recent": [shown(entry) for entry in recent_predictions(tenant)],
    }
