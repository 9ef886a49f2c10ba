"""Snapshots: taken, listed, removed."""

from starlette.responses import Response

from coldframe.contract.errors import InvalidArgument, NotFound
from coldframe.contract.snapshot import SnapshotInfo, SnapshotRequest
from coldframe.control.ledger import format_time
from coldframe.fronts.e2b.named_sandboxes import find_named
from coldframe.fronts.e2b.named_snapshots import find_by_id, find_by_name, full_name, names_snapshot, shown_snapshot
from coldframe.fronts.e2b.pages import Place, next_page, read_page
from coldframe.fronts.e2b.routes import E2bCall, E2bRoute, answer, no_content
from coldframe.fronts.e2b.template_names import names_template
from coldframe.fronts.edge.routing import sandbox_of

MOST_NAME = 150


async def take_snapshot(call: E2bCall) -> Response:
    """Of the files of a sandbox, which stands still meanwhile and goes on. There is no memory in one, so whatever is made of it
    begins without processes."""
    named, body = find_named(call), await call.body()
    name = body.get("name")
    if name is not None and (not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MOST_NAME):
        raise InvalidArgument(f"`name` is a text of 1 to {MOST_NAME} characters", argument="name")
    if name is not None and await names_template(call.control, call.caller, name):
        raise InvalidArgument(
            f"`{name[:80]}` is the name of a template", hint="give the snapshot another one", argument="name"
        )
    asked = SnapshotRequest(name="" if name is None else full_name(name))
    taken = await call.control.snapshots.take(
        call.caller, named.info.sandbox_id, asked, idempotency_key=call.request.headers.get("idempotency-key")
    )
    return answer(shown_snapshot(taken), 201)


async def list_snapshots(call: E2bCall) -> Response:
    """Those that somebody has asked for, newest first."""
    sandbox, name, page = call.query("sandboxID"), call.query("name"), read_page(call)
    found = [
        one
        for one in call.control.snapshots.list(
            call.caller, sandbox_id=None if sandbox is None else sandbox_of(sandbox), reason="asked"
        )
        if one.state == "ready" and (name is None or name in (one.name, one.name.partition(":")[0]))
    ]
    found.sort(key=_place, reverse=True)
    shown, headers = next_page(found, page, _place, descending=True)
    return answer([shown_snapshot(one) for one in shown], headers=headers)


def _place(one: SnapshotInfo) -> Place:
    return format_time(one.created_at), one.snapshot_id


async def remove_snapshot(call: E2bCall) -> Response | None:
    """By the path of a template, as E2B does it; what is no snapshot may be one."""
    text = call.values["template_id"]
    found = find_by_id(call.control, call.caller, text)
    if found is None:
        if names_snapshot(text):
            raise NotFound(f"no snapshot `{text[:80]}`")
        if await names_template(call.control, call.caller, text):
            return None
        found = find_by_name(call.control, call.caller, text)
        if found is None:
            return None
    await call.control.snapshots.remove(call.caller, found.snapshot_id)
    return no_content()


ROUTES = (
    E2bRoute("POST", "/sandboxes/{sandbox_id}/snapshots", take_snapshot),
    E2bRoute("GET", "/snapshots", list_snapshots),
    E2bRoute("DELETE", "/templates/{template_id}", remove_snapshot),
)
