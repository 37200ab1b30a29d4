"""The learner as a classifier of River: `from prequential.river import Classifier`.

River's own classifiers as learners of this package are `prequential.baselines.river`.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from prequential.errors import MissingExtra
from prequential.estimators import PickledLearner, settings_of, takes_settings
from prequential.learners.transformer.learner import Learner
from prequential.streams.formats.growing_schema import growing_schema, grown
from prequential.streams.formats.raw_rows import is_missing
from prequential.streams.formats.schema import Schema

try:
    from river import base
except ImportError:
    raise MissingExtra("prequential.river", "river") from None

if TYPE_CHECKING:
    import pandas as pd

HASHED = 8  # features for later fields that are no numbers, or find no spare column
PLAIN = frozenset((float, int, bool, np.float64))


class Classifier(PickledLearner, base.MiniBatchClassifier):
    """The transformer learner for River: dicts of features in, any number of labels, in pipelines and evaluations.

    Features may be numbers, text, dates and missing values; the first dict that is learned decides how each is read
    (`learner.schema`). Features may appear and vanish: one that is not in a dict is missing, and a new number takes one
    of the spare inputs when it is first learned. New features beyond those, and new ones that are no numbers, share a
    few hashed inputs. Scaling is not needed: the learner does it, by past statistics.

    Probabilities are those of the labels seen so far, as River expects it. `learner.predict_proba_one` also says how
    probable a label is that was never seen.

    Parameters
    ----------
    spare_features
        How many numeric features that appear later get an input of their own.
    device
        Where to compute: auto, cpu, cuda, ...
    settings
        All others are those of `prequential.Settings`, by the same names and with the same defaults: `width`, `depth`,
        `window`, `chunk_size`, `learning_rate`, `label_delay`, `seed`, ... A `seed` of None draws one.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> model = Classifier(width=32, depth=1, window=128)
    >>> evaluate.progressive_val_score(datasets.Phishing().take(500), model, metrics.Accuracy()).get() > 0.8
    True
    """

    spare_features: int

    @takes_settings()
    def __init__(self, *, spare_features: int = 16, device: str = "auto", **settings: Any) -> None:
        given = settings_of(self)
        if given["seed"] is None:
            given["seed"] = random.getrandbits(31)
        self.learner = Learner(device=device, **given)
        self._plain: tuple[Schema, list[str], set[str]] | None = None  # a schema of numbers alone, and its fields

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"width": 16, "depth": 1, "window": 32, "num_streams": 2}

    def learn_one(self, x: Mapping[Any, Any], y: Hashable) -> None:
        """Learns from one example."""
        before = self.learner.schema
        schema = before
        values = None if schema is None else self._plain_values(schema, x)
        if values is None:
            row = _named(x)
            schema = self._schema_of(schema, row)
            values = self._encoded(schema, [row])[0]
        self._take(schema, before, lambda: self.learner.learn_one(values, y))

    def predict_proba_one(self, x: Mapping[Any, Any]) -> dict[Hashable, float]:  # type: ignore[override]
        """The probability of each label seen so far; an empty dict before there is one."""
        if not len(self.learner.labels):
            return {}
        p = self.learner.predict_proba_one(self._values(x))
        total = sum(p.values())
        return {label: value / total for label, value in p.items()}

    def predict_one(self, x: Mapping[Any, Any]) -> Hashable | None:  # type: ignore[override]
        """The most probable label; None before there is one."""
        return self.learner.predict_one(self._values(x)) if len(self.learner.labels) else None

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learns from the rows of a frame, oldest first, as `learn_one` would from one after the other."""
        before = self.learner.schema
        schema, parts = self._read(before, X)
        if parts:
            self._take(schema, before, lambda: self.learner.learn_many(np.concatenate(parts), y.tolist()))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The probabilities of the labels seen so far, one column for each."""
        import pandas as pd

        known = self.learner.labels.known
        if not known or not len(X):
            return pd.DataFrame(index=X.index, columns=known, dtype=float)
        p = self.learner.predict_proba_many(self._examples(X))[:, : len(known)]
        return pd.DataFrame(p / p.sum(1, keepdims=True), index=X.index, columns=pd.Index(known, dtype=object))

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The most probable label of each row."""
        import pandas as pd

        found = bool(len(X)) and bool(len(self.learner.labels))
        labels = self.learner.predict_many(self._examples(X)) if found else [None] * len(X)
        return pd.Series(labels, index=X.index, dtype=None if found else object)

    # Dicts and frames as arrays.

    def _take(self, schema: Schema | None, before: Schema | None, learn: Any) -> None:
        """Learns what this schema has read; if anything is raised, it is not kept."""
        if schema is not before:
            self.learner.schema = schema
        try:
            learn()
        except BaseException:
            if schema is not before:
                self.learner.schema = before
            raise

    def _schema_of(self, schema: Schema | None, row: Mapping[str, Any]) -> Schema:
        if schema is None:
            return growing_schema(row, spare=self.spare_features, extra=HASHED)
        return grown(schema, row)

    def _values(self, x: Mapping[Any, Any]) -> np.ndarray:
        """One dict to predict; its new features are read as if they were being learned."""
        schema = self.learner.schema
        values = self._plain_values(schema, x)
        if values is not None:
            return values
        row = _named(x)
        found: np.ndarray = self._encoded(grown(schema, row), [row])[0]
        return found

    def _plain_values(self, schema: Schema, x: Mapping[Any, Any]) -> np.ndarray | None:
        """A dict of known numbers, which most are; None where it holds something else, which takes longer to read."""
        if self._plain is None or self._plain[0] is not schema:
            numbers = all(column.kind == "number" and not column.indicator for column in schema.columns)
            names = [column.name for column in schema.columns] if numbers else []
            self._plain = schema, names, set(names)
        _, names, known = self._plain
        if not known.issuperset(x) or not PLAIN.issuperset(map(type, x.values())):
            return None
        try:
            return np.array([x.get(name, np.nan) for name in names] + [0.0] * schema.extra, np.float64)
        except OverflowError:  # an int beyond float64
            return None

    def _examples(self, X: Any) -> np.ndarray:
        return np.concatenate(self._read(self.learner.schema, X)[1])

    def _read(self, schema: Schema | None, X: Any) -> tuple[Schema | None, list[np.ndarray]]:
        """A frame as arrays, and the schema after its last row: a part for each schema on the way."""
        rows = [_named(row) for row in X.to_dict("records")]
        parts, start = [], 0
        for i, row in enumerate(rows):
            after = self._schema_of(schema, row)
            if after is not schema and i > start:
                assert schema is not None
                parts.append(self._encoded(schema, rows[start:i], start))
                start = i
            schema = after
        if start < len(rows):
            assert schema is not None
            parts.append(self._encoded(schema, rows[start:], start))
        return schema, parts

    def _encoded(self, schema: Schema, rows: Sequence[dict[str, Any]], first: int = 0) -> np.ndarray:
        known = {column.name for column in schema.columns}
        given = [{name: it for name, it in row.items() if name in known or not is_missing(it)} for row in rows]
        if schema.columns:  # a row of which nothing is known is one of missing values
            nothing = {schema.columns[0].name: None}
            given = [row if known.intersection(row) else {**nothing, **row} for row in given]
        return schema.encode(given, self.learner.position + first)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plain": None}


def _named(x: Mapping[Any, Any]) -> dict[str, Any]:
    """The features of a dict by text: River's names may be anything."""
    return {str(name): value for name, value in x.items()}
