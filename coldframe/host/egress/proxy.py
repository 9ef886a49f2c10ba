"""The proxy of the network that this machine stands in, if it has one: what boxes reach is then asked of it, by CONNECT.

It is what the programs of the host are told by `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`. Addresses are judged as without
it: a name is resolved here, and the proxy is asked for the address that was judged. Only where this machine cannot resolve
names is the proxy asked for the name, since it knows more; which address that is nobody here sees, and the record says so.
"""

import asyncio
import base64
import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from coldframe.contract.errors import InvalidArgument
from coldframe.host.egress.carry import reset
from coldframe.host.egress.dial import DIAL_S, DialFailed, NameUnresolved, connect, find_allowed
from coldframe.host.egress.resolver import Resolve
from coldframe.host.egress.turns import receive, send_all
from coldframe.policy.addresses import Address, AddressKind, read_address
from coldframe.policy.network import NetworkVerdict
from coldframe.policy.network_rules import Scheme

RESOLVE_S = 3.0
"""How long this machine may take for a name before the proxy is asked for it."""
ANSWER_S = 20.0
"""How long the proxy may take to connect."""
MOST_TRIED = 2
"""Addresses of one name that the proxy is asked for."""
MAX_ANSWER_BYTES = 16 * 1024

_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_TOLD = {
    401: "it wants other credentials",
    403: "it does not allow it",
    407: "it wants other credentials",
    502: "it cannot reach it",
    503: "it cannot reach it",
    504: "it cannot reach it",
}


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    authorization: str | None = None
    """What it is shown by whom it is asked. A secret."""

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


@dataclass(frozen=True)
class Proxies:
    https: Proxy | None = None
    http: Proxy | None = None
    direct: tuple[str, ...] = ()
    """What goes without, as `NO_PROXY` says it."""

    def choose(self, destination: str | Address, port: int, scheme: Scheme) -> Proxy | None:
        """None for what goes without. That is also what is no HTTP, as with other programs."""
        proxy = {Scheme.HTTPS: self.https, Scheme.HTTP: self.http}.get(scheme)
        if proxy is None or any(_covers(entry, destination, port) for entry in self.direct):
            return None
        return proxy


def read_proxies(environment: Mapping[str, str]) -> Proxies:
    """Those that the variables name, in small letters or capitals. Raises InvalidArgument."""

    def value(name: str) -> str:
        return environment.get(name.lower()) or environment.get(name.upper()) or ""

    both = value("all_proxy")
    direct = tuple(entry.strip().lower() for entry in value("no_proxy").split(",") if entry.strip())
    return Proxies(
        _read_proxy("HTTPS_PROXY", value("https_proxy") or both),
        _read_proxy("HTTP_PROXY", value("http_proxy") or both),
        direct,
    )


def _read_proxy(name: str, text: str) -> Proxy | None:
    if not text:
        return None
    invalid = InvalidArgument(
        f"`{name}` is no proxy that can be used",
        hint="write `http://host:port` or `http://user:password@host:port`; proxies by SOCKS or TLS are not supported",
    )
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        raise invalid from None
    if parts.scheme != "http" or not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise invalid
    if parts.username is None:
        return Proxy(host, port)
    shown = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(host, port, f"Basic {base64.b64encode(shown).decode('ascii')}")


def _covers(entry: str, destination: str | Address, port: int) -> bool:
    if entry == "*":
        return True
    place, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and (":" not in place or place.startswith("[")):
        if int(number) != port:
            return False
        entry = place
    entry = entry.strip("[]")
    if not isinstance(destination, str):
        try:
            return destination in ip_network(entry, strict=False)
        except ValueError:
            return False
    name = entry.removeprefix("*").removeprefix(".")
    return read_address(entry) is None and bool(name) and (destination == name or destination.endswith(f".{name}"))


async def dial_by_proxy(
    proxy: Proxy,
    verdict: NetworkVerdict,
    destination: str | Address,
    port: int,
    *,
    resolve: Resolve,
    kinds: Collection[AddressKind] = (),
) -> tuple[socket.socket, Address | None]:
    """A connected socket that never blocks, and the address that the proxy was asked for; None if it was the name.

    Raises:
        DialDenied: every address is one that no rule opened.
        DialFailed: the proxy cannot be reached, or does not connect.
        OSError: it cannot be told whether an address is one of this machine.
    """
    try:
        async with asyncio.timeout(DIAL_S):
            return await _dial(proxy, verdict, destination, port, resolve, kinds)
    except TimeoutError:
        raise DialFailed(f"the proxy did not connect within {DIAL_S:.0f} s") from None


async def _dial(
    proxy: Proxy,
    verdict: NetworkVerdict,
    destination: str | Address,
    port: int,
    resolve: Resolve,
    kinds: Collection[AddressKind],
) -> tuple[socket.socket, Address | None]:
    try:
        allowed = await find_allowed(verdict, destination, resolve, kinds, within_s=RESOLVE_S)
    except NameUnresolved:
        return await _ask(proxy, str(destination), port), None
    failure = DialFailed("no address")
    for address in allowed[:MOST_TRIED]:
        try:
            return await _ask(proxy, f"[{address}]" if address.version == 6 else str(address), port), address
        except DialFailed as error:
            failure = error
    raise failure


async def _ask(proxy: Proxy, host: str, port: int) -> socket.socket:
    connection = await _reach(proxy)
    try:
        async with asyncio.timeout(ANSWER_S):
            await send_all(connection, _write_request(proxy, f"{host}:{port}"))
            status = await _read_status(connection)
    except TimeoutError:
        reset(connection)
        raise DialFailed(f"the proxy did not answer within {ANSWER_S:.0f} s") from None
    except OSError as error:
        reset(connection)
        raise DialFailed(f"the proxy broke off: {(error.strerror or 'broken').lower()}") from error
    except BaseException:
        reset(connection)
        raise
    if not 200 <= status < 300:
        reset(connection)
        raise DialFailed(f"the proxy answered {status} for {host}: {_TOLD.get(status, 'it does not connect')}")
    return connection


async def _reach(proxy: Proxy) -> socket.socket:
    loop = asyncio.get_running_loop()
    failure = "no address"
    try:
        found = await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DialFailed(f"the name of the proxy was not resolved: {error.strerror}") from error
    for *_, place in found:
        address = ip_address(str(place[0]).partition("%")[0])
        try:
            return await connect(address, proxy.port)
        except TimeoutError:
            failure = f"{address} did not answer"
        except OSError as error:
            failure = f"{address}: {(error.strerror or 'unreachable').lower()}"
    raise DialFailed(f"the proxy cannot be reached: {failure}")


def _write_request(proxy: Proxy, target: str) -> bytes:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"


async def _read_status(connection: socket.socket) -> int:
    """Of its answer. Behind that is nothing, as the side that it connects to does not speak first."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = await receive(connection, MAX_ANSWER_BYTES)
        answer += data
        if not data or len(answer) > MAX_ANSWER_BYTES:
            raise DialFailed("the proxy gave no answer that can be read")
    status = _STATUS.match(answer)
    if status is None or (status[1].startswith(b"2") and not answer.endswith(b"\r\n\r\n")):
        raise DialFailed("the proxy gave no answer that can be read")
    return int(status[1])
