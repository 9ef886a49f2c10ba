"""What waits for an answer of the control side, and news of what was put on record: told to the one who reads."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from coldframe.contract.network import NetworkAnswer, NetworkNews, NetworkQuestion
from coldframe.host.egress.contact import EgressContact, EgressRequest, HandleUse, SecretAnswer
from coldframe.host.network_records import contact_of, request_of

QUESTION_S = 8.0
"""How long the control side may take to answer. Less than the broker waits."""
GATHER_NEWS_S = 0.02
"""How long news of records gather before they are told: each costs both sides more than a record."""

_NOBODY = NetworkAnswer(refusal="there is nobody to ask")


class _Reader:
    """Who is told. What was asked already is told to a new one as well."""

    def __init__(self, questions: Sequence[NetworkQuestion]) -> None:
        self.questions = list(questions)
        self.news: dict[str, None] = {}
        self.is_replaced = False
        self.wake = asyncio.Event()
        self.wake.set()

    def leave(self) -> None:
        self.is_replaced = True
        self.wake.set()


class Questions:
    """Those of one machine, in its event loop."""

    def __init__(self) -> None:
        self._reader: _Reader | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: dict[str, tuple[NetworkQuestion, asyncio.Future[NetworkAnswer]]] = {}

    async def events(self) -> AsyncGenerator[NetworkQuestion | NetworkNews, None]:
        """To one reader at a time: a new one takes over, with what waits for an answer."""
        reader = _Reader([question for question, _ in self._asked.values()])
        if self._reader is not None:
            self._reader.leave()
        self._reader, self._loop = reader, asyncio.get_running_loop()
        try:
            while True:
                await reader.wake.wait()
                reader.wake.clear()
                if reader.is_replaced:
                    return
                while reader.questions or reader.news:
                    if reader.questions:
                        yield reader.questions.pop(0)
                        continue
                    sandbox_id = next(iter(reader.news))
                    del reader.news[sandbox_id]
                    yield NetworkNews(sandbox_id=sandbox_id)
        finally:
            if self._reader is reader:
                self._reader = None
                self._refuse_all()

    def answer(self, question_id: str, answer: NetworkAnswer) -> None:
        """Nothing happens if nobody waits for it."""
        asked = self._asked.get(question_id)
        if asked is not None:
            _settle(asked[1], answer)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.leave()
        self._refuse_all()

    def tell_news(self, sandbox_id: str) -> None:
        """Something was put on record of it. From any thread: a long record is read in one of its own."""
        loop = self._loop
        if loop is None:
            return
        if self._is_here(loop):
            self._note(sandbox_id)
            return
        with contextlib.suppress(RuntimeError):  # it is closed: nobody is told any more
            loop.call_soon_threadsafe(self._note, sandbox_id)

    @staticmethod
    def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the thread of that loop, and within it."""
        try:
            return asyncio.get_running_loop() is loop
        except RuntimeError:
            return False

    def _note(self, sandbox_id: str) -> None:
        reader = self._reader
        if reader is None:
            return
        if not reader.news:  # what comes meanwhile is told with it
            asyncio.get_running_loop().call_later(GATHER_NEWS_S, reader.wake.set)
        reader.news[sandbox_id] = None

    # -- what is asked -------------------------------------------------------------------------

    async def reach(self, contact: EgressContact) -> None:
        """Raises PermissionError: its label was not raised to that of the contact."""
        request = contact.requests[0] if contact.requests else None
        answer = await self._ask(
            NetworkQuestion(
                question_id=secrets.token_hex(12),
                sandbox_id=contact.sandbox_id,
                kind="reach",
                label=contact.label,
                contact=contact_of(replace(contact, requests=[])),
                request=None if request is None else request_of(request),
            )
        )
        if answer.refusal is not None:
            raise PermissionError(answer.refusal)

    async def secret(self, contact: EgressContact, request: EgressRequest, use: HandleUse) -> SecretAnswer:
        answer = await self._ask(
            NetworkQuestion(
                question_id=secrets.token_hex(12),
                sandbox_id=contact.sandbox_id,
                kind="secret",
                label=request.label,
                contact=contact_of(contact),
                request=request_of(request),
                handle=use.handle,
                header=use.header,
                is_verified=use.is_verified,
            )
        )
        return SecretAnswer(answer.secret, answer.credential, answer.refusal, answer.code)

    async def _ask(self, question: NetworkQuestion) -> NetworkAnswer:
        """A refusal if there is nobody to ask, or no answer in time."""
        reader = self._reader
        if reader is None:
            return _NOBODY
        waiting: asyncio.Future[NetworkAnswer] = asyncio.get_running_loop().create_future()
        self._asked[question.question_id] = question, waiting
        reader.questions.append(question)
        reader.wake.set()
        try:
            async with asyncio.timeout(QUESTION_S):
                return await waiting
        except TimeoutError:
            return NetworkAnswer(refusal=f"the control side did not answer within {QUESTION_S:.0f} s")
        finally:
            del self._asked[question.question_id]

    def _refuse_all(self) -> None:
        for _, answer in self._asked.values():
            _settle(answer, _NOBODY)


def _settle(waiting: "asyncio.Future[NetworkAnswer]", answer: NetworkAnswer) -> None:
    if not waiting.done():
        waiting.set_result(answer)
