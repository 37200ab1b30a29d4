"""Checks of rows with named fields: dicts and data frames are read by the schema of the learner."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from prequential.errors import BadInput
from prequential.storage.checkpoint import same_state
from prequential.streams.formats.schema import Schema
from prequential.testing.examples import FEATURES, Make, make_examples


def check_rows(make: Make) -> None:
    """Rows must be the numbers that the schema makes of them, also after a save; what cannot be read changes nothing."""
    x, y = make_examples(30)
    names = [f"feature {i}" for i in range(FEATURES)]
    rows = [dict(zip(names, map(float, row), strict=True)) for row in x]
    schema = Schema.from_rows(rows, extra=0)
    numbers, named = make(3), make(3)
    numbers.learn_many(x.astype(np.float64), y)
    named.schema = schema
    named.learn_many(rows[:20], y[:20])
    for row, label in zip(rows[20:], y[20:], strict=True):
        named.learn_one(dict(reversed(row.items())), label)  # in whatever order its fields come
    numbers_again = make(3)
    numbers_again.learn_many(x[:20].astype(np.float64), y[:20])
    for one, label in zip(x[20:].astype(np.float64), y[20:], strict=True):
        numbers_again.learn_one(one, label)
    expected = numbers_again.predict_log_proba_many(x[:5].astype(np.float64))
    assert np.array_equal(named.predict_log_proba_many(rows[:5]), expected), "rows are predicted otherwise than numbers"
    saved = named.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.ckpt"
        named.save(path)
        again = type(named).load(path)
    assert again.schema == schema, f"a loaded learner has the schema {again.schema}, expected {schema}"
    assert np.array_equal(again.predict_log_proba_many(rows[:5]), expected), "a loaded learner reads rows otherwise"
    for bad, words in (({names[0]: "no number"}, names[0]), ({"other": 1.0}, "other")):
        for call in (lambda row: named.learn_one(row, 0), named.predict_proba_one):
            try:
                call(bad)
            except BadInput as error:
                assert words in str(error), f"{str(error)!r} does not name {words!r}"
            else:
                raise AssertionError(f"{bad} was accepted")
    assert same_state(saved, named.state_dict()), "rows that were refused changed the learner"
