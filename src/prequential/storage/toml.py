"""Reading TOML files that people write: whatever is wrong with one is said in one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from prequential.errors import BadInput

LARGEST = 2**20  # bytes of a file of settings


def read_toml(path: Path, what: str = "settings") -> dict[str, Any]:
    """The content of a TOML file.

    Parameters
    ----------
    path
        The file.
    what
        What it holds, for the sentence on a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
        raise BadInput(f"cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > LARGEST:
        raise BadInput(f"{path} is larger than {LARGEST:,} bytes, which is too much for {what}")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is not a TOML file: byte {error.start} is {data[error.start]:#04x}, expected UTF-8"
        ) from None
    except RecursionError:
        raise BadInput(f"{path} is not a TOML file of {what}: its lists or tables are nested too deep") from None
    except ValueError as error:  # also of a number with thousands of digits
        raise BadInput(f"{path} is not a TOML file: {str(error)[:150]}") from None
