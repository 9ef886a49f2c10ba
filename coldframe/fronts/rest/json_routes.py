"""Small JSON routes: what each takes and gives is declared once, checked before its handler runs, and published.

A framework that reads this from signatures was taken out again: its import was a fifth of the server's start, and its
layers cost each request more than most of these handlers. What content type a body says to be is not asked: pages of
other sites are kept out by the door, which no route can be reached without.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast, get_origin

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.model import Model
from coldframe.fronts.answers import json_response
from coldframe.fronts.streams import SMALL_BODY_CAP_BYTES, parse_json, read_body

M = TypeVar("M", bound=Model)
MAX_FAULTS = 100
"""Most faults told of one request: each byte of a body could be one."""
MAX_NAME_CHARACTERS = 200
"""Most of the name of an argument that is told: a name nobody knows can be as long as the body."""


class JsonRoute(NamedTuple):
    """A route with its schema. Its summary is the name of the handler, its description what that says of itself."""

    method: str
    path: str
    handler: Callable[..., Awaitable[object]]
    """Takes the request, and what of it is declared below, in this order."""
    answer: Any
    """The type of what the handler returns; `Any` for an answer without a schema."""
    path_values: type[Model] | None = None
    """For parts of the path that are more than texts."""
    query: type[Model] | None = None
    """Other parameters are passed over."""
    body: type[Model] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """(name, description) of those that the handler looks at."""
    beside: Callable[[Request, dict[str, Any], frozenset[str]], list[tuple[str, str]]] | None = None
    """Argument and reason of what else is wrong with a body some of whose fields are of no such form: it gets the others, and
    the names of those that were left out. So all that there is to correct is told at once."""

    async def serve(self, request: Request) -> Response:
        """Check what is declared, run the handler, and answer.

        Raises:
            InvalidArgument: with `argument`, the first thing to correct, and `faults`, the first MAX_FAULTS of them.
            TooLarge: the body is larger than any of these takes.
        """
        given: list[Model] = []
        if self.path_values is not None:
            given.append(_checked(self.path_values, request.path_params))
        if self.query is not None:
            given.append(_checked(self.query, _query_of(request, self.query)))
        if self.body is not None:
            given.append(self._checked_body(request, await _json_of(request)))
        return json_response(await self.handler(request, *given))

    def _checked_body(self, request: Request, content: object) -> Model:
        assert self.body is not None
        try:
            return _checked(self.body, content)
        except InvalidArgument as error:
            told = error.facts["faults"]
            if self.beside is not None and isinstance(content, dict) and isinstance(told, list):
                names = frozenset(str(one["argument"]) for one in told)
                more = self.beside(request, _without(content, names), names)
                told += [{"argument": name, "reason": text} for name, text in more[: MAX_FAULTS - len(told)]]
            raise


def _without(content: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The fields that are none of these, nor have one of them inside unless it can be taken out alone."""
    kept = dict(content)
    for name in names:
        first, dot, rest = name.partition(".")
        inner = kept.get(first)
        if dot and isinstance(inner, dict):
            kept[first] = _without(inner, frozenset({rest}))
        else:
            kept.pop(first, None)
    return kept


def checked_query(kind: type[M], request: Request) -> M:
    """The query of a route that answers for itself, checked in the same way. Raises InvalidArgument."""
    return cast("M", _checked(kind, _query_of(request, kind)))


def checked(kind: type[M], content: object) -> M:
    """What a body says, which may be larger than those that are read here."""
    return cast("M", _checked(kind, content))


async def checked_body(kind: type[M], request: Request) -> M:
    """The same with its body."""
    return cast("M", _checked(kind, await _json_of(request)))


def _query_of(request: Request, kind: type[Model]) -> dict[str, Any]:
    asked = request.query_params
    return {
        name: asked.getlist(name) if get_origin(field.annotation) is tuple else asked[name]
        for name, field in kind.model_fields.items()
        if name in asked
    }


async def _json_of(request: Request) -> object:
    body = await read_body(request, SMALL_BODY_CAP_BYTES)
    if not body:
        raise _invalid([("body", "Field required")])
    return parse_json(body)


def _checked(kind: type[Model], content: Mapping[str, Any] | object) -> Model:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        faults = [one for one in found if one["type"] != "default_factory_not_called"]  # for want of another field
        raise _invalid(
            [
                (".".join(map(str, one["loc"]))[:MAX_NAME_CHARACTERS] or "body", str(one["msg"]))
                for one in faults[:MAX_FAULTS]
            ]
        ) from None


def _invalid(faults: list[tuple[str, str]]) -> InvalidArgument:
    argument, reason = faults[0]
    reason = reason.removeprefix("Value error, ")
    return InvalidArgument(
        f"`{argument[:80]}`: {reason[:1].lower()}{reason[1:]}",
        hint="correct the argument named; `GET /openapi.json` has the schema",
        argument=argument,
        faults=[{"argument": name, "reason": text} for name, text in faults],
    )
