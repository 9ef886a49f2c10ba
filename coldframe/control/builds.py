"""Builds of workspaces: a pipeline of commands, with all that went into it and all that came out on record beside it.

Each command passes the gate like any other, and what carries a build over a crash is its pipeline. What went in is a snapshot
that is taken before the first command: named by the digest of all its files, and kept, so that the build can be made again from
it and from nothing else. What came out is told when the last command has ended: artifacts by what that command's result says of
them, and packages by a look that is judged like a listing of files.
"""

import asyncio
import builtins
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

from coldframe.contract.build import (
    MOST_DEPENDENCIES,
    ArtifactChange,
    Build,
    BuildComparison,
    BuildDependency,
    BuildFile,
    BuildInputs,
    BuildPart,
    BuildSpec,
    BuildSummary,
    RebuildRequest,
)
from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    HostUnreachable,
    InputMissing,
    LedgerUnavailable,
    NotFound,
    WrongState,
    next_action,
)
from coldframe.contract.ledger import CallEnded
from coldframe.contract.outputs import DeclaredOutputs, FoundOutput
from coldframe.contract.packages import PackageChange
from coldframe.contract.pipeline import PipelineInfo, StepInfo, outcome
from coldframe.contract.policy import Role
from coldframe.contract.result import result_digest
from coldframe.contract.sandbox import ENDED, SandboxInfo
from coldframe.contract.snapshot import Change, SnapshotRequest
from coldframe.control.acts import Acts
from coldframe.control.beginnings import spec_as_then
from coldframe.control.build_rows import BuildOutcome, BuildRow, BuildRows
from coldframe.control.call_records import ids_of
from coldframe.control.comparisons import Comparisons
from coldframe.control.creation import Creation
from coldframe.control.judgement import digest_of
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.outputs import Outputs
from coldframe.control.packages import Packages
from coldframe.control.pipelines import Pipelines
from coldframe.control.preview_inputs import PreviewInputsTaken
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshots import Snapshots
from coldframe.control.store import Store
from coldframe.control.tokens import Tokens
from coldframe.policy.labels import join

MOST_LISTED = 1000
MOST_CHANGES = 1000
_log = logging.getLogger(__name__)


class Builds:
    """Those of one installation."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        inputs: PreviewInputsTaken,
        pipelines: Pipelines,
        packages: Packages,
        outputs: Outputs,
        comparisons: Comparisons,
        creation: Creation,
        lifecycle: Lifecycle,
        tokens: Tokens,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._rows = BuildRows(store)
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._inputs = inputs
        self._pipelines = pipelines
        self._packages = packages
        self._outputs = outputs
        self._comparisons = comparisons
        self._creation = creation
        self._lifecycle = lifecycle
        self._tokens = tokens
        self._clock = clock
        self._acts = Acts()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of builds that begin, as long as somebody waits for one."""
        self._ends: set[asyncio.Task[None]] = set()
        pipelines.ending = self._end

    async def close(self) -> None:
        await self._acts.close()
        for task in self._ends:
            task.cancel()
        await asyncio.gather(*self._ends, return_exceptions=True)

    # -- starting ------------------------------------------------------------------------------------------------------

    async def start(
        self, caller: Caller, sandbox_id: str, spec: BuildSpec, *, idempotency_key: str | None = None
    ) -> Build:
        """Take in what is there, begin, and answer. The same key is the same build.

        Raises:
            GrantMissing, NotFound: not the caller's.
            Refused: a rule is against the snapshot of what goes in.
            WrongState: the sandbox does not run, or its files are too many to take a digest of.
            LimitReached: too many pipelines run in it, or there is no room for a snapshot.
            Conflict: the key was used for another build.
        """
        require(caller, "build.start")
        info = self._sandboxes.get(caller, sandbox_id)
        build_id = _new_id() if idempotency_key is None else _keyed_id(caller, idempotency_key)
        if (known := self._made_before(build_id, sandbox_id, spec, idempotency_key)) is not None:
            return self._shown(caller, known)
        self._sandboxes.require_running(info)
        self._pipelines.require_room(sandbox_id)
        return await self._acts.whole(self._start(caller, info, spec, build_id, idempotency_key))

    async def _start(
        self,
        caller: Caller,
        info: SandboxInfo,
        spec: BuildSpec,
        build_id: str,
        key: str | None,
        *,
        rebuild_of: str | None = None,
        keep_sandbox: bool = True,
    ) -> Build:
        turn = self._turns.setdefault(build_id, asyncio.Lock())
        async with turn:
            return await self._start_alone(caller, info, spec, build_id, key, rebuild_of, keep_sandbox)

    async def _start_alone(
        self,
        caller: Caller,
        info: SandboxInfo,
        spec: BuildSpec,
        build_id: str,
        key: str | None,
        rebuild_of: str | None,
        keep_sandbox: bool,
    ) -> Build:
        """While nobody else does under the same key: the snapshot is one for all of them."""
        if (known := self._made_before(build_id, info.sandbox_id, spec, key)) is not None:
            return self._shown(caller, known)
        wanted = SnapshotRequest(name=f"inputs of build {build_id}", expires_in_s=spec.inputs_kept_s)
        taken = await self._snapshots.take(
            caller, info.sandbox_id, wanted, idempotency_key=None if key is None else f"{key}.inputs"
        )
        try:
            inputs = await self._taken_in(info, spec, taken.snapshot_id)
            row = BuildRow(
                build_id=build_id,
                pipeline_id=f"pip_{secrets.token_hex(10)}",
                sandbox_id=info.sandbox_id,
                agent_id=info.agent_id,
                session_id=info.session_id,
                spec=spec,
                inputs=inputs,
                rebuild_of=rebuild_of,
                keep_sandbox=keep_sandbox,
                started_by=caller.name,
                started_at=self._clock(),
            )
            with self._store.transaction(durable=True) as connection:
                self._rows.add(row, connection)
                body = {
                    **_about(row),
                    "caller": caller.name,
                    "tree_sha256": inputs.tree_sha256,
                    "snapshot_id": inputs.snapshot_id,
                    "template_sha256": inputs.template_sha256,
                    "spec_sha256": digest_of(spec.model_dump(mode="json")),
                    "rebuild_of": rebuild_of,
                }
                self._ledger.append("build.started", build_id, body, connection=connection, durable=True)
                self._pipelines.begin(caller, info, spec.pipeline(), row.pipeline_id, connection)
        except BaseException:
            if self._rows.by_id(build_id) is None:
                await self._snapshots.discard(caller.name, taken.snapshot_id)
            raise
        self._pipelines.launch(row.pipeline_id, info.sandbox_id)
        return self._shown(caller, row)

    def _made_before(self, build_id: str, sandbox_id: str, spec: BuildSpec, key: str | None) -> BuildRow | None:
        row = self._rows.by_id(build_id)
        if row is not None and (row.spec, row.sandbox_id) != (spec, sandbox_id):
            raise Conflict(f"idempotency key `{key}` was used for another build", hint="use a new key for a new build")
        return row

    async def _taken_in(self, info: SandboxInfo, spec: BuildSpec, snapshot_id: str) -> BuildInputs:
        tree = await self._inputs.tree(snapshot_id)
        if tree is None:
            raise WrongState(
                "the files are too many to take a digest of, so it would not be known what went in",
                hint="remove what can be made again, or run the commands as a pipeline",
                sandbox_id=info.sandbox_id,
            )
        found: dict[str, str] = {}
        for cwd in dict.fromkeys(one.cwd for one in spec.phases):
            found |= {one.path: one.sha256 for one in await self._inputs.files(snapshot_id, cwd)}
        return BuildInputs(
            tree_sha256=tree,
            snapshot_id=snapshot_id,
            template=info.spec.template,
            template_sha256=info.template_sha256,
            network=info.spec.network,
            files=tuple(BuildFile(path=path, sha256=sha256) for path, sha256 in sorted(found.items())),
        )

    async def rebuild(self, caller: Caller, build_id: str, asked: RebuildRequest) -> Build:
        """Make it again, in a new sandbox that begins with what went into it, and answer when it has begun.

        Raises:
            GrantMissing, NotFound: not the caller's.
            InputMissing: the snapshot or the template is gone or is another one; nothing was begun.
            Refused: a rule is against the new sandbox.
        """
        require(caller, "build.rebuild")
        return await self._acts.whole(self._rebuild(caller, self._own(caller, build_id), asked))

    async def _rebuild(self, caller: Caller, row: BuildRow, asked: RebuildRequest) -> Build:
        inputs = row.inputs
        try:
            await self._inputs.require_there(inputs.snapshot_id, inputs.tree_sha256, inputs.template_sha256)
        except InputMissing as error:
            error.next_actions = [next_action("build.get", "shows what it was made from", build_id=row.build_id)]
            raise
        spec = spec_as_then(
            self._sandboxes.find(row.sandbox_id).spec,
            agent_id=asked.agent_id,
            snapshot_id=inputs.snapshot_id,
            template=inputs.template,
            template_sha256=inputs.template_sha256,
            network=inputs.network,
        )
        info = await self._creation.create(caller, spec)
        stays = asked.keep_sandbox or asked.agent_id is not None
        try:
            return await self._start(
                caller, info, row.spec, _new_id(), None, rebuild_of=row.build_id, keep_sandbox=stays
            )
        except BaseException:
            await self._terminate(caller, info.sandbox_id)
            raise

    # -- its end -------------------------------------------------------------------------------------------------------

    async def _end(self, info: PipelineInfo, caller: Caller) -> None:
        """Its steps are over: record what came of them. What is on record of it is not written again."""
        row = self._rows.of_pipeline(info.pipeline_id)
        if row is None or row.outcome is not None:
            return
        found = [one for step in info.steps for one in self._declared(step)]
        state, code, message = _outcome(info.steps, found)
        artifacts = {one.path: one for each in found for one in each.found}
        try:
            dependencies, complete = await self._dependencies(caller, row)
            problem = None if complete else "there are more, or not all could be looked at"
        except (HostUnreachable, LedgerUnavailable):
            raise  # the pipeline asks again
        except ColdframeError as error:
            dependencies, complete, problem = (), False, error.message
        done = BuildOutcome(
            state=state,
            code=code,
            message=message,
            phases=info.steps,
            artifacts=tuple(artifacts[path] for path in sorted(artifacts)),
            missing=tuple(dict.fromkeys(path for each in found for path in each.missing)),
            refused=tuple(one for each in found for one in each.refused),
            artifacts_sha256=_digest(artifacts.values()),
            dependencies=dependencies,
            dependencies_complete=complete,
            dependencies_problem=problem,
        )
        row = row._replace(ended_at=self._clock(), outcome=done)
        with self._store.transaction(durable=True) as connection:
            self._rows.put(row, connection)
            body = {
                **_about(row),
                "label": self._sandboxes.label(self._sandboxes.find(row.sandbox_id), row.session_id),
                "state": state,
                "code": code,
                "artifacts": len(done.artifacts),
                "artifacts_sha256": done.artifacts_sha256,
                "dependencies": len(dependencies),
                "dependencies_sha256": digest_of(
                    {"dependencies": [one.model_dump(mode="json") for one in dependencies]}
                ),
            }
            self._ledger.append("build.ended", row.build_id, body, connection=connection, durable=True)
        if not row.keep_sandbox:
            task = asyncio.get_running_loop().create_task(self._terminate(caller, row.sandbox_id))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _terminate(self, caller: Caller, sandbox_id: str) -> None:
        """Of a rebuild, whose files nobody wants to have."""
        try:
            await self._lifecycle.terminate(caller, sandbox_id)
        except ColdframeError as error:  # its timers end it
            _log.warning("sandbox `%s` of a rebuild was left as it is: %s", sandbox_id, error.message)

    def _declared(self, step: StepInfo) -> builtins.list[DeclaredOutputs]:
        """What the command of a phase has made of what was declared, as its end on record says."""
        if step.command_id is None:
            return []
        end = self._ledger.course(ids_of(step.command_id).call_id).get("call.ended")
        outputs = None if end is None else CallEnded.model_validate(end.body).outputs
        return [] if outputs is None else [outputs]

    async def _dependencies(self, caller: Caller, row: BuildRow) -> tuple[tuple[BuildDependency, ...], bool]:
        if self._sandboxes.find(row.sandbox_id).state.state in ENDED:
            raise WrongState("the sandbox has ended", sandbox_id=row.sandbox_id)
        if not self._tokens.is_valid(caller):
            raise WrongState("the token of whoever started it is not valid any more")
        view = await self._packages.view(caller, row.sandbox_id)
        fetched = await self._packages.handed_over(caller, row.sandbox_id)
        found = {
            (one.manager, one.name, one.installed): BuildDependency(
                manager=one.manager,
                name=one.name,
                version=one.installed,
                sha256=fetched.get((one.manager, one.name, one.installed)),
                command_id=one.command_id,
            )
            for one in view.packages
            if one.installed is not None
        }
        told = tuple(found[key] for key in sorted(found))
        return told[:MOST_DEPENDENCIES], view.complete and len(told) <= MOST_DEPENDENCIES

    # -- looking -------------------------------------------------------------------------------------------------------

    def list(
        self,
        caller: Caller,
        *,
        sandbox_id: str | None = None,
        agent_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> builtins.list[BuildSummary]:
        """Newest first, those of ended sandboxes too, from behind the build *after* on.

        Raises:
            GrantMissing, NotFound: not the caller's, or no such build.
        """
        require(caller, "build.read")
        if sandbox_id is not None:
            self._sandboxes.get(caller, sandbox_id)
        if caller.role is Role.AGENT:
            if agent_id not in (None, caller.agent_id):
                return []
            agent_id = caller.agent_id
        before = None if after is None else self._own(caller, after)
        rows = self._rows.page(sandbox_id=sandbox_id, agent_id=agent_id, before=before, limit=min(limit, MOST_LISTED))
        return [BuildSummary(**self._summed_up(caller, row)) for row in rows if self._is_visible(caller, row)]

    async def get(self, caller: Caller, build_id: str, *, wait_s: float = 0) -> Build:
        """How it stands; with *wait_s*, when it is over, or after that time. Raises GrantMissing, NotFound."""
        row = self._own(caller, build_id)
        if wait_s and row.outcome is None:
            await self._pipelines.get(caller, row.sandbox_id, row.pipeline_id, wait_s=wait_s)
            row = self._own(caller, build_id)
        return self._shown(caller, row)

    async def cancel(self, caller: Caller, build_id: str) -> Build:
        """Start no further phase, and end the one that runs. Idempotent; one that is over stays as it is."""
        require(caller, "build.cancel")
        row = self._own(caller, build_id)
        if row.outcome is None:
            await self._pipelines.cancel(caller, row.sandbox_id, row.pipeline_id)
        return self._shown(caller, self._own(caller, build_id))

    async def compare(self, caller: Caller, before: str, after: str) -> BuildComparison:
        """In what two builds differ, of one workspace or of two.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: one of them runs still.
            Refused: a rule is against comparing what went in.
        """
        rows = [self._own(caller, one) for one in (before, after)]
        builds = [self._shown(caller, row) for row in rows]
        for one in builds:
            if one.state == "running":
                raise WrongState(f"build `{one.build_id}` runs", hint="wait for its end", build_id=one.build_id)
        old, new = builds
        changes, complete, label = await self._input_changes(caller, *rows)
        commands = _differing_phases(old.spec, new.spec)
        # What is not told of one of them has neither come nor gone.
        withheld = any(one.withheld for one in builds)
        all_known = not withheld and all(one.dependencies_complete for one in builds)
        dependencies = _dependency_changes(old.dependencies, new.dependencies) if all_known else ()
        artifacts = (
            ()
            if withheld
            else _path_changes(
                {one.path: one.sha256 for one in old.artifacts}, {one.path: one.sha256 for one in new.artifacts}
            )
        )
        parts: Mapping[BuildPart, bool] = {
            "commands": bool(commands),
            "template": old.inputs.template_sha256 != new.inputs.template_sha256,
            "input": old.inputs.tree_sha256 != new.inputs.tree_sha256,
            "dependency": bool(dependencies),
            "output": bool(artifacts),
        }
        comparable = not (parts["commands"] or parts["template"] or parts["input"]) and None not in (
            old.artifacts_sha256,
            new.artifacts_sha256,
        )
        return BuildComparison(
            before=before,
            after=after,
            differs=tuple(part for part, is_other in parts.items() if is_other),
            commands=commands,
            template=(old.inputs.template_sha256, new.inputs.template_sha256),
            tree=(old.inputs.tree_sha256, new.inputs.tree_sha256),
            input_files=_path_changes(
                {one.path: one.sha256 for one in old.inputs.files}, {one.path: one.sha256 for one in new.inputs.files}
            ),
            input_changes=changes,
            input_changes_complete=complete,
            dependencies=dependencies,
            artifacts=artifacts,
            withheld=withheld,
            dependencies_complete=all_known,
            reproduced=not artifacts if comparable else None,
            label=join(label, *(self._sandboxes.find(row.sandbox_id).workspace_label for row in rows)),
        )

    async def _input_changes(
        self, caller: Caller, old: BuildRow, new: BuildRow
    ) -> tuple[tuple[Change, ...], bool, Any]:
        label = self._sandboxes.find(old.sandbox_id).workspace_label
        if old.inputs.tree_sha256 == new.inputs.tree_sha256:
            return (), True, label
        try:
            found = await self._comparisons.compare(
                caller, old.inputs.snapshot_id, new.inputs.snapshot_id, sandbox_id=new.sandbox_id, limit=MOST_CHANGES
            )
        except NotFound:  # one of them is not kept any more
            return (), False, label
        # A snapshot keeps times, and a tree has none: what differs in these alone is the same input.
        told = tuple(one for one in found.changes if one.change != "metadata" or one.kind != "directory")
        return told, found.next_after is None, found.label

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _own(self, caller: Caller, build_id: str) -> BuildRow:
        require(caller, "build.read")
        row = self._rows.by_id(build_id)
        if row is None or not self._is_visible(caller, row):
            raise NotFound(f"no build `{build_id[:80]}`", build_id=build_id[:80])
        return row

    def _is_visible(self, caller: Caller, row: BuildRow) -> bool:
        try:
            self._sandboxes.get(caller, row.sandbox_id)
        except NotFound:
            return False
        return True

    def row(self, caller: Caller, build_id: str) -> BuildRow:
        """What is kept of one, for its log. Raises GrantMissing, NotFound."""
        return self._own(caller, build_id)

    def phases(self, row: BuildRow) -> tuple[StepInfo, ...]:
        """As they stand, or as they stood when it ended."""
        return self._pipelines.known(row.pipeline_id).steps if row.outcome is None else row.outcome.phases

    def _is_withheld(self, caller: Caller, row: BuildRow) -> bool:
        if caller.role in (Role.OWNER, Role.ADMIN) or row.outcome is None:
            return False
        commands = [one.command_id for one in row.outcome.phases if one.command_id is not None]
        return any(self._outputs.is_denied(row.sandbox_id, command_id) for command_id in commands)

    def _summed_up(self, caller: Caller, row: BuildRow) -> dict[str, Any]:
        done = row.outcome
        hidden = self._is_withheld(caller, row)
        return {
            "build_id": row.build_id,
            "name": row.spec.name,
            "sandbox_id": row.sandbox_id,
            "agent_id": row.agent_id,
            "state": "running" if done is None else done.state,
            "code": None if done is None else done.code,
            "message": "" if done is None else done.message,
            "tree_sha256": row.inputs.tree_sha256,
            "template_sha256": row.inputs.template_sha256,
            "artifacts_sha256": None if done is None or hidden else done.artifacts_sha256,
            "rebuild_of": row.rebuild_of,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
            "started_by": row.started_by,
        }

    def _shown(self, caller: Caller, row: BuildRow) -> Build:
        phases, hidden = self.phases(row), self._is_withheld(caller, row)
        told: dict[str, Any] = {}
        if row.outcome is not None and not hidden:
            names = ("artifacts", "missing", "refused", "dependencies", "dependencies_complete", "dependencies_problem")
            told = {name: getattr(row.outcome, name) for name in names}
        return Build(
            **self._summed_up(caller, row),
            session_id=row.session_id,
            pipeline_id=row.pipeline_id,
            spec=row.spec,
            inputs=row.inputs,
            phases=phases,
            receipts=tuple(
                ids_of(one.command_id).receipt_id
                for one in phases
                if one.command_id is not None and one.ended_at is not None
            ),
            withheld=hidden,
            **told,
        )


def _new_id() -> str:
    return f"bld_{secrets.token_hex(10)}"


def _keyed_id(caller: Caller, key: str) -> str:
    return "bld_" + hashlib.sha256(f"{caller.token_id}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:20]


def _about(row: BuildRow) -> dict[str, Any]:
    return {
        "build_id": row.build_id,
        "pipeline_id": row.pipeline_id,
        "sandbox_id": row.sandbox_id,
        "agent_id": row.agent_id,
        "session_id": row.session_id,
    }


def _outcome(steps: tuple[StepInfo, ...], found: Iterable[DeclaredOutputs]) -> tuple[Any, str | None, str]:
    """State, code and message of one that is over."""
    state = outcome(steps)
    if state == "succeeded":
        lacking = [path for each in found for path in (*each.missing, *(one.path for one in each.refused))]
        if lacking:
            return "failed", "OUTPUT_MISSING", f"`{lacking[0]}` is not there, or cannot be taken"
        return "succeeded", None, ""
    first = next(one for one in steps if one.state not in ("succeeded", "skipped"))
    why = first.message or (f"ended with exit code {first.exit_code}" if first.exit_code is not None else first.state)
    return state, first.code, f"`{first.name}`: {why}"


def _digest(artifacts: Iterable[FoundOutput]) -> str | None:
    told = [(one.path, one.bytes, one.sha256) for one in artifacts]
    return result_digest(told) if told else None


def _differing_phases(old: BuildSpec, new: BuildSpec) -> tuple[str, ...]:
    before = {one.name: one for one in old.phases}
    after = {one.name: one for one in new.phases}
    if list(before) != list(after) and set(before) == set(after):
        return tuple(before)  # the same in another order
    return tuple(name for name in {**before, **after} if before.get(name) != after.get(name))


def _path_changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[ArtifactChange, ...]:
    return tuple(
        ArtifactChange(path=path, before=old.get(path), after=new.get(path))
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    )


def _dependency_changes(old: Iterable[BuildDependency], new: Iterable[BuildDependency]) -> tuple[PackageChange, ...]:
    """A line for each version that came, went, or took the place of another, and for each that is another file."""
    before = {(one.manager, one.name, one.version): one for one in old}
    after = {(one.manager, one.name, one.version): one for one in new}
    gone = [key for key in sorted(before) if key not in after]
    come = [key for key in sorted(after) if key not in before]
    lines = []
    for key in gone:
        other = next((one for one in come if one[:2] == key[:2]), None)
        if other is not None:
            come.remove(other)
        lines.append(
            PackageChange(manager=key[0], name=key[1], before=key[2], after=None if other is None else other[2])
        )
    lines += [PackageChange(manager=key[0], name=key[1], before=None, after=key[2]) for key in come]
    for key in sorted(before.keys() & after.keys()):
        digests = before[key].sha256, after[key].sha256
        if None not in digests and digests[0] != digests[1]:
            lines.append(PackageChange(manager=key[0], name=key[1], before=key[2], after=key[2]))
    return tuple(sorted(lines, key=lambda one: (one.manager, one.name)))
