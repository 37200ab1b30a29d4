"""Probabilities by label, and the scores of predictions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np


class Probabilities(dict[Hashable, float]):
    """The probability of each label seen so far, and of any other.

    Where the number of classes is given, a label never seen gets an equal part of the remaining mass. Otherwise it gets
    all of that: the probability that a label comes which was never seen.

    >>> p = Probabilities([("cat", 0.5), ("dog", 0.3)], unseen=0.1)
    >>> p["cat"], p["bird"]
    (0.5, 0.1)
    """

    def __init__(self, known: Iterable[tuple[Hashable, float]], unseen: float) -> None:
        super().__init__(known)
        self.unseen = unseen  # the probability of any one label that was never seen

    def __missing__(self, label: Hashable) -> float:
        return self.unseen


@dataclass(frozen=True)
class Charges:
    """The scores of n consecutive examples. Each was fixed before the example's label was used."""

    log_loss: np.ndarray  # (n,) -log p(y_t | x_t, past) in nats
    predicted: np.ndarray  # (n,) class id of the most probable label seen so far, -1 before the first
    correct: np.ndarray  # (n,) whether that was the label
    confidence: np.ndarray  # (n,) the probability given to the predicted label
    log_proba: np.ndarray | None = None  # (n, capacity) the log-probability of each class id
    num_seen: np.ndarray | None = None  # (n,) how many labels had been seen; class ids from there on are free
    num_labels: int = 0  # how many labels have been seen after the last of them


def charge(log_p: np.ndarray, class_ids: np.ndarray, num_seen: np.ndarray, *, open_ended: bool = False) -> Charges:
    """Scores each example, given log-probabilities (n, capacity) and how many labels had been seen before it, (n,).

    The mass on class ids that have no label yet is spread equally over the labels that could still come. So the
    probabilities of all `capacity` labels sum to one, and a label seen for the first time is scored like any other.

    Where the number of labels is open-ended, the capacity is no number of labels that could come. There a label seen for
    the first time costs -log of the whole mass: what it costs to say that the label is new, not which one it is.

    >>> log_p = np.log([[0.5, 0.3, 0.2]])
    >>> charges = charge(log_p, np.array([1]), np.array([1]))  # one label seen before; a second one comes
    >>> float(np.exp(-charges.log_loss[0]).round(2)), int(charges.predicted[0])
    (0.25, 0)
    """
    n, capacity = log_p.shape
    log_p = log_p.astype(np.float64)
    if n == 1 and class_ids[0] < num_seen[0]:
        return _charge_one(log_p, int(class_ids[0]), int(num_seen[0]))
    rows = np.arange(n)
    # a class id may be larger than the capacity was: labels that came between a prediction and its label made it grow
    log_loss = -log_p[rows, np.minimum(class_ids, capacity - 1)]
    for i in np.flatnonzero(class_ids >= num_seen):
        rest = log_p[i, num_seen[i] :]
        spread = 0.0 if open_ended else np.log(capacity - num_seen[i])
        log_loss[i] = -(np.logaddexp.reduce(rest) - spread)
        if open_ended:
            log_loss[i] = max(log_loss[i], 0.0)  # before the first label it is certain that a new one comes
    seen = np.where(np.arange(capacity) < num_seen[:, None], log_p, -np.inf)  # (n, capacity)
    predicted = np.where(num_seen > 0, seen.argmax(1), -1)
    confidence = np.where(num_seen > 0, np.exp(seen[rows, np.maximum(predicted, 0)]), 0.0)
    num_labels = max(int(num_seen[-1]), int(class_ids.max()) + 1)
    return Charges(log_loss, predicted, predicted == class_ids, confidence, log_p, num_seen, num_labels)


def _charge_one(log_p: np.ndarray, class_id: int, num_seen: int) -> Charges:
    """`charge` for one example with a label that was seen before: the usual case where they come one by one."""
    row = log_p[0]
    predicted = int(row[:num_seen].argmax())
    return Charges(
        -row[class_id : class_id + 1],
        np.array([predicted]),
        np.array([predicted == class_id]),
        np.exp(row[predicted : predicted + 1]),
        log_p,
        np.array([num_seen]),
        num_seen,
    )
