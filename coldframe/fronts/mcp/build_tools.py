"""Builds: commands on a workspace with what went in and what came out, looked at by a client that need not wait for them."""

from typing import Annotated

from pydantic import Field

from coldframe.contract.build import Build, BuildComparison, BuildSpec, BuildSummary, RebuildRequest
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import AgentId
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.offers import Asked, offer

LOG_BYTES = 64 * 1024
"""Of a log in one answer, unless more is asked for."""
MOST_LOG_BYTES = 1024 * 1024
LONGEST_WAIT_S = 60.0
Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)]


class NewBuild(BuildSpec):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    workspace: Annotated[str | None, Field(max_length=63)] = None
    idempotency_key: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    wait_s: Wait = 0
    """How long to wait for its end."""


@offer(arguments=NewBuild, answer=Build, right="build.start")
async def start_build(asked: Asked, wanted: NewBuild) -> Build:
    """Run phases, each a command, on the files of a sandbox as they are, and have on record what went in and what came out. Answers
    at once with `build_id`, or after `wait_s` as it stands then."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, wanted.sandbox_id, wanted.workspace)
    spec = BuildSpec.model_validate({name: getattr(wanted, name) for name in BuildSpec.model_fields})
    builds = asked.control.builds
    begun = await builds.start(asked.caller, sandbox_id, spec, idempotency_key=wanted.idempotency_key)
    return begun if not wanted.wait_s else await builds.get(asked.caller, begun.build_id, wait_s=wanted.wait_s)


class WhichBuild(Model):
    build_id: Annotated[str, Field(max_length=100)]


class WaitedBuild(WhichBuild):
    wait_s: Wait = 0


@offer(arguments=WaitedBuild, answer=Build, right="build.read", reads=True)
async def get_build(asked: Asked, which: WaitedBuild) -> Build:
    """How a build stands: what went in by digest, each phase, dependencies, artifacts with digests, and what is missing."""
    return await asked.control.builds.get(asked.caller, which.build_id, wait_s=which.wait_s)


class WhichBuilds(Model):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    workspace: AgentId | None = None
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class ManyBuilds(Model):
    builds: tuple[BuildSummary, ...]


@offer(arguments=WhichBuilds, answer=ManyBuilds, right="build.read", reads=True)
async def list_builds(asked: Asked, which: WhichBuilds) -> ManyBuilds:
    """Builds that this token may see, newest first, those of ended sandboxes too."""
    found = asked.control.builds.list(
        asked.caller, sandbox_id=which.sandbox_id, agent_id=which.workspace, after=which.after, limit=which.limit
    )
    return ManyBuilds(builds=tuple(found))


class BuildLogPart(WhichBuild):
    phase: Annotated[str | None, Field(max_length=64)] = None
    """What this one has printed, and nothing else."""
    offset: Annotated[int, Field(ge=0)] = 0
    length: Annotated[int, Field(ge=1, le=MOST_LOG_BYTES)] = LOG_BYTES


class BuildLogText(Model):
    build_id: str
    text: str
    """What is no UTF-8 is shown as U+FFFD."""
    offset: int
    next_offset: int | None
    """Where the rest begins; None at the end of a build that is over."""
    total_bytes: int
    ended: bool
    label: Label


@offer(arguments=BuildLogPart, answer=BuildLogText, right="build.read", reads=True)
async def build_log(asked: Asked, which: BuildLogPart) -> BuildLogText:
    """A part of the log of a build: all that its phases have printed, each behind a line that names it."""
    part = await asked.control.build_logs.read(
        asked.caller, which.build_id, phase=which.phase, offset=which.offset, length=which.length
    )
    return BuildLogText(
        build_id=part.build_id,
        text=part.data.decode("utf-8", "replace"),
        offset=part.offset,
        next_offset=part.next_offset,
        total_bytes=part.total_bytes,
        ended=part.ended,
        label=part.label,
    )


@offer(arguments=WhichBuild, answer=Build, right="build.cancel", destroys=True, repeats=True)
async def cancel_build(asked: Asked, which: WhichBuild) -> Build:
    """Start no further phase of a build, and end the one that runs."""
    return await asked.control.builds.cancel(asked.caller, which.build_id)


class BuildAgain(WhichBuild):
    new_workspace: AgentId | None = None
    """Name of a new workspace for it; None for a temporary sandbox."""
    keep_sandbox: bool = False


@offer(arguments=BuildAgain, answer=Build, right="build.rebuild")
async def repeat_build(asked: Asked, wanted: BuildAgain) -> Build:
    """Make a build again in a new sandbox, from what went into it and nothing else."""
    request = RebuildRequest(agent_id=wanted.new_workspace, keep_sandbox=wanted.keep_sandbox)
    return await asked.control.builds.rebuild(asked.caller, wanted.build_id, request)


class ComparedBuilds(Model):
    before: Annotated[str, Field(max_length=100)]
    after: Annotated[str, Field(max_length=100)]


@offer(arguments=ComparedBuilds, answer=BuildComparison, right="build.read", reads=True)
async def compare_builds(asked: Asked, which: ComparedBuilds) -> BuildComparison:
    """In what two builds differ: commands, template, input, dependencies, output."""
    return await asked.control.builds.compare(asked.caller, which.before, which.after)
