"""Snapshots: taken, looked at, compared, carried away and brought in; sandboxes that go back to one, or begin as one."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import LONGEST_TIMER_S, SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import (
    Comparison,
    Name,
    Part,
    RenameRequest,
    ResetRequest,
    SandboxReset,
    SnapshotInfo,
    SnapshotPlan,
    SnapshotReason,
    SnapshotRequest,
    TextChange,
)
from coldframe.control.comparisons import MOST_CHANGES
from coldframe.fronts.answers import NO_SNIFF, json_response
from coldframe.fronts.rest.json_routes import JsonRoute, checked_query
from coldframe.fronts.rest.request import caller_of, control_of, path_after
from coldframe.fronts.rest.sandboxes import MOST_LISTED
from coldframe.fronts.rest.schema import BYTES, RawRoute, answer_of
from coldframe.tools.registry import relative_path

LabelName = Literal["PUBLIC", "INTERNAL", "CONFIDENTIAL", "RESTRICTED"]


class ListedSnapshots(Model):
    """Which snapshots."""

    sandbox_id: str | None = None
    """Through which they were taken."""
    agent_id: str | None = None
    reason: SnapshotReason | None = None
    label: LabelName | None = None
    after: str | None = None
    """Those that come after this one, the last of the page before."""
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] | None = None


class Imported(Model):
    """What an archive is brought in as."""

    name: Name = ""
    label: LabelName = "PUBLIC"
    """Of the data; where the archive says a higher one, that."""
    expires_in_s: Annotated[float, Field(gt=0, le=LONGEST_TIMER_S)] | None = None
    expected: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The digest that the export told."""


class Compared(Model):
    """Which part of the answer, and in whose session."""

    sandbox_id: str | None = None
    """In whose session; by default that of one of the two points."""


class ComparedPage(Compared):
    next_after: str | None = None
    """As the page before has it."""
    limit: Annotated[int, Field(ge=1, le=MOST_CHANGES)] = MOST_CHANGES
    part: Part = "workspace"
    """`system`: of the systems of their own, where `template` in place of an id is what they began as."""


async def take_snapshot(request: Request, asked: SnapshotRequest) -> SnapshotInfo:
    """Take one of the files of a sandbox that runs, is paused or stopped. Its processes stand still meanwhile and go on."""
    return await control_of(request).snapshots.take(
        caller_of(request), request.path_params["sandbox_id"], asked, idempotency_key=_key_of(request)
    )


async def plan_snapshot(request: Request) -> SnapshotPlan:
    """What one taken now would have and leave out, path by path. Nothing is done."""
    return await control_of(request).endings.plan_snapshot(caller_of(request), request.path_params["sandbox_id"])


async def list_snapshots(request: Request, listed: ListedSnapshots) -> list[SnapshotInfo]:
    """Snapshots that the caller may see, newest first."""
    return control_of(request).snapshots.list(
        caller_of(request),
        sandbox_id=listed.sandbox_id,
        agent_id=listed.agent_id,
        reason=listed.reason,
        label=None if listed.label is None else Label(listed.label),
        after=listed.after,
        limit=listed.limit,
    )


async def get_snapshot(request: Request) -> SnapshotInfo:
    return control_of(request).snapshots.get(caller_of(request), request.path_params["snapshot_id"])


async def rename_snapshot(request: Request, asked: RenameRequest) -> SnapshotInfo:
    return control_of(request).snapshots.rename(caller_of(request), request.path_params["snapshot_id"], asked.name)


async def remove_snapshot(request: Request) -> dict[str, Any]:
    """Forget one. Sandboxes that were forked from it, or went back to it, go on."""
    await control_of(request).snapshots.remove(caller_of(request), request.path_params["snapshot_id"])
    return {"ok": True}


async def reset_sandbox(request: Request, asked: ResetRequest) -> SandboxReset:
    """Take its files back to a snapshot, or to nothing. One that runs is stopped for it and started again, with the same id,
    session and network. What was before is kept for a day unless it is discarded."""
    control = control_of(request)
    done = await control.resets.reset(
        caller_of(request), request.path_params["sandbox_id"], asked, idempotency_key=_key_of(request)
    )
    return control.timers.shown(done)


async def fork_sandbox(request: Request, spec: SandboxSpec) -> SandboxInfo:
    """Make another sandbox, as the body says, that begins with the files of this one as they are now. Nothing else goes
    along: no session, credential, network or limit. The agent has to be new."""
    if request.app.on_missing == "refuse":  # as with creation
        spec = spec.model_copy(update={"on_missing": "refuse"})
    control = control_of(request)
    made = await control.forks.fork(
        caller_of(request), request.path_params["sandbox_id"], spec, idempotency_key=_key_of(request)
    )
    return control.timers.shown(made)


async def compare_points(request: Request, which: ComparedPage) -> Comparison:
    """What differs between two points, by path: ids of snapshots, or of sandboxes for what they have now."""
    return await control_of(request).comparisons.compare(
        caller_of(request),
        request.path_params["before"],
        request.path_params["after"],
        sandbox_id=which.sandbox_id,
        next_after=which.next_after,
        limit=which.limit,
        part=which.part,
    )


async def compare_file(request: Request) -> Response:
    """What differs in one file, line by line."""
    found: TextChange = await control_of(request).comparisons.text(
        caller_of(request),
        request.path_params["before"],
        request.path_params["after"],
        relative_path(path_after(request, "/files/")),
        sandbox_id=checked_query(Compared, request).sandbox_id,
    )
    return json_response(found)


async def export_snapshot(request: Request) -> Response:
    """One tar of it. When the last byte was read, `sha256` of the snapshot is the digest of its contents."""
    parts = await control_of(request).archives.export(caller_of(request), request.path_params["snapshot_id"])
    first = await anext(parts, b"")  # what is wrong with it is an answer, and no broken stream
    return StreamingResponse(_rest(first, parts), headers=NO_SNIFF, media_type="application/x-tar")


async def _rest(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


async def import_snapshot(request: Request) -> Response:
    """A snapshot of an archive in the body, or nothing at all."""
    asked = checked_query(Imported, request)
    return json_response(
        await control_of(request).archives.take_in(
            caller_of(request),
            request.stream(),
            name=asked.name,
            label=Label(asked.label),
            expires_in_s=asked.expires_in_s,
            expected=asked.expected,
            idempotency_key=_key_of(request),
        )
    )


def _key_of(request: Request) -> str | None:
    return request.headers.get("idempotency-key")


_SANDBOX = "/v1/sandboxes/{sandbox_id}"
_ALL = "/v1/snapshots"
_ONE = _ALL + "/{snapshot_id}"
_TWO = "/v1/compare/{before}/{after}"
_KEY = ("Idempotency-Key", "With the same key it is done at most once; the answer is the first one's.")
TAR: dict[str, Any] = {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}
ROUTES = (
    JsonRoute("POST", _SANDBOX + "/snapshots", take_snapshot, SnapshotInfo, body=SnapshotRequest, headers=(_KEY,)),
    JsonRoute("GET", _SANDBOX + "/snapshots/plan", plan_snapshot, SnapshotPlan),
    JsonRoute("POST", _SANDBOX + "/reset", reset_sandbox, SandboxReset, body=ResetRequest, headers=(_KEY,)),
    JsonRoute("POST", _SANDBOX + "/fork", fork_sandbox, SandboxInfo, body=SandboxSpec, headers=(_KEY,)),
    JsonRoute("GET", _ALL, list_snapshots, list[SnapshotInfo], query=ListedSnapshots),
    RawRoute(
        "POST",
        _ALL,
        import_snapshot,
        "Import a snapshot",
        answer_of(SnapshotInfo),
        body=BYTES,
        query=(
            ("name", "string", "Its name."),
            ("label", "string", "Of the data; where the archive says a higher one, that."),
            ("expires_in_s", "number", "Seconds for which it is kept."),
            ("expected", "string", "The digest that the export told."),
        ),
        headers=(_KEY,),
    ),
    JsonRoute("GET", _ONE, get_snapshot, SnapshotInfo),
    JsonRoute("PUT", _ONE + "/name", rename_snapshot, SnapshotInfo, body=RenameRequest),
    JsonRoute("DELETE", _ONE, remove_snapshot, Any),
    RawRoute("GET", _ONE + "/archive", export_snapshot, "Export a snapshot", TAR),
    JsonRoute("GET", _TWO, compare_points, Comparison, query=ComparedPage),
    RawRoute(
        "GET",
        _TWO + "/files/{path:anything}",
        compare_file,
        "Compare a file",
        answer_of(TextChange),
        query=(("sandbox_id", "string", "In whose session; by default that of one of the two points."),),
    ),
)
