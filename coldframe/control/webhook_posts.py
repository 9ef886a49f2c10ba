"""One delivery to a web hook: the address is looked up and judged, the one that was judged is dialled, and nothing is followed.

Whoever answers is not trusted: of what it says the first line is read, and no more than that takes.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
import threading
from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from coldframe.contract.errors import InvalidArgument
from coldframe.policy.addresses import OPENABLE, Address, AddressKind, judge_address, read_address

CONNECT_S = 10.0
ANSWER_S = 15.0
MOST_HEAD_BYTES = 8 * 1024
MOST_QUESTIONS = 200
"""Names that are looked up at once, each in a thread of its own: one that hangs holds up nobody, and ends when it does."""
PRIVATE = OPENABLE | {AddressKind.LOOPBACK, AddressKind.OWN}
"""Kinds that an owner may open. Those where clouds keep secrets, and others that are for no service, stay closed."""
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class NotDelivered(Exception):
    """It was not taken; the text says why, for people."""


class Target(NamedTuple):
    host: str
    port: int
    is_tls: bool
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def read_target(url: str) -> Target:
    """Raises InvalidArgument: not the address of a web hook."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
    except (ValueError, UnicodeError):
        parts, port, host = urlsplit(""), None, ""
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password or parts.fragment:
        raise InvalidArgument(
            "`url` is no address of a web hook",
            hint="give one as https://example.com/path, without a user or a fragment",
            argument="url",
        )
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=-._~") + (
        f"?{quote(parts.query, safe='/%:@!$&()*+,;=-._~?')}" if parts.query else ""
    )
    is_tls = parts.scheme == "https"
    return Target(host, port or (443 if is_tls else 80), is_tls, path)


def refuse_address(address: Address, *, allow_private: bool) -> str | None:
    """Why it is not dialled; None if it is."""
    judged = judge_address(address)
    kind = judged.kind
    if (
        kind is AddressKind.PUBLIC
    ):  # it may be this machine's all the same, or carry one that is, by way of a translator
        try:
            kind = judge_address(address, own=[one for one in (judged.dialled, *judged.carried) if _is_own(one)]).kind
        except OSError as error:
            return f"whether {address} is this machine's cannot be told: {error.strerror or error}"
    if kind is AddressKind.PUBLIC or (allow_private and kind in PRIVATE):
        return None
    return f"{address} is a{'n' if kind is AddressKind.OWN else ''} {kind.value} address"


def _is_own(address: Address) -> bool:
    """Whether this machine has the address: only then does the kernel take it as the source of what goes there.

    Raises OSError if the kernel does not tell.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            asking.connect((str(address), 9))  # sends nothing
            return ip_address(asking.getsockname()[0].partition("%")[0]) == address
    except OSError as error:
        if error.errno not in _NO_WAY:
            raise
        return False  # dialling fails as well


class Posts:
    """Sends them. A name is looked up once at a time, however often it is asked for meanwhile."""

    def __init__(self) -> None:
        self._questions: dict[str, asyncio.Future[list[Address]]] = {}

    async def post(self, target: Target, body: bytes, headers: Mapping[str, str], *, allow_private: bool) -> None:
        """Deliver, or raise NotDelivered."""
        try:
            async with asyncio.timeout(CONNECT_S):
                address = await self._judged(target, allow_private)
                context = ssl.create_default_context() if target.is_tls else None
                reader, writer = await asyncio.open_connection(
                    str(address),
                    target.port,
                    ssl=context,
                    server_hostname=target.host if context is not None else None,
                    limit=MOST_HEAD_BYTES,
                )
        except TimeoutError:
            raise NotDelivered(f"no connection within {CONNECT_S:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise NotDelivered(f"no connection: {error.strerror or error}") from None
        try:
            async with asyncio.timeout(ANSWER_S):
                lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.authority}", "Connection: close"]
                lines += [f"{name}: {value}" for name, value in headers.items()]
                lines += [f"Content-Length: {len(body)}", "", ""]
                writer.write("\r\n".join(lines).encode("ascii") + body)
                await writer.drain()
                status = _status_of(await reader.readline())
        except TimeoutError:
            raise NotDelivered(f"no answer within {ANSWER_S:g} s") from None
        except (OSError, ValueError) as error:
            raise NotDelivered(f"the connection broke: {error}") from None
        finally:
            writer.close()
        if not 200 <= status < 300:
            raise NotDelivered(f"it answered {status}")

    async def _judged(self, target: Target, allow_private: bool) -> Address:
        """The first address of the name, if it and every other one may be dialled: one that may not says what the name is."""
        literal = read_address(target.host)
        found = [literal] if literal is not None else await self._addresses(target.host)
        if not found:
            raise NotDelivered(f"`{target.host}` has no address")
        for address in found:
            if why := refuse_address(address, allow_private=allow_private):
                raise NotDelivered(why)
        return judge_address(found[0]).dialled

    async def _addresses(self, host: str) -> list[Address]:
        """Raises OSError. A question goes on when nobody waits for it any more, and the next one to ask has its answer."""
        question = self._questions.get(host)
        if question is None:
            if len(self._questions) >= MOST_QUESTIONS:
                raise NotDelivered(f"{MOST_QUESTIONS} names are being looked up already")
            question = self._questions[host] = self._ask(host)
        return await asyncio.shield(question)

    def _ask(self, host: str) -> "asyncio.Future[list[Address]]":
        loop = asyncio.get_running_loop()
        question: asyncio.Future[list[Address]] = loop.create_future()

        def settle(answer: list[Address] | OSError) -> None:
            del self._questions[host]
            if isinstance(answer, OSError):
                question.set_exception(answer)
                question.exception()  # seen, also if nobody waits any more
            else:
                question.set_result(answer)

        def ask() -> None:
            answer: list[Address] | OSError
            try:
                told = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                answer = [ip_address(str(one[4][0]).partition("%")[0]) for one in told]
            except OSError as error:
                answer = error
            except ValueError as error:
                answer = OSError(f"`{host}` is no name of a host: {error}")
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, answer)

        # Not the threads that everybody shares, and none that the end of the server waits for.
        threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
        return question


def _status_of(line: bytes) -> int:
    parts = line.split(b" ")
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].strip().isdigit():
        raise NotDelivered("it gave no answer of HTTP")
    return int(parts[1])
