"""Head and body of a small answer in one write.

The HTTP server writes them one after the other, which is one system call more, and wakes a client for a head that it
can do nothing with. Here what is written first in a turn of the event loop waits for what comes next, or for the
end of the turn.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HELD_BYTES = 4096
"""A longer first piece is no head, and is not kept waiting."""
JOINED_BYTES = 64 * 1024
"""A piece up to so long is copied behind the one that waits; a longer one is handed on as it is."""


class CorkedProtocol(HttpToolsProtocol):
    """To be named as `http` to uvicorn."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CorkedTransport(transport, self.loop))  # type: ignore[arg-type]


class CorkedTransport:
    """A transport as that one protocol uses it. All but writing is the real one's."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            if len(data) <= JOINED_BYTES:
                self._transport.write(held + data)
            else:
                self._transport.writelines((held, data))
        elif 0 < len(data) <= HELD_BYTES:
            self._held = data
            self._loop.call_soon(self.let_go)
        else:
            self._transport.write(data)

    def let_go(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        self.let_go()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
