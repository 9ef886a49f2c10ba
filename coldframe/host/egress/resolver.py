"""Asks the resolver of the host, which takes as long as somebody else's name server does, so that no box waits for another.

A question takes a thread, and a thread that asks cannot be ended. So each box has one question that nobody else can take
from it, and those beyond it are of a number that all boxes share, each in its turn.
"""

import asyncio
import itertools
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address

from coldframe.policy.addresses import Address

MOST_ADDRESSES = 8
"""Of one name: enough for every address family of a few sites."""
MOST_SHARED_QUESTIONS = 64
"""Of all boxes at once, beside the one that each has of its own."""
MOST_QUESTIONS_OF_BOX = 4
"""A further one waits, so that whoever owns a slow name server does not stop other boxes."""
KEEP_S = 3.0
"""How long an answer holds, for programs that connect several times; nobody says here how long it should."""
MOST_ANSWERS = 256
"""That are kept of one box."""
_MOST_THREADS = 4096
"""As good as none is the limit: boxes are fewer."""

Resolve = Callable[[str], Awaitable[list[Address]]]

_questions = ThreadPoolExecutor(_MOST_THREADS, "resolve")  # which are made as they are needed


async def resolve_by_host(name: str) -> list[Address]:
    """Addresses of a name in the order of the host's preference, MOST_ADDRESSES at most. Raises OSError."""
    return await asyncio.get_running_loop().run_in_executor(_questions, _ask_host, name)


def _ask_host(name: str) -> list[Address]:
    found = socket.getaddrinfo(name + ".", None, type=socket.SOCK_STREAM)  # of thousands, if somebody wants that
    texts = dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found)
    return [ip_address(text) for text in itertools.islice(texts, MOST_ADDRESSES)]


class Turns:
    """Who may ask now, of all boxes. A box is whatever it calls itself here, as long as it asks."""

    def __init__(self, most_shared: int = MOST_SHARED_QUESTIONS) -> None:
        self._most_shared = most_shared
        self._shared = 0
        self._open: Counter[object] = Counter()
        self._waiting: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, box: object) -> None:
        """Returns when the box may ask one more; then `give` has to follow."""
        if not self._open[box] or self._shared < self._most_shared:
            self._begin(box)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(box, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._drop(box, turn)
            else:  # it came at the same moment
                self.give(box)
            raise

    def give(self, box: object) -> None:
        """A question of the box is over; the next one has its turn."""
        self._open[box] -= 1
        if self._open[box]:
            self._shared -= 1
        else:
            del self._open[box]
        if box in self._waiting and not self._open[box]:
            self._let(box)
        elif self._waiting and self._shared < self._most_shared:
            self._let(next(iter(self._waiting)))

    def _begin(self, box: object) -> None:
        if self._open[box]:
            self._shared += 1
        self._open[box] += 1

    def _let(self, box: object) -> None:
        turn = self._waiting[box][0]
        self._waiting.move_to_end(box)
        self._drop(box, turn)
        self._begin(box)
        turn.set_result(None)

    def _drop(self, box: object, turn: "asyncio.Future[None]") -> None:
        self._waiting[box].remove(turn)
        if not self._waiting[box]:
            del self._waiting[box]


@dataclass
class _Question:
    answer: "asyncio.Task[list[Address]]"
    waiting: int = 0
    is_asked: bool = False


class Resolver:
    """The questions of one box: equal ones are asked once within some seconds, and a few at a time.

    One that nobody waits for any more still counts until it is answered: the thread that asks cannot be ended.
    """

    def __init__(self, resolve: Resolve, turns: Turns | None = None) -> None:
        self._resolve = resolve
        self._turns = turns or Turns()
        self._own_turn = asyncio.Semaphore(MOST_QUESTIONS_OF_BOX)
        self._questions: dict[str, _Question] = {}
        self._answers: dict[str, tuple[float, list[Address]]] = {}

    def recall(self, name: str) -> list[Address] | None:
        """What holds still; None if it has to be asked."""
        until, known = self._answers.get(name, (0.0, []))
        return known if until > asyncio.get_running_loop().time() else None

    async def __call__(self, name: str) -> list[Address]:
        """Raises OSError."""
        known = self.recall(name)
        if known is not None:
            return known
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
        async with self._own_turn:
            await self._turns.take(self)
            question.is_asked = True
            try:
                found = await self._resolve(name)
                self._keep(name, found)
                return found
            finally:
                self._turns.give(self)
                self._forget(name, question)

    def _keep(self, name: str, found: list[Address]) -> None:
        if len(self._answers) >= MOST_ANSWERS:
            self._answers.clear()
        self._answers[name] = asyncio.get_running_loop().time() + KEEP_S, found

    def _forget(self, name: str, question: _Question) -> None:
        if self._questions.get(name) is question:
            del self._questions[name]
