"""Scores by class, kappas, and the majority class and the last label beside every result."""

from __future__ import annotations

import numpy as np
import pytest

from prequential import ArrayStream, LastLabel, Majority, evaluate
from prequential.evaluation.class_scores import OTHER, ClassScores
from prequential.evaluation.pair_counts import PairCounts
from prequential.evaluation.records import RecordWriter
from prequential.evaluation.references import References
from prequential.evaluation.scores import CLASS_NUMBERS, Scores


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


def labels_and_guesses(n, classes, seed=0):
    """Labels that repeat now and then, and guesses that are often right."""
    random = np.random.default_rng(seed)
    labels = random.zipf(1.3, n) % classes
    repeat = random.random(n) < 0.4
    for i in range(1, n):
        labels[i] = labels[i - 1] if repeat[i] else labels[i]
    guesses = np.where(random.random(n) < 0.6, labels, random.integers(0, classes, n))
    guesses[0] = -1
    return labels, guesses


def test_agrees_with_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    labels, guesses = labels_and_guesses(3000, 9)
    scores = ClassScores()
    scores.update(labels[1:].tolist(), guesses[1:], list(range(9)))
    table = scores.table()
    order = [int(label) for label in table["label"]]
    given = {"labels": order, "zero_division": 0}
    wanted = metrics.precision_recall_fscore_support(labels[1:], guesses[1:], **given)
    for name, values in zip(("precision", "recall", "f1", "support"), wanted, strict=True):
        assert table[name] == pytest.approx(values)
    assert scores.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(labels[1:], guesses[1:]))
    assert scores.macro_f1 == pytest.approx(metrics.f1_score(labels[1:], guesses[1:], average="macro"))
    found = scores.confusion()
    assert found["label"] == [str(label) for label in order]
    assert np.array_equal(found["count"], metrics.confusion_matrix(labels[1:], guesses[1:], labels=order))
    right = float((labels[1:] == guesses[1:]).mean())
    chance = scores.chance_agreement
    assert (right - chance) / (1 - chance) == pytest.approx(metrics.cohen_kappa_score(labels[1:], guesses[1:]))


@pytest.mark.parametrize(("delay", "label_batches"), [(0, 1), (1, 1), (37, 1), (5000, 1), (0, 50), (0, 7)])
def test_references_are_the_learners_of_these_names(delay, label_batches):
    """Causal, also where labels come late: the same as learners that are given labels when they arrive."""
    labels, _ = labels_and_guesses(1000, 12)
    stream = ArrayStream(np.zeros((1000, 1)), labels.tolist())
    for learner, name in ((Majority(12, window=2000), "majority"), (LastLabel(12), "last_label")):
        scores = evaluate(stream, learner, delay=delay, label_batches=label_batches)
        assert scores.references.accuracy(name) == scores.accuracy
        assert scores.references.curve()[name] == pytest.approx(scores.curve()["running_accuracy"])
    # ties before there is a second label aside, the last label has nothing to gain over itself
    assert scores.kappa_temporal == 0


def test_nothing_depends_on_chunks_and_records_tell_the_same(tmp_path):
    labels, guesses = labels_and_guesses(3000, 40)
    known = [f"class {k}" for k in range(40)]
    one, many = Scores(40, delay=9), Scores(40, delay=9)
    writer = RecordWriter(tmp_path)
    from prequential.learners.charges import Charges

    def charges(part):
        n = len(guesses[part])
        return Charges(np.full(n, 0.5), guesses[part], labels[part] == guesses[part], np.full(n, 0.6), num_labels=40)

    texts = [known[k] for k in labels]
    one.update(0, charges(slice(None)), texts, known)
    writer.append(0, texts, charges(slice(None)), known)
    writer.close()
    for start in range(0, 3000, 77):
        part = slice(start, start + 77)
        many.update(start, charges(part), texts[part], known)
        stored = many.state_dict()
        many = Scores(40, delay=9)
        many.load_state_dict(stored)  # as after a kill
    again = Scores.from_records(tmp_path, 40, delay=9)
    assert same(one.state_dict(), many.state_dict())
    assert same(one.state_dict(), again.state_dict())
    assert all(one.to_dict()[name] is not None for name in CLASS_NUMBERS)
    # a checkpoint of an earlier version has none of it
    older = {name: part for name, part in stored.items() if name not in ("by_class", "references")}
    resumed = Scores(40, delay=9)
    resumed.load_state_dict(older)
    assert not resumed.has_classes
    assert resumed.complete_from_records(tmp_path, known) == []
    assert same(resumed.state_dict(), one.state_dict())
    (sentence,) = (lost := Scores(40)).load_state_dict(older) or lost.complete_from_records(tmp_path / "no", known)
    assert "no scores by class" in sentence
    assert "kappa" not in lost.to_dict()


def test_memory_is_bounded_and_the_frequent_pairs_stay():
    counts = PairCounts(limit=100)
    often = np.array([3, 4])
    for start in range(0, 5000, 50):
        counts.add(often, often)
        counts.add(np.arange(start, start + 50) + 10, np.arange(50))
    kept = dict(counts.items())
    assert len(kept) <= 100
    assert kept[3, 3] == kept[4, 4] == 100


def test_top_classes_and_the_rest():
    scores = ClassScores()
    labels = [k for k in range(30) for _ in range(30 - k)]
    scores.update(labels, np.array(labels) // 2, list(range(30)))
    found = scores.confusion(4)
    assert found["label"] == ["0", "1", "2", "3", OTHER]
    assert found["count"].sum() == scores.count
    assert found["count"][:, 0].sum() == 30 + 29  # all that were predicted as 0
    shares = scores.shares(4)
    assert shares["label"][-1] == OTHER
    assert shares["share"].sum(0) == pytest.approx(1)
    assert shares["position"][-1] == scores.count
    assert scores.mistakes(1) == [("1", "0", 29)]
    assert len(scores.table()["label"]) == 30


def test_label_shares_follow_the_stream():
    scores = ClassScores()
    for _ in range(10):
        scores.update(["a"] * 100, np.full(100, -1), [])
    for _ in range(10):
        scores.update(["b"] * 100, np.full(100, -1), [])
    shares = scores.shares()
    assert 32 <= len(shares["position"]) <= 64
    row = shares["share"][shares["label"].index("b")]
    assert row[shares["position"] <= 1000].max() == 0
    assert row[shares["position"] > 1100].min() == 1


def test_references_without_labels_and_with_one():
    assert np.isnan(References().accuracy("majority"))
    one = References(delay=3)
    one.add(np.zeros(2, np.int64))
    assert one.accuracy("last_label") == 0  # none has arrived
