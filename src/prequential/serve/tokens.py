"""Tokens: made at random, shown once, kept as a hash."""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "pq_"


def new_token() -> str:
    """A token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What is kept of a token. It is random, so that one round of SHA-256 cannot be turned back by guessing.

    >>> hash_token("pq_example")[:12]
    '3d0c74cd8277'
    """
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def matches(token: str, kept: str) -> bool:
    """Whether a token has this hash, in a time that does not depend on where they differ."""
    return secrets.compare_digest(hash_token(token), kept)


def bearer(header: str | None) -> str:
    """The token of an Authorization header; empty where there is none.

    >>> bearer("Bearer pq_abc"), bearer("Basic abc"), bearer(None)
    ('pq_abc', '', '')
    """
    kind, _, token = (header or "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
