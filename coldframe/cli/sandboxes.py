"""`coldframe sandbox`: create, look at, pause, stop and end sandboxes."""

from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, next_lines, show, show_json, show_table

if TYPE_CHECKING:
    from coldframe.contract.files import ProcessInfo
    from coldframe.contract.sandbox import SandboxEnd, SandboxInfo, SandboxSpec

app = typer.Typer(help="Create, look at, pause, stop and end sandboxes.", no_args_is_help=True)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Do nothing, and say what would be lost.")]


@app.command()
def create(
    *,
    agent: Annotated[str | None, typer.Option(help="Agent whose workspace it has.")] = None,
    background: Annotated[bool, typer.Option(help="A temporary workspace, gone with the sandbox.")] = False,
    memory_mib: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    disk_mib: Annotated[int | None, typer.Option(help="Disk in MiB.")] = None,
    pids: Annotated[int | None, typer.Option(help="Most processes.")] = None,
    wall_s: Annotated[float | None, typer.Option(help="Longest wall time of a command, in seconds.")] = None,
    network: Annotated[
        str | None, typer.Option(help="Network profile: none, packages, open, or one of the rules.")
    ] = None,
    idle_timeout_s: Annotated[float | None, typer.Option(help="Seconds without activity before --on-timeout.")] = None,
    max_age_s: Annotated[float | None, typer.Option(help="Seconds from now to --on-timeout in any case.")] = None,
    on_timeout: Annotated[str | None, typer.Option(help="stop, pause or terminate.")] = None,
    on_missing: Annotated[str | None, typer.Option(help="refuse or degrade, where a limit cannot be kept.")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="Refuse unless it holds: a name of the report, or limit:KIND; as often as needed."),
    ] = None,
) -> None:
    """Create a sandbox on the workspace of an agent, or on a temporary one."""
    from coldframe.cli.connection import connect

    caps = {"memory_mib": memory_mib, "disk_mib": disk_mib, "pids": pids, "wall_s": wall_s}
    content: dict[str, object] = {"background": background or agent is None, "agent_id": agent}
    if any(value is not None for value in caps.values()):
        content["limits"] = {name: value for name, value in caps.items() if value is not None}
    given = {
        "on_missing": on_missing,
        "network": network,
        "idle_timeout_s": idle_timeout_s,
        "max_age_s": max_age_s,
        "on_timeout": on_timeout,
    }
    content |= {name: value for name, value in given.items() if value is not None}
    if require:
        content["requires"] = tuple(require)
    with connect() as client:
        info = client.sandboxes.create(spec=make_spec(**content)).info
    show(info, info.sandbox_id)


def make_spec(**content: object) -> "SandboxSpec":
    """What was asked for. Raises InvalidArgument."""
    from pydantic import ValidationError

    from coldframe.contract.errors import InvalidArgument
    from coldframe.contract.sandbox import SandboxSpec

    try:
        return SandboxSpec.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise InvalidArgument(f"`{where}`: {fault['msg']}", argument=where) from None


@app.command("list")
def list_(
    *,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state; as often as needed.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    label: Annotated[str | None, typer.Option(help="Only with this label of the workspace.")] = None,
    after: Annotated[str | None, typer.Option(help="Only those that come after this one.")] = None,
    limit: Annotated[int | None, typer.Option(help="Most that are listed.")] = None,
) -> None:
    """List sandboxes, newest first."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.list(state=state or (), agent_id=agent, label=label, after=after, limit=limit)
    infos = [sandbox.info for sandbox in found]
    rows = [(i.sandbox_id, i.agent_id or "(background)", i.state.state, i.workspace_label, i.created_at) for i in infos]
    show_table(infos, ("sandbox", "agent", "state", "label", "created"), rows, empty="no sandboxes")


@app.command("show")
def show_(sandbox: SandboxId) -> None:
    """Show the state of a sandbox and what can be done."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.sandboxes.get(sandbox).info
    lines = [
        f"{info.sandbox_id}: {info.state.state} since {info.state.since}",
        f"  agent {info.agent_id or '(background)'}, session {info.session_id}, workspace label {info.workspace_label}",
    ]
    if info.state.message:
        lines.append(f"  {info.state.message}")
    if info.expires_at is not None:
        lines.append(f"  {info.spec.on_timeout} at {info.expires_at} by a timer, unless it is extended or used")
    if info.network is not None:
        lines.append(f"  network by the profiles {', '.join(info.network)}")
    lines += [f"  by best effort only: {name}" for name in info.degraded]
    lines += [f"  {line}" for line in next_lines(info.state.next_actions, sandbox_id=info.sandbox_id)]
    show(info, "\n".join(lines))


@app.command()
def pause(
    sandbox: SandboxId,
    *,
    kind: Annotated[str, typer.Option(help="memory: processes stand still and stay; files: they end.")] = "memory",
) -> None:
    """Pause a sandbox: its processes stand still, its files can be read."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    if kind not in ("memory", "files"):
        raise InvalidArgument(f"`{kind}` is no kind of pause", hint="use memory or files", argument="kind")
    with connect() as client:
        _show_state(client.sandboxes.get(sandbox).pause("files" if kind == "files" else "memory"))


@app.command()
def resume(sandbox: SandboxId) -> None:
    """Let a paused sandbox go on where it was, or start a stopped one."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_state(client.sandboxes.get(sandbox).resume())


@app.command()
def stop(sandbox: SandboxId, *, dry_run: DryRun = False) -> None:
    """End the processes of a sandbox and keep its files, records and session."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_end(client.sandboxes.get(sandbox).stop(dry_run=dry_run))


@app.command()
def start(sandbox: SandboxId) -> None:
    """Start a stopped sandbox again on the same workspace."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_state(client.sandboxes.get(sandbox).start_again())


@app.command()
def extend(sandbox: SandboxId, *, for_s: Annotated[float, typer.Option("--for", help="Seconds from now.")]) -> None:
    """Have no timer act on a sandbox for a while."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.sandboxes.get(sandbox).extend_life(for_s)
    show(info, f"{sandbox} has until {info.expires_at}" if info.expires_at else f"{sandbox} has no timer")


@app.command()
def terminate(sandbox: SandboxId, *, dry_run: DryRun = False) -> None:
    """End a sandbox and everything in it. The workspace of its agent stays."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_end(client.sandboxes.get(sandbox).terminate(dry_run=dry_run))


def _show_state(info: "SandboxInfo") -> None:
    show(info, f"{info.sandbox_id} is {info.state.state}")


def _show_end(end: "SandboxEnd") -> None:
    lines = [f"{end.sandbox_id} is {end.state.state}"]
    lines += [f"  {'would lose' if end.dry_run else 'lost'}: {one.what}" for one in end.lost]
    if end.dry_run and not end.lost:
        lines.append("  would lose nothing")
    show(end, "\n".join(lines))


@app.command()
def report(sandbox: SandboxId) -> None:
    """Measure the walls of a sandbox now."""
    from coldframe.cli.connection import connect
    from coldframe.cli.installation import show_report

    with connect() as client:
        show_report(client.sandboxes.get(sandbox).report())


@app.command()
def contract(sandbox: SandboxId) -> None:
    """Show the contract: inputs, execution, outputs, what remains, what is not prevented."""
    from coldframe.cli.connection import connect

    with connect() as client:
        document = client.sandboxes.get(sandbox).contract()
    if Chosen.as_json:
        show_json(document)
        return
    lines = [f"contract {document.get('contract')} version {document.get('version')} {document.get('sha256')}"]
    for name, section in document.items():
        if isinstance(section, list):
            lines.append(f"\n{name.replace('_', ' ')}")
            lines += [f"  {line['text']}  [{line['verified_by']}]" for line in section]
    show(document, "\n".join(lines))


@app.command()
def allowed(sandbox: SandboxId) -> None:
    """List what your token may do in a sandbox; what is not listed is denied."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).allowed()
    rows = [(one.operation, one.answer, one.condition, one.rule_id) for one in found]
    show_table(found, ("operation", "answer", "condition", "rule"), rows, empty="nothing is allowed")


@app.command()
def contacts(sandbox: SandboxId) -> None:
    """List attempts to reach out of a sandbox."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).contacts()
    rows = [(c.protocol, c.name or c.address, c.port, c.verdict, c.attempts, c.last_at) for c in found]
    show_table(found, ("protocol", "where", "port", "verdict", "attempts", "last"), rows, empty="no contacts")


@app.command()
def processes(sandbox: SandboxId) -> None:
    """List the processes inside a sandbox."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).processes()
    rows = [
        (p.pid, p.parent, p.state, f"{p.cpu_s:.1f}", p.memory_bytes >> 20, _ports(p), p.command_id, p.command_line)
        for p in found
    ]
    columns = ("pid", "parent", "state", "cpu s", "MiB", "ports", "job", "command")
    show_table(found, columns, rows, empty="no processes")


@app.command()
def shells(sandbox: SandboxId) -> None:
    """List the shell sessions of a sandbox."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).shells()
    show_table(found, ("shell", "runs"), [(one.name, one.command_id) for one in found], empty="no shell sessions")


@app.command()
def end_shell(sandbox: SandboxId, name: Annotated[str, typer.Argument(metavar="NAME", help="Of the session.")]) -> None:
    """Forget a shell session; the next command of that name begins anew."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.sandboxes.get(sandbox).end_shell(name)
    show({"ok": True}, f"ended {name}")


@app.command()
def ports(sandbox: SandboxId) -> None:
    """List who listens at which port inside a sandbox."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).ports()
    rows = [(_ports(p), p.pid, p.command_id, p.command_line) for p in found]
    show_table(found, ("ports", "pid", "job", "command"), rows, empty="nobody listens")


def _ports(process: "ProcessInfo") -> str:
    return " ".join(f"{one.protocol}:{one.address}:{one.port}" for one in process.ports)


@app.command()
def runtimes(sandbox: SandboxId) -> None:
    """List the language runtimes inside a sandbox."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).runtimes()
    rows = [(r.name, "yes" if r.present else "no", r.version, r.path, "yes" if r.allowed else "no") for r in found]
    show_table(found, ("runtime", "present", "version", "path", "allowed"), rows, empty="no runtimes")
