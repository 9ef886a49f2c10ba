"""Pipelines: named steps that run one after the other, each a call of `run_command` through the gate, and again on request.

Nothing of them is kept beside the ledger. What each step has come to stands there, so a server that was killed takes a
pipeline up where it was: a step that had been started is asked for again under the same idempotency key, which starts
nothing twice. Whoever started it, or had it run again, is whose rights count for every step; when that token is
revoked, the next step is refused.
"""

import asyncio
import builtins
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    HostUnreachable,
    InvalidArgument,
    LedgerUnavailable,
    LimitReached,
    NotFound,
    Refused,
    WrongState,
    next_action,
)
from coldframe.contract.ledger import CallEnded, LedgerEntry
from coldframe.contract.pipeline import (
    PipelineInfo,
    PipelineSpec,
    PipelineStep,
    RerunRequest,
    StepInfo,
    StepInput,
    StepState,
    outcome,
)
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import WITH_BOX, SandboxInfo
from coldframe.control.call_records import ids_of
from coldframe.control.gate import Gate
from coldframe.control.ledger import Ledger
from coldframe.control.outputs import Outputs
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.tokens import Tokens

LOOK_S = 60.0
"""How long one wait for the end of a step is; the end itself wakes it."""
AGAIN_S = 1.0
"""After the host could not be reached, and while a sandbox is paused between two steps."""
MOST_RUNNING = 20
"""In one sandbox at a time."""
MOST_LISTED = 100
"""That one answer tells."""
PART_BYTES = 16 * 1024 * 1024
"""Of an input, read at once for its digest."""
KINDS = ("pipeline.started", "pipeline.rerun", "pipeline.cancelled", "pipeline.step", "pipeline.ended")
_PAGE = 1000
_LATEST = 1 << 62
_log = logging.getLogger(__name__)


class _Run(NamedTuple):
    """A pipeline as the ledger tells it."""

    info: PipelineInfo
    caller: Caller
    """Whose rights count now."""
    is_cancelled: bool
    is_over: bool
    seq: int
    """Of the last entry of whoever drives it: what it has let begin since is not noted yet."""

    def step(self, state: StepState) -> StepInfo | None:
        return next((step for step in self.info.steps if step.state == state), None)


class _NotWanted(Exception):
    """A step is not to be begun any more, though what comes before it had begun."""


class Pipelines:
    """Those of one installation."""

    def __init__(
        self,
        ledger: Ledger,
        sandboxes: Sandboxes,
        gate: Gate,
        outputs: Outputs,
        tokens: Tokens,
        clock: Callable[[], datetime],
    ) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._gate = gate
        self._outputs = outputs
        self._tokens = tokens
        self._clock = clock
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._places: dict[str, str] = {}
        """In which sandbox each of them is."""
        self._cancelled: set[str] = set()
        """Commands that were told to end, so that nobody tells them twice."""
        self.ending: Callable[[PipelineInfo, Caller], Awaitable[None]] = _nothing_more
        """What belongs to the end of one whose steps are over, before that is on record; asked again after a crash."""

    def take_up(self) -> None:
        """Go on with those that were under way when the server stopped."""
        begun: dict[str, str] = {}
        for entry in self._entries(kinds=("pipeline.started", "pipeline.rerun", "pipeline.ended")):
            if entry.kind == "pipeline.ended":
                begun.pop(entry.subject, None)
            else:
                begun[entry.subject] = entry.body["sandbox_id"]
        for pipeline_id, sandbox_id in begun.items():
            self._launch(pipeline_id, sandbox_id)

    async def close(self) -> None:
        """Let go of them. Steps run on, and the next start takes them up."""
        for task in self._runs.values():
            task.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        self._runs.clear()

    def start(
        self, caller: Caller, sandbox_id: str, spec: PipelineSpec, *, idempotency_key: str | None = None
    ) -> PipelineInfo:
        """Begin, and answer at once. The same key is the same pipeline.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: the sandbox does not run.
            LimitReached: MOST_RUNNING of them run in it.
            Conflict: the key was used for another pipeline.
        """
        require(caller, "tool.call")
        info = self._sandboxes.get(caller, sandbox_id)
        text = spec.model_dump_json()
        if idempotency_key is None:
            pipeline_id = f"pip_{secrets.token_hex(10)}"
        else:
            pipeline_id = _keyed_id(caller, idempotency_key)
            known = self._entries(subject=pipeline_id, kinds=("pipeline.started",))
            if known:
                if (known[0].body["spec"], known[0].body["sandbox_id"]) != (text, sandbox_id):
                    raise Conflict(
                        f"idempotency key `{idempotency_key}` was used for another pipeline",
                        hint="use a new key for a new pipeline",
                    )
                return self._load(pipeline_id).info
        self.begin(caller, info, spec, pipeline_id)
        self._launch(pipeline_id, sandbox_id)
        return self._load(pipeline_id).info

    def begin(
        self,
        caller: Caller,
        info: SandboxInfo,
        spec: PipelineSpec,
        pipeline_id: str,
        connection: sa.Connection | None = None,
    ) -> None:
        """Have it on record, and nothing more: `launch` it when the transaction is over. Raises like `start`."""
        self._sandboxes.require_running(info)
        self.require_room(info.sandbox_id)
        body = {
            **self._about(info.sandbox_id, info.agent_id, info.session_id),
            **_whose(caller),
            "spec": spec.model_dump_json(),
        }
        self._ledger.append(
            "pipeline.started",
            pipeline_id,
            {"pipeline_id": pipeline_id, **body},
            connection=connection,
            durable=True,
        )

    def launch(self, pipeline_id: str, sandbox_id: str) -> None:
        """Drive one that `begin` has put on record."""
        self._launch(pipeline_id, sandbox_id)

    def known(self, pipeline_id: str) -> PipelineInfo:
        """As it stands, whoever asks; for control itself."""
        return self._load(pipeline_id).info

    async def list(self, caller: Caller, sandbox_id: str) -> builtins.list[PipelineInfo]:
        """The newest MOST_LISTED of a sandbox, oldest first. Raises GrantMissing, NotFound."""
        require(caller, "command.read")
        self._sandboxes.get(caller, sandbox_id)
        found: builtins.list[PipelineInfo] = []
        before = _LATEST
        while len(found) < MOST_LISTED and (entry := self._ledger.last(sandbox_id, "pipeline.started", before=before)):
            found.append(self._load(entry.subject).info)
            before = entry.seq
            await asyncio.sleep(0)  # each may be long, and others want their turn
        return found[::-1]

    async def get(self, caller: Caller, sandbox_id: str, pipeline_id: str, *, wait_s: float = 0) -> PipelineInfo:
        """How it stands; with *wait_s*, when it is over, or after that time. Raises GrantMissing, NotFound."""
        found = self._find(caller, "command.read", sandbox_id, pipeline_id)
        task = self._runs.get(pipeline_id)
        if task is not None and wait_s and not found.is_over:
            await asyncio.wait({task}, timeout=wait_s)
            found = self._load(pipeline_id)
        return found.info

    async def rerun(self, caller: Caller, sandbox_id: str, pipeline_id: str, request: RerunRequest) -> PipelineInfo:
        """Run again what did not succeed, or the steps that are named, as a new attempt of each.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: it runs, there is nothing to run again, or the sandbox does not run.
            LimitReached: MOST_RUNNING of them run in it.
            Conflict: an input of a step that succeeded is another one now; `changed` names those steps.
        """
        run = self._find(caller, "tool.call", sandbox_id, pipeline_id)
        self._require_over(run)
        info = self._sandboxes.get(caller, sandbox_id)
        self._sandboxes.require_running(info)
        run = run._replace(info=run.info.model_copy(update={"session_id": info.session_id}))
        names = {step.name for step in run.info.steps}
        if unknown := [name for name in request.steps if name not in names]:
            raise InvalidArgument(f"there is no step `{unknown[0]}`", argument="steps")
        wanted = set(request.steps) or {step.name for step in run.info.steps if step.state != "succeeded"}
        if request.changed != "keep":
            changed = await self._changed(caller, run, {*names} - wanted)
            if changed and request.changed == "refuse":
                raise Conflict(
                    f"inputs of steps that succeeded are others now: {', '.join(changed)}",
                    hint="run these steps again as well (`changed: rerun`), or go on all the same (`changed: keep`)",
                    next_actions=[
                        next_action(
                            "pipeline.rerun", effect, sandbox_id=sandbox_id, pipeline_id=pipeline_id, changed=how
                        )
                        for how, effect in (
                            ("rerun", "runs these steps again as well"),
                            ("keep", "leaves them as they are"),
                        )
                    ],
                    changed=changed,
                )
            wanted.update(changed)
        if not wanted:
            raise WrongState(
                "every step succeeded, so there is nothing to run again", hint="name the steps to run again"
            )
        self._require_over(self._load(pipeline_id))  # somebody may have been faster meanwhile
        self.require_room(sandbox_id)
        steps = [step.name for step in run.info.steps if step.name in wanted]
        self._ledger.append(
            "pipeline.rerun", pipeline_id, {**self._of(run), **_whose(caller), "steps": steps}, durable=True
        )
        self._launch(pipeline_id, sandbox_id)
        return self._load(pipeline_id).info

    async def cancel(self, caller: Caller, sandbox_id: str, pipeline_id: str) -> PipelineInfo:
        """Start no further step, and end the one that runs. Idempotent; one that is over stays as it is."""
        run = self._find(caller, "command.signal", sandbox_id, pipeline_id)
        if not run.is_over and not run.is_cancelled:
            self._ledger.append(
                "pipeline.cancelled", pipeline_id, {**self._of(run), "caller": caller.name}, durable=True
            )
            if pipeline_id not in self._runs:  # what drove it met what nobody had foreseen
                self._launch(pipeline_id, sandbox_id)
            with contextlib.suppress(HostUnreachable, LedgerUnavailable):  # it is told when the step is looked at next
                await self._end_step(caller, run)
        return self._load(pipeline_id).info

    # -- running -----------------------------------------------------------------------------------

    def _launch(self, pipeline_id: str, sandbox_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self._drive(pipeline_id), name=pipeline_id)
        self._runs[pipeline_id], self._places[pipeline_id] = task, sandbox_id
        task.add_done_callback(lambda done: self._forget(pipeline_id, done))

    def _forget(self, pipeline_id: str, task: "asyncio.Task[None]") -> None:
        if self._runs.get(pipeline_id) is task:
            del self._runs[pipeline_id], self._places[pipeline_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("pipeline `%s` goes on with the next start", pipeline_id, exc_info=error)

    async def _drive(self, pipeline_id: str) -> None:
        """Step after step, each looked up in the ledger, to the end."""
        while True:
            try:
                run = self._load(pipeline_id)
                if (running := run.step("running")) is not None:
                    await self._await_step(run, running)
                elif (pending := run.step("pending")) is not None:
                    await self._begin(run, pending)
                else:
                    await self.ending(run.info, run.caller)
                    info = self._sandboxes.find(run.info.sandbox_id)
                    label = self._sandboxes.label(info, run.info.session_id)
                    body = {**self._of(run), "label": label, "state": outcome(run.info.steps)}
                    self._ledger.append("pipeline.ended", pipeline_id, body, durable=True)
                    return
            except (HostUnreachable, LedgerUnavailable) as error:
                _log.warning("pipeline `%s` waits: %s", pipeline_id, error.message)
                await asyncio.sleep(AGAIN_S)

    async def _begin(self, run: _Run, step: StepInfo) -> None:
        spec = next(one for one in run.info.spec.steps if one.name == step.name)
        attempt = step.attempt + 1
        key = f"{run.info.pipeline_id}.{step.name}.{attempt}"
        if self._take_up_step(run, step, key):
            return
        if self._is_paused(run):
            await asyncio.sleep(AGAIN_S)  # it goes on when the sandbox does; every refused call would be on record
            return
        if (idle := self._idle_because(run, spec)) is not None:
            state, code, message = idle
            self._note(run, step, state, attempt=step.attempt, code=code, message=message)
            return
        started_at = self._clock()
        try:
            inputs = await self._digests(run, spec)
            result = await self._gate.call(
                run.caller,
                run.info.sandbox_id,
                "run_command",
                _arguments(spec),
                session_id=run.info.session_id,
                idempotency_key=key,
            )
        except _NotWanted:
            return
        except (HostUnreachable, LedgerUnavailable):
            raise
        except ColdframeError as error:
            if self._take_up_step(run, step, key) or self._is_paused(run):
                return
            state = "refused" if isinstance(error, Refused) else "failed"
            self._note(run, step, state, attempt=attempt, code=error.code, message=error.message, started_at=started_at)
            return
        if result.error is not None:
            self._take_up_step(run, step, key)  # its end is on record, and says more
            return
        command_id = str(result.value["command_id"])
        self._note(
            run, step, "running", attempt=attempt, command_id=command_id, started_at=started_at, inputs=tuple(inputs)
        )

    def _take_up_step(self, run: _Run, step: StepInfo, key: str) -> bool:
        """Note that it runs, if it was let through under that key, and nobody came to note it. Others may use the key too."""
        for entry in self._entries(after=run.seq, sandbox_id=run.info.sandbox_id, kinds=("call.started",)):
            body = entry.body
            if (body["idempotency_key"], body["caller"], body["tool"]) == (key, run.caller.name, "run_command"):
                command_id = ids_of(entry.subject).command_id
                self._note(run, step, "running", attempt=step.attempt + 1, command_id=command_id, started_at=entry.at)
                return True
        return False

    def _is_paused(self, run: _Run) -> bool:
        return self._sandboxes.find(run.info.sandbox_id).state.state in ("pausing", "paused", "resuming")

    def _idle_because(self, run: _Run, spec: PipelineStep) -> tuple[StepState, str | None, str] | None:
        """State, code and message of a step that is not to be started."""
        if run.is_cancelled:
            return "cancelled", "CANCELLED", "the pipeline was cancelled before it began"
        if not self._tokens.is_valid(run.caller):
            return "refused", "UNAUTHENTICATED", "the token of whoever started it is not valid any more"
        state = self._sandboxes.find(run.info.sandbox_id).state.state
        if state not in WITH_BOX:
            return "skipped", "WRONG_STATE", f"the sandbox is {state}"
        failed = {step.name for step in run.info.steps if step.state not in ("succeeded", "pending", "running")}
        if needed := [name for name in spec.needs if name in failed]:
            return "skipped", None, f"it needs `{needed[0]}`, which did not succeed"
        if run.info.spec.on_failure == "stop" and failed:
            first = next(step.name for step in run.info.steps if step.name in failed)
            return "skipped", None, f"`{first}` did not succeed"
        return None

    async def _await_step(self, run: _Run, step: StepInfo) -> None:
        assert step.command_id is not None
        if run.is_cancelled:
            await self._end_step(run.caller, run)
        await self._gate.await_end(step.command_id, LOOK_S)
        course = self._ledger.course(ids_of(step.command_id).call_id)
        if len(course) > 1:
            self._cancelled.discard(step.command_id)
        if "call.ended" in course:
            end = CallEnded.model_validate(course["call.ended"].body)
            state, code = _how(end)
            exit_code = end.exit_code
            self._note(run, step, state, code=code, exit_code=exit_code, ended_at=end.ended_at)
        elif "call.interrupted" in course:
            body = course["call.interrupted"].body
            self._note(run, step, "lost", code="PROCESS_LOST", message=str(body["reason"]))
        else:
            await asyncio.sleep(AGAIN_S)

    async def _end_step(self, caller: Caller, run: _Run) -> None:
        step = self._load(run.info.pipeline_id).step("running")
        if step is not None and step.command_id is not None and step.command_id not in self._cancelled:
            self._cancelled.add(step.command_id)
            try:
                await self._outputs.signal(caller, run.info.sandbox_id, step.command_id, 15, cancel=True)
            except (HostUnreachable, LedgerUnavailable):
                self._cancelled.discard(step.command_id)
                raise
            except ColdframeError:
                pass  # it may have ended, with its sandbox for one

    async def _digests(self, run: _Run, spec: PipelineStep) -> builtins.list[StepInput]:
        """Of its inputs, read through the gate. Raises FileMissing and what else reading them does, _NotWanted."""

        def is_wanted() -> bool:
            return not self._load(run.info.pipeline_id).is_cancelled and self._tokens.is_valid(run.caller)

        return [
            StepInput(path=path, sha256=await self._digest(run.caller, run, path, is_wanted)) for path in spec.inputs
        ]

    async def _digest(self, caller: Caller, run: _Run, path: str, is_wanted: Callable[[], bool] = lambda: True) -> str:
        """*is_wanted* is asked before each part of it: a file may be of any size."""
        digest, offset = hashlib.sha256(), 0
        version: dict[str, str] = {}
        while True:
            if not is_wanted():
                raise _NotWanted
            parts: builtins.list[bytes] = []
            result = await self._gate.call(
                caller,
                run.info.sandbox_id,
                "read_file",
                {"path": path, "offset": offset, "length": PART_BYTES, **version},
                session_id=run.info.session_id,
                deliver=parts.append,
            )
            if result.error is not None:
                raise _of_input(path, result.error)
            for part in parts:
                await asyncio.to_thread(digest.update, part)
            if result.value["next_offset"] is None:
                return digest.hexdigest()
            offset, version = int(result.value["next_offset"]), {"if_version": str(result.value["version"])}

    async def _changed(self, caller: Caller, run: _Run, kept: set[str]) -> builtins.list[str]:
        """Steps that succeeded and whose inputs are others now, or gone."""
        found = []
        for step in run.info.steps:
            if step.name not in kept or step.state != "succeeded":
                continue
            for one in step.inputs:
                try:
                    is_same = await self._digest(caller, run, one.path) == one.sha256
                except InvalidArgument:
                    is_same = False
                if not is_same:
                    found.append(step.name)
                    break
        return found

    # -- the ledger --------------------------------------------------------------------------------

    def _find(self, caller: Caller, operation: str, sandbox_id: str, pipeline_id: str) -> _Run:
        require(caller, operation)
        self._sandboxes.get(caller, sandbox_id)
        found = self._entries(subject=pipeline_id, sandbox_id=sandbox_id, kinds=("pipeline.started",))
        if not found:
            raise NotFound(f"no pipeline `{pipeline_id[:80]}` in this sandbox", pipeline_id=pipeline_id[:80])
        return self._load(pipeline_id)

    def _require_over(self, run: _Run) -> None:
        if not run.is_over:
            raise WrongState(
                f"pipeline `{run.info.pipeline_id}` runs",
                hint="wait for its end, or cancel it",
                pipeline_id=run.info.pipeline_id,
            )

    def require_room(self, sandbox_id: str) -> None:
        """Raise LimitReached where MOST_RUNNING of them run."""
        if [*self._places.values()].count(sandbox_id) >= MOST_RUNNING:
            raise LimitReached(
                f"{MOST_RUNNING} pipelines run in sandbox `{sandbox_id}`, and no more may",
                hint="wait for one, or cancel one",
                sandbox_id=sandbox_id,
                limit=MOST_RUNNING,
            )

    def _entries(self, *, after: int = 0, **about: Any) -> builtins.list[LedgerEntry]:
        found: builtins.list[LedgerEntry] = []
        while page := self._ledger.entries(after=found[-1].seq if found else after, limit=_PAGE, **about):
            found += page
        return found

    def _load(self, pipeline_id: str) -> _Run:
        first, *later = self._entries(subject=pipeline_id, kinds=KINDS)
        spec = PipelineSpec.model_validate_json(first.body["spec"])
        steps = {one.name: StepInfo(name=one.name, state="pending", attempt=0) for one in spec.steps}
        caller, ended_at, is_cancelled, is_over = _caller_of(first.body), None, False, False
        session_id, seq = first.body["session_id"], first.seq
        for entry in later:
            if entry.kind != "pipeline.cancelled":  # which comes at any time
                seq = entry.seq
            if entry.kind == "pipeline.step":
                told = StepInfo.model_validate_json(entry.body["step"])
                steps[told.name] = told
            elif entry.kind == "pipeline.rerun":
                caller, ended_at, is_cancelled, is_over = _caller_of(entry.body), None, False, False
                session_id = entry.body["session_id"]
                for name in entry.body["steps"]:
                    steps[name] = StepInfo(name=name, state="pending", attempt=steps[name].attempt)
            elif entry.kind == "pipeline.cancelled":
                is_cancelled = True
            else:
                is_over, ended_at = True, entry.at
        info = PipelineInfo(
            pipeline_id=pipeline_id,
            sandbox_id=first.body["sandbox_id"],
            session_id=session_id,
            state=outcome(tuple(steps.values())) if is_over else "running",
            spec=spec,
            steps=tuple(steps.values()),
            started_at=first.at,
            ended_at=ended_at,
            started_by=first.body["caller"],
        )
        return _Run(info, caller, is_cancelled, is_over, seq)

    def _note(self, run: _Run, step: StepInfo, state: StepState, **more: Any) -> None:
        """What a step has come to. Its end says when it began as well."""
        ended_at = None if state == "running" else self._clock()
        told = step.model_copy(update={"state": state, "ended_at": ended_at, **more})
        body = {**self._of(run), "name": told.name, "state": state, "step": told.model_dump_json()}
        self._ledger.append("pipeline.step", run.info.pipeline_id, body, durable=state == "running")

    def _of(self, run: _Run) -> dict[str, Any]:
        info = self._sandboxes.find(run.info.sandbox_id)
        about = self._about(info.sandbox_id, info.agent_id, run.info.session_id)
        return {"pipeline_id": run.info.pipeline_id, **about}

    @staticmethod
    def _about(sandbox_id: str, agent_id: str | None, session_id: str) -> dict[str, Any]:
        return {"sandbox_id": sandbox_id, "agent_id": agent_id, "session_id": session_id}


async def _nothing_more(info: PipelineInfo, caller: Caller) -> None:
    """Most are over with their steps."""


def _keyed_id(caller: Caller, key: str) -> str:
    return "pip_" + hashlib.sha256(f"{caller.token_id}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:20]


def _whose(caller: Caller) -> dict[str, Any]:
    return {
        "caller": caller.name,
        "token_id": caller.token_id,
        "role": caller.role.value,
        "caller_agent_id": caller.agent_id,
        "surface": caller.surface,
    }


def _caller_of(body: dict[str, Any]) -> Caller:
    return Caller(
        token_id=body["token_id"], role=Role(body["role"]), agent_id=body["caller_agent_id"], surface=body["surface"]
    )


def _arguments(spec: PipelineStep) -> dict[str, Any]:
    arguments: dict[str, Any] = {"command": spec.command, "cwd": spec.cwd, "background": True}
    if spec.outputs:
        arguments["outputs"] = list(spec.outputs)
    limits: Iterable[tuple[str, float | None]] = (
        ("timeout_s", spec.timeout_s),
        ("idle_timeout_s", spec.idle_timeout_s),
    )
    return arguments | {name: value for name, value in limits if value is not None}


def _how(end: CallEnded) -> tuple[StepState, str | None]:
    """What the end of its command makes of a step, and the code for it."""
    if end.ended == "lost" or end.error_code == "GUEST_LOST":
        return "lost", "PROCESS_LOST"
    if end.ended == "cancelled":
        return "cancelled", "CANCELLED"
    if end.ended == "exited" and end.exit_code == 0:
        return "succeeded", None
    if end.ended == "timed_out":
        return "failed", "TIMED_OUT_IDLE" if end.limit == "idle" else "TIMED_OUT_WALL"
    if end.ended == "limit" and end.limit is not None:
        return "failed", f"LIMIT_{end.limit.upper()}"
    return "failed", "NOT_STARTED" if end.ended == "not_started" else end.error_code


def _of_input(path: str, error: dict[str, Any]) -> InvalidArgument:
    return InvalidArgument(f"input `{path}` cannot be read: {error['message']}", argument="inputs", code=error["code"])
