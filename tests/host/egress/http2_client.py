"""A program of the box that speaks HTTP/2, well or badly."""

import socket
import ssl
from collections.abc import Iterable
from types import TracebackType

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from coldframe.host.egress.http2.frames import FrameCutter, Goaway
from tests.host.egress.world import SITE

Pairs = list[tuple[bytes, bytes]]


class Heard:
    """What came of one request."""

    def __init__(self) -> None:
        self.status = 0
        self.interim: list[int] = []
        self.headers: list[tuple[str, str]] = []
        self.trailers: list[tuple[str, str]] = []
        self.parts: list[bytes] = []
        self.error: int | None = None
        """Of the break, if there was one."""
        self.is_over = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def answer(self) -> tuple[int, bytes]:
        return self.status, self.body


class Client:
    def __init__(
        self, port: int = 9443, *, window: int = 65_535, name: str = SITE, trusting: str | None = None
    ) -> None:
        plain = socket.create_connection((name, port), timeout=30)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = ssl.create_default_context(cadata=trusting)
        context.set_alpn_protocols(["h2", "http/1.1"])
        self.socket = context.wrap_socket(plain, server_hostname=name)
        assert self.socket.selected_alpn_protocol() == "h2"
        self.name, self.port = name, port
        config = h2.config.H2Configuration(
            header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.heard: dict[int, Heard] = {}
        self.ended: int | None = None
        """The code of the GOAWAY, if there was one."""
        self.last_stream: int | None = None
        self._cutter = FrameCutter(has_preface=False, now=0)
        self.unread: set[int] = set()
        """Streams that are given no more room."""
        self.flush()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def head(self, path: str, method: str = "GET", *more: tuple[bytes, bytes]) -> Pairs:
        authority = f"{self.name}:{self.port}".encode()
        return [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", authority),
            (b":path", path.encode()),
            *more,
        ]

    def begin(self, pairs: Pairs, *, ends: bool = True) -> int:
        number = self.h2.get_next_available_stream_id()
        self.heard[number] = Heard()
        self.h2.send_headers(number, pairs, end_stream=ends)
        self.flush()
        return number

    def send(self, number: int, data: bytes, *, ends: bool = True) -> None:
        place = 0
        while place < len(data) and not self.heard[number].is_over:
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(data) - place)
            if room <= 0:
                self.listen()
                continue
            self.h2.send_data(number, data[place : place + room])
            place += room
            self.flush()
        if ends and not self.heard[number].is_over:
            self.h2.end_stream(number)
            self.flush()

    def get(self, path: str, *more: tuple[bytes, bytes]) -> Heard:
        return self.wait(self.begin(self.head(path, "GET", *more)))

    def post(self, path: str, data: bytes, *more: tuple[bytes, bytes]) -> Heard:
        number = self.begin(self.head(path, "POST", *more), ends=False)
        self.send(number, data)
        return self.wait(number)

    def wait(self, number: int) -> Heard:
        while not self.heard[number].is_over:
            if not self.listen():
                break
        return self.heard[number]

    def wait_all(self, numbers: Iterable[int]) -> list[Heard]:
        return [self.wait(number) for number in numbers]

    def listen(self) -> bool:
        """False at the end."""
        try:
            data = self.socket.recv(65_536)
            if not data:
                return False
            for found in self._cutter.feed(data, 0):
                if isinstance(found, Goaway):  # which `h2` takes for the end of all
                    self.last_stream, self.ended = found
                    continue
                for event in self.h2.receive_data(found):
                    self._hear(event)
            self.flush()
        except (ConnectionError, h2.exceptions.ProtocolError):
            return False
        return True

    def listen_to_the_end(self) -> int | None:
        """The code by which the other side ended; None if it said none."""
        while self.listen():
            pass
        return self.ended

    def _hear(self, event: h2.events.Event) -> None:
        number = getattr(event, "stream_id", 0) or 0
        heard = self.heard.get(number, Heard())
        match event:
            case h2.events.InformationalResponseReceived(headers=headers):
                heard.interim.append(int(bytes(headers[0][1])))
            case h2.events.ResponseReceived(headers=headers):
                pairs = [(bytes(name).decode(), bytes(value).decode("latin-1")) for name, value in headers]
                heard.status, heard.headers = int(pairs[0][1]), pairs[1:]
            case h2.events.DataReceived(data=data, flow_controlled_length=size):
                heard.parts.append(bytes(data or b""))
                if number not in self.unread:
                    self.h2.acknowledge_received_data(size, number)
                elif size:
                    self.h2.increment_flow_control_window(size)
            case h2.events.TrailersReceived(headers=headers):
                heard.trailers = [(bytes(name).decode(), bytes(value).decode()) for name, value in headers]
            case h2.events.StreamEnded():
                heard.is_over = True
            case h2.events.StreamReset(error_code=code):
                if not heard.is_over:
                    heard.error = int(code)
                heard.is_over = True
