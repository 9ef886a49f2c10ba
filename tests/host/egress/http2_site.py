"""A web server of the small world that speaks HTTP/2, and answers in the ways in which such servers do."""

import asyncio
import json
from contextlib import suppress
from urllib.parse import parse_qs

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from tests.host.egress.site import PIECE

Pairs = list[tuple[bytes, bytes]]


class Http2Site:
    """What all of its connections share."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        """Methods and paths of requests, in their order, and `gone` for those that were broken off."""
        self.connections = 0
        self.go_on = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, h2.exceptions.ProtocolError):
            await _Connection(self, self.connections, reader, writer).serve()
        writer.close()


class _Connection:
    def __init__(
        self, site: Http2Site, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._site, self._number = site, number
        self._reader, self._writer = reader, writer
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._h2 = h2.connection.H2Connection(config)
        self._bodies: dict[int, bytearray] = {}
        self._heads: dict[int, dict[str, str]] = {}
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        self._h2.initiate_connection()
        self._flush()
        while data := await self._reader.read(1 << 16):
            for event in self._h2.receive_data(data):
                self._hear(event)
            self._flush()
            await self._writer.drain()
        for task in self._tasks:
            task.cancel()

    def _hear(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=number, headers=headers):
                self._heads[number] = {bytes(n).decode(): bytes(v).decode("latin-1") for n, v in headers}
                self._bodies[number] = bytearray()
                if self._heads[number][":path"].startswith("/v1/early"):
                    self._answer(number, 413, b"too large")
                    self._h2.reset_stream(number, 0)
            case h2.events.DataReceived(stream_id=number, data=data, flow_controlled_length=size):
                self._bodies[number] += data
                self._h2.acknowledge_received_data(size, number)
            case h2.events.StreamEnded(stream_id=number):
                task = asyncio.create_task(self._serve_one(number))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case h2.events.StreamReset():
                self._site.seen.append("gone")
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                self._room.set()

    async def _serve_one(self, number: int) -> None:
        with suppress(h2.exceptions.ProtocolError, ConnectionError):
            await self._do(number)
            self._flush()

    async def _do(self, number: int) -> None:
        head = self._heads[number]
        path, _, query = head[":path"].partition("?")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        if path != "/v1/seen":
            self._site.seen.append(f"{head[':method']} {head[':path']}")
        match path:
            case "/v1/seen":
                self._answer(number, 200, json.dumps(self._site.seen).encode())
            case "/v1/what":
                what = {"headers": head, "connection": self._number, "stream": number}
                self._answer(number, 200, json.dumps(what).encode(), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"))
            case "/v1/echo":
                self._h2.send_headers(number, [(b":status", b"200")])
                await self._send(number, bytes(self._bodies[number]))
                self._h2.send_headers(number, [(b"grpc-status", b"0"), (b"grpc-message", b"ok")], end_stream=True)
            case "/v1/show":
                shown = head["authorization"].encode()
                self._h2.send_headers(number, [(b":status", b"200")])
                await self._send(number, shown)
                self._h2.send_headers(number, [(b"x-shown", shown)], end_stream=True)
            case "/v1/store":
                self._answer(number, 200, str(len(self._bodies[number])).encode())
            case "/v1/large":
                self._h2.send_headers(number, [(b":status", b"200")])
                for _ in range(int(asked["pieces"])):
                    await self._send(number, PIECE)
                self._h2.end_stream(number)
            case "/v1/reset":
                self._h2.send_headers(number, [(b":status", b"200")])
                await self._send(number, b"half")
                self._h2.reset_stream(number, 2)
            case "/v1/leave":
                self._answer(number, 200, b"bye")
                self._h2.close_connection()
            case "/v1/hints":
                self._h2.send_headers(number, [(b":status", b"103"), (b"link", b"</style.css>")])
                self._answer(number, 200, b"after hints")
            case "/v1/many-hints":
                for _ in range(int(asked["count"])):
                    self._h2.send_headers(number, [(b":status", b"103")])
                self._answer(number, 200, b"after hints")
            case "/v1/nothing":
                self._h2.send_headers(number, [(b":status", b"204")], end_stream=True)
            case "/v1/wait":
                await self._site.go_on.wait()
                self._answer(number, 200, b"at last")
            case "/v1/go":
                self._site.go_on.set()
                self._answer(number, 200, b"gone on")
            case "/v1/never":
                await asyncio.Event().wait()
            case "/v1/push":
                promise = (2).to_bytes(4, "big") + b"\x82"
                head = len(promise).to_bytes(3, "big") + b"\x05\x04" + number.to_bytes(4, "big")
                self._writer.write(head + promise)
            case "/v1/ping":
                for _ in range(5000):
                    self._h2.ping(b"12345678")
            case _:
                self._answer(number, 404, b"no such page")

    def _answer(self, number: int, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
        head = [(b":status", b"%d" % status), (b"content-length", b"%d" % len(body)), *more]
        is_bodiless = self._heads[number][":method"] == "HEAD"
        self._h2.send_headers(number, head, end_stream=is_bodiless)
        if not is_bodiless:
            self._h2.send_data(number, body, end_stream=True)

    async def _send(self, number: int, data: bytes) -> None:
        place = 0
        while place < len(data):
            room = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if room <= 0:
                self._flush()
                self._room.clear()
                await self._room.wait()
                continue
            part = data[place : place + room]
            place += len(part)
            self._h2.send_data(number, part)
            self._flush()
            await self._writer.drain()

    def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())
