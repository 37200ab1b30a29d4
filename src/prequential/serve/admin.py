"""The admin token of a service: it creates, lists and deletes tenants, and reads the figures of all of them."""

from __future__ import annotations

import os
from pathlib import Path

from prequential.errors import BadSetting
from prequential.serve.tokens import hash_token, new_token
from prequential.storage.files import storage
from prequential.storage.sealed import read_sealed, write_sealed

VARIABLE = "PREQUENTIAL_ADMIN_TOKEN"
FORMAT = "prequential-service-1"
SHORTEST = 16  # characters of a token that somebody chose


def admin_hash(home: Path, *, rotate: bool = False) -> tuple[str, str | None]:
    """The hash of the admin token, and the token itself where it was made just now."""
    path = home / "service.json"
    given = os.environ.get(VARIABLE)
    if given is not None:
        if len(given) < SHORTEST:
            raise BadSetting(f"{VARIABLE} has {len(given)} characters, expected at least {SHORTEST}")
        return hash_token(given), None
    if path.exists() and not rotate:
        return str(read_sealed(path)["admin_hash"]), None
    token = new_token()
    with storage(path):
        write_sealed(path, {"format": FORMAT, "admin_hash": hash_token(token)})
    return hash_token(token), token
