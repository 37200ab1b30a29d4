"""How a learner reads rows with named fields: by its schema, which the first rows decide where none was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prequential.errors import BadInput, BadSetting, PrequentialError, short

if TYPE_CHECKING:
    from prequential.streams.formats.raw_rows import RawRows
    from prequential.streams.formats.schema import Schema

SIMPLE = (np.ndarray, float, int)  # what is no row, looked at first: most x are arrays or lists of numbers


class RowReader:
    """Turns dicts, rows of data frames and data frames into arrays; leaves everything else as it is.

    Examples
    --------
    >>> reader = RowReader()
    >>> x = reader.learnable([{"amount": 3.5, "paid": True}], first=0, shape=None)
    >>> x[:, :2].tolist(), reader.schema is None
    ([[3.5, 1.0]], True)
    >>> reader.adopt()
    True
    >>> reader.schema.feature_names[:2]
    ['amount', 'paid']
    """

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self.given = False  # whether it was not decided by rows
        self._decided: Schema | None = None  # by rows that are being learned

    def find(self, xs: Any, *, one: bool = False) -> RawRows | None:
        """Rows with named fields; None where xs is something else."""
        first = xs[0] if isinstance(xs, (list, tuple)) and xs else xs
        if isinstance(first, SIMPLE) and not hasattr(xs, "_fields"):
            return None
        from prequential.streams.formats.raw_rows import as_rows

        try:
            return as_rows(xs, one=one, named=self.schema is not None)
        except PrequentialError:
            raise
        except Exception:  # whatever an object of the user's raises while it is looked at: it is no row
            return None

    def encoded(self, rows: RawRows, *, first: int, shape: tuple[int, ...] | None) -> np.ndarray:
        """Rows to predict as an array; where there is no schema yet, by the one that they would decide."""
        return self._encoded(rows, first, shape)[0]

    def learnable(self, xs: Any, *, first: int, shape: tuple[int, ...] | None) -> Any:
        """Rows to learn as an array; `adopt` makes the schema that they decide that of all further ones."""
        self.forget_decided()
        rows = self.find(xs)
        if rows is None:
            return xs
        x, self._decided = self._encoded(rows, first, shape)
        return x

    def forget_decided(self) -> None:
        """What is being learned are no rows that decide the schema."""
        self._decided = None

    @property
    def decides(self) -> bool:
        """Whether what is being learned are rows that decide the schema."""
        return self._decided is not None

    def adopt(self) -> bool:
        """Takes the schema that the rows being learned decide; whether it is a new one."""
        decided, self._decided = self._decided, None
        if decided is None or self.schema is not None:
            return False
        self.schema = decided
        return True

    def give(self, schema: Any, shape: tuple[int, ...] | None) -> None:
        """Sets how rows are read."""
        from prequential.streams.formats.schema import Schema

        if schema is not None and not isinstance(schema, Schema):
            raise BadSetting(f"schema is {short(schema)}, expected a Schema, such as that of a TableStream")
        if schema is not None and shape not in (None, (schema.width,)):
            raise BadSetting(f"schema makes {schema.width} features, but the learner has learned x of shape {shape}")
        self.schema, self.given = schema, schema is not None

    def follow(self, schema: Schema, position: int, shape: tuple[int, ...] | None) -> None:
        """Reads rows as a stream does whose examples come next, where nothing was decided before."""
        if self.schema is None or (position == 0 and not self.given):
            if shape in (None, (schema.width,)):
                self.schema = schema
        elif self.schema.width != schema.width:
            raise BadInput(
                f"the columns of the stream become {schema.width} features, but the learner reads rows as "
                f"{self.schema.width}; TableStream(..., schema=learner.schema) reads them alike"
            )

    def load(self, schema: Schema | None) -> None:
        self.schema, self.given = schema, schema is not None

    def _encoded(self, rows: RawRows, first: int, shape: tuple[int, ...] | None) -> tuple[np.ndarray, Schema]:
        """Rows as an array, and the schema that they are read by."""
        try:
            schema = self._schema_for(rows, first, shape)
            return schema.encode(rows, first), schema
        except PrequentialError:
            raise
        except Exception as error:  # of a value of the user's own kind
            raise BadInput(f"example {first}: the row cannot be read: {type(error).__name__}: {error}") from None

    def _schema_for(self, rows: RawRows, first: int, shape: tuple[int, ...] | None) -> Schema:
        if self.schema is not None:
            return self.schema
        if shape is not None:
            raise BadInput(
                f"example {first}: x is a row with the fields {short(rows.names)}, expected x of shape {shape} like the "
                "first example; learner.schema = ... says how rows become numbers"
            )
        from prequential.streams.formats.schema import Schema

        return Schema.from_rows(rows)
