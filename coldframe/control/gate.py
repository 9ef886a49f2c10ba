"""The one door: every tool call of every surface is decided, recorded, run, judged, labelled and recorded here.

Order of a call: rights, tool known and enabled, arguments, reading of the command, PRE_TOOL_CALL, ledger
`call.started` (`admission.py`), run (here), POST_TOOL_RESPONSE, taint, ledger `call.ended`, history
(`landing.py`), delivery; where the end of a command waits for its commit, its history waits as well. Taint rises
twice: in the transaction of `call.started` by what is in view, so that neither a crash nor a live stream can be
ahead of it, and at the end by what rules say about the result.

A call that has started belongs to the gate and not to its caller: a caller that goes away cancels nothing
(except an upload, whose content it takes along). A refusal is a typed error with `call_id`, `rule` and `seq`
of its record among its facts. An error of the tool, such as FILE_NOT_FOUND, is a result: the call ran.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.cell import CellBegun, CellEvent, Kernel, cell_id_of, keeps_kernel
from coldframe.contract.command import CommandEvent, InputState
from coldframe.contract.errors import (
    ColdframeError,
    GuestLost,
    HostUnreachable,
    Internal,
    InvalidArgument,
    NotFound,
    RulesInvalid,
    TooLarge,
    WrongState,
)
from coldframe.contract.files import MOST_SENT_BYTES, SendInput
from coldframe.contract.ledger import CallStarted, LedgerEntry, Shown
from coldframe.contract.policy import CallContext, Decision, InputContext, ResultContext, SecretContext
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.tool import AllowedOperation, ToolResult
from coldframe.control.admission import Admission
from coldframe.control.at_rest import View
from coldframe.control.call_records import (
    ids_of,
)
from coldframe.control.credentials import Credentials
from coldframe.control.flights import Flight
from coldframe.control.history import History
from coldframe.control.judged_outputs import JudgedOutputs
from coldframe.control.judgement import (
    discovered_operations,
    holds_back,
    judge_call,
    judge_result,
    judges_output,
)
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.landing import Landing, show, without_output
from coldframe.control.ledger import Ledger
from coldframe.control.network import Network
from coldframe.control.past_box import PastBox
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.snapshots import Snapshots
from coldframe.control.store import Store
from coldframe.control.taints import Taints
from coldframe.policy.hooks import decide_secret
from coldframe.policy.rules import RuleSet
from coldframe.tools.registry import Answer, Ran, ToolCall, find_tool

_log = logging.getLogger("coldframe.gate")
RETRY_FIRST_S = 0.2
RETRY_LONGEST_S = 10.0
TURNS_TO_ANSWER = 2
"""Of the event loop: in the first the answer is written, and with its end it is sent."""


class Gate:
    """See the module. Fronts have nothing else to call for a tool."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        rulebook: Rulebook,
        sandboxes: Sandboxes,
        sessions: Sessions,
        taints: Taints,
        network: Network,
        credentials: Credentials,
        snapshots: Snapshots,
        history: History,
        clock: Callable[[], datetime],
    ) -> None:
        self._ledger = ledger
        self._rulebook = rulebook
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._taints = taints
        self._network = network
        self._credentials = credentials
        self._snapshots = snapshots
        self._history = history
        keyed = KeyedCalls(store)
        self._judged = JudgedOutputs(store)
        self._flights: dict[str, Flight] = {}
        self._admission = Admission(store, ledger, rulebook, sandboxes, sessions, taints, history, keyed, self._flights)
        self._landing = Landing(store, ledger, sandboxes, sessions, taints, history, keyed, self._judged, clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.template_environment: Callable[[SandboxInfo], dict[str, str]] = lambda _: {}
        """Variables that the template of a sandbox sets for every command."""
        self.lease_environment: Callable[[str], dict[str, str]] = lambda _: {}
        """Those that whoever took the lease of a sandbox wants, over these."""

    async def call(
        self,
        caller: Caller,
        sandbox_id: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        session_id: str | None = None,
        idempotency_key: str | None = None,
        snapshot_id: str | None = None,
        deliver: Callable[[bytes], None] | None = None,
        tell_shown: Callable[[Shown], None] | None = None,
        within_s: float | None = None,
        admitted: Callable[[str], None] | None = None,
    ) -> ToolResult:
        """Run one tool call to its end, or to its start if it asks for the background. With *snapshot_id* it reads the
        files of that in place of those of the sandbox.

        *deliver* is handed the content that a file read gives, beside a result without it. It is the caller's
        only with that result: after an error it is not to be used. *tell_shown* is told its digest. A command that has not ended *within_s* goes on as if it
        had been started in the background, and the answer says that it runs. *admitted* is told its id before it starts.

        Raises:
            Refused: nothing was done (or, by a rule about results, the result is withheld); recorded.
            InvalidArgument, UnknownTool, NotFound, WrongState, Conflict: nothing was done; recorded.
            PolicyUnavailable, LedgerUnavailable: nothing was done, since it could not be judged or recorded.
            HostUnreachable: it may run; ask again with the same idempotency key.
        """
        view = None if snapshot_id is None else partial(self._snapshots.view, caller, sandbox_id, snapshot_id, tool)
        flight = await self._admit(
            caller, sandbox_id, tool, arguments, session_id, idempotency_key, keep_output=True, view=view
        )
        if isinstance(flight, ToolResult):
            return flight
        flight.deliver, flight.tell_shown = deliver, tell_shown  # its task has not begun
        if admitted is not None and flight.started.command_id is not None:
            admitted(flight.ids.command_id)
        return await flight.landed() if within_s is None else await self._landed_within(flight, within_s)

    async def _landed_within(self, flight: Flight, within_s: float) -> ToolResult:
        """What it came to, or that its command runs still. What is no command is waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                return await flight.landed()
        flight.left = True
        if flight.running is not None:
            self._answer_early(flight, flight.running())
        return await flight.landed()

    async def look(
        self, caller: Caller, sandbox_id: str, tool: str, arguments: dict[str, Any], view: Callable[[], View]
    ) -> ToolResult:
        """Judge and record as a call of *tool* what the *view* does in place of it. Raises what `call` does."""
        flight = await self._admit(caller, sandbox_id, tool, arguments, None, None, keep_output=True, view=view)
        return flight if isinstance(flight, ToolResult) else await flight.landed()

    async def stream(
        self,
        caller: Caller,
        sandbox_id: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        session_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncIterator[CommandEvent | ToolResult]:
        """Like `call`, with the events of a command as they happen before the result, which repeats no output.

        Memory stays constant whatever is printed. Where a rule is about results of the tool, every event
        is held back until the result has been judged, so nothing leaks ahead of a denial or of a label. Leaving
        the iterator ends no command.
        """
        flight = await self._admit(caller, sandbox_id, tool, arguments, session_id, idempotency_key, keep_output=False)
        if isinstance(flight, ToolResult):
            result = flight
            if isinstance(result.value.get("command_id"), str):
                async with aclosing(self._replayed(result)) as past:
                    async for event in past:
                        yield event
        elif (watch := flight.take_watch()) is not None:
            past_box, command_id = PastBox(self._sandboxes, flight.info), flight.ids.command_id
            async with aclosing(watch.events(lambda seq: past_box.follow(command_id, after_seq=seq))) as live:
                async for event in live:
                    yield event
            result = await flight.landed()
        else:
            result = await flight.landed()
            if flight.started.command_id is not None and result.error is None:
                async with aclosing(self._replayed(result)) as past:
                    async for event in past:
                        yield event
        yield without_output(result)

    async def _replayed(self, result: ToolResult) -> AsyncGenerator[CommandEvent, None]:
        command_id = result.value.get("command_id") or ids_of(result.call_id).command_id
        async for event in self._sandboxes.events(self._sandboxes.find(result.sandbox_id), str(command_id)):
            yield event

    async def run_cell(
        self,
        caller: Caller,
        sandbox_id: str,
        arguments: dict[str, Any],
        kernel: Kernel,
        *,
        show: Callable[[CellEvent], None],
        admitted: Callable[[str], None],
        begun: Callable[[], None],
        session_id: str | None = None,
    ) -> ToolResult:
        """Run one code cell in a kernel that runs, or is started for it. *show* is told its events as they happen, unless some
        rule is about results of cells: then the result alone has them, once it was judged. *admitted* is told its id before it
        starts, and *begun* is called when it has, in any case. Raises what `call` does."""
        flight = await self._admit(caller, sandbox_id, "run_code", arguments, session_id, None, keep_output=True)
        if isinstance(flight, ToolResult):
            return flight
        held_back = holds_back(flight.rules, "run_code")

        def tell(event: CellEvent) -> None:
            if isinstance(event, CellBegun):
                begun()
            if not held_back:
                show(event)

        flight.kernel, flight.show = kernel, tell  # its task has not begun
        admitted(cell_id_of(flight.ids.command_id))
        return await flight.landed()

    async def upload(
        self,
        caller: Caller,
        sandbox_id: str,
        path: str,
        content: AsyncIterable[bytes],
        *,
        session_id: str | None = None,
        if_version: str | None = None,
        source: str | None = None,
        sha256: str | None = None,
        anywhere: Mapping[str, Any] | None = None,
        mode: int | None = None,
        create_only: bool = False,
    ) -> ToolResult:
        """Write a file of any size from a stream; *source* says where it is from. A stream that breaks off or has another
        digest than *sha256*, or a caller that leaves, changes nothing. With *anywhere*, arguments of `write_path` that may be
        none, it may be any path of the box."""
        arguments: dict[str, Any] = {"path": path, "content": "", **(anywhere or {})}
        tool = "write_file" if anywhere is None else "write_path"
        if sha256 is not None:
            arguments["sha256"] = sha256
        if if_version is not None:
            arguments["if_version"] = if_version
        if source is not None:
            arguments["source"] = source
        if mode is not None:
            arguments["mode"] = mode
        if create_only:
            arguments["create_only"] = True
        flight = await self._admit(
            caller, sandbox_id, tool, arguments, session_id, None, keep_output=True, content=content
        )
        if isinstance(flight, ToolResult):
            return flight
        try:
            return await flight.landed()
        except asyncio.CancelledError:
            flight.aborted = True
            if flight.work is not None:
                flight.work.cancel()
            raise

    async def send_input(
        self,
        caller: Caller,
        sandbox_id: str,
        command_id: str,
        content: bytes,
        *,
        offset: int | None = None,
        end: bool = False,
        session_id: str | None = None,
    ) -> InputState:
        """Send *content* to the open input of a command, judged as if the command were called with it now.

        Answers when all of it was taken, or after ten seconds for a command that does not read: the rest is to be sent
        again from `taken` on. With *offset*, the place of its first byte, no byte is taken twice, however often it is sent.

        Raises:
            Refused, PolicyUnavailable, LedgerUnavailable: nothing was sent; recorded.
            Conflict: the input goes on elsewhere; `taken` among the facts says where.
            WrongState: the command has ended, reads no more, or got its whole input at the start.
            TooLarge: more than MOST_SENT_BYTES.
        """
        if len(content) > MOST_SENT_BYTES:
            raise TooLarge(
                f"at most {MOST_SENT_BYTES} bytes are sent at once", hint="send it in parts", limit=MOST_SENT_BYTES
            )
        info, box = await self._admission.admit_input(
            caller, sandbox_id, command_id, content, offset=offset, end=end, session_id=session_id
        )
        try:
            # Also where it has ended: a request that is sent again is told that it was taken.
            return await box.ask(SendInput(command_id=command_id, content=content, offset=offset, end=end))
        except NotFound:
            raise WrongState(
                f"command `{command_id}` has ended long ago, or never began", command_id=command_id
            ) from None
        except GuestLost as error:
            await self._sandboxes.check_alive(info.sandbox_id, error.message)
            raise

    async def await_end(self, command_id: str, wait_s: float) -> None:
        """Return when the end of a command is recorded, or after *wait_s*. Whether it has ended is to be asked elsewhere."""
        flight = self._flights.get(ids_of(command_id).call_id)
        if flight is not None:
            await flight.over(wait_s)

    def allowed(self, caller: Caller, sandbox_id: str) -> list[AllowedOperation]:
        """Return what the gate would answer now, without tools that are switched off here for the caller.

        Raises NotFound, GrantMissing and PolicyUnavailable.
        """
        info = self._sandboxes.get(caller, sandbox_id)
        taint = self._sandboxes.session(info).taint
        return discovered_operations(caller, info, taint, self._rulebook.current)

    def replay(self, seq: int) -> tuple[Decision, Decision]:
        """Return the decision stored in ledger entry *seq* and the one that the same rules make of the stored context.

        Raises:
            NotFound: there is no such entry, it holds no decision, or its rule set or judged output is gone.
        """
        entry = self._ledger.entry(seq)
        body = {} if entry is None else entry.body
        judged = body.get("context") or body.get("input")
        if entry is None or body.get("decision") is None or judged is None:
            raise NotFound(f"ledger entry {seq} holds no decision", seq=seq)
        stored = Decision.model_validate(body["decision"])
        rules = self._rulebook.past(stored.rules_sha256)
        if entry.kind == "call.ended":
            context = ResultContext.model_validate(body["context"])
            output = b""
            if judges_output(rules, context.call.tool):
                output = self._judged.find(entry.subject)
                if hashlib.sha256(output).hexdigest() != context.output_sha256:
                    raise NotFound(f"the output judged in ledger entry {seq} is not what is kept", seq=seq)
            return stored, judge_result(context, output, rules)
        if entry.kind == "secret.used":
            return stored, decide_secret(SecretContext.model_validate(body["context"]), rules)
        if body.get("input") is not None:
            of = InputContext.model_validate(body["input"])
            started = self._ledger.course(ids_of(of.command_id).call_id)["call.started"]
            return stored, judge_call(of.whole(CallStarted.model_validate(started.body).context), rules)
        return stored, judge_call(CallContext.model_validate(body["context"]), rules)

    def is_under_way(self, command_id: str) -> bool:
        """Whether a command is followed to its end, which has not come yet."""
        return ids_of(command_id).call_id in self._flights

    def is_busy(self, sandbox_id: str) -> bool:
        """Whether a call that may change something is under way in a sandbox; a command is until it has ended."""
        flights = (one for one in self._flights.values() if one.info.sandbox_id == sandbox_id)
        return any(one.spec.writes and not keeps_kernel(one.started.argv) for one in flights)

    async def recover(self) -> None:
        """After a restart: finish every call that was under way, or record that it was interrupted.

        Returns at once for commands that still run; they are followed to their end by tasks of the gate.
        """
        for entry in self._ledger.open_calls():
            started = CallStarted.model_validate(entry.body)
            if started.call_id in self._flights:
                continue
            try:
                flight = self._restored(entry, started)
            except ColdframeError as error:
                await self._landing.interrupt(entry, started, error.message)
                continue
            if flight is None:
                await self._landing.interrupt(entry, started, "the server stopped before the tool had answered")
            else:
                self._launch(flight)

    async def close(self) -> None:
        """Let go of every call under way. Commands run on, and `recover` finishes their records at the next start."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for flight in list(self._flights.values()):
            flight.settle(HostUnreachable("the server is stopping; the outcome is not known yet"))
        self._flights.clear()

    # The run, in a task of the gate.

    async def _admit(
        self,
        caller: Caller,
        sandbox_id: str,
        tool: str,
        arguments: dict[str, Any],
        session_id: str | None,
        key: str | None,
        *,
        keep_output: bool,
        content: AsyncIterable[bytes] | None = None,
        view: Callable[[], View] | None = None,
    ) -> Flight | ToolResult:
        if self._closing:
            raise HostUnreachable("the server is stopping", hint="try again in a moment")
        let_in = await self._admission.admit(
            caller, sandbox_id, tool, arguments, session_id, key, keep_output=keep_output, view=view
        )
        if isinstance(let_in, Flight) and let_in.ids.call_id not in self._flights:
            self._launch(let_in, content)
        return let_in

    def _launch(self, flight: Flight, content: AsyncIterable[bytes] | None = None) -> None:
        self._flights[flight.ids.call_id] = flight
        task = flight.loop.create_task(self._fly(flight, content), name=flight.ids.call_id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fly(self, flight: Flight, content: AsyncIterable[bytes] | None) -> None:
        try:
            await show(self._history)  # What ended before is committed now, and is seen by what runs next.
            if not flight.recovered and (untold := await self._settle_taint(flight)) is not None:
                flight.settle(untold)
                return
            if not flight.recovered and (unkept := await self._keep_before(flight)) is not None:
                flight.settle(await self._landing.finish(flight, None, unkept))
                return
            ran, error = await self._run(flight, content)
            unknown = isinstance(error, HostUnreachable)
            # A start is recorded before it is made, so a command without a record has done nothing.
            idle = isinstance(flight.box, PastBox) and isinstance(error, NotFound)
            gone = flight.recovered and isinstance(error, GuestLost)
            if error is not None and (unknown or gone or idle):
                flight.settle(await self._interrupt(flight, error.message, began=not idle))
                return
            flight.settle(await self._landing.finish(flight, ran, error))
        except ColdframeError as error:
            flight.settle(error)
        except asyncio.CancelledError:
            flight.settle(HostUnreachable("the server is stopping; the outcome is not known yet"))
            raise
        except Exception as error:  # noqa: BLE001  # the edge of the task: the caller gets an answer, the log the reason
            _log.exception("call %s failed", flight.ids.call_id)
            flight.settle(Internal(f"call `{flight.ids.call_id}` failed in the gate: {type(error).__name__}"))
        finally:
            if flight.watch is not None:
                flight.watch.close()
            self._flights.pop(flight.ids.call_id, None)
            flight.end()
            if flight.spec.writes:
                self._sandboxes.note_activity(flight.info.sandbox_id)
        if self._history.has_unshown:
            for _ in range(TURNS_TO_ANSWER):
                await asyncio.sleep(0)
            self._history.make_lines()

    async def _settle_taint(self, flight: Flight) -> ColdframeError | None:
        """What runs next may see more than what ran before, and boxes with a network have to know. If they cannot be told,
        it does not run."""
        try:
            await self._taints.settle(flight.info)
        except HostUnreachable as error:
            return await self._interrupt(flight, error.message, began=False)
        return None

    async def _keep_before(self, flight: Flight) -> ColdframeError | None:
        """Take the snapshot that a rule asks for before what it matches begins. If it cannot be taken, that does not."""
        rule_id = flight.decision.snapshot_by
        if rule_id is None or not flight.spec.writes:
            return None
        try:
            await self._snapshots.take_automatic(flight.info.sandbox_id, rule_id=rule_id, call_id=flight.ids.call_id)
        except ColdframeError as error:
            return error
        return None

    async def _interrupt(self, flight: Flight, reason: str, *, began: bool) -> ColdframeError:
        entry = self._ledger.entry(flight.started_seq)
        assert entry is not None
        return await self._landing.interrupt(entry, flight.started, reason, began=began)

    async def _run(
        self, flight: Flight, content: AsyncIterable[bytes] | None
    ) -> tuple[Ran | None, ColdframeError | None]:
        """Run the tool, and go on with it while the host cannot be reached. Returns its answer or its error."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return await self._run_once(flight, content), None
            except HostUnreachable as error:
                # The caller need not wait; a command may run on, and its end is recorded when the host is back.
                flight.settle(error)
                if flight.started.command_id is None:
                    return None, error
                flight.box, flight.attach = PastBox(self._sandboxes, flight.info), True
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_LONGEST_S)
            except GuestLost as error:
                await self._sandboxes.check_alive(flight.info.sandbox_id, error.message)
                if flight.started.command_id is None or isinstance(flight.box, PastBox):
                    return None, error
                flight.box, flight.attach = PastBox(self._sandboxes, flight.info), True
            except ColdframeError as error:
                return None, error
            except Exception as error:  # noqa: BLE001  # a fault of a tool is recorded like any other end of a call
                _log.exception("tool `%s` failed in call %s", flight.spec.name, flight.ids.call_id)
                return None, Internal(f"tool `{flight.spec.name}` failed: {type(error).__name__}")

    async def _run_once(self, flight: Flight, content: AsyncIterable[bytes] | None) -> Ran:
        call: ToolCall[Any] = ToolCall(
            arguments=flight.arguments,
            box=flight.box,
            spec=flight.info.spec,
            command_id=flight.ids.command_id,
            attach=flight.attach,
            keep_output=flight.keep_output,
            emit=flight.emit,
            content=None if content is None else _unbroken(content),
            answer_early=partial(self._answer_early, flight),
            while_running=partial(self._while_running, flight),
            deliver=flight.deliver,
            environment=self._environment(flight.info),
            kernel=flight.kernel,
            show=flight.show,
        )
        if content is None:
            ran = await flight.spec.run(call)
            return ran if flight.info.network is None or ran.command is None else await self._with_contacts(flight, ran)
        flight.work = asyncio.ensure_future(flight.spec.run(call))
        try:
            return await flight.work
        except asyncio.CancelledError:
            if flight.aborted and flight.work.cancelled():
                raise InvalidArgument("the caller left before the content was complete") from None
            flight.work.cancel()
            raise

    def _environment(self, info: SandboxInfo) -> dict[str, str]:
        """What every command of a sandbox has beside what its box gives."""
        given = {} if info.network is None else self._credentials.environment(info)
        given = {**self.lease_environment(info.sandbox_id), **given}
        return {**self.template_environment(info), **given} if info.template_sha256 is not None else given

    async def _with_contacts(self, flight: Flight, ran: Ran) -> Ran:
        """With what went through the broker, which the box knows nothing of. The log has it in any case."""
        assert ran.command is not None
        with contextlib.suppress(HostUnreachable):
            reached = await self._network.contacts_of(flight.info.sandbox_id, flight.ids.command_id)
            if reached:
                more = {"contacts": (*ran.command.contacts, *reached)}
                answer = ran.answer.model_copy(update=more)
                let_through = any(contact.verdict == "allowed" for contact in reached)
                dependencies = self._network.dependencies_of(flight.ids.command_id) if let_through else ()
                return ran._replace(
                    answer=answer, command=ran.command.model_copy(update=more), dependencies=dependencies
                )
        return ran

    def _while_running(self, flight: Flight, running: Callable[[], Answer]) -> None:
        flight.running = running
        if flight.left:
            self._answer_early(flight, running())

    def _answer_early(self, flight: Flight, answer: Answer) -> None:
        try:
            flight.settle(self._landing.early(flight, answer))
        except ColdframeError as error:  # The command goes on, and its end is recorded; only the caller is told less.
            flight.settle(error)

    def _restored(self, entry: LedgerEntry, started: CallStarted) -> Flight | None:
        if started.command_id is None:
            return None
        info = self._sandboxes.find(started.sandbox_id)
        spec = find_tool(started.tool)
        program = started.command if started.command is not None else list(started.argv or ())
        checked = spec.check({"command": program, "outputs": started.outputs})
        rules = self._rules_of(started)
        return Flight(
            ids=ids_of(started.call_id),
            started=started,
            started_seq=entry.seq,
            started_at=entry.at,
            info=info,
            spec=spec,
            arguments=checked,
            facts=checked.facts(),
            rules=rules,
            decision=started.decision,
            box=PastBox(self._sandboxes, info),
            taint=self._sessions.get(started.session_id).taint,
            recovered=True,
            attach=True,
            keep_output=holds_back(rules, started.tool),
        )

    def _rules_of(self, started: CallStarted) -> RuleSet:
        """Return the rules that the call was let in by; those in force if that set no longer loads."""
        try:
            return self._rulebook.past(started.decision.rules_sha256)
        except (NotFound, RulesInvalid):
            return self._rulebook.current


async def _unbroken(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Pass *content* on; a failure of whoever sends it is the caller's fault, typed."""
    try:
        async for part in content:
            yield part
    except ColdframeError:
        raise
    except Exception as error:
        raise InvalidArgument(f"the content broke off: {type(error).__name__}") from error
