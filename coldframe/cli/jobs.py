"""`coldframe job`: commands that go on by themselves; started, looked at, sent to and ended from anywhere, at any time."""

import contextlib
import os
import signal as signals
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coldframe.cli.output import (
    EXIT_NOT_NOW,
    EXIT_UNAVAILABLE,
    Chosen,
    next_lines,
    note,
    show,
    show_json,
    show_table,
    write_bytes,
)
from coldframe.cli.running import Cwd, Env, Printer, Shell, ShellSession, Stdin, Timeout, User, Words, command_arguments

if TYPE_CHECKING:
    from coldframe.client.sync import Job
    from coldframe.contract.command import CommandInfo

app = typer.Typer(help="Commands that go on by themselves.", no_args_is_help=True)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox; it may have ended.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the command.")]
Idle = Annotated[float | None, typer.Option(help="Longest silence, in seconds.")]
Cpu = Annotated[float | None, typer.Option(help="CPU time, in seconds.")]
LEAVE = b"\x1d"
"""Ctrl-]: typed at our terminal, it leaves and ends nothing."""
READ_BYTES = 64 * 1024


@app.command()
def start(
    sandbox: SandboxId,
    command: Words = None,
    *,
    shell: Shell = None,
    cwd: Cwd = None,
    env: Env = None,
    timeout_s: Timeout = None,
    idle_timeout_s: Idle = None,
    cpu_s: Cpu = None,
    stdin: Stdin = False,
    open_stdin: Annotated[bool, typer.Option(help="Keep its input open: more is sent with `job stdin`.")] = False,
    pty: Annotated[bool, typer.Option(help="Run it on a terminal.")] = False,
    user: User = None,
    shell_session: ShellSession = None,
) -> None:
    """Start a command, and print its id as soon as it runs."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import from_wire

    arguments = command_arguments(command, shell, cwd=cwd, env=env, timeout_s=timeout_s, stdin=stdin)
    more: dict[str, Any] = {
        "idle_timeout_s": idle_timeout_s,
        "cpu_s": cpu_s,
        "shell_session": shell_session,
        "user": user,
    }
    arguments |= {name: value for name, value in more.items() if value is not None}
    arguments |= {name: True for name, value in (("stdin_open", open_stdin), ("pty", pty)) if value}
    arguments["background"] = True
    with connect() as client:
        result = client.sandboxes.get(sandbox).call("run_command", arguments)
    if result.error is not None:
        raise from_wire(result.error)
    show(result, str(result.value["command_id"]))


@app.command("list")
def list_(sandbox: SandboxId) -> None:
    """List the commands of a sandbox, those that have ended too."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).commands()
    rows = [(one.command_id, _state(one), _code(one), one.started_at, one.command_line[:100]) for one in found]
    show_table(found, ("job", "state", "exit code", "started", "command"), rows, empty="no commands")


@app.command("show")
def show_(sandbox: SandboxId, job: JobId) -> None:
    """Show how a command stands, and what can be done."""
    with _job(sandbox, job) as found:
        info = found.info()
    lines = [f"{info.command_id} {_state(info)} {_code(info)}".rstrip(), f"  {info.command_line}"]
    if (doing := info.activity) is not None:
        idle = "" if doing.idle_timeout_s is None else f", {doing.idle_timeout_s:g} s without output"
        lines.append(f"  runs for {doing.running_for_s:.0f} s of {doing.timeout_s:g}{idle}")
        lines.append(f"  used {doing.cpu_used_s:.1f} s of CPU time of {doing.cpu_s:g}")
        lines.append(f"  silent for {doing.silent_for_s:.0f} s, waits for {doing.waiting_for or 'time or the network'}")
    if info.status is not None:
        lines += [f"  {info.status.message}"] if info.status.message else []
        offered = next_lines(info.status.next_actions, sandbox_id=sandbox, command_id=info.command_id)
        lines += [f"  {line}" for line in offered]
    show(info, "\n".join(lines))


@app.command()
def logs(
    sandbox: SandboxId,
    job: JobId,
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    after_seq: Annotated[int, typer.Option(help="With -f: only chunks after this number.")] = -1,
) -> None:
    """Write what a command has written, byte for byte; with --json and -f one event a line, with its time."""
    from coldframe.contract.command import Ended

    with _job(sandbox, job) as found:
        if not follow:
            streams: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
            for number, stream in enumerate(streams, 1):
                for part in found.output_parts(stream):  # it may be more than fits into memory
                    write_bytes(number, part)
            return
        printer = Printer()
        for event in found.follow(after_seq=after_seq):
            if Chosen.as_json:
                show_json(event)
            elif not isinstance(event, Ended):
                printer.take(event)


@app.command()
def wait(
    sandbox: SandboxId,
    job: JobId,
    *,
    timeout_s: Annotated[float | None, typer.Option(help="Longest time to wait, in seconds.")] = None,
) -> int:
    """Wait for the end of a command, and end with its exit code; with 6 if it runs on after the time."""
    with _job(sandbox, job) as found:
        info = found.wait(timeout_s)
    if Chosen.as_json:
        show_json(info)
    elif info.state == "running":
        note(f"{job} runs on")
    elif info.status is not None and info.status.message:
        note(info.status.message)
    if info.state == "running":
        return EXIT_NOT_NOW
    return EXIT_UNAVAILABLE if info.result is None or info.result.exit_code is None else info.result.exit_code


@app.command()
def stop(sandbox: SandboxId, job: JobId) -> None:
    """End a command and all its processes: TERM, then KILL."""
    with _job(sandbox, job) as found:
        if found.info().state == "running":
            found.cancel()
        info = found.wait()
    show(info, f"{job} is {_state(info)}")


@app.command()
def signal(
    sandbox: SandboxId, job: JobId, name: Annotated[str, typer.Argument(metavar="SIGNAL", help="As TERM, or 15.")]
) -> None:
    """Send a signal to a command and all its processes."""
    from coldframe.contract.errors import InvalidArgument

    named = getattr(signals, f"SIG{name.upper().removeprefix('SIG')}", None)
    if not name.isdigit() and not isinstance(named, signals.Signals):
        raise InvalidArgument(f"`{name}` is no signal", hint="as in TERM, INT, HUP, or a number", argument="signal")
    number = int(name) if name.isdigit() else int(named or 0)
    with _job(sandbox, job) as found:
        found.signal(number)
    show({"ok": True}, f"sent {number} to {job}")


@app.command()
def stdin(
    sandbox: SandboxId,
    job: JobId,
    *,
    keep_open: Annotated[bool, typer.Option(help="Leave its input open behind ours.")] = False,
) -> None:
    """Send our standard input to a command, to its end."""
    with _job(sandbox, job) as found:
        while data := os.read(0, READ_BYTES):
            found.send_stdin(data)
        state = found.send_stdin(b"", end=not keep_open)
    show(state, f"{job} has taken {state.taken} bytes")


@app.command()
def extend(
    sandbox: SandboxId, job: JobId, *, timeout_s: Timeout = None, idle_timeout_s: Idle = None, cpu_s: Cpu = None
) -> None:
    """Give a running command more time, or less; each counted from its start."""
    with _job(sandbox, job) as found:
        found.extend(timeout_s=timeout_s, idle_timeout_s=idle_timeout_s, cpu_s=cpu_s)
        info = found.info()
    show(info, f"{job} is {_state(info)}")


@app.command()
def attach(sandbox: SandboxId, job: JobId) -> int:
    """Be at a command: see all it writes, type into it, end with its exit code. Ctrl-] leaves it running."""
    with _job(sandbox, job) as found, _typing(found):
        printer = Printer()
        try:
            for event in found.follow():
                printer.take(event)
        except KeyboardInterrupt:
            note(f"left {job}, which runs on")
            return 0
    return printer.exit_code


@contextlib.contextmanager
def _job(sandbox: str, job: str) -> "Iterator[Job]":
    from coldframe.cli.connection import connect

    with connect() as client:
        yield client.sandboxes.get(sandbox).job(job)


def _state(info: "CommandInfo") -> str:
    stalled = info.activity is not None and info.activity.stalled
    return "stalled" if stalled else info.state if info.status is None else info.status.state


def _code(info: "CommandInfo") -> str:
    return "" if info.result is None or info.result.exit_code is None else str(info.result.exit_code)


@contextlib.contextmanager
def _typing(job: "Job") -> Iterator[None]:
    """Meanwhile what is typed, and each new size of our terminal, goes to the job, from a thread of its own.

    Our terminal is raw only for a job that has one as well: else nobody would show what is typed.
    """
    import select
    import termios
    import threading
    import tty

    from coldframe.contract.errors import ColdframeError

    def tell_size() -> bool:
        size = os.get_terminal_size(0)
        try:
            job.resize(size.columns, size.lines)
        except ColdframeError:  # it has none, or has ended
            return False
        return True

    is_raw = os.isatty(0) and tell_size()
    woken, wake = os.pipe()

    def pass_on() -> None:
        # Where it has ended, or takes no input, what it writes is seen all the same.
        with contextlib.suppress(ColdframeError):
            while True:
                ready, _, _ = select.select([0, woken], [], [])
                if woken in ready and os.read(woken, 1) != b"s":
                    return
                if woken in ready:
                    tell_size()
                if 0 in ready:
                    data = os.read(0, READ_BYTES)
                    if os.isatty(0) and LEAVE in data:
                        signals.pthread_kill(threading.main_thread().ident or 0, signals.SIGINT)  # out of its read
                        return
                    job.send_stdin(data, end=not data)
                    if not data:
                        return

    def on_new_size(*_: object) -> None:
        os.write(wake, b"s")

    thread = threading.Thread(target=pass_on, daemon=True, name="typing")
    before = termios.tcgetattr(0) if is_raw else None
    heard = signals.signal(signals.SIGWINCH, on_new_size) if is_raw else None
    try:
        if is_raw:
            tty.setraw(0)
        thread.start()
        yield
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
            signals.signal(signals.SIGWINCH, heard)
        os.write(wake, b"e")
