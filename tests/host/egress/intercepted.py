"""Boxes whose requests are read, and the programs in them that ask."""

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from coldframe.host.egress.broker import Broker
from coldframe.host.egress.contact import EgressContact
from coldframe.host.egress.intercept import Interception
from tests.host.egress.test_broker import ORIGIN, Log, network
from tests.host.egress.world import INNER, OTHER, RESOLVER, SITE, SSH, World, in_world

T = TypeVar("T")
RULES = (
    f"{{id: read, to: {SITE}, ports: [8443], methods: [GET, HEAD], paths: [/v1/]}}",
    f"{{id: write, to: {SITE}, ports: [8443], methods: [POST], paths: [/v1/store, /v1/sink, /v1/echo, /v1/early]}}",
    f"{{id: live, to: {SITE}, ports: [8443], methods: [WEBSOCKET], paths: [/v1/socket]}}",
    f"{{id: plain, to: {SITE}, ports: [8080], scheme: http, paths: [/v1/]}}",
    f"{{id: unproven, to: {SSH}, ports: [8443], mode: intercept}}",
    f"{{id: inner, to: {INNER}, ports: [8443], mode: intercept}}",
    f"{{id: closed, to: {OTHER}, ports: [7], mode: intercept}}",
)
ROOTS = "/etc/ssl/certs/ca-certificates.crt"
"""Where the programs of this system look, without being told to."""


class Scene(NamedTuple):
    world: World
    broker: Broker
    log: Log
    interception: Interception

    async def inside(self, function: Callable[[], T]) -> T:
        return await self.world.inside(function, files=self.files())

    def files(self) -> dict[str, str]:
        return {**RESOLVER, ROOTS: self.interception.authority("sb-1").bundle(b"").decode()}

    async def seen(self) -> list[str]:
        """What the site was asked."""
        return json.loads(await self.inside(lambda: get("/v1/seen")[1]))  # type: ignore[no-any-return]

    async def contact(self) -> EgressContact:
        """The first one that ended."""
        return (await self.log.of(1))[0]


def with_interception(
    steps: Callable[[Scene], Any], *rules: str, who: str = "root", log_of: Callable[[], Log] = Log
) -> None:
    async def whole(world: World) -> None:
        log = log_of()
        interception = Interception(trust=ssl.create_default_context(cafile=world.certificates.authority))
        broker = Broker(network(*(rules or RULES)), log.journal(), resolve=world.resolve, intercept=interception)
        broker.open(ORIGIN, world.box.arrivals)
        try:
            await steps(Scene(world, broker, log, interception))
        finally:
            await broker.close()

    in_world(who, whole)


# -- programs of the box ---------------------------------------------------------------------------


def connect(name: str = SITE, port: int = 8443) -> http.client.HTTPConnection:
    if port == 8080:
        return http.client.HTTPConnection(name, port, timeout=30)
    return http.client.HTTPSConnection(name, port, timeout=30, context=ssl.create_default_context())


def ask(client: http.client.HTTPConnection, method: str, path: str, **more: Any) -> tuple[int, bytes]:
    client.request(method, path, **more)
    answer = client.getresponse()
    return answer.status, answer.read()


def get(path: str, *, name: str = SITE, port: int = 8443) -> tuple[int, bytes]:
    client = connect(name, port)
    try:
        return ask(client, "GET", path)
    finally:
        client.close()


def raw(data: bytes, *, port: int = 8443) -> bytes:
    """All that comes back for these bytes, until the other side ends."""
    with contextlib.ExitStack() as stack:
        client: socket.socket = stack.enter_context(socket.create_connection((SITE, port), timeout=30))
        if port != 8080:
            client = stack.enter_context(ssl.create_default_context().wrap_socket(client, server_hostname=SITE))
        client.sendall(data)
        heard = b""
        while part := client.recv(65536):
            heard += part
    return heard


def error_of(answer: tuple[int, bytes]) -> tuple[int, str, str]:
    error = json.loads(answer[1])["error"]
    assert error["by"] == "coldframe" and error["message"]
    return answer[0], error["code"], error["rule"]


def request(*headers: str, first: str = "GET /v1/text HTTP/1.1", body: str = "") -> bytes:
    return "\r\n".join([first, f"Host: {SITE}", *headers, "", body]).encode("latin-1")


def peak_kib() -> int:
    with open("/proc/self/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith("VmHWM")))
