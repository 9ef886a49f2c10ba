"""Past and running commands of a sandbox: what they were, all they printed, and a way to stop them.

Output is as labelled and as judged as the call that made it: whoever is not owner or admin gets nothing that a
rule withheld, nothing of a running command while some rule reads output, and an agent's session takes the
label of what it reads here. There is no poll: windows are read from disk, `follow` waits in the box.
"""

import contextlib
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from coldframe.contract.caller import Caller
from coldframe.contract.command import CommandEvent, CommandInfo, CommandResult, Ended, FileChanges, OutputChunk
from coldframe.contract.diagnosis import Diagnosis
from coldframe.contract.errors import (
    ColdframeError,
    DeniedByRule,
    GuestLost,
    InvalidArgument,
    NotFound,
    ResultExpired,
    WrongState,
    next_action,
)
from coldframe.contract.files import (
    ChangeLimits,
    EndShell,
    ListCommands,
    ListShells,
    ProcessInfo,
    ResizeTerminal,
    ShellInfo,
    SignalCommand,
)
from coldframe.contract.ledger import CallEnded, CallStarted, LedgerEntry, StreamDigest
from coldframe.contract.policy import Label, Outcome, Role
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import WITH_BOX, SandboxInfo
from coldframe.contract.tool import OutputWindow
from coldframe.control.call_records import ids_of
from coldframe.control.command_states import (
    may_be_for_want_of_packages,
    paused_message,
    with_diagnosis,
    with_expiry,
    with_status,
    without_registries,
)
from coldframe.control.contacts import Contacts
from coldframe.control.judgement import holds_back
from coldframe.control.ledger import Ledger
from coldframe.control.retention import ResultRetention
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.taints import Taints
from coldframe.policy.labels import join
from coldframe.tools.registry import check_limits

WINDOW_CAP_BYTES = 16 * 1024 * 1024
"""Most bytes in one window."""
MAX_SIGNAL = 64
MARKS_KEPT = 256
CALLS_A_COMMAND = 4
MOST_PAUSES = 100
"""Of one command that are looked at for why it stood still."""
"""Calls that are looked at for one command, where only the newest are asked for: most others read or write a file."""


class _Mark(NamedTuple):
    """A chunk to read on after, and how many bytes of the stream lie before it ends."""

    after_seq: int
    bytes_before: int


class _Call(NamedTuple):
    seq: int
    """Of the entry that it started with."""
    started: CallStarted
    ended: CallEnded | None
    over: bool
    """Ended or interrupted: nothing more comes."""
    began: bool = True
    """False if it was interrupted before it could do anything."""
    end: LedgerEntry | None = None
    """The entry that it ended with, or with which it was given up; None for one that did not begin."""

    @property
    def end_seq(self) -> int | None:
        return None if self.end is None else self.end.seq


class Outputs:
    """Reads what commands left behind; starts nothing."""

    def __init__(
        self,
        ledger: Ledger,
        rulebook: Rulebook,
        sandboxes: Sandboxes,
        sessions: Sessions,
        taints: Taints,
        retention: ResultRetention,
        contacts: Contacts,
        host: Host,
    ) -> None:
        self._ledger = ledger
        self._rulebook = rulebook
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._taints = taints
        self._retention = retention
        self._contacts = contacts
        self._host = host
        self._marks: dict[tuple[str, str], _Mark] = {}

    async def commands(self, caller: Caller, sandbox_id: str, *, newest: int | None = None) -> list[CommandInfo]:
        """Return every command that was ever let through in the sandbox, oldest first. With *newest*, so many, of a few times as
        many calls, and those that run still: however long the record is, that takes no longer.

        Raises:
            GrantMissing, NotFound: not the caller's to see.
        """
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        live = await self._live(info, None)
        if newest is not None:
            return [self._listed(caller, info, call, live) for call in self._newest(info, newest, live)]
        ended = {entry.subject: entry for entry in self._entries(info, "call.ended")}
        cut = {entry.subject: entry for entry in self._entries(info, "call.interrupted")}
        found = []
        for entry in self._entries(info, "call.started"):
            started = CallStarted.model_validate(entry.body)
            if started.command_id is not None:
                call = _call_of(entry, started, ended.get(started.call_id), cut.get(started.call_id))
                found.append(self._listed(caller, info, call, live))
        return found

    def _newest(self, info: SandboxInfo, most: int, live: dict[str, CommandInfo]) -> list[_Call]:
        entries = self._ledger.newest(info.sandbox_id, "call.started", limit=most * CALLS_A_COMMAND)
        begun = [entry for entry in entries if entry.body.get("command_id") is not None][-most:]
        known = {entry.body["command_id"] for entry in begun}
        running = [one.command_id for one in live.values() if one.state == "running" and one.command_id not in known]
        calls = [*(ids_of(command_id).call_id for command_id in running), *(entry.subject for entry in begun)]
        courses = [course for course in map(self._ledger.course, calls) if "call.started" in course]
        found = [
            _call_of(
                one["call.started"],
                CallStarted.model_validate(one["call.started"].body),
                one.get("call.ended"),
                one.get("call.interrupted"),
            )
            for one in courses
        ]
        return sorted(found, key=lambda call: call.seq)

    def _listed(self, caller: Caller, info: SandboxInfo, call: _Call, live: dict[str, CommandInfo]) -> CommandInfo:
        if (gone_at := self._retention.gone_at(info, call.end_seq)) is not None:
            return _expired_info(call, gone_at)
        known = live.get(call.started.command_id or "") or _info_of(call.started, _state_of(call, None), None)
        shown = with_status(self._shown(caller, call, known), began=call.began)
        return with_diagnosis(self._with_receipt(shown, call), _diagnosis_of(call))

    async def command(self, caller: Caller, sandbox_id: str, command_id: str) -> CommandInfo:
        """Return one command with its result, if it has ended. Raises NotFound."""
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        call = self._call(info, command_id)
        if (gone_at := self._retention.gone_at(info, call.end_seq)) is not None:
            return _expired_info(call, gone_at)
        known = (await self._live(info, command_id)).get(command_id)
        if known is None:
            result = await self._stored_result(info, command_id)
            known = _info_of(call.started, _state_of(call, result), result)
        shown = with_status(self._shown(caller, call, known), began=call.began)
        shown = self._with_receipt(shown, call)
        if may_be_for_want_of_packages(shown):
            shown = without_registries(shown, self._contacts.unreached_registries(command_id))
        shown = self._with_pauses(with_diagnosis(shown, _diagnosis_of(call)), call)
        if shown.status is None or shown.status.code != "CANCELLED":
            return shown
        if known.result is not None and known.result.ended_with is not None:
            return shown
        by = f"ended because `{self._canceller(command_id)}` asked"
        return shown.model_copy(update={"status": shown.status.model_copy(update={"message": by})})

    def _with_receipt(self, shown: CommandInfo, call: _Call) -> CommandInfo:
        """Of a command whose process is gone: its receipt, or where it has none the last one of its sandbox before it."""
        status = shown.status
        if status is None or status.code != "PROCESS_LOST":
            return shown
        last = ids_of(call.started.call_id).receipt_id
        if call.ended is None:
            before = self._ledger.last(call.started.sandbox_id, "call.ended", before=call.seq)
            if before is None:
                return shown
            last = ids_of(before.subject).receipt_id
        look = next_action("receipt.get", "shows what is on record", receipt_id=last)
        more = {"evidence": (*status.evidence, last), "next_actions": (*status.next_actions, look)}
        return shown.model_copy(update={"status": status.model_copy(update=more)})

    def _with_pauses(self, shown: CommandInfo, call: _Call) -> CommandInfo:
        """Why it stood still for a while, of one that went on to its own end."""
        if shown.result is None or not shown.result.paused_s or shown.status is None or shown.status.message:
            return shown
        sandbox_id, kinds = call.started.sandbox_id, ("sandbox.paused",)
        pauses = self._ledger.entries(
            after=call.seq, before=call.end_seq, kinds=kinds, sandbox_id=sandbox_id, limit=MOST_PAUSES
        )
        message = paused_message(shown.result.paused_s, (one.body.get("reason") for one in pauses))
        return shown.model_copy(update={"status": shown.status.model_copy(update={"message": message})})

    def _canceller(self, command_id: str) -> str:
        """Who asked first."""
        asked = self._ledger.entries(kinds=("command.signalled",), subject=command_id)
        return next((str(entry.body["caller"]) for entry in asked if entry.body["cancel"]), "somebody")

    async def output(
        self,
        caller: Caller,
        sandbox_id: str,
        command_id: str,
        stream: Literal["stdout", "stderr", "both"],
        offset: int = 0,
        length: int = WINDOW_CAP_BYTES,
    ) -> OutputWindow:
        """Return at most *length* bytes of a stream from byte *offset* on, or of both in the order in which they were read.
        Memory holds the window only.

        Raises:
            NotFound: no such command.
            DeniedByRule: a rule withheld its result.
            WrongState: a rule reads output and the command has not ended yet.
        """
        if offset < 0 or not 0 < length <= WINDOW_CAP_BYTES:
            raise InvalidArgument(
                f"a window is 1 to {WINDOW_CAP_BYTES} bytes from an offset that is not negative", argument="length"
            )
        info, call, label = self._opened(caller, sandbox_id, command_id)
        streams = ("stdout", "stderr") if stream == "both" else (stream,)
        whole = None if call.ended is None else _whole(call.ended, streams)
        data = bytearray()
        mark = self._marks.get((command_id, stream), _Mark(-1, 0))
        after_seq, seen = mark if mark.bytes_before <= offset else _Mark(-1, 0)
        events = cast(
            "AsyncGenerator[CommandEvent, None]", await self._host.stored(sandbox_id, command_id, after_seq=after_seq)
        )
        async with aclosing(events):
            async for event in events:
                if not isinstance(event, OutputChunk) or event.stream not in streams:
                    continue
                start, stop = max(offset - seen, 0), max(offset + length - seen, 0)
                data += event.data[start:stop]
                if seen <= offset + len(data):
                    self._remember(command_id, stream, _Mark(event.seq - 1, seen))
                seen += len(event.data)
                if whole is not None and len(data) == length:
                    break
        await self._join(caller, info, label)
        end = offset + len(data)
        total = seen if whole is None else sum(one.bytes for one in whole)
        return OutputWindow(
            command_id=command_id,
            stream=stream,
            offset=offset,
            data=bytes(data),
            next_offset=None if call.over and end >= total else end,
            total_bytes=total,
            sha256=whole[0].sha256 if whole is not None and len(whole) == 1 else None,
            ended=call.over,
            label=label,
        )

    def _remember(self, command_id: str, stream: str, mark: _Mark) -> None:
        """Keep where the next window will begin, so that reading on does not read all again."""
        self._marks.pop((command_id, stream), None)
        if len(self._marks) >= MARKS_KEPT:
            del self._marks[next(iter(self._marks))]
        self._marks[command_id, stream] = mark

    async def follow(
        self, caller: Caller, sandbox_id: str, command_id: str, *, after_seq: int = -1
    ) -> AsyncIterator[CommandEvent]:
        """Yield the events of a command from the chunk after *after_seq* to its end. Raises like `output`."""
        info, _, label = self._opened(caller, sandbox_id, command_id)
        await self._join(caller, info, label)
        async for event in self._sandboxes.events(info, command_id, after_seq=after_seq):
            yield event

    async def signal(
        self, caller: Caller, sandbox_id: str, command_id: str, signal: int, *, cancel: bool = False
    ) -> None:
        """Signal the whole tree of a command; with *cancel*, end it and count it as cancelled. Recorded.

        In a paused sandbox KILL ends it at once, and any other signal is heard when it is resumed.

        Raises:
            GrantMissing, NotFound: not the caller's.
            WrongState: the sandbox has no processes.
        """
        require(caller, "command.signal")
        if not 0 < signal <= MAX_SIGNAL:
            raise InvalidArgument(f"`{signal}` is no signal", argument="signal")
        info = self._sandboxes.get(caller, sandbox_id)
        self._call(info, command_id)
        box = await self._sandboxes.box(info, reads_only=True)
        body = {
            "sandbox_id": info.sandbox_id,
            "agent_id": info.agent_id,
            "command_id": command_id,
            "signal": signal,
            "cancel": cancel,
            "caller": caller.name,
        }
        self._ledger.append("command.signalled", command_id, body)
        await box.ask(SignalCommand(command_id=command_id, signal=signal, cancel=cancel))

    async def change_limits(
        self,
        caller: Caller,
        sandbox_id: str,
        command_id: str,
        *,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        cpu_s: float | None = None,
    ) -> None:
        """Raise or lower limits of a command that runs, each counted from its start. Recorded. Raises like `signal`.

        Raises:
            InvalidArgument: none is given, or one is over what the sandbox has.
        """
        require(caller, "command.signal")
        info = self._sandboxes.get(caller, sandbox_id)
        self._call(info, command_id)
        wanted = {"timeout_s": timeout_s, "idle_timeout_s": idle_timeout_s, "cpu_s": cpu_s}
        given = {name: value for name, value in wanted.items() if value is not None}
        if not given:
            raise InvalidArgument(
                "give at least one of `timeout_s`, `idle_timeout_s` and `cpu_s`", argument="timeout_s"
            )
        check_limits(info.spec.limits, **given)
        box = await self._sandboxes.box(info)
        await self._sandboxes.hold_to_limits(info.sandbox_id, box)
        body = {
            "sandbox_id": info.sandbox_id,
            "agent_id": info.agent_id,
            "command_id": command_id,
            "caller": caller.name,
            **{f"{name.removesuffix('_s')}_ms": round(value * 1000) for name, value in given.items()},
        }
        self._ledger.append("command.limits_changed", command_id, body)
        await box.ask(
            ChangeLimits(command_id=command_id, timeout_s=timeout_s, idle_timeout_s=idle_timeout_s, cpu_s=cpu_s)
        )

    async def shells(self, caller: Caller, sandbox_id: str) -> list[ShellInfo]:
        """Return the shell sessions of a sandbox. Raises WrongState if it does not run."""
        require(caller, "command.read")
        box = await self._sandboxes.box(self._sandboxes.get(caller, sandbox_id))
        return list((await box.ask(ListShells())).shells)

    async def end_shell(self, caller: Caller, sandbox_id: str, name: str) -> None:
        """Forget a shell session. Recorded. Raises NotFound, and Conflict while it runs a command."""
        require(caller, "command.signal")
        info = self._sandboxes.get(caller, sandbox_id)
        box = await self._sandboxes.box(info)
        body = {"sandbox_id": info.sandbox_id, "agent_id": info.agent_id, "name": name[:80], "caller": caller.name}
        self._ledger.append("shell.ended", info.sandbox_id, body)
        await box.ask(EndShell(name=name))

    async def ports(self, caller: Caller, sandbox_id: str) -> list[ProcessInfo]:
        """Return the processes that listen at some port. Raises like `Sandboxes.processes`."""
        return [one for one in await self._sandboxes.processes(caller, sandbox_id) if one.ports]

    async def resize(self, caller: Caller, sandbox_id: str, command_id: str, *, columns: int, rows: int) -> None:
        """Change the size of a command's terminal. Raises like `signal`."""
        require(caller, "command.signal")
        info = self._sandboxes.get(caller, sandbox_id)
        self._call(info, command_id)
        box = await self._sandboxes.box(info)
        await box.ask(ResizeTerminal(command_id=command_id, columns=columns, rows=rows))

    def is_withheld(self, sandbox_id: str, command_id: str) -> bool:
        """Whether rules, or the time that it was kept for, keep what a command has printed from others than owners."""
        info = self._sandboxes.find(sandbox_id)
        try:
            call = self._call(info, command_id)
            _check_judged(call, self._rulebook)
        except ColdframeError:
            return True
        return self._retention.gone_at(info, call.end_seq) is not None

    def is_denied(self, sandbox_id: str, command_id: str) -> bool:
        """Whether rules keep what a command came to from others than owners, however long it was kept for."""
        try:
            _check_judged(self._call(self._sandboxes.find(sandbox_id), command_id), self._rulebook)
        except ColdframeError:
            return True
        return False

    async def join(self, caller: Caller, sandbox_id: str, command_id: str) -> None:
        """The caller sees something that a command has printed. Raises like `output`."""
        info, _, label = self._opened(caller, sandbox_id, command_id)
        await self._join(caller, info, label)

    def _opened(self, caller: Caller, sandbox_id: str, command_id: str) -> tuple[SandboxInfo, _Call, Label]:
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        call = self._call(info, command_id)
        if caller.role not in (Role.OWNER, Role.ADMIN):
            _check_judged(call, self._rulebook)
        if (gone_at := self._retention.gone_at(info, call.end_seq)) is not None:
            raise _expired(call, gone_at)
        own = call.started.decision.label if call.ended is None else call.ended.label
        return info, call, join(own, call.started.taint_before, info.workspace_label)

    def _shown(self, caller: Caller, call: _Call, info: CommandInfo) -> CommandInfo:
        """*info* as the caller may see it: names that programs chose are judged with the output, and withheld with it."""
        if call.ended is not None and call.ended.outputs is not None:
            info = info.model_copy(update={"outputs": call.ended.outputs})
        if info.result is None or caller.role in (Role.OWNER, Role.ADMIN):
            return info
        try:
            _check_judged(call, self._rulebook)
        except (DeniedByRule, WrongState) as error:
            files = FileChanges(recorded=False, reason=error.message)
            result = info.result.model_copy(update={"files": files, "leftovers": ()})
            return info.model_copy(update={"result": result, "outputs": None})
        return info

    async def _join(self, caller: Caller, info: SandboxInfo, label: Label) -> None:
        if caller.role is Role.AGENT:
            self._sessions.raise_taint(self._sandboxes.session(info).session_id, label)
            await self._taints.settle(info)

    def _call(self, info: SandboxInfo, command_id: str) -> _Call:
        entries = self._ledger.course(ids_of(command_id).call_id)
        started = entries.get("call.started")
        if started is None or started.body.get("command_id") != command_id:
            raise NotFound(f"no command `{command_id[:80]}`", command_id=command_id[:80])
        if started.body["sandbox_id"] != info.sandbox_id:
            raise NotFound(f"no command `{command_id[:80]}`", command_id=command_id[:80])
        ended, cut = entries.get("call.ended"), entries.get("call.interrupted")
        return _call_of(started, CallStarted.model_validate(started.body), ended, cut)

    def _entries(self, info: SandboxInfo, kind: str) -> Iterator[LedgerEntry]:
        after = 0
        while batch := self._ledger.entries(after=after, limit=1000, kinds=(kind,), sandbox_id=info.sandbox_id):
            yield from batch
            after = batch[-1].seq

    async def _live(self, info: SandboxInfo, command_id: str | None) -> dict[str, CommandInfo]:
        if info.state.state not in WITH_BOX:
            return {}
        with contextlib.suppress(GuestLost, NotFound):
            box = await self._sandboxes.box(info, reads_only=True)
            answer = await box.ask(ListCommands(command_id=command_id))
            return {one.command_id: one for one in answer.commands}
        return {}

    async def _stored_result(self, info: SandboxInfo, command_id: str) -> CommandResult | None:
        with contextlib.suppress(NotFound):
            async for event in await self._host.stored(info.sandbox_id, command_id):
                if isinstance(event, Ended):
                    return event.result
        return None


def _whole(ended: CallEnded, streams: tuple[str, ...]) -> tuple[StreamDigest, ...] | None:
    """What the record says of these; None if it does not tell."""
    found = [ended.stdout if one == "stdout" else ended.stderr for one in streams]
    told = tuple(one for one in found if one is not None)
    return told if len(told) == len(found) else None


def _check_judged(call: _Call, rulebook: Rulebook) -> None:
    started, ended = call.started, call.ended
    if ended is None:
        if holds_back(rulebook.past(started.decision.rules_sha256), started.tool):
            raise WrongState(
                f"the output of command `{started.command_id}` is held back until it has ended and was judged",
                command_id=started.command_id,
            )
    elif ended.decision is None or ended.decision.outcome is not Outcome.ALLOW:
        raise DeniedByRule(
            f"the output of command `{started.command_id}` was withheld",
            command_id=started.command_id,
            rule=None if ended.decision is None else ended.decision.rule_id,
        )


def _call_of(entry: LedgerEntry, started: CallStarted, end: LedgerEntry | None, cut: LedgerEntry | None) -> _Call:
    began = cut is None or bool(cut.body.get("began", True))
    return _Call(
        entry.seq,
        started,
        None if end is None else CallEnded.model_validate(end.body),
        over=end is not None or cut is not None,
        began=began,
        end=end or (cut if began else None),
    )


def _expired(call: _Call, gone_at: datetime) -> ResultExpired:
    assert call.end is not None
    ended, receipt_id = call.ended, ids_of(call.started.call_id).receipt_id
    streams = {"stdout": ended and ended.stdout, "stderr": ended and ended.stderr}
    digests: dict[str, Any] = {name: None if one is None else one.model_dump() for name, one in streams.items()}
    return ResultExpired(
        f"what command `{call.started.command_id}` left behind was kept until {gone_at.isoformat(timespec='seconds')}",
        next_actions=[next_action("receipt.get", "has the digests of what there was", receipt_id=receipt_id)],
        command_id=call.started.command_id,
        receipt_id=receipt_id,
        ended_at=(call.end.at if ended is None else ended.ended_at).isoformat(),
        gone_at=gone_at.isoformat(),
        **digests,
    )


def _expired_info(call: _Call, gone_at: datetime) -> CommandInfo:
    return with_expiry(_info_of(call.started, _state_of(call, None), None), _expired(call, gone_at), gone_at)


def _diagnosis_of(call: _Call) -> Diagnosis | None:
    return None if call.ended is None else call.ended.diagnosis


def _state_of(call: _Call, result: CommandResult | None) -> Literal["running", "ended", "lost"]:
    """Without its box: until its end is on record, that it has none is not certain."""
    if call.ended is not None:
        return "lost" if call.ended.ended == "lost" else "ended"
    if result is not None:
        return "ended"
    return "lost" if call.over else "running"


def _info_of(
    started: CallStarted, state: Literal["running", "ended", "lost"], result: CommandResult | None
) -> CommandInfo:
    line = started.command if started.command is not None else shlex.join(started.argv or ())
    return CommandInfo(
        command_id=started.command_id or "",
        state=state,
        command_line=line,
        started_at=None if result is None else result.started_at,
        result=result,
    )
