"""Optuna's storages: opening, retrying, checking for damage."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from prequential.errors import BadInput, MissingExtra, PrequentialError, one_line
from prequential.storage.checkpoint import short
from prequential.storage.files import locked, make_directory

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.storages.journal import BaseJournalBackend

REMEDY = "move it away, and the same command finds the finished runs again"
RETRY_SECONDS = (0.5, 1, 2, 4, 8, 16, 32)  # waits before a storage that does not answer is tried again
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
            return with_retries(lambda: RDBStorage(url, engine_kwargs={"pool_pre_ping": True}), RETRY_SECONDS[:2]), None
        if not place.database:
            raise ValueError("it names no file")
        guard = Path(place.database).with_name(Path(place.database).name + ".lock")
        make_directory(guard.parent)
        check_database(url)
        with locked(guard):  # two that make the tables at once stumble over each other
            return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}}), guard
    except PrequentialError:
        raise
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, ValueError, OSError) as error:
        cause = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise BadInput(
            f"cannot open the storage {shown!r}: {cause[0]}; expected a database URL such as sqlite:///study.db or "
            "postgresql://user:password@host/name, or journal:PATH"
        ) from None


def _without_snapshots(backend: BaseJournalBackend) -> BaseJournalBackend:
    """The same backend without its snapshots: these are pickles, by which the server could run code here."""
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


def with_retries(act: Callable[[], T], waits: tuple[float, ...] = RETRY_SECONDS) -> T:
    """Calls a function that uses a storage, again after a while when the storage does not answer."""
    import optuna
    import sqlalchemy

    for wait in waits:
        try:
            return act()
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.DBAPIError) as error:
            if is_damaged(error):
                raise
            time.sleep(wait)
    return act()


def is_damaged(error: BaseException | None) -> bool:
    """Whether an error says that the file of a database is damaged: then there is no use in waiting."""
    while error is not None:
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            return True
        if isinstance(error, sqlite3.OperationalError) and "no such" in str(error):  # a table or a column
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def report_damage(url: str) -> Iterator[None]:
    """Turns any error of Optuna on a damaged SQLite file into one sentence; the results themselves are in the runs."""
    try:
        yield
    except PrequentialError:
        raise
    except Exception as error:
        if not url.startswith("sqlite:///") or isinstance(error, OSError):
            raise
        why = short(error.__cause__ or error)
        raise BadInput(f"{_file_of(url)} is damaged ({why}); {REMEDY}") from None


def check_database(url: str) -> None:
    """Refuses a file of SQLite that is damaged."""
    path = _file_of(url)
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=60)) as database:
            found = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # another process uses it, or it cannot be opened, which is reported later
        return
    except sqlite3.DatabaseError as error:
        found = (str(error),)
    if found != ("ok",):
        raise BadInput(f"{path} is damaged ({one_line(found[0] if found else 'no reason given', 80)}); {REMEDY}")


def _file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///").partition("?")[0])
