"""Where the trials of a sweep are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from prequential.errors import BadInput, MissingExtra
from prequential.files import locked, make_directory

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

PATIENCE = (0.5, 1, 2, 4, 8, 16, 32)  # seconds to wait for a storage that does not answer
T = TypeVar("T")


def open_storage(url: str) -> tuple[BaseStorage, Path | None]:
    """Optuna's storage at a URL, and the file that guards it where the storage cannot guard itself."""
    try:
        import optuna
        import sqlalchemy
    except ImportError:
        raise MissingExtra("a sweep", "sweep") from None
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalRedisBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    shown = url
    try:
        if url.startswith("journal:"):
            path = Path(url.removeprefix("journal:"))
            make_directory(path.parent)
            return JournalStorage(JournalFileBackend(str(path))), None
        if url.startswith(("redis://", "rediss://")):
            return JournalStorage(JournalRedisBackend(url)), None
        place = sqlalchemy.engine.make_url(url)
        shown = place.render_as_string(hide_password=True)
        if place.get_backend_name() != "sqlite":
            return patiently(lambda: RDBStorage(url, engine_kwargs={"pool_pre_ping": True}), PATIENCE[:2]), None
        if not place.database:
            raise ValueError("it names no file")
        guard = Path(place.database).with_name(Path(place.database).name + ".lock")
        make_directory(guard.parent)
        with locked(guard):  # two that make the tables at once stumble over each other
            return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}}), guard
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, ValueError, OSError) as error:
        cause = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise BadInput(
            f"cannot open the storage {shown!r}: {cause[0]}; expected a database URL such as sqlite:///study.db or "
            "postgresql://user:password@host/name, or journal:PATH"
        ) from None


def patiently(act: Callable[[], T], waits: tuple[float, ...] = PATIENCE) -> T:
    """Does something with a storage, again and again while it does not answer."""
    import optuna
    import sqlalchemy

    for wait in waits:
        try:
            return act()
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.DBAPIError):
            time.sleep(wait)
    return act()
