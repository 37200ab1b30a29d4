"""What the OpenAPI page says of routes whose bodies are read by hand, which is faster than what FastAPI does."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic.json_schema import models_json_schema

from prequential.serve import schemas
from prequential.serve.schemas import Model

REF = "#/components/schemas/{model}"
ERRORS = {
    400: "Not a request that can be read",
    401: "The token is missing or wrong",
    404: "No such tenant",
    408: "The request came too slowly",
    409: "Another label was given, or a request with this key is under way",
    410: "The prediction has expired",
    413: "Too large",
    422: "A field cannot be used",
    429: "A quota is used up",
    503: "Not now: try again after Retry-After seconds",
    507: "The disk is full",
}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A request with the same key and body is done once, however often it is sent.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}


def documented(
    request: type[Model] | None, status: int, *replies: type[Model], media: str = "application/json", more: int = 0
) -> dict[str, Any]:
    """The arguments of a route that document it: what it takes, the status of its reply (or two) and the reply."""
    extra: dict[str, Any] = {}
    if request is not None:
        schema = {"$ref": REF.format(model=request.__name__)}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        if request in (schemas.PredictRequest, schemas.LabelsRequest, schemas.ObserveRequest):
            extra["parameters"] = [KEY]
    refs = [{"$ref": REF.format(model=reply.__name__)} for reply in replies]
    shown: dict[str, Any] = (
        {"content": {media: {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}} if refs else {}
    )
    if not refs and status != 204:
        shown = {"content": {media: {"schema": {"type": "object" if "json" in media else "string"}}}}
    error = {"content": {"application/json": {"schema": {"$ref": REF.format(model="ErrorReply")}}}}
    codes: dict[int | str, dict[str, Any]] = {status: {"description": "Done", **shown}}
    if more:
        codes[more] = {"description": "Done before", **shown}
    for code, what in ERRORS.items():
        codes[code] = {"description": what, **error}
    return {"status_code": status, "response_class": Response, "responses": codes, "openapi_extra": extra}


def add_schemas(app: FastAPI) -> None:
    """Gives the OpenAPI page the schemas that routes refer to, and says how tokens are given."""

    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            content = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            kinds = [kind for kind in vars(schemas).values() if isinstance(kind, type) and issubclass(kind, Model)]
            _, found = models_json_schema([(kind, "validation") for kind in kinds], ref_template=REF)
            components = content.setdefault("components", {})
            components["schemas"] = found["$defs"]
            components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            for path, routes in content["paths"].items():
                for route in routes.values():
                    if path not in ("/health", "/ready"):
                        route["security"] = [{"bearer": []}]
            app.openapi_schema = content
        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign]
