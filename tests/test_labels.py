import datetime
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prequential.errors import BadInput, BadSetting
from prequential.labels import Labels, decode, encode

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
