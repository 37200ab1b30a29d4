"""Reading requests: limited in size and time, and turned into what a worker takes."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from prequential.serve.failures import Failure
from prequential.serve.schemas import LabelsRequest, Model, ObserveRequest, PredictRequest
from prequential.serve.service import new_id

Given = TypeVar("Given", bound=Model)


async def read_body(request: Request, *, largest: int, seconds: float) -> bytes:
    """The body of a request, if it is small enough and comes in time."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > largest:
        raise _too_large(largest)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Failure(400, "the client has gone away")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > largest:
                    raise _too_large(largest)
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise Failure(408, f"the request did not come within {seconds:g} s") from None
    return b"".join(parts)


def _too_large(largest: int) -> Failure:
    return Failure(413, f"the request has more than {largest:,} bytes; send it in parts")


def parse(kind: type[Given], body: bytes) -> Given:
    """A request of some kind; what is wrong with another one is said in a sentence."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _explained(error) from None


EXPECTED = {  # of fields that may be of several kinds
    "id": "expected a text of 1 to 256 characters or a whole number",
    "x": "expected a list of numbers or an object of named fields",
    "y": "expected a text, a number, true or false",
}
KIND = re.compile(r"bool|int|float|str|none|(list|dict|constrained|function|nullable|model)\b.*|.*[\[\]-].*")


def _explained(error: ValidationError) -> Failure:
    found = error.errors(include_url=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Failure(400, f"the body is not JSON: {found[0]['msg'].removeprefix('Invalid JSON: ')}")
    field, of_several = _field(found[0]["loc"])
    said = found[0]["msg"].removeprefix("Value error, ")
    if of_several:  # say what is wrong with the kind that was meant, or which kinds there are
        of_field = [one for one in found if _field(one["loc"])[0] == field]
        meant = [one["msg"] for one in of_field if not one["type"].endswith("_type")]
        said = meant[0] if meant else EXPECTED.get(field.rpartition(".")[2], said)
    return Failure(422, f"{field or 'the body'}: {said[:1].lower()}{said[1:]}", field or None)


def _field(location: tuple[int | str, ...]) -> tuple[str, bool]:
    """The field that a place in a request is in; and whether it may be of several kinds, which then follow."""
    parts: list[str] = []
    for part in location:
        if isinstance(part, str) and parts and KIND.fullmatch(part):
            return ".".join(parts), True
        parts.append(str(part))
    return ".".join(parts), False


def predict_content(given: PredictRequest, key: str | None) -> dict[str, Any]:
    """What a worker takes to predict; rows without an id get one, which depends on the key where there is one."""
    rows: list[Any] = given.rows or [given]
    ids = [row.id for row in rows]
    if given.remember:
        ids = [(f"{key}-{i}" if key else new_id()) if id is None else id for i, id in enumerate(ids)]
    return {
        "rows": [{"id": None if id is None else str(id), "x": row.x} for id, row in zip(ids, rows, strict=True)],
        "remember": given.remember,
    }


def learn_content(given: LabelsRequest | ObserveRequest, key: str | None, print: str) -> dict[str, Any]:
    """What a worker takes to learn."""
    several = given.rows is not None
    rows: list[Any] = given.rows if given.rows is not None else [given]
    return {
        "rows": [{"id": None if row.id is None else str(row.id), "x": row.x, "y": row.y} for row in rows],
        "several": several,
        "key": key,
        "print": print,
    }


def as_json(content: Any) -> bytes:
    """A reply as JSON; what is not finite, for which JSON has no number, is null."""
    try:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(content), separators=(",", ":")).encode()


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, (list, tuple)) else content
