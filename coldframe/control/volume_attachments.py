"""Which sandbox has which volume: who may, whether it is free, and how labels go through it.

An attachment follows the life of the box: it is there from the row of a sandbox that is about to be built until that is
stopped or has ended, whoever or whatever ended it, and nothing has to be given back.

Labels are carried without asking whether something was really read or written. Whoever has a volume is tainted as it is
labelled, from before its box is there. A volume that can be written to is labelled as high as the session and the workspace of
whoever has it, at any time: what they have seen may be in it a moment later. So a label that rises somewhere rises at once
wherever it may have gone.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, NotFound, VolumeBusy, next_action
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import ENDED, SandboxInfo, SandboxSpec
from coldframe.contract.volume import VolumeAttachment, VolumeMount
from coldframe.control.agents import Agents
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.store import Store
from coldframe.control.volume_rows import HOLDING, Use, VolumeRow, VolumeRows
from coldframe.policy.labels import join, parse


class VolumeAttachments:
    """Those of this installation."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        agents: Agents,
        sessions: Sessions,
        sandboxes: Sandboxes,
        judged: JudgedActs,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._agents = agents
        self._sessions = sessions
        self._sandboxes = sandboxes
        self._judged = judged
        self._clock = clock
        self._rows = VolumeRows(store)
        self._spreading = False
        self.written_at_rest: set[str] = set()
        """Ids of volumes that somebody writes to without a sandbox."""
        self.settle: Callable[[], Awaitable[None]] = _nobody_to_tell
        """Returns once every box that has a volume is labelled as high as it is here."""
        sessions.risen = self.spread
        sandboxes.risen = self.spread
        agents.risen = self.spread
        sandboxes.moved = self._note_end

    # -- asking --------------------------------------------------------------------------------

    def check(self, caller: Caller, spec: SandboxSpec) -> Label:
        """Return the label of all that *spec* asks for, if *caller* may have a sandbox with it.

        Raises:
            NotFound: there is no such volume.
            GrantMissing: nobody has granted it to that agent.
            Refused: a rule is against it.
        """
        label = Label.PUBLIC
        for wanted in spec.volumes:
            require(caller, "volume.attach")
            row = self._ready(wanted.name)
            _require_grant(caller, row, spec, wanted)
            inside = Label.PUBLIC if spec.agent_id is None else self._label_of_agent(spec.agent_id)
            self._judged.allow_with_volume(
                caller, "attach_volume", row.name, parse(row.label), agent_id=spec.agent_id, beside=inside
            )
            label = join(label, parse(row.label))
        return label

    def _label_of_agent(self, agent_id: str) -> Label:
        try:
            return self._agents.get(agent_id).workspace_label
        except NotFound:
            return Label.PUBLIC

    async def free(self, spec: SandboxSpec) -> None:
        """Return once nobody is taken for the holder of a volume of *spec* whose box is gone."""
        for wanted in spec.volumes:
            row = self._rows.find(wanted.name)
            for use in [] if row is None else self._rows.users(row.volume_id):
                if use.mode == wanted.mode == "rw" and use.now in HOLDING:
                    await self._sandboxes.check_alive(use.sandbox_id, "its box has ended")

    # -- having --------------------------------------------------------------------------------

    def claim(self, sandbox_id: str, spec: SandboxSpec, connection: sa.Connection, *, again: bool = False) -> None:
        """They are the sandbox's from now on, with all that follows for labels; in the transaction with its row.

        Raises:
            NotFound: one was removed meanwhile.
            VolumeBusy: another sandbox has one to write to.
        """
        if not spec.volumes:
            return
        for wanted in spec.volumes:
            row = self._ready(wanted.name)
            self._require_free(row, wanted, sandbox_id)
            if not again:
                self._rows.add_use(sandbox_id, row.volume_id, wanted.at, wanted.mode, connection)
        self.spread(connection)

    def note(self, info: SandboxInfo, by: str, connection: sa.Connection) -> None:
        """Record that the box of a sandbox stands, with its volumes."""
        if not info.spec.volumes:
            return
        self._rows.note_attached(info.sandbox_id, self._clock(), connection)
        for use in self._rows.of_sandbox(info.sandbox_id):
            self._record("volume.attached", use, connection, caller=by, session_id=info.session_id)

    def _note_end(self, info: SandboxInfo) -> None:
        """Of a sandbox that has no box any more, whatever ended it."""
        if not info.spec.volumes:
            return
        with self._store.transaction() as connection:
            for use in self._rows.of_sandbox(info.sandbox_id):
                if use.attached_at is not None:
                    self._record("volume.detached", use, connection)
            if self._sandboxes.find(info.sandbox_id).state.state in ENDED:
                self._rows.forget_sandbox(info.sandbox_id, connection)
            else:
                self._rows.note_attached(info.sandbox_id, None, connection)

    def _record(self, kind: str, use: Use, connection: sa.Connection, **more: str) -> None:
        row = self._rows.by_id(use.volume_id)
        if row is None:
            return
        body = {
            "volume_id": use.volume_id,
            "name": row.name,
            "label": row.label,
            "sandbox_id": use.sandbox_id,
            "agent_id": use.agent_id,
            "at": use.at,
            "mode": use.mode,
            **more,
        }
        self._ledger.append(kind, use.volume_id, body, connection=connection)

    def attachments(self, spec: SandboxSpec) -> tuple[VolumeAttachment, ...]:
        """What the host is told of them. Raises NotFound."""
        found = []
        for wanted in spec.volumes:
            row = self._ready(wanted.name)
            found.append(
                VolumeAttachment(
                    volume_id=row.volume_id,
                    name=row.name,
                    at=wanted.at,
                    mode=wanted.mode,
                    size_mib=row.size_mib,
                )
            )
        return tuple(found)

    def forget(self, sandbox_id: str, connection: sa.Connection) -> None:
        """One that never came to be, and has no row that could say it has ended."""
        self._rows.forget_sandbox(sandbox_id, connection)

    def forget_agent(self, agent_id: str, caller: Caller, connection: sa.Connection) -> None:
        """Take back what was granted to an agent that is deleted: another one of its name has nothing of it."""
        for row in self._rows.all("making", "ready"):
            kept = tuple(one for one in row.granted if one.agent_id != agent_id)
            if len(kept) == len(row.granted):
                continue
            self._rows.set_grants(row, kept, connection)
            body = {"volume_id": row.volume_id, "name": row.name, "revoked_of": agent_id, "caller": caller.name}
            self._ledger.append("volume.revoked", row.volume_id, body, connection=connection, durable=True)

    def _require_free(self, row: VolumeRow, wanted: VolumeMount, sandbox_id: str) -> None:
        if wanted.mode == "ro":
            return
        if row.volume_id in self.written_at_rest:
            raise written_now(row.name)
        holding = [one for one in self._rows.users(row.volume_id) if one.now in HOLDING and one.mode == "rw"]
        others = [one for one in holding if one.sandbox_id != sandbox_id]
        if others:
            raise busy(row.name, others)

    def _ready(self, name: str) -> VolumeRow:
        row = self._rows.find(name)
        if row is None or row.state != "ready":
            raise no_volume(name)
        return row

    # -- labels --------------------------------------------------------------------------------

    def spread(self, connection: sa.Connection) -> None:
        """Carry labels through volumes until nothing rises any more. Called wherever one has risen."""
        if self._spreading or not self._rows.are_used():
            return
        self._spreading = True
        try:
            while self._carry(connection):
                pass
        finally:
            self._spreading = False

    def _carry(self, connection: sa.Connection) -> bool:
        rose = False
        for use in self._rows.held():
            row = self._rows.by_id(use.volume_id)
            if row is None:
                continue
            info = self._sandboxes.find(use.sandbox_id)
            label = parse(row.label)
            open_sessions = [one for one in self._sessions.of_sandbox(use.sandbox_id) if one.closed_at is None]
            if use.mode == "rw":
                risen = join(label, info.workspace_label)
                for session in open_sessions:
                    risen = join(risen, session.taint)
                if risen is not label:
                    self._rows.change(use.volume_id, connection, label=risen.value)
                    body = {
                        "volume_id": use.volume_id,
                        "name": row.name,
                        "label_before": label,
                        "label_after": risen,
                        "sandbox_id": use.sandbox_id,
                        "agent_id": use.agent_id,
                    }
                    self._ledger.append("volume.label_raised", use.volume_id, body, connection=connection, durable=True)
                    label, rose = risen, True
            for session in open_sessions:
                if join(session.taint, label) is not session.taint:
                    self._sessions.raise_taint(session.session_id, label, connection=connection)
                    rose = True
            if join(info.workspace_label, label) is not info.workspace_label and self._sandboxes.has_its_agent(info):
                self._sandboxes.raise_workspace_label(info, label, connection=connection)
                rose = True
        return rose

    def holders(self) -> list[str]:
        """Sandboxes that have one now: whose labels may have risen with those of another."""
        return sorted({use.sandbox_id for use in self._rows.held()}) if self._rows.are_used() else []


async def _nobody_to_tell() -> None:
    return


def _require_grant(caller: Caller, row: VolumeRow, spec: SandboxSpec, wanted: VolumeMount) -> None:
    """Owner and admin, who could grant it, need no grant."""
    if caller.role in (Role.OWNER, Role.ADMIN):
        return
    agent_id = spec.agent_id or "background"
    if any(one.agent_id in ("*", agent_id) and (one.mode == "rw" or wanted.mode == "ro") for one in row.granted):
        return
    raise GrantMissing(
        f"the volume `{row.name}` is not granted to agent `{agent_id}` in mode `{wanted.mode}`",
        hint=f"have an owner or admin run `coldframe volume grant {row.name} {agent_id} --mode {wanted.mode}`",
        argument="volumes",
        volume=row.name,
        agent_id=agent_id,
    )


def no_volume(name: str) -> NotFound:
    return NotFound(
        f"no volume `{name[:80]}`",
        hint="`coldframe volume list` tells which there are",
        next_actions=[next_action("volume.list", "lists the volumes that are yours")],
        volume=name[:80],
    )


def written_now(name: str) -> VolumeBusy:
    """By somebody who needs no sandbox for it."""
    return VolumeBusy(
        f"somebody writes files to the volume `{name}` now",
        hint="ask again when that has ended",
        volume=name,
        holders=[],
    )


def busy(name: str, uses: list[Use]) -> VolumeBusy:
    told = ", ".join(f"sandbox `{one.sandbox_id}` ({one.mode}, {one.now})" for one in uses)
    return VolumeBusy(
        f"the volume `{name}` is attached to {told}",
        next_actions=[
            next_action("sandbox.terminate", "ends it, and the volume is free", sandbox_id=one.sandbox_id)
            for one in uses[:3]
        ],
        volume=name,
        holders=[one.holder.model_dump(mode="json") for one in uses],
    )
