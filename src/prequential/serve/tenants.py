"""The tenants of a service: their names, directories, settings and tokens.

HOME/service.json            the hash of the admin token
HOME/tenants/NAME/tenant.json    settings, quotas and the hash of the token
HOME/tenants/NAME/learner/       the home of its learner
"""

from __future__ import annotations

import re
import secrets
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prequential.errors import BadCheckpoint, BadInput, BadSetting, short
from prequential.imports import is_object_name
from prequential.serve.quotas import Quotas
from prequential.serve.tokens import hash_token, matches, new_token
from prequential.settings import Settings
from prequential.specs import parse_call
from prequential.storage.files import make_directory, refuse_links, storage, sync_directory, write_atomically
from prequential.storage.sealed import read_sealed, write_sealed

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
FORMAT = "prequential-tenant-1"
DELETED = ".deleted-"  # what a directory is called while it is removed
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Tenant:
    """What is kept of a tenant beside its learner."""

    name: str
    token_hash: str
    settings: dict[str, Any] = field(default_factory=dict)  # of the learner, where they differ from the defaults
    classes: int | list[Any] | None = None
    schema: dict[str, Any] | None = None
    missing: bool = True  # whether features may be missing
    quotas: Quotas = field(default_factory=Quotas)
    created: float = 0.0  # seconds since 1970

    def to_dict(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "format": FORMAT, "name": self.name, "token_hash": self.token_hash, "settings": self.settings,
            "classes": self.classes, "schema": self.schema, "missing": self.missing,
            "quotas": self.quotas.to_dict(), "created": self.created,
        }  # fmt: skip

    def shown(self) -> dict[str, Any]:
        """What its owner may see."""
        hidden = ("format", "token_hash")
        return {name: value for name, value in self.to_dict().items() if name not in hidden}

    def made_like(self, other: Tenant) -> bool:
        """Whether both have the same learner."""

        mine, theirs = self.to_dict(), other.to_dict()
        return all(mine[name] == theirs[name] for name in ("settings", "classes", "schema", "missing"))


class Tenants:
    """All tenants of a home, in memory; files are the truth.

    Looking up a token takes the same time whether or not the tenant that it is used for exists.

    Parameters
    ----------
    home
        The directory of the service.
    trust
        Whether settings may name code to import (`extractor = MODULE:CLASS`).
    """

    def __init__(self, home: Path, *, trust: bool = False) -> None:
        self.home, self.trust = home, trust
        self.directory = home / "tenants"
        self._tenants: dict[str, Tenant] = {}
        self._owners: dict[str, str] = {}  # names by the hash of their token
        self._stamp = -1
        self.problems: dict[str, str] = {}  # tenants whose file cannot be read, and why
        with storage(home):
            make_directory(self.directory)
            refuse_links(home, self.directory)
        self._remove_deleted()
        self.reload()

    # Looking.

    def __len__(self) -> int:
        return len(self._tenants)

    def names(self) -> list[str]:
        return sorted(self._tenants)

    def get(self, name: str) -> Tenant | None:
        return self._tenants.get(name)

    def owner(self, token: str) -> str | None:
        """The name of the tenant whose token this is."""
        name = self._owners.get(hash_token(token))
        return name if name is not None and matches(token, self._tenants[name].token_hash) else None

    def place(self, name: str) -> Path:
        """The directory of a tenant; a name that could lead elsewhere is refused."""
        check_name(name)
        path = self.directory / name
        refuse_links(self.home, path)
        return path

    def reload(self) -> None:
        """Reads all files, if another process has changed one since."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        found: dict[str, Tenant] = {}
        self.problems = {}
        for path in sorted(self.directory.iterdir()):
            if NAME.fullmatch(path.name) and (path / "tenant.json").exists():
                try:
                    found[path.name] = _read(path)
                except (BadCheckpoint, BadInput, BadSetting) as error:
                    self.problems[path.name] = str(error)
        self._tenants, self._stamp = found, stamp
        self._owners = {tenant.token_hash: tenant.name for tenant in found.values()}

    def _stamp_now(self) -> int:
        try:
            return (self.home / "changed").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    # Changing.

    def create(
        self,
        name: str,
        *,
        settings: dict[str, Any] | None = None,
        classes: int | list[Any] | None = None,
        schema: dict[str, Any] | None = None,
        missing: bool = True,
        quotas: Quotas | None = None,
        token: str | None = None,
    ) -> tuple[Tenant, str]:
        """A new tenant, and its token, which is kept nowhere else."""
        place = self.place(name)
        if name in self._tenants or (place / "tenant.json").exists():
            raise BadInput(f"tenant {name} exists already")
        token = token or new_token()
        given = checked_settings(settings or {}, trust=self.trust)
        tenant = Tenant(
            name, hash_token(token), given, _checked_classes(classes), schema, missing, quotas or Quotas(), time.time()
        )  # fmt: skip
        self._write(tenant)
        return tenant, token

    def change(self, tenant: Tenant, *, quotas: Quotas) -> Tenant:
        """The same tenant with other quotas."""
        changed = replace(tenant, quotas=quotas)
        self._write(changed)
        return changed

    def rotate(self, name: str, token: str | None = None) -> str:
        """Gives a tenant another token; the one before is worth nothing from now on."""
        tenant = self._tenants.get(check_name(name))
        if tenant is None:
            raise BadInput(f"there is no tenant {name}")
        token = token or new_token()
        self._write(replace(tenant, token_hash=hash_token(token)))
        return token

    def adopt(self, content: dict[str, Any]) -> Tenant:
        """Takes over a tenant that another process has made or changed."""
        tenant = _from_dict(content, str(content.get("name")), "what is shared of a tenant")
        if self._tenants.get(check_name(tenant.name)) != tenant:
            self._write(tenant)
        return tenant

    def delete(self, name: str) -> None:
        """Removes a tenant and everything of it. Its learner must be closed."""
        place = self.place(name)
        with storage(place):
            away = self.directory / f"{DELETED}{name}-{secrets.token_hex(4)}"
            place.rename(away)
            sync_directory(self.directory)
        self._forget(name)
        self._touch()
        shutil.rmtree(away, ignore_errors=True)

    def _write(self, tenant: Tenant) -> None:
        place = self.place(tenant.name)
        with storage(place):
            write_sealed(place / "tenant.json", tenant.to_dict())
        self._forget(tenant.name)
        self._tenants[tenant.name] = tenant
        self._owners[tenant.token_hash] = tenant.name
        self._touch()

    def _forget(self, name: str) -> None:
        old = self._tenants.pop(name, None)
        if old is not None:
            self._owners.pop(old.token_hash, None)

    def _touch(self) -> None:
        """Lets other processes know that something has changed."""
        with storage(self.home):
            write_atomically(self.home / "changed", b"")
        self._stamp = self._stamp_now()

    def _remove_deleted(self) -> None:
        for path in self.directory.glob(f"{DELETED}*"):
            if not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def check_name(name: str) -> str:
    """Refuses what is no name of a tenant.

    >>> check_name("tickets-2")
    'tickets-2'
    >>> check_name("../etc")
    Traceback (most recent call last):
    prequential.errors.BadInput: tenant '../etc' is no name: 1 to 63 of a-z, 0-9, _ and -, the first a letter or digit
    """
    if not NAME.fullmatch(name):
        raise BadInput(f"tenant {short(name)} is no name: 1 to 63 of a-z, 0-9, _ and -, the first a letter or digit")
    return name


def checked_settings(given: dict[str, Any], *, trust: bool) -> dict[str, Any]:
    """Settings of a learner by name, after all checks; steps run in a thread unless they say otherwise."""
    settings = {"async_steps": True, **given}
    made = Settings().changed(**settings)
    if is_object_name(parse_call(made.extractor)[0]) and not trust:
        raise BadSetting(
            f"extractor {short(made.extractor)} is code to import; the service must be started with --trust"
        )
    return settings


def _checked_classes(classes: int | list[Any] | None) -> int | list[Any] | None:
    count = len(classes) if isinstance(classes, list) else classes
    if count is not None and not 1 <= count <= MOST_CLASSES:
        raise BadSetting(f"classes ({count}) must be from 1 to {MOST_CLASSES:,}")
    return classes


def _read(place: Path) -> Tenant:
    return _from_dict(read_sealed(place / "tenant.json"), place.name, place / "tenant.json")


def _from_dict(content: dict[str, Any], name: str, where: object) -> Tenant:
    if content.get("format") != FORMAT or content.get("name") != name:
        raise BadCheckpoint(f"{where} is not that of {short(name)} in a format known here")
    try:
        return Tenant(
            name, str(content["token_hash"]), dict(content["settings"]), content["classes"], content["schema"],
            bool(content["missing"]), Quotas.from_dict(content["quotas"]), float(content["created"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{where} is damaged: {type(error).__name__}") from None
