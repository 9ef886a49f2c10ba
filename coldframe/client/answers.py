"""What the SDK's typed methods return: the answers of the tools, by their published schemas.

A newer server may say more: fields unknown here are ignored. Each answer carries the whole ToolResult it
came in, with label, decision and receipt, as `result`.
"""

import base64
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, TypeAdapter, ValidationError

from coldframe.contract.command import Contact, FileChanges, Leftover, LimitHit
from coldframe.contract.errors import Unavailable
from coldframe.contract.tool import ToolResult


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    _result: ToolResult | None = PrivateAttr(default=None)

    @property
    def result(self) -> ToolResult:
        """Label, taint, decision and receipt of the call."""
        if self._result is None:
            raise AttributeError("this answer was not made by a call")
        return self._result


T = TypeVar("T", bound=Answer)
M = TypeVar("M", bound=BaseModel)
Bytes = bytes
"""The type, where a field of the same name hides it."""


def answer_from(result: ToolResult, kind: type[T]) -> T:
    answer = read_part(kind, result.value)
    answer._result = result
    return answer


def read_answer(kind: type[M], body: bytes | str) -> M:
    """One object that the server gave as JSON. What a newer one says beside the fields known here is passed over.

    Raises:
        Unavailable: it is something else; here as in all that follow.
    """
    try:
        return kind.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        raise _not_known(error) from error


def read_part(kind: type[M], content: object) -> M:
    """The same of a part of an answer."""
    try:
        return kind.model_validate(content, extra="ignore")
    except ValidationError as error:
        raise _not_known(error) from error


def read_answers(kind: type[M], body: bytes) -> list[M]:
    """A list of them."""
    try:
        return _list_of(kind).validate_json(body, extra="ignore")
    except ValidationError as error:
        raise _not_known(error) from error


def read_object(body: bytes) -> "JsonObject":
    """An object without a model."""
    try:
        return _OBJECT.validate_json(body)
    except ValidationError as error:
        raise _not_known(error) from error


def _not_known(error: ValidationError) -> Unavailable:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return Unavailable(
        f"the answer of the server is not what this client knows: {error.title}{place and ' `' + place + '`'}: "
        f"{first['msg'][:1].lower()}{first['msg'][1:]}",
        hint="is this a Coldframe server, of a version that fits this client?",
    )


@cache
def _list_of(kind: type[M]) -> TypeAdapter[list[M]]:
    return TypeAdapter(list[kind])  # type: ignore[valid-type]


class Written(Answer):
    path: str
    bytes_written: int
    created: bool
    version: str
    sha256: str
    sha256_before: str | None = None


class FileContent(Answer):
    path: str
    content: str | None = None
    """The exact text; None if the file is binary or base64 was asked for."""
    content_base64: str | None = None
    binary: bool
    encoding: Literal["utf-8", "base64"]
    offset: int
    bytes: int
    next_offset: int | None = None
    total_bytes: int
    complete: bool
    version: str
    mode: int

    @property
    def data(self) -> Bytes:
        """The content as bytes, whatever form it came in."""
        if self.content is not None:
            return self.content.encode()
        return base64.b64decode(self.content_base64 or "")


class Edited(Answer):
    path: str
    content: str | None = None
    content_base64: str | None = None
    replacements: int
    bytes_written: int
    version: str
    sha256: str
    sha256_before: str


class DirectoryEntry(Answer):
    path: str
    name: str
    type: str
    size: int
    mode: int
    modified_at: datetime
    target: str | None = None


class Unreadable(Answer):
    path: str
    reason: str


class Listing(Answer):
    path: str
    entries: tuple[DirectoryEntry, ...]
    complete: bool
    truncated_because: str | None = None
    errors: tuple[Unreadable, ...] = ()


class Match(Answer):
    path: str
    line: int
    text: str
    clipped: bool = False


class Found(Answer):
    matches: tuple[Match, ...]
    complete: bool
    truncated_because: str | None = None
    files_searched: int
    binary_skipped: int
    large_skipped: tuple[str, ...] = ()
    special_skipped: int = 0
    directories_skipped: tuple[str, ...] = ()
    errors: tuple[Unreadable, ...] = ()


class StreamView(Answer):
    bytes: int
    sha256: str
    invalid_utf8: bool
    complete: bool
    omitted_bytes: int
    omitted_at: int | None = None


class Segment(Answer):
    stream: Literal["stdout", "stderr"]
    bytes: int
    text: str | None = None
    base64: str | None = None


class CommandAnswer(Answer):
    """How a command went. A failing program is a result, never an exception."""

    command_id: str
    state: Literal["running", "ended"]
    ended: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    cancelled: bool = False
    out_of_memory: bool = False
    limit: LimitHit | None = None
    start_error: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
    duration_ms: float | None = None
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"
    stdout: str | None = None
    stderr: str | None = None
    stdout_base64: str | None = None
    stderr_base64: str | None = None
    invalid_utf8: bool = False
    complete: bool = False
    truncated: bool = False
    streamed: bool = False
    stdout_info: StreamView | None = None
    stderr_info: StreamView | None = None
    transcript: tuple[Segment, ...] | None = None
    order: str | None = None
    leftovers: tuple[Leftover, ...] = ()
    leftovers_ended: int = 0
    files: FileChanges | None = None
    contacts: tuple[Contact, ...] = ()
    artifact_id: str
    pid: int | None = None


class LiveRules(Answer):
    """The rule set in force."""

    text: str
    sha256: str


JsonObject = dict[str, Any]
_OBJECT = TypeAdapter(JsonObject)
