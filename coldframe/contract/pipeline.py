"""Pipelines: named steps, each a command, run one after the other and again where they did not succeed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from coldframe.contract.model import Model
from coldframe.contract.outputs import Patterns

MOST_STEPS = 100
StepName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
StepState = Literal["pending", "running", "succeeded", "failed", "skipped", "refused", "cancelled", "lost"]
"""`skipped`: what it needs did not succeed, or the pipeline had stopped. `refused`: the gate did not let it start. `lost`:
nobody knows how it ended, since its sandbox went."""
PipelineState = Literal["running", "succeeded", "failed", "cancelled"]


class PipelineStep(Model):
    """One command. It succeeds if it ends by itself with exit code 0."""

    name: StepName
    command: str = Field(min_length=1)
    """A line for bash. Variables are set in it: the ledger keeps the whole line, as it does of every command."""
    cwd: str = ""
    """Relative to the workspace."""
    timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    """None for what the sandbox allows."""
    idle_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    needs: tuple[StepName, ...] = ()
    """Earlier steps without whose success this one is skipped."""
    inputs: tuple[str, ...] = Field(default=(), max_length=100)
    """Files whose digests are kept: when other steps are run again it is told whether these are still the same."""
    outputs: Patterns = Field(default=(), exclude_if=lambda outputs: not outputs)
    """Files that it shall make: the result of its command tells of each, and of what is missing."""


class PipelineSpec(Model):
    name: str = Field(default="", max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")
    steps: tuple[PipelineStep, ...] = Field(min_length=1, max_length=MOST_STEPS)
    on_failure: Literal["stop", "continue"] = "stop"
    """Whether the steps behind one that does not succeed are skipped, or only those that need it."""

    @model_validator(mode="after")
    def _is_in_order(self) -> "PipelineSpec":
        seen: set[str] = set()
        for step in self.steps:
            if step.name in seen:
                raise ValueError(f"there are two steps `{step.name}`")
            unknown = [name for name in step.needs if name not in seen]
            if unknown:
                raise ValueError(f"step `{step.name}` needs `{unknown[0]}`, which is no earlier step")
            seen.add(step.name)
        return self


class StepInput(Model):
    path: str
    sha256: str


class StepInfo(Model):
    """How one step stands, by its last attempt."""

    name: str
    state: StepState
    attempt: int
    """Counts from 1; 0 if there was none."""
    command_id: str | None = None
    """Its output, result and receipt are found by it."""
    exit_code: int | None = None
    code: str | None = None
    """Of the failure catalogue (docs/errors.md); None if a program ended with another exit code than 0."""
    message: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    inputs: tuple[StepInput, ...] = ()
    """As they were before it began."""


class PipelineInfo(Model):
    pipeline_id: str
    sandbox_id: str
    session_id: str
    """That its steps join: since it was run again last, the one of the sandbox at that time."""
    state: PipelineState
    spec: PipelineSpec
    steps: tuple[StepInfo, ...]
    """In their order."""
    started_at: datetime
    ended_at: datetime | None = None
    started_by: str


class RerunRequest(Model):
    """Run again what did not succeed."""

    steps: tuple[StepName, ...] = Field(default=(), max_length=MOST_STEPS)
    """These, whatever became of them; none for all that did not succeed."""
    changed: Literal["refuse", "rerun", "keep"] = "refuse"
    """What to do if an input of a step that succeeded is another one now: refuse with `CONFLICT`, run that step again as
    well, or go on all the same."""


def outcome(steps: Sequence[StepInfo]) -> PipelineState:
    """What a pipeline has come to when nothing of it runs."""
    states = {step.state for step in steps}
    if "cancelled" in states:
        return "cancelled"
    return "succeeded" if states == {"succeeded"} else "failed"
