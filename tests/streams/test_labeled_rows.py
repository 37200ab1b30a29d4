"""Rows that hold their label: data sets of Hugging Face, batches of dicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from prequential import Majority, evaluate
from prequential.errors import BadInput
from prequential.streams.convert import as_stream

ROWS = [{"amount": float(i), "shop": "ab"[i % 2], "label": i % 3} for i in range(30)]


def read(source, **options):
    stream = as_stream(source, **options)
    return stream.read(0, stream.available(1000))


def test_dicts_of_mixed_fields():
    chunk = read(iter(ROWS))
    assert chunk.y == [i % 3 for i in range(30)]
    assert chunk.x[:, 0].tolist() == [float(i) for i in range(30)]
    assert read(ROWS, label="shop").y == ["a", "b"] * 15


def test_data_sets_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(ROWS)
    expected = read(ROWS)
    for source in (made, made.to_iterable_dataset(), made.with_format("torch")):
        chunk = read(source, label="label")
        assert chunk.y == expected.y
        np.testing.assert_array_equal(chunk.x, expected.x)
    assert evaluate(made.to_iterable_dataset(), Majority()).count == 30
    with pytest.raises(BadInput, match=r"DatasetDict of \['train'\], expected one of them"):
        as_stream(datasets.DatasetDict(train=made))


def test_batches_of_dicts():
    items = [{"x": torch.full((2, 2), i), "y": torch.tensor(i % 2)} for i in range(10)]
    chunk = read(DataLoader(items, batch_size=4))
    assert chunk.x.shape == (10, 2, 2)
    assert chunk.x[7].max() == 7
    assert chunk.y == [0, 1] * 5


def test_what_is_wrong_with_a_row_is_said():
    with pytest.raises(BadInput, match=r"example 0: the fields are \['a'\], expected 'b', the label, among them"):
        read([{"a": 1}], label="b")
    with pytest.raises(BadInput, match="example 1: got a tuple, expected a dict"):
        read([{"a": 1, "y": 0}, (1, 0)])
    with pytest.raises(BadInput, match=r"label \('b'\) names a column, but the stream is a list and has none"):
        read([([1.0], 0)], label="b")
