"""Opens a connection to what was allowed: a name is resolved once, each address is judged, and what was judged is dialled.

The resolver is the one of the host. Between judging and dialling nothing is asked again, so a name whose answers change
gains nothing; an address that is refused is passed over, and if all are, that is a denial and not a failure.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Collection
from ipaddress import ip_address

from coldframe.host.egress.carry import bound_memory, break_if_dropped, keep_alive
from coldframe.host.egress.resolver import MOST_ADDRESSES, Resolve, resolve_by_host
from coldframe.policy.addresses import Address, AddressKind, judge_address
from coldframe.policy.network import NetworkVerdict, judge_dialled

RESOLVE_S = 10.0
CONNECT_S = 10.0
"""For each address. A program inside has its own patience as well."""
PREPARED_S = 1.0
"""How long what was prepared is good for."""
DIAL_S = 30.0
"""For the name and all of its addresses."""

_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class DialDenied(Exception):
    """No address of the destination may be dialled."""


class DialFailed(Exception):
    """It may be reached, and cannot be."""


class NameUnresolved(DialFailed):
    """The host knows no address of the name."""


class Prepared:
    """What dialling needs of this machine alone, made while the decision is put on record: nothing has left for it."""

    def __init__(self, verdict: NetworkVerdict, destination: str | Address, known: list[Address]) -> None:
        """*known*: what the destination was found to be, not long ago. Raises DialDenied, OSError."""
        self.verdict = verdict
        self.allowed = _allowed(verdict, destination, _few(known), ())
        self.socket: socket.socket | None = _make_socket(self.allowed[0])
        self._at = asyncio.get_running_loop().time()

    def take(self, verdict: NetworkVerdict) -> "tuple[list[Address], socket.socket] | None":
        """What is allowed, and a socket for the first of it; None if it was made for something else, or long ago."""
        made, self.socket = self.socket, None
        if made is None:
            return None
        if verdict is not self.verdict or asyncio.get_running_loop().time() - self._at > PREPARED_S:
            made.close()
            return None
        return self.allowed, made

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


async def dial(
    verdict: NetworkVerdict,
    destination: str | Address,
    port: int,
    *,
    resolve: Resolve = resolve_by_host,
    kinds: Collection[AddressKind] = (),
    prepared: Prepared | None = None,
) -> tuple[socket.socket, Address]:
    """A connected socket that never blocks, and the address that it is connected to. *kinds* are dialled as well.

    Raises:
        DialDenied: every address is one that no rule opened.
        DialFailed: the name has no address, or nobody answers there.
        OSError: it cannot be told whether an address is one of this machine.
    """
    try:
        async with asyncio.timeout(DIAL_S):
            return await _dial(verdict, destination, port, resolve, kinds, prepared)
    except TimeoutError:
        raise DialFailed(f"no address answered within {DIAL_S:.0f} s") from None


async def _dial(
    verdict: NetworkVerdict,
    destination: str | Address,
    port: int,
    resolve: Resolve,
    kinds: Collection[AddressKind],
    prepared: Prepared | None,
) -> tuple[socket.socket, Address]:
    made: socket.socket | None = None
    taken = None if prepared is None or kinds else prepared.take(verdict)
    if taken is None:
        allowed = await find_allowed(verdict, destination, resolve, kinds)
    else:
        allowed, made = taken
    failure = "no address"
    for address in allowed:
        try:
            connection, made = made or _make_socket(address), None
            return await _connect(connection, address, port), address
        except TimeoutError:
            failure = f"{address} did not answer within {CONNECT_S:.0f} s"
        except OSError as error:
            failure = f"{address}: {(error.strerror or 'unreachable').lower()}"
    raise DialFailed(failure)


async def find_allowed(
    verdict: NetworkVerdict,
    destination: str | Address,
    resolve: Resolve,
    kinds: Collection[AddressKind],
    *,
    within_s: float = RESOLVE_S,
) -> list[Address]:
    """The addresses of it that may be dialled, one at least. Raises NameUnresolved, DialDenied, OSError."""
    if not isinstance(destination, str):
        return _allowed(verdict, destination, [destination], kinds)
    try:
        async with asyncio.timeout(within_s):
            found = _few(await resolve(destination))
    except TimeoutError:
        raise NameUnresolved(f"the name was not resolved within {within_s:.0f} s") from None
    except OSError as error:
        raise NameUnresolved(f"the name was not resolved: {error.strerror}") from error
    if not found:
        raise NameUnresolved("the name has no address")
    return _allowed(verdict, destination, found, kinds)


def _few(addresses: list[Address]) -> list[Address]:
    return list(dict.fromkeys(addresses))[:MOST_ADDRESSES]


def _allowed(
    verdict: NetworkVerdict, destination: str | Address, addresses: list[Address], kinds: Collection[AddressKind]
) -> list[Address]:
    def refusal(address: Address, own: Collection[Address] = ()) -> AddressKind | None:
        kind = judge_dialled(verdict, address, own=own)
        return None if kind in kinds else kind

    allowed = []
    refused = ""
    for address in addresses:
        judged = judge_address(address)
        dialled = judged.dialled
        kind = refusal(dialled)
        if kind is None:
            within = (dialled, *judged.carried)  # what is carried is reached too, by way of a translator
            own = [one for one in within if is_own(one)]
            kind = refusal(dialled, own) if own else None
        if kind is None:
            allowed.append(dialled)
        else:
            refused = refused or f"`{destination}` is at {address}, which is {kind}"
    if not allowed:
        raise DialDenied(refused)
    return allowed


def is_own(address: Address) -> bool:
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


async def connect(address: Address, port: int) -> socket.socket:
    """Raises OSError, also if it takes longer than CONNECT_S."""
    return await _connect(_make_socket(address), address, port)


def _make_socket(address: Address) -> socket.socket:
    """For one connection to it. Raises OSError."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        bound_memory(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect(connection: socket.socket, address: Address, port: int) -> socket.socket:
    """Owns it: what cannot be connected is closed."""
    try:
        if not _connects_at_once(connection, address, port):
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
        break_if_dropped(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connects_at_once(connection: socket.socket, address: Address, port: int) -> bool:
    """Begin, and see whether it is done: what is near has answered by then. Raises OSError."""
    with contextlib.suppress(BlockingIOError):
        connection.connect((str(address), port))
    try:
        connection.getpeername()
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
        return False
    return True
