"""The published schema, made of what stands beside the handlers. It is made when it is first asked for."""

import copy
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.command import CommandInfo, Ended, InputState, OutputChunk, Started
from coldframe.contract.model import Model
from coldframe.contract.paths import WatchEvent, WatchEvents
from coldframe.contract.snapshot import TextChange
from coldframe.contract.tool import ToolInfo, ToolResult
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.tools.registry import all_tools, every_tool

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


NAMED = (
    ToolResult, Started, OutputChunk, Ended, CommandInfo, InputState, ToolInfo, WatchEvent, WatchEvents, TextChange,
)  # fmt: skip
"""Models that raw routes name by `answer_of` and its like."""
Schemas = Mapping[tuple[str, Literal["validation", "serialization"]], dict[str, Any]]
"""By operation and direction: what it takes, and what it gives."""


def make_document(title: str, version: str, routes: Iterable[RawRoute | JsonRoute]) -> dict[str, Any]:
    """The OpenAPI document of *routes*, each tool with its own arguments."""
    declared = tuple(route for route in routes if isinstance(route, JsonRoute))
    answers = [(_operation_id(one), "serialization", TypeAdapter(one.answer)) for one in declared]
    bodies = [(_operation_id(one), "validation", TypeAdapter(one.body)) for one in declared if one.body is not None]
    schemas, definitions = TypeAdapter.json_schemas([*answers, *bodies], ref_template=_REF)  # type: ignore[list-item]
    components: dict[str, Any] = definitions.get("$defs", {})
    components["Error"] = ERROR_SCHEMA
    for model in NAMED:
        own = model.model_json_schema(ref_template=_REF, mode="serialization")
        components.update(own.pop("$defs", {}))
        components[model.__name__] = own
    paths: dict[str, Any] = {}
    for route in routes:
        path = route.path.replace("{path:anything}", "{path}")
        operation = _json_operation(route, schemas) if isinstance(route, JsonRoute) else _operation(route, path)
        paths.setdefault(path, {})[route.method.lower()] = operation
    paths = copy.deepcopy(paths)  # what routes say of themselves stays theirs
    _publish_definitions(paths, components)
    _publish_tools(paths, components)
    for operations in paths.values():
        for operation in operations.values():
            operation["responses"]["default"] = {
                "description": "What went wrong, and what to do",
                "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
            }
    paths["/v1/health"]["get"]["security"] = []
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation_id(route: JsonRoute) -> str:
    return re.sub(r"\W", "_", f"{route.handler.__name__}{route.path}_{route.method.lower()}")


def _json_operation(route: JsonRoute, schemas: Schemas) -> dict[str, Any]:
    name = _operation_id(route)
    answer = dict(schemas[name, "serialization"])
    if answer and "$ref" not in answer:
        answer["title"] = f"Response {name.replace('_', ' ').title()}"
    parameters = [
        {"name": part, "in": "path", "required": True, "schema": {"type": "string", "title": _title(part)}}
        for part in re.findall(r"{(\w+)}", route.path)
        if route.path_values is None
    ]
    for place, kind in (("path", route.path_values), ("query", route.query)):
        for part, schema in ({} if kind is None else kind.model_json_schema()["properties"]).items():
            if schema.get("default", ...) is None:  # it may be left out, and not be given as nothing
                del schema["default"]
            parameters.append({"name": part, "in": place, "required": place == "path", "schema": schema})
    parameters += [
        {"name": header, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for header, text in route.headers
    ]
    operation: dict[str, Any] = {"summary": _title(route.handler.__name__), "operationId": name}
    if description := inspect.getdoc(route.handler):
        operation["description"] = description
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schemas[name, "validation"]}}
        operation["requestBody"] = {"required": True, "content": content}
    content = {"application/json": {"schema": answer}}
    operation["responses"] = {"200": {"description": "Successful Response", "content": content}}
    return operation


def _title(name: str) -> str:
    return name.replace("_", " ").title()


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


def _publish_definitions(node: Any, components: dict[str, Any]) -> None:
    """What a schema of a raw route brings along goes where references are looked for."""
    if isinstance(node, list):
        for one in node:
            _publish_definitions(one, components)
    elif isinstance(node, dict):
        for name, own in node.pop("$defs", {}).items():
            _publish_definitions(own, components)
            components.setdefault(name, own)
        if str(node.get("$ref", "")).startswith("#/$defs/"):
            node["$ref"] = _REF.format(model=node["$ref"].removeprefix("#/$defs/"))
        for one in node.values():
            _publish_definitions(one, components)


def _publish_tools(paths: dict[str, Any], components: dict[str, Any]) -> None:
    """One concrete path for each tool, so that a generated client knows its arguments."""
    path = "/v1/sandboxes/{sandbox_id}/tools/{tool}"
    for spec in every_tool().values():
        answer = spec.answer.model_json_schema(ref_template=_REF, mode="serialization")
        for one, own in answer.pop("$defs", {}).items():
            components.setdefault(one, own)
        components.setdefault(spec.answer.__name__, answer)
    for name, spec in all_tools().items():
        arguments = spec.arguments.model_json_schema(ref_template=_REF, mode="validation")
        components.update(arguments.pop("$defs", {}))
        components[spec.arguments.__name__] = arguments
        operation = dict(paths[path]["post"])
        operation["summary"] = spec.description
        operation["operationId"] = f"call_{name}"
        operation["parameters"] = [p for p in operation["parameters"] if p["name"] != "tool"]
        operation["requestBody"] = {
            "content": {"application/json": {"schema": {"$ref": _REF.format(model=spec.arguments.__name__)}}}
        }
        value = {"properties": {"value": {"$ref": _REF.format(model=spec.answer.__name__)}}}
        done = {"allOf": [{"$ref": _REF.format(model="ToolResult")}, value]}
        content = {**operation["responses"]["200"]["content"], "application/json": {"schema": done}}
        answered = {**operation["responses"]["200"], "content": content}
        operation["responses"] = {**operation["responses"], "200": answered}
        paths[path.replace("{tool}", name)] = {"post": operation}


def answer_of(model: type[Model]) -> dict[str, Any]:
    """The content of an answer, of a model that is `NAMED`."""
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def list_of(model: type[Model]) -> dict[str, Any]:
    return {"application/json": {"schema": {"type": "array", "items": {"$ref": _REF.format(model=model.__name__)}}}}


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
JSON_DONE: dict[str, Any] = {
    "application/json": {"schema": {"type": "object", "properties": {"ok": {"const": True}}, "required": ["ok"]}}
}
JSON_RULES: dict[str, Any] = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["text", "sha256"],
            "properties": {"text": {"type": "string"}, "sha256": {"type": "string"}},
        }
    }
}
