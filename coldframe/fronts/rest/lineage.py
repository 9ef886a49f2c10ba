"""Lineage: items by what they are, and where each came from and went to."""

from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request

from coldframe.contract.lineage import LineageItem, LineagePage, LineageTrace
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.control.lineage import MOST_IN_PAGE, WantedItems
from coldframe.fronts.rest.governance import MAX_SEQ
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of

Number = Annotated[int, Field(ge=0, le=MAX_SEQ)]
Limit = Annotated[int, Field(ge=1, le=MOST_IN_PAGE)]
Text = Annotated[str | None, Field(min_length=1, max_length=4096)]


class WhichItems(Model):
    after: Number = 0
    limit: Limit = 100
    session_id: Text = None
    agent_id: Text = None
    sandbox_id: Text = None
    path: Text = None
    sha256: Text = None
    endpoint: Text = None
    label: Literal["PUBLIC", "INTERNAL", "CONFIDENTIAL", "RESTRICTED"] | None = None


class WhichTrace(Model):
    direction: Literal["back", "forward"] = "back"
    known: bool = False
    after: Number | None = None
    limit: Limit = 100


async def list_lineage(request: Request, which: WhichItems) -> LineagePage:
    """What was reached, read, printed and written, in the order in which it came on record.

    `endpoint` is a name or an address, also with a port; `label` is this one or a higher.
    """
    wanted = WantedItems(
        session_id=which.session_id,
        agent_id=which.agent_id,
        sandbox_id=which.sandbox_id,
        path=which.path,
        sha256=which.sha256,
        endpoint=which.endpoint,
        label=None if which.label is None else Label(which.label),
    )
    return await control_of(request).lineage.items(caller_of(request), wanted, after=which.after, limit=which.limit)


async def get_lineage(request: Request) -> LineageItem:
    """One item."""
    return await control_of(request).lineage.item(caller_of(request), request.path_params["item_id"])


async def trace_lineage(request: Request, which: WhichTrace) -> LineageTrace:
    """All generations of what an item or a call may have come from, or gone to; with `known` only what is on record.

    The id is that of an item, a call, a command or a receipt.
    """
    return await control_of(request).lineage.trace(
        caller_of(request),
        request.path_params["item_id"],
        which.direction,
        known=which.known,
        after=which.after,
        limit=which.limit,
    )


_ONE = "/v1/lineage/{item_id}"
ROUTES = (
    JsonRoute("GET", "/v1/lineage", list_lineage, LineagePage, query=WhichItems),
    JsonRoute("GET", _ONE, get_lineage, LineageItem),
    JsonRoute("GET", _ONE + "/trace", trace_lineage, LineageTrace, query=WhichTrace),
)
