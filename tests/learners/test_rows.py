"""Learners that are given rows with named fields."""

import copy
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pytest

from prequential import Kalman, Learner, Majority, Schema, TableStream, evaluate, open_stream
from prequential.errors import BadInput, BadSetting, ColumnWarning
from prequential.learners.base import OnlineLearner
from prequential.storage.checkpoint import same_state

SMALL = {"width": 8, "depth": 1, "window": 8, "chunk_size": 4, "num_streams": 2, "num_query_heads": 2}
ROWS = [
    {"amount": t * 0.5 if t % 5 else None, "shop": "ab"[t % 2], "at": f"2024-01-{t % 28 + 1:02}"} for t in range(30)
]
LABELS = ["fraud" if t % 2 else "fine" for t in range(30)]


def learned(**options):
    learner = Learner(3, **SMALL, **options)
    for row, label in zip(ROWS, LABELS, strict=True):
        learner.learn(row, label)
    return learner


def test_from_the_first_row_on():
    learner = Learner(3, **SMALL)
    assert learner.predict(ROWS[0]) is None  # asking decides nothing
    assert learner.schema is None
    learner = learned()
    assert [column.kind for column in learner.schema.columns] == ["any", "category", "time"]  # amount was missing first
    assert learner.predict({"shop": "b", "at": "2024-02-01"}) == "fraud"
    assert learner.predict({"shop": "a"}) == "fine"
    many = Learner(3, **SMALL)
    many.schema = learner.schema
    charges = many.observe(ROWS, LABELS)
    assert charges.correct[-10:].all()
    np.testing.assert_allclose(
        many.predict_log_proba_many(ROWS[:3]), learner.predict_log_proba_many(pa.Table.from_pylist(ROWS[:3])), atol=1e-4
    )


def test_it_is_saved_with_the_learner(tmp_path):
    learner = learned()
    learner.save(tmp_path / "learner")
    for other in (Learner.load(tmp_path / "learner"), copy.deepcopy(learner), learner.snapshot()):
        assert other.schema == learner.schema
        assert other.predict_proba(ROWS[3]) == learner.predict_proba(ROWS[3])


def test_a_home_keeps_it(tmp_path):
    home = tmp_path / "home"
    learner = learned(home=home)
    expected = learner.predict_proba(ROWS[3])
    learner.close()
    again = Learner.open(home)  # without a save: the schema is in learner.json, the numbers in the journal
    assert again.schema == learner.schema
    assert again.predict_proba(ROWS[3]) == expected
    again.close()


def test_a_killed_learner_goes_on_to_the_bit(tmp_path):
    learner = Learner(3, home=tmp_path / "home", **SMALL)
    for t in range(len(ROWS)):
        if t in (1, 7):  # as a process that is killed here leaves it
            shutil.copytree(tmp_path / "home", tmp_path / f"after {t}")
        learner.learn(ROWS[t], LABELS[t])
    for t in (1, 7):
        again = Learner.open(tmp_path / f"after {t}")
        assert again.position == t
        for row, label in zip(ROWS[t:], LABELS[t:], strict=True):
            again.learn(row, label)
        assert again.predict_proba(ROWS[0]) == learner.predict_proba(ROWS[0])


def test_a_refused_first_row_decides_nothing(tmp_path):
    learner = Learner(1, home=tmp_path / "home", **SMALL)
    before = learner.state_dict()
    with pytest.raises(BadInput, match="label"):
        learner.learn({"a": 1.0}, None)
    with pytest.raises(BadInput):
        learner.learn_many([{"a": 1.0}, {"a": 2.0}], ["x", "a second label"])
    assert learner.schema is None
    assert same_state(before, learner.state_dict())
    learner.learn({"b": "word"}, "x")
    assert [column.name for column in learner.schema.columns] == ["b"]


def test_bad_rows_change_nothing():
    learner = learned()
    before = learner.state_dict()
    for row, what in (
        ({"amount": [1]}, "'amount'"),
        ({"at": "soon"}, "'at' is 'soon', expected a date"),
        ({"z": 1}, "'z'"),
    ):
        with pytest.raises(BadInput, match=what):
            learner.learn(row, "fine")
    with pytest.raises(BadInput, match=r"example 31: column 'at' is 'soon'"):
        learner.learn_many([ROWS[0], {"at": "soon"}], LABELS[:2])
    assert same_state(before, learner.state_dict())


def test_fields_come_and_go():
    learner = learned()
    with pytest.warns(ColumnWarning, match="example 30: field 'risk' not known so far"):
        learner.learn({**ROWS[0], "risk": 0.9}, "fine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(10):
            learner.learn({"shop": "a", "risk": t % 2}, "fine")
    strict = Learner(3, schema=learner.schema.changed(strict=True), **SMALL)
    with pytest.raises(BadInput, match="field 'risk' is not known"):
        strict.learn({**ROWS[0], "risk": 0.9}, "fine")
    assert strict.position == 0


def frame(n=120):
    t = np.arange(n)
    amount = pa.array(np.where(t % 6 == 2, np.nan, t % 4), from_pandas=False)
    return pa.table({"id": t, "amount": amount, "shop": [f"s{i % 3}" for i in t], "label": [f"l{i % 3}" for i in t]})


@pytest.mark.filterwarnings("ignore::prequential.errors.ColumnWarning")
@pytest.mark.parametrize("kind", [Learner, Kalman, Majority])
def test_over_a_table_and_then_row_by_row(kind):
    """Missing values of tables need no setting, and rows are read as the table was."""
    learner = kind(6, **(SMALL if kind is Learner else {}))
    scores = evaluate(TableStream(frame()), learner)
    assert scores.count == 120
    row = frame().slice(7, 1)
    expected = learner.predict_log_proba_many(TableStream(frame()).read(7, 8).x)
    for one in (row.to_pylist()[0], row):
        assert learner.predict_one(one) == learner.labels.known[int(expected[0, :3].argmax())]
    np.testing.assert_array_equal(learner.predict_log_proba_many(row), expected)
    learner.learn({"amount": None, "shop": "s1"}, "l1")
    assert learner.position == 121


@pytest.mark.filterwarnings("ignore::prequential.errors.ColumnWarning")
def test_another_table(tmp_path):
    learner = Learner(6, **SMALL)
    evaluate(TableStream(frame()), learner)
    other = pa.table({"shop": ["s1", "s2"], "label": ["l1", "l2"]})
    with pytest.raises(BadInput, match=r"16 features, but the learner reads rows as \d+; TableStream\(..., schema="):
        evaluate(TableStream(other), learner)
    assert evaluate(TableStream(other, schema=learner.schema), learner).count == 2
    with pytest.warns(ColumnWarning, match="color not known to the schema, and not used"):
        TableStream(other.append_column("color", pa.array(["red", "blue"])), schema=learner.schema)
    with pytest.raises(BadSetting, match="schema makes 16 features, but the learner has learned x of shape"):
        learner.schema = TableStream(other).schema


def test_vectors_and_rows_do_not_mix_by_accident():
    learner = Learner(3, **SMALL)
    learner.learn([1.0, 2.0], "a")
    with pytest.raises(BadInput, match=r"a row with the fields \['a', 'b'\], expected x of shape \(2,\)"):
        learner.learn({"a": 1.0, "b": 2.0}, "a")
    learner.schema = Schema.from_rows([{"a": 1.0, "b": 2.0}], extra=0)
    learner.learn({"b": 2.0}, "a")
    learner.learn([1.0, float("nan")], "a")
    assert learner.position == 3


def test_frames_of_numbers_stay_arrays():
    """Without a schema, a frame of numbers is what NumPy makes of it, as it always was."""
    pandas = pytest.importorskip("pandas")
    numbers = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0, 1, 0]})
    one, two = Majority(3), Majority(3)
    one.learn_many(numbers, [0, 1, 0])
    two.learn_many(numbers.to_numpy(), [0, 1, 0])
    assert same_state(one.state_dict(), two.state_dict())
    assert one.schema is None
    mixed = Majority(3)
    mixed.learn_many(numbers.assign(c=["x", "y", "x"]), [0, 1, 0])
    assert [column.kind for column in mixed.schema.columns] == ["number", "number", "category"]
    with pytest.raises(BadInput, match="a data frame of 3 rows, expected one row"):
        mixed.predict(numbers.assign(c="x"))


def test_a_learner_that_takes_no_missing_values_names_the_column():
    class Plain(OnlineLearner):
        def __init__(self, classes):
            super().__init__(classes)

        def _predict(self, x):
            return np.full((len(x), self.labels.capacity), -np.log(self.labels.capacity))

        def _learn(self, x, class_ids):
            pass

        def _state_dict(self):
            return {}

        def _load_state_dict(self, state):
            pass

    learner = Plain(3)
    learner.schema = Schema.from_rows([{"amount": 1.0, "b": 2.0}])
    with pytest.raises(BadInput, match=r"feature 0 \('amount'\) is nan, expected a finite number; missing=True"):
        learner.learn({"b": 1.0}, 0)


def test_a_file_goes_on_live(tmp_path):
    lines = ["when,shop,label", *(f"2024-01-{t % 28 + 1:02},{'ab'[t % 2]},{t % 2}" for t in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    learner = Learner(2, **SMALL)
    evaluate(open_stream(tmp_path / "t.csv"), learner)
    assert learner.predict({"when": "2024-03-01", "shop": "b", "label": "?"}) == 1


def test_any_iterable_of_rows():
    learner = Majority(3)
    assert evaluate(zip(iter(ROWS), LABELS, strict=True), learner).count == len(ROWS)
    assert [column.name for column in learner.schema.columns] == ["amount", "shop", "at"]
    assert learner.predict({"shop": "a"}) in LABELS
