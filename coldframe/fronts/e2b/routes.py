"""Routes of the E2B control API: what a handler is told, and how it answers.

Bodies are JSON objects whose unknown fields are passed over, since each version of the SDKs sends others; what a handler knows and
cannot do is refused with the reason. Errors are `{"code": STATUS, "message": …}`, with the code of ours as `error_code`.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, InvalidArgument
from coldframe.control.control import Control
from coldframe.fronts.answers import NO_SNIFF
from coldframe.fronts.edge.routing import host_name, is_address
from coldframe.fronts.streams import SMALL_BODY_CAP_BYTES, parse_json, read_body

ENVD_VERSION = "0.6.13"
"""Of the data plane that we speak: SDKs choose by it what they may ask for."""
CLIENT_ID = "coldframe"
OnMissing = Literal["refuse", "degrade"]


@dataclass(frozen=True)
class E2bCall:
    """One call of the control API, by somebody who may make it."""

    control: Control
    caller: Caller
    request: Request
    values: dict[str, str]
    """Parts of the path, decoded."""
    on_missing: OnMissing = "degrade"
    """What the operator wants where a limit can be kept by best effort only."""

    @cached_property
    def domain(self) -> str:
        """Under which the caller finds sandboxes, with a port if its own address has one."""
        host = self.request.headers.get("host", "").strip().lower()
        name, port = host_name(host), host.rpartition(":")[2]
        name = "localhost" if is_address(name) else name.removeprefix("api.").removeprefix("sandbox.")
        return f"{name}:{port}" if port.isdigit() else name

    @property
    def origin(self) -> str:
        """Of the address that the caller used, as `https://api.example:4561`."""
        return f"{self.request.url.scheme}://{self.request.headers.get('host', 'localhost')}"

    async def body(self) -> dict[str, Any]:
        """Empty for no body, which some SDKs send where they have nothing to say."""
        content = await read_body(self.request, SMALL_BODY_CAP_BYTES)
        if not content.strip():
            return {}
        found = parse_json(content)
        if not isinstance(found, dict):
            raise InvalidArgument("the body is not a JSON object", argument="body")
        return found

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    def number(self, name: str, default: int, *, least: int = 0, most: int = 1 << 31) -> int:
        text = self.request.query_params.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,15}", text) or not least <= int(text) <= most:
            raise InvalidArgument(f"`{name}` is a whole number from {least} to {most}", argument=name)
        return int(text)


Handler = Callable[[E2bCall], Awaitable[Response | None]]
"""None: what is asked for is not this handler's, and the next route of that path answers."""


class E2bRoute(NamedTuple):
    method: str
    path: str
    """With parts in braces, as `/sandboxes/{sandbox_id}`; each is one part of a path, decoded afterwards."""
    handler: Handler


class OpenRoute(NamedTuple):
    """One that is asked without a key."""

    method: str
    path: str
    handler: Callable[[Control, Request, dict[str, str]], Awaitable[Response]]


H = TypeVar("H")


class RouteTable(Generic[H]):
    """Routes, found by method and path as it was sent: an id may hold an encoded slash or colon."""

    def __init__(self, routes: Iterable[tuple[str, str, H]]) -> None:
        self._routes = [(method, _pattern(path), handler) for method, path, handler in routes]

    def find(self, method: str, raw_path: str) -> Iterator[tuple[H, dict[str, str]]]:
        for wanted, pattern, handler in self._routes:
            if wanted == method and (found := pattern.fullmatch(raw_path)) is not None:
                yield handler, {name: unquote(value) for name, value in found.groupdict().items()}


def with_request(serve: Callable[[Request], Awaitable[Response]]) -> Handler:
    """A handler that takes a request as those of our own API do, with caller, control and parts of the path in it."""

    async def handle(call: E2bCall) -> Response:
        scope = call.request.scope
        scope["app"] = call
        scope["path_params"] = call.values
        scope.setdefault("state", {})["caller"] = call.caller
        return await serve(call.request)

    return handle


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{([a-z_]+)\}", path)
    text = "".join(f"(?P<{part}>[^/]+)" if number % 2 else re.escape(part) for number, part in enumerate(parts))
    return re.compile(text + "/?")


def answer(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(content, separators=(",", ":"), default=str).encode()
    return Response(text, status, {**NO_SNIFF, **(headers or {})}, media_type="application/json")


def no_content(headers: dict[str, str] | None = None) -> Response:
    return Response(b"", 204, {**NO_SNIFF, **(headers or {})})


def error_answer(error: ColdframeError) -> Response:
    """Its advice is part of the message, since SDKs show nothing else."""
    return answer(error_of(error), error.status)


def error_of(error: ColdframeError) -> dict[str, Any]:
    has_own_advice = error.advice != type(error).hint  # that of the code names routes of our own API
    return {
        "code": error.status,
        "message": f"{error.message} ({error.advice})" if has_own_advice else error.message,
        "error_code": error.wire_code or error.code,
    }


def refuse_field(name: str, why: str, hint: str) -> InvalidArgument:
    """For something that E2B has and this server does not."""
    return InvalidArgument(f"`{name}` cannot be had here: {why}", hint=hint, argument=name)
