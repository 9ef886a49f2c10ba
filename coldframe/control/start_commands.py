"""What a template starts in each sandbox of it: a job like any other, judged and on record as whoever made the sandbox.

Making or starting the sandbox is answered when the ready check has passed. The check is one command inside that tries again
until it passes: nothing is polled from here, and the ledger has one entry of it.
"""

import asyncio
import contextlib
import shlex
from collections import deque

from coldframe.contract.caller import Caller
from coldframe.contract.command import Ended, OutputChunk
from coldframe.contract.declared_inputs import DeclaredInputs
from coldframe.contract.errors import ColdframeError, StartNotReady, from_wire
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.template import HOME_STORE, ReadyCheck, StartCommand
from coldframe.contract.tool import ToolResult
from coldframe.control.gate import Gate
from coldframe.control.outputs import Outputs
from coldframe.control.templates import Templates

AGAIN_S = 0.1
"""Between two tries of a check, inside."""
KEPT_BYTES = 4096
"""Of the end of what was said, in the error."""
TAKE_HOME_S = 600.0
ENDED_WELL = "exit code 0"
_LISTENS = ":%04X [0-9A-F]*:0000 0A"
"""Of a port, in the kernel's table of sockets: somebody listens. To ask by connecting would be a visit that servers see."""


class StartCommands:
    """Of the templates of this installation."""

    def __init__(self, templates: Templates, gate: Gate, outputs: Outputs) -> None:
        self._templates = templates
        self._gate = gate
        self._outputs = outputs

    async def begin(self, caller: Caller, info: SandboxInfo) -> None:
        """Start what the template of a sandbox that runs now starts, if it does, and wait until that is ready.

        Raises:
            StartNotReady: it ended, or did not become ready in its time; the end of its log is in the facts.
            Refused: a rule is against it.
        """
        start = self._templates.settings_of(info.template_sha256).start
        if start is None:
            return
        result = await self._gate.call(
            caller,
            info.sandbox_id,
            "run_command",
            {"command": _line(start), "background": True, **({"user": "root"} if start.user == "root" else {})},
        )
        if result.error is not None:
            raise StartNotReady(
                f"the start command of the template could not be started: {result.error['message']}",
                log="",
                code_of_cause=result.error["code"],
            )
        if start.ready is not None:
            await self._await_ready(caller, info, start, start.ready, str(result.value["command_id"]))

    async def take_home(self, caller: Caller, info: SandboxInfo) -> None:
        """Put what its template has for `/home/user` into the workspace of a sandbox that is new. Raises StartNotReady."""
        if not self._templates.settings_of(info.template_sha256).home:
            return
        line = f"if [ -d {HOME_STORE} ]; then cp -a --no-clobber {HOME_STORE}/. /home/user/; fi"
        result = await self._gate.call(
            caller, info.sandbox_id, "run_command", {"command": line, "timeout_s": TAKE_HOME_S}
        )
        if result.error is not None:
            raise StartNotReady(
                f"what the template has for `/home/user` could not be put there: {result.error['message']}",
                log="",
                code_of_cause=result.error["code"],
            )
        if result.value.get("exit_code") != 0:
            log = str(result.value.get("stderr") or "")[-KEPT_BYTES:]
            raise StartNotReady("what the template has for `/home/user` could not all be put there", log=log)

    async def put_inputs(self, caller: Caller, info: SandboxInfo, inputs: DeclaredInputs) -> None:
        """Put what was declared into a workspace that is new, each file by a call like any other. Raises what refuses it."""
        for one in inputs:
            content = {"content": one.content} if one.content is not None else {"content_base64": one.content_base64}
            given = {"path": one.path, "sha256": one.sha256, **content}
            if one.source is not None:
                given["source"] = one.source
            result = await self._gate.call(caller, info.sandbox_id, "write_file", given)
            if result.error is not None:
                raise from_wire(result.error)

    async def _await_ready(
        self, caller: Caller, info: SandboxInfo, start: StartCommand, ready: ReadyCheck, command_id: str
    ) -> None:
        said: deque[bytes] = deque(maxlen=64)
        serving = asyncio.ensure_future(self._follow(caller, info, command_id, said))
        checking = asyncio.ensure_future(self._check(caller, info, ready))
        try:
            await asyncio.wait({serving, checking}, return_when=asyncio.FIRST_COMPLETED)
            if start.may_end and serving.done() and serving.result() == ENDED_WELL:
                await asyncio.wait({checking})
            if checking.done() and checking.result() is None:
                return
            if checking.done():
                reason = str(checking.result())
            else:
                reason = f"the start command ended before it was ready: {serving.result()}"
        finally:
            for task in (serving, checking):
                task.cancel()
            await asyncio.gather(serving, checking, return_exceptions=True)
        log = b"".join(said)[-KEPT_BYTES:].decode("utf-8", "replace")
        raise StartNotReady(reason, log=log, command_id=command_id)

    async def _check(self, caller: Caller, info: SandboxInfo, ready: ReadyCheck) -> str | None:
        """None once it has passed, or why it has not."""
        if ready.command is not None:
            test = f"/bin/bash -c {shlex.quote(ready.command)} >/dev/null 2>&1"
            what = "its check"
        else:
            test = f"grep -q '{_LISTENS % (ready.port or 0)}' /proc/net/tcp /proc/net/tcp6 2>/dev/null"
            what = f"a server at port {ready.port}"
        line = f"until {test}; do sleep {AGAIN_S}; done"
        result: ToolResult = await self._gate.call(
            caller, info.sandbox_id, "run_command", {"command": line, "timeout_s": ready.timeout_s}
        )
        if result.error is not None:
            return f"the ready check could not be made: {result.error['message']}"
        if result.value.get("exit_code") == 0:
            return None
        return f"what the template starts was not ready within {ready.timeout_s:g} s: {what} did not pass"

    async def _follow(self, caller: Caller, info: SandboxInfo, command_id: str, said: deque[bytes]) -> str:
        """How it ended."""
        with contextlib.suppress(ColdframeError):
            async for event in self._outputs.follow(caller, info.sandbox_id, command_id):
                if isinstance(event, OutputChunk):
                    said.append(event.data)
                elif isinstance(event, Ended):
                    return ENDED_WELL if event.result.exit_code == 0 else f"exit code {event.result.exit_code}"
        return "it is gone"


def _line(start: StartCommand) -> str | list[str]:
    command = start.command if isinstance(start.command, str) else list(start.command)
    if start.cwd is None:
        return command
    if isinstance(command, str):
        return f"cd {shlex.quote(start.cwd)} || exit\n{command}"
    return f"cd {shlex.quote(start.cwd)} && exec {shlex.join(command)}"
