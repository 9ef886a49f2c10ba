"""`coldframe run` and `coldframe exec`: a command, its bytes as they come, and its own exit code."""

import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldframe.cli.output import EXIT_UNAVAILABLE, Chosen, note, show, show_json, write_bytes

if TYPE_CHECKING:
    from coldframe.client.sync import SyncColdframe, SyncSandbox
    from coldframe.contract.caller import Caller
    from coldframe.contract.command import CommandEvent
    from coldframe.contract.sandbox import SandboxSpec
    from coldframe.contract.tool import ToolResult
    from coldframe.control.control import Control

PASS_ALL = {"allow_interspersed_args": False}
"""For `run`: options end where the command begins, so `coldframe run ls -l` needs no `--`."""
CANCEL_TIMEOUT_S = 5.0
"""How long a second interrupt waits for the cancelling that the first one asked for."""
Words = Annotated[list[str] | None, typer.Argument(metavar="[--] COMMAND...", help="Program and arguments.")]
Shell = Annotated[str | None, typer.Option("-c", help="A line for bash, instead of a program and arguments.")]
Cwd = Annotated[str | None, typer.Option(help="Directory below the workspace.")]
Env = Annotated[list[str] | None, typer.Option("-e", "--env", help="NAME=VALUE, as often as needed.")]
Timeout = Annotated[float | None, typer.Option(help="Wall time in seconds.")]
User = Annotated[str | None, typer.Option(help="user or root; root where the sandbox has a system of its own.")]
ShellSession = Annotated[str | None, typer.Option(help="Go on in this shell session; with -c.")]
Stdin = Annotated[bool, typer.Option("-i", "--stdin", help="Give standard input, to its end, to the command.")]


def run(
    command: Words = None,
    *,
    shell: Shell = None,
    agent: Annotated[
        str | None, typer.Option(help="Run on the workspace of this agent; else on a temporary one.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="Network profile: none, packages, open, or one of the rules.")
    ] = None,
    template: Annotated[str | None, typer.Option(help="The system: host, or debian for one of its own.")] = None,
    user: User = None,
    keep: Annotated[bool, typer.Option(help="Keep the sandbox afterwards; needs a running server.")] = False,
    on_copy: Annotated[
        bool, typer.Option("--copy", help="Run on a copy of the agent's workspace, which is thrown away afterwards.")
    ] = False,
    put_back: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="With --copy: a file to put into the workspace afterwards; as often as needed."
        ),
    ] = None,
    cwd: Cwd = None,
    env: Env = None,
    timeout_s: Timeout = None,
    stdin: Stdin = False,
) -> int:
    """Run a command in a sandbox of its own, with or without a running server."""
    import uuid

    from coldframe.cli.connection import connect_if_running, settings
    from coldframe.cli.sandboxes import make_spec
    from coldframe.contract.errors import Unavailable
    from coldframe.contract.sandbox import checked_agent_id

    arguments = command_arguments(command, shell, cwd=cwd, env=env, timeout_s=timeout_s, stdin=stdin)
    if user is not None:
        arguments["user"] = user
    agent_id = None if agent is None else checked_agent_id(agent)
    system = {} if template is None else {"template": template}
    spec = make_spec(agent_id=agent_id, background=agent is None, network=network, **system)
    client = connect_if_running()
    if on_copy or put_back:
        return _run_on_copy(client, spec, arguments, put_back or [], keep=keep, on_copy=on_copy, template=template)
    if client is None:
        import asyncio

        if keep:
            raise Unavailable("no server runs that could keep the sandbox", hint="start one with `coldframe up`")
        own = spec.model_copy(update={"on_missing": settings().on_missing})
        return asyncio.run(_run_embedded(own, arguments))
    with client:
        key = uuid.uuid4().hex
        try:
            sandbox = client.sandboxes.create(spec=spec, idempotency_key=key)
        except KeyboardInterrupt:
            client.sandboxes.create(spec=spec, idempotency_key=key).terminate(
                discard=True
            )  # the same one, if it was begun
            raise
        try:
            return _run_remote(sandbox, arguments)
        finally:
            if keep:
                note(f"kept as {sandbox.id}")
            else:
                sandbox.terminate(discard=True)  # as was said by the command line, which made it for this alone


def exec_(
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")],
    command: Words = None,
    *,
    shell: Shell = None,
    cwd: Cwd = None,
    env: Env = None,
    timeout_s: Timeout = None,
    stdin: Stdin = False,
    user: User = None,
    shell_session: ShellSession = None,
    background: Annotated[bool, typer.Option(help="Answer as soon as it runs, with the id of the command.")] = False,
) -> int:
    """Run a command in a sandbox that is there already."""
    from coldframe.cli.connection import connect

    arguments = command_arguments(command, shell, cwd=cwd, env=env, timeout_s=timeout_s, stdin=stdin)
    more = {"shell_session": shell_session, "user": user}
    arguments |= {name: value for name, value in more.items() if value is not None}
    with connect() as client:
        found = client.sandboxes.get(sandbox)
        if not background:
            return _run_remote(found, arguments)
        result = found.call("run_command", {**arguments, "background": True})
        _raise_error(result)
        show(result, str(result.value["command_id"]))
        return 0


def command_arguments(
    command: list[str] | None,
    shell: str | None,
    *,
    cwd: str | None,
    env: list[str] | None,
    timeout_s: float | None,
    stdin: bool,
) -> dict[str, Any]:
    """The arguments of `run_command`.

    Raises:
        InvalidArgument: neither or both of a command and `-c`; or a variable without `=`.
    """
    import base64

    from coldframe.contract.errors import InvalidArgument

    if (shell is None) == (not command):
        raise InvalidArgument("give either `-c LINE` or a program with its arguments", hint="as in `-- ls -l`")
    arguments: dict[str, Any] = {"command": shell if shell is not None else list(command or ())}
    if cwd is not None:
        arguments["cwd"] = cwd
    if timeout_s is not None:
        arguments["timeout_s"] = timeout_s
    if env:
        for one in env:
            if "=" not in one:
                raise InvalidArgument(f"`{one}` is not NAME=VALUE", argument="env")
        arguments["env"] = dict(one.split("=", 1) for one in env)
    if stdin:
        arguments["stdin_base64"] = base64.b64encode(sys.stdin.buffer.read()).decode()
    return arguments


class Printer:
    """Writes the events of one command to our own streams and remembers how far it came."""

    def __init__(self) -> None:
        self.command_id: str | None = None
        self.started = threading.Event()
        self.unread = False
        """Nobody reads our output any more."""
        self.exit_code = EXIT_UNAVAILABLE

    def take(self, event: "CommandEvent | ToolResult") -> None:
        from coldframe.contract.command import Ended, OutputChunk, Started

        if isinstance(event, OutputChunk):
            if not self.unread:
                write_bytes(1 if event.stream == "stdout" else 2, event.data)
        elif isinstance(event, Started):
            self.command_id = event.command_id
            self.started.set()
        elif isinstance(event, Ended):
            self._end(event.result.exit_code, timed_out=event.result.timed_out, start_error=event.result.start_error)
        else:
            _raise_error(event)

    def _end(self, code: int | None, *, timed_out: bool, start_error: str | None) -> None:
        if timed_out:
            note("the command was ended: its time was up")
        if start_error:
            note(f"the command did not start: {start_error}")
        if code is None:
            note("the command was lost with its sandbox")
        self.exit_code = EXIT_UNAVAILABLE if code is None else code


def _run_on_copy(
    client: "SyncColdframe | None",
    spec: "SandboxSpec",
    arguments: dict[str, Any],
    paths: list[str],
    *,
    keep: bool,
    on_copy: bool,
    template: str | None,
) -> int:
    from coldframe.cli.copies import run_on_copy
    from coldframe.cli.sandboxes import make_spec
    from coldframe.contract.errors import InvalidArgument, Unavailable

    if spec.agent_id is None or keep or not on_copy:
        raise InvalidArgument(
            "`--copy` is a copy of the workspace of an `--agent`, and is not kept; `--put-back` goes with it",
            hint="use --agent AGENT --copy [--put-back PATH]",
        )
    if client is None:
        raise Unavailable("no server runs that has the workspace", hint="start one with `coldframe up`")
    system = {} if template is None else {"template": template}
    own = make_spec(background=True, ephemeral=True, network=spec.network, **system)
    with client:
        return run_on_copy(client, spec.agent_id, own, partial(_run_remote, arguments=arguments), paths)


def _run_remote(sandbox: "SyncSandbox", arguments: dict[str, Any]) -> int:
    if Chosen.as_json:
        return _show_result(sandbox.call("run_command", arguments))
    printer = Printer()
    with _interruptible(sandbox, printer) as cancel:
        for event in sandbox.run_arguments(arguments):
            try:
                printer.take(event)
            except BrokenPipeError:
                printer.unread = True
                cancel()
    return printer.exit_code


@contextlib.contextmanager
def _interruptible(sandbox: "SyncSandbox", printer: Printer) -> Iterator[Callable[[], None]]:
    """The first SIGINT or SIGTERM cancels the command, whose last words are still shown; the second one leaves it.

    A thread does the cancelling, on a connection of its own, since the main thread is reading.
    Rejected: KeyboardInterrupt, which is swallowed, and the press lost, if it is raised in a finalizer.
    """
    import queue
    import signal

    pressed = False
    presses: queue.SimpleQueue[int] = queue.SimpleQueue()  # may be put to in a handler, whatever that interrupts

    def cancel_once() -> None:
        presses.get()
        printer.started.wait()
        try:
            sandbox.signal(str(printer.command_id), cancel=True)
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            note(f"the command could not be cancelled: {error}")

    def press(number: int, _: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        presses.put(number)

    thread = threading.Thread(target=cancel_once, daemon=True, name="cancel")
    thread.start()
    before = {number: signal.signal(number, press) for number in _heard_signals()}
    try:
        yield lambda: presses.put(0)
    except KeyboardInterrupt:
        thread.join(CANCEL_TIMEOUT_S)  # leave, but not before the command has been told
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run_embedded(spec: "SandboxSpec", arguments: dict[str, Any]) -> int:
    from coldframe.assembly import embedded
    from coldframe.cli.connection import settings
    from coldframe.contract.caller import Caller
    from coldframe.contract.policy import Role

    caller = Caller(token_id="embedded", role=Role.OWNER, surface="embedded")  # noqa: S106
    async with embedded(settings()) as control:
        info = await control.creation.create(caller, spec)
        try:
            if Chosen.as_json:
                return _show_result(await control.gate.call(caller, info.sandbox_id, "run_command", arguments))
            return await _print_embedded(control, caller, info.sandbox_id, arguments)
        finally:
            await control.lifecycle.terminate(caller, info.sandbox_id)


async def _print_embedded(control: "Control", caller: "Caller", sandbox_id: str, arguments: dict[str, Any]) -> int:
    import asyncio

    printer = Printer()
    tasks: set[asyncio.Task[None]] = set()
    asked = False

    def cancel() -> None:
        nonlocal asked
        asked = True
        if printer.command_id is not None:
            tasks.add(
                asyncio.ensure_future(control.outputs.signal(caller, sandbox_id, printer.command_id, 15, cancel=True))
            )

    loop = asyncio.get_running_loop()
    for number in _heard_signals():
        loop.add_signal_handler(number, cancel)
    events: AsyncIterator[Any] = control.gate.stream(caller, sandbox_id, "run_command", arguments)
    async for event in events:
        try:
            printer.take(event)
        except BrokenPipeError:
            printer.unread = True
            cancel()
        if asked and not tasks:  # before the command had an id
            cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    return printer.exit_code


def _heard_signals() -> list[int]:
    """Those that ask us to stop, but not what whoever started us has us ignore: a job in the background of a script."""
    import signal

    return [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]


def _show_result(result: "ToolResult") -> int:
    _raise_error(result)
    show_json(result)
    code = result.value.get("exit_code")
    return EXIT_UNAVAILABLE if code is None else int(code)


def _raise_error(result: "ToolResult") -> None:
    from coldframe.contract.errors import from_wire

    if result.error is not None:
        raise from_wire(result.error)
