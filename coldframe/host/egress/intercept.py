"""Reads the requests of a connection, passes on those that are allowed, and answers the others itself.

The box is answered as the destination, with a certificate of its own sandbox's authority; the destination is asked by
this process, over TLS that is verified against the host's roots. Each request is read, judged and on record before a
byte of it goes out, also the second one of a connection, and what goes out is written anew from what was judged. One
request at a time: what a program sends ahead waits.

HTTP/1.1 is all that is offered. After an upgrade to a websocket that was judged as a request, the bytes pass as they are.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress.authority import Authority
from coldframe.host.egress.contact import EgressRequest
from coldframe.host.egress.forwarding import (
    LEFT,
    Asked,
    BoxLeft,
    Forwarding,
    Inject,
    ServerFailed,
    describe,
    inject_nothing,
)
from coldframe.host.egress.passage import FIRST_BYTES_S, Denied, Passage
from coldframe.host.egress.requests import HeadReader, RequestFault, RequestHead, RequestInvalid
from coldframe.host.egress.responses import refuse
from coldframe.host.egress.streams import Stream, TlsStream
from coldframe.policy.network import NetworkVerdict
from coldframe.policy.network_rules import Scheme

IDLE_S = 75.0
"""From the end of one request to the whole head of the next."""
MOST_REQUESTS = 256
"""Of one connection, and as many as its record can hold; then it ends in order, and the program opens another one."""
MOST_PATH_CHARACTERS = 32 * 1024
"""Of all requests of one connection together, since each is kept."""

_STATUS_OF_FAULT = {
    RequestFault.TOO_LARGE: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    RequestFault.VERSION: HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
    RequestFault.OVERRIDE: HTTPStatus.FORBIDDEN,
}


class Interception:
    """The interceptor of a broker, for all of its boxes."""

    def __init__(
        self,
        *,
        trust: ssl.SSLContext | None = None,
        inject: Inject = inject_nothing,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`trust`: how servers are verified; without it, against the roots of the host."""
        self.trust = trust or ssl.create_default_context()
        self.trust.set_alpn_protocols(["http/1.1"])
        self.inject = inject
        self._clock = clock
        self._authorities: dict[str, Authority] = {}

    def authority(self, sandbox_id: str) -> Authority:
        """That of a sandbox, made when it is asked for first."""
        if sandbox_id not in self._authorities:
            self._authorities[sandbox_id] = Authority(clock=self._clock)
        return self._authorities[sandbox_id]

    def adopt(self, sandbox_id: str, authority: Authority) -> None:
        """The programs of the sandbox trust this one already."""
        self._authorities[sandbox_id] = authority

    def forget(self, sandbox_id: str) -> None:
        """The sandbox is gone."""
        self._authorities.pop(sandbox_id, None)

    async def __call__(self, passage: Passage, first: bytes) -> str:
        client = await self._meet(passage, first)
        session = _Session(passage, client, self)
        try:
            ended = await session.serve()
            await client.finish()
            return ended
        finally:
            session.close()

    async def _meet(self, passage: Passage, first: bytes) -> Stream:
        if passage.scheme is not Scheme.HTTPS:
            return Stream(passage.inner, first)
        context = self.authority(passage.contact.sandbox_id).context(passage.destination)
        client = TlsStream(passage.inner, context, first=first)
        try:
            async with asyncio.timeout(FIRST_BYTES_S):
                await client.shake_hands()
        except TimeoutError:
            raise Denied("network:first-bytes", "it did not go on with its handshake") from None
        except ssl.SSLError as error:
            raise Denied(
                "network:certificate", f"it did not take the certificate of its sandbox: {describe(error)}"
            ) from error
        return client


class _Refusal(Exception):
    """The request is answered here."""

    def __init__(self, status: HTTPStatus, code: str, rule_id: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.rule_id = rule_id


class _Session:
    def __init__(self, passage: Passage, client: Stream, interception: Interception) -> None:
        self._passage = passage
        self._client = client
        self._forwarding = Forwarding(passage, client, interception.trust, interception.inject)
        self._path_characters = 0
        self._has_passed = False

    async def serve(self) -> str:
        """Until the connection is of no use any more. How it ended."""
        ended = ""
        while not ended:
            try:
                found = await self._read_head()
            except RequestInvalid as fault:
                await self._refuse_unread(fault)
                break
            if found is None:
                break
            ended = await self._serve_one(found)
        if ended not in ("", "closed"):
            return ended
        return "denied" if self._passage.contact.requests and not self._has_passed else "closed"

    def close(self) -> None:
        self._forwarding.close()
        self._client.unwatch()

    # -- requests ------------------------------------------------------------------------------

    async def _read_head(self) -> RequestHead | None:
        """The next one; None if there is no other."""
        reader = HeadReader()
        data, self._forwarding.rest = self._forwarding.rest, b""
        try:
            async with asyncio.timeout(IDLE_S):
                while True:
                    if not data and not self._forwarding.has_box_ended:
                        data = await self._client.receive()
                    if not data:
                        return None
                    head = reader.feed(data)
                    if head is not None:
                        self._forwarding.rest = reader.rest
                        return head
                    data = b""
        except TimeoutError:
            return None

    async def _serve_one(self, head: RequestHead) -> str:
        """Empty if another request may follow, else how the connection ended."""
        passage = self._passage
        if head.upgrade and (head.method != "GET" or head.length != 0):
            head = head._replace(upgrade=False)
        verdict = passage.judge_request(head.method, head.target, upgrades=head.upgrade)
        wrong = self._find_refusal(head, verdict)
        request = EgressRequest(
            head.method,
            head.target.path,
            Outcome.DENY if wrong else verdict.outcome,
            wrong.rule_id if wrong else verdict.rule_id,
            passage.now(),
            reason=str(wrong) if wrong else verdict.reason,
            label=Label.PUBLIC if wrong else verdict.label,
        )
        self._path_characters += len(request.path)
        asked = Asked(head, self._closes_after(head), verdict, len(passage.contact.requests))
        passage.asked = None if wrong else (head.method, head.target, head.upgrade)
        try:
            await self._record(request)
            if wrong:
                raise wrong
            may_follow = await self._forwarding.pass_on(asked)
            return "" if may_follow else "closed"
        except (_Refusal, Denied) as denial:
            return await self._deny(asked, denial)
        except ServerFailed as failure:
            await self._client.send(self._refusal_of(asked, HTTPStatus.BAD_GATEWAY, "SERVER_FAILED", "", str(failure)))
            return str(failure)
        except BoxLeft as left:
            if str(left):
                answer = (HTTPStatus.BAD_REQUEST, "REQUEST_INVALID", "network:request", str(left))
                await self._client.send(self._refusal_of(asked, *answer))
            return str(left) or LEFT
        finally:
            passage.asked = None
            self._client.unwatch()

    def _find_refusal(self, head: RequestHead, verdict: NetworkVerdict) -> _Refusal | None:
        passage = self._passage
        if not head.is_for(str(passage.destination), passage.contact.port):
            reason = f"the request is for `{head.host}`, the connection is to `{passage.destination}`"
            return _Refusal(HTTPStatus.MISDIRECTED_REQUEST, "DENIED_BY_RULE", "network:host", reason)
        if head.method in ("GET", "HEAD") and head.length != 0:
            # Some servers take it for another request, and a rule that allows to read allows to send nothing.
            reason = f"{head.method} with a body is passed on nowhere"
            return _Refusal(HTTPStatus.BAD_REQUEST, "REQUEST_INVALID", "network:body", reason)
        if verdict.outcome is Outcome.ALLOW:
            return None
        asks = verdict.outcome is Outcome.ASK  # nobody can be asked yet
        reason = f"a person has to decide: {verdict.reason}" if asks else verdict.reason
        return _Refusal(HTTPStatus.FORBIDDEN, "DENIED_BY_RULE", verdict.rule_id, reason)

    async def _record(self, request: EgressRequest) -> None:
        """Raises Denied. Until something is let through, the connection is on record as denied."""
        contact = self._passage.contact
        if not self._has_passed:
            contact.outcome, contact.rule_id, contact.reason = request.outcome, request.rule_id, request.reason
        await self._passage.begin(
            NetworkVerdict(contact.outcome, contact.rule_id, contact.reason, label=request.label),
        )
        await self._passage.tell(request)
        self._has_passed = self._has_passed or request.outcome is Outcome.ALLOW

    async def _refuse_unread(self, fault: RequestInvalid) -> None:
        reason = f"{fault.fault}: {fault}"
        request = EgressRequest("", "", Outcome.DENY, "network:request", self._passage.now(), reason=reason)
        try:
            await self._record(request)
        except Denied as denial:
            reason = f"{reason}; {denial}"
        status = _STATUS_OF_FAULT.get(fault.fault, HTTPStatus.BAD_REQUEST)
        await self._client.send(refuse(status, "REQUEST_INVALID", "network:request", reason, closes=True))

    async def _deny(self, asked: Asked, denial: _Refusal | Denied) -> str:
        status, code = HTTPStatus.FORBIDDEN, "DENIED_BY_RULE"
        if isinstance(denial, _Refusal):
            status, code = denial.status, denial.code
        elif denial.rule_id == "network:journal":
            status, code = HTTPStatus.SERVICE_UNAVAILABLE, "LEDGER_UNAVAILABLE"
        requests = self._passage.contact.requests
        if asked.place < len(requests):
            requests[asked.place] = replace(
                requests[asked.place], outcome=Outcome.DENY, rule_id=denial.rule_id, reason=str(denial)
            )
        self._show_denied(denial)
        closes = asked.closes or asked.head.is_old or asked.head.length != 0 or isinstance(denial, Denied)
        bodiless = asked.head.method == "HEAD"
        await self._client.send(refuse(status, code, denial.rule_id, str(denial), closes=closes, bodiless=bodiless))
        return "closed" if closes else ""

    def _show_denied(self, denial: _Refusal | Denied) -> None:
        contact = self._passage.contact
        if not any(one.outcome is Outcome.ALLOW for one in contact.requests):
            self._has_passed = False
            contact.outcome, contact.rule_id, contact.reason = Outcome.DENY, denial.rule_id, str(denial)

    def _refusal_of(self, asked: Asked, status: HTTPStatus, code: str, rule_id: str, reason: str) -> bytes:
        return refuse(status, code, rule_id, reason, closes=True, bodiless=asked.head.method == "HEAD")

    def _closes_after(self, head: RequestHead) -> bool:
        is_full = len(self._passage.contact.requests) + 1 >= MOST_REQUESTS
        return head.closes or is_full or self._path_characters >= MOST_PATH_CHARACTERS
