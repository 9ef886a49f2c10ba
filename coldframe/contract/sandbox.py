"""Sandboxes, agents, sessions: ids, specs, limits, states and the state object."""

import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from coldframe.contract.declared_inputs import DeclaredInputs
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.model import Model
from coldframe.contract.outputs import Patterns
from coldframe.contract.policy import Label
from coldframe.contract.profile import Profile
from coldframe.contract.state import StateObject
from coldframe.contract.template import DEFAULT_TEMPLATE, HOST, TemplateRef
from coldframe.contract.volume import VolumeMounts

_AGENT_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
RESERVED_AGENT_IDS = frozenset({"background"})


def checked_agent_id(value: str) -> str:
    """Return *value* if it is an agent id: lower-case letters, digits and hyphens, 1 to 63, not reserved.

    Raises:
        InvalidArgument: for anything else, look-alike letters and path parts included.
    """
    if not _AGENT_ID.fullmatch(value) or value in RESERVED_AGENT_IDS:
        raise InvalidArgument(
            f"`{value[:80]}` is no agent id",
            hint="use 1 to 63 lower-case letters, digits and hyphens; `background` is reserved",
            argument="agent_id",
        )
    return value


def _agent_id(value: str) -> str:
    if not _AGENT_ID.fullmatch(value) or value in RESERVED_AGENT_IDS:
        raise ValueError("use 1 to 63 lower-case letters, digits and hyphens; `background` is reserved")
    return value


AgentId = Annotated[str, AfterValidator(_agent_id)]


class Limits(Model):
    """Caps of one sandbox. Source of the defaults: A-36 of the acceptance list, see docs/limits.md.

    What is asked for is held to `LARGEST` as well; what was kept by a version without that can still be read.
    """

    wall_s: float = Field(default=600.0, gt=0, le=86_400)
    """Longest wall time of one command; a call may ask for less."""
    cpu_s: float = Field(default=300.0, gt=0)
    """CPU time of one command's whole process tree."""
    memory_mib: int = Field(default=2048, ge=16)
    disk_mib: int = Field(default=5120, ge=1)
    pids: int = Field(default=256, ge=8)
    open_files: int = Field(default=1024, ge=32)
    file_mib: int = Field(default=5120, ge=1)
    """Largest single file."""
    cpus: float = Field(default=0.0, ge=0)
    """CPU rate in cores; 0 for no cap."""
    output_mib: int = Field(default=4096, ge=1)
    """Output of one command that is kept; a command that writes more is ended, never cut in silence."""
    io_mib_s: int = Field(default=0, ge=0)
    """Disk bandwidth in MiB a second, of reads and of writes each; 0 for no cap."""


LARGEST = Limits(
    wall_s=86_400,
    cpu_s=100_000_000,
    memory_mib=1 << 24,
    disk_mib=1 << 30,
    pids=4_000_000,
    open_files=1 << 20,
    file_mib=1 << 30,
    cpus=8192,
    output_mib=1 << 20,
    io_mib_s=1 << 20,
)
"""About the kernel's most where it has one, and else beyond any machine: three years of CPU time."""


LONGEST_TIMER_S = 10 * 366 * 86_400.0


def _profile_of(said: Mapping[str, Any]) -> Profile:
    """The one that follows from the rest of a spec."""
    if said.get("template", HOST) != HOST:
        return "computer"
    return "sandbox" if said.get("background") else "workspace"


class SandboxSpec(Model):
    """What a sandbox shall be. What this host cannot give is refused, never quietly left out."""

    agent_id: AgentId | None = None
    """Owner of the workspace; None with `background` for a temporary one."""
    background: bool = False
    """Temporary workspace `background/<session-id>/`, gone with the session."""
    ephemeral: bool = False
    """Of a background sandbox: a stop is its end, so that no file outlives its processes. What is on record stays."""
    template: TemplateRef = HOST
    """What the system is: `host` for this machine's own, read-only, or one of its own that begins from a template: `name`
    for the newest of that name, `name:version`, or `sha256:DIGEST`."""
    profile: Profile = Field(default_factory=lambda said: _profile_of(said))
    """What kind of sandbox it is (docs/profiles.md). Unless it is said, it follows from the rest: `computer` where the template
    is no `host`, else `sandbox` with a temporary workspace and `workspace` with that of an agent. An `interpreter` is one
    with a temporary workspace that runs cells of code alone. Of a `computer` the system can be changed, and there is a root, who
    is root of the sandbox alone; what was changed stays with the workspace. `exec`, of earlier versions, is read as what it
    was."""
    isolation: Literal["namespaces", "gvisor", "microvm"] = "namespaces"
    """The level. One that the host does not offer is refused, and never replaced by another."""
    requires: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(:[a-z0-9_]+)?$", max_length=64)], ...] = Field(
        default=(), max_length=64
    )
    """Properties without which the sandbox is refused: names of the isolation report (`seccomp`), `limit:KIND` for a
    hard limit, `level:NAME`, `kernel:NAME`."""
    snapshot: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    """A snapshot that the files begin as; None for an empty workspace. For a workspace that does not exist yet: one that
    does is taken back to a snapshot by `reset`."""
    network: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")] | None = None
    """Network profile: `none`, `packages`, `open`, or one of the rule file; None for what the rule file gives to the
    sandbox, its agent or role, which is nothing unless it says so. All profiles that apply have to agree."""
    volumes: VolumeMounts = ()
    """Durable directories that are shown inside, beside the workspace (docs/volumes.md)."""
    limits: Limits = Limits()
    runtimes: tuple[Literal["deno"], ...] | None = None
    """The only programs that can start, in argument-list form: no shell, no other interpreter, nothing that was written
    or copied. None for all programs of the machine."""
    denied_programs: tuple[Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=255)], ...] = ()
    """Programs of the machine, by name or pattern (`python3*`), that can be neither read nor started, beside those that the
    rules deny."""
    leftovers: Literal["adopt", "end"] = "adopt"
    track_files: bool = True
    on_missing: Literal["refuse", "degrade"] = "degrade"
    """What to do where a *limit* can only be kept by best effort on this host: run and say so in `degraded`, report and
    contract, or refuse. A missing *wall* is refused in any case. The operator's setting can make `refuse` the rule."""
    idle_timeout_s: float | None = Field(default=None, gt=0, le=LONGEST_TIMER_S)
    """How long it may run without activity before `on_timeout`; docs/lifecycle.md lists what counts. None for ever, or
    what the operator has set."""
    max_age_s: float | None = Field(default=None, gt=0, le=LONGEST_TIMER_S)
    """How long after its creation `on_timeout` comes, whatever it does then. None for never, or the operator's."""
    command_idle_s: float | None = Field(default=None, gt=0, le=86_400)
    """How long a command may be silent that does not say so itself: no output, and no input that is taken. None for ever."""
    on_timeout: Literal["stop", "pause", "snapshot", "terminate"] = "stop"
    """What happens then. `pause` is refused on a host that cannot. `snapshot`: one is taken of its files, and it ends; where
    none can be taken it is stopped."""
    ceiling: Label | None = None
    """The highest label that anything in it may have: a call is refused, or its result withheld, that would take its session
    above, and whatever is asked for once it is. The rules may hold it lower. None for no other than theirs. It never changes."""
    inputs: DeclaredInputs = ()
    """Files that are in a new temporary workspace when it begins, beside nothing else: each put there by a call that is judged
    and on record. What is kept of them here is path, size and digest."""
    outputs: Patterns = ()
    """Files that it shall have made when its work is done; `outputs` of the sandbox tells what there is of them. A command can
    declare its own."""
    on_result: Literal["keep", "delete"] = "keep"
    """`delete`: when somebody has confirmed to have the outputs, by their digest, everything of it is deleted but what is on
    record. For a temporary workspace, with `outputs` and `max_age_s`: so long it is kept if nobody does."""
    contract_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest of a plan: make it only if it has that contract. None for whatever contract it has."""

    @model_validator(mode="before")
    @classmethod
    def _with_what_follows(cls, given: object) -> object:
        """A profile that is named brings along what it cannot be without, where nothing else is said."""
        if not isinstance(given, dict):
            return given
        if given.get("profile") in ("interpreter", "sandbox") and given.get("agent_id") is None:
            return {"background": True, **given}
        return {"template": DEFAULT_TEMPLATE, **given} if given.get("profile") == "computer" else given

    @field_validator("profile", mode="before")
    @classmethod
    def _as_it_was(cls, given: object, said: ValidationInfo) -> object:
        if given == "exec":
            if said.data.get("template", HOST) != HOST:
                raise ValueError(f"there is no profile `exec` of the template `{said.data['template']}`")
            return "sandbox" if said.data.get("background") else "workspace"
        return _profile_of(said.data) if given is None else given

    @model_validator(mode="after")
    def _is_one_that_there_is(self) -> "SandboxSpec":
        if self.profile == "computer" and self.template == HOST:
            raise ValueError(f"there is no profile `{self.profile}` of the template `{self.template}`")
        if self.profile in ("interpreter", "sandbox") and not self.background:
            raise ValueError(f"a sandbox of the profile `{self.profile}` is a `background` one, without an agent")
        if self.profile == "workspace" and self.background:
            raise ValueError("the profile `workspace` is that of an agent, and no `background` sandbox has one")
        if self.ephemeral and self.on_timeout == "snapshot":
            raise ValueError(
                "of an `ephemeral` sandbox no file outlives its processes, so `on_timeout` is no `snapshot`"
            )
        if self.ephemeral and not self.background:
            raise ValueError("only a `background` sandbox is `ephemeral`: the workspace of an agent is durable")
        if self.inputs and not self.background:
            raise ValueError(
                "only a `background` sandbox declares `inputs`: the workspace of an agent has files already"
            )
        if self.profile == "computer" and self.runtimes is not None:
            raise ValueError("`runtimes` cannot be the only programs of a system that its root may change")
        return self


SandboxState = Literal[
    "queued",
    "starting",
    "running",
    "pausing",
    "paused",
    "resuming",
    "stopping",
    "stopped",
    "terminated",
    "lost",
    "failed",
]
TRANSITIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "queued": frozenset({"starting", "terminated", "failed"}),
        "starting": frozenset({"running", "stopped", "stopping", "failed"}),
        "running": frozenset({"pausing", "stopping", "lost"}),
        "pausing": frozenset({"paused", "running", "stopping", "lost"}),
        "paused": frozenset({"resuming", "stopping", "lost"}),
        "resuming": frozenset({"running", "paused", "stopping", "lost"}),
        "stopping": frozenset({"stopped", "terminated"}),
        "stopped": frozenset({"starting", "stopping"}),
        "lost": frozenset({"stopping"}),
        "failed": frozenset(),
        "terminated": frozenset(),
    }
)
"""From each state to which others; there is no other way. It begins in `starting`, or in `queued`."""
ENDED: tuple[SandboxState, ...] = ("terminated", "lost", "failed")
"""Nothing leads back to `running` from there."""
WITH_BOX: tuple[SandboxState, ...] = ("running", "pausing", "paused", "resuming")
"""Processes and memory are there, and files can be read."""


class SandboxInfo(Model):
    sandbox_id: str
    agent_id: str | None
    session_id: str
    """The session that calls join unless they name another."""
    spec: SandboxSpec
    state: StateObject
    created_at: datetime
    workspace_label: Label
    network: tuple[str, ...] | None = None
    """Network profiles that have to agree to whatever it reaches, by the rules now; None if it has no way out, which stays so."""
    degraded: tuple[str, ...] = ()
    """Properties that hold by best effort only."""
    template_sha256: str | None = None
    """Of the template that its system began from; None where it has that of the host, and before it is built."""
    warnings: tuple[str, ...] = ()
    """What whoever uses it should know, as that its template was withdrawn."""
    expires_at: datetime | None = None
    """When a timer acts, as it stands now and if nothing happens until then; None without one."""
    created_by: str | None = None
    """Whoever asked for it, by the name of the token."""
    active_at: datetime | None = None
    """When something was done in it last, as timers count; since when it stands as it does, of one without a box."""
    abandoned_at: datetime | None = None
    """When its idle limit had been reached and a timer acted on it; None if not so, or if somebody has taken it up again."""
    stored_bytes: int | None = None
    """Of its workspace, and of snapshots taken through it; only where it was asked for."""


class Loss(Model):
    """One item of the persistence table as it is now: one that an act takes away, or one that it leaves."""

    item: str
    """As in the lines `persistence.ITEM` of the contract."""
    what: str
    """One sentence for people."""
    count: int | None = None
    """Processes, or files. None where it is not known."""
    bytes: int | None = None
    command_ids: tuple[str, ...] = ()
    """Commands that run."""


class PathsAtEnd(Model):
    """By name, as seen inside, folders included."""

    lost: tuple[str, ...]
    kept: tuple[str, ...]
    complete: bool
    """False: there are more, or some could not be read."""


class SandboxEnd(SandboxInfo):
    """The answer of stop and terminate: how the sandbox is now, and what was lost, or would be."""

    lost: tuple[Loss, ...] = ()
    dry_run: bool = False
    """Nothing was done."""
    snapshot_id: str | None = None
    """Of its files at the end, if one was asked for."""
    kept: tuple[Loss, ...] = ()
    """With `dry_run`: the items that stay."""
    paths: PathsAtEnd | None = None
    """With `dry_run`: all that goes and stays by name."""
    unsaved: tuple[str, ...] = ()
    """With `dry_run`: files in Git repositories that would go and that no commit has. They are why it would be refused."""


class EndMany(Model):
    """Which sandboxes to terminate: those that fit all that is said, of which there has to be something."""

    state: tuple[SandboxState, ...] = ()
    agent_id: str | None = None
    created_by: str | None = None
    min_age_s: float | None = Field(default=None, ge=0)
    min_idle_s: float | None = Field(default=None, ge=0)
    discard: bool = False
    """Also those in which work is that no commit has."""
    snapshot: bool = False
    """Take a snapshot of the files of each before."""
    dry_run: bool = False
    """Do nothing, and say what would be lost."""

    @model_validator(mode="after")
    def _says_which(self) -> "EndMany":
        if not self.model_fields_set - {"dry_run", "discard", "snapshot"}:
            raise ValueError("say which ones: by state, agent, maker, age or idle time")
        return self


class ManyEnds(Model):
    """What became of them."""

    ended: tuple[SandboxEnd, ...]
    failed: tuple[dict[str, Any], ...] = ()
    """`sandbox_id` and `error` of each that could not be ended."""


class PauseRequest(Model):
    kind: Literal["memory", "files"] = "memory"
    """`memory`: processes stand still and stay, and so do their connections. `files`: they end, as with stop."""


class ExtendRequest(Model):
    for_s: float = Field(gt=0, le=LONGEST_TIMER_S)
    """From now on no timer acts for at least so long."""


class SessionInfo(Model):
    session_id: str
    sandbox_id: str
    agent_id: str | None
    taint: Label
    opened_at: datetime
    closed_at: datetime | None = None


class AgentInfo(Model):
    agent_id: AgentId
    created_at: datetime
    deleted_at: datetime | None = None
    workspace_label: Label = Label.PUBLIC
