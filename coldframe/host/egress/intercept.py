"""Reads the requests of a connection, passes on those that are allowed, and answers the others itself.

The box is answered as the destination, with a certificate of its own sandbox's authority; the destination is asked by
this process, over TLS that is verified against the host's roots. Each request is read, judged and on record before a
byte of it goes out, also the second one of a connection, and what goes out is written anew from what was judged. One
request at a time: what a program sends ahead waits.

Who prefers HTTP/2 gets it (`http2/session.py`). After an upgrade to a websocket that was judged as a request, the bytes pass as they are.
"""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from coldframe.host.egress.authority import Authority
from coldframe.host.egress.docket import Docket, Entry, Refusal
from coldframe.host.egress.forwarding import (
    LEFT,
    Asked,
    BoxLeft,
    Forwarding,
    ServerFailed,
    describe,
)
from coldframe.host.egress.packages.reply import ProgramLeft, reply_package, write_refusal
from coldframe.host.egress.packages.view import PackageView
from coldframe.host.egress.passage import FIRST_BYTES_S, Denied, Passage
from coldframe.host.egress.requests import HeadReader, RequestHead, RequestInvalid
from coldframe.host.egress.responses import refuse
from coldframe.host.egress.streams import Stream, TlsStream
from coldframe.policy.network_rules import Scheme

if TYPE_CHECKING:
    from coldframe.host.egress.http2.connection import Held

IDLE_S = 75.0
"""From the end of one request to the whole head of the next."""


class Interception:
    """The interceptor of a broker, for all of its boxes."""

    def __init__(
        self,
        *,
        trust: ssl.SSLContext | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`trust`: how servers are verified; without it, against the roots of the host."""
        self.trust = trust or ssl.create_default_context()
        self.packages: PackageView | None = None
        """What answers where packages are asked for; without it they are denied."""
        self._clock = clock
        self._authorities: dict[str, Authority] = {}
        self._held: dict[str, tuple[Held, Held]] = {}

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
        self._held.pop(sandbox_id, None)

    async def __call__(self, passage: Passage, first: bytes) -> str:
        client = await self._meet(passage, first)
        if isinstance(client, TlsStream) and client.protocol == "h2":
            return await self._serve_streams(passage, client)
        session = _Session(passage, client, self)
        try:
            ended = await session.serve()
            session.close()
            await client.finish()
            return ended
        finally:
            session.close()

    async def _serve_streams(self, passage: Passage, client: TlsStream) -> str:
        # With libraries that not every broker needs.
        from coldframe.host.egress.http2.connection import Held
        from coldframe.host.egress.http2.session import Http2Session

        held = self._held.setdefault(passage.contact.sandbox_id, (Held(), Held()))
        try:
            ended = await Http2Session(passage, client, self.trust, held, idle_s=IDLE_S).serve()
            await client.finish()
            return ended
        finally:
            client.unwatch()

    async def _meet(self, passage: Passage, first: bytes) -> Stream:
        if passage.scheme is not Scheme.HTTPS:
            return Stream(passage.inner, first)
        context = self.authority(passage.contact.sandbox_id).context(
            passage.destination, speaks_http2=not passage.is_to_registry
        )
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


class _Session:
    def __init__(self, passage: Passage, client: Stream, interception: Interception) -> None:
        self._passage = passage
        self._client = client
        self._forwarding = Forwarding(passage, client, interception.trust)
        self._docket = Docket(passage)
        self._packages = interception.packages

    async def serve(self) -> str:
        """Until the connection is of no use any more. How it ended."""
        ended = ""
        while not ended:
            try:
                found = await self._read_head()
            except RequestInvalid as fault:
                refusal = await self._docket.refuse_unread(fault)
                answer = (refusal.status, refusal.code, refusal.rule_id, str(refusal))
                await self._client.send(refuse(*answer, closes=True))
                break
            if found is None:
                break
            ended = await self._serve_one(found)
        if ended not in ("", "closed"):
            return ended
        return "denied" if self._docket.has_denied_all else "closed"

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
        entry = self._docket.judge(head)
        closes = head.closes or self._docket.is_full
        passage.asked = {} if entry.refusal else {0: (head.method, head.target, head.upgrade)}
        if entry.refusal is None and not entry.verdict.by_registry:
            asyncio.get_running_loop().call_soon(self._forwarding.prepare, entry.verdict)
        try:
            await self._docket.record(entry)
            if entry.refusal is not None:
                raise entry.refusal
            if entry.verdict.by_registry:
                may_follow = await self._reply_package(entry, head, closes=closes)
                return "" if may_follow else "closed"
            assert entry.place is not None
            asked = Asked(head, closes, entry.verdict, entry.place, entry.swap)
            may_follow = await self._forwarding.pass_on(asked)
            return "" if may_follow else "closed"
        except (Refusal, Denied) as denial:
            answer = self._docket.deny(entry, denial)
            closes = closes or head.is_old or head.length != 0 or isinstance(denial, Denied)
            await self._answer(head, answer, closes=closes)
            return "closed" if closes else ""
        except ServerFailed as failure:
            await self._answer(head, Refusal(HTTPStatus.BAD_GATEWAY, "SERVER_FAILED", "", str(failure)))
            return str(failure)
        except BoxLeft as left:
            if str(left):
                refusal = Refusal(HTTPStatus.BAD_REQUEST, "REQUEST_INVALID", "network:request", str(left))
                await self._answer(head, refusal)
            return str(left) or LEFT
        finally:
            passage.asked = {}
            self._client.unwatch()

    async def _reply_package(self, entry: Entry, head: RequestHead, *, closes: bool) -> bool:
        if self._packages is None:
            raise Refusal(
                HTTPStatus.FORBIDDEN, "DENIED_BY_RULE", "packages:cache", "there is no cache for packages here"
            )
        try:
            return await reply_package(self._packages, self._passage, self._client, entry, head, closes=closes)
        except ProgramLeft as left:
            raise BoxLeft("") from left

    async def _answer(self, head: RequestHead, refusal: Refusal, *, closes: bool = True) -> None:
        registry = None
        if self._packages is not None:
            passage = self._passage
            registry = self._packages.find(
                str(passage.destination), passage.contact.port, passage.scheme, head.target.path
            )
        if registry is not None:
            await self._client.send(write_refusal(registry, refusal, head, closes=closes))
            return
        answer = (refusal.status, refusal.code, refusal.rule_id, str(refusal))
        await self._client.send(refuse(*answer, closes=closes, bodiless=head.method == "HEAD"))
