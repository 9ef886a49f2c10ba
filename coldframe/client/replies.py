"""Reads what the server gave, as models or as plain objects.

A newer server may say more: what it says beside the fields known here is passed over. All of it raises
Unavailable for anything that this client does not know, since then it is no Coldframe server, or one of another age.
Nothing here needs pydantic before there is something to read.
"""

import json
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from coldframe.contract.errors import Unavailable

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter, ValidationError

    from coldframe.client.answers import Answer
    from coldframe.contract.tool import ToolResult

T = TypeVar("T", bound="Answer")
M = TypeVar("M", bound="BaseModel")
JsonObject = dict[str, Any]


def answer_from(result: "ToolResult", kind: type[T]) -> T:
    """The answer of a tool, with the result that it came in."""
    answer = read_part(kind, result.value)
    answer._result = result
    return answer


def read_answer(kind: type[M], body: bytes | str) -> M:
    """One object that the server gave as JSON."""
    try:
        return kind.model_validate_json(body, extra="ignore")
    except ValueError as error:
        raise _not_known(error) from error


def read_part(kind: type[M], content: object) -> M:
    """The same of a part of an answer."""
    try:
        return kind.model_validate(content, extra="ignore")
    except ValueError as error:
        raise _not_known(error) from error


def read_answers(kind: type[M], body: bytes) -> list[M]:
    """A list of them."""
    try:
        return _list_of(kind).validate_json(body, extra="ignore")
    except ValueError as error:
        raise _not_known(error) from error


def read_object(body: bytes) -> JsonObject:
    """An object without a model."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise unknown_answer("it is not JSON") from error
    if not isinstance(content, dict):
        raise unknown_answer("it is not a JSON object")
    return content


def _not_known(error: ValueError) -> Unavailable:
    """*error* is pydantic's, the only one that validation raises."""
    faults = cast("ValidationError", error)
    first = faults.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return unknown_answer(f"{faults.title}{place and ' `' + place + '`'}: {first['msg'][:1].lower()}{first['msg'][1:]}")


def unknown_answer(what: str) -> Unavailable:
    return Unavailable(
        f"the answer of the server is not what this client knows: {what}",
        hint="is this a Coldframe server, of a version that fits this client?",
    )


@cache
def _list_of(kind: type[M]) -> "TypeAdapter[list[M]]":
    from pydantic import TypeAdapter

    return TypeAdapter(list[kind])  # type: ignore[valid-type]
