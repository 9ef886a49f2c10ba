"""The host of the fake."""

import os
import shutil
from collections.abc import AsyncIterator, Sequence

from coldframe.contract.command import CommandEvent, OutputChunk
from coldframe.contract.errors import GuestLost, NotFound
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.network import NetworkAccess
from coldframe.contract.pool import PoolStatus
from coldframe.contract.ports import BoxStatus
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import SnapshotPoint, WorkspacePoint
from coldframe.contract.volume import VolumeAttachment
from coldframe.host.history_tail import unseen
from tests.fakes.box import FakeBox, Seen, fake_report
from tests.fakes.network import FakeNetwork
from tests.fakes.snapshots import PARTS, FakeSnapshots
from tests.fakes.templates import FakeTemplates, place_of
from tests.fakes.volumes import FakeVolumes


class FakeHost(FakeNetwork):
    """`Host` over one directory. Keep the object and build control anew to play a restart of the server."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self.root = root
        self._seen = Seen()
        self.ran, self.asked = self._seen.ran, self._seen.asked
        self.unreachable: Exception | None = None
        """If set, raised instead of serving the life of boxes and workspaces."""
        self.snapshots = FakeSnapshots(root, self._in_use, self._check_reachable)
        self.templates = FakeTemplates(self._check_reachable)
        self.volumes = FakeVolumes(root, self._check_reachable)
        self.attached: dict[str, tuple[VolumeAttachment, ...]] = {}
        self._boxes: dict[str, FakeBox] = {}
        self.cached: set[str] = set()
        """Digests of files that the cache of packages has."""
        self._past: dict[str, FakeBox] = {}

    def _check_reachable(self) -> None:
        if self.unreachable is not None:
            raise self.unreachable

    def _in_use(self, workspace: str) -> bool:
        return any(box.workspace == workspace for box in self._boxes.values())

    async def cached_packages(self, digests: Sequence[str]) -> frozenset[str]:
        return frozenset(self.cached & set(digests))

    def workspace(self, agent_id: str) -> str:
        return os.path.join(self.root, "workspace", agent_id)

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
        self._check_reachable()
        before = self._past.pop(sandbox_id, None)
        assert anew is (before is not None)
        self.access[sandbox_id] = network
        self.attached[sandbox_id] = tuple(volumes)
        if spec.agent_id is not None and not spec.background:
            workspace = self.workspace(spec.agent_id)
        else:
            workspace = os.path.join(self.root, "background", session_id)
        if not os.path.isdir(workspace):
            point = None if spec.snapshot is None else SnapshotPoint(snapshot_id=spec.snapshot)
            self.snapshots.fill(workspace, None if point is None else self.snapshots.path(point))
        box = self._boxes[sandbox_id] = FakeBox(sandbox_id, spec, workspace, self._seen, self.forget)
        if before is not None:
            box.records = {**before.records, **before.commands}
        report = fake_report(spec)
        digest = spec.template.removeprefix("sha256:")
        if digest in self.templates.known:
            session = None if spec.agent_id is not None else session_id
            self.templates.on[place_of(WorkspacePoint(agent_id=spec.agent_id, session_id=session))] = digest
            report = report.model_copy(update={"template_sha256": digest})
        return report

    def _find(self, sandbox_id: str) -> FakeBox:
        if sandbox_id in self._boxes:
            return self._boxes[sandbox_id]
        if sandbox_id in self._past:
            raise GuestLost(f"sandbox `{sandbox_id}` ended", sandbox_id=sandbox_id)
        raise NotFound(f"no sandbox `{sandbox_id}`", sandbox_id=sandbox_id)

    async def box(self, sandbox_id: str) -> FakeBox:
        self._check_reachable()
        box = self._find(sandbox_id)
        if box.state == "lost":
            raise GuestLost(f"sandbox `{sandbox_id}` ended", sandbox_id=sandbox_id)
        return box

    async def life(self, sandbox_id: str) -> FakeBox:
        self._check_reachable()
        return self._find(sandbox_id)

    async def boxes(self) -> list[BoxStatus]:
        self._check_reachable()
        return [
            BoxStatus(sandbox_id=box.sandbox_id, state=box.state, created_at=box.created_at, owner=box.spec.agent_id)
            for box in self._boxes.values()
        ]

    async def stored(self, sandbox_id: str, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        box = self._boxes.get(sandbox_id) or self._past.get(sandbox_id)
        kept = {} if box is None else {**box.records, **box.commands}
        if command_id not in kept:
            raise NotFound(f"no command `{command_id}` of sandbox `{sandbox_id}`", command_id=command_id)
        events = list(kept[command_id].events)

        async def replay() -> AsyncIterator[CommandEvent]:
            for event in events:
                if not isinstance(event, OutputChunk) or event.seq > after_seq:
                    yield event

        return replay()

    async def forget_stored(self, sandbox_id: str, command_ids: Sequence[str] | None = None) -> None:
        self._check_reachable()
        box = self._boxes.get(sandbox_id) or self._past.get(sandbox_id)
        if box is not None:
            for one in {**box.records, **box.commands} if command_ids is None else command_ids:
                box.records.pop(one, None)
                box.commands.pop(one, None)

    async def create_workspace(self, agent_id: str) -> None:
        self._check_reachable()
        for part in PARTS:
            os.makedirs(os.path.join(self.workspace(agent_id), part), exist_ok=True)

    async def delete_workspace(self, agent_id: str) -> None:
        self._check_reachable()
        shutil.rmtree(self.workspace(agent_id), ignore_errors=True)

    async def append_history(self, owner: str, session_id: str | None, lines: bytes) -> None:
        self._check_reachable()
        home = (
            self.workspace(owner) if owner != "background" else os.path.join(self.root, "background", session_id or "")
        )
        os.makedirs(os.path.join(home, ".exec_history"), exist_ok=True)
        with open(os.path.join(home, ".exec_history", "history.jsonl"), "a+b") as file:
            file.write(unseen(file.fileno(), lines))

    async def moment(self) -> str:
        self._check_reachable()
        return "now"

    async def sweep(self, *, keep_boxes: set[str], keep_sessions: set[str], since: str | None = None) -> list[str]:
        self._check_reachable()
        removed = []
        for sandbox_id in [one for one in self._boxes if one not in keep_boxes]:
            box = self._boxes[sandbox_id]
            await box.end(keep_workspace=os.path.basename(box.workspace) in keep_sessions)
            removed.append(sandbox_id)
        background = os.path.join(self.root, "background")
        for session_id in os.listdir(background) if os.path.isdir(background) else []:
            if session_id not in keep_sessions:
                shutil.rmtree(os.path.join(background, session_id))
                removed.append(session_id)
        return removed

    async def pool(self) -> PoolStatus:
        return PoolStatus(size=0, ready=0, used=0, memory_bytes=0)

    async def doctor(self) -> IsolationReport:
        return fake_report()

    async def lose(self, sandbox_id: str) -> None:
        """End a box as if its keeper had been killed."""
        box = self._boxes[sandbox_id]
        for command in box.commands.values():
            await command.lose()
        box.state = "lost"

    def forget(self, sandbox_id: str) -> None:
        if sandbox_id in self._boxes:
            self._past[sandbox_id] = self._boxes.pop(sandbox_id)

    async def close(self) -> None:
        for box in [*self._boxes.values(), *self._past.values()]:
            for command in box.commands.values():
                await command.lose()
