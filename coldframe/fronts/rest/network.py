"""Whom sandboxes reached and tried to reach: the log of one, the same while it grows, and all of them."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.errors import ColdframeError
from coldframe.contract.model import Model
from coldframe.contract.network import LoggedContact, NetworkLog, ReachedBy
from coldframe.contract.policy import Outcome
from coldframe.control.contacts import Wanted
from coldframe.control.network import MOST_IN_PAGE
from coldframe.fronts.answers import NO_SNIFF, encode_json
from coldframe.fronts.rest.governance import MAX_SEQ
from coldframe.fronts.rest.json_routes import JsonRoute, checked_query
from coldframe.fronts.rest.request import caller_of, control_of
from coldframe.fronts.rest.schema import RawRoute
from coldframe.fronts.streams import NDJSON

Number = Annotated[int, Field(ge=0, le=MAX_SEQ)]
Limit = Annotated[int, Field(ge=1, le=MOST_IN_PAGE)]
Host = Annotated[str | None, Field(min_length=1, max_length=300)]


Verdict = Literal["allow", "ask", "deny"] | None


class WhichOfSandbox(Model):
    after: Number = 0
    limit: Limit = 100
    outcome: Verdict = None
    host: Host = None
    command_id: str | None = None
    lookups: bool = False


class WhichToFollow(Model):
    after_change: Number = 0
    outcome: Verdict = None
    host: Host = None
    command_id: str | None = None
    lookups: bool = False


class WhichOfAll(Model):
    after: Number = 0
    limit: Limit = 100
    outcome: Verdict = None
    host: Host = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    agent_id: str | None = None
    sandbox_id: str | None = None
    lookups: bool = False


async def list_network(request: Request, which: WhichOfSandbox) -> NetworkLog:
    """What a sandbox reached and tried to reach, in the order in which it came on record; also of one that has ended.

    `host` is a name, an address, or `*.NAME` for all names below it. What goes over the same connection is one contact.
    With `lookups` also names that were looked up and answered are listed; denied look-ups always are.
    """
    wanted = _wanted_of_sandbox(which)
    return await control_of(request).network.log(
        caller_of(request), request.path_params["sandbox_id"], wanted, after=which.after, limit=which.limit
    )


async def follow_network(request: Request) -> Response:
    """Contacts as they come on record, and each again when more is known of it, until the sandbox has ended."""
    which = checked_query(WhichToFollow, request)
    wanted = _wanted_of_sandbox(which)
    contacts = await control_of(request).network.follow(
        caller_of(request), request.path_params["sandbox_id"], wanted, after_change=which.after_change
    )
    return StreamingResponse(_lines(contacts), media_type=NDJSON, headers=NO_SNIFF)


async def _lines(contacts: AsyncGenerator[LoggedContact, None]) -> AsyncIterator[bytes]:
    async with aclosing(contacts):
        try:
            async for one in contacts:
                yield encode_json(one) + b"\n"
        except ColdframeError as error:
            yield encode_json({"event": "error", "error": error.to_wire()}) + b"\n"


async def search_network(request: Request, which: WhichOfAll) -> NetworkLog:
    """Contacts of all sandboxes; with `lookups` also names that were looked up and answered."""
    control, caller = control_of(request), caller_of(request)
    return await control.network.search(
        caller, _wanted(which)._replace(lookups=which.lookups), after=which.after, limit=which.limit
    )


async def list_reached_by(request: Request, which: WhichOfAll) -> list[ReachedBy]:
    """Which sandboxes reached something, or tried to; whoever was there last first. `after` and `lookups` have no meaning here."""
    return await control_of(request).network.reached_by(caller_of(request), _wanted(which), limit=which.limit)


def _outcome(verdict: Verdict) -> Outcome | None:
    return None if verdict is None else Outcome(verdict)


def _wanted_of_sandbox(which: WhichOfSandbox | WhichToFollow) -> Wanted:
    return Wanted(outcome=_outcome(which.outcome), host=which.host, command_id=which.command_id, lookups=which.lookups)


def _wanted(which: WhichOfAll) -> Wanted:
    return Wanted(
        sandbox_id=which.sandbox_id,
        agent_id=which.agent_id,
        outcome=_outcome(which.outcome),
        host=which.host,
        since=which.since,
        until=which.until,
    )


_ONE = "/v1/sandboxes/{sandbox_id}/network"
_LINES: dict[str, Any] = {NDJSON: {"schema": {"$ref": "#/components/schemas/LoggedContact"}}}
_FOLLOWED = (
    ("after_change", "integer", "Change of the last contact seen; 0 for all."),
    ("outcome", "string", "`allow`, `ask` or `deny`."),
    ("host", "string", "A name, an address, or `*.NAME`."),
    ("command_id", "string", "Only contacts of this command."),
    ("lookups", "boolean", "Whether names that were looked up and answered are told as well."),
)
ROUTES = (
    JsonRoute("GET", _ONE, list_network, NetworkLog, query=WhichOfSandbox),
    RawRoute("GET", _ONE + "/events", follow_network, "Follow the network of a sandbox", _LINES, query=_FOLLOWED),
    JsonRoute("GET", "/v1/network", search_network, NetworkLog, query=WhichOfAll),
    JsonRoute("GET", "/v1/network/sandboxes", list_reached_by, list[ReachedBy], query=WhichOfAll),
)
