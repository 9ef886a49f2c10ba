"""Labels, roles, hooks, what a rule gets to see, and what it answers."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from coldframe.contract.model import Model


class Label(StrEnum):
    """Classification of data, lowest first. The order is the declaration order."""

    PUBLIC = "PUBLIC"
    INTERNAL = "INTERNAL"
    CONFIDENTIAL = "CONFIDENTIAL"
    RESTRICTED = "RESTRICTED"

    @property
    def rank(self) -> int:
        """0 for PUBLIC up to 3 for RESTRICTED; the only thing comparisons may use."""
        return _RANK[self]


_RANK = {label: rank for rank, label in enumerate(Label)}


class Role(StrEnum):
    """What a token may do. An `agent` is never a person and holds none of a person's rights."""

    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"
    AGENT = "agent"


class Hook(StrEnum):
    """Points at which rules are asked. A name stands here only once it has a firing site."""

    PRE_TOOL_CALL = "PRE_TOOL_CALL"
    POST_TOOL_RESPONSE = "POST_TOOL_RESPONSE"
    NETWORK_EGRESS = "NETWORK_EGRESS"
    SECRET_ACCESS = "SECRET_ACCESS"  # noqa: S105  a name


class Outcome(StrEnum):
    """What a rule answers, loosest first; the strictest answer of all rules wins."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def strictness(self) -> int:
        return _STRICTNESS[self]


_STRICTNESS = {outcome: rank for rank, outcome in enumerate(Outcome)}


class ProgramCall(Model):
    """One program that a command would start, as far as the text tells."""

    name: str
    """Last component of the program word, unquoted: `/usr/bin/rm` gives `rm`."""
    word: str
    """The program word as written, unquoted."""
    arguments: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    """Wrappers that lead to it, outermost first: `env sudo rm` gives `("env", "sudo")` for `rm`."""
    unresolved: tuple[int, ...] = ()
    """Indexes of the arguments that are only known at run time; they stand in `arguments` as written."""


class CommandReading(Model):
    """What the shell reader found in a command."""

    certainty: Literal["complete", "opaque", "unparsable"]
    """`opaque`: some program is only known at run time (`$x`, `eval`, `| sh`, `python -c`). `unparsable`: no
    shell grammar."""
    programs: tuple[ProgramCall, ...] = ()
    written_paths: tuple[str, ...] = ()
    """Targets of output redirections."""
    self_spawning: tuple[str, ...] = ()
    """Functions that start themselves again in a pipeline or in the background: fork bombs."""
    opaque_because: tuple[str, ...] = ()
    position: int | None = None
    """Byte offset at which reading failed, if `unparsable`."""


class CallContext(Model):
    """All that PRE_TOOL_CALL rules see of one call; stored in the ledger so that a decision can be replayed."""

    hook: Literal[Hook.PRE_TOOL_CALL] = Hook.PRE_TOOL_CALL
    tool: str
    agent_id: str
    session_id: str
    sandbox_id: str
    role: Role
    caller: str
    """Surface and token that made the call, as `rest:tok_…`."""
    profile: str
    taint: Label
    """Label of the session before the call."""
    workspace_label: Label
    """High-water label of the files in view."""
    command: str | None = None
    """Shell line as given, or the argv list joined by shell quoting (for reading only, never run)."""
    argv: tuple[str, ...] | None = None
    shell: bool = False
    """True if `command` goes to a shell, False for an argv list and for tools that run nothing."""
    reading: CommandReading | None = None
    cwd: str | None = None
    runtime: str | None = None
    user: str | None = Field(default=None, exclude_if=lambda user: user is None)
    """Whom a command is to run as, `user` or `root`; None for tools that run nothing, and where no other user was offered yet."""
    box_runtimes: tuple[str, ...] | None = None
    """The only runtimes that the sandbox was built with; None if it has all programs of the machine."""
    box_denies_shell: bool = False
    """Whether the program that runs lines was denied when the sandbox was made, so that it is not there."""
    path: str | None = None
    """Path argument of a file tool, normalised but not resolved: relative to the workspace, absolute elsewhere in the box."""
    from_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """Of a move: where it is from. Rules are asked about both, and the stricter answer counts."""
    more_paths: tuple[str, ...] = Field(default=(), exclude_if=lambda paths: not paths)
    """Others that the call names. Rules are asked about each in the same way."""
    ceiling: Label | None = Field(default=None, exclude_if=lambda ceiling: ceiling is None)
    """The highest label that the sandbox was made for; None for any."""
    arguments_sha256: str = ""


class InputContext(Model):
    """What rules see of input that is sent to a command, beside what its own call was judged by: the context of that call,
    with these in place of its own. Recorded instead of the whole, since a command may be long and its input many pieces."""

    command_id: str
    session_id: str
    role: Role
    caller: str
    taint: Label
    workspace_label: Label
    arguments_sha256: str

    def whole(self, started: CallContext) -> CallContext:
        """All that rules see, over the context that the command was *started* with."""
        return started.model_copy(update={name: getattr(self, name) for name in _OF_INPUT})


_OF_INPUT = ("session_id", "role", "caller", "taint", "workspace_label", "arguments_sha256")


class ResultContext(Model):
    """All that POST_TOOL_RESPONSE rules see. The output itself is handed over beside it, and kept under its digest."""

    hook: Literal[Hook.POST_TOOL_RESPONSE] = Hook.POST_TOOL_RESPONSE
    call: CallContext
    failed: bool = False
    """True if the tool answered with a typed error. A program's exit code is not a failure of the tool."""
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    output_bytes: int = 0
    output_sha256: str = ""
    reached: tuple[str, ...] = ()
    """Endpoints contacted, as `tcp:203.0.113.9:443`."""


class EgressContext(Model):
    """All that NETWORK_EGRESS rules see of one connection, or of one request where requests are read."""

    hook: Literal[Hook.NETWORK_EGRESS] = Hook.NETWORK_EGRESS
    sandbox_id: str
    agent_id: str
    role: Role
    """Of whoever made the sandbox."""
    taint: Label
    """Of the session now."""
    name: str
    """Empty for an address of the program's own choice."""
    address: str
    """Empty for a name: what that resolves to is the broker's business, and judged apart."""
    port: int
    scheme: str
    mode: str
    """How much is looked at: `sni`, `intercept` or `raw`."""
    methods: tuple[str, ...] | None
    """What a server may take the request for: `GET` too for `HEAD`. None where nobody sees requests."""
    paths: tuple[str, ...] | None
    """Each way in which a server may read the path, in small letters too. None as with `methods`."""
    label: Label
    """Of the destination, as the network rules say."""


class SecretContext(Model):
    """All that SECRET_ACCESS rules see of one use of a credential; stored in the ledger with the decision."""

    hook: Literal[Hook.SECRET_ACCESS] = Hook.SECRET_ACCESS
    sandbox_id: str
    session_id: str
    agent_id: str
    taint: Label
    """Of the session now."""
    credential: str
    """Its name."""
    production: bool
    purpose: str
    name: str
    """Of the service."""
    port: int
    method: str
    paths: tuple[str, ...]
    """Each way in which a server may read the path, in small letters too."""
    label: Label
    """Of the credential."""
    uses: int
    """How often it was used before."""


class RuleVerdict(Model):
    """What one rule said about one call."""

    rule_id: str
    outcome: Outcome
    reason: str
    code: str = "DENIED_BY_RULE"
    label: Label | None = None
    """Label that the result gets at least, if this rule classifies."""
    snapshot: bool = Field(default=False, exclude_if=lambda wanted: not wanted)
    """It asks for a snapshot before what it matches begins."""


class Decision(Model):
    """The joined answer of floor, lists, labels and custom rules at one hook."""

    hook: Hook
    outcome: Outcome
    rule_id: str
    """The rule that decided; `default` if none had anything to say."""
    reason: str
    code: str | None = None
    """Error code of a refusal; None when allowed."""
    label: Label = Label.PUBLIC
    """Join of every label that a matching rule put on the result."""
    verdicts: tuple[RuleVerdict, ...] = ()
    rules_sha256: str
    context_sha256: str

    @property
    def snapshot_by(self) -> str | None:
        """The rule that asks for a snapshot before it begins; None if none does."""
        return next((one.rule_id for one in self.verdicts if one.snapshot), None)


class PolicyChange(Model):
    """One version of the rules, as it came into force."""

    seq: int
    """Of the ledger entry that has it whole, with its text."""
    at: datetime
    caller: str | None
    """Who loaded it; None for what the server took at its start."""
    origin: Literal["call", "file", "default"]
    reason: str
    """As whoever loaded it gave it; empty if they gave none."""
    sha256_before: str | None
    """Of the version that it took the place of."""
    sha256: str


class AgentLimits(Model):
    """Limits of an agent's calls; those of the sandbox hold where they are lower. Whole numbers, None to
    say nothing."""

    wall_s: int | None = Field(default=None, ge=1)
    cpu_s: int | None = Field(default=None, ge=1)
    memory_mib: int | None = Field(default=None, ge=16)
    disk_mib: int | None = Field(default=None, ge=1)
    output_mib: int | None = Field(default=None, ge=1)
    file_mib: int | None = Field(default=None, ge=1)
    open_files: int | None = Field(default=None, ge=32)


class ExecSettings(Model):
    """Enterprise switches that the rule file carries; they can tighten, never loosen."""

    deny_commands: tuple[str, ...] = ()
    allow_programs: tuple[str, ...] = ()
    strict_parsing: bool = False
    disabled_tools: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By role, agent id or `*`: names of tools, or `*` for all."""
    limits: dict[str, AgentLimits] = Field(default_factory=dict)
    """By agent id or `*`; the lower value holds where both name one."""
    runtimes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By agent id or `*`: the only runtimes that a sandbox has."""
    ask_above: Label | None = None
    """Commands in a session or workspace labelled higher wait for a person."""
