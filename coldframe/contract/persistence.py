"""What survives what: each item of a sandbox by each event that there is. The contract prints it, a test tries every cell.

Fourteen items, told apart by whom they belong to, where they are seen inside, and how long they live. Those that a
sandbox has not are in the table too, and say so. Events that wait: retention, and a restart of the machine, after
which a sandbox is lost.
"""

import posixpath
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.profile import Profile, has

Event = Literal[
    "command_ends",
    "preview_stopped",
    "server_restarts",
    "paused_and_resumed",
    "stopped_and_started",
    "reset",
    "sandbox_ends",
]
EVENTS: tuple[Event, ...] = (
    "command_ends",
    "preview_stopped",
    "server_restarts",
    "paused_and_resumed",
    "stopped_and_started",
    "reset",
    "sandbox_ends",
)
"""Paused in kind `memory`; a pause in kind `files` is a stop. Reset to `empty`: to a snapshot, what is in that is there. A
preview that is stopped loses its own server, and no other process."""
Owner = Literal["workspace", "sandbox", "host", "tenant"]
"""`tenant` is the installation: this version has one tenant."""
Fate = Literal["kept", "lost", "revoked"]

HOME = "/home/user"
MOST_PATH_CHARACTERS = 4096


class Item(NamedTuple):
    what: str
    owner: Owner
    places: tuple[str, ...]
    """Where it is seen inside; empty for what is not in there."""
    lifetime: str
    lost_at: frozenset[Event] = frozenset()
    """It is kept over the others."""
    is_workspace: bool = False
    """Lost with a temporary one."""


_MEMORY: frozenset[Event] = frozenset({"stopped_and_started", "reset", "sandbox_ends"})
_AGENT = "until its agent is deleted"
_FOR_EVER = "until the installation is removed"
_STOP = "until it stops"
ITEMS: Mapping[str, Item] = MappingProxyType(
    {
        "commits": Item("Saved repositories in the workspace", "workspace", ("**/.git",), _AGENT, is_workspace=True),
        "tree": Item(
            "Files of the workspace, uncommitted ones included", "workspace", (HOME,), _AGENT, is_workspace=True
        ),
        "dependencies": Item(
            "Packages installed inside the workspace",
            "workspace",
            ("**/node_modules", "**/site-packages", "**/.venv", "**/venv"),
            _AGENT,
            is_workspace=True,
        ),
        "system": Item(
            "System files outside the workspace, which are read-only", "host", ("/",), "as long as the host's"
        ),
        "home": Item(
            "Settings and caches of tools in the home folder, which is the workspace",
            "workspace",
            (f"{HOME}/.*",),
            _AGENT,
            is_workspace=True,
        ),
        "temporary": Item("Temporary files and shared memory", "sandbox", ("/tmp", "/dev/shm"), _STOP, _MEMORY),  # noqa: S108
        "cache": Item("Packages fetched for all sandboxes, kept outside of them", "host", (), "until it is purged"),
        "volume": Item(
            "Volumes that it has; no snapshot holds them, and a reset leaves them",
            "tenant",
            (),
            "until the volume is removed",
        ),
        "processes": Item(
            "Processes left running by a command, with their memory and connections",
            "sandbox",
            ("/proc",),
            _STOP,
            _MEMORY,
        ),
        "preview": Item(
            "Addresses of previews, with what they can be made from again",
            "tenant",
            (),
            "until it is revoked, or its time is over",
        ),
        "browser": Item(
            "Profiles of browsers in the home folder: cookies and storage",
            "workspace",
            (f"{HOME}/.config/chromium", f"{HOME}/.config/google-chrome", f"{HOME}/.mozilla"),
            _AGENT,
            is_workspace=True,
        ),
        "grants": Item(
            "Handles of brokered credentials",
            "tenant",
            (),
            "until the credential expires or is revoked",
            frozenset({"sandbox_ends"}),
        ),
        "records": Item("Output of commands, and receipts", "tenant", (f"{HOME}/.exec_history",), _FOR_EVER),
        "audit": Item("The ledger", "tenant", (), _FOR_EVER),
    }
)


_OWN_SYSTEM = Item(
    "System files outside the workspace, which root of the sandbox may change",
    "workspace",
    ("/",),
    _AGENT,
    is_workspace=True,
)


def items_of(profile: str) -> Mapping[str, Item]:
    """Those of a sandbox of that profile: the system of a computer is its own, and goes with the workspace."""
    return {**ITEMS, "system": _OWN_SYSTEM} if profile == "computer" else ITEMS


def is_there(item: str, *, profile: Profile, has_network: bool, has_volumes: bool) -> bool:
    """Whether a sandbox has it at all."""
    if item == "grants":
        return has_network
    if item == "preview":
        return has(profile, "ports")
    return item != "volume" or has_volumes


def fate(item: str, event: Event, *, background: bool, ephemeral: bool = False, profile: str = "workspace") -> Fate:
    """What becomes of it, in a sandbox with the workspace of an agent or with a temporary one."""
    if ephemeral and event == "stopped_and_started":  # it ends, and does not start again
        event = "sandbox_ends"
    found = items_of(profile)[item]
    if event in found.lost_at:
        return "revoked" if item == "grants" else "lost"
    if event == "reset":
        return "lost" if found.is_workspace else "kept"
    return "lost" if background and found.is_workspace and event == "sandbox_ends" else "kept"


def owner_of(item: str, *, background: bool, profile: str = "workspace") -> Owner:
    """A temporary workspace is its sandbox's own."""
    found = items_of(profile)[item]
    return "sandbox" if background and found.is_workspace else found.owner


def lifetime_of(item: str, *, background: bool, profile: str = "workspace") -> str:
    found = items_of(profile)[item]
    return "until the sandbox ends" if background and found.is_workspace else found.lifetime


def item_of(path: str) -> str:
    """The item that a place of the workspace belongs to; *path* is relative to it, without `..`.

    The first part of the path that says something decides: what lies in a repository inside of an installed package is a
    dependency.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if parts[:1] == [".exec_history"]:
        return "records"
    here = posixpath.join(HOME, *parts)
    if any(here == place or here.startswith(f"{place}/") for place in ITEMS["browser"].places):
        return "browser"
    for part in parts:
        if part == ".git":
            return "commits"
        if f"**/{part}" in ITEMS["dependencies"].places:
            return "dependencies"
    return "home" if parts and parts[0].startswith(".") else "tree"


class ItemNow(Model):
    """One row of the table of a sandbox, and how much of it there is."""

    item: str
    what: str
    exists: bool
    """False for what this sandbox has not."""
    owner: Owner
    places: tuple[str, ...]
    """As seen inside; empty for what is not in there."""
    lifetime: str
    count: int | None = None
    """Files, processes, handles, entries. None where it is not known, as of files while nothing runs."""
    bytes: int | None = None
    complete: bool = True
    """False if there was more than could be counted."""
    events: dict[str, Fate] = Field(default_factory=dict)
    """Empty for what is not there."""


class Whereabouts(Model):
    """What a path inside belongs to."""

    path: str
    """Absolute, without `.` and `..`; links are not followed."""
    item: str
    what: str
    owner: Owner
    lifetime: str
    writable: bool
    """By its mount; the mode of the file may forbid it."""
    mounted_at: str
    """The mount that it lies in."""
    events: dict[str, Fate]
