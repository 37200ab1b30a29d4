"""Settings that had another name in an earlier version: the old names still work, with one line that says the new one.

The tables are here and nowhere else. Whoever takes settings by name from a user (`Settings`, `Learner`, the baselines, the
command line, TOML files, learners with options) calls `current_names`; files that the program wrote itself are brought up
to date by `storage/migrations.py`, which uses the same tables and says nothing.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from prequential.errors import BadSetting

Kind = TypeVar("Kind", bound=type)

SETTINGS = {  # of the transformer
    "rate": "learning_rate",
    "joint_rate": "joint_learning_rate",
    "extractor_rate": "extractor_learning_rate",
    "average": "ema_decay",
    "streams": "num_streams",
    "heads": "num_query_heads",
    "hidden": "mlp_width",
    "chunk": "chunk_size",
    "standardise": "standardize",
    "neighbours": "num_neighbors",
    "behind": "async_steps",
    "warmup": "warmup_examples",
    "decay": "lr_decay",
    "decay_examples": "lr_decay_examples",
    "label_scale": "label_init_std",
    "recent": "recent_window",
}
OPTIONS = {  # of the baselines
    "rate": "learning_rate",
    "average": "ema_rate",
    "streams": "num_streams",
    "hidden": "hidden_sizes",
    "chunk": "chunk_size",
    "standardise": "standardize",
    "neighbours": "num_neighbors",
}
REMOVED: dict[str, Any] = {"graphs": False}  # settings that are gone, and the value with which they changed nothing

_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)  # None: each call warns by itself


class RenamedSetting(FutureWarning):
    """A setting was given by its old name."""


def current_names(given: dict[str, Any], table: dict[str, str], *, warn: bool = True) -> dict[str, Any]:
    """The same settings under the names they have now, in the same order; one warning names all old ones.

    >>> current_names({"width": 8, "learning_rate": 0.1}, SETTINGS)
    {'width': 8, 'learning_rate': 0.1}
    >>> current_names({"rate": 0.1, "learning_rate": 0.1}, SETTINGS)
    Traceback (most recent call last):
    prequential.errors.BadSetting: rate is now called learning_rate: both are given, leave out rate
    """
    old = [name for name in given if name in table or (name in REMOVED and table is SETTINGS)]
    if not old:
        return given
    for name in old:
        if name in table and table[name] in given:
            raise BadSetting(f"{name} is now called {table[name]}: both are given, leave out {name}")
    if warn:
        warn_of([name for name in old if name in table or given[name] != REMOVED[name]], table)
    return {table.get(name, name): value for name, value in given.items() if name in table or name not in old}


def warn_of(old: Iterable[str], table: dict[str, str]) -> None:
    """Says the new names of some old ones, in one line."""
    sentences = [
        f"{name} is now called {table[name]}" if name in table else f"{name} has no effect any more" for name in old
    ]
    collected = _collected.get()
    if collected is not None:
        collected += sentences
    elif sentences:
        _warn(sentences)


def _warn(sentences: list[str]) -> None:
    warnings.warn("; ".join(dict.fromkeys(sentences)), RenamedSetting, stacklevel=5)


@contextmanager
def one_warning() -> Iterator[None]:
    """Inside, old names are collected; at the end one warning names all of them."""
    outer, collected = _collected.get(), list[str]()
    token = _collected.set(collected)
    try:
        yield
    finally:
        _collected.reset(token)
    if outer is not None:
        outer += collected
    elif collected:
        _warn(collected)


@contextmanager
def without_warning() -> Iterator[None]:
    """Inside, old names are taken without a word: they were read from a file that the program wrote."""
    token = _collected.set([])
    try:
        yield
    finally:
        _collected.reset(token)


def takes_old_names(table: dict[str, str]) -> Callable[[Kind], Kind]:
    """Decorates a class whose keyword arguments may be given by the old names of a table."""

    def decorate(kind: Kind) -> Kind:
        made = kind.__init__  # type: ignore[misc]

        @functools.wraps(made)
        def init(self: Any, *args: Any, **given: Any) -> None:
            made(self, *args, **current_names(given, table))

        kind.__init__ = init  # type: ignore[misc]
        kind.old_names = table  # type: ignore[attr-defined]
        return kind

    return decorate
