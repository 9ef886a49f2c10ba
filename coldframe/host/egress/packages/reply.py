"""Answers a request for a package: what is handed over is on record before the program has it, and what is not, why.

A request has one line on record before anybody is asked, and a second one with the file, its version and its digest.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

from coldframe.contract.policy import Outcome
from coldframe.host.egress.bodies import chunk
from coldframe.host.egress.docket import Entry, Refusal
from coldframe.host.egress.packages.download import PackageRefused
from coldframe.host.egress.packages.view import PackageAnswer, PackageView
from coldframe.host.egress.passage import Passage
from coldframe.host.egress.requests import RequestHead
from coldframe.host.egress.streams import Stream
from coldframe.policy.network_rules import PackageKind, Registry

T = TypeVar("T")


class ProgramLeft(Exception):
    """Nobody waits for the answer any more."""


async def reply_package(
    view: PackageView, passage: Passage, client: Stream, entry: Entry, head: RequestHead, *, closes: bool
) -> bool:
    """Whether another request may follow on the connection of the box.

    Raises Refusal for what is denied, Denied if it cannot be recorded, ProgramLeft, and OSError where a file broke off.
    """
    registry = view.find(str(passage.destination), passage.contact.port, passage.scheme, head.target.path)
    if registry is None:
        reason = "there is no registry here that it could be asked of"
        raise Refusal(HTTPStatus.FORBIDDEN, "DENIED_BY_RULE", "packages:registry", reason)
    closes = closes or head.is_old
    try:
        answering = view.answer(registry, head, box=passage.contact.sandbox_id)
        answer = await _while_there(client, answering, drop=lambda unwanted: unwanted.close())
    except PackageRefused as refused:
        await _record(passage, entry, refused)
        if refused.rule_id:
            raise Refusal(HTTPStatus(refused.status), refused.code, refused.rule_id, str(refused)) from None
        told = Refusal(HTTPStatus(refused.status), refused.code, refused.rule_id, str(refused))
        await client.send(write_refusal(registry, told, head, closes=closes))
        return not closes
    try:
        await _record(passage, entry, answer)
        await _while_there(client, _send(client, passage, head, answer, closes=closes), drop=lambda _: None)
    finally:
        answer.close()
    return not closes


async def _record(passage: Passage, entry: Entry, found: PackageAnswer | PackageRefused) -> None:
    """Raises Denied. What tells of a package is on record with its request already."""
    place = entry.place
    assert place is not None
    request = replace(passage.contact.requests[place], status=int(found.status))
    passage.contact.requests[place] = request
    if isinstance(found, PackageAnswer):
        if found.package is None:
            return
        request = replace(request, package=found.package)
    elif found.rule_id:
        request = replace(request, outcome=Outcome.DENY, rule_id=found.rule_id, reason=str(found))
    else:
        request = replace(request, reason=f"{found.code}: {found}")
    await passage.tell_outcome(place, request)


async def _send(client: Stream, passage: Passage, head: RequestHead, answer: PackageAnswer, *, closes: bool) -> None:
    in_chunks = answer.length is None and not head.is_old and answer.status == HTTPStatus.OK
    lines = [f"HTTP/1.1 {int(answer.status)} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    if in_chunks:
        lines.append("transfer-encoding: chunked")
    elif answer.length is not None:
        lines.append(f"content-length: {answer.length}")
    lines += ["connection: close"] if closes else []
    await client.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
    if head.method == "HEAD":
        return
    async for part in answer.body:
        passage.contact.received_bytes += len(part)
        await client.send(chunk(part) if in_chunks else part)
    if in_chunks:
        await client.send(chunk(b""))


async def _while_there(client: Stream, work: Awaitable[T], *, drop: Callable[[T], None]) -> T:
    """What *work* gives, unless the program leaves meanwhile. Raises ProgramLeft. What comes all the same is dropped."""
    task = asyncio.ensure_future(work)
    has_left = False

    def leave() -> None:
        nonlocal has_left
        has_left = True
        task.cancel()

    client.watch(leave)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if has_left and task.cancelled():
            raise ProgramLeft from None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and task.exception() is None:
            drop(task.result())
        raise
    finally:
        client.unwatch()


def write_refusal(registry: Registry, refused: Refusal, head: RequestHead, *, closes: bool) -> bytes:
    """Of a request to a registry, with the code where clients show it: pip has the first line, npm a text named `error`."""
    error: object = {"code": refused.code, "message": str(refused), "rule": refused.rule_id, "by": "coldframe"}
    if registry.kind is PackageKind.NPM:
        error = f"{refused.code}: {refused}"
    body = json.dumps({"error": error, "code": refused.code, "by": "coldframe"}).encode() + b"\n"
    status, kind = refused.status.value, "application/json"
    if refused.status != HTTPStatus.NOT_FOUND and _is_pip(head):
        # Of a listing that failed pip says nothing but that there is no such version, unless it comes as what pip does
        # not know: then it prints the type. Files go the usual way, since it prints the first line of those.
        rule = quote(refused.rule_id, safe=":-_.") or "none"  # which may be in any script
        status, kind = HTTPStatus.MULTIPLE_CHOICES.value, f"application/problem+json; code={refused.code}; rule={rule}"
    lines = [
        f"HTTP/1.1 {status} {refused.code}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        *(["connection: close"] if closes else []),
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + (b"" if head.method == "HEAD" else body)


def _is_pip(head: RequestHead) -> bool:
    """Whether this is pip, asking for a listing."""
    said = dict(head.headers)
    return said.get(b"user-agent", b"").startswith(b"pip/") and b"vnd.pypi.simple" in said.get(b"accept", b"")
