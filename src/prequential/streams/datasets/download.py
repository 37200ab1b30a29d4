"""Fetching a data set from its official address, with its checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from prequential.errors import BadInput
from prequential.streams.cache import cache_folder
from prequential.trust import need_trust

PIECE = 2**20


def download(url: str, path: Path, *, md5: str, timeout: float = 30) -> Path:
    """Fetches a file unless it is there already, and checks it; a file with another content is never left behind.

    Parameters
    ----------
    url
        Where it is.
    path
        Where it goes.
    md5
        What its MD5 sum must be.
    timeout
        Seconds to wait for an answer.
    """
    if path.exists() and _md5(path) == md5:
        return path
    need_trust(f"to fetch {url}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer, temporary.open("wb") as file:
            while piece := answer.read(PIECE):
                file.write(piece)
        if (found := _md5(temporary)) != md5:
            raise BadInput(f"{url} gave a file with MD5 {found}, expected {md5}; it was not kept")
        temporary.replace(path)
    except (OSError, urllib.error.URLError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise BadInput(
            f"{url} cannot be fetched ({reason}); fetch it where there is a network and give its path"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def given_or_downloaded(path: str | Path | None, wanted: bool, *, of: str, url: str, name: str, md5: str) -> Path:
    """The path that was given, or that of the official file in the cache folder, fetched if `wanted`."""
    if path is not None:
        return Path(path)
    if not wanted:
        raise BadInput(f"no path to {of} was given; expected one, or download=True")
    return download(url, cache_folder() / name, md5=md5)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
