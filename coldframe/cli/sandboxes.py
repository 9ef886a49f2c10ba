"""`coldframe sandbox`: create, look at, pause, stop and end sandboxes."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, next_lines, note, show, show_json, show_table
from coldframe.cli.volumes import mounts_of

if TYPE_CHECKING:
    from coldframe.contract.files import ProcessInfo
    from coldframe.contract.result import SandboxResult
    from coldframe.contract.sandbox import Loss, SandboxEnd, SandboxInfo, SandboxSpec

app = typer.Typer(help="Create, look at, pause, stop and end sandboxes.", no_args_is_help=True)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
CreatedBy = Annotated[str | None, typer.Option(help="Those made with the token of this name.")]
MinAge = Annotated[float | None, typer.Option(help="Those that are at least so many seconds old.")]
MinIdle = Annotated[float | None, typer.Option(help="Those in which nothing was done for so many seconds.")]
TakeSnapshot = Annotated[bool, typer.Option("--snapshot", help="Take a snapshot of its files before.")]
Discard = Annotated[bool, typer.Option("--discard", help="Also if work would be lost that no commit has.")]
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
    io_mib_s: Annotated[int | None, typer.Option(help="Most MiB a second read, and written, on disks.")] = None,
    network: Annotated[
        str | None, typer.Option(help="Network profile: none, packages, open, or one of the rules.")
    ] = None,
    idle_timeout_s: Annotated[float | None, typer.Option(help="Seconds without activity before --on-timeout.")] = None,
    max_age_s: Annotated[float | None, typer.Option(help="Seconds from now to --on-timeout in any case.")] = None,
    on_timeout: Annotated[str | None, typer.Option(help="stop, pause, snapshot or terminate.")] = None,
    template: Annotated[
        str | None, typer.Option(help="The system: host, or debian for one of its own, with a root.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="interpreter, sandbox, workspace or computer; follows from the rest unless said.")
    ] = None,
    on_missing: Annotated[str | None, typer.Option(help="refuse or degrade, where a limit cannot be kept.")] = None,
    snapshot: Annotated[str | None, typer.Option(help="Begin with its files; the agent has to be new.")] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:/PLACE][:rw]", help="A volume that it has, by default read-only; as often as needed."
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="Refuse unless it holds: a name of the report, or limit:KIND; as often as needed."),
    ] = None,
    spec: Annotated[
        str | None, typer.Option(metavar="FILE", help="What is asked for, as YAML or JSON; options come on top.")
    ] = None,
    contract: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Refuse unless it has this contract: digest of a plan.")
    ] = None,
    queue_s: Annotated[
        float | None, typer.Option("--queue", metavar="SECONDS", help="Where too many run, wait for a turn so long.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="With --queue: return once it runs.")] = False,
) -> None:
    """Create a sandbox on the workspace of an agent, or on a temporary one."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import WrongState
    from coldframe.contract.sandbox import ENDED

    caps = {"memory_mib": memory_mib, "disk_mib": disk_mib, "pids": pids, "wall_s": wall_s, "io_mib_s": io_mib_s}
    content: dict[str, object] = {}
    if spec is None or agent is not None or background:
        content = {"background": background or agent is None, "agent_id": agent}
    if any(value is not None for value in caps.values()):
        content["limits"] = {name: value for name, value in caps.items() if value is not None}
    given = {
        "template": template,
        "profile": profile,
        "on_missing": on_missing,
        "network": network,
        "idle_timeout_s": idle_timeout_s,
        "max_age_s": max_age_s,
        "on_timeout": on_timeout,
        "snapshot": snapshot,
        "contract_sha256": contract,
    }
    content |= {name: value for name, value in given.items() if value is not None}
    if require:
        content["requires"] = tuple(require)
    if volume:
        content["volumes"] = tuple(mounts_of(volume))
    wanted = make_spec(**content) if spec is None else read_spec(spec, **content)
    with connect() as client:
        sandbox = client.sandboxes.create(spec=wanted, queue_s=queue_s)
        info = sandbox.wait_for_turn() if wait else sandbox.info
    if info.state.state in ENDED:
        raise WrongState(
            f"sandbox `{info.sandbox_id}` is {info.state.state}: {info.state.message}", state=info.state.state
        )
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
        where, what = ".".join(str(part) for part in fault["loc"]), fault["msg"].removeprefix("Value error, ")
        hint = "correct the argument named; `coldframe sandbox create --help` tells how each is written"
        raise InvalidArgument(f"`{where}`: {what[:1].lower()}{what[1:]}", hint=hint, argument=where) from None


def read_spec(path: str, **more: object) -> "SandboxSpec":
    """What a file asks for, and *more* of it. Raises InvalidArgument."""
    import yaml

    from coldframe.contract.errors import InvalidArgument

    try:
        if path == "-":
            content = yaml.safe_load(sys.stdin.read())
        else:
            with open(path, encoding="utf-8") as file:
                content = yaml.safe_load(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"`{path}` is neither YAML nor JSON: {error}", argument="spec") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InvalidArgument(
            f"`{path}` is no spec of a sandbox", hint="write its fields, as `agent_id: builder`", argument="spec"
        )
    return make_spec(**{**content, **more})


@app.command("list")
def list_(
    *,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state; as often as needed.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    label: Annotated[str | None, typer.Option(help="Only with this label of the workspace.")] = None,
    created_by: CreatedBy = None,
    min_age_s: MinAge = None,
    min_idle_s: MinIdle = None,
    after: Annotated[str | None, typer.Option(help="Only those that come after this one.")] = None,
    limit: Annotated[int | None, typer.Option(help="Most that are listed.")] = None,
    sort: Annotated[str | None, typer.Option(help="age, idle, stored (the most first) or owner.")] = None,
) -> None:
    """List sandboxes, newest first."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    if sort not in (None, "age", "idle", "stored", "owner"):
        raise InvalidArgument(f"`{sort}` is nothing to sort by", hint="use age, idle, stored or owner", argument="sort")
    with connect() as client:
        found = client.sandboxes.list(
            state=state or (),
            agent_id=agent,
            label=label,
            created_by=created_by,
            min_age_s=min_age_s,
            min_idle_s=min_idle_s,
            after=after,
            limit=limit,
            sort=sort,  # type: ignore[arg-type]
        )
    infos = [sandbox.info for sandbox in found]
    columns = (
        "sandbox",
        "agent",
        "state",
        "label",
        "created",
        "owner",
        "active",
        *(("stored",) if sort == "stored" else ()),
    )
    rows = [
        (
            *(i.sandbox_id, i.agent_id or "(background)", _state_of(i), i.workspace_label, i.created_at, i.created_by),
            *(i.active_at, i.stored_bytes)[: 2 if sort == "stored" else 1],
        )
        for i in infos
    ]
    show_table(infos, columns, rows, empty="no sandboxes")


def _state_of(info: "SandboxInfo") -> str:
    return info.state.state if info.abandoned_at is None else f"{info.state.state} (abandoned)"


@app.command("terminate-all")
def terminate_all(
    *,
    state: Annotated[list[str] | None, typer.Option(help="Those in this state; as often as needed.")] = None,
    agent: Annotated[str | None, typer.Option(help="Those of this agent.")] = None,
    created_by: CreatedBy = None,
    min_age_s: MinAge = None,
    min_idle_s: MinIdle = None,
    discard: Discard = False,
    snapshot: TakeSnapshot = False,
    dry_run: DryRun = False,
) -> None:
    """End all that fit, in one call."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument
    from coldframe.contract.sandbox import EndMany

    said = {
        "state": state or None,
        "agent_id": agent,
        "created_by": created_by,
        "min_age_s": min_age_s,
        "min_idle_s": min_idle_s,
    }
    said = {name: value for name, value in said.items() if value is not None}
    if not said:
        raise InvalidArgument("say which ones: by --state, --agent, --created-by, --min-age-s or --min-idle-s")
    which = EndMany.model_validate({**said, "dry_run": dry_run, "discard": discard, "snapshot": snapshot})
    with connect() as client:
        done = client.sandboxes.terminate_all(which)
    lines = [one.sandbox_id for one in done.ended]
    lines += [f"{one['sandbox_id']} could not be ended: {one['error']['message']}" for one in done.failed]
    show(done, "\n".join(lines))
    if done.failed:
        raise typer.Exit(1)


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
        action = "terminate" if info.state.state == "stopped" else info.spec.on_timeout
        lines.append(f"  {action} at {info.expires_at} by a timer, unless it is extended or used")
    if info.abandoned_at is not None:
        lines.append(f"  abandoned: nobody had come by {info.abandoned_at}")
    if info.created_by is not None:
        lines.append(f"  made by {info.created_by}, active last at {info.active_at}")
    if info.network is not None:
        lines.append(f"  network by the profiles {', '.join(info.network)}")
    lines += [f"  by best effort only: {name}" for name in info.degraded]
    lines += [f"  warning: {text}" for text in info.warnings]
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
def reset(
    sandbox: SandboxId,
    *,
    to: Annotated[str, typer.Option(help="Id of a snapshot, or empty.")],
    discard: Annotated[bool, typer.Option("--discard", help="Do not keep for a day what it was like before.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Take the files of a sandbox back to a snapshot, or to nothing. One that runs is stopped and started again."""
    from coldframe.cli.connection import connect
    from coldframe.cli.snapshots import rows_of

    if not dry_run:
        note(f"resetting {sandbox}")
    with connect() as client:
        done = client.sandboxes.get(sandbox).reset(to, discard=discard, dry_run=dry_run)
    if Chosen.as_json:
        show_json(done)
        return
    lines = [f"{sandbox} would be reset to {to}" if dry_run else f"{sandbox} is reset to {to}, and {done.state.state}"]
    lines += [f"  {'would lose' if dry_run else 'lost'}: {one.what}" for one in done.lost]
    if done.kept is not None:
        lines.append(f"  what it was like before is kept until {done.kept.expires_at} as {done.kept.snapshot_id}")
        lines.append(f"next: coldframe sandbox reset {sandbox} --to {done.kept.snapshot_id}: takes this back")
    show(done, "\n".join(lines))
    for what, page in (("file", done.changes), ("file of its system", done.system_changes)):
        if page is None:
            continue
        if page is done.system_changes:
            note("its system, from the root on:")
        rows = rows_of(page.changes)
        show_table(page.changes, ("change", "kind", "before", "after", "path"), rows, empty=f"no {what} would change")
        if page.next_after is not None:
            note(f"not all: the first {len(rows)} paths")


@app.command()
def fork(
    source: Annotated[str, typer.Argument(metavar="SANDBOX|SNAPSHOT", help="Whose files it begins with.")],
    *,
    agent: Annotated[str | None, typer.Option(help="New agent whose workspace it is; a temporary one without.")] = None,
    network: Annotated[
        str | None, typer.Option(help="Network profile: none, packages, open, or one of the rules.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="As with `create`; by default that of the sandbox, or of the system in the snapshot."),
    ] = None,
) -> None:
    """Make another sandbox with the files of one as they are now, or of a snapshot. Nothing else goes along."""
    from coldframe.cli.connection import connect

    content: dict[str, object] = {"background": agent is None, "agent_id": agent}
    if network is not None:
        content["network"] = network
    with connect() as client:
        if template is not None:
            content["template"] = template
        if source.startswith("sbx_"):
            info = client.sandboxes.get(source).fork(spec=make_spec(**content)).info
        else:
            held = client.snapshots.get(source).system
            if template is None and held is not None:
                content["template"] = f"sha256:{held.template_sha256}"
            info = client.sandboxes.create(spec=make_spec(**content, snapshot=source)).info
    show(info, info.sandbox_id)


@app.command()
def extend(sandbox: SandboxId, *, for_s: Annotated[float, typer.Option("--for", help="Seconds from now.")]) -> None:
    """Have no timer act on a sandbox for a while."""
    from coldframe.cli.connection import connect

    with connect() as client:
        info = client.sandboxes.get(sandbox).extend_life(for_s)
    show(info, f"{sandbox} has until {info.expires_at}" if info.expires_at else f"{sandbox} has no timer")


@app.command()
def terminate(
    sandbox: SandboxId,
    *,
    dry_run: DryRun = False,
    snapshot: TakeSnapshot = False,
    discard: Discard = False,
) -> None:
    """End a sandbox and everything in it. The workspace of its agent stays."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_end(client.sandboxes.get(sandbox).terminate(dry_run=dry_run, snapshot=snapshot, discard=discard))


def _show_state(info: "SandboxInfo") -> None:
    show(info, f"{info.sandbox_id} is {info.state.state}")


def _show_end(end: "SandboxEnd") -> None:
    lines = [f"{end.sandbox_id} is {end.state.state}"]
    lines += [f"  {'would lose' if end.dry_run else 'lost'}: {one.what}" for one in end.lost]
    if end.snapshot_id is not None:
        lines.append(f"  its files are kept as snapshot {end.snapshot_id}")
    lines += [f"  would keep: {_weighed(one)}" for one in end.kept]
    if end.paths is not None:
        lines += [f"  would lose the path {path}" for path in end.paths.lost]
        lines.append(f"  would keep {len(end.paths.kept)} paths")
        if not end.paths.complete:
            lines.append("  there are more paths than are told, or some could not be read")
    lines += [f"  is in no commit, so it has to be said with --discard or --snapshot: {path}" for path in end.unsaved]
    if end.dry_run and not end.lost:
        lines.append("  would lose nothing")
    show(end, "\n".join(lines))


def _weighed(one: "Loss") -> str:
    return one.what if one.count is None else f"{one.what} {one.count} paths, {one.bytes or 0} bytes."


@app.command()
def report(sandbox: SandboxId) -> None:
    """Measure the walls of a sandbox now."""
    from coldframe.cli.connection import connect
    from coldframe.cli.installation import show_report

    with connect() as client:
        show_report(client.sandboxes.get(sandbox).report())


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
def credentials(sandbox: SandboxId) -> None:
    """List what a sandbox has in place of secrets."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).credentials()
    rows = [(one.credential, one.variable, one.handle) for one in found]
    show_table(found, ("credential", "variable", "handle"), rows, empty="no credentials")


@app.command()
def result(sandbox: SandboxId) -> None:
    """Show how it stands with the result of a sandbox that is deleted with it."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_result(client.sandboxes.get(sandbox).result())


@app.command()
def offer_result(sandbox: SandboxId) -> None:
    """Take down what the result of a sandbox is: the outputs that it declares, as they are now."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_result(client.sandboxes.get(sandbox).offer_result())


@app.command()
def confirm_result(
    sandbox: SandboxId, sha256: Annotated[str, typer.Argument(metavar="SHA256", help="Of the result that you have.")]
) -> None:
    """Have all that is left of a sandbox deleted, since you have its result."""
    from coldframe.cli.connection import connect

    with connect() as client:
        _show_result(client.sandboxes.get(sandbox).confirm_result(sha256))


def _show_result(found: "SandboxResult") -> None:
    lines = [
        f"the result of {found.sandbox_id} is {found.state}" + (f", sha256 {found.sha256}" if found.sha256 else "")
    ]
    lines += [f"  {one.path}, {one.bytes} bytes, {one.sha256}" for one in found.files]
    if found.kept_until is not None:
        lines.append(f"  kept until {found.kept_until}")
    show(found, "\n".join(lines))


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
def runtimes(
    sandbox: SandboxId,
    *,
    measure: Annotated[bool, typer.Option("--measure", help="Start those whose version is not known.")] = False,
) -> None:
    """List languages and managers of packages inside a sandbox, and how to get those that are not there."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).runtimes(measure=measure)
    rows = [
        (
            *(r.name, "yes" if r.present else r.code or "no", r.version, r.package_manager),
            *("yes" if r.allowed else "no", r.path or r.recipe),
        )
        for r in found
    ]
    columns = ("runtime", "present", "version", "packages by", "allowed", "where, or how to get it")
    show_table(found, columns, rows, empty="no runtimes")


@app.command()
def packages(
    sandbox: SandboxId,
    *,
    snapshot: Annotated[
        str | None, typer.Option(help="Compare with this one; by default the newest of its files.")
    ] = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="Only what differs from the template and the snapshot.")
    ] = False,
) -> None:
    """List packages of pip, npm and apt: installed, cached, in the template, in a snapshot, and what has drifted."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox).packages(snapshot=snapshot)
    if Chosen.as_json:
        show_json(found)
        return
    if not drift:
        cached = {None: "", True: "yes", False: "no"}
        rows = [
            (
                *(one.manager, one.name, one.installed, cached[one.cached], one.in_template, one.in_snapshot),
                *(one.bytes, one.installed_at, one.command_id),
            )
            for one in found.packages
        ]
        columns = ("by", "name", "installed", "cached", "template", "snapshot", "bytes", "when", "command")
        show_table(found.packages, columns, rows, empty="no packages")
    else:
        drifted = [("the template", line) for line in found.since_template]
        drifted += [(f"snapshot {found.snapshot_id}", line) for line in found.since_snapshot]
        lines = [(since, line.manager, line.name, line.before or "", line.after or "") for since, line in drifted]
        show_table(drifted, ("since", "by", "name", "before", "now"), lines, empty="nothing has drifted")
    if not found.complete:
        note("not all: there are more, looking took too long, or its system can only be read while it runs")
