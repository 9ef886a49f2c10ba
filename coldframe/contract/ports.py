"""The protocols at which control and the machine side meet.

`Box` runs and reads: the gate alone is handed one. `BoxLife` starts and ends: the lifecycle has it.
`Host` is one machine. A box behind a Ray actor, a privileged daemon behind a socket and a fake of the
tests all stand in the same place.
"""

import socket
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from datetime import datetime
from typing import Literal, Protocol, TypeVar

from coldframe.contract.command import CommandEvent, CommandSpec, Contact, EndedWith
from coldframe.contract.files import (
    AtStake,
    Done,
    MakeDirectory,
    RemovePath,
    Request,
    TemporaryPaths,
    WriteAnswer,
    WriteFile,
)
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.model import Model
from coldframe.contract.network import NetworkAccess, NetworkAnswer, NetworkNews, NetworkPage, NetworkQuestion
from coldframe.contract.paths import WritePath
from coldframe.contract.policy import Label
from coldframe.contract.pool import PoolStatus
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import (
    ChangesPage,
    Point,
    SnapshotContents,
    SnapshotFacts,
    SnapshotWish,
    WorkspacePoint,
)
from coldframe.contract.template import BuildEvent, BuildOrder, TemplateFacts
from coldframe.contract.volume import VolumeAttachment, VolumeUsage

A = TypeVar("A", bound=Model)


class BoxStatus(Model):
    """What the host knows of one box."""

    sandbox_id: str
    state: Literal["running", "paused", "lost"]
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

    async def write(self, request: WriteFile | WritePath, content: AsyncIterable[bytes]) -> WriteAnswer:
        """Like asking a WriteFile or WritePath, with content of any size streamed in. A broken stream changes nothing."""
        ...


class BoxLife(Protocol):
    """Beginning and end of one box. Never handed to a tool."""

    async def report(self) -> IsolationReport:
        """Measure the walls now."""
        ...

    async def contacts(self) -> list[Contact]:
        """Attempts to reach out that belong to no command that still runs."""
        ...

    async def pause(self) -> None:
        """Hold every process still until `resume`, across restarts of whoever asked. Files can be read meanwhile, and
        the time limits of commands stand still. Idempotent; returns when nothing in it runs.

        Raises:
            PauseKindUnsupported: this host cannot; nothing has changed.
            WrongState: a process could not be held; the box runs on.
        """
        ...

    async def resume(self) -> None:
        """Let it go on. Idempotent."""
        ...

    async def at_stake(self, ending: EndedWith | None = None, *, ends: bool = False) -> AtStake:
        """What its end would take away. With *ending*, commands that end with the box will tell that it ended so.

        *ends*: its processes are ended once they are counted, so that `end`, which has to follow, need not wait for it.
        """
        ...

    async def temporary(self, most: int) -> TemporaryPaths:
        """What lies in its memory file systems by name, which its end takes away as well."""
        ...

    async def connect(self, port: int) -> socket.socket:
        """A connected stream socket, which does not block, to what listens on that port inside the box on loopback: of
        127.0.0.1 and ::1 the first that takes it. It is the caller's to close, and outlives whoever carried the request.

        A paused box takes connections as well, and answers when it goes on.

        Raises:
            PreviewNotListening: nobody does. PreviewUnhealthy: its queue is full. GuestLost.
        """
        ...

    async def end(self, *, keep_workspace: bool = False) -> None:
        """End the box and everything in it, with a temporary workspace unless it is to be kept. Idempotent; returns
        when every process in it is gone, what holds it follows."""
        ...


class Snapshots(Protocol):
    """Points of time of the workspaces of one machine. What may be done with them is judged elsewhere."""

    async def take(self, workspace: WorkspacePoint, wish: SnapshotWish) -> SnapshotFacts:
        """Of a workspace, in use or not. Boxes on it stand still meanwhile, paused ones stay so.

        Raises:
            NotFound: there is no such workspace.
            WrongState: something is done to the workspace, or a process could not be held.
            LimitReached: no room; nothing is left of it.
        """
        ...

    async def reset(
        self, workspace: WorkspacePoint, snapshot_id: str | None, *, discard: bool = False
    ) -> SnapshotFacts | None:
        """Take a workspace back to a snapshot, or to how it was made without one. Boxes on it must have ended.

        Returns what it was like before, kept for a day; None if *discard*. Killed anywhere, it was done or it was not.

        Raises:
            NotFound, WrongState: a box is on it. SnapshotCorrupt: before anything has changed.
        """
        ...

    async def all(self) -> list[SnapshotFacts]:
        """Those that are there and whole."""
        ...

    async def remove(self, snapshot_id: str) -> None:
        """Forget one; workspaces that go on from it keep what they need. Nothing happens if there is none."""
        ...

    async def changes(self, before: Point, after: Point, *, after_path: str | None = None, limit: int) -> ChangesPage:
        """What differs, a page at a time. Nothing is started for it. Raises NotFound, SnapshotCorrupt."""
        ...

    async def ask(self, point: Point, request: Request[A]) -> A:
        """Answer ListDirectory, ReadFile and SearchFiles as the box would, without one: nothing is started, and
        links never lead out of the tree. Raises what the box raises for these; InvalidArgument for other requests."""
        ...

    def export(self, point: Point) -> AsyncIterator[bytes | SnapshotContents]:
        """One tar in parts, and last what it holds."""
        ...

    async def take_in(
        self,
        content: AsyncIterable[bytes],
        wish: SnapshotWish,
        *,
        most_bytes: int,
        most_files: int,
        expected: str | None = None,
    ) -> tuple[SnapshotFacts, SnapshotContents]:
        """A snapshot of an archive, or nothing at all. Its label is the higher one of the archive's and the wish's.

        *expected* is the digest that the export told. Raises SnapshotCorrupt, LimitReached.
        """
        ...


class Templates(Protocol):
    """Systems that boxes begin from, on one machine. Who may build and use them, and their names, is settled elsewhere."""

    async def missing_inputs(self, digests: Sequence[str]) -> tuple[str, ...]:
        """Which of these bytes have not been put here. Those that are stay for an hour from now on at least."""
        ...

    async def put_input(self, sha256: str, content: AsyncIterable[bytes], *, most_bytes: int) -> int:
        """Keep bytes for builds under their digest; returns how many. A broken stream leaves nothing.

        Raises:
            InvalidArgument: they have another digest. TooLarge. LimitReached: no room.
        """
        ...

    def build(self, order: BuildOrder) -> AsyncIterator[BuildEvent]:
        """Carry out a recipe: lines and ends of steps as they come, and last the template, which may be one that was there.

        Leaving the iterator early ends the build, and so does the end of whoever asked; whole steps stay for the next.

        Raises:
            BuildFailed: a step did, with its number and the end of its log in its facts.
            DependencyMissing: a version that is asked for is not to be had; the nearest ones are in its facts.
            InvalidArgument: an input was not put here, or an archive is none. IsolationUnavailable. LimitReached: no room.
            NotFound: no such base or snapshot. SnapshotCorrupt, TemplateChanged: what it begins from is not what it was.
        """
        ...

    async def reached(self) -> tuple[str, ...]:
        """Names of boxes of steps (`step_box_of`) of which there are records of the network: they are read and forgotten like
        those of sandboxes."""
        ...

    async def digests(self) -> set[str]:
        """Of those that are there, with all that they stand on. Nothing in them is looked at."""
        ...

    async def get(self, digest: str) -> TemplateFacts:
        """Raises NotFound; TemplateChanged: what is on record of it is not what was written."""
        ...

    async def begun(self, workspace: WorkspacePoint) -> str | None:
        """Digest of the template from which the system of a workspace began; None if it has none of its own yet."""
        ...

    async def verify(self, digest: str) -> None:
        """Read all of it. Raises TemplateChanged if it is not what was built, NotFound."""
        ...

    async def remove(self, digest: str) -> None:
        """Forget one. Nothing happens if there is none.

        Raises WrongState: a workspace or another template stands on it; `used_by` of its facts names them.
        """
        ...


class Volumes(Protocol):
    """Durable directories of one machine, by their ids. Who may have one, and how, is judged elsewhere."""

    async def create(self, volume_id: str, size_mib: int) -> None:
        """Make one whole or not at all; one that is there is left as it is. Raises IsolationUnavailable."""
        ...

    async def remove(self, volume_id: str) -> None:
        """Remove it for good; nothing happens if there is none. Raises VolumeBusy: a box has it."""
        ...

    async def usage(self, volume_id: str, size_mib: int) -> VolumeUsage:
        """Count what is in it now. Raises NotFound."""
        ...

    async def ask(self, volume_id: str, request: Request[A]) -> A:
        """Answer ListDirectory, ReadFile and SearchFiles without a box, as `Snapshots.ask` does."""
        ...

    async def write(
        self, volume_id: str, request: WriteFile, content: AsyncIterable[bytes], *, size_mib: int
    ) -> WriteAnswer:
        """Replace a file atomically, without a box. A broken stream changes nothing. Raises DiskFull."""
        ...

    async def remove_path(self, volume_id: str, request: RemovePath) -> Done:
        """Remove a file without a box; links never lead out of the volume."""
        ...

    async def make_directory(self, volume_id: str, request: MakeDirectory, *, size_mib: int) -> Done:
        """Make a directory and those above it, likewise; one that is there stays. Raises DiskFull."""
        ...


class Host(Protocol):
    """One machine with its boxes and workspaces."""

    @property
    def snapshots(self) -> Snapshots: ...

    @property
    def templates(self) -> Templates: ...

    @property
    def volumes(self) -> Volumes: ...

    async def create(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        *,
        session_id: str,
        network: NetworkAccess | None = None,
        anew: bool = False,
        volumes: Sequence[VolumeAttachment] = (),
    ) -> IsolationReport:
        """Build a box and measure it; nothing is left behind if a required wall is missing.

        Without *network* the box has no way out, whatever the rules say later. *anew*: there was one of that id, whose
        records and temporary workspace were kept, and are in any case. A workspace that is not there is made: of the
        snapshot that the spec names, or empty. A `template` by name is the newest of that name; one by digest is that one,
        and refused if the system of the workspace began from another. *volumes* are those that the spec names, found
        and allowed.

        Raises:
            IsolationUnavailable: with property, reason and remedy.
            TemplateChanged: the template is not what was built. WrongState: the workspace began from another one.
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

    async def forget_stored(self, sandbox_id: str, command_ids: Sequence[str] | None = None) -> None:
        """Remove what is kept of these commands, which have ended; or all of a sandbox that has no box. Idempotent.

        Raises WrongState: it has one.
        """
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

    async def moment(self) -> str:
        """A word for now, to be given to one `sweep`."""
        ...

    async def sweep(self, *, keep_boxes: set[str], keep_sessions: set[str], since: str | None = None) -> list[str]:
        """Remove what belongs to this installation and to nothing in the lists. Returns what was removed.

        What was begun after the moment *since* is left alone: lists that were made after it may be older than that. With a
        moment that this host does not know any more, nothing is removed.
        """
        ...

    async def pool(self) -> PoolStatus:
        """The boxes that wait for the next sandboxes."""
        ...

    async def doctor(self) -> IsolationReport:
        """Build a throw-away box and report on this machine."""
        ...

    async def use_network_rules(self, text: str) -> None:
        """Judge by the section `network` of this rule file from now on, connections that are open included.

        A host that was started again serves no box until it was told this, and `raise_taint` or `renew_session` of that
        box: meanwhile its connections wait, and nothing leaves. So both are to be told whenever `network_events` is begun.

        Raises RulesInvalid: nothing has changed then.
        """
        ...

    async def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        """The session of the box is labelled *taint* at least. What may not go on is ended when this returns.

        Nothing happens for a box without network.
        """
        ...

    async def renew_session(self, sandbox_id: str, taint: Label) -> None:
        """The box has a new session, labelled *taint*. Every connection of the old one is ended when this returns."""
        ...

    def network_events(self) -> AsyncIterator[NetworkQuestion | NetworkNews]:
        """What waits for an answer, and news of what was recorded, as it happens. One reader at a time: a new one takes over,
        with the questions that nobody has answered yet.

        Without a reader every question is denied. Raises HostUnreachable when the host is gone.
        """
        ...

    async def answer(self, question_id: str, answer: NetworkAnswer) -> None:
        """Answer a question. Nothing happens if nobody waits for it any more."""
        ...

    async def withdraw_credential(self, name: str) -> None:
        """Break off what was sent with the credential of that name and is not answered whole, when this returns."""
        ...

    async def network_records(self, sandbox_id: str, *, after_seq: int = 0, limit: int = 1000) -> NetworkPage:
        """What is on record of a sandbox, also after its end, from the one behind *after_seq*. Empty if there is nothing."""
        ...

    async def cached_packages(self, digests: Sequence[str]) -> frozenset[str]:
        """Of files of packages by their digests, as `sha256:…`, those that the cache of packages has."""
        ...

    async def forget_network_records(self, sandbox_id: str) -> None:
        """Remove the record of a sandbox that has ended."""
        ...

    async def close(self) -> None: ...
