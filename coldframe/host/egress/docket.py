"""The requests of one connection: each is judged, and on record, before a byte of it goes out.

Whatever version of HTTP they come by, and whether one at a time or several at once.
"""

import asyncio
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Literal

from coldframe.contract.errors import catalogue
from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress.contact import EgressRequest, HandleUse
from coldframe.host.egress.handles import Found, HandleMisused, Swap, find_handle
from coldframe.host.egress.passage import Denied, Passage
from coldframe.host.egress.requests import RequestFault, RequestHead, RequestInvalid
from coldframe.policy.network import NetworkVerdict
from coldframe.policy.network_rules import Scheme

MOST_REQUESTS = 256
"""Of one connection, and as many as its record can hold; then it ends in order, and the program opens another one."""
MOST_PATH_CHARACTERS = 32 * 1024
"""Of all requests of one connection together, since each is kept."""

CREDENTIAL_RULE = "floor:credential"

_STATUS_OF_FAULT = {
    RequestFault.TOO_LARGE: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    RequestFault.VERSION: HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
    RequestFault.OVERRIDE: HTTPStatus.FORBIDDEN,
}


class Refusal(Exception):
    """The request is answered here."""

    def __init__(self, status: HTTPStatus, code: str, rule_id: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.rule_id = rule_id


@dataclass
class Entry:
    """One request with what was decided about it."""

    request: EgressRequest
    verdict: NetworkVerdict
    refusal: Refusal | None
    place: int | None = None
    """In the record of the connection, once it is there."""
    handle: Found | None = None
    """In place of a secret."""
    swap: Swap | None = None
    """Whoever sends the request puts the secret in, and takes it out of the answer."""


class Docket:
    """Of one connection."""

    def __init__(self, passage: Passage) -> None:
        self.has_passed = False
        """Whether something was let through."""
        self._passage = passage
        self._beginning = asyncio.Lock()
        self._allowing = 0
        """Requests that are allowed, on their way to the record: one that is denied meanwhile does not speak for the connection."""
        self._path_characters = 0
        self._entered = 0
        self._announced = 0

    @property
    def is_full(self) -> bool:
        """Whether no further request can be kept."""
        return max(self._entered, self._announced) >= MOST_REQUESTS or self._path_characters >= MOST_PATH_CHARACTERS

    @property
    def has_denied_all(self) -> bool:
        return bool(self._passage.contact.requests) and not self.has_passed

    def announce(self) -> None:
        """One more has come, and will be judged in its turn."""
        self._announced += 1

    def judge(self, head: RequestHead) -> Entry:
        verdict = self._passage.judge_request(head.method, head.target, upgrades=head.upgrade)
        refusal = self._find_refusal(head, verdict)
        handle = None
        if refusal is None and not verdict.by_registry:
            try:
                handle = find_handle(head.headers)
                if handle is not None and head.upgrade:
                    raise HandleMisused(
                        "a request with a credential does not go on as a websocket, of which nobody sees what comes"
                    )
            except HandleMisused as misuse:
                refusal = Refusal(HTTPStatus.FORBIDDEN, "DENIED_BY_RULE", CREDENTIAL_RULE, str(misuse))
        request = EgressRequest(
            head.method,
            head.target.path,
            Outcome.DENY if refusal else verdict.outcome,
            refusal.rule_id if refusal else verdict.rule_id,
            self._passage.now(),
            reason=str(refusal) if refusal else verdict.reason,
            label=Label.PUBLIC if refusal else verdict.label,
            omitted=_omitted(head),
        )
        self._entered += 1
        self._path_characters += len(request.path)
        return Entry(request, verdict, refusal, handle=handle)

    async def record(self, entry: Entry) -> None:
        """Raises Denied. Until something is let through, the connection is on record as denied."""
        contact, request = self._passage.contact, entry.request
        is_allowed = request.outcome is Outcome.ALLOW
        if not self.has_passed and (is_allowed or not self._allowing):
            contact.outcome, contact.rule_id, contact.reason = request.outcome, request.rule_id, request.reason
        self._allowing += is_allowed
        try:
            await self._put_on_record(entry)
        finally:
            self._allowing -= is_allowed
        self.has_passed = self.has_passed or entry.request.outcome is Outcome.ALLOW

    async def _put_on_record(self, entry: Entry) -> None:
        contact, request = self._passage.contact, entry.request
        verdict = NetworkVerdict(contact.outcome, contact.rule_id, contact.reason, label=request.label)
        handle = entry.handle if entry.refusal is None else None
        async with self._beginning:
            if not self._passage.has_begun:
                if handle is None:  # else it is not known yet what goes on record
                    entry.place = len(contact.requests)
                await self._passage.begin(verdict, request if handle is None else None)
        if handle is not None:
            await self._ask_secret(entry, handle)
            request = entry.request
        if entry.place is None:
            entry.place = len(contact.requests)
            await self._passage.tell(request)

    async def _ask_secret(self, entry: Entry, handle: Found) -> None:
        """Before it is on record, since that says which credential was put in, or why none."""
        passage = self._passage
        # Nothing goes to a server in mode `intercept` by https that has not proven its name.
        is_verified = passage.scheme is Scheme.HTTPS and isinstance(passage.destination, str)
        use = HandleUse(handle.handle, handle.header, is_verified=is_verified)
        answer = await passage.ask_secret(entry.request, use)
        if answer.secret is not None and answer.refusal is None and is_verified:
            entry.request = replace(entry.request, credential=answer.credential)
            entry.swap = Swap(handle, answer.secret)
            return
        known = catalogue().get(answer.code or "")
        status = HTTPStatus.SERVICE_UNAVAILABLE if known is not None and known.status == 503 else HTTPStatus.FORBIDDEN
        code = "DENIED_BY_RULE" if known is None else known.code
        reason = answer.refusal or "there is no secret for it"
        entry.refusal = Refusal(status, code, CREDENTIAL_RULE, reason)
        entry.request = replace(
            entry.request, outcome=Outcome.DENY, rule_id=CREDENTIAL_RULE, reason=reason, label=Label.PUBLIC
        )

    async def refuse_unread(self, fault: RequestInvalid) -> Refusal:
        """One that could not be read, which is on record as that. What to answer."""
        reason = f"{fault.fault}: {fault}"
        request = EgressRequest("", "", Outcome.DENY, "network:request", self._passage.now(), reason=reason)
        refusal = Refusal(HTTPStatus.BAD_REQUEST, "REQUEST_INVALID", "network:request", reason)
        self._entered += 1
        try:
            await self.record(Entry(request, NetworkVerdict(Outcome.DENY, "network:request", reason), refusal))
        except Denied as denial:
            reason = f"{reason}; {denial}"
        status = _STATUS_OF_FAULT.get(fault.fault, HTTPStatus.BAD_REQUEST)
        return Refusal(status, "REQUEST_INVALID", "network:request", reason)

    def deny(self, entry: Entry, denial: Refusal | Denied) -> Refusal:
        """It was let through, and is denied after all. What to answer."""
        contact = self._passage.contact
        if entry.place is not None:
            contact.requests[entry.place] = replace(
                contact.requests[entry.place], outcome=Outcome.DENY, rule_id=denial.rule_id, reason=str(denial)
            )
        if not any(one.outcome is Outcome.ALLOW for one in contact.requests):
            self.has_passed = False
            contact.outcome, contact.rule_id, contact.reason = Outcome.DENY, denial.rule_id, str(denial)
        if isinstance(denial, Refusal):
            return denial
        if denial.rule_id == "network:journal":
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "LEDGER_UNAVAILABLE", denial.rule_id, str(denial))
        return Refusal(HTTPStatus.FORBIDDEN, "DENIED_BY_RULE", denial.rule_id, str(denial))

    def _find_refusal(self, head: RequestHead, verdict: NetworkVerdict) -> Refusal | None:
        passage = self._passage
        if not head.is_for(str(passage.destination), passage.contact.port):
            reason = f"the request is for `{head.host}`, the connection is to `{passage.destination}`"
            return Refusal(HTTPStatus.MISDIRECTED_REQUEST, "DENIED_BY_RULE", "network:host", reason)
        if head.method in ("GET", "HEAD") and head.length != 0:
            # Some servers take it for another request, and a rule that allows to read allows to send nothing.
            reason = f"{head.method} with a body is passed on nowhere"
            return Refusal(HTTPStatus.BAD_REQUEST, "REQUEST_INVALID", "network:body", reason)
        if verdict.outcome is Outcome.ALLOW:
            return None
        asks = verdict.outcome is Outcome.ASK  # nobody can be asked yet
        reason = f"a person has to decide: {verdict.reason}" if asks else verdict.reason
        code = "PENDING_APPROVAL" if asks else "DENIED_BY_RULE"
        return Refusal(HTTPStatus.FORBIDDEN, code, verdict.rule_id, reason)


def _omitted(head: RequestHead) -> tuple[Literal["query", "headers"], ...]:
    """What may hold secrets and is kept nowhere, which the record says."""
    query: tuple[Literal["query"], ...] = () if head.target.query is None else ("query",)
    headers: tuple[Literal["headers"], ...] = ("headers",) if head.headers else ()
    return (*query, *headers)
