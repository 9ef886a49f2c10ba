"""Contacts as the broker tells them, in the words of the contract."""

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from coldframe.contract.network import (
    DeniedSum,
    NetworkContact,
    NetworkLookup,
    NetworkPackage,
    NetworkPage,
    NetworkRecord,
    NetworkRequest,
)
from coldframe.host.egress.contact import EgressContact, EgressRequest

if TYPE_CHECKING:
    from coldframe.host.egress.lineage import Line, Page, Sum


def page_of(page: "Page") -> NetworkPage:
    return NetworkPage(
        records=tuple(_record_of(line) for line in page.lines),
        more=page.more,
        denied_sums=tuple(_sum_of(one) for one in page.sums),
    )


def contact_of(contact: EgressContact) -> NetworkContact:
    return NetworkContact(
        contact_id=contact.id,
        protocol=contact.protocol,
        address=contact.address,
        port=contact.port,
        name=contact.name,
        scheme=contact.scheme,
        mode=contact.mode,
        outcome=contact.outcome,
        rule_id=contact.rule_id,
        reason=contact.reason,
        label=contact.label,
        dialled=contact.dialled,
        via=contact.via,
        sent_bytes=contact.sent_bytes,
        received_bytes=contact.received_bytes,
        sent_sha256=contact.sent_sha256,
        sent_sha256_of=contact.sent_sha256_of,
        began_at=contact.began_at,
        ended_at=contact.ended_at,
        ended=contact.ended,
        is_partial=contact.is_partial,
        times=contact.times,
        lookup=None if contact.lookup is None else NetworkLookup(**asdict(contact.lookup)),
        program=contact.program,
        pid=contact.pid,
        command_id=contact.command_id,
        requests=tuple(request_of(one) for one in contact.requests),
    )


def request_of(request: EgressRequest) -> NetworkRequest:
    return NetworkRequest(
        method=request.method,
        path=request.path,
        outcome=request.outcome,
        rule_id=request.rule_id,
        reason=request.reason,
        label=request.label,
        status=request.status,
        credential=request.credential,
        package=None if request.package is None else NetworkPackage(**asdict(request.package)),
        omitted=request.omitted,
        body_bytes=request.body_bytes,
        body_sha256=request.body_sha256,
        at=request.at,
    )


def _record_of(line: "Line") -> NetworkRecord:
    contact = None if line.contact is None else contact_of(line.contact)
    return NetworkRecord(seq=line.seq, event=line.event, at=line.at, contact=contact)


def _sum_of(one: "Sum") -> DeniedSum:
    return DeniedSum(
        protocol=one.protocol,
        wanted=one.wanted,
        port=one.port,
        rule_id=one.rule_id,
        times=one.times,
        first_at=datetime.fromisoformat(one.first_at),
        last_at=datetime.fromisoformat(one.last_at),
    )
