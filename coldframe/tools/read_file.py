"""read_file: the exact content of one file, or of a range of it."""

import base64
import codecs
from typing import Annotated, Literal

from pydantic import Field, StrictInt

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.files import ReadAnswer, ReadFile
from coldframe.tools.registry import (
    Answer,
    Arguments,
    CallFacts,
    PathArgument,
    Ran,
    Text,
    ToolCall,
    relative_path,
    shown_path,
    tool,
)


class ReadFileArguments(Arguments):
    path: PathArgument
    offset: Annotated[StrictInt, Field(ge=0)] = Field(default=0, description="First byte wanted.")
    length: Annotated[StrictInt, Field(ge=0)] | None = Field(
        default=None, description="Bytes wanted; the rest of the file by default. One answer holds at most 64 MiB."
    )
    encoding: Literal["auto", "utf-8", "base64"] = Field(
        default="auto", description="`auto` gives text if it is UTF-8 without NUL, and base64 otherwise."
    )
    if_version: Text | None = Field(default=None, description="CONFLICT if the file has another version by now.")

    def facts(self) -> CallFacts:
        return CallFacts(path=relative_path(self.path))


class ReadFileAnswer(Answer):
    path: str
    content: str | None
    """The exact text, byte order mark and line ends included; None if base64 is given instead."""
    content_base64: str | None
    """The bytes, if they are no text or base64 was asked for."""
    binary: bool
    """The bytes are no UTF-8, or hold a NUL."""
    encoding: Literal["utf-8", "base64"]
    offset: int
    bytes: int
    """How many bytes this answer holds. A range that would end within a character ends before it."""
    next_offset: int | None
    """Where the rest begins; None at the end of the file."""
    total_bytes: int
    complete: bool
    """True if this is the whole file."""
    version: str
    mode: int


def decode_range(data: bytes, *, to_end: bool) -> tuple[str, int] | None:
    """Return the text of *data* and how many of its bytes that is, or None if it is binary.

    Unless the range reaches the end of the file, up to three bytes of a cut character are left for the next one.
    """
    if b"\0" in data:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(data, final=to_end)
    except UnicodeDecodeError:
        return None
    return text, len(data) - len(decoder.getstate()[0])


def _beside(found: ReadAnswer) -> ReadFileAnswer:
    """The answer to a caller that takes the bytes beside it, and passes them on as bytes: nobody asks if they are text."""
    end = found.offset + len(found.content)
    return ReadFileAnswer(
        path=shown_path(found.path),
        content=None,
        content_base64=None,
        binary=True,
        encoding="base64",
        offset=found.offset,
        bytes=len(found.content),
        next_offset=end if end < found.total_bytes else None,
        total_bytes=found.total_bytes,
        complete=found.complete,
        version=found.version,
        mode=found.mode,
    )


@tool(arguments=ReadFileArguments, answer=ReadFileAnswer, writes=False)
async def read_file(call: ToolCall[ReadFileArguments]) -> Ran:
    """Read a file of the workspace. Text comes back exactly as it is stored; binary content as base64 with
    `binary: true`. A range can be asked for; the answer says what it holds and where the rest begins."""
    arguments = call.arguments
    found = await call.box.ask(
        ReadFile(
            path=relative_path(arguments.path),
            offset=arguments.offset,
            length=arguments.length,
            if_version=arguments.if_version,
        )
    )
    return answered(call, found)


def answered(call: ToolCall[ReadFileArguments], found: ReadAnswer) -> Ran:
    """What was found in the form that the caller wants it in."""
    arguments = call.arguments
    data = found.content
    if call.deliver is not None:
        call.deliver(data)
        return Ran(_beside(found), output=lambda: data, output_bytes=len(data), whole=found.complete)
    end = found.offset + len(data)
    decoded = decode_range(data, to_end=end >= found.total_bytes)
    binary = decoded is None
    if arguments.encoding == "base64":
        decoded = None
    if decoded is not None and data and decoded[1] == 0:
        decoded = None  # a range shorter than one character: only its bytes can be given
    if decoded is None and arguments.encoding == "utf-8":
        raise InvalidArgument(
            f"`{shown_path(found.path)}` is not UTF-8 text",
            hint="read it with `encoding: base64` or `auto`",
            argument="encoding",
            total_bytes=found.total_bytes,
        )
    text, used = decoded if decoded is not None else (None, len(data))
    end = found.offset + used
    answer = ReadFileAnswer(
        path=shown_path(found.path),
        content=text,
        content_base64=base64.b64encode(data).decode() if text is None else None,
        binary=binary,
        encoding="base64" if text is None else "utf-8",
        offset=found.offset,
        bytes=used,
        next_offset=end if end < found.total_bytes else None,
        total_bytes=found.total_bytes,
        complete=found.complete and used == len(data),
        version=found.version,
        mode=found.mode,
    )
    return Ran(answer, output=lambda: data, output_bytes=len(data), whole=found.complete)
