"""The end of a sandbox as somebody asks for it: looked at first, and refused where it would lose work that no commit has.

A temporary workspace goes with its sandbox. What in it is a Git repository with changes that are in no commit is told by name,
unless whoever ends it says that it may go, or has a snapshot of it taken. A dry run lists exactly what goes and what stays;
that look is judged and recorded like any listing of files.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from pydantic import StrictBool, StrictInt

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    HostUnreachable,
    NotFound,
    UnsavedWork,
    WrongState,
    from_wire,
    next_action,
)
from coldframe.contract.files import FindUnsaved, ListAnswer, ListDirectory, TemporaryPaths, UnsavedAnswer
from coldframe.contract.persistence import HOME, Event, fate, is_there, item_of, items_of
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import ENDED, WITH_BOX, Loss, PathsAtEnd, SandboxEnd, SandboxInfo
from coldframe.contract.snapshot import SnapshotPlan, SnapshotRequest, SystemPoint
from coldframe.control.at_rest import AtRest, View
from coldframe.control.gate import Gate
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshots import Snapshots
from coldframe.policy.labels import join
from coldframe.tools.registry import Answer, Arguments, CallFacts, Ran, ToolCall, ToolSpec, shown_path

RECORD = ".exec_history"
MOST_PATHS = 100_000
MOST_NAMED = 1000
"""Files that a refusal names."""
MOST_LOOKS = 4
"""A label can rise three times meanwhile."""
LOOK_S = 15.0
"""Before an end, for a host that may hang."""
_NO_FILES = ("queued", "starting", "failed", "terminated", "lost")
"""Of a temporary workspace: it is not there yet, or not any more."""


class LookArguments(Arguments):
    files: StrictBool = False
    temporary: StrictBool = False
    unsaved: StrictBool = False
    system: StrictBool = False
    most: StrictInt = MOST_PATHS

    def facts(self) -> CallFacts:
        return CallFacts(path="", more_paths=("/",) if self.system else ())


class LookAnswer(Answer):
    files: tuple[tuple[str, int], ...] = ()
    """Paths, and sizes in bytes."""
    temporary: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    """What the system of its own has that its template has not, or has otherwise."""
    complete: bool = True
    unsaved: tuple[str, ...] = ()
    unsaved_total: int = 0


class Endings:
    """Stop, termination and the plan of a snapshot, with what they take and leave."""

    def __init__(
        self, ledger: Ledger, sandboxes: Sandboxes, snapshots: Snapshots, lifecycle: Lifecycle, gate: Gate, host: Host
    ) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._lifecycle = lifecycle
        self._gate = gate
        self._host = host

    async def stop(self, caller: Caller, sandbox_id: str, *, dry_run: bool = False) -> SandboxEnd:
        """As `Lifecycle.stop`. With *dry_run* every path is told that would go or stay. An ephemeral one ends, so for it
        this is what `terminate` is."""
        require(caller, "sandbox.stop")  # before anything is said of it
        info = self._sandboxes.get(caller, sandbox_id)
        if info.spec.ephemeral and not dry_run:
            await self._check_saved(caller, info)
        end = await self._lifecycle.stop(caller, sandbox_id, dry_run=dry_run)
        return await self._with_paths(caller, info, end, "stopped_and_started") if dry_run else end

    async def terminate(
        self, caller: Caller, sandbox_id: str, *, dry_run: bool = False, discard: bool = False, snapshot: bool = False
    ) -> SandboxEnd:
        """As `Lifecycle.terminate`. *snapshot*: one of its files is taken before. *discard*: they may go.

        Raises:
            UnsavedWork: a temporary workspace has work that no commit has, and neither was said. Nothing has changed.
            And what `Lifecycle.terminate` and `Snapshots.take` raise.
        """
        require(caller, "sandbox.terminate")  # before anything is done
        info = self._sandboxes.get(caller, sandbox_id)
        if dry_run:
            end = await self._lifecycle.terminate(caller, sandbox_id, dry_run=True)
            return await self._with_paths(caller, info, end, "sandbox_ends")
        snapshot_id = None
        if snapshot:
            if info.state.state not in ENDED:
                asked = SnapshotRequest(name=f"end of {sandbox_id}")
                snapshot_id = (await self._snapshots.take(caller, sandbox_id, asked)).snapshot_id
        elif not discard:
            await self._check_saved(caller, info)
        ended = await self._lifecycle.terminate(caller, sandbox_id)
        return ended if snapshot_id is None else ended.model_copy(update={"snapshot_id": snapshot_id})

    async def plan_snapshot(self, caller: Caller, sandbox_id: str) -> SnapshotPlan:
        """What one taken now would have and leave out, path by path. Raises GrantMissing, NotFound, Refused, WrongState."""
        require(caller, "snapshot.take")
        info = self._sandboxes.get(caller, sandbox_id)
        self._sandboxes.require_readable(info)
        found, label = await self._look(caller, info, LookArguments(files=True, temporary=info.state.state in WITH_BOX))
        kept = _weighed(info, found)
        left = [
            Loss(item=name, what=f"{item.what}.")
            for name, item in items_of(info.spec.profile).items()
            if _has(info, name) and name not in {one.item for one in kept}
        ]
        return SnapshotPlan(
            paths=tuple(path for path, _ in found.files),
            temporary=found.temporary,
            bytes=sum(size for _, size in found.files),
            complete=found.complete,
            kept=kept,
            left_out=tuple(left),
            label=label,
        )

    # -- work that no commit has -----------------------------------------------------------------------------------------

    async def _check_saved(self, caller: Caller, info: SandboxInfo) -> None:
        if not self._loses_files(info):
            return
        try:
            async with asyncio.timeout(LOOK_S):
                found = await self._host.snapshots.ask(self._snapshots.workspace_of(info), FindUnsaved(most=1))
        except TimeoutError:
            reason = f"its files gave no answer within {LOOK_S:g} s, as where a file system of theirs hangs"
            self._refuse(caller, info, LookAnswer(complete=False), reason, could_look=False)
        except NotFound:
            return  # there is no workspace any more
        except HostUnreachable:
            raise  # it cannot be ended either: asked again later, both can be done
        except ColdframeError as error:
            reason = f"it could not be looked at: {error.message}"
            self._refuse(caller, info, LookAnswer(complete=False), reason, could_look=False)
        if found.total == 0 and found.looked_everywhere:
            return
        told, reason = LookAnswer(unsaved_total=found.total, complete=False), ""
        try:  # by name only to who may see the names
            told, _ = await self._look(caller, info, LookArguments(unsaved=True, most=MOST_NAMED))
        except ColdframeError as error:
            reason = f"you are not told which: {error.message}"
        if not found.looked_everywhere:
            reason = "not all of it could be looked at, or not in time"
        self._refuse(caller, info, told, reason)

    def _refuse(
        self, caller: Caller, info: SandboxInfo, found: LookAnswer, reason: str, *, could_look: bool = True
    ) -> NoReturn:
        named = ", ".join(f"`{path}`" for path in found.unsaved[:3])
        would = "would lose" if could_look else "may lose"
        text = f"the end of sandbox `{info.sandbox_id}` {would} work that is in no commit"
        if found.unsaved_total:
            text += f": {found.unsaved_total} files" + (f", as {named}" if named else "")
        text += f" ({reason})" if reason else ""
        body = {
            "sandbox_id": info.sandbox_id,
            "agent_id": info.agent_id,
            "caller": caller.name,
            "code": UnsavedWork.code,
            "files": found.unsaved_total,
        }
        self._ledger.append("sandbox.end_refused", info.sandbox_id, body)
        # A snapshot reads the same files, so it is no way out where they do not answer.
        gone = next_action(
            "sandbox.terminate",
            "ends it without a look, and its files with it",
            discard=True,
            sandbox_id=info.sandbox_id,
        )
        look = next_action("sandbox.get", "tells how it stands; later its files may answer", sandbox_id=info.sandbox_id)
        raise UnsavedWork(
            text,
            hint=None if could_look else "ask again later, or say `discard` if nothing in it is needed any more",
            next_actions=None if could_look else [look, gone],
            sandbox_id=info.sandbox_id,
            files=list(found.unsaved),
            total=found.unsaved_total,
            complete=found.complete and found.unsaved_total == len(found.unsaved),
        )

    def _loses_files(self, info: SandboxInfo) -> bool:
        return info.spec.background and info.state.state not in _NO_FILES

    # -- looking ---------------------------------------------------------------------------------------------------------

    async def _with_paths(self, caller: Caller, info: SandboxInfo, end: SandboxEnd, event: Event) -> SandboxEnd:
        """With every path and item that goes or stays."""
        spec = info.spec
        if spec.ephemeral:
            event = "sandbox_ends"
        has_files = info.state.state not in _NO_FILES if spec.background else self._sandboxes.has_its_agent(info)
        goes = spec.background and event == "sandbox_ends"
        found = LookAnswer()
        if has_files:
            has_system = await self._host.templates.begun(self._snapshots.workspace_of(info)) is not None
            with_box = info.state.state in WITH_BOX
            asked = LookArguments(files=True, temporary=with_box, unsaved=goes, system=has_system)
            found, _ = await self._look(caller, info, asked)
        files = (*(f"{HOME}/{path}" for path, _ in found.files), *found.system)
        paths = PathsAtEnd(
            lost=(*(files if goes else ()), *found.temporary), kept=() if goes else files, complete=found.complete
        )
        weighed = {one.item: one for one in _weighed(info, found)}
        kept = []
        for name, item in items_of(spec.profile).items():
            fares = fate(name, event, background=spec.background, ephemeral=spec.ephemeral, profile=spec.profile)
            if _has(info, name) and fares == "kept":
                kept.append(weighed.get(name) or Loss(item=name, what=f"{item.what}."))
        return end.model_copy(update={"kept": tuple(kept), "paths": paths, "unsaved": found.unsaved})

    async def _look(self, caller: Caller, info: SandboxInfo, asked: LookArguments) -> tuple[LookAnswer, Label]:
        """Judged and recorded as a listing. Raises what the gate raises."""
        for _ in range(MOST_LOOKS):
            label = self._sandboxes.find(info.sandbox_id).workspace_label
            box = AtRest(self._host.snapshots, info.sandbox_id, self._snapshots.workspace_of(info))
            view = View(box, label, (), self._spec(info))
            result = await self._gate.look(
                caller, info.sandbox_id, "list_directory", asked.model_dump(), partial(_same, view)
            )
            if result.error is not None:
                raise from_wire(result.error)
            if join(label, self._sandboxes.find(info.sandbox_id).workspace_label) is label:
                break  # else what has raised it may have been seen
        return LookAnswer.model_validate(result.value), result.label

    async def _temporary(self, info: SandboxInfo, most: int) -> TemporaryPaths:
        try:
            return await (await self._host.life(info.sandbox_id)).temporary(most)
        except WrongState:  # kept by an earlier version, which cannot tell: it can be ended all the same
            return TemporaryPaths(paths=(), complete=False)

    async def _system_paths(self, info: SandboxInfo, most: int) -> tuple[tuple[str, ...], bool]:
        """By absolute path, and whether these are all."""
        system = SystemPoint(of=self._snapshots.workspace_of(info))
        try:
            page = await self._host.snapshots.changes(SystemPoint(of=None), system, limit=most)
        except NotFound:  # of an ordinary user: its layers are of subordinate ids, and not read
            return (), False
        paths = tuple(shown_path(f"/{one.path}") for one in page.changes if one.change != "deleted")
        return paths, page.next_after is None

    def _spec(self, info: SandboxInfo) -> ToolSpec:
        async def run(call: ToolCall[LookArguments]) -> Ran:
            asked, box, told = call.arguments, call.box, LookAnswer()
            if asked.files:
                listed = await box.ask(ListDirectory(recursive=True, max_entries=asked.most))
                told = told.model_copy(update={"files": _files_of(listed), "complete": _is_whole(listed)})
            if asked.temporary:
                inside = await self._temporary(info, asked.most)
                told = told.model_copy(
                    update={
                        "temporary": tuple(shown_path(path) for path in inside.paths),
                        "complete": told.complete and inside.complete,
                    }
                )
            if asked.system:
                system, is_whole = await self._system_paths(info, asked.most)
                told = told.model_copy(update={"system": system, "complete": told.complete and is_whole})
            if asked.unsaved:
                found = await box.ask(FindUnsaved(most=MOST_NAMED))
                told = told.model_copy(update={**_unsaved_of(found), "complete": told.complete and found.complete})
            output = "".join(f"{path}\n" for path in _names(told)).encode()
            return Ran(told, output=lambda: output, output_bytes=len(output))

        return ToolSpec("list_directory", "", LookArguments, LookAnswer, writes=False, run=run)


def _has(info: SandboxInfo, item: str) -> bool:
    return is_there(
        item, profile=info.spec.profile, has_network=info.network is not None, has_volumes=bool(info.spec.volumes)
    )


def _same(view: View) -> View:
    return view


def _is_whole(listed: ListAnswer) -> bool:
    return listed.complete and not listed.errors


def _files_of(listed: ListAnswer) -> tuple[tuple[str, int], ...]:
    """All but the record, which is the ledger's."""
    return tuple(
        (shown_path(one.path), one.size if one.kind == "file" else 0)
        for one in listed.entries
        if one.path != RECORD and not one.path.startswith(f"{RECORD}/")
    )


def _unsaved_of(found: UnsavedAnswer) -> dict[str, Any]:
    return {"unsaved": tuple(shown_path(one.path) for one in found.files), "unsaved_total": found.total}


def _names(told: LookAnswer) -> Sequence[str]:
    return [*(path for path, _ in told.files), *told.temporary, *told.system, *told.unsaved]


def _weighed(info: SandboxInfo, found: LookAnswer) -> tuple[Loss, ...]:
    """The items of the workspace with how much of each there is."""
    sizes: dict[str, list[int]] = {
        name: [0, 0] for name, item in items_of(info.spec.profile).items() if item.is_workspace and name != "system"
    }
    for path, size in found.files:
        counted = sizes.get(item_of(path))
        if counted is not None:
            counted[0] += 1
            counted[1] += size
    items = items_of(info.spec.profile)
    return tuple(
        Loss(item=name, what=f"{items[name].what}.", count=count, bytes=size) for name, (count, size) in sizes.items()
    )
