"""The published schema: FastAPI's own routes, and the plain ones described beside their handlers."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.command import Ended, OutputChunk, Started
from coldframe.contract.tool import ToolResult
from coldframe.tools.registry import all_tools

Handler = Callable[[Request], Awaitable[Response]]
_REF = "#/components/schemas/{model}"
ERROR_SCHEMA: dict[str, Any] = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "family", "retry", "hint", "facts", "next_actions"],
            "properties": {
                "code": {"type": "string", "description": "Stable; match on this."},
                "message": {"type": "string"},
                "family": {"type": "string"},
                "retry": {"type": "string", "enum": ["never", "later", "after_approval", "after_change"]},
                "hint": {"type": "string"},
                "facts": {"type": "object"},
                "next_actions": {"type": "array", "items": {"type": "object"}},
            },
        },
        "result": {"description": "The whole tool result, where the call came as far as the gate."},
    },
}


class RawRoute(NamedTuple):
    """A plain route with its schema."""

    method: str
    path: str
    """In Starlette's form; `{path:anything}` stands in the schema as `{path}`."""
    handler: Handler
    summary: str
    answer: dict[str, Any]
    """Content of the 200 answer by media type."""
    body: dict[str, Any] | None = None
    """Content of the request by media type."""
    query: tuple[tuple[str, str, str], ...] = ()
    """(name, JSON type, description)."""
    headers: tuple[tuple[str, str], ...] = ()


def publish_schema(app: FastAPI, routes: Iterable[RawRoute]) -> None:
    """Make `app.openapi()` describe *routes* as well, each tool with its own arguments."""
    standard = app.openapi
    cached: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not cached:
            cached.update(_complete(standard(), tuple(routes)))
        return cached

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(schema: dict[str, Any], routes: tuple[RawRoute, ...]) -> dict[str, Any]:
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    components["Error"] = ERROR_SCHEMA
    for model in (ToolResult, Started, OutputChunk, Ended):
        own = model.model_json_schema(ref_template=_REF, mode="serialization")
        components.update(own.pop("$defs", {}))
        components[model.__name__] = own
    for route in routes:
        path = route.path.replace("{path:anything}", "{path}")
        schema["paths"].setdefault(path, {})[route.method.lower()] = _operation(route, path)
    _publish_tools(schema, components)
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "What went wrong, and what to do",
                "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
            }
    components.pop("HTTPValidationError", None)
    components.pop("ValidationError", None)
    schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    schema["paths"].get("/v1/health", {}).get("get", {})["security"] = []
    return schema


def _operation(route: RawRoute, path: str) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in path.split("/")
        if part.startswith("{")
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": {"type": kind}} for name, kind, text in route.query
    ]
    parameters += [
        {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
        for name, text in route.headers
    ]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.handler.__name__,
        "parameters": parameters,
        "responses": {"200": {"description": "Done", "content": route.answer}},
    }
    if route.body is not None:
        operation["requestBody"] = {"content": route.body}
    return operation


def _publish_tools(schema: dict[str, Any], components: dict[str, Any]) -> None:
    """One concrete path for each tool, so that a generated client knows its arguments."""
    path = "/v1/sandboxes/{sandbox_id}/tools/{tool}"
    pattern = schema["paths"].get(path)
    if pattern is None:
        return
    for name, spec in all_tools().items():
        arguments = spec.arguments.model_json_schema(ref_template=_REF, mode="validation")
        components.update(arguments.pop("$defs", {}))
        components[spec.arguments.__name__] = arguments
        operation = dict(pattern["post"])
        operation["summary"] = spec.description
        operation["operationId"] = f"call_{name}"
        operation["parameters"] = [p for p in operation["parameters"] if p["name"] != "tool"]
        operation["requestBody"] = {
            "content": {"application/json": {"schema": {"$ref": _REF.format(model=spec.arguments.__name__)}}}
        }
        operation["responses"] = dict(operation["responses"])
        schema["paths"][path.replace("{tool}", name)] = {"post": operation}


JSON_RESULT: dict[str, Any] = {"application/json": {"schema": {"$ref": _REF.format(model="ToolResult")}}}
BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
EVENTS: dict[str, Any] = {
    "application/x-ndjson": {
        "schema": {
            "description": "One event a line; bytes are base64 in the URL-safe alphabet.",
            "oneOf": [
                {"$ref": _REF.format(model="Started")},
                {"$ref": _REF.format(model="OutputChunk")},
                {"$ref": _REF.format(model="Ended")},
                {
                    "type": "object",
                    "properties": {
                        "event": {"const": "result"},
                        "result": {"$ref": _REF.format(model="ToolResult")},
                    },
                },
                {"type": "object", "properties": {"event": {"const": "error"}, "error": {"type": "object"}}},
            ],
        }
    },
    "application/x-coldframe-frames": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": (
                "The same events as frames: length of head and of body as four bytes each, big endian; the event as"
                " JSON; and the body, which is the `data` of an output event as it is."
            ),
        }
    },
}
PLAIN_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
JSON_LIST: dict[str, Any] = {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}}
