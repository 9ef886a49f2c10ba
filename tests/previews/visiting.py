"""A visitor of previews: HTTP by hand, so that every byte of it is the test's."""

import hashlib
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from coldframe.client.models import PreviewCreated, PreviewInfo
from coldframe.client.sync import SyncColdframe, SyncSandbox

APP = Path(__file__).with_name("app.py").read_text(encoding="utf-8")
PATIENCE_S = 30.0


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def get(self, name: str) -> str | None:
        return next((value for one, value in self.headers if one.lower() == name.lower()), None)

    def all(self, name: str) -> list[str]:
        return [value for one, value in self.headers if one.lower() == name.lower()]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Visitor:
    """Of one preview. Names below `localhost` are looked up by browsers alone, so the address is connected by number."""

    def __init__(self, preview: PreviewInfo, token: str | None = None) -> None:
        assert preview.url is not None
        self.url = preview.url
        self.host = urlsplit(preview.url).netloc
        self.port = urlsplit(preview.url).port or 80
        self.token = token if token is not None else getattr(preview, "token", None)

    @property
    def own(self) -> dict[str, str]:
        return {} if self.token is None else {"Coldframe-Preview-Token": self.token}

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def keep(self) -> http.client.HTTPConnection:
        """A connection for more than one request."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def ask(
        self,
        path: str = "/",
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        on: http.client.HTTPConnection | None = None,
        host: str | None = None,
        as_visitor: bool = True,
    ) -> Answer:
        """*as_visitor*: with the token."""
        connection = on or self.keep()
        try:
            sent = {"Host": host or self.host, **(self.own if as_visitor else {}), **(headers or {})}
            chunked = body is not None and not isinstance(body, bytes)
            connection.request(method, path, body, sent, encode_chunked=chunked)
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            if on is None:
                connection.close()

    def raw(self, data: bytes, *, until_closed: bool = True) -> bytes:
        """Send just that, and return all that comes until the end of the connection."""
        with self.connect() as one:
            one.sendall(data)
            found = b""
            while part := _received(one):
                found += part
                if not until_closed:
                    break
            return found

    def head(self, line: str, *headers: str, own: bool = True) -> bytes:
        """A head with the host of the preview, and what lets the visitor in."""
        lines = [line, f"Host: {self.host}", *headers]
        if own:
            lines += [f"{name}: {value}" for name, value in self.own.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def tls(self, certificate: str) -> ssl.SSLSocket:
        context = ssl.create_default_context(cadata=certificate)
        return context.wrap_socket(self.connect(), server_hostname=self.host.partition(":")[0])

    def upgrade(self, *headers: str, own: bool = True) -> socket.socket:
        """A web socket, whose answer has not been read."""
        one = self.connect()
        more = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eHh4")
        one.sendall(self.head("GET /ws HTTP/1.1", *more, *headers, own=own))
        return one


def _received(one: socket.socket) -> bytes:
    try:
        return one.recv(1 << 16)
    except ConnectionResetError:
        return b""


def read_until(one: socket.socket, end: bytes) -> bytes:
    found = b""
    while end not in found:
        part = one.recv(1 << 16)
        assert part, f"closed after {found[-200:]!r}"
        found += part
    return found


def serve(
    client: SyncColdframe, sandbox: SyncSandbox, port: int, *, address: str = "127.0.0.1", **options: Any
) -> PreviewCreated:
    """The server of `app.py`, shared."""
    sandbox.write_file("app.py", APP)
    options.setdefault("start", f"exec python3 app.py {address} {port}")
    return client.previews.create(sandbox.id, port, **options)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
