"""Random small streams: the synthetic prior that `prior.py` trains on. No real data is in it.

A stream is rows of 2 to 60 features in the order of time, with labels by a random function of them: a small MLP, a
decision tree, Gaussian clusters, nearest prototypes or a linear map; with drift, sticky labels and label noise. Labels
are class ids in the order of their first appearance, as a learner numbers them.

Shape letters: S rows, F features, K classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ACTIVATIONS = (np.tanh, lambda a: np.maximum(a, 0), np.sin, np.abs, lambda a: a)


class SyntheticStream(NamedTuple):
    """The rows of a stream and their labels."""

    x: np.ndarray  # (S, F) float64, as a user would have them
    y: np.ndarray  # (S,) class ids in the order of first appearance
    num_classes: int  # that there could be; not all need to appear


def random_stream(rng: np.random.Generator, rows: int) -> SyntheticStream:
    """A stream of so many rows, drawn from the prior."""
    features = int(np.exp(rng.uniform(np.log(2), np.log(61))))
    classes = 2 if rng.random() < 0.4 else int(rng.integers(3, 11))
    if rng.random() < 0.25:  # each class has its own inputs
        x, y = _clusters(rng, rows, features, classes)
    else:
        x = _inputs(rng, rows, features)
        y = _labels(rng, x, classes)
    if rng.random() < 0.25:  # runs of one label: the same rows in another order
        order = _sticky_order(rng, y, classes)
        x, y = x[order], y[order]
    x = _columns(rng, x)
    if rng.random() < 0.4:
        wrong = rng.random(rows) < rng.choice([0.02, 0.05, 0.1, 0.2])
        y = np.where(wrong, rng.integers(0, classes, rows), y)
    _, first = np.unique(y, return_index=True)
    ids = np.zeros(classes, dtype=np.int64)
    ids[y[np.sort(first)]] = np.arange(len(first))
    return SyntheticStream(x, ids[y], classes)


def _inputs(rng: np.random.Generator, rows: int, features: int) -> np.ndarray:
    """Rows of hidden causes, mixed linearly: Gaussian or heavy-tailed, independent or autoregressive."""
    causes = int(rng.integers(1, features + 1)) if rng.random() < 0.5 else features
    z = rng.standard_normal((rows, causes))
    if rng.random() < 0.2:
        z = rng.standard_t(3, (rows, causes))
    if rng.random() < 0.3:  # sensors: each has its own memory
        memory = rng.uniform(0.0, 0.98, causes)
        for t in range(1, rows):
            z[t] = memory * z[t - 1] + np.sqrt(1 - memory**2) * z[t]
    if causes == features and rng.random() < 0.5:
        return z
    x = z @ rng.standard_normal((causes, features)) / np.sqrt(causes)
    return np.asarray(x + rng.choice([0.01, 0.1, 0.5]) * rng.standard_normal((rows, features)))


def _labels(rng: np.random.Generator, x: np.ndarray, classes: int) -> np.ndarray:
    """Labels by a random function; where there is drift, by several, each at its time."""
    rows = len(x)
    relevant = rng.permutation(x.shape[1])[: int(rng.integers(1, x.shape[1] + 1))]  # the other features say nothing
    kind = rng.choice(["mlp", "tree", "prototypes", "linear"], p=[0.35, 0.3, 0.15, 0.2])
    function = {"mlp": _mlp, "tree": _tree, "prototypes": _prototypes, "linear": _linear}[str(kind)]
    drift = rng.choice(["none", "abrupt", "gradual", "reoccurring"], p=[0.6, 0.15, 0.15, 0.1])
    concepts = 1 if drift == "none" else int(rng.integers(2, 4))
    scores = [function(rng, x[:, relevant], classes) for _ in range(concepts)]
    bias = rng.standard_normal(classes) * rng.choice([0.0, 0.5, 1.5])  # some classes are rare
    # every class in the same units: otherwise one of many would have all labels
    labels = [((s - s.mean(0)) / (s.std(0) + 1e-6) + bias).argmax(1) for s in scores]
    if drift == "none":
        return np.asarray(labels[0])
    if drift == "reoccurring":
        concept = (np.arange(rows) // max(1, rows // int(rng.integers(3, 8)))) % concepts
    else:
        position = np.arange(rows) / rows * concepts - 0.5
        if drift == "gradual":
            position = position + rng.uniform(-0.5, 0.5, rows) * rng.uniform(0.2, 1.0)
        concept = np.clip(np.round(position), 0, concepts - 1).astype(int)
    return np.asarray(np.stack(labels)[concept, np.arange(rows)])


def _linear(rng: np.random.Generator, x: np.ndarray, classes: int) -> np.ndarray:
    return np.asarray(x @ rng.standard_normal((x.shape[1], classes)))


def _mlp(rng: np.random.Generator, x: np.ndarray, classes: int) -> np.ndarray:
    h = x * rng.uniform(0.5, 2.0)
    for _ in range(int(rng.integers(1, 4))):
        width = int(rng.integers(4, 33))
        activation = ACTIVATIONS[int(rng.integers(len(ACTIVATIONS)))]
        h = activation(h @ rng.standard_normal((h.shape[1], width)) / np.sqrt(h.shape[1]) + rng.standard_normal(width))
    return _linear(rng, h, classes)


def _tree(rng: np.random.Generator, x: np.ndarray, classes: int) -> np.ndarray:
    """The mean of one to five trees, whose splits are at quantiles of single features."""
    scores = np.zeros((len(x), classes))
    for _ in range(int(rng.choice([1, 1, 1, 3, 5]))):
        leaf = np.zeros(len(x), dtype=np.int64)
        depth = int(rng.integers(1, 6))
        for level in range(depth):
            feature = rng.integers(0, x.shape[1], 2**level)
            quantile = rng.integers(len(x) // 5, len(x) - len(x) // 5, 2**level)
            threshold = np.sort(x, 0)[quantile, feature]
            leaf = 2 * leaf + (x[np.arange(len(x)), feature[leaf]] > threshold[leaf])
        scores += rng.standard_normal((2**depth, classes))[leaf]
    return scores


def _prototypes(rng: np.random.Generator, x: np.ndarray, classes: int) -> np.ndarray:
    """Each class has some rows as prototypes and the label of the nearest counts."""
    each = int(rng.integers(1, 5))
    chosen = x[rng.integers(0, len(x), classes * each)]
    distance = ((x[:, None] - chosen[None]) ** 2).sum(-1).reshape(len(x), classes, each)
    return np.asarray(-distance.min(-1))


def _clusters(rng: np.random.Generator, rows: int, features: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian clusters, one to three a class, whose centers may move."""
    each = int(rng.integers(1, 4))
    y = rng.choice(classes, rows, p=rng.dirichlet(np.full(classes, rng.choice([1.0, 5.0, 50.0]))))
    cluster = y * each + rng.integers(0, each, rows)
    spread = rng.uniform(0.3, 3.0) / np.sqrt(features) ** rng.uniform(0.3, 1.0)
    centers = spread * rng.standard_normal((classes * each, features)) * (rng.random(features) < rng.uniform(0.2, 1))
    x = centers[cluster]
    if rng.random() < 0.3:
        speed = spread * rng.standard_normal((classes * each, features)) * rng.uniform(0.2, 1.5)
        x = x + speed[cluster] * (np.arange(rows) / rows)[:, None]
    noise = rng.standard_normal((rows, features))
    if rng.random() < 0.5:
        noise = noise @ rng.standard_normal((features, features)) / np.sqrt(features)
    return x + noise, y


def _sticky_order(rng: np.random.Generator, y: np.ndarray, classes: int) -> np.ndarray:
    """An order of the rows in which labels come in runs, as far as there are rows of each."""
    left = [list(np.flatnonzero(y == label)) for label in range(classes)]
    stay = rng.choice([0.5, 0.8, 0.9, 0.97])
    order: list[int] = []
    label = -1
    for _ in range(len(y)):
        if label < 0 or not left[label] or rng.random() > stay:
            sizes = np.array([len(rows) for rows in left], dtype=float)
            label = int(rng.choice(classes, p=sizes / sizes.sum()))
        order.append(int(left[label].pop(0)))
    return np.array(order)


def _columns(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """The columns as a table has them: skewed, rounded to categories, one-hot, with trends, on scales of their own."""
    rows, features = x.shape
    x = x.copy()
    for i in np.flatnonzero(rng.random(features) < rng.choice([0.0, 0.0, 0.3, 0.8])):
        kind = rng.integers(0, 5)
        if kind == 0:
            x[:, i] = np.exp(np.clip(x[:, i], -4, 4))
        elif kind == 1:  # a category in no order
            codes = rng.permutation(int(rng.integers(2, 10)))
            rank = np.searchsorted(np.sort(rng.standard_normal(len(codes) - 1)), x[:, i] / (x[:, i].std() + 1e-6))
            x[:, i] = codes[rank]
        elif kind == 2:
            x[:, i] = x[:, i] > np.quantile(x[:, i], rng.uniform(0.05, 0.95))
        elif kind == 3:
            x[:, i] = np.round(x[:, i] * rng.uniform(0.5, 4))
        else:
            x[:, i] += np.arange(rows) / rows * rng.standard_normal() * 3
    return np.asarray(x * np.exp(rng.standard_normal(features)) + rng.standard_normal(features))
