"""Resets: the files of a sandbox go back to a snapshot, or to nothing, and what they were is kept for a day.

One that runs is stopped for it and runs again afterwards, under the same id, with its network, session and limits; what
ran in it is gone. Its label and that of its workspace never fall by it, and are no lower than the snapshot's before its
files are there. Records stay.
"""

import contextlib
import sys
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    HostUnreachable,
    IsolationUnavailable,
    LedgerUnavailable,
    NotFound,
    WrongState,
    from_wire,
    next_action,
)
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import ENDED, WITH_BOX, Loss, SandboxInfo
from coldframe.contract.snapshot import (
    Change,
    ChangesPage,
    Part,
    ResetRequest,
    SandboxReset,
    SnapshotFacts,
    SnapshotInfo,
    SnapshotWish,
    SystemPoint,
)
from coldframe.contract.template import HOST
from coldframe.control.comparisons import TEMPLATE, Comparisons
from coldframe.control.gate import Gate
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.judgement import digest_of
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.snapshots import Key, Snapshots, new_act
from coldframe.control.store import Store
from coldframe.control.templates import Templates
from coldframe.policy.labels import join

MOST_SHOWN = 20_000
"""Paths that a dry run lists."""
MOST_STOPS = 3
"""Times that somebody may start it again before it is reset."""
RECORD = ".exec_history"
KEPT_FOLDERS = frozenset({"scratch", "integrations", "skills", RECORD})
"""What an empty workspace of an agent has: empty ones, and the record, which a reset leaves as it is."""


class Resets:
    """The act. Its right is `sandbox.reset`."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        sandboxes: Sandboxes,
        sessions: Sessions,
        keyed: KeyedCalls,
        snapshots: Snapshots,
        lifecycle: Lifecycle,
        judged: JudgedActs,
        gate: Gate,
        comparisons: Comparisons,
        templates: Templates,
        host: Host,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._keyed = keyed
        self._snapshots = snapshots
        self._lifecycle = lifecycle
        self._judged = judged
        self._gate = gate
        self._comparisons = comparisons
        self._templates = templates
        self._host = host

    async def reset(
        self, caller: Caller, sandbox_id: str, asked: ResetRequest, *, idempotency_key: str | None = None
    ) -> SandboxReset:
        """Take the files of a sandbox back; with a key that was used already, answer what came of it then.

        Raises:
            GrantMissing, NotFound: not the caller's, or no such snapshot.
            NotInProfile: it has no reset.
            Refused: a rule is against it.
            WrongState: it has ended, another sandbox runs on its workspace, or the system of the snapshot stands on a template that
                it could not start on. Nothing has changed.
            IsolationUnavailable: the system of its workspace could not go back with it. Nothing has changed.
            SnapshotCorrupt: nothing has changed, but what ran in it has ended.
            HostUnreachable: it may have been done, and stays stopped; the same call under its key tells, or the next start does.
        """
        self._judged.require_grant(caller, "sandbox.reset", "reset_sandbox", sandbox_id)
        info = self._sandboxes.get(caller, sandbox_id)
        self._judged.require_profile(caller, info, "reset_sandbox")
        target = None if asked.to == "empty" else self._snapshots.ready(caller, asked.to)
        self._check(info)
        label = Label.PUBLIC if target is None else target.label
        self._require_template(info, target)
        await self._require_whole(info)
        if asked.dry_run:
            return await self._look(caller, info, asked)
        request = {"operation": "sandbox.reset", "sandbox_id": sandbox_id, **asked.model_dump(mode="json")}
        key = None if idempotency_key is None else Key(caller, idempotency_key, digest_of(request))
        if (done := await self._done_before(info, asked, key)) is not None:
            return done
        decision, told = self._judged.allow(caller, info, "reset_sandbox", {"to": asked.to}, label=label)

        act_id = new_act()
        with self._store.transaction(durable=True) as connection:
            self._snapshots.open_key(key, act_id, connection)
            body = {**_body(info, act_id, asked), "caller": caller.name, "runs_again": self._runs_again(info), **told}
            self._ledger.append("sandbox.reset_begun", sandbox_id, body, connection=connection, durable=True)
        with contextlib.ExitStack() as making:
            making.enter_context(self._snapshots.making(act_id))
            act = self._reset(caller, sandbox_id, act_id, asked, join(label, decision.label), making.pop_all())
        return await self._snapshots.acts.whole(act)

    async def _reset(
        self,
        caller: Caller,
        sandbox_id: str,
        act_id: str,
        asked: ResetRequest,
        label: Label,
        making: contextlib.ExitStack,
    ) -> SandboxReset:
        with making:
            return await self._go_back(caller, sandbox_id, act_id, asked, label)

    async def _go_back(
        self, caller: Caller, sandbox_id: str, act_id: str, asked: ResetRequest, label: Label
    ) -> SandboxReset:
        runs_again = self._runs_again(self._sandboxes.find(sandbox_id))
        lost: tuple[Loss, ...] = ()
        try:
            for _ in range(MOST_STOPS):
                lost += (await self._lifecycle.stop(caller, sandbox_id)).lost
                async with self._sandboxes.turn(sandbox_id):
                    info = self._sandboxes.find(sandbox_id)
                    if info.state.state == "stopped":
                        kept = await self._change_files(caller, info, act_id, asked, label, lost)
                        break
            else:
                raise WrongState(f"sandbox `{sandbox_id}` is started again all the time", sandbox_id=sandbox_id)
        except ColdframeError as error:
            if not isinstance(error, HostUnreachable):  # else nobody knows, until the next start
                self._give_up(self._sandboxes.find(sandbox_id), act_id, asked, caller, error)
                if runs_again:
                    with contextlib.suppress(ColdframeError):  # it stays stopped, and says why
                        await self._lifecycle.start(caller, sandbox_id)
            raise
        if runs_again:
            with contextlib.suppress(ColdframeError):  # it is reset; that it is stopped, and why, its state says
                await self._lifecycle.start(caller, sandbox_id)
        return SandboxReset(**dict(self._sandboxes.find(sandbox_id)), lost=lost, kept=kept)

    async def _change_files(
        self,
        caller: Caller,
        info: SandboxInfo,
        act_id: str,
        asked: ResetRequest,
        label: Label,
        lost: tuple[Loss, ...],
    ) -> SnapshotInfo | None:
        self._sandboxes.require_its_agent(info)  # it may have been deleted meanwhile
        workspace = self._snapshots.workspace_of(info)
        session = self._sandboxes.session(info)
        with self._store.transaction(durable=True) as connection:
            # Before the files are there, and also if it should not be known whether they are.
            self._sessions.raise_taint(session.session_id, label, connection=connection)
            self._sandboxes.raise_workspace_label(info, label, connection=connection)
            if not asked.discard:
                wish = SnapshotWish(label=label, reason="discarded")
                self._snapshots.begin(act_id, info, wish, caller.name, None, connection)
        snapshot_id = None if asked.to == "empty" else asked.to
        facts = await self._host.snapshots.reset(workspace, snapshot_id, discard=asked.discard)
        try:
            return self._record(caller, info, act_id, asked, label, lost, facts)
        except LedgerUnavailable as error:
            raise HostUnreachable(
                f"sandbox `{info.sandbox_id}` was reset, which could not be recorded: {error.message}",
                hint="free disk space for the data directory; the next start of the server records it",
                sandbox_id=info.sandbox_id,
            ) from error

    def _record(
        self,
        caller: Caller,
        info: SandboxInfo,
        act_id: str,
        asked: ResetRequest,
        label: Label,
        lost: tuple[Loss, ...],
        facts: SnapshotFacts | None,
    ) -> SnapshotInfo | None:
        with self._store.transaction(durable=True) as connection:
            kept = None if facts is None else self._snapshots.finish(act_id, facts, "snapshot.taken")
            body = {
                **_body(info, act_id, asked),
                "caller": caller.name,
                "kept": None if kept is None else kept.snapshot_id,
                "label": label.value,
                "runs_again": self._runs_again(info),
            }
            self._ledger.append("sandbox.reset", info.sandbox_id, body, connection=connection, durable=True)
            result = {
                "kept": None if kept is None else kept.model_dump(mode="json"),
                "lost": [one.model_dump(mode="json") for one in lost],
            }
            self._keyed.close(act_id, result, connection=connection)
        return kept

    def _give_up(
        self, info: SandboxInfo, act_id: str, asked: ResetRequest, caller: Caller, error: ColdframeError
    ) -> None:
        """Its files are what they were."""
        self._snapshots.forget(act_id)
        body = {
            **_body(info, act_id, asked),
            "caller": caller.name,
            "code": error.code,
            "message": error.message,
        }
        self._ledger.append("sandbox.reset_failed", info.sandbox_id, body)

    def _check(self, info: SandboxInfo) -> None:
        if info.state.state in (*ENDED, "queued", "starting"):
            self._sandboxes.require_running(info)
        self._sandboxes.require_its_agent(info)
        if info.spec.ephemeral:
            raise WrongState(
                f"sandbox `{info.sandbox_id}` is ephemeral: it would end where another is stopped for a reset",
                hint="create another one",
                sandbox_id=info.sandbox_id,
            )
        for other in self._sandboxes.with_box():
            if other.sandbox_id != info.sandbox_id and info.agent_id is not None and other.agent_id == info.agent_id:
                raise WrongState(
                    f"sandbox `{other.sandbox_id}` runs on the same workspace",
                    hint="stop it first: a reset takes the files from under whatever uses them",
                    next_actions=[next_action("sandbox.stop", "ends its processes", sandbox_id=other.sandbox_id)],
                    sandbox_id=other.sandbox_id,
                )

    def _require_template(self, info: SandboxInfo, target: SnapshotInfo | None) -> None:
        """Else it would be reset, and never start again."""
        if target is None or target.system is None or info.spec.template == HOST:
            return
        if (other := self._templates.other_than(info.spec.template, target.system.template_sha256)) is not None:
            raise WrongState(
                f"the system of the snapshot began from `{other}`, and that of this sandbox from `{info.spec.template}`",
                hint=f"reset a sandbox of the agent that has the template `{other}`, or begin another agent with the snapshot",
                template=other,
            )

    async def _require_whole(self, info: SandboxInfo) -> None:
        """Ask before anything ends for it: the host refuses to take a workspace back without its system. One that is away
        refuses later."""
        workspace = self._snapshots.workspace_of(info)
        try:
            if await self._host.templates.begun(workspace) is None:
                return
            await self._host.snapshots.changes(SystemPoint(of=workspace), SystemPoint(of=None), limit=1)
        except HostUnreachable:
            return
        except NotFound:
            reason = "its system has no part in snapshots (it is one of subordinate ids), and could not go back together with it"
            remedy = "run the daemon as root, or fork a snapshot to another agent, whose system begins as the template"
            raise IsolationUnavailable(
                f"sandbox `{info.sandbox_id}` cannot be reset: {reason}",
                hint=remedy,
                property="snapshots",
                reason=reason,
                remedy=remedy,
            ) from None

    def _runs_again(self, info: SandboxInfo) -> bool:
        """Whether it runs; or did before a reset after which nobody has tried to start it yet."""
        if info.state.state in WITH_BOX:
            return True
        kinds = ("sandbox.reset_begun", "sandbox.reset", "sandbox.started", "sandbox.start_failed")
        last = self._ledger.last(info.sandbox_id, *kinds, before=sys.maxsize)
        return info.state.state == "stopped" and last is not None and bool(last.body.get("runs_again"))

    async def _settle(self, info: SandboxInfo, asked: ResetRequest, act_id: str) -> None:
        """One whose end nobody was told. If what was before is kept the host knows; if not, it did nothing yet. One that
        discards leaves no trace: while nothing has run on the workspace since, it can be done over, which changes nothing
        if it was done.

        Raises:
            HostUnreachable: the host is away still.
            WrongState: nobody will ever know.
        """
        if self._snapshots.row("act_id = ?", act_id) is not None:
            await self._snapshots.settle(act_id)
            return
        if asked.discard and self._has_run_since(info, act_id):
            raise WrongState(
                "what became of that reset is not known, and something has run on the workspace since",
                hint="look at the files of the sandbox; to reset it again use a new key",
                next_actions=[next_action("read_file", "shows what they are", sandbox_id=info.sandbox_id)],
                sandbox_id=info.sandbox_id,
            )
        self._snapshots.forget(act_id)

    def _has_run_since(self, info: SandboxInfo, act_id: str) -> bool:
        after = sys.maxsize
        while (begun := self._ledger.last(info.sandbox_id, "sandbox.reset_begun", before=after)) is not None:
            after = begun.seq
            if begun.body["act_id"] == act_id:
                break
        sandbox_id = info.sandbox_id if info.agent_id is None else None
        begun_again = ("sandbox.created", "sandbox.started")
        return bool(
            self._ledger.entries(after=after, limit=1, kinds=begun_again, sandbox_id=sandbox_id, agent_id=info.agent_id)
        )

    async def _done_before(self, info: SandboxInfo, asked: ResetRequest, key: Key | None) -> SandboxReset | None:
        while key is not None and (known := self._keyed.find(key.caller.token_id, key.text, key.digest)) is not None:
            if await self._snapshots.is_made(known.call_id):
                continue
            if known.result is None:
                await self._settle(info, asked, known.call_id)
                continue
            if self._runs_again(info := self._sandboxes.get(key.caller, info.sandbox_id)):
                with contextlib.suppress(ColdframeError):  # as it would have been, had nothing come between
                    await self._lifecycle.start(key.caller, info.sandbox_id)
            info = self._sandboxes.get(key.caller, info.sandbox_id)
            return SandboxReset.model_validate({**dict(info), **known.result})
        return None

    # -- looking first -------------------------------------------------------------------------------------------------

    async def _look(self, caller: Caller, info: SandboxInfo, asked: ResetRequest) -> SandboxReset:
        """What would be lost, and what would differ. That is looked up through the gate, like by anybody who looks."""
        lost = (await self._lifecycle.stop(caller, info.sandbox_id, dry_run=True)).lost
        if asked.to == "empty":
            page = await self._emptied(caller, info)
        else:
            page = await self._compared(caller, info.sandbox_id, asked.to)
        system: ChangesPage | None = None
        target = None if asked.to == "empty" else self._snapshots.ready(caller, asked.to)
        has_one = await self._host.templates.begun(self._snapshots.workspace_of(info)) is not None
        if has_one or (target is not None and target.system is not None):
            with contextlib.suppress(NotFound):  # one that has no part in snapshots
                to = TEMPLATE if asked.to == "empty" else asked.to
                system = await self._compared(caller, info.sandbox_id, to, part="system")
        return SandboxReset(**dict(info), lost=lost, changes=page, system_changes=system, dry_run=True)

    async def _compared(self, caller: Caller, sandbox_id: str, to: str, *, part: Part = "workspace") -> ChangesPage:
        """Page after page, each of which is a look of its own."""
        found = await self._comparisons.compare(caller, sandbox_id, to, part=part)
        changes = [*found.changes]
        while found.next_after is not None and len(changes) < MOST_SHOWN:
            found = await self._comparisons.compare(caller, sandbox_id, to, next_after=found.next_after, part=part)
            changes += found.changes
        return ChangesPage(changes=tuple(changes), next_after=found.next_after)

    async def _emptied(self, caller: Caller, info: SandboxInfo) -> ChangesPage:
        kept = KEPT_FOLDERS if info.agent_id is not None else {RECORD}
        arguments = {"path": "", "recursive": True, "max_entries": MOST_SHOWN + len(kept) + 1}
        listed = await self._gate.call(caller, info.sandbox_id, "list_directory", arguments)
        if listed.error is not None:
            raise from_wire(listed.error)
        gone = [
            Change(path=one["path"], change="deleted", kind=one["type"], bytes_before=one["size"], bytes_after=0)
            for one in listed.value["entries"]
            if one["path"] not in kept and not one["path"].startswith(f"{RECORD}/")
        ]
        more = gone[MOST_SHOWN - 1].path if len(gone) > MOST_SHOWN or not listed.value["complete"] else None
        return ChangesPage(changes=tuple(gone[:MOST_SHOWN]), next_after=more)


def _body(info: SandboxInfo, act_id: str, asked: ResetRequest) -> dict[str, Any]:
    return {
        "sandbox_id": info.sandbox_id,
        "agent_id": info.agent_id,
        "act_id": act_id,
        "to": asked.to,
        "discard": asked.discard,
    }
