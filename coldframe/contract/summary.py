"""What whoever goes on with a piece of work needs first, in a few kilobytes: files, what happened, what runs, what failed."""

from datetime import datetime

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.packages import PackageDrift
from coldframe.contract.policy import Label
from coldframe.contract.profile import Profile

MOST_BYTES = 8 * 1024
"""Of the whole as JSON."""
NOTES = ("NOTES.md", "scratch/NOTES.md", "notes.md", "TODO.md", "README.md")
"""Files that are looked for in this order; the first that is there is shown."""


class TreeEntry(Model):
    path: str
    """Relative to the workspace; a directory ends with a slash."""
    bytes: int | None = None
    """Of a file."""
    files: int | None = None
    """Of a directory whose content is not listed: how many files are below it, as far as they were looked at."""


class RecentChange(Model):
    path: str
    change: str
    at: datetime
    receipt_id: str
    """Of the call that did it."""
    session_id: str


class RunningCommand(Model):
    sandbox_id: str
    command_id: str
    command: str
    started_at: datetime
    ports: tuple[int, ...] = ()


class FailedCommand(Model):
    sandbox_id: str
    command_id: str
    command: str
    exit_code: int | None
    ended: str
    ended_at: datetime
    last_output: str
    """The end of its error stream, or of the other one."""
    passed_since: bool = False
    """The same command has exited with 0 since."""


class OpenPort(Model):
    port: int
    address: str
    command_id: str | None


class Notes(Model):
    path: str
    text: str
    complete: bool


class WorkspaceSummary(Model):
    """At most `MOST_BYTES` as JSON: what does not fit is left out from the longest part first, and `left_out` names what."""

    sandbox_id: str
    agent_id: str | None
    profile: Profile
    state: str
    at: datetime
    label: Label
    home: str = "/home/user"
    tree: tuple[TreeEntry, ...] = ()
    recent_changes: tuple[RecentChange, ...] = ()
    """The newest of each file first."""
    running: tuple[RunningCommand, ...] = ()
    failed: tuple[FailedCommand, ...] = ()
    """Those that failed last, the newest first."""
    ports: tuple[OpenPort, ...] = ()
    drift: tuple[PackageDrift, ...] = ()
    """Packages that came, went or changed since the template of its system, and since its newest snapshot."""
    notes: Notes | None = None
    contract: dict[str, str | int | bool | list[str] | None] = Field(default_factory=dict)
    """Essentials of the contract by their lines."""
    left_out: tuple[str, ...] = ()
    """Parts that are shorter than they could be, or not there because they could not be asked for, with the reason."""
