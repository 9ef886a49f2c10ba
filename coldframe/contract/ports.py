"""The three protocols at which control and the machine side meet.

`Box` runs and reads: the gate alone is handed one. `BoxLife` starts and ends: the lifecycle has it.
`Host` is one machine. A box behind a Ray actor, a privileged daemon behind a socket and a fake of the
tests all stand in the same place.
"""

from collections.abc import AsyncIterable, AsyncIterator
from datetime import datetime
from typing import Literal, Protocol, TypeVar

from coldframe.contract.command import CommandEvent, CommandSpec, Contact
from coldframe.contract.files import Request, WriteAnswer, WriteFile
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.model import Model
from coldframe.contract.sandbox import SandboxSpec

A = TypeVar("A", bound=Model)


class BoxStatus(Model):
    """What the host knows of one box."""

    sandbox_id: str
    state: Literal["running", "lost"]
    created_at: datetime
    owner: str | None
    """Agent id, or None for a background box."""


class Box(Protocol):
    """The live handle on one sandbox: a few streaming verbs plus `ask`, typed by its request."""

    sandbox_id: str

    def run(self, spec: CommandSpec) -> AsyncIterator[CommandEvent]:
        """Start a command and yield Started, OutputChunk …, Ended.

        Leaving the iterator early does not end the command. Starting an id that exists already
        attaches to it from its first chunk.

        Raises:
            GuestLost: the keeper ended under the call.
        """
        ...

    def follow(self, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        """Yield the events of a command, running or ended, from the chunk after *after_seq*."""
        ...

    async def ask(self, request: Request[A]) -> A:
        """Ask one question and return its answer."""
        ...

    async def write(self, request: WriteFile, content: AsyncIterable[bytes]) -> WriteAnswer:
        """Like asking a WriteFile, with content of any size streamed in. A broken stream changes nothing."""
        ...


class BoxLife(Protocol):
    """Beginning and end of one box. Never handed to a tool."""

    async def report(self) -> IsolationReport:
        """Measure the walls now."""
        ...

    async def contacts(self) -> list[Contact]:
        """Attempts to reach out that belong to no command that still runs."""
        ...

    async def end(self) -> None:
        """End the box and everything in it. Idempotent; returns when every process in it is gone, what holds
        it follows."""
        ...


class Host(Protocol):
    """One machine with its boxes and workspaces."""

    async def create(self, sandbox_id: str, spec: SandboxSpec, *, session_id: str) -> IsolationReport:
        """Build a box and measure it; nothing is left behind if a required wall is missing.

        Raises:
            IsolationUnavailable: with property, reason and remedy.
        """
        ...

    async def box(self, sandbox_id: str) -> Box:
        """The handle for the gate. Raises GuestLost if the box ended, NotFound if it never was."""
        ...

    async def life(self, sandbox_id: str) -> BoxLife: ...

    async def boxes(self) -> list[BoxStatus]:
        """Boxes of this installation that run, or ended without being asked to."""
        ...

    async def stored(self, sandbox_id: str, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        """Events of a command from disk alone, for a box that no longer runs. Ends without Ended if it was lost."""
        ...

    async def create_workspace(self, agent_id: str) -> None:
        """Make `workspace/<agent-id>/` with its four parts, or leave it as it is."""
        ...

    async def delete_workspace(self, agent_id: str) -> None:
        """Remove the workspace whole. Boxes on it must have ended."""
        ...

    async def append_history(self, owner: str, session_id: str | None, lines: bytes) -> None:
        """Append to the read-only projection `.exec_history`. *owner* is an agent id, or `background` with its session.

        Lines that are there already, given once more after a crash or a failure, are left out.
        """
        ...

    async def sweep(self, *, keep_boxes: set[str], keep_sessions: set[str]) -> list[str]:
        """Remove what belongs to this installation and to nothing in the lists. Returns what was removed."""
        ...

    async def doctor(self) -> IsolationReport:
        """Build a throw-away box and report on this machine."""
        ...

    async def close(self) -> None: ...
