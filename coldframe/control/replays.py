"""Replays: the command of a receipt, carried out again in a fresh sandbox that begins from what it began from.

That is known by the digest of the workspace alone, so each candidate is measured and nothing is believed: snapshots first, the
nearest in time before the others, then the workspace as it is. The fresh sandbox has no network and no volumes: what is done
again is to reach nobody a second time. It is judged like every other call, under its own receipt, and ended when it is done;
where the server dies meanwhile its timer ends it.
"""

import base64
import contextlib
import hashlib
from typing import Literal, NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, HostUnreachable, InvalidArgument, NotReplayable, from_wire
from coldframe.contract.files import DigestTree
from coldframe.contract.ledger import CallStarted, StreamDigest
from coldframe.contract.ports import Host
from coldframe.contract.receipt import Receipt
from coldframe.contract.replay import Difference, Replay, ReplayBasis, ReplayRequest
from coldframe.contract.sandbox import WITH_BOX, SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import AUTOMATIC_S, Point, SnapshotInfo, SnapshotPoint, SnapshotRequest
from coldframe.contract.template import HOST
from coldframe.control.acts import Acts
from coldframe.control.call_records import ids_of, limit_numbers
from coldframe.control.creation import Creation
from coldframe.control.gate import Gate
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.outputs import Outputs
from coldframe.control.receipts import Receipts
from coldframe.control.sandbox_specs import Longest
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshots import Snapshots
from coldframe.policy.labels import join

MOST_LOOKED_AT = 50
"""Snapshots whose files are measured for one replay."""
MOST_DIFFERENCES = 200
COMPARED_BYTES = 1024 * 1024
"""Of the begin of each stream, in which the first line that differs is looked for."""
OnMissing = Literal["refuse", "degrade"]
"""What to do where a limit is only kept by best effort, as in a spec."""
NO_NETWORK = "none"
GRACE_S = 600.0
"""How much longer than its command the fresh sandbox may live, if nobody ends it."""


class _Begin(NamedTuple):
    snapshot_id: str
    is_copy: bool
    """Of a workspace as it is, taken for this replay alone."""


class Replays:
    """Their right is `receipt.replay`, which no agent has: a sandbox is made for each."""

    def __init__(
        self,
        ledger: Ledger,
        receipts: Receipts,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        creation: Creation,
        lifecycle: Lifecycle,
        gate: Gate,
        outputs: Outputs,
        judged: JudgedActs,
        host: Host,
        longest: Longest,
    ) -> None:
        self._ledger = ledger
        self._receipts = receipts
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._creation = creation
        self._lifecycle = lifecycle
        self._gate = gate
        self._outputs = outputs
        self._judged = judged
        self._host = host
        self._longest = longest
        self._acts = Acts()

    async def close(self) -> None:
        """Wait for those under way, if they do not take too long."""
        await self._acts.close()

    async def replay(
        self, caller: Caller, receipt_id: str, asked: ReplayRequest, *, on_missing: OnMissing | None = None
    ) -> Replay:
        """Do it again, and tell what came out otherwise. Nothing is written to where it was done first. *on_missing* takes the
        place of what the sandbox of the call was to do.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: the call has not ended, or no snapshot can be taken of the workspace as it is now.
            NotReplayable: no command, or what it began from is not to be had; `missing` says what.
            InvalidArgument: a variable or the input is not the one of then.
            Refused: a rule is against the replay, the fork or the command; or withholds what came of it.
            And what creation and the call raise.
        """
        receipt = self._receipts.get(caller, receipt_id)
        self._judged.require_grant(caller, "receipt.replay", "replay_call", receipt.sandbox_id)
        info = self._sandboxes.get(caller, receipt.sandbox_id)
        arguments = self._arguments(receipt, asked)
        spec = info.spec if on_missing is None else info.spec.model_copy(update={"on_missing": on_missing})
        _, told = self._judged.allow(caller, info, "replay_call", {"receipt_id": receipt_id}, label=receipt.label)
        about = {
            "sandbox_id": receipt.sandbox_id,
            "agent_id": receipt.agent_id,
            "session_id": receipt.session_id,
            "caller": caller.name,
            "receipt_id": receipt.receipt_id,
        }
        self._ledger.append("replay.started", receipt.call_id, {**about, **told})
        work = self._replay(caller, info.model_copy(update={"spec": spec}), receipt, arguments, about)
        return await self._acts.whole(work)

    async def _replay(
        self,
        caller: Caller,
        info: SandboxInfo,
        receipt: Receipt,
        arguments: dict[str, object],
        about: dict[str, str | None],
    ) -> Replay:
        try:
            begin = await self._find(caller, info, receipt)
            try:
                again, differences = await self._do(caller, self._spec(info, receipt, begin), receipt, arguments)
            finally:
                if begin.is_copy:
                    with contextlib.suppress(ColdframeError):  # its time is over in a day
                        await self._snapshots.remove(caller, begin.snapshot_id)
        except ColdframeError as error:
            self._ledger.append("replay.ended", receipt.call_id, {**about, "code": error.code})
            raise
        return self._record(info, begin, receipt, again, differences, about)

    async def _do(
        self, caller: Caller, spec: SandboxSpec, receipt: Receipt, arguments: dict[str, object]
    ) -> tuple[Receipt, list[Difference]]:
        fresh = await self._creation.create(caller, spec)
        try:
            result = await self._gate.call(caller, fresh.sandbox_id, "run_command", arguments)
            if result.error is not None:
                raise from_wire(result.error)
            again = self._receipts.get(caller, str(result.receipt_id))
            if again.tree_sha256_before != receipt.tree_sha256_before:
                raise _without(receipt, "files", "what the fresh sandbox began with is not what was measured before")
            return again, await self._differences(caller, receipt, again)
        finally:
            with contextlib.suppress(ColdframeError):  # its timer ends it then
                await self._lifecycle.terminate(caller, fresh.sandbox_id)

    def _record(
        self,
        info: SandboxInfo,
        begin: _Begin,
        receipt: Receipt,
        again: Receipt,
        differences: list[Difference],
        about: dict[str, str | None],
    ) -> Replay:
        basis = ReplayBasis(
            previous_receipt_id=receipt.previous_receipt_id,
            tree_sha256_before=str(receipt.tree_sha256_before),
            begun_from="workspace" if begin.is_copy else "snapshot",
            snapshot_id=begin.snapshot_id,
        )
        body = {
            **about,
            "code": None,
            "replay_receipt_id": again.receipt_id,
            "replay_sandbox_id": again.sandbox_id,
            "basis": basis.model_dump(mode="json"),
            "same": not differences,
            "differences": [one.what for one in differences[:MOST_DIFFERENCES]],
        }
        return Replay(
            receipt_id=receipt.receipt_id,
            replay_receipt_id=again.receipt_id,
            sandbox_id=again.sandbox_id,
            basis=basis,
            same=not differences,
            differences=tuple(differences[:MOST_DIFFERENCES]),
            complete=len(differences) <= MOST_DIFFERENCES,
            unlike=_unlike(info, receipt, again),
            label=join(receipt.label, again.label),
            ledger_seq=self._ledger.append("replay.ended", receipt.call_id, body).seq,
        )

    # -- what it was ----------------------------------------------------------------------------------------------

    def _arguments(self, receipt: Receipt, asked: ReplayRequest) -> dict[str, object]:
        """Those of the call. Raises NotReplayable where they are not on record, InvalidArgument where *asked* has others."""
        inputs = receipt.inputs
        if receipt.tool != "run_command" or inputs is None:
            raise _without(receipt, "command", f"it is the receipt of `{receipt.tool}`, which runs no command")
        if receipt.tree_sha256_before is None:
            why = "" if receipt.files is None or receipt.files.reason is None else f": {receipt.files.reason}"
            raise _without(receipt, "tree_sha256_before", f"no digest was taken of the files it began from{why}")
        if receipt.ended in ("lost", "cancelled", "not_started"):
            raise _without(receipt, "end", f"it was {receipt.ended.replace('_', ' ')}, which no command does by itself")
        started = CallStarted.model_validate(self._ledger.course(receipt.call_id)["call.started"].body)
        if started.shell_session is not None:
            raise _without(receipt, "shell_session", "it went on in a shell session, whose state is not on record")
        if self._ledger.entries(subject=receipt.call_id, kinds=("call.input",), limit=1):
            raise _without(receipt, "input", "input was sent to it while it ran, which is on record by digest alone")
        digests = {name: _sha256(value.encode()) for name, value in asked.environment.items()}
        if lacking := sorted(inputs.environment.keys() - digests.keys()):
            names = ", ".join(f"`{name[:80]}`" for name in lacking[:20])
            error = _without(receipt, "environment", f"values of variables are on record by digest alone: give {names}")
            error.facts["names"] = lacking[:20]
            raise error
        if wrong := sorted(name for name, digest in digests.items() if inputs.environment.get(name) != digest):
            raise InvalidArgument(
                f"variable `{wrong[0][:80]}` is not what the call had", argument="environment", names=wrong[:20]
            )
        stdin = _decoded(asked.stdin_base64)
        if inputs.stdin_bytes and not stdin:
            raise _without(receipt, "stdin", "its input is on record by digest alone: give it again")
        if _sha256(stdin) != inputs.stdin_sha256:
            raise InvalidArgument("the input is not what the call had", argument="stdin_base64")
        command = receipt.command if receipt.command is not None else list(receipt.argv or ())
        arguments: dict[str, object] = {"command": command, "cwd": receipt.cwd or "", "user": inputs.user}
        if receipt.runtime is not None:
            arguments |= {"runtime": receipt.runtime, "command": list(receipt.argv or ())[1:]}
        own = limit_numbers(self._sandboxes.find(receipt.sandbox_id).spec.limits)
        for name, limit in (("timeout_s", "wall_ms"), ("idle_timeout_s", "idle_ms"), ("cpu_s", "cpu_ms")):
            if limit in inputs.limits and inputs.limits[limit] != own.get(limit):
                arguments[name] = inputs.limits[limit] / 1000
        if asked.environment:
            arguments["env"] = asked.environment
        if stdin:
            arguments["stdin_base64"] = asked.stdin_base64
        if started.outputs:
            arguments["outputs"] = list(started.outputs)
        return arguments

    def _spec(self, info: SandboxInfo, receipt: Receipt, begin: _Begin) -> SandboxSpec:
        assert receipt.inputs is not None
        spec, template = info.spec, receipt.inputs.template
        if template != HOST and receipt.inputs.template_sha256 is not None:
            template = f"sha256:{receipt.inputs.template_sha256}"
        age_s = receipt.inputs.limits["wall_ms"] / 1000 + GRACE_S
        return SandboxSpec(
            background=True,
            ephemeral=True,
            template=template,
            isolation=spec.isolation,
            requires=spec.requires,
            snapshot=begin.snapshot_id,
            network=NO_NETWORK,
            limits=spec.limits,
            runtimes=spec.runtimes,
            denied_programs=spec.denied_programs,
            leftovers=spec.leftovers,
            on_missing=spec.on_missing,
            command_idle_s=spec.command_idle_s,
            max_age_s=age_s if self._longest.age_s is None else min(age_s, self._longest.age_s),
            on_timeout="terminate",
        )

    # -- what it began from -------------------------------------------------------------------------------------------

    async def _find(self, caller: Caller, info: SandboxInfo, receipt: Receipt) -> _Begin:
        """A snapshot that is what it began from, or else a copy of the workspace, if that is. Raises NotReplayable."""
        unmeasured = 0
        candidates = self._candidates(caller, info, receipt)
        for one in candidates:
            digest = await self._digest(SnapshotPoint(snapshot_id=one.snapshot_id))
            if digest == receipt.tree_sha256_before:
                return _Begin(one.snapshot_id, is_copy=False)
            unmeasured += digest is None
        living = self._living(info)
        if living is not None and await self._is_as_before(self._snapshots.workspace_of(living), receipt):
            asked = SnapshotRequest(name=f"replay of {receipt.receipt_id}", expires_in_s=AUTOMATIC_S)
            taken = await self._snapshots.take(caller, living.sandbox_id, asked, reason="automatic")
            if await self._is_as_before(SnapshotPoint(snapshot_id=taken.snapshot_id), receipt):
                return _Begin(taken.snapshot_id, is_copy=True)
            with contextlib.suppress(ColdframeError):
                await self._snapshots.remove(caller, taken.snapshot_id)
        now = "the workspace has others now" if living is not None else "no sandbox is on its workspace any more"
        error = _without(receipt, "files", f"no snapshot holds the files that it began from, and {now}")
        error.facts.update(snapshots_looked_at=len(candidates), snapshots_not_measured=unmeasured)
        raise error

    async def _is_as_before(self, point: Point, receipt: Receipt) -> bool:
        return await self._digest(point) == receipt.tree_sha256_before

    def _candidates(self, caller: Caller, info: SandboxInfo, receipt: Receipt) -> list[SnapshotInfo]:
        """Of the same workspace, and what that began as; those from before the call first, the nearest of them first."""
        if info.agent_id is not None:
            found = self._snapshots.list(caller, agent_id=info.agent_id)
        else:
            found = self._snapshots.list(caller, sandbox_id=info.sandbox_id)
        if info.spec.snapshot is not None:
            with contextlib.suppress(ColdframeError):
                found.append(self._snapshots.get(caller, info.spec.snapshot))
        found = [one for one in found if one.state == "ready"]
        began = receipt.started_at
        found.sort(key=lambda one: (one.created_at > began, abs((one.created_at - began).total_seconds())))
        return found[:MOST_LOOKED_AT]

    def _living(self, info: SandboxInfo) -> SandboxInfo | None:
        """A sandbox on the same workspace of which a snapshot can be taken."""
        others = (
            one for one in self._sandboxes.living() if info.agent_id is not None and one.agent_id == info.agent_id
        )
        for one in (self._sandboxes.find(info.sandbox_id), *others):
            if (one.state.state in WITH_BOX or one.state.state == "stopped") and self._sandboxes.has_its_agent(one):
                return one
        return None

    async def _digest(self, point: Point) -> str | None:
        """None for what cannot be measured, or is gone by now: then it is not the one. Raises HostUnreachable."""
        try:
            return (await self._host.snapshots.ask(point, DigestTree())).sha256
        except HostUnreachable:
            raise
        except ColdframeError:
            return None

    # -- what came of it ----------------------------------------------------------------------------------------------

    async def _differences(self, caller: Caller, receipt: Receipt, again: Receipt) -> list[Difference]:
        found = [
            Difference(what=name, original=getattr(receipt, name), replay=getattr(again, name))
            for name in ("ended", "exit_code", "signal", "limit", "error_code")
            if getattr(receipt, name) != getattr(again, name)
        ]
        for stream in ("stdout", "stderr"):
            old, new = _digest_of(getattr(receipt, stream)), _digest_of(getattr(again, stream))
            if old != new:
                texts = [await self._begin_of(caller, one, stream) for one in (receipt, again)]
                found.append(Difference(what=stream, original=old, replay=new, line=_first_line(*texts)))
        old_files, new_files = _changes(receipt), _changes(again)
        if old_files != new_files:
            for path in sorted(old_files.keys() | new_files.keys()):
                if old_files.get(path) != new_files.get(path):
                    found.append(
                        Difference(what=f"file:{path}", original=old_files.get(path), replay=new_files.get(path))
                    )
        old_tests, new_tests = _failed_tests(receipt), _failed_tests(again)
        for name in sorted(old_tests ^ new_tests):
            how = ("failed", None) if name in old_tests else (None, "failed")
            found.append(Difference(what=f"test:{name}", original=how[0], replay=how[1]))
        if receipt.tree_sha256_after != again.tree_sha256_after:
            found.append(Difference(what="tree", original=receipt.tree_sha256_after, replay=again.tree_sha256_after))
        return found

    async def _begin_of(self, caller: Caller, receipt: Receipt, stream: str) -> bytes | None:
        """What can still be read of a stream, through the rules of today."""
        with contextlib.suppress(ColdframeError):
            window = await self._outputs.output(
                caller,
                receipt.sandbox_id,
                ids_of(receipt.call_id).command_id,
                "stdout" if stream == "stdout" else "stderr",
                length=COMPARED_BYTES,
            )
            return window.data
        return None


def _without(receipt: Receipt, missing: str, why: str) -> NotReplayable:
    hints = {
        "files": "next time take a snapshot before the command (`coldframe snapshot take`), or have a rule with "
        "`snapshot: true` do so before each call",
        "tree_sha256_before": "next time leave `track_files` of the sandbox on, and keep the workspace within what is recorded",
        "environment": "give the values with `environment` (`--env NAME=VALUE`)",
        "stdin": "give it with `stdin_base64` (`--stdin`)",
        "input": "next time give the whole input with the call (`stdin`)",
        "shell_session": "next time run it without `shell_session`",
    }
    return NotReplayable(
        f"receipt `{receipt.receipt_id}` cannot be replayed: {why}",
        hint=hints.get(missing, "replay the receipt of a command that ended by itself"),
        receipt_id=receipt.receipt_id,
        missing=missing,
        tree_sha256_before=receipt.tree_sha256_before,
    )


def _unlike(info: SandboxInfo, receipt: Receipt, again: Receipt) -> tuple[str, ...]:
    old, new = receipt.inputs, again.inputs
    assert old is not None and new is not None
    told = {
        "network": bool(info.network) and list(info.network or ()) != [NO_NETWORK],
        "volumes": bool(info.spec.volumes),
        "system": info.spec.profile == "computer",
        "template": old.template_sha256 != new.template_sha256,
        "runtime": (old.runtime_version, old.runtime_path) != (new.runtime_version, new.runtime_path),
        "degraded": receipt.degraded != again.degraded,
    }
    return tuple(name for name, is_so in told.items() if is_so)


def _changes(receipt: Receipt) -> dict[str, str]:
    if receipt.files is None:
        return {}
    return {
        one.path: one.sha256_after or (one.change if one.change in ("deleted", "metadata") else one.kind)
        if one.change != "metadata"
        else "metadata"
        for one in receipt.files.changes
    }


def _failed_tests(receipt: Receipt) -> set[str]:
    return set() if receipt.declared_outputs is None else set(receipt.declared_outputs.failed_tests)


def _digest_of(stream: StreamDigest | None) -> str | None:
    return None if stream is None else stream.sha256


def _first_line(old: bytes | None, new: bytes | None) -> int | None:
    if old is None or new is None:
        return None
    lines = old.split(b"\n"), new.split(b"\n")
    for number, (one, other) in enumerate(zip(*lines, strict=False), start=1):
        if one != other:
            return number
    return None if old == new else min(map(len, lines)) + 1


def _decoded(given: str | None) -> bytes:
    try:
        return base64.b64decode(given or "", validate=True)
    except ValueError:
        raise InvalidArgument("`stdin_base64` is not valid base64", argument="stdin_base64") from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
