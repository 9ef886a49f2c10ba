"""Builds of a workspace: commands, all that went into them, and what came out, so that two of them can be compared."""

from datetime import datetime
from typing import Literal

from pydantic import Field, model_validator

from coldframe.contract.model import Model
from coldframe.contract.outputs import FoundOutput, Patterns, RefusedOutput
from coldframe.contract.packages import PackageChange
from coldframe.contract.pipeline import PipelineSpec, PipelineStep, StepInfo
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import LONGEST_TIMER_S, AgentId
from coldframe.contract.snapshot import Change

MOST_PHASES = 50
MOST_DEPENDENCIES = 5000
BuildState = Literal["running", "succeeded", "failed", "cancelled"]
BuildPart = Literal["commands", "template", "input", "dependency", "output"]


class BuildSpec(Model):
    """What to run, one phase after the other; the first that does not succeed is the last."""

    name: str = Field(default="", max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")
    phases: tuple[PipelineStep, ...] = Field(min_length=1, max_length=MOST_PHASES)
    artifacts: Patterns = ()
    """Files that it shall make, as `dist/*.whl`. They are looked for when the last phase has ended, and a build that lacks one of
    them has failed."""
    inputs_kept_s: float | None = Field(default=None, gt=0, le=LONGEST_TIMER_S)
    """How long the snapshot of what went in is kept, without which it is not made again; None: until somebody removes it."""

    @model_validator(mode="after")
    def _is_sound(self) -> "BuildSpec":
        self.pipeline()
        return self

    def pipeline(self) -> PipelineSpec:
        """The steps that carry it out."""
        *first, last = self.phases
        return PipelineSpec(
            name=f"build {self.name}".strip(),
            steps=(*first, last.model_copy(update={"outputs": (*last.outputs, *self.artifacts)})),
        )


class BuildFile(Model):
    path: str
    sha256: str


class BuildInputs(Model):
    """What went in, by digest."""

    tree_sha256: str
    """Of every path of the workspace with kind, mode and content, as receipts have it."""
    snapshot_id: str
    """Holds these files, as long as it is kept."""
    template: str
    template_sha256: str | None = None
    """None where the system was that of the machine."""
    network: str | None
    files: tuple[BuildFile, ...] = ()
    """Lock files and manifests of the directories that its phases begin in, and of those above."""


class BuildDependency(Model):
    """A package that was there when it had ended."""

    manager: Literal["apt", "pip", "npm"]
    name: str
    version: str
    sha256: str | None = None
    """Of what a registry has handed over for it; None for what came with the template or the workspace."""
    command_id: str | None = None
    """The command that has installed it, as far as that is on record."""


class BuildSummary(Model):
    """One line of the list of builds."""

    build_id: str
    name: str
    sandbox_id: str
    agent_id: str | None
    """Whose workspace it is of; None for a temporary one."""
    state: BuildState
    code: str | None = None
    """Of the failure catalogue; `OUTPUT_MISSING` if every phase succeeded and an artifact is not there. None if a program ended
    with another exit code than 0."""
    message: str = ""
    tree_sha256: str
    template_sha256: str | None
    artifacts_sha256: str | None = None
    """Over path, size and digest of each artifact, as `result_digest` has it; None if there is none."""
    rebuild_of: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
    started_by: str


class Build(BuildSummary):
    session_id: str
    pipeline_id: str
    """What carries it out, step by step."""
    spec: BuildSpec
    inputs: BuildInputs
    phases: tuple[StepInfo, ...]
    """Each with its command, by which result, output and receipt are found."""
    receipts: tuple[str, ...] = ()
    """Of these commands, in their order."""
    dependencies: tuple[BuildDependency, ...] = ()
    dependencies_complete: bool = False
    """False until it has ended, and where `dependencies_problem` says why."""
    dependencies_problem: str | None = None
    artifacts: tuple[FoundOutput, ...] = ()
    missing: tuple[str, ...] = ()
    """Patterns that no file was found for."""
    refused: tuple[RefusedOutput, ...] = ()
    withheld: bool = False
    """A rule has withheld what the commands came to, and with it artifacts and dependencies; owners and admins see them."""


class RebuildRequest(Model):
    """Make it again in a new sandbox that begins as the first one did."""

    agent_id: AgentId | None = None
    """Name of a new workspace for it; None for a temporary sandbox."""
    keep_sandbox: bool = False
    """Leave a temporary one as it is when the build has ended. Otherwise it is terminated: digests and log stay."""


class ArtifactChange(Model):
    """One artifact of which the builds differ."""

    path: str
    before: str | None
    """SHA-256; None: it was not there."""
    after: str | None


class BuildComparison(Model):
    """In what two builds differ."""

    before: str
    after: str
    differs: tuple[BuildPart, ...]
    """What is not the same. Nothing if all is."""
    commands: tuple[str, ...] = ()
    """Names of phases that are in one of them alone, or whose line or place is another."""
    template: tuple[str | None, str | None]
    """Digests of both."""
    tree: tuple[str, str]
    """Digests of both."""
    input_files: tuple[ArtifactChange, ...] = ()
    """Lock files and manifests that differ."""
    input_changes: tuple[Change, ...] = ()
    """Paths of the workspace that differed when they began, the first thousand."""
    input_changes_complete: bool
    """False: there are more, or a snapshot of what went in is gone."""
    dependencies: tuple[PackageChange, ...] = ()
    artifacts: tuple[ArtifactChange, ...] = ()
    withheld: bool = False
    """A rule withholds what came out of one of them: neither artifacts nor dependencies are compared."""
    dependencies_complete: bool = True
    """False: those of one of them are not all known, so that they are not compared."""
    reproduced: bool | None
    """Whether the same commands, template and tree came to the same artifacts; None where these were not the same, or one of the
    builds made none."""
    label: Label
    """Of what is told here."""


class BuildLog(Model):
    """A part of the log of a build: all that its phases have printed, each behind a line that names it."""

    build_id: str
    offset: int
    data: bytes
    next_offset: int | None
    """Where the rest begins; None if the build has ended and this is the last of it."""
    total_bytes: int
    """Of the whole log; of what there is so far, while the build runs."""
    ended: bool
    label: Label
