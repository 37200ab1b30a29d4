"""Where the trials of a sweep are kept."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prequential.errors import BadInput, MissingExtra
from prequential.files import locked, make_directory

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.storages.journal import BaseJournalBackend

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
            return JournalStorage(_without_snapshots(JournalRedisBackend(url))), None
        url = url.replace("{", "{{").replace("}", "}}")  # Optuna takes it for a template
        place = sqlalchemy.engine.make_url(shown)
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


def _without_snapshots(backend: BaseJournalBackend) -> BaseJournalBackend:
    """The same backend without its snapshots: they are pickles, and whoever can write to the server could run code here."""
    from optuna.storages.journal import BaseJournalBackend

    class LogOnly(BaseJournalBackend):
        def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
            return backend.read_logs(log_number_from)

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            backend.append_logs(logs)

    return LogOnly()


def is_inside(url: str, directory: Path) -> bool:
    """Whether a storage is a file in this directory, opened without further options.

    >>> is_inside("sqlite:////tmp/sweep/study.db", Path("/tmp/sweep")), is_inside("redis://host", Path("/tmp/sweep"))
    (True, False)
    """
    kind = next((kind for kind in ("journal:", "sqlite:///") if url.startswith(kind)), None)
    if kind is None or "?" in url:
        return False
    return Path(url.removeprefix(kind)).resolve().is_relative_to(directory.resolve())


def without_password(url: str) -> str:
    """A storage's URL as it may be shown.

    >>> without_password("postgresql://me:secret@host/name")
    'postgresql://me:***@host/name'
    """
    return re.sub(r"(://[^/@]*):[^@]*@", r"\1:***@", url)


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
