"""Previews: ports of sandboxes that are shared, looked at, stopped, started again, and taken back.

To share one is an act that rules judge by the name `share_port`. What serves is a command like any other, started through
the gate as whoever asks; so nothing runs for a preview that could not run without it. The address is that of the sandbox
on which it was made, and stays, also where another one serves by now.
"""

import asyncio
import builtins
import contextlib
import hashlib
import math
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    InvalidArgument,
    LimitReached,
    NotFound,
    PreviewLabelled,
    WrongState,
    from_wire,
    next_action,
)
from coldframe.contract.policy import Label, Role
from coldframe.contract.preview import (
    PreviewChange,
    PreviewCreated,
    PreviewInfo,
    PreviewInputs,
    PreviewLinkRequest,
    PreviewRequest,
    PreviewStatus,
    ServerStart,
)
from coldframe.contract.sandbox import WITH_BOX, SandboxInfo
from coldframe.contract.tool import ToolResult
from coldframe.control.acts import Acts
from coldframe.control.gate import Gate
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.outputs import Outputs
from coldframe.control.preview_access import TOKEN_PREFIX, PreviewAccess, standing
from coldframe.control.preview_commands import PreviewCommands
from coldframe.control.preview_inputs import PreviewInputsTaken
from coldframe.control.preview_rows import PreviewRow, PreviewRows
from coldframe.control.preview_states import PreviewStates
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store

MOST_OF_SANDBOX = 100
LOOK_AGAIN_S = 0.1
"""Between two looks at something that is being started."""
END_S = 10.0
"""For a command that is to end before it is started again; then it is ended by force."""
_TERM, _KILL = 15, 9


class Previews:
    """Those of this installation."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        rows: PreviewRows,
        access: PreviewAccess,
        states: PreviewStates,
        inputs: PreviewInputsTaken,
        commands: PreviewCommands,
        sandboxes: Sandboxes,
        judged: JudgedActs,
        gate: Gate,
        outputs: Outputs,
        lifecycle: Lifecycle,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._rows = rows
        self.access = access
        self._states = states
        self._inputs = inputs
        self._commands = commands
        self._sandboxes = sandboxes
        self._judged = judged
        self._gate = gate
        self._outputs = outputs
        self._lifecycle = lifecycle
        self._clock = clock
        self._looked_for: set[str] = set()
        """Previews whose command is looked for now."""
        self._acts = Acts()
        self.access.learn = self._learn
        self.place: Callable[[str], str | None] = lambda _: None
        """The URL of an address at the edge of this installation; None without one."""

    async def close(self) -> None:
        self.access.close()
        await self._acts.close()

    # -- sharing -------------------------------------------------------------------------------

    async def create(self, caller: Caller, sandbox_id: str, asked: PreviewRequest) -> PreviewCreated:
        """Share a port, and start what serves on it if that is said; answers when it serves.

        Raises:
            GrantMissing, NotFound: not the caller's.
            Refused: a rule is against it. PreviewLabelled: what it shows is labelled higher than asked for.
            Conflict: it is shared already.
            PreviewUnavailable: it was started, and does not serve; what was shared is taken back.
            WrongState: the sandbox does not run.
        """
        self._judged.require_grant(caller, "preview.create", "share_port", sandbox_id)
        if asked.public:
            self._judged.require_grant(caller, "preview.publish", "share_port", sandbox_id)
        return await self._acts.whole(self._create(caller, self._sandboxes.get(caller, sandbox_id), asked))

    async def _create(self, caller: Caller, info: SandboxInfo, asked: PreviewRequest) -> PreviewCreated:
        if asked.start is not None:
            self._sandboxes.require_running(info)
        label = self.access.label_of(info)
        up_to = asked.up_to or (Label.PUBLIC if asked.public else label)
        if label.rank > up_to.rank:
            raise PreviewLabelled(
                f"what this sandbox shows is labelled {label.value}, and it would be shared up to {up_to.value}",
                label=label.value,
                up_to=up_to.value,
            )
        told = {"port": asked.port, "public": asked.public, "up_to": up_to.value}
        _, judged = self._judged.allow(caller, info, "share_port", told)
        token = None if asked.public else TOKEN_PREFIX + secrets.token_urlsafe(32)
        now = self._clock()
        terms = asked.model_dump(mode="json", include={"start", "setup", "health_path", "answer_timeout_s"})
        if terms["start"] is not None:
            terms["start"]["env"] = dict.fromkeys(terms["start"]["env"], "")  # names alone
        row = PreviewRow(
            preview_id=f"prv_{secrets.token_hex(10)}",
            label_id=info.sandbox_id.removeprefix("sbx_"),
            port=asked.port,
            sandbox_id=info.sandbox_id,
            name=asked.name,
            public=asked.public,
            up_to=up_to,
            token_digest=None if token is None else hashlib.sha256(token.encode()).digest(),
            cookie_key=secrets.token_bytes(32),
            terms=terms,
            command_id=None,
            started_at=None,
            stopped_by=None,
            inputs=None,
            created_by=caller.name,
            created_at=now,
            expires_at=None if asked.expires_in_s is None else now + timedelta(seconds=asked.expires_in_s),
            revoked_at=None,
        )
        with self._store.transaction(durable=True) as connection:
            before = self._rows.at(row.label_id, row.port)
            if before is not None and before.port == row.port and before.revoked_at is None:
                raise Conflict(
                    f"port {row.port} is shared already",
                    hint="change that preview, or take it back first",
                    next_actions=[next_action("preview.show", "shows it", preview_id=before.preview_id)],
                    preview_id=before.preview_id,
                )
            if len(self._living(info.sandbox_id)) >= MOST_OF_SANDBOX:
                raise WrongState(f"a sandbox has {MOST_OF_SANDBOX} previews at most", hint="take some back")
            self._rows.add(row, connection)
            body = {**_told(row), "caller": caller.name, **told, **judged}
            self._ledger.append("preview.created", row.preview_id, body, connection=connection, durable=True)
        try:
            row = await self._begin(caller, info, row, asked)
        except BaseException as error:
            row = await self._take_back(row, caller.name)
            if asked.start is not None and row.command_id is not None:
                await self._abandon(caller, row, error)
            raise
        status = await self._status(caller, row)
        return PreviewCreated(**{**dict(self._info(row)), "status": status, "token": token})

    async def _begin(self, caller: Caller, info: SandboxInfo, row: PreviewRow, asked: PreviewRequest) -> PreviewRow:
        """Start it, or find out what serves already, and record from what it can be made again."""
        if asked.start is None:
            row = await self._learned(row)
            if asked.record:
                row = await self._recorded(caller, info, row, row.start)
            return row
        inputs = None
        if asked.record is not False:
            try:
                inputs = await self._inputs.take(caller, info, asked.start, asked.setup)
            except (
                WrongState,
                LimitReached,
            ):  # none is to be had here, as where an ordinary user cannot hold processes still
                if asked.record:
                    raise
        try:
            await self.set_up(caller, info.sandbox_id, asked.setup, asked.start)
            row = await self.run(caller, row, asked.start)
        except BaseException:
            if inputs is not None:
                await self._inputs.forget(caller.name, inputs.snapshot_id)
            raise
        return row if inputs is None else await self._with_inputs(caller, row, inputs)

    async def _recorded(
        self, caller: Caller, info: SandboxInfo, row: PreviewRow, start: ServerStart | None
    ) -> PreviewRow:
        if start is None:
            raise InvalidArgument(
                f"no command that serves on port {row.port} is on record, so it could not be made again",
                hint="say `start`",
                argument="record",
            )
        inputs = await self._inputs.take(caller, info, start, tuple(row.terms.get("setup") or ()))
        return await self._with_inputs(caller, row, inputs)

    async def _with_inputs(self, caller: Caller, row: PreviewRow, inputs: PreviewInputs) -> PreviewRow:
        body = None
        try:
            with contextlib.suppress(ColdframeError):
                body = (await self._states.ask(row)).body_sha256
            packages = await self._inputs.packages(caller, self._sandboxes.find(row.sandbox_id))
        except BaseException:
            await self._inputs.forget(caller.name, inputs.snapshot_id)
            raise
        inputs = inputs.model_copy(update={"body_sha256": body, "packages": packages})
        row = self._put(row, inputs=inputs)
        told = {"snapshot_id": inputs.snapshot_id, "tree_sha256": inputs.tree_sha256, "body_sha256": body}
        self._ledger.append("preview.recorded", row.preview_id, {**_told(row), **told, "caller": caller.name})
        return row

    async def _learned(self, row: PreviewRow) -> PreviewRow:
        """With the command that serves, if it was not on record and can be seen now."""
        if row.command_id is not None or row.revoked_at is not None:
            return row
        found = await self._commands.serving(row)
        now = self._rows.by_id(row.preview_id) or row
        return self._put(row, **found) if found and now.command_id is None else now

    def _learn(self, row: PreviewRow) -> None:
        """A visitor came through, so something serves. Nobody waits for what is found."""
        if row.preview_id in self._looked_for:  # any number of visitors come at once
            return
        self._looked_for.add(row.preview_id)
        looked = asyncio.ensure_future(self._acts.whole(self._learned(row)))
        looked.add_done_callback(_settle)
        looked.add_done_callback(lambda _: self._looked_for.discard(row.preview_id))

    # -- what serves ---------------------------------------------------------------------------

    async def set_up(self, caller: Caller, sandbox_id: str, setup: tuple[str, ...], start: ServerStart) -> None:
        """Run lines one after the other. Raises WrongState: one has failed, with the end of what it has printed."""
        for line in setup:
            arguments = {"command": line, "cwd": start.cwd, "user": start.user}
            result = await self._gate.call(caller, sandbox_id, "run_command", arguments)
            if result.error is not None:
                raise from_wire(result.error)
            if result.value.get("exit_code") != 0:
                said = f"{result.value.get('stdout') or ''}\n{result.value.get('stderr') or ''}"
                raise WrongState(
                    f"`{line[:200]}` has ended with exit code {result.value.get('exit_code')}",
                    hint="look at `log_lines`",
                    line=line[:1000],
                    exit_code=result.value.get("exit_code"),
                    command_id=result.value.get("command_id"),
                    log_lines=[*said.strip().split("\n")[-50:]],
                )

    async def run(self, caller: Caller, row: PreviewRow, start: ServerStart) -> PreviewRow:
        """Start it, and return once it answers. Raises PreviewUnavailable: it does not; Refused."""
        return await self._run(caller, row, start, at_once=True)

    async def start_at(self, caller: Caller, row: PreviewRow, start: ServerStart) -> PreviewRow:
        """The same where its address does not lead yet: it does once that serves."""
        return await self._run(caller, row, start, at_once=False)

    async def _run(self, caller: Caller, row: PreviewRow, start: ServerStart, *, at_once: bool) -> PreviewRow:
        result: ToolResult = await self._gate.call(caller, row.sandbox_id, "start_server", _arguments(start))
        if result.error is not None:
            raise from_wire(result.error)
        new: dict[str, Any] = {
            "command_id": str(result.value["command_id"]),
            "started_at": self._clock(),
            "stopped_by": None,
        }
        row = self._put(row, **new) if at_once else row._replace(**new)
        try:
            await self._await_ready(row, start)
        except BaseException as error:
            if not at_once:
                await self._abandon(caller, row, error)
            raise
        return row if at_once else self._put(row, sandbox_id=row.sandbox_id, **new)

    async def _abandon(self, caller: Caller, row: PreviewRow, error: BaseException) -> None:
        """Leave nothing running that was started in vain."""
        with contextlib.suppress(ColdframeError):
            await self._end_command(caller, row)
        if isinstance(error, ColdframeError) and error.facts.get("log_lines"):
            await self._seen_by(caller, row)

    async def _seen_by(self, caller: Caller, row: PreviewRow) -> None:
        """Whoever is told the end of its log has read it, as labels count that."""
        if caller.role is Role.AGENT and row.command_id is not None:
            await self._outputs.join(caller, row.sandbox_id, row.command_id)

    async def _status(self, caller: Caller, row: PreviewRow) -> PreviewStatus:
        status = await self._states.status(row)
        if status.log_lines:
            await self._seen_by(caller, row)
        return status

    async def _await_ready(self, row: PreviewRow, start: ServerStart) -> None:
        until = asyncio.get_running_loop().time() + start.ready_timeout_s
        while True:
            try:
                await self._states.ask(row)
                return
            except ColdframeError as found:
                error = await self._states.why(row, row.port, found)
            if error.code not in (
                "PREVIEW_STARTING",
                "PREVIEW_NOT_LISTENING",
                "PREVIEW_UNHEALTHY",
                "PREVIEW_PORT_MOVED",
            ):
                raise error
            if asyncio.get_running_loop().time() > until:
                raise error
            await asyncio.sleep(LOOK_AGAIN_S)

    async def stop(self, caller: Caller, preview_id: str) -> PreviewInfo:
        """End what serves; the address stays, and says so. Raises GrantMissing, NotFound, WrongState."""
        row = await self._learned(self._own(caller, preview_id, "preview.stop"))
        if row.command_id is None:
            raise WrongState("no command that serves is on record", hint="end the server itself", preview_id=preview_id)
        await self._end_command(caller, row)
        row = self._put(row, stopped_by=caller.name)
        self._ledger.append("preview.stopped", row.preview_id, {**_told(row), "caller": caller.name})
        self.access.check_again(row.sandbox_id)
        return self._info(row)

    async def restart(self, caller: Caller, preview_id: str, env: dict[str, str] | None = None) -> PreviewInfo:
        """Wake the sandbox, end what serves and start it again; answers when it serves, under the same address.

        Raises:
            GrantMissing, NotFound.
            WrongState: no command is on record. InvalidArgument: a variable is not given.
            PreviewEnded: the sandbox has ended; `rebuild` makes it again elsewhere.
            PreviewUnavailable: it was started, and does not serve.
        """
        row = self._own(caller, preview_id, "preview.restart")
        return await self._acts.whole(self._restart(caller, row, env or {}))

    async def _restart(self, caller: Caller, row: PreviewRow, env: dict[str, str]) -> PreviewInfo:
        row = await self._learned(row)
        start = row.start
        if start is None:
            raise WrongState(
                "no command that serves is on record, so it cannot be started again",
                hint="start the server in the sandbox: its address is the same",
                preview_id=row.preview_id,
            )
        start = given(start, env)
        info = self._sandboxes.find(row.sandbox_id)
        if info.state.state in ("paused", "stopped"):
            await self._lifecycle.resume(caller, row.sandbox_id)
        elif (error := standing(info)) is not None:
            raise error
        if row.command_id is not None:
            await self._end_command(caller, row)
        self._ledger.append("preview.restarted", row.preview_id, {**_told(row), "caller": caller.name})
        try:
            row = await self.run(caller, row, start)
        except ColdframeError as error:
            if error.facts.get("log_lines"):
                await self._seen_by(caller, self._rows.by_id(row.preview_id) or row)
            raise
        return self._info(row, await self._status(caller, row))

    async def _end_command(self, caller: Caller, row: PreviewRow) -> None:
        """Raises WrongState: it has not ended, whatever was sent to it; or why that cannot be seen."""
        assert row.command_id is not None
        if await self._has_ended(row):
            return
        for signal in (_TERM, _KILL):
            with contextlib.suppress(NotFound, WrongState):
                await self._outputs.signal(caller, row.sandbox_id, row.command_id, signal, cancel=signal == _TERM)
            until = asyncio.get_running_loop().time() + END_S
            while asyncio.get_running_loop().time() < until:
                if await self._has_ended(row):
                    return
                await asyncio.sleep(LOOK_AGAIN_S)
        raise WrongState(
            f"the command that serves has not ended within {END_S:g} s of a KILL",
            hint="stop the sandbox",
            preview_id=row.preview_id,
            command_id=row.command_id,
        )

    async def _has_ended(self, row: PreviewRow) -> bool:
        """Whether nothing of it runs. Raises ColdframeError: there is a box, and it does not say."""
        info = self._sandboxes.find(row.sandbox_id)
        if info.state.state not in WITH_BOX:
            return True
        try:
            command, processes = await self._sandboxes.seen_inside(info, row.command_id)
        except ColdframeError:
            if self._sandboxes.find(row.sandbox_id).state.state not in WITH_BOX:
                return True
            raise
        left = [one for one in processes if one.command_id == row.command_id and one.state != "zombie"]
        return (command is None or command.state != "running") and not left

    # -- looking -------------------------------------------------------------------------------

    def list(self, caller: Caller, sandbox_id: str | None = None) -> builtins.list[PreviewInfo]:
        """The caller's, newest first, those that were taken back too. Raises GrantMissing, NotFound."""
        require(caller, "preview.read")
        if sandbox_id is not None:
            self._sandboxes.get(caller, sandbox_id)
        found = []
        for row in self._rows.of_sandbox(sandbox_id):
            with contextlib.suppress(NotFound):
                self._sandboxes.get(caller, row.sandbox_id)
                found.append(self._info(row))
        return found

    async def get(self, caller: Caller, preview_id: str) -> PreviewInfo:
        """One, as it stands now. Raises GrantMissing, NotFound."""
        row = await self._learned(self._own(caller, preview_id, "preview.read"))
        return self._info(row, await self._status(caller, row))

    async def log(self, caller: Caller, preview_id: str, lines: int) -> tuple[str, ...]:
        """The end of what it has printed. Raises GrantMissing, NotFound; DeniedByRule: a rule withholds it."""
        row = await self._learned(self._own(caller, preview_id, "preview.read"))
        if row.command_id is not None:
            await self._outputs.output(caller, row.sandbox_id, row.command_id, "stdout", 0, 1)  # as anybody may read it
        return await self._states.log(row, lines)

    def link(self, caller: Caller, preview_id: str, asked: PreviewLinkRequest) -> tuple[PreviewInfo, str, datetime]:
        """A secret that opens it once, and until when. Raises GrantMissing, NotFound, WrongState: it was taken back."""
        row = self._own(caller, preview_id, "preview.link")
        self._require_living(row)
        secret, until = self.access.make_link(row, caller, asked)
        life_s = None if asked.expires_in_s is None else math.ceil(asked.expires_in_s)
        body = {**_told(row), "caller": caller.name, "role": asked.role, "expires_in_s": life_s}
        self._ledger.append("preview.linked", row.preview_id, body)
        return self._info(row), secret, until

    # -- change --------------------------------------------------------------------------------

    async def change(self, caller: Caller, preview_id: str, asked: PreviewChange) -> PreviewInfo:
        """Share it otherwise, or record from what it is made. Whoever would not be let in now is sent away at once. To share it
        with fewer takes no right to share, and no rule is asked about it.

        Raises GrantMissing, NotFound, WrongState, PreviewLabelled; Refused: a rule is against it. InvalidArgument: no command
        that serves is on record.
        """
        row = self._own(caller, preview_id, "preview.revoke")
        self._require_living(row)
        if asked.record:
            require(caller, "preview.create")
            if row.inputs is None:
                await self._acts.whole(self._record_now(caller, self._sandboxes.find(row.sandbox_id), row))
                row = self._own(
                    caller, preview_id, "preview.revoke"
                )  # somebody may have shared it with fewer meanwhile
                self._require_living(row)
        public = row.public if asked.public is None else asked.public
        up_to = asked.up_to or (Label.PUBLIC if public else row.up_to)
        expires_at = row.expires_at
        if asked.expires_in_s is not None:
            expires_at = self._clock() + timedelta(seconds=asked.expires_in_s)
        changed = row._replace(public=public, up_to=up_to, expires_at=expires_at)
        shares_more = _shares_more(row, changed)
        if shares_more:
            require(caller, "preview.create")
        if public and shares_more:
            self._judged.require_grant(caller, "preview.publish", "share_port", row.sandbox_id)
        if public and up_to is not Label.PUBLIC:
            raise InvalidArgument("a `public` preview shows what is labelled PUBLIC, and no more", argument="up_to")
        info = self._sandboxes.find(row.sandbox_id)
        label = self.access.label_of(info)
        if (asked.up_to is not None or asked.public) and label.rank > up_to.rank:
            raise PreviewLabelled(f"what it shows is labelled {label.value}", label=label.value, up_to=up_to.value)
        told: dict[str, Any] = {"port": row.port, "public": public, "up_to": up_to.value}
        judged = self._judged.allow(caller, info, "share_port", told)[1] if shares_more else {}
        new: dict[str, Any] = {"public": public, "up_to": up_to, "expires_at": expires_at}
        if asked.end_links:
            new["cookie_key"], told["end_links"] = secrets.token_bytes(32), True
        with self._store.transaction(durable=True) as connection:
            changed = (self._rows.by_id(row.preview_id) or row)._replace(**new)
            self._rows.put(changed, connection)
            body = {**_told(row), "caller": caller.name, **told, **judged}
            self._ledger.append("preview.changed", row.preview_id, body, connection=connection, durable=True)
        if asked.end_links:
            self.access.end_links(row.preview_id)
        self.access.check_again(row.sandbox_id)
        return self._info(changed)

    async def _record_now(self, caller: Caller, info: SandboxInfo, row: PreviewRow) -> None:
        row = await self._learned(row)
        await self._recorded(caller, info, row, row.start)

    async def revoke(self, caller: Caller, preview_id: str) -> PreviewInfo:
        """Take it back: nobody is let in from now on, and who is in is sent away. What serves goes on, and from what it
        was made is not kept. Idempotent.

        Raises GrantMissing, NotFound.
        """
        row = self._own(caller, preview_id, "preview.revoke")
        return self._info(await self._acts.whole(self._take_back(row, caller.name)))

    async def _take_back(self, row: PreviewRow, by: str) -> PreviewRow:
        row = self._rows.by_id(row.preview_id) or row
        if row.revoked_at is not None:
            return row
        row = row._replace(revoked_at=self._clock(), cookie_key=secrets.token_bytes(32))
        with self._store.transaction(durable=True) as connection:
            self._rows.put(row, connection)
            body = {**_told(row), "caller": by}
            self._ledger.append("preview.revoked", row.preview_id, body, connection=connection, durable=True)
        self.access.check_again(row.sandbox_id)
        if row.inputs is not None:
            with contextlib.suppress(ColdframeError):  # the next start removes it
                await self._inputs.forget(by, row.inputs.snapshot_id)
        return row

    # -- rows ----------------------------------------------------------------------------------

    def own(self, caller: Caller, preview_id: str, operation: str) -> PreviewRow:
        """Raises GrantMissing, NotFound."""
        return self._own(caller, preview_id, operation)

    def _own(self, caller: Caller, preview_id: str, operation: str) -> PreviewRow:
        require(caller, operation)
        row = self._rows.by_id(preview_id)
        if row is not None:
            with contextlib.suppress(NotFound):
                self._sandboxes.get(caller, row.sandbox_id)
                return row
        raise NotFound(
            f"no preview `{preview_id[:80]}`",
            next_actions=[next_action("preview.list", "lists the previews that are yours")],
            preview_id=preview_id[:80],
        )

    def _require_living(self, row: PreviewRow) -> None:
        if row.revoked_at is not None:
            raise WrongState(
                f"preview `{row.preview_id}` was taken back", hint="share the port again", preview_id=row.preview_id
            )

    def _living(self, sandbox_id: str) -> builtins.list[PreviewRow]:
        return [one for one in self._rows.of_sandbox(sandbox_id) if one.revoked_at is None]

    def _put(self, row: PreviewRow, **values: Any) -> PreviewRow:
        """With these from now on, and what was changed meanwhile."""
        with self._store.transaction() as connection:
            now = (self._rows.by_id(row.preview_id) or row)._replace(**values)
            self._rows.put(now, connection)
        return now

    def put(self, row: PreviewRow, **values: Any) -> PreviewRow:
        return self._put(row, **values)

    def info(self, row: PreviewRow) -> PreviewInfo:
        return self._info(row)

    def _info(self, row: PreviewRow, status: Any = None) -> PreviewInfo:
        label = None
        with contextlib.suppress(ColdframeError):
            label = self.access.label_of(self._sandboxes.find(row.sandbox_id))
        return row.info().model_copy(
            update={"status": status, "label": label, "url": self.place(row.address) if row.port else None}
        )


def _settle(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


def _shares_more(row: PreviewRow, changed: PreviewRow) -> bool:
    """With others, more, or for longer."""
    longest = datetime.max.replace(tzinfo=UTC)
    return (
        (changed.public and not row.public)
        or changed.up_to.rank > row.up_to.rank
        or (changed.expires_at or longest) > (row.expires_at or longest)
    )


def _arguments(start: ServerStart) -> dict[str, Any]:
    command = start.command if isinstance(start.command, str) else list(start.command)
    arguments: dict[str, Any] = {"command": command, "cwd": start.cwd, "background": True, "user": start.user}
    return {**arguments, "env": start.env} if start.env else arguments


def given(start: ServerStart, env: dict[str, str]) -> ServerStart:
    """With the values of its variables, of which the names alone are kept. Raises InvalidArgument."""
    if lacking := sorted(set(start.env) - set(env)):
        raise InvalidArgument(
            f"the value of `{lacking[0]}` is not on record: give it", argument="env", names=[*lacking]
        )
    return start.model_copy(update={"env": {name: env[name] for name in start.env}})


def _told(row: PreviewRow) -> dict[str, Any]:
    return {"preview_id": row.preview_id, "sandbox_id": row.sandbox_id, "port": row.port}
