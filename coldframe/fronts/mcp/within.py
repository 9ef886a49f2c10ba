"""The front within this process, for a program that serves one client and has no server to pass it on to."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.types import Message

from coldframe.contract.caller import Caller
from coldframe.contract.errors import Unavailable
from coldframe.fronts.mcp.http import McpFront


class Within:
    """Takes what a server would be sent. Who is served has the process, and so all rights of its owner."""

    def __init__(self, front: McpFront, caller: Caller) -> None:
        self._front = front
        self._caller = caller

    async def open(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> "Told":
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
            "state": {"caller": self._caller},
        }
        told = Told()
        told.begin(self._front(scope, told.receive(body), told.take))
        await told.headed()
        return told


class Told:
    """One answer as it comes. Closing it early is what a broken connection would be."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._headed = asyncio.Event()
        self._left = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def begin(self, work: Any) -> None:
        self._work = asyncio.ensure_future(work)
        self._work.add_done_callback(self._over)

    def _over(self, work: "asyncio.Task[None]") -> None:
        self._headed.set()
        self._parts.put_nowait(None)

    async def headed(self) -> None:
        await self._headed.wait()
        if not self.status and self._work is not None:
            await self._work  # raises what it failed with
            raise Unavailable("the request was given up without an answer")

    def receive(self, body: bytes) -> Any:
        pieces: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if pieces:
                return pieces.pop()
            await self._left.wait()
            return {"type": "http.disconnect"}

        return receive

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
            self._headed.set()
        elif message.get("body"):
            self._parts.put_nowait(message["body"])

    async def parts(self) -> AsyncGenerator[bytes, None]:
        try:
            while (part := await self._parts.get()) is not None:
                yield part
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        self._left.set()
        if self._work is not None:
            await asyncio.wait([self._work])
