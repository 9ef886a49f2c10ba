"""The live handle on one sandbox; implements Box and BoxLife over the link to its keeper."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar, cast, get_args

from pydantic import ValidationError

from coldframe.contract.command import CommandEvent, CommandResult, CommandSpec, Contact, Ended, OutputChunk, Started
from coldframe.contract.errors import Conflict, GuestLost, Internal, InvalidArgument, WrongState
from coldframe.contract.files import ListShells, ReadAnswer, ReadFile, Request, WriteAnswer, WriteFile
from coldframe.contract.model import Model
from coldframe.contract.paths import ReadPath, StatPath, WritePath
from coldframe.guest.files import READ_CAP_BYTES, read_range
from coldframe.host.descriptors import ask_for_descriptor
from coldframe.host.dials import connect_inside
from coldframe.host.link import Connection, Link

A = TypeVar("A", bound=Model)
UPLOAD_CHUNK_BYTES = 1024 * 1024
LINK_RANGE_BYTES = 2 * 1024 * 1024
"""A range of a file up to so long comes over the link; of a longer one its file does, which a connection for itself pays for."""


class KeeperBox:
    """A Box whose keeper listens below *directory*."""

    def __init__(self, sandbox_id: str, directory: str) -> None:
        self.sandbox_id = sandbox_id
        self._directory = directory
        self._link = Link(directory)
        self._opens_files = True
        """Not so a keeper of before that was."""

    def run(self, spec: CommandSpec) -> AsyncIterator[CommandEvent]:
        head = {"op": "run", **spec.model_dump(mode="json", exclude={"stdin"})}
        if spec.stdin_open or spec.shell_session is not None or spec.idle_timeout_s is not None:
            return self._events_if_known(head, spec.stdin)
        return self._events(head, spec.stdin)

    async def _events_if_known(self, head: dict[str, Any], body: bytes) -> AsyncGenerator[CommandEvent, None]:
        """A keeper of before there were these would leave them out without a word."""
        await self.ask(ListShells())
        async with aclosing(self._events(head, body)) as events:
            async for event in events:
                yield event

    def follow(self, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        return self._events({"op": "follow", "command_id": command_id, "after_seq": after_seq}, b"")

    async def _events(self, head: dict[str, Any], body: bytes) -> AsyncGenerator[CommandEvent, None]:
        async with self._link.connection() as connection:
            await connection.send(head, body)
            while True:
                event = parse_event(*await connection.receive())
                if isinstance(event, Ended):
                    break
                yield event
        yield event

    async def ask(self, request: Request[A]) -> A:
        fields = request.model_dump(mode="json")
        if isinstance(request, ReadFile | ReadPath) and (request.length or 0) > LINK_RANGE_BYTES:
            found = await self._read_long(fields)
            if found is not None:
                return cast("A", found)
        content = getattr(request, "content", b"")
        fields.pop("content", None)
        try:
            value, body = await self._link.request({"op": "ask", **fields}, content)
        except InvalidArgument as error:
            if not error.message.startswith("unknown verb"):
                raise
            raise WrongState(
                f"sandbox `{self.sandbox_id}` is kept by an earlier version, which does not know this",
                hint="stop it and start it again",
                sandbox_id=self.sandbox_id,
            ) from error
        return parse_answer(answer_model(type(request)), value, body)

    async def _read_long(self, fields: dict[str, Any]) -> ReadAnswer | None:
        """The answer to a ReadFile or ReadPath; None where the keeper does not open the file for others."""
        if not self._opens_files or fields.get("user", "user") != "user":
            return None
        try:
            answer, file = await ask_for_descriptor(
                self._directory,
                {"op": "open", **fields},
                answer_s=None,  # as long as for what comes over the link
            )
        except InvalidArgument as error:
            if not error.message.startswith("unknown operation"):
                raise
            self._opens_files = False
            return None
        reading = asyncio.ensure_future(
            asyncio.to_thread(_read_and_close, file, answer.pop("place", None), answer.pop("length", None))
        )
        content = await asyncio.shield(reading)  # also for one who goes away it is closed
        answer["complete"] = answer.get("offset") == 0 and len(content) == answer.get("total_bytes")
        return parse_answer(ReadAnswer, answer, content)

    async def write(self, request: WriteFile | WritePath, content: AsyncIterable[bytes]) -> WriteAnswer:
        fields = request.model_dump(mode="json", exclude={"content"})
        if isinstance(request, WritePath):  # a keeper of before there was this would take it for another user's
            await self.ask(StatPath(path="/"))
        async with self._link.connection() as connection:
            await connection.send({"op": "write", **fields})
            await _send_chunks(connection, content)
            await connection.send({"op": "commit"})
            head, body = await connection.receive()
        return parse_answer(WriteAnswer, head.get("answer"), body)

    async def connect_port(self, port: int) -> socket.socket:
        """As `BoxLife.connect`. Straight from the keeper: neither server nor daemon could enter the box."""
        return await connect_inside(self._directory, port)

    async def evidence(self) -> dict[str, Any]:
        """What the keeper reads inside, for the isolation report."""
        return (await self._link.request({"op": "report"}))[0]

    async def contacts(self) -> list[Contact]:
        value, _ = await self._link.request({"op": "contacts"})
        return [parse_answer(Contact, item, b"") for item in value.get("contacts", [])]

    async def end(self) -> None:
        """Ask the keeper to kill its box; returns at once."""
        async with self._link.connection() as connection:
            await connection.send({"op": "end"})

    async def connect(self) -> None:
        """Ahead of the first command, which would wait for it."""
        await self._link.open_ahead()

    def close(self) -> None:
        self._link.close()


async def _send_chunks(connection: Connection, content: AsyncIterable[bytes]) -> None:
    async for part in content:
        whole = memoryview(part)
        for start in range(0, len(part), UPLOAD_CHUNK_BYTES):
            await connection.send({"op": "chunk"}, whole[start : start + UPLOAD_CHUNK_BYTES])


def _read_and_close(file: int, place: object, length: object) -> bytes:
    """What the keeper has opened, as far as it said. It may be cut or written to meanwhile, and be none of those that are read."""
    try:
        if type(place) is not int or type(length) is not int or place < 0 or not 0 <= length <= READ_CAP_BYTES:
            raise GuestLost("the keeper of this sandbox gave a malformed answer")
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise GuestLost("the keeper of this sandbox opened what is no file")
        found = read_range(file, place, length)
    except (OSError, OverflowError) as error:
        raise Internal(f"the file could not be read: {error}") from error
    finally:
        os.close(file)
    if len(found) != length:
        raise Conflict("the file became shorter while it was read", hint="read it again when nothing writes to it")
    return found


def answer_model(request: type[Request[A]]) -> type[A]:
    """The answer type that a request class names: `class ReadFile(Request[ReadAnswer])`."""
    for base in request.__mro__:
        origin = getattr(base, "__pydantic_generic_metadata__", {})
        arguments = origin.get("args") or get_args(base)
        if arguments:
            found: type[A] = arguments[0]
            return found
    raise TypeError(f"{request.__name__} names no answer")


def parse_answer(model: type[A], value: object, body: bytes) -> A:
    """A keeper's word, checked field by field: it comes from the edge of a hostile place."""
    try:
        if isinstance(value, dict) and "content" in model.model_fields:
            value = {**value, "content": body}
        return model.model_validate(value)
    except ValidationError as error:
        raise GuestLost("the keeper of this sandbox gave a malformed answer", fields=error.error_count()) from error


def parse_event(head: dict[str, Any], body: bytes) -> CommandEvent:
    """One frame of a command's life, checked."""
    kind = head.get("event")
    if kind == "output":
        return parse_answer(OutputChunk, {**head, "data": body}, b"")
    if kind == "started":
        return parse_answer(Started, head, b"")
    if kind == "ended":
        return Ended(result=parse_answer(CommandResult, head.get("result"), b""))
    raise GuestLost("the keeper of this sandbox gave a malformed answer")
