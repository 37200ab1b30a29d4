import datetime
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prequential.errors import BadInput, BadSetting
from prequential.labels import MOST_FRACTIONS, Labels, decode, encode, spread_unseen, weigh_unseen, widen

plain = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.dates(), st.datetimes())
labels = st.recursive(plain, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner)), max_leaves=6)


@given(labels)
def test_any_label_survives_json(label):
    back = decode(json.loads(json.dumps(encode(label))))
    assert back == label
    assert type(back) is type(label)


@given(st.lists(labels, max_size=30))
def test_a_unit_once_given_never_moves(sequence):
    table = Labels(30)
    given: dict = {}
    for label in sequence:
        (class_id,) = table.assign([label])
        assert given.setdefault(label, class_id) == class_id
    assert sorted(given.values()) == list(range(len(given)))
    again = Labels(1)
    again.load_state_dict(json.loads(json.dumps(table.state_dict())))
    assert again.known == table.known
    assert again.capacity == 30


def test_numpy_scalars_are_the_labels_they_equal():
    table = Labels(3)
    assert table.assign([np.int64(3), 3, np.str_("a"), "a"]) == [0, 0, 1, 1]
    assert table.known == [3, "a"]
    assert table.class_id(np.int64(3)) == 0
    assert "b" not in table


def test_what_cannot_be_a_label_is_named():
    table = Labels(2)
    with pytest.raises(BadInput, match=r"example 7: label \[1\] is a list, not a hashable value"):
        table.check([0, [1]], first=6)
    with pytest.raises(BadInput, match="example 0: label is nan, which is not equal to itself"):
        table.check([float("nan")])
    with pytest.raises(
        BadInput,
        match=r"example 2: label 'c' is new, but all 2 classes are taken; .* classes=3 or more \(--classes 3 on the",
    ):
        table.check(["a", "b", "c"])
    assert table.known == []


def test_what_cannot_be_saved_is_named():
    class Colour:
        pass

    table = Labels(1)
    table.assign([Colour()])
    with pytest.raises(BadInput, match="of type Colour cannot be kept on disk"):
        table.state_dict()


def test_labels_known_beforehand():
    table = Labels([datetime.date(2026, 1, 1), "b"])
    assert table.capacity == len(table) == 2
    with pytest.raises(BadSetting, match=r"classes \(0\) must be at least 1"):
        Labels([])


class TestAnyNumberOfLabels:
    def test_one_class_id_is_always_free(self):
        table = Labels()
        for count in range(1, 70):
            table.assign([count])
            table.capacity = table.capacity_for(len(table))
            assert len(table) == count < table.capacity <= max(8, 2 * count)

    def test_it_is_in_the_state_and_an_earlier_version_always_had_a_number(self):
        table, other = Labels(), Labels(3)
        table.assign(range(9))
        state = table.state_dict()
        other.load_state_dict(state)
        assert other.classes is None
        del state["open_ended"]
        other.load_state_dict(state)
        assert other.classes == 8

    def test_a_quantity_is_refused_at_once_where_no_number_is_given(self):
        values = [0.25 + i for i in range(MOST_FRACTIONS + 1)]
        table = Labels()
        table.check([0.5, "a", 2.0, *values[:-1]][1:])  # whole numbers and other labels do not count
        with pytest.raises(
            BadInput, match=r"example 27: label 20\.25 is the 21st .* quantity, .* \(--classes"
        ) as refused:
            table.check([*range(20), *values][13:], first=0)
        assert len(str(refused.value)) <= 300
        assert len(table) == 0
        Labels(30).check(values)
        table.assign(values[:-1])
        with pytest.raises(BadInput, match="21st"):
            table.check(values[-1:])
        table.forget(3)
        table.check(values[:-1])


unseen = st.integers(1, 12).flatmap(
    lambda capacity: st.tuples(
        st.just(capacity),
        st.integers(0, capacity),
        st.lists(st.floats(-5, 0), min_size=capacity, max_size=capacity),
    )
)


@given(unseen, st.integers(0, 20))
def test_labels_not_seen_weigh_as_one_however_many_ids_are_free(made, more):
    capacity, seen, scores = made
    free = len(scores[seen:])
    scores[seen:] = [-1.0] * free  # free ones are alike
    log_p = np.array([scores]) - np.logaddexp.reduce(scores)
    num_seen = np.array([seen])
    weighed = weigh_unseen(log_p, num_seen)[0]
    merged = np.array(scores[:seen] + [-1.0] * (free > 0))
    merged -= np.logaddexp.reduce(merged)
    np.testing.assert_allclose(weighed[:seen], merged[:seen], atol=1e-12)
    np.testing.assert_allclose(spread_unseen(merged[None], num_seen, capacity)[0], weighed, atol=1e-12)
    if free:
        wide = widen(weighed[None], num_seen, capacity + more)[0]
        np.testing.assert_allclose(wide[:seen], weighed[:seen], atol=1e-12)
        assert np.logaddexp.reduce(wide[seen:]) == pytest.approx(np.logaddexp.reduce(weighed[seen:]))
        assert len(set(wide[seen:].round(9))) == 1
