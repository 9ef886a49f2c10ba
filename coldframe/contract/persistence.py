"""What survives what: each item of a sandbox by each event that there is. The contract prints it, a test tries every cell.

Items and events that wait for what this version has not: a system layer and a home apart from the workspace, volumes,
previews, a browser's profile; reset, retention, and a restart of the machine, after which a sandbox is lost.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Event = Literal["command_ends", "server_restarts", "paused_and_resumed", "stopped_and_started", "sandbox_ends"]
EVENTS: tuple[Event, ...] = (
    "command_ends",
    "server_restarts",
    "paused_and_resumed",
    "stopped_and_started",
    "sandbox_ends",
)
"""Paused in kind `memory`; a pause in kind `files` is a stop."""


class Item(NamedTuple):
    what: str
    lost_at: frozenset[Event] = frozenset()
    """It is kept over the others."""
    is_workspace: bool = False
    """Lost with a temporary one."""


_MEMORY: frozenset[Event] = frozenset({"stopped_and_started", "sandbox_ends"})
ITEMS: Mapping[str, Item] = MappingProxyType(
    {
        "commits": Item("Saved repositories in the workspace", is_workspace=True),
        "tree": Item("Files of the workspace, uncommitted ones included", is_workspace=True),
        "dependencies": Item("Packages installed inside the workspace", is_workspace=True),
        "system": Item("System files outside the workspace, which are read-only"),
        "temporary": Item("Temporary files and shared memory", _MEMORY),
        "processes": Item("Processes left running by a command, with their memory and connections", _MEMORY),
        "records": Item("Output of commands, receipts, ledger"),
    }
)


def is_kept(item: str, event: Event, *, background: bool) -> bool:
    """Whether it is there afterwards, in a sandbox with the workspace of an agent or with a temporary one."""
    found = ITEMS[item]
    return event not in found.lost_at and not (background and found.is_workspace and event == "sandbox_ends")
