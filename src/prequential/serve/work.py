"""A request that changes a tenant."""

from __future__ import annotations

from typing import Any

import numpy as np


class Work:
    """A request with rows to learn, and how far it has come.

    Attributes
    ----------
    at
        The row that is next.
    begun_by
        What has begun it; None: nothing yet. Another one has to begin it again.
    results
        Of the rows before `at`.
    x
        The inputs of rows that have some, checked, by the number of the row.
    done
        Rows that were learned by an earlier attempt, and the position of each.
    """

    def __init__(self, number: int, content: dict[str, Any]) -> None:
        self.number, self.content = number, content
        self.rows: list[dict[str, Any]] = content["rows"]
        self.restart()

    def restart(self) -> None:
        """Begins again, where what was done is undone: those rows that were stored are known by their key."""
        self.at = 0
        self.begun_by: object | None = None
        self.results: list[dict[str, Any]] = []
        self.x: dict[int, np.ndarray] = {}
        self.done: dict[int, int] = {}
