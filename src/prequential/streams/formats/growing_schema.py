"""Schemas with room: fields that appear later get a column of their own, as long as there are spare ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from prequential.streams.formats.encoding import Column
from prequential.streams.formats.raw_rows import is_missing
from prequential.streams.formats.schema import Schema

SPARE = "(spare) "  # what the names of columns begin with that no field has taken yet
NUMBERS = (int, float, np.number, np.bool_)


def growing_schema(row: Mapping[str, Any], *, spare: int, extra: int) -> Schema:
    """The schema that one row decides, with `spare` columns for numbers that appear later.

    Columns are in the order of their names, so that the order of the fields in the row does not matter. Fields that
    find no spare column, and later ones that are no numbers, are hashed into `extra` features as `Schema` has it.

    >>> schema = growing_schema({"b": 2.0, "a": True}, spare=1, extra=0)
    >>> schema.feature_names
    ['a', 'b', '(spare) 0']
    >>> grown(schema, {"c": 1.5, "a": False}).feature_names
    ['a', 'b', 'c']
    """
    columns: tuple[Column, ...] = ()
    if row:
        decided = Schema.from_rows([dict(sorted(row.items()))], extra=0, keep_ids=True)
        # True may be followed by 2: flags are read as numbers, which are the same features
        columns = tuple(_number(c.name) if c.kind == "flag" and not c.indicator else c for c in decided.columns)
    return Schema((*columns, *(_number(f"{SPARE}{i}") for i in range(spare))), extra=extra)


def grown(schema: Schema, row: Mapping[str, Any]) -> Schema:
    """The same schema, in which the new fields of a row that are numbers have taken spare columns, while there are any.

    The width stays what it was, and so do the columns of all other fields.
    """
    known = {column.name for column in schema.columns}
    new = sorted(name for name, value in row.items() if name not in known and _is_number(value))
    if not new:
        return schema
    columns = list(schema.columns)
    free = (i for i, column in enumerate(columns) if column.name.startswith(SPARE))
    for name, i in zip(new, free, strict=False):
        columns[i] = replace(columns[i], name=name)
    return schema if tuple(columns) == schema.columns else replace(schema, columns=tuple(columns))


def _number(name: str) -> Column:
    return Column(name, "number", pa.float64(), 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, NUMBERS) and not is_missing(value)
