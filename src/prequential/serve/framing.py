"""Messages between the web process and its workers: JSON arrays, each behind its length, over a socket.

A frame holds any number of messages, so that what waits goes in one write.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

LENGTH = struct.Struct("<I")
LARGEST = 1 << 30

Message = list[Any]
# [number, operation, tenant, content] to a worker; [number, status, content] back; [0, tenant, event] for subscribers


def frame(messages: list[Message]) -> bytes:
    """Messages as bytes.

    >>> list(split(bytearray(frame([[1, "predict"], [2, "label"]]))))
    [[1, 'predict'], [2, 'label']]
    """
    data = json.dumps(messages, separators=(",", ":")).encode()
    return LENGTH.pack(len(data)) + data


def split(buffer: bytearray) -> Iterator[Message]:
    """The messages of all frames that are whole, which are taken out of the buffer."""
    at = 0
    while len(buffer) - at >= LENGTH.size:
        (size,) = LENGTH.unpack_from(buffer, at)
        if len(buffer) - at - LENGTH.size < size:
            break
        at += LENGTH.size
        yield from json.loads(bytes(buffer[at : at + size]))
        at += size
    del buffer[:at]


def receive(connection: socket.socket) -> Iterator[list[Message]]:
    """Messages as they come, until the other side is gone."""
    buffer = bytearray()
    while data := connection.recv(1 << 20):
        buffer += data
        messages = list(split(buffer))
        if messages:
            yield messages
