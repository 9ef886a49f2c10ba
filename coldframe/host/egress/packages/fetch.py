"""Asks a package registry, with nothing of a box in the question: GET, an address that was checked, and fixed headers.

The names come from the settings of the host's own clients, or from what such a registry says; each server has to prove
its name by TLS where the registry does. So a registry may be in the networks of a company, where a box may not go. A
server elsewhere that it names may be in the same kind of network at most.

A credential of the host's settings goes to the registry that it is for, and nowhere else, also by no redirect.
"""

import asyncio
import contextlib
import socket
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import cached_property
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import h11

from coldframe.contract.policy import Outcome
from coldframe.host.egress.dial import DialDenied, DialFailed, dial
from coldframe.host.egress.proxy import Proxies, dial_by_proxy
from coldframe.host.egress.resolver import Resolve, Resolver, Turns
from coldframe.host.egress.responses import MOST_INTERIM
from coldframe.host.egress.streams import Handshake, Stream, TlsStream
from coldframe.policy.addresses import OPENABLE, Address, AddressKind, judge_address
from coldframe.policy.hostnames import NameInvalid, read_name
from coldframe.policy.network import NetworkVerdict
from coldframe.policy.network_rules import PackageKind, Registry, Scheme

HEAD_S = 14.0
"""From the question to the head of the answer, the way to the server included. Clients are told within 30 s, and may
need a listing and a file."""
STALL_S = 20.0
"""How long an answer may stand still. One that is slow goes on for as long as somebody waits for it."""
REST_S = 5.0
"""How long a registry that could not be reached is not asked again: a tree of packages asks hundreds of times."""
IDLE_S = 20.0
MOST_IDLE = 8
"""Connections to one server that are kept for another question."""
MOST_AT_ONCE = 32
"""Questions of all boxes to all registries, beside the one that each has of its own."""
MOST_REDIRECTS = 5
MOST_ORIGINS = 1000
"""That are remembered as not reached; a registry may name as many as it likes."""

NAMED_BY_HOST = OPENABLE | {AddressKind.DOCUMENTATION, AddressKind.BENCHMARK}
"""Where a registry of the host's settings may be beside public addresses, if it proves its name; some resolvers hand out
addresses for documentation as stand-ins. What proves nothing may be in private ranges."""


class RegistryFailed(Exception):
    """It cannot be reached, or gives no answer of use."""


class Page(NamedTuple):
    """An address of a server, checked."""

    scheme: Scheme
    name: str
    port: int
    target: str

    @property
    def origin(self) -> tuple[Scheme, str, int]:
        return self.scheme, self.name, self.port

    @property
    def text(self) -> str:
        port = "" if self.port == _USUAL_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.name}{port}{self.target}"


_USUAL_PORTS = {Scheme.HTTPS: 443, Scheme.HTTP: 80}
_VERDICT = NetworkVerdict(Outcome.ALLOW, "packages", "")


def page_of(registry: Registry, path: str) -> Page:
    """*path* begins below the registry, with a slash at the place where it ends."""
    return Page(registry.scheme, registry.name, registry.port, registry.path.rstrip("/") + path)


def read_page(text: str, base: Page) -> Page:
    """An address that a registry told, seen from the page where it did. Raises RegistryFailed."""
    try:
        parts = urlsplit(urljoin(base.text, text))
        port = parts.port
        name = read_name(parts.hostname or "")
    except (ValueError, NameInvalid):
        raise RegistryFailed("it names an address that is none") from None
    if parts.scheme not in ("https", base.scheme.value) or parts.username is not None or parts.password is not None:
        raise RegistryFailed(f"it names an address by `{parts.scheme[:16]}`, or with a credential")
    scheme = Scheme(parts.scheme)
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._", errors="replace")
    if parts.query:
        target += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?", errors="replace")
    return Page(scheme, name, port or _USUAL_PORTS[scheme], target)


class Reply:
    """An answer: its head, and its body as it comes. To be closed."""

    def __init__(self, page: Page, event: h11.Response, line: "_Line", fetcher: "Fetcher") -> None:
        self.page = page
        """Where it came from in the end."""
        self.status = event.status_code
        self.headers = {bytes(name).decode("latin-1"): bytes(value).decode("latin-1") for name, value in event.headers}
        self._line: _Line | None = line
        self._fetcher = fetcher

    async def parts(self) -> AsyncIterator[bytes]:
        """The body. Raises RegistryFailed: it ended in the middle, or stands still."""
        line = self._line
        while line is not None:
            try:
                async with asyncio.timeout(STALL_S):
                    event = await line.next_event()
            except TimeoutError:
                raise RegistryFailed(f"it sent nothing for {STALL_S:.0f} s") from None
            except (OSError, h11.RemoteProtocolError) as error:
                raise RegistryFailed("it ended in the middle of its answer") from error
            if isinstance(event, h11.EndOfMessage):
                self._line = None
                self._fetcher.give_back(self.page, line)
                return
            if not isinstance(event, h11.Data):
                raise RegistryFailed("it ended in the middle of its answer")
            yield bytes(event.data)

    async def whole(self, most_bytes: int, within_s: float) -> bytes:
        """All of the body, unpacked. Raises RegistryFailed."""
        unpack = _Unpacker(self.headers.get("content-encoding", ""), most_bytes)
        found = bytearray()
        try:
            async with asyncio.timeout(within_s):
                async for part in self.parts():
                    found += unpack(part)
        except TimeoutError:
            raise RegistryFailed(f"its answer takes longer than {within_s:.0f} s") from None
        return bytes(found)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class Fetcher:
    """All questions of a broker to registries."""

    def __init__(
        self, trust: Callable[[], ssl.SSLContext], resolve: Resolve, proxies: Callable[[], Proxies] = Proxies
    ) -> None:
        """*trust* makes what servers are verified by; *proxies* are those that the way to them leads through."""
        self._make_trust = trust
        self._proxies = proxies
        self._resolver = Resolver(resolve, Turns())
        self._idle: dict[tuple[Scheme, str, int], list[_Line]] = {}
        self._kinds: dict[tuple[Scheme, str, int], AddressKind] = {}
        """Where each registry was found."""
        self._down: dict[tuple[Scheme, str, int], tuple[float, str]] = {}
        self._turns = Turns(MOST_AT_ONCE)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        trust = self._make_trust()  # which reads all roots
        trust.set_alpn_protocols(["http/1.1"])
        return trust

    def close(self) -> None:
        for lines in self._idle.values():
            for line in lines:
                line.close()
        self._idle.clear()

    @contextlib.asynccontextmanager
    async def get(
        self, box: object, page: Page, registry: Registry, authorization: str | None, headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """The answer, redirects followed. *box*: for which it is, since each has its turn. Raises RegistryFailed."""
        await self._turns.take(box)
        try:
            reply = await self._follow(page, registry, authorization, headers)
            try:
                yield reply
            finally:
                reply.close()
        finally:
            self._turns.give(box)

    async def _follow(
        self, page: Page, registry: Registry, authorization: str | None, headers: Mapping[str, str]
    ) -> Reply:
        home = page_of(registry, "/").origin
        for _ in range(MOST_REDIRECTS + 1):
            said = {"accept-encoding": "identity", **headers, "user-agent": "coldframe"}
            if authorization is not None and page.origin == home:
                said["authorization"] = authorization
            reply = await self._ask(page, home, said, is_proven=_is_proven(page, registry))
            place = reply.headers.get("location")
            if reply.status not in (301, 302, 303, 307, 308) or place is None:
                return reply
            reply.close()
            page = read_page(place, page)
        raise RegistryFailed(f"it redirects more than {MOST_REDIRECTS} times")

    async def _ask(
        self, page: Page, home: tuple[Scheme, str, int], headers: Mapping[str, str], *, is_proven: bool
    ) -> Reply:
        until, reason = self._down.get(page.origin, (0.0, ""))
        if until > time.monotonic():
            raise RegistryFailed(reason)
        try:
            async with asyncio.timeout(HEAD_S):
                while True:
                    line, is_used = await self._reach(page, home, is_proven=is_proven)
                    try:
                        return Reply(page, await line.ask(page, headers), line, self)
                    except (OSError, h11.RemoteProtocolError, EOFError) as error:
                        line.close()
                        if not is_used:
                            raise RegistryFailed("it gives no answer that can be read") from error
                    except BaseException:
                        line.close()
                        raise
        except TimeoutError:
            failure = RegistryFailed(f"it did not answer within {HEAD_S:.0f} s")
        except RegistryFailed as error:
            failure = error
        if len(self._down) >= MOST_ORIGINS:
            self._down.clear()
        self._down[page.origin] = (time.monotonic() + REST_S, str(failure))
        raise failure

    async def _reach(self, page: Page, home: tuple[Scheme, str, int], *, is_proven: bool) -> tuple["_Line", bool]:
        """A connection, and whether it was used before. Raises RegistryFailed."""
        idle = self._idle.get(page.origin, [])
        while idle:
            line = idle.pop()
            if line.is_good():
                return line, True
            line.close()
        if page.origin == home:
            kinds = NAMED_BY_HOST if is_proven else OPENABLE
        else:
            kinds = frozenset({self._kinds.get(home, AddressKind.PUBLIC)} if page.scheme is Scheme.HTTPS else ())
        try:
            outer, address = await self._dial(page, kinds)
        except (DialDenied, DialFailed) as error:
            raise RegistryFailed(str(error)) from error
        if address is not None and page.origin == home:
            self._kinds[page.origin] = judge_address(address).kind
        if page.scheme is not Scheme.HTTPS:
            return _Line(Stream(outer)), False
        stream = TlsStream(outer, Handshake(self._trust, page.name))
        try:
            await stream.shake_hands()
        except ssl.SSLCertVerificationError as error:
            stream.close()
            raise RegistryFailed(f"its certificate does not hold: {error.verify_message}") from error
        except BaseException as error:
            stream.close()
            if isinstance(error, OSError):
                raise RegistryFailed("there is no handshake with it") from error
            raise
        return _Line(stream), False

    async def _dial(self, page: Page, kinds: Collection[AddressKind]) -> tuple[socket.socket, Address | None]:
        proxy = self._proxies().choose(page.name, page.port, page.scheme)
        place = (_VERDICT, page.name, page.port)
        if proxy is None:
            return await dial(*place, resolve=self._resolver, kinds=kinds)
        return await dial_by_proxy(proxy, *place, resolve=self._resolver, kinds=kinds)

    def give_back(self, page: Page, line: "_Line") -> None:
        lines = self._idle.setdefault(page.origin, [])
        if line.can_go_on() and len(lines) < MOST_IDLE:
            lines.append(line)
            asyncio.get_running_loop().call_later(IDLE_S, self._drop_idle, page.origin, line)
        else:
            line.close()

    def _drop_idle(self, origin: tuple[Scheme, str, int], line: "_Line") -> None:
        """It was kept, and may have been used since."""
        lines = self._idle.get(origin, [])
        if line in lines and not line.is_good():
            lines.remove(line)
            line.close()
        if not lines:
            self._idle.pop(origin, None)


def _is_proven(page: Page, registry: Registry) -> bool:
    """Whether what comes is known to be the registry's: by TLS, or by signatures that its clients check."""
    return page.scheme is Scheme.HTTPS or registry.kind is PackageKind.DEBIAN


class _Line:
    """One connection to a server."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._since = 0.0

    async def ask(self, page: Page, headers: Mapping[str, str]) -> h11.Response:
        """Raises OSError, EOFError and h11.RemoteProtocolError."""
        host = page.name if page.port == _USUAL_PORTS[page.scheme] else f"{page.name}:{page.port}"
        request = h11.Request(method="GET", target=page.target, headers=[("host", host), *headers.items()])
        await self._stream.send(self._http.send(request) or b"")
        self._http.send(h11.EndOfMessage())
        for _ in range(MOST_INTERIM + 1):
            event = await self.next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                break
        raise EOFError

    async def next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._stream.receive()
            if not data and self._stream.is_cut:
                raise ConnectionResetError
            self._http.receive_data(data)
        return event

    def can_go_on(self) -> bool:
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._since = time.monotonic()
        return True

    def is_good(self) -> bool:
        return time.monotonic() - self._since < IDLE_S and self._stream.take_now() is None

    def close(self) -> None:
        self._stream.close()


class _Unpacker:
    """Takes the encoding of a body off, as long as it does not grow without end. Raises RegistryFailed."""

    def __init__(self, encoding: str, most_bytes: int) -> None:
        if encoding not in ("", "identity", "gzip"):
            raise RegistryFailed("its answer has an encoding that it was not asked for")
        self._unzip = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
        self._left = most_bytes

    def __call__(self, data: bytes) -> bytes:
        if self._unzip is not None:
            try:
                data = self._unzip.decompress(data, self._left + 1)
            except zlib.error:
                raise RegistryFailed("its answer is packed wrongly") from None
        self._left -= len(data)
        if self._left < 0 or (self._unzip is not None and self._unzip.unconsumed_tail):
            raise RegistryFailed("its answer is too long")
        return data
