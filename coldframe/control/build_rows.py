"""The table of builds of workspaces."""

from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.build import BuildDependency, BuildInputs, BuildSpec, BuildState
from coldframe.contract.model import Model
from coldframe.contract.outputs import FoundOutput, RefusedOutput
from coldframe.contract.pipeline import StepInfo
from coldframe.control.ledger import format_time, parse_time
from coldframe.control.store import Store, metadata

builds = sa.Table(
    "builds",
    metadata,
    sa.Column("build_id", sa.Text, primary_key=True),
    sa.Column("pipeline_id", sa.Text, nullable=False),
    sa.Column("sandbox_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, nullable=True),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("inputs", sa.Text, nullable=False),
    sa.Column("rebuild_of", sa.Text, nullable=True),
    sa.Column("keep_sandbox", sa.Integer, nullable=False),
    sa.Column("started_by", sa.Text, nullable=False),
    sa.Column("started_at", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Text, nullable=True),
    sa.Column("outcome", sa.Text, nullable=True),
)
sa.Index("builds_pipeline_id", builds.c.pipeline_id, unique=True)
sa.Index("builds_sandbox_id", builds.c.sandbox_id, builds.c.started_at)
sa.Index("builds_agent_id", builds.c.agent_id, builds.c.started_at)

_FIELDS = ", ".join(column.name for column in builds.c)


class BuildOutcome(Model):
    """What one has come to."""

    state: BuildState
    code: str | None = None
    message: str = ""
    phases: tuple[StepInfo, ...]
    artifacts: tuple[FoundOutput, ...] = ()
    missing: tuple[str, ...] = ()
    refused: tuple[RefusedOutput, ...] = ()
    artifacts_sha256: str | None = None
    dependencies: tuple[BuildDependency, ...] = ()
    dependencies_complete: bool = False
    dependencies_problem: str | None = None


class BuildRow(NamedTuple):
    build_id: str
    pipeline_id: str
    sandbox_id: str
    agent_id: str | None
    session_id: str
    spec: BuildSpec
    inputs: BuildInputs
    rebuild_of: str | None
    keep_sandbox: bool
    """Whether the sandbox of a rebuild stays when that has ended."""
    started_by: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: BuildOutcome | None = None
    """None while it runs."""

    def values(self) -> dict[str, Any]:
        """As columns."""
        return {
            **self._asdict(),
            "spec": self.spec.model_dump_json(),
            "inputs": self.inputs.model_dump_json(),
            "keep_sandbox": int(self.keep_sandbox),
            "started_at": format_time(self.started_at),
            "ended_at": None if self.ended_at is None else format_time(self.ended_at),
            "outcome": None if self.outcome is None else self.outcome.model_dump_json(),
        }


def _row(found: tuple[Any, ...]) -> BuildRow:
    values = dict(zip((column.name for column in builds.c), found, strict=True))
    values["spec"] = BuildSpec.model_validate_json(values["spec"])
    values["inputs"] = BuildInputs.model_validate_json(values["inputs"])
    values["keep_sandbox"] = bool(values["keep_sandbox"])
    values["started_at"] = parse_time(values["started_at"])
    values["ended_at"] = None if values["ended_at"] is None else parse_time(values["ended_at"])
    values["outcome"] = None if values["outcome"] is None else BuildOutcome.model_validate_json(values["outcome"])
    return BuildRow(**values)


class BuildRows:
    """Reads and writes it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def by_id(self, build_id: str) -> BuildRow | None:
        return next(iter(self._select("build_id = ?", build_id)), None)

    def of_pipeline(self, pipeline_id: str) -> BuildRow | None:
        return next(iter(self._select("pipeline_id = ?", pipeline_id)), None)

    def page(
        self, *, sandbox_id: str | None, agent_id: str | None, before: BuildRow | None, limit: int
    ) -> list[BuildRow]:
        """Newest first, from behind *before* on."""
        where, values = ["1"], list[str | int]()
        for column, value in (("sandbox_id", sandbox_id), ("agent_id", agent_id)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        if before is not None:
            where.append("(started_at, build_id) < (?, ?)")
            values += [format_time(before.started_at), before.build_id]
        return self._select(f"{' AND '.join(where)} ORDER BY started_at DESC, build_id DESC LIMIT ?", *values, limit)

    def _select(self, where: str, *values: str | int) -> list[BuildRow]:
        found = self._store.read(f"SELECT {_FIELDS} FROM builds WHERE {where}", values)  # noqa: S608  texts of ours
        return [_row(one) for one in found]

    def add(self, row: BuildRow, connection: sa.Connection) -> None:
        connection.execute(builds.insert().values(row.values()))

    def put(self, row: BuildRow, connection: sa.Connection) -> None:
        """As it is from now on."""
        connection.execute(builds.update().where(builds.c.build_id == row.build_id).values(row.values()))
