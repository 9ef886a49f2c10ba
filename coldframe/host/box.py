"""The live handle on one sandbox; implements Box and BoxLife over the link to its keeper."""

import socket
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from coldframe.contract.command import CommandEvent, CommandResult, CommandSpec, Contact, Ended, OutputChunk, Started
from coldframe.contract.errors import GuestLost, InvalidArgument, WrongState
from coldframe.contract.files import ListShells, Request, WriteAnswer, WriteFile
from coldframe.contract.model import Model
from coldframe.contract.paths import StatPath, WritePath
from coldframe.host.dials import connect_inside
from coldframe.host.link import Connection, Link

A = TypeVar("A", bound=Model)
UPLOAD_CHUNK_BYTES = 1024 * 1024


class KeeperBox:
    """A Box whose keeper listens below *directory*."""

    def __init__(self, sandbox_id: str, directory: str) -> None:
        self.sandbox_id = sandbox_id
        self._directory = directory
        self._link = Link(directory)

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
