"""Opens a connection to what was allowed: a name is resolved once, each address is judged, and what was judged is dialled.

The resolver is the one of the host. Between judging and dialling nothing is asked again, so a name whose answers change
gains nothing; an address that is refused is passed over, and if all are, that is a denial and not a failure.
"""

import asyncio
import errno
import itertools
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address

from coldframe.host.egress.carry import bound_memory, break_if_dropped, keep_alive
from coldframe.policy.addresses import Address, judge_address
from coldframe.policy.network import NetworkVerdict, judge_dialled

RESOLVE_S = 10.0
CONNECT_S = 10.0
"""For each address. A program inside has its own patience as well."""
DIAL_S = 30.0
"""For the name and all of its addresses."""
MOST_ADDRESSES = 8
"""Of one name: enough for every address family of a few sites."""
MOST_QUESTIONS = 64
"""Of all boxes at once to the resolver of the host, which may take as long as somebody else's name server does."""
MOST_QUESTIONS_OF_BOX = 4
"""A further one waits, so that whoever owns a slow name server does not stop other boxes."""

Resolve = Callable[[str], Awaitable[list[Address]]]

_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_questions = ThreadPoolExecutor(MOST_QUESTIONS, "resolve")


class DialDenied(Exception):
    """No address of the destination may be dialled."""


class DialFailed(Exception):
    """It may be reached, and cannot be."""


async def resolve_by_host(name: str) -> list[Address]:
    """Addresses of a name in the order of the host's preference, MOST_ADDRESSES at most. Raises OSError."""
    return await asyncio.get_running_loop().run_in_executor(_questions, _ask_host, name)


def _ask_host(name: str) -> list[Address]:
    found = socket.getaddrinfo(name + ".", None, type=socket.SOCK_STREAM)  # of thousands, if somebody wants that
    texts = dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found)
    return [ip_address(text) for text in itertools.islice(texts, MOST_ADDRESSES)]


@dataclass
class _Question:
    answer: "asyncio.Task[list[Address]]"
    waiting: int = 0
    is_asked: bool = False


class Resolver:
    """The questions of one box: equal ones are asked once, and a few at a time.

    One that nobody waits for any more still counts until it is answered: the thread that asks cannot be ended.
    """

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._turn = asyncio.Semaphore(MOST_QUESTIONS_OF_BOX)
        self._questions: dict[str, _Question] = {}

    async def __call__(self, name: str) -> list[Address]:
        """Raises OSError."""
        question = self._questions.get(name)
        if question is None:
            question = self._questions[name] = _Question(asyncio.create_task(self._ask(name)))
        question.waiting += 1
        try:
            return await asyncio.shield(question.answer)
        finally:
            question.waiting -= 1
            if not question.waiting and not question.is_asked:
                self._forget(name, question)
                question.answer.cancel()

    async def _ask(self, name: str) -> list[Address]:
        question = self._questions[name]
        async with self._turn:
            question.is_asked = True
            try:
                return await self._resolve(name)
            finally:
                self._forget(name, question)

    def _forget(self, name: str, question: _Question) -> None:
        if self._questions.get(name) is question:
            del self._questions[name]


async def dial(
    verdict: NetworkVerdict, destination: str | Address, port: int, *, resolve: Resolve = resolve_by_host
) -> tuple[socket.socket, Address]:
    """A connected socket that never blocks, and the address that it is connected to.

    Raises:
        DialDenied: every address is one that no rule opened.
        DialFailed: the name has no address, or nobody answers there.
        OSError: it cannot be told whether an address is one of this machine.
    """
    try:
        async with asyncio.timeout(DIAL_S):
            return await _dial(verdict, destination, port, resolve)
    except TimeoutError:
        raise DialFailed(f"no address answered within {DIAL_S:.0f} s") from None


async def _dial(
    verdict: NetworkVerdict, destination: str | Address, port: int, resolve: Resolve
) -> tuple[socket.socket, Address]:
    allowed = _allowed(verdict, destination, await _addresses(destination, resolve))
    failure = "no address"
    for address in allowed:
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
            found = list(dict.fromkeys(await resolve(destination)))[:MOST_ADDRESSES]
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
        judged = judge_address(address)
        dialled = judged.dialled
        kind = judge_dialled(verdict, dialled)
        if kind is None:
            within = (dialled, *judged.carried)  # what is carried is reached too, by way of a translator
            kind = judge_dialled(verdict, dialled, own=[one for one in within if is_own(one)])
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


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        bound_memory(connection)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
        break_if_dropped(connection)
    except BaseException:
        connection.close()
        raise
    return connection
