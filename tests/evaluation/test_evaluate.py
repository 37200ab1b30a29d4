"""The prequential loop over every kind of source: the same examples give the same losses."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from prequential import ArrayStream, Learner, evaluate
from prequential.baselines import Majority
from prequential.errors import BadInput

N = 130
X = np.random.default_rng(0).normal(size=(N, 3)).round(3)
Y = (X[:, 0] + X[:, 1] > 0).astype(int) + 2 * (X[:, 2] > 1)


def losses(source, **options):
    """The loss of every example of a learner that replays what it has read."""
    learner = Learner(4, width=16, depth=1, num_streams=2, chunk_size=10, window=20, seed=3, missing=True)
    found = []
    evaluate(source, learner, after=lambda position, chunk, charges: found.extend(charges.log_loss), **options)
    return found


def quick(classes):
    """A learner that costs nothing and takes ten examples at a time."""
    learner = Majority(classes)
    learner.stride = 10
    return learner


class Examples(IterableDataset):
    def __iter__(self):
        return zip(torch.tensor(X), torch.tensor(Y), strict=True)


FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "up": Y})
SOURCES = {
    "generator": lambda: ((x, int(y)) for x, y in zip(X, Y, strict=True)),
    "list": lambda: list(zip(X.tolist(), Y.tolist(), strict=True)),
    "stream read one by one": lambda: iter(ArrayStream(X, Y)),
    "DataLoader": lambda: DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), batch_size=32),
    "DataLoader without batches": lambda: DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), batch_size=None),
    "IterableDataset": Examples,
    "DataLoader of an IterableDataset": lambda: DataLoader(Examples(), batch_size=7),
    "map-style data set": lambda: TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "dicts": lambda: (({"a": x[0], "b": x[1], "c": x[2]}, y) for x, y in zip(X, Y, strict=True)),
}


@pytest.fixture(scope="module")
def expected():
    return losses(ArrayStream(X, Y))


@pytest.mark.parametrize("kind", SOURCES)
def test_the_losses_are_those_of_arrays(kind, expected):
    assert losses(SOURCES[kind]()) == expected


def test_a_data_frame_is_read_by_its_label(expected):
    learner_sees = losses(FRAME, label="up")
    assert len(learner_sees) == N
    assert losses(pl.from_pandas(FRAME)) == learner_sees  # the last column is the label
    assert losses(FRAME[["up", "a", "b", "c"]], label="up") == learner_sees


def test_a_name_or_path_is_opened(tmp_path):
    FRAME.to_csv(tmp_path / "prices.csv", index=False)
    assert evaluate(tmp_path / "prices.csv", Majority(4), label="up").count == N
    assert evaluate("digits(tasks=1, task_length=50)", Majority(10)).count == 50


def test_no_more_is_taken_than_asked_for():
    source = ((x, int(y)) for x, y in zip(X, Y, strict=True))
    assert evaluate(source, Majority(4), start=10, stop=40).count == 30
    assert len(list(source)) == N - 40


def test_an_endless_stream_ends_where_it_is_told_to():
    scores = evaluate((([float(i)], i % 2) for i in itertools.count()), Majority(2), stop=100)
    assert scores.count == 100
    endless = (([float(i)], i % 2) for i in itertools.count())
    assert evaluate(endless, quick(2), after=lambda position, *_: position >= 128).count == 130


def test_examples_come_one_piece_at_a_time():
    """An example is asked for only when those of the pieces before it were learnt: nothing of the future is needed."""
    learner = quick(2)
    gaps = []

    def source():
        for i in range(300):
            gaps.append(i - learner.position)
            yield [float(i)], i % 2

    evaluate(source(), learner)
    assert learner.position == 300
    assert max(gaps) == 9


def test_memory_does_not_grow():
    def peak(count):
        tracemalloc.start()
        evaluate(((np.full(500, float(i)), i % 2) for i in range(count)), quick(2))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(200)  # imports and caches
    assert peak(2000) < peak(400) + 500_000  # the examples alone are 8 MB


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ([([1.0, 2.0], "a"), ([1.0], "b")], r"example 1: x has shape \(1,\), but the first example had shape \(2,\)"),
        ([([1.0], "a"), [1.0]], "example 1: got a list of 1, expected x and y"),
        ([({"b": 1.0}, "a"), ({"c": 1.0}, "b")], "example 1: x has the feature 'c', which the first example does not"),
        ([(["red"], "a")], "example 0: x is .* expected numbers.*TableStream"),
        ([([1.0], ["a"])], "example 0: the label is .*, expected something hashable"),
        ([(1.0, "a")], r"example 0: x has shape \(\), expected a vector or an image"),
        (17, "the stream is a int, expected a Stream, a path, a data frame, a DataLoader or an iterable"),
    ],
)
def test_what_cannot_be_used_gets_a_sentence(source, sentence):
    learner = Majority(2)
    with pytest.raises(BadInput, match=sentence) as error:
        evaluate(source, learner)
    assert len(str(error.value)) <= 300
    assert learner.position == 0


def test_only_tables_have_a_label():
    with pytest.raises(BadInput, match=r"label \('up'\) names a column, but the stream is a ArrayStream"):
        evaluate(ArrayStream(X, Y), Majority(4), label="up")


def test_after_a_generator_the_learner_goes_on_with_its_past(expected):
    """What was replayed from the temporary file is still there when other examples follow."""
    learner = Learner(4, width=16, depth=1, num_streams=2, chunk_size=10, window=20, seed=3, missing=True)
    evaluate(((x, int(y)) for x, y in zip(X[:60], Y, strict=False)), learner)
    other = Learner(4, width=16, depth=1, num_streams=2, chunk_size=10, window=20, seed=3, missing=True)
    evaluate(ArrayStream(X[:60], Y[:60]), other)
    charges = [each.observe(X[60:], Y[60:].tolist()).log_loss for each in (learner, other)]
    assert np.array_equal(*charges)
