"""Previews: ports of sandboxes that others may open in a browser, how each stands, and from what it can be made again."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import LONGEST_TIMER_S
from coldframe.contract.state import StateObject

LARGEST_PORT = 65_535
Port = Annotated[int, Field(ge=1, le=LARGEST_PORT)]
PreviewState = Literal["starting", "healthy", "unhealthy", "stopped", "asleep", "ended", "revoked", "expired"]
LOG_LINES = 50
"""Of the end of the log, in a state."""


def _path(value: str) -> str:
    if not value.startswith("/") or any(not "!" <= one <= "~" for one in value):
        raise ValueError("a path begins with a slash, and holds neither blanks nor control characters")
    return value


WebPath = Annotated[str, Field(max_length=2048), AfterValidator(_path)]
Line = Annotated[str, Field(min_length=1, max_length=32_768)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]


class ServerStart(Model):
    """What serves on the port: run as a job, judged and on record as whoever starts it."""

    command: Line | tuple[str, ...] = Field(min_length=1)
    """A line for bash, or a program with its arguments."""
    cwd: str = ""
    """Relative to the workspace."""
    user: Literal["user", "root"] = "user"
    env: dict[VariableName, str] = Field(default_factory=dict, max_length=256)
    """Given to it. Only the names are on record: who starts it again has to give them again."""
    ready_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """How long it may take until it answers."""


class PreviewRequest(Model):
    """Which port to share, and with whom."""

    port: Port
    name: str | None = Field(default=None, min_length=1, max_length=100)
    public: bool = False
    """Whoever knows the address may open it. Else it takes a link of one use, or the token."""
    up_to: Label | None = None
    """How high what it shows may be labelled: above that, visitors are refused, whatever they bring. None for the label that
    the session has now, and PUBLIC for a `public` one."""
    expires_in_s: float | None = Field(default=None, gt=0, le=LONGEST_TIMER_S)
    """None for as long as it is not revoked."""
    start: ServerStart | None = None
    """What to start. None for a server that runs or will run: the command that serves is found by its port."""
    setup: tuple[Line, ...] = Field(default=(), max_length=20)
    """Lines that make the workspace ready for it, as `npm ci`: run when it is rebuilt, and now where it has a `start`."""
    record: bool | None = None
    """Take a snapshot and the digests of what it is made from, so that it can be rebuilt elsewhere. None: where it has a
    `start` and this machine can take one of a sandbox that runs."""
    health_path: WebPath = "/"
    """What is asked for to see whether it serves: anything below status 500 does."""
    answer_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """How long a visitor waits for the beginning of an answer."""

    @model_validator(mode="after")
    def _is_shown_to_all(self) -> "PreviewRequest":
        if self.public and self.up_to not in (None, Label.PUBLIC):
            raise ValueError("a `public` preview shows what is labelled PUBLIC, and no more")
        return self


class PreviewChange(Model):
    """What is to be otherwise. What is not said stays."""

    end_links: bool = False
    """Links that were given open nothing any more, and browsers that came in by one, or by typing the token, are sent away."""

    public: bool | None = None
    up_to: Label | None = None
    expires_in_s: float | None = Field(default=None, gt=0, le=LONGEST_TIMER_S)
    record: bool = False
    """Record now from what it is made, so that it can be rebuilt elsewhere, if that is not on record yet: also where the server
    was started after its port was shared."""


class InputFile(Model):
    """A file that says which packages there are."""

    path: str
    sha256: str


class InputPackage(Model):
    """A package that was fetched."""

    manager: str
    name: str
    version: str
    sha256: str | None = None


class PreviewInputs(Model):
    """From what it was made, by digest: enough to make it again elsewhere."""

    snapshot_id: str
    """Of the workspace, before anything was set up in it or, without a `setup`, as it was served."""
    tree_sha256: str
    template: str
    template_sha256: str | None = None
    """None where the system was that of the machine."""
    files: tuple[InputFile, ...] = ()
    """Lock files and manifests."""
    packages: tuple[InputPackage, ...] = ()
    setup: tuple[str, ...] = ()
    start: ServerStart
    """Without the values of its variables."""
    environment: tuple[str, ...] = ()
    """Names of the variables that it was given."""
    credentials: tuple[str, ...] = ()
    """Names of the credentials that the sandbox could use."""
    network: str | None = None
    body_sha256: str | None = None
    """Of what it answered at `health_path` when it was recorded."""


class PreviewStatus(Model):
    """How the thing behind stands, looked at now."""

    state: PreviewState
    code: str | None = None
    """`PREVIEW_…`; None while it is healthy."""
    cause: str = ""
    """One sentence for people."""
    command_id: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    http_status: int | None = None
    """Of the answer at `health_path`."""
    ports: tuple[int, ...] = ()
    """Where its processes listen, if that is elsewhere."""
    log_lines: tuple[str, ...] = ()
    """The last LOG_LINES of what it has printed."""
    status: StateObject | None = None
    """The same as every object tells it, with what can be done."""
    checked_at: datetime


class PreviewInfo(Model):
    """One shared port."""

    preview_id: str
    sandbox_id: str
    """The sandbox that serves it now."""
    port: int
    """0 for every port of the sandbox that has no preview of its own."""
    name: str | None = None
    address: str
    """Its label: `PORT-ID`, below whatever domain leads here. It stays the same over restarts and rebuilds."""
    url: str | None = None
    """Where the edge of this installation has it; None for every port, and where there is no edge."""
    public: bool
    up_to: Label
    label: Label | None = None
    """Of what it would show now."""
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    command: str | None = None
    """What serves it, as far as that is on record."""
    command_id: str | None = None
    inputs: PreviewInputs | None = None
    """None: it cannot be rebuilt."""
    status: PreviewStatus | None = None
    """None in lists."""


class PreviewCreated(PreviewInfo):
    """With what is told once."""

    token: str | None = None
    """Opens it, sent as `Authorization: Bearer`, `Coldframe-Preview-Token` or `E2B-Traffic-Access-Token`. None for a public one."""


VisitorRole = Literal["viewer", "member"]


class PreviewLinkRequest(Model):
    """For whom a link is to be."""

    role: VisitorRole = "member"
    """A `viewer` looks: GET, HEAD and OPTIONS, and no web sockets. A `member` uses what it shows."""
    expires_in_s: float | None = Field(default=None, gt=0, le=LONGEST_TIMER_S)
    """How long after it is opened its browser is let in; None for as long as the preview lives, at most 30 days."""


class PreviewLink(Model):
    """Opens a preview in one browser, once."""

    url: str
    expires_at: datetime


class PreviewRebuild(Model):
    """Where to make it again."""

    sandbox_id: str | None = None
    """A sandbox whose workspace is empty; None for a new one."""
    agent_id: str | None = None
    """Of the new one; None for a temporary workspace."""
    env: dict[VariableName, str] = Field(default_factory=dict, max_length=256)
    """Values of the variables on record, which are not kept."""


class PreviewRebuilt(PreviewInfo):
    """Made again, and serving."""

    body_sha256: str | None = None
    body_same: bool | None = None
    """Whether it answers with the same bytes; None if it was not on record."""
