"""What is taken as examples and labels, and what is refused, in one sentence and before anything changes."""

from __future__ import annotations

import decimal
import fractions
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch

from prequential.baselines import LastLabel, Majority
from prequential.errors import LONGEST, BadInput, PrequentialError, one_line, short
from prequential.learners.gate import as_examples, as_labels
from prequential.learners.transformer.learner import Learner
from prequential.registry import make_learner
from prequential.storage.checkpoint import same_state

SMALL: dict[str, Any] = {"width": 8, "depth": 1, "window": 8, "chunk_size": 4, "num_streams": 2, "num_query_heads": 2}
TWO = [[1.0, 2.0], [3.0, 4.0]]
NA = [[1.0, None], [3.0, 4.0]]


def examples(xs: Any, *, missing: bool = False) -> np.ndarray:
    return as_examples(xs, 7, missing=missing)


@pytest.mark.parametrize(
    "xs",
    [
        np.array(TWO, np.float16),
        np.array(TWO, np.longdouble),
        np.array(TWO, np.int64),
        np.array(TWO, np.uint64),
        np.array(TWO, ">f8"),
        np.array(TWO, object),
        np.asfortranarray(TWO),
        np.matrix(TWO),
        np.ma.MaskedArray(TWO),
        tuple(map(tuple, TWO)),
        [np.array(row) for row in TWO],
        [[decimal.Decimal(1), fractions.Fraction(2)], [3, np.float32(4)]],
        torch.tensor(TWO, requires_grad=True),
        torch.tensor(TWO, dtype=torch.bfloat16),
        torch.quantize_per_tensor(torch.tensor(TWO), 1.0, 0, torch.qint8),
        [torch.tensor(row, requires_grad=True) for row in TWO],
        pd.DataFrame(TWO),
        pd.DataFrame(TWO, dtype="Int64"),
        pl.DataFrame(TWO, orient="row"),
        pa.table({"a": [1.0, 3.0], "b": [2.0, 4.0]}),
        pd.Series([np.array(row) for row in TWO]),
        [pd.Series(row) for row in TWO],
    ],
    ids=lambda xs: f"{type(xs).__name__}-{getattr(xs, 'dtype', '')}",
)
def test_numbers_are_taken_from_whatever_holds_them(xs: Any) -> None:
    x = examples(xs)
    assert type(x) is np.ndarray
    assert x.dtype in (np.float32, np.float64)
    assert x.flags.c_contiguous
    assert x.tolist() == TWO


@pytest.mark.parametrize(
    "xs",
    [
        NA,
        np.array(NA, object),
        np.ma.MaskedArray([[1, 9], [3, 4]], mask=[[0, 1], [0, 0]]),
        [np.ma.MaskedArray([1.0, 9.0], mask=[0, 1]), np.ma.MaskedArray([3.0, 4.0])],
        [[1.0, np.ma.masked], [3.0, 4.0]],
        pd.DataFrame(NA, columns=["a", "b"]),
        pd.DataFrame({"a": pd.array([1, 3], "Int64"), "b": pd.array([None, 4], "Int64")}),
        pl.DataFrame({"a": [1.0, 3.0], "b": [None, 4.0]}),
    ],
)
def test_what_is_masked_or_none_is_missing(xs: Any) -> None:
    x = examples(xs, missing=True)
    assert np.isnan(x[0, 1])
    assert np.nan_to_num(x).tolist() == [[1, 0], [3, 4]]
    with pytest.raises(BadInput, match="example 7: feature 1 is nan, expected a finite number"):
        examples(xs)


def deep(depth: int) -> Any:
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    return value


class Raises:
    def _raise(self, *given: Any, **more: Any) -> Any:
        raise KeyError("x" * 100_000)

    __array__ = __len__ = __iter__ = __hash__ = __eq__ = __repr__ = __str__ = __float__ = __getitem__ = _raise


class Returns:
    def __array__(self, *given: Any, **more: Any) -> Any:
        return "garbage"

    def __repr__(self) -> str:
        return "r" * 100_000


BAD = {
    "ragged": ([[1.0, 2.0], [3.0]], r"example 8: x has shape \(1,\), but the one before has \(2,\)"),
    "other dimensions": ([np.zeros(2), np.zeros((2, 2))], r"example 8: x has shape \(2, 2\)"),
    "ragged tensors": ([torch.zeros(2), torch.zeros(3)], r"example 8: x has shape \(3,\)"),
    "deep": (deep(100_000), "nested more than 4 deep"),
    "a deep row": ([[1.0, 2.0], deep(100_000)], "example 8: x has shape"),
    "scipy": (scipy.sparse.eye(2).tocsr(), "x is sparse"),
    "sparse tensor": (torch.eye(2).to_sparse(), "x is a sparse tensor"),
    "csr tensor": (torch.eye(2).to_sparse_csr(), "x is a sparse tensor"),
    "meta": (torch.empty(2, 2, device="meta"), "cannot be read as numbers"),
    "complex": (np.eye(2) * 1j, "dtype complex128"),
    "complex tensor": (torch.eye(2) * 1j, "dtype torch.complex64"),
    "dates": (np.zeros((2, 2), "M8[s]"), "dtype datetime64"),
    "durations": (np.zeros((2, 2), "m8[s]"), "dtype timedelta64"),
    "text": (np.array([["1", "2"]]), "dtype <U1"),
    "bytes": (np.array([[b"1", b"2"]]), r"dtype \|S1"),
    "text objects": (np.array([["1", 2.0]], object), r"feature 0 is '1' \(str"),
    "a text column": (pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"]}), "feature 1 is 'u'"),
    "a large integer": ([[10**400, 1]], r"feature 0 is beyond 1.8e\+308"),
    "a very large integer": ([[1, 10**5000]], r"feature 1 is beyond 1.8e\+308"),
    "a large long double": (np.array([["1e4000", "1"]]).astype(np.longdouble), "feature 0 is inf"),
    "generator": ((row for row in TWO), r"generator\), expected an array"),
    "iterator": (iter(TWO), r"list_iterator\), expected an array"),
    "generators": ([(v for v in row) for row in TWO], r"generator\), expected an array"),
    "raises": (Raises(), r"x \(Raises\) cannot be read as numbers"),
    "raising": ([[Raises()] * 2] * 2, r"x \(list\) cannot be read as numbers|Raises"),
    "garbage": (Returns(), r"Returns"),
    "None": (None, "x is None"),
    "dict": ({"a": 1}, "x is {'a': 1}"),
    "scalar": (3.0, r"x is 3.0 \(float\)"),
    "too large": (np.broadcast_to(0.0, (1, 10**15)), "8,000,000 GB of memory"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_cannot_be_an_example_is_one_sentence(name: str) -> None:
    xs, words = BAD[name]
    with pytest.raises(BadInput, match=words) as refused:
        examples(xs)
    assert str(refused.value).startswith("example ")
    assert len(str(refused.value)) <= LONGEST


def test_a_list_that_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadInput, match="nested more than 4 deep"):
        examples(loop)


def test_a_long_double_within_float64_loses_its_last_bits_only() -> None:
    assert examples(np.array([["1e300", "-2"]]).astype(np.longdouble)).tolist() == [[1e300, -2.0]]


@pytest.mark.parametrize(
    "ys",
    [
        ["a", "b"],
        ("a", "b"),
        np.array(["a", "b"]),
        np.array(["a", "b"], object),
        pd.Series(["a", "b"], index=[7, 7]),
        pd.Categorical(["a", "b"]),
        pl.Series(["a", "b"]),
        pa.array(["a", "b"]),
        pa.chunked_array([["a"], ["b"]]),
    ],
    ids=lambda ys: type(ys).__name__,
)
def test_labels_are_taken_from_whatever_holds_them(ys: Any) -> None:
    assert as_labels(ys, 2, 0) == ["a", "b"]


@pytest.mark.parametrize(
    ("ys", "words"),
    [
        (None, r"the labels are None \(NoneType\), expected a list of 2"),
        ("ab", r"the labels are 'ab' \(str\)"),
        ({"a": 1, "b": 2}, r"\(dict\)"),
        ({"a", "b"}, r"\(set\)"),
        (iter("ab"), r"\(str_\w*iterator\)"),
        (np.array(3), r"array\(3\) \(ndarray\)"),
        (torch.tensor(3), r"\(Tensor\)"),
        (3, r"3 \(int\)"),
        (["a"], "got 2 inputs and 1 labels"),
        (range(10**12), "got 2 inputs and 3 labels"),
        (np.ma.MaskedArray([1, 2], mask=[0, 1]), "example 8: the label is masked"),
        (Raises(), r"\(Raises\)"),
    ],
)
def test_what_cannot_be_labels_is_one_sentence(ys: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words) as refused:
        as_labels(ys, 2, 7)
    assert len(str(refused.value)) <= LONGEST


@pytest.mark.parametrize("name", ["transformer", "er", "acm", "kalman", "river:naive_bayes.GaussianNB"])
def test_a_first_example_that_is_refused_leaves_no_network(name: str) -> None:
    learner = make_learner(name, 2)
    before = learner.state_dict()
    for xs, ys in (([[1.0, 2.0, 3.0]], None), ([[1.0, 2.0, 3.0]], [[0]]), ([[1.0, 2.0, 3.0]] * 3, ["a", "b", "c"])):
        for call in (learner.learn_many, learner.observe):
            with pytest.raises(BadInput):
                call(xs, ys)  # type: ignore[arg-type]
    assert learner.shape is None
    assert same_state(before, learner.state_dict())
    learner.learn([1.0, 2.0], "a")
    assert learner.shape == (2,)


def test_labels_beyond_the_classes_in_the_middle_change_nothing() -> None:
    learner = Learner(3, **SMALL)
    learner.observe(np.eye(4), [0, 1, 0, 1])
    before = learner.state_dict()
    with pytest.raises(BadInput, match="example 8: label 'd' is new"):
        learner.observe(np.eye(4)[[0, 1, 2, 3, 0, 1]], [0, "c", 1, "c", "d", 1])
    assert same_state(before, learner.state_dict())
    assert learner.labels.known == [0, 1]
    assert learner.observe(np.eye(4), [0, 1, 2, 2]).log_loss.shape == (4,)
    assert learner.position == 8


@pytest.mark.parametrize("label", [Raises(), Returns(), pd.NA, float("nan"), torch.tensor(1), np.ma.masked, 1j])
def test_a_label_that_cannot_be_one_is_named(label: Any) -> None:
    learner = Majority(3)
    with pytest.raises(BadInput, match="example 1: ") as refused:
        learner.learn_many(TWO, ["a", label])
    assert len(str(refused.value)) <= LONGEST
    assert len(learner.labels) == learner.position == 0


def test_messages_are_one_line_that_a_terminal_can_print() -> None:
    error = PrequentialError("a\n\tb\x1b[31m\u2028c\ud800 " + "x" * 100_000 + " end")
    assert str(error).startswith("a b [31m c x")
    assert str(error).endswith("xxx end")
    assert len(str(error)) == LONGEST
    str(error).encode("utf-8")
    assert len(short(Returns())) <= 100
    assert short(Raises()).startswith("<Raises")
    assert short(10**5000) == "<int>"
    assert one_line(Raises()) == "<Raises>"


class TestNone:
    """None is no label; one that an earlier version took as a label stays one."""

    def test_is_refused(self):
        learner = LastLabel(3)
        with pytest.raises(BadInput, match="example 1: the label is None, expected a label"):
            learner.learn_many([[1.0], [2.0]], ["a", None])
        assert learner.position == 0

    def test_of_an_earlier_save_is_kept(self):
        learner, earlier = LastLabel(3), LastLabel(3)
        earlier.learn([1.0], "a")
        state = earlier.state_dict()
        state["labels"]["known"] = ["a", None]
        learner.load_state_dict(state)
        learner.learn([1.0], None)
        assert learner.predict([1.0]) is None
        assert learner.labels.known == ["a", None]

    def test_of_an_earlier_journal_is_learnt_again(self, tmp_path, monkeypatch):
        home = tmp_path / "home"
        with monkeypatch.context() as patch:
            patch.setattr(Learner, "_relearning", True)  # as version 0.1 did
            learner = Learner(3, home=home, width=16, depth=1, window=8)
            learner.learn_many([[1.0], [2.0]], ["a", None])
            learner.close()
        learner = Learner.open(home)
        assert (learner.position, learner.labels.known) == (2, ["a", None])
        learner.close()
