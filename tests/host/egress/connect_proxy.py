"""The proxy of a company, in the small world: connects to where it is asked to, for those who show who they are."""

import asyncio
import base64
import json
from contextlib import suppress

USER = "agent:se:cret"
HIDDEN_ADDRESS = "93.184.215.14"
FORBIDDEN = "93.184.215.15"


class ConnectProxy:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            await self._answer(first, headers, reader, writer)
        writer.close()

    async def _answer(
        self, first: str, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        method, target, _ = first.split(" ")
        if method != "CONNECT":
            body = json.dumps(self.asked).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            return
        self.asked.append(target)
        host, _, port = target.rpartition(":")
        expected = base64.b64encode(USER.encode()).decode()
        status = "200 Connection established"
        if headers.get("proxy-authorization") != f"Basic {expected}":
            status = "407 Proxy Authentication Required"
        elif host == FORBIDDEN:
            status = "403 Forbidden"
        writer.write(f"HTTP/1.1 {status}\r\nProxy-Agent: test\r\n\r\n".encode())
        if not status.startswith("200"):
            return
        address = HIDDEN_ADDRESS if host == "hidden.example.com" else host
        far_reader, far_writer = await asyncio.open_connection(address, int(port))
        ways = [asyncio.create_task(way) for way in (_carry(reader, far_writer), _carry(far_reader, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        far_writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
