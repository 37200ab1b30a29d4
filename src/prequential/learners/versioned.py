"""Committed and current: the two versions of everything that moves on with each example."""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class Versioned(Generic[Value]):
    """A value in two versions: as of the last chunk boundary (committed) and as of the latest example (current).

    Examples may arrive in any sizes. In between, each moves the current version on (`extend`). At a chunk boundary the
    whole chunk is computed once more, from the committed version, and both become the result (`commit`). So the state
    at a boundary depends on the examples alone, not on the sizes in which they came. The values themselves are never
    changed in place. A KV cache keeps its two versions in one buffer, by the same verbs.

    Parameters
    ----------
    value
        What both versions are at the start.

    Examples
    --------
    >>> count = Versioned(0)
    >>> count.extend(count.current + 3)
    >>> count.committed, count.current
    (0, 3)
    >>> count.commit(count.committed + 4)
    >>> count.committed, count.current
    (4, 4)
    """

    def __init__(self, value: Value) -> None:
        self.committed = self.current = value

    def extend(self, value: Value) -> None:
        """Moves the current version on."""
        self.current = value

    def commit(self, value: Value) -> None:
        """Moves both versions to a chunk boundary."""
        self.committed = self.current = value
