"""Results and errors as HTTP answers, the same from every route."""

import json
from typing import Any

from starlette.responses import Response

from coldframe.contract.errors import ColdframeError, Unauthenticated, catalogue
from coldframe.contract.model import Model
from coldframe.contract.tool import ToolResult

NO_SNIFF = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


_JSON_HEADERS = (
    (b"content-type", b"application/json"),
    *((name.lower().encode(), value.encode()) for name, value in NO_SNIFF.items()),
)


class JsonResponse(Response):
    """A whole answer in JSON. What its head says is ready but for the length."""

    def __init__(self, body: bytes, status: int) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", str(len(body)).encode()), *_JSON_HEADERS]


def json_response(content: object, status: int = 200) -> Response:
    """Models, lists of models, or plain JSON."""
    return JsonResponse(encode_json(content), status)


def encode_json(content: object) -> bytes:
    if isinstance(content, Model):
        return content.__pydantic_serializer__.to_json(content)  # the bytes that `model_dump_json` makes a text of
    return json.dumps(content, default=_plain, separators=(",", ":")).encode()


def _plain(value: object) -> Any:
    if isinstance(value, Model):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def error_response(error: ColdframeError) -> Response:
    response = json_response({"error": error.to_wire()}, error.status)
    if isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def result_response(result: ToolResult) -> Response:
    """200 for a call that was carried out, whatever its program's exit code; else the status of its error."""
    if result.error is None:
        return json_response(result)
    return json_response({"error": result.error, "result": result}, status_of(result.error))


def status_of(error: dict[str, Any]) -> int:
    cls = catalogue().get(str(error.get("code")))
    return cls.status if cls is not None else ColdframeError.status
