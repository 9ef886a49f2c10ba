"""Opens a connection to what was allowed: a name is resolved once, each address is judged, and what was judged is dialled.

The resolver is the one of the host. Between judging and dialling nothing is asked again, so a name whose answers change
gains nothing; an address that is refused is passed over, and if all are, that is a denial and not a failure.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from coldframe.host.egress.carry import break_if_dropped
from coldframe.policy.addresses import Address, judge_address
from coldframe.policy.network import NetworkVerdict, judge_dialled

RESOLVE_S = 10.0
CONNECT_S = 10.0
"""For each address. A program inside has its own patience as well."""
MOST_ADDRESSES = 8
"""Of one name: enough for every address family of a few sites."""

Resolve = Callable[[str], Awaitable[list[Address]]]


class DialDenied(Exception):
    """No address of the destination may be dialled."""


class DialFailed(Exception):
    """It may be reached, and cannot be."""


async def resolve_by_host(name: str) -> list[Address]:
    """Addresses of a name in the order of the host's preference. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name + ".", None, type=socket.SOCK_STREAM)
    return [ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


async def dial(
    verdict: NetworkVerdict, destination: str | Address, port: int, *, resolve: Resolve = resolve_by_host
) -> tuple[socket.socket, Address]:
    """A connected socket that never blocks, and the address that it is connected to.

    Raises:
        DialDenied: every address is one that no rule opened.
        DialFailed: the name has no address, or nobody answers there.
    """
    allowed = _allowed(verdict, destination, await _addresses(destination, resolve))
    failure = "no address"
    for address in allowed[:MOST_ADDRESSES]:
        try:
            return await _connect(address, port), address
        except TimeoutError:
            failure = f"{address} did not answer within {CONNECT_S:.0f} s"
        except OSError as error:
            failure = f"{address}: {(error.strerror or 'unreachable').lower()}"
    raise DialFailed(failure)


async def _addresses(destination: str | Address, resolve: Resolve) -> list[Address]:
    if not isinstance(destination, str):
        return [destination]
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = list(dict.fromkeys(await resolve(destination)))
    except TimeoutError:
        raise DialFailed(f"the name was not resolved within {RESOLVE_S:.0f} s") from None
    except OSError as error:
        raise DialFailed(f"the name was not resolved: {error.strerror}") from error
    if not found:
        raise DialFailed("the name has no address")
    return found


def _allowed(verdict: NetworkVerdict, destination: str | Address, addresses: list[Address]) -> list[Address]:
    allowed = []
    refused = ""
    for address in addresses:
        dialled = judge_address(address).dialled
        kind = judge_dialled(verdict, dialled, own=(dialled,) if is_own(dialled) else ())
        if kind is None:
            allowed.append(dialled)
        else:
            refused = refused or f"`{destination}` is at {address}, which is {kind}"
    if not allowed:
        raise DialDenied(refused)
    return allowed


def is_own(address: Address) -> bool:
    """Whether this machine has the address: only then does the kernel take it as the source of what goes there."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            asking.connect((str(address), 9))  # sends nothing
            return ip_address(asking.getsockname()[0].partition("%")[0]) == address
    except OSError:
        return False  # no way there: dialling fails as well


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
        break_if_dropped(connection)
    except BaseException:
        connection.close()
        raise
    return connection
