"""The Model Context Protocol over standard input and output, for clients that start a program: each line is passed on to the
server and each of its answers back. Nothing is decided here, and nothing kept that the server would have to know.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol

from coldframe.contract.errors import ColdframeError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

PATH = "/mcp"
MAX_LINE_BYTES = 128 * 1024 * 1024
LAST_ANSWERS_S = 2.0
"""How long answers are waited for when no more is asked: clients that end give a program about so long."""
AGAIN_S = 1.0
PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603
META_REVISION = "io.modelcontextprotocol/protocolVersion"
NAMED_BY = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
Message = dict[str, Any]


class Answer(Protocol):
    """An answer whose body is still coming."""

    status: int
    headers: dict[str, str]

    def parts(self) -> AsyncGenerator[bytes, None]: ...
    async def aclose(self) -> None: ...


class Server(Protocol):
    """What carries requests: a connection to a server, or one within this process."""

    async def open(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer: ...


class Bridge:
    """One client on one pair of streams."""

    def __init__(self, server: Server, write: Callable[[bytes], None]) -> None:
        self._server = server
        self._write = write
        self._session: str | None = None
        self._revision: str | None = None
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._stateless: set[Any] = set()
        self._listening: asyncio.Task[None] | None = None

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Pass on until the last line was read and answered."""
        try:
            async for line in lines:
                if line.strip():
                    await self._take(line)
            if self._running:
                await asyncio.wait(self._running.values(), timeout=LAST_ANSWERS_S)
        finally:
            left = [*self._running.values(), *([self._listening] if self._listening else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._fail(None, PARSE_ERROR, "the line is not JSON")
            return
        if not isinstance(message, dict):
            self._fail(None, INVALID_REQUEST, "the line is not one message")
            return
        request_id, method = message.get("id"), message.get("method")
        if "id" not in message:
            await self._pass_on_notification(message)
        elif method == "initialize":
            self._session = self._revision = None
            await self._request(message)  # what follows belongs to the session that it begins
        elif isinstance(request_id, str | int):
            self._running[request_id] = asyncio.ensure_future(self._request(message))
            if _revision_of(message) is not None:
                self._stateless.add(request_id)
        else:
            self._fail(None, INVALID_REQUEST, "the id is neither a number nor a text")

    async def _pass_on_notification(self, message: Message) -> None:
        params = message.get("params")
        called_off = params.get("requestId") if isinstance(params, dict) else None
        if message.get("method") == "notifications/cancelled" and called_off in self._stateless:
            if (task := self._running.get(called_off)) is not None:
                task.cancel()  # which closes its stream, and so calls it off
            return
        with contextlib.suppress(ColdframeError):
            answer = await self._open(message)
            await answer.aclose()
        if message.get("method") == "notifications/initialized" and self._listening is None:
            self._listening = asyncio.ensure_future(self._listen())

    async def _request(self, message: Message) -> None:
        request_id, answered = message.get("id"), False
        try:
            answer = await self._open(message)
            if message.get("method") == "initialize":
                self._session = answer.headers.get("mcp-session-id")
            async for told in _messages_of(answer):
                answered = answered or told.get("id") == request_id
                self._note_revision(message, told)
                self._say(told)
            if not answered:
                self._fail(request_id, INTERNAL_ERROR, "the stream of the server ended without an answer")
        except ColdframeError as error:
            self._fail(request_id, INTERNAL_ERROR, error.message, error.to_wire())
        finally:
            self._running.pop(request_id, None)
            self._stateless.discard(request_id)

    def _note_revision(self, message: Message, told: Message) -> None:
        result = told.get("result")
        if message.get("method") == "initialize" and isinstance(result, dict):
            self._revision = str(result.get("protocolVersion"))

    async def _open(self, message: Message) -> Answer:
        body = json.dumps(message, separators=(",", ":")).encode()
        return await self._server.open("POST", PATH, body=body, headers=self._headers(message, len(body)))

    def _headers(self, message: Message, size: int) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        revision = _revision_of(message)
        if revision is not None:
            method = str(message.get("method"))
            headers |= {"Mcp-Protocol-Version": _header(revision), "Mcp-Method": _header(method)}
            named = message["params"].get(NAMED_BY.get(method, ""))
            if isinstance(named, str):
                headers["Mcp-Name"] = _header(named)
            return headers
        if self._session is not None:
            headers["Mcp-Session-Id"] = self._session
        if self._revision is not None:
            headers["Mcp-Protocol-Version"] = self._revision
        return headers

    async def _listen(self) -> None:
        """Pass on what the server tells without being asked, for as long as there is a session."""
        while self._session is not None:
            headers = {"Accept": "text/event-stream", "Mcp-Session-Id": self._session}
            if self._revision is not None:
                headers["Mcp-Protocol-Version"] = self._revision
            with contextlib.suppress(ColdframeError):
                answer = await self._server.open("GET", PATH, headers=headers)
                if answer.status in (401, 404, 405):
                    await answer.aclose()
                    return
                async for told in _messages_of(answer):
                    self._say(told)
            await asyncio.sleep(AGAIN_S)

    def _say(self, message: Message) -> None:
        self._write(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def _fail(self, request_id: Any, code: int, message: str, data: Any = None) -> None:
        error = {"code": code, "message": message, **({} if data is None else {"data": data})}
        self._say({"jsonrpc": "2.0", "id": request_id, "error": error})


async def _messages_of(answer: Answer) -> AsyncIterator[Message]:
    """What an answer says, one message after the other. Raises ColdframeError for one that is none of the protocol."""
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    async with contextlib.aclosing(answer.parts()) as parts:
        if not is_stream:
            body = b"".join([part async for part in parts])
            yield _message_in(answer.status, body)
            return
        waiting = b""
        async for part in parts:
            *events, waiting = (waiting + part).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
                if data:
                    yield json.loads(b"\n".join(data))


def _message_in(status: int, body: bytes) -> Message:
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if isinstance(content, dict) and content.get("jsonrpc") == "2.0":
        return content
    known = content.get("error") if isinstance(content, dict) else None
    if isinstance(known, dict) and "code" in known:
        from coldframe.contract.errors import from_wire

        raise from_wire(known)
    raise Unavailable(f"the server answered {status} without a message", hint="is this a Coldframe server?")


def _revision_of(message: Message) -> str | None:
    """What a request of the stateless era says that it speaks."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    revision = meta.get(META_REVISION) if isinstance(meta, dict) else None
    return revision if isinstance(revision, str) else None


def _header(value: str) -> str:
    """*value* as a header can carry it."""
    if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


async def lines_of(descriptor: int) -> AsyncIterator[bytes]:
    """Lines of a descriptor of any kind as they come, read by a thread that ends with the process."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        part = b"begin"
        while part:
            try:
                part = os.read(descriptor, 65536)
            except OSError:
                part = b""
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(queue.put_nowait, part)

    threading.Thread(target=read, name="input", daemon=True).start()
    waiting: list[bytes] = []
    size = 0
    while part := await queue.get():
        *whole, rest = part.split(b"\n")
        for line in whole:
            yield b"".join([*waiting, line])
            waiting, size = [], 0
        waiting.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise Unavailable(f"a line is longer than {MAX_LINE_BYTES} bytes", hint="send files in parts")
    if size:
        yield b"".join(waiting)


def write_to(descriptor: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    return write
