"""Rules, ledger, receipts, tokens, health and doctor."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe import __version__
from coldframe.contract.caller import TokenInfo
from coldframe.contract.code import CodeInfo
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.ledger import LedgerEntry, LedgerVerdict
from coldframe.contract.model import Model
from coldframe.contract.policy import Decision, PolicyChange, Role
from coldframe.contract.pool import PoolStatus
from coldframe.contract.receipt import Receipt
from coldframe.contract.receipt_difference import FileHunks, ReceiptDifference
from coldframe.contract.replay import Replay, ReplayRequest
from coldframe.contract.sandbox import AgentId
from coldframe.control.codes import codes
from coldframe.control.rights import require
from coldframe.control.rulebook import MOST_CHANGES
from coldframe.fronts.answers import NO_SNIFF, json_response
from coldframe.fronts.rest.json_routes import JsonRoute, checked_query
from coldframe.fronts.rest.request import caller_of, control_of, judge_now
from coldframe.fronts.rest.schema import JSON_RULES, RawRoute
from coldframe.fronts.streams import NDJSON, SMALL_BODY_CAP_BYTES, read_body

MAX_ENTRIES = 1000
MAX_SEQ = 2**63 - 1
"""The largest number that the database holds."""


class NewToken(Model):
    role: Role
    name: str
    agent_id: AgentId | None = None
    expires_at: datetime | None = None
    form: Literal["native", "e2b"] = "native"
    """`e2b`: a key that SDKs of E2B take."""


class CallToCheck(Model):
    sandbox_id: str
    tool: str
    arguments: dict[str, Any] = {}


class WhichEntries(Model):
    after: Annotated[int, Field(ge=0, le=MAX_SEQ)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES)] = 100
    kind: tuple[str, ...] = ()
    subject: str | None = None
    sandbox_id: str | None = None
    agent_id: str | None = None


class WhichChanges(Model):
    after: Annotated[int, Field(ge=0, le=MAX_SEQ)] = 0
    limit: Annotated[int, Field(ge=1, le=MOST_CHANGES)] = MOST_CHANGES


class WhyLoaded(Model):
    reason: Annotated[str, Field(max_length=1000)] = ""


class WhichDecision(Model):
    seq: Annotated[int, Field(ge=1, le=MAX_SEQ)]


async def health(_: Request) -> dict[str, str]:
    """Whether the server answers; needs no token and tells nothing else."""
    return {"status": "ok", "version": __version__}


async def pool(request: Request) -> PoolStatus:
    """The boxes that stand ready for the next sandboxes."""
    require(caller_of(request), "host.doctor")
    return await control_of(request).host.pool()


async def doctor(request: Request) -> IsolationReport:
    """Build a throw-away box and report what holds on this machine."""
    require(caller_of(request), "host.doctor")
    return await control_of(request).host.doctor()


async def list_codes(request: Request) -> list[CodeInfo]:
    """Every code that an error or the status of a command can have, with what to do."""
    return codes()


async def get_receipt(request: Request) -> Receipt:
    """What one call really did."""
    return control_of(request).receipts.get(caller_of(request), request.path_params["receipt_id"])


class WhichFile(Model):
    path: Annotated[str, Field(min_length=1, max_length=4096)]


async def compare_receipts(request: Request) -> ReceiptDifference:
    """Files that are others after the call of the other receipt than they were after that of the first, by digest."""
    names = request.path_params
    return await control_of(request).receipt_differences.compare(
        caller_of(request), names["receipt_id"], names["other_id"]
    )


async def compare_file_of_receipts(request: Request, which: WhichFile) -> FileHunks:
    """One of these files line by line, where what it held is still kept."""
    names = request.path_params
    return await control_of(request).receipt_differences.hunks(
        caller_of(request), names["receipt_id"], names["other_id"], which.path
    )


async def replay_receipt(request: Request, asked: ReplayRequest) -> Replay:
    """Carry a command out again in a fresh sandbox that begins from what it began from, and tell what came out otherwise.
    Nothing is written to where it was done first."""
    on_missing: Literal["refuse"] | None = "refuse" if request.app.on_missing == "refuse" else None  # as with creation
    return await control_of(request).replays.replay(
        caller_of(request), request.path_params["receipt_id"], asked, on_missing=on_missing
    )


async def list_entries(request: Request, which: WhichEntries) -> list[LedgerEntry]:
    """Entries after a sequence number, in order."""
    require(caller_of(request), "ledger.read")
    return control_of(request).ledger.entries(
        after=which.after,
        limit=which.limit,
        kinds=which.kind,
        subject=which.subject,
        sandbox_id=which.sandbox_id,
        agent_id=which.agent_id,
    )


async def verify_ledger(request: Request) -> LedgerVerdict:
    """Recompute the whole chain and compare it with the checkpoints kept apart."""
    require(caller_of(request), "ledger.verify")
    # Seconds for a long ledger; it reads with a connection of its own.
    return await asyncio.to_thread(control_of(request).ledger.verify)


async def replay_decision(request: Request, which: WhichDecision) -> dict[str, Any]:
    """A stored decision beside the same one recomputed from its stored context and rules."""
    require(caller_of(request), "policy.read")
    stored, recomputed = control_of(request).gate.replay(which.seq)
    return {
        "same": stored == recomputed,
        "stored": stored.model_dump(mode="json"),
        "recomputed": recomputed.model_dump(mode="json"),
    }


async def check_call(request: Request, body: CallToCheck) -> Decision:
    """The decision that this call would get now. Nothing is run."""
    control, caller = control_of(request), caller_of(request)
    require(caller, "policy.read")
    info = control.sandboxes.get(caller, body.sandbox_id)
    return judge_now(control, caller, info, body.tool, body.arguments)


async def list_tokens(request: Request) -> list[TokenInfo]:
    """Tokens without their secrets."""
    require(caller_of(request), "token.list")
    return list(control_of(request).tokens.list())


async def create_token(request: Request, body: NewToken) -> dict[str, Any]:
    """Make a token. The secret is in this answer and nowhere else."""
    secret, info = control_of(request).tokens.create(
        body.role,
        body.name,
        agent_id=body.agent_id,
        expires_at=body.expires_at,
        caller=caller_of(request),
        form=body.form,
    )
    return {"secret": secret, "token": info.model_dump(mode="json")}


async def revoke_token(request: Request) -> dict[str, Any]:
    """Make a token worthless at once."""
    control_of(request).tokens.revoke(request.path_params["token_id"], caller=caller_of(request))
    return {"ok": True}


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
    why = checked_query(WhyLoaded, request)
    rules = await control_of(request).rulebook.load(text, caller=caller_of(request), reason=why.reason)
    return json_response({"text": rules.text, "sha256": rules.sha256})


async def list_policy_changes(request: Request, which: WhichChanges) -> list[PolicyChange]:
    """Who changed the rules, when and why, and from which version to which; the first change first."""
    return control_of(request).rulebook.log(caller_of(request), after=which.after, limit=which.limit)


async def show_past_policy(request: Request) -> Response:
    """A version of the rules that is or was in force, as it was written."""
    sha256 = request.path_params["sha256"]
    text = control_of(request).rulebook.text_of(caller_of(request), sha256)
    return json_response({"text": text, "sha256": sha256})


_YAML: dict[str, Any] = {"application/yaml": {"schema": {"type": "string"}}}
ROUTES = (
    JsonRoute("GET", "/v1/health", health, dict[str, str]),
    JsonRoute("GET", "/v1/errors", list_codes, list[CodeInfo]),
    JsonRoute("GET", "/v1/doctor", doctor, IsolationReport),
    JsonRoute("GET", "/v1/pool", pool, PoolStatus),
    JsonRoute("GET", "/v1/receipts/{receipt_id}", get_receipt, Receipt),
    JsonRoute("GET", "/v1/receipts/{receipt_id}/diff/{other_id}", compare_receipts, ReceiptDifference),
    JsonRoute(
        "GET", "/v1/receipts/{receipt_id}/hunks/{other_id}", compare_file_of_receipts, FileHunks, query=WhichFile
    ),
    JsonRoute("POST", "/v1/receipts/{receipt_id}/replay", replay_receipt, Replay, body=ReplayRequest),
    JsonRoute("GET", "/v1/ledger/entries", list_entries, list[LedgerEntry], query=WhichEntries),
    JsonRoute("GET", "/v1/ledger/verify", verify_ledger, LedgerVerdict),
    RawRoute(
        "GET",
        "/v1/ledger/export",
        export_ledger,
        "The whole ledger",
        {NDJSON: {"schema": {"$ref": "#/components/schemas/LedgerEntry"}}},
    ),
    RawRoute("GET", "/v1/policy", show_policy, "Rules in force", JSON_RULES),
    RawRoute(
        "PUT",
        "/v1/policy",
        load_policy,
        "Load rules",
        JSON_RULES,
        body=_YAML,
        query=(("reason", "string", "Why; it is kept with the change."),),
    ),
    JsonRoute("GET", "/v1/policy/log", list_policy_changes, list[PolicyChange], query=WhichChanges),
    RawRoute("GET", "/v1/policy/versions/{sha256}", show_past_policy, "Rules of a version", JSON_RULES),
    JsonRoute("GET", "/v1/policy/replay/{seq}", replay_decision, dict[str, Any], path_values=WhichDecision),
    JsonRoute("POST", "/v1/policy/check", check_call, Decision, body=CallToCheck),
    JsonRoute("GET", "/v1/tokens", list_tokens, list[TokenInfo]),
    JsonRoute("POST", "/v1/tokens", create_token, dict[str, Any], body=NewToken),
    JsonRoute("DELETE", "/v1/tokens/{token_id}", revoke_token, Any),
)
