"""What a request can fail with: a status of HTTP, one sentence, and the field that it is about."""

from __future__ import annotations

import errno
from typing import Any

from prequential.errors import BadCheckpoint, PrequentialError, StorageError, one_line

RETRY_SECONDS = 1  # after which a request that was refused for the moment may be tried again


class Failure(Exception):
    """A reply that is an error.

    Parameters
    ----------
    status
        The status of HTTP.
    message
        One sentence.
    field
        The field of the request that it is about.
    retry
        After how many seconds the same request may succeed.
    """

    def __init__(self, status: int, message: object, field: str | None = None, retry: float | None = None) -> None:
        super().__init__(one_line(message))
        self.status, self.field, self.retry = status, field, retry

    @property
    def message(self) -> str:
        return str(self.args[0])

    def to_json(self) -> dict[str, Any]:
        """As processes send it to one another."""
        return {"message": self.message, "field": self.field, "retry": self.retry}

    @classmethod
    def from_json(cls, status: int, content: dict[str, Any]) -> Failure:
        return cls(status, content["message"], content["field"], content["retry"])


def busy(message: str) -> Failure:
    """Not now, but soon: 503 with Retry-After."""
    return Failure(503, message, retry=RETRY_SECONDS)


def over_quota(message: str, retry: float = RETRY_SECONDS) -> Failure:
    return Failure(429, message, retry=retry)


def explained(error: Exception, field: str | None = None) -> Failure:
    """The failure that an error of the learner means.

    >>> explained(StorageError("journal/log.bin: No space left on device")).status
    503
    """
    if isinstance(error, Failure):
        return error
    if isinstance(error, OSError):
        full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full or error.errno in (errno.ENOSPC, errno.EDQUOT) else "the disk refused a write"
        return Failure(507 if "full" in what else 503, f"{what}; nothing was changed, try again later", retry=5)
    if isinstance(error, BadCheckpoint):
        return Failure(503, f"what the tenant has on disk cannot be used: {error}")
    if isinstance(error, PrequentialError):
        return Failure(422, error, _field_of(str(error)) or field)
    return Failure(500, f"internal error: {type(error).__name__}")


def is_storage(error: Exception) -> bool:
    """Whether the disk is at fault."""
    return isinstance(error, (StorageError, OSError))


def _field_of(message: str) -> str | None:
    """The field that a sentence begins with."""
    return "id" if message.startswith("id ") else None
