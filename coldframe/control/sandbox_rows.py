"""Rows of sandboxes: the table, the state object of each state, and what of a row is worth keeping parsed."""

import json
from collections.abc import Collection, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from coldframe.contract.errors import NextAction, next_action
from coldframe.contract.isolation import SERVICES, IsolationReport
from coldframe.contract.sandbox import ENDED, SandboxSpec, SandboxState
from coldframe.contract.state import StateObject
from coldframe.control.store import Store, metadata

sandboxes = sa.Table(
    "sandboxes",
    metadata,
    sa.Column("sandbox_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, nullable=True),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("report", sa.Text, nullable=True),
    sa.Column("workspace_label", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
)
STATE = "json_extract(state, '$.state')"
LIVING = f"{STATE} NOT IN ('failed', 'lost', 'terminated')"
"""All but `ENDED`, of which there get ever more; word for word the condition of the index."""
sa.Index("sandboxes_created_at", sandboxes.c.created_at, sandboxes.c.sandbox_id)
sa.Index("sandboxes_agent_id", sandboxes.c.agent_id, sandboxes.c.created_at, sandboxes.c.sandbox_id)
sa.Index("sandboxes_living", sandboxes.c.created_at, sandboxes.c.sandbox_id, sqlite_where=sa.text(LIVING))
FIELDS = (
    "sandbox_id, agent_id, session_id, spec, state, report, workspace_label, created_at, "
    "(SELECT role FROM networks WHERE networks.sandbox_id = sandboxes.sandbox_id)"
)
"""The last one is the role of whoever made it, and None for a sandbox without network."""
ALL_LIVING = f"SELECT {FIELDS} FROM sandboxes WHERE {LIVING}"  # noqa: S608  texts of ours
STATES_OF_LIVING = f"SELECT sandbox_id, {STATE}, report IS NOT NULL FROM sandboxes WHERE {LIVING}"  # noqa: S608
TEMPORARY = f"SELECT sandbox_id FROM sandboxes WHERE agent_id IS NULL AND {LIVING}"  # noqa: S608
"""Those whose workspace is that of their first session."""
INSERT = (
    "INSERT INTO sandboxes (sandbox_id, agent_id, session_id, spec, state, workspace_label, created_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
SET_RUNNING = "UPDATE sandboxes SET report = ?, state = ? WHERE sandbox_id = ?"
SET_REPORT = "UPDATE sandboxes SET report = ? WHERE sandbox_id = ?"
SET_SPEC = "UPDATE sandboxes SET spec = ? WHERE sandbox_id = ?"
SET_WHOSE = "UPDATE sandboxes SET spec = ?, agent_id = ? WHERE sandbox_id = ?"
SET_STATE = "UPDATE sandboxes SET state = ? WHERE sandbox_id = ?"
ROWS_AT_ONCE = 500
"""Rows that a listing reads at once: what is kept of them for each caller ends with the page that is asked for."""


def newest(
    store: Store,
    *,
    states: Collection[str] = (),
    agent_id: str | None = None,
    after: tuple[str, str] | None = None,
    expected: int | None = None,
) -> Iterator[tuple[Any, ...]]:
    """FIELDS of these rows, newest first, read as far as the caller goes on; *after* a time of creation and an id.
    *expected*: how many are wanted if each of them counts.
    """
    where, values = ["1"], []  # type: tuple[list[str], list[Any]]
    if states:
        where.append(f"{STATE} IN ({', '.join('?' * len(states))})")
        values += states
        if not set(states) & set(ENDED):
            where.append(LIVING)
    if agent_id is not None:
        where.append("agent_id = ?")
        values.append(agent_id)
    at_once = min(expected or ROWS_AT_ONCE, ROWS_AT_ONCE)
    while True:
        since = [] if after is None else ["(created_at, sandbox_id) < (?, ?)"]
        rows = store.read(
            f"SELECT {FIELDS} FROM sandboxes WHERE {' AND '.join([*where, *since])} "  # noqa: S608  texts of ours
            "ORDER BY created_at DESC, sandbox_id DESC LIMIT ?",
            (*values, *(after or ()), at_once),
        )
        yield from rows
        if len(rows) < at_once:
            return
        after, at_once = (rows[-1][7], rows[-1][0]), ROWS_AT_ONCE


@lru_cache(maxsize=1024)
def stored_spec(text: str) -> SandboxSpec:
    """Parsed texts are kept: every call of a tool asks for them, and equal texts mean the same."""
    return SandboxSpec.model_validate_json(text)


@lru_cache(maxsize=1024)
def stored_state(text: str) -> StateObject:
    return StateObject.model_validate_json(text)


@lru_cache(maxsize=256)
def weak_points(text: str) -> tuple[str, ...]:
    """`degraded_of` a stored report, whose other parts (every mount, every wall) need no reading for it."""
    report = json.loads(text)
    told = [one for one in report["properties"] if one["required"] or one["name"] in SERVICES]
    weak = [one["name"] for one in told if one["state"] != "enforced"]
    return (*weak, *(f"limit:{one['kind']}" for one in report["limits"] if one["strength"] != "hard"))


@lru_cache(maxsize=256)
def template_of(text: str) -> str | None:
    """Digest of the template in a stored report."""
    found: str | None = json.loads(text).get("template_sha256")
    return found


def degraded_of(report: IsolationReport) -> tuple[str, ...]:
    told = [one for one in report.properties if one.required or one.name in SERVICES]
    weak = [one.name for one in told if one.state != "enforced"]
    return (*weak, *(f"limit:{one.kind}" for one in report.limits if one.strength != "hard"))


def fallen(degraded: tuple[str, ...]) -> list[str]:
    """Of what does not hold: all that should be there whatever this host has, which may come back."""
    return [name for name in degraded if not name.startswith("limit:")]


def fallen_walls(degraded: tuple[str, ...]) -> list[str]:
    """Of what holds by best effort only: the walls, which never may."""
    return [name for name in fallen(degraded) if name not in SERVICES]


def finishing(state: StateObject) -> str:
    """What finishes a stopping one: `sandbox.stop` or `sandbox.terminate`."""
    return str(state.next_actions[0]["op"]) if state.next_actions else "sandbox.terminate"


def _create() -> NextAction:
    return next_action("sandbox.create", "makes a new sandbox on the same workspace")


def _terminate(sandbox_id: str) -> NextAction:
    return next_action("sandbox.terminate", "ends it; the files of an agent are kept", sandbox_id=sandbox_id)


def _resume(sandbox_id: str) -> NextAction:
    return next_action("sandbox.resume", "lets it go on", sandbox_id=sandbox_id)


def state_object(
    sandbox_id: str,
    state: SandboxState,
    since: datetime,
    *,
    message: str = "",
    finish: str = "sandbox.terminate",
    before: StateObject | None = None,
) -> StateObject:
    """Return the state with what can be done in it. *finish* is what finishes a stopping one, if nothing else does."""
    match state:
        case "queued":
            actions = [
                next_action("sandbox.get", "tells when it runs", sandbox_id=sandbox_id),
                next_action("sandbox.terminate", "takes it out of the queue", sandbox_id=sandbox_id),
            ]
        case "starting":
            actions = [next_action("sandbox.get", "tells when it runs", sandbox_id=sandbox_id)]
        case "running":
            actions = [next_action("tool.call", "runs a tool in it", sandbox_id=sandbox_id), _terminate(sandbox_id)]
        case "pausing":
            finishes = next_action("sandbox.pause", "finishes what was begun", sandbox_id=sandbox_id)
            actions = [finishes, _resume(sandbox_id)]
        case "paused":
            reads = next_action("read_file", "reads its files as they are")
            actions = [_resume(sandbox_id), reads, _terminate(sandbox_id)]
        case "resuming":
            actions = [_resume(sandbox_id)]
        case "stopping":
            actions = [next_action(finish, "finishes what was begun", sandbox_id=sandbox_id)]
        case "stopped":
            starts = next_action("sandbox.start", "starts it again on the same workspace", sandbox_id=sandbox_id)
            actions = [starts, _terminate(sandbox_id)]
        case "terminated":
            actions = [_create()]
        case "lost":
            gives = next_action("command.output", "gives the output that was kept", sandbox_id=sandbox_id)
            actions = [_create(), gives]
        case "failed":
            actions = [_create(), next_action("host.doctor", "tells what is missing on this machine")]
    return StateObject(
        state=state,
        since=since,
        code={"lost": "GUEST_LOST", "failed": "INTERNAL"}.get(state),
        family={"lost": "infrastructure", "failed": "infrastructure"}.get(state),
        message=message,
        retryable=state in ("queued", "starting", "pausing", "resuming", "stopping"),
        next_actions=tuple(actions),
        reached={**({} if before is None else before.reached), state: since},
    )
