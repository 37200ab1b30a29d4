"""Metrics of one's own: updated before the label is learnt, with nothing left out, and there again after a resume."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from river import metrics as river_metrics

from prequential import ArrayStream, evaluate
from prequential.baselines import Kalman, Majority, OracleRow
from prequential.errors import BadInput, BadSetting
from prequential.evaluation.metric_state import encode
from prequential.evaluation.metrics import Metrics, make_metric
from prequential.evaluation.records import RecordWriter
from prequential.evaluation.scores import Scores
from prequential.trust import Untrusted, names_from

RNG = np.random.default_rng(1)
X = RNG.normal(size=(300, 3))
Y = ["up" if x[0] + 0.5 * RNG.normal() > 0 else "down" if x[1] > 0 else "same" for x in X]


def run(*metrics, stop=None, learner=None):
    return evaluate(ArrayStream(X, Y), learner or Kalman(3), metrics=metrics, stop=stop)


def hits(y_true, y_pred):
    return y_true == y_pred


def surprise(y_true, probabilities):
    return -math.log(probabilities[y_true])


surprise.requires_labels = False


def test_they_agree_with_the_scores():
    scores = run(hits, surprise, river_metrics.Accuracy(), river_metrics.CrossEntropy)
    found = scores.metrics.values()
    assert found["hits"] == found["Accuracy"] == scores.accuracy
    assert found["surprise"] == pytest.approx(scores.log_loss, abs=1e-9)
    assert found["CrossEntropy"] == pytest.approx(scores.log_loss, abs=1e-9)
    assert scores.to_dict()["metrics"] == found
    assert "CrossEntropy 0." in repr(scores)


def test_they_change_nothing():
    assert run(hits, surprise, river_metrics.MacroF1()).total_nats == run().total_nats


def test_binary_metrics_of_river_get_probabilities():
    x, y = X[:200], (X[:200, 0] > 0).tolist()
    scores = evaluate(
        ArrayStream(x, y), Kalman([False, True]), metrics=[river_metrics.LogLoss(), river_metrics.ROCAUC()]
    )
    found = scores.metrics.values()
    assert found["LogLoss"] == pytest.approx(scores.log_loss, abs=1e-9)
    assert found["ROCAUC"] > 0.9


def test_predictions_are_those_made_before_the_label_was_known():
    seen = []

    def look(y_true, probabilities):
        seen.append((y_true, dict(probabilities)))
        return 0.0

    look.requires_labels = False
    labels = ["a", "b", "a", "b"]
    evaluate(ArrayStream(np.eye(4), labels), Majority(3), metrics=[look])
    learner = Majority(3)
    for i, (y_true, probabilities) in enumerate(seen):
        expected = learner.predict_proba_one(np.eye(4)[i])
        assert y_true == labels[i]
        assert probabilities == pytest.approx({label: expected[label] for label in {*expected, y_true}})
        learner.learn_one(np.eye(4)[i], labels[i])


def test_the_first_prediction_is_none():
    seen = []
    evaluate(ArrayStream(np.eye(3), ["a", "b", "b"]), Majority(3), metrics=[lambda y, p: seen.append(p) or 0.0])
    assert seen == [None, "a", "a"]


def test_two_of_one_name_are_told_apart():
    assert list(run(hits, hits, stop=10).metrics.values()) == ["hits", "hits-2"]


@pytest.mark.parametrize(
    "metric", [hits, surprise, *(getattr(river_metrics, name) for name in ("MacroF1", "CohenKappa", "CrossEntropy"))]
)
def test_the_state_comes_back_to_the_bit(metric):
    """Through JSON, into a new metric, half way."""

    stream, learner = ArrayStream(X, Y), Kalman(3)
    first = evaluate(stream, learner, metrics=[metric], stop=150)
    state = first.metrics.state_dict()
    assert all(part is not None for part in state["states"].values())
    again = Scores(3, metrics=[metric])
    assert again.metrics.load_state_dict(json.loads(json.dumps(state))) == []
    again.count = 150
    evaluate(stream, learner, start=150, scores=again)
    assert again.metrics.values() == run(metric).metrics.values()


def test_what_is_loaded_belongs_to_the_metric_alone():
    first = run(river_metrics.MacroF1(), stop=100)
    again = Metrics([river_metrics.MacroF1()])
    again.load_state_dict(first.metrics.state_dict())
    before = again.values()
    evaluate(ArrayStream(X, Y), Kalman(3), scores=first)  # more examples
    assert again.values() == before != first.metrics.values()


class Opaque:
    """A metric with a state that is no plain value."""

    def __init__(self):
        self.lines = iter(())
        self.hits = 0

    def update(self, y_true, y_pred):
        self.hits += y_true == y_pred

    def get(self):
        return self.hits


class OpaqueLoss(Opaque):
    requires_labels = False


def records_of(tmp_path, stop):
    writer = RecordWriter(tmp_path / "records")
    learner = Kalman(3)

    def after(position, chunk, charges):
        writer.append(position - len(chunk), chunk.y, charges, learner.labels.known)

    scores = evaluate(ArrayStream(X, Y), learner, metrics=[Opaque(), hits], stop=stop, after=after)
    writer.close()
    return scores, learner


def test_what_cannot_be_stored_is_computed_again_from_the_records(tmp_path):
    scores, learner = records_of(tmp_path, 200)
    state = scores.state_dict()
    assert state["metrics"]["states"]["Opaque"] is None
    again = Scores(3, metrics=[Opaque(), hits])
    again.load_state_dict(state)
    assert again.complete_from_records(tmp_path / "records", learner.labels.known) == []
    assert again.metrics.values() == scores.metrics.values()


def test_without_records_it_says_that_it_begins_anew(tmp_path):
    scores, learner = records_of(tmp_path, 50)
    again = Scores(3, metrics=[Opaque(), hits])
    again.load_state_dict(scores.state_dict())
    (sentence,) = again.complete_from_records(tmp_path / "nothing", learner.labels.known)
    assert "Opaque cannot be computed again" in sentence
    loss = Metrics([OpaqueLoss()])
    unsaved = loss.load_state_dict(Metrics([OpaqueLoss()]).state_dict())
    assert unsaved == ["OpaqueLoss"]
    (sentence,) = loss.recompute(unsaved, [("up", "up")], ["up"])
    assert "needs probabilities" in sentence


def test_a_state_names_no_class():
    state = json.dumps(encode(run(river_metrics.MacroF1(), stop=50).metrics._metrics["MacroF1"]))
    assert "river" not in state
    assert "MacroF1" not in state


@pytest.mark.parametrize(
    ("metric", "error", "sentence"),
    [
        (17, BadSetting, "metric 17 is a int, expected an object with update"),
        (lambda y, p: 1 / 0, BadInput, "example 0: metric <lambda> failed for label .* ZeroDivisionError"),
    ],
)
def test_what_cannot_be_used_gets_a_sentence(metric, error, sentence):
    with pytest.raises(error, match=sentence) as found:
        run(metric)
    assert len(str(found.value)) <= 300


def test_a_learner_without_probabilities_is_named():
    with pytest.raises(BadInput, match="metric surprise needs probabilities, which this learner does not give"):
        run(surprise, learner=OracleRow(3))


def test_scores_to_go_on_with_have_their_metrics():
    with pytest.raises(BadSetting, match="metrics come with new scores"):
        evaluate(ArrayStream(X, Y), Kalman(3), scores=Scores(3), metrics=[hits])


class TestNames:
    def test_by_module_and_name(self):
        assert make_metric("statistics:mean").__name__ == "mean"
        assert make_metric("river.metrics:FBeta(beta=2)").beta == 2

    def test_a_stored_name_needs_trust(self, tmp_path):
        with names_from(tmp_path), pytest.raises(Untrusted, match=r"to import the metric statistics:mean; .* --trust"):
            make_metric("statistics:mean")
        with names_from(tmp_path, trust=True):
            assert make_metric("statistics:mean").__name__ == "mean"

    def test_metrics_of_river_are_data(self, tmp_path):
        with names_from(tmp_path):
            assert isinstance(make_metric("river.metrics:MacroF1"), river_metrics.MacroF1)
            with pytest.raises(Untrusted):
                make_metric("river.metrics:base")

    @pytest.mark.parametrize("spec", ["accuracy", "river.metrics:FBeta(gamma=2)", "nowhere:x", "river.metrics:F7"])
    def test_a_bad_name_gets_a_sentence(self, spec):
        with pytest.raises(BadSetting) as error:
            make_metric(spec)
        assert len(str(error.value)) <= 300
