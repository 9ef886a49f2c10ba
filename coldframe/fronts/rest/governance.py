"""Rules, ledger, receipts, tokens, health and doctor."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe import __version__
from coldframe.contract.caller import TokenInfo
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.ledger import LedgerEntry, LedgerVerdict
from coldframe.contract.model import Model
from coldframe.contract.policy import Decision, Role
from coldframe.contract.receipt import Receipt
from coldframe.contract.sandbox import AgentId
from coldframe.control.rights import require
from coldframe.fronts.answers import NO_SNIFF, json_response
from coldframe.fronts.rest.request import OneCaller, TheControl, caller_of, control_of, judge_now
from coldframe.fronts.rest.schema import PLAIN_JSON, RawRoute
from coldframe.fronts.streams import NDJSON, SMALL_BODY_CAP_BYTES, read_body

router = APIRouter(prefix="/v1")
MAX_ENTRIES = 1000
MAX_SEQ = 2**63 - 1
"""The largest number that the database holds."""


class NewToken(Model):
    role: Role
    name: str
    agent_id: AgentId | None = None
    expires_at: datetime | None = None


class CallToCheck(Model):
    sandbox_id: str
    tool: str
    arguments: dict[str, Any] = {}


@router.get("/health")
async def health() -> dict[str, str]:
    """Whether the server answers; needs no token and tells nothing else."""
    return {"status": "ok", "version": __version__}


@router.get("/doctor")
async def doctor(caller: OneCaller, control: TheControl) -> IsolationReport:
    """Build a throw-away box and report what holds on this machine."""
    require(caller, "host.doctor")
    return await control.host.doctor()


@router.get("/receipts/{receipt_id}")
async def get_receipt(receipt_id: str, caller: OneCaller, control: TheControl) -> Receipt:
    """What one call really did."""
    return control.receipts.get(caller, receipt_id)


@router.get("/ledger/entries")
async def list_entries(
    caller: OneCaller,
    control: TheControl,
    after: Annotated[int, Query(ge=0, le=MAX_SEQ)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 100,
    kind: Annotated[list[str], Query()] = [],  # noqa: B006  FastAPI copies it
    subject: str | None = None,
    sandbox_id: str | None = None,
    agent_id: str | None = None,
) -> list[LedgerEntry]:
    """Entries after a sequence number, in order."""
    require(caller, "ledger.read")
    return control.ledger.entries(
        after=after, limit=limit, kinds=kind, subject=subject, sandbox_id=sandbox_id, agent_id=agent_id
    )


@router.get("/ledger/verify")
async def verify_ledger(caller: OneCaller, control: TheControl) -> LedgerVerdict:
    """Recompute the whole chain and compare it with the checkpoints kept apart."""
    require(caller, "ledger.verify")
    return await asyncio.to_thread(
        control.ledger.verify
    )  # seconds for a long ledger; it reads with a connection of its own


@router.get("/policy/replay/{seq}")
async def replay_decision(
    seq: Annotated[int, Path(ge=1, le=MAX_SEQ)], caller: OneCaller, control: TheControl
) -> dict[str, Any]:
    """A stored decision beside the same one recomputed from its stored context and rules."""
    require(caller, "policy.read")
    stored, recomputed = control.gate.replay(seq)
    return {
        "same": stored == recomputed,
        "stored": stored.model_dump(mode="json"),
        "recomputed": recomputed.model_dump(mode="json"),
    }


@router.post("/policy/check")
async def check_call(body: CallToCheck, caller: OneCaller, control: TheControl) -> Decision:
    """The decision that this call would get now. Nothing is run."""
    require(caller, "policy.read")
    info = control.sandboxes.get(caller, body.sandbox_id)
    return judge_now(control, caller, info, body.tool, body.arguments)


@router.get("/tokens")
async def list_tokens(caller: OneCaller, control: TheControl) -> list[TokenInfo]:
    """Tokens without their secrets."""
    require(caller, "token.list")
    return list(control.tokens.list())


@router.post("/tokens")
async def create_token(body: NewToken, caller: OneCaller, control: TheControl) -> dict[str, Any]:
    """Make a token. The secret is in this answer and nowhere else."""
    secret, info = control.tokens.create(
        body.role, body.name, agent_id=body.agent_id, expires_at=body.expires_at, caller=caller
    )
    return {"secret": secret, "token": info.model_dump(mode="json")}


@router.delete("/tokens/{token_id}")
async def revoke_token(token_id: str, caller: OneCaller, control: TheControl) -> Response:
    """Make a token worthless at once."""
    control.tokens.revoke(token_id, caller=caller)
    return json_response({"ok": True})


async def export_ledger(request: Request) -> Response:
    """The whole ledger as JSON lines."""
    require(caller_of(request), "ledger.read")
    ledger = control_of(request).ledger

    async def lines() -> AsyncIterator[bytes]:
        for number, line in enumerate(ledger.export()):
            yield line
            if number % 100 == 0:
                await asyncio.sleep(0)  # other callers go on meanwhile

    return StreamingResponse(lines(), headers=NO_SNIFF, media_type=NDJSON)


async def show_policy(request: Request) -> Response:
    """The rule set in force, as it was written."""
    require(caller_of(request), "policy.read")
    rules = control_of(request).rulebook.current
    return json_response({"text": rules.text, "sha256": rules.sha256})


async def load_policy(request: Request) -> Response:
    """Put a rule file (YAML, as the body) into force; one that does not validate changes nothing.

    Who may is asked where the rules are kept, so that the attempt of one who may not is recorded.
    """
    body = await read_body(request, SMALL_BODY_CAP_BYTES)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("the rule file is not UTF-8 text", argument="body") from None
    rules = control_of(request).rulebook.load(text, caller=caller_of(request))
    return json_response({"text": rules.text, "sha256": rules.sha256})


_YAML: dict[str, Any] = {"application/yaml": {"schema": {"type": "string"}}}
ROUTES = (
    RawRoute(
        "GET",
        "/v1/ledger/export",
        export_ledger,
        "The whole ledger",
        {NDJSON: {"schema": {"$ref": "#/components/schemas/LedgerEntry"}}},
    ),
    RawRoute("GET", "/v1/policy", show_policy, "Rules in force", PLAIN_JSON),
    RawRoute("PUT", "/v1/policy", load_policy, "Load rules", PLAIN_JSON, body=_YAML),
)
