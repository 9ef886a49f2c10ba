"""`coldframe setup`, `coldframe up` and `coldframe doctor`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import EXIT_UNAVAILABLE, Chosen, note, show, show_json
from coldframe.cli.templates import check_ready_made, set_up

if TYPE_CHECKING:
    from coldframe.assembly import Running
    from coldframe.contract.isolation import IsolationReport


def up(
    *,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for a free one. [COLDFRAME_PORT]")] = None,
    bind: Annotated[str | None, typer.Option(help="Address to listen on. [COLDFRAME_BIND]")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Data directory. [COLDFRAME_DATA_DIR]")] = None,
    workspace_disk: Annotated[
        str | None,
        typer.Option(
            metavar="directory|image",
            help="What a new workspace is: a directory, or a disk image with a hard limit (as root). "
            "[COLDFRAME_WORKSPACE_DISK]",
        ),
    ] = None,
) -> int:
    """Start the installation: host daemon and server. Ends with Ctrl-C; sandboxes go on and are found again."""
    from coldframe.assembly import serve
    from coldframe.config import load_settings

    settings = load_settings(data_dir=data_dir or Chosen.data_dir, port=port, bind=bind, workspace_disk=workspace_disk)
    note(f"starting in {settings.data_dir}")

    def started(running: "Running") -> None:
        value = {
            "url": running.url,
            "client_file": running.client_file,
            "pid": running.server_pid,
            "host_pid": running.daemon_pid,
        }
        show(value, f"Coldframe listens on {running.url}\nowner token: {running.client_file}\nstop with Ctrl-C")
        sys.stdout.flush()  # whoever reads it through a pipe waits for it

    code = serve(settings, started=started)
    note("stopped" if code == 0 else "the server ended by itself; see its messages above")
    return code


def setup(
    *,
    template: Annotated[
        str, typer.Option(metavar="NAME", help="debian, or one made of it: base, code, code-interpreter, node, python.")
    ] = "debian",
    anew: Annotated[bool, typer.Option(help="Build it again, as with the packages of today.")] = False,
    data_dir: Annotated[str | None, typer.Option(help="Data directory. [COLDFRAME_DATA_DIR]")] = None,
) -> int:
    """Build the template `debian`, of which sandboxes with a system of their own begin, or one that is made of it. Takes a
    minute or more; once is enough.

    A build that is broken off leaves nothing, and is begun anew by the same command. A server may run meanwhile.
    """
    from coldframe.config import load_settings
    from coldframe.contract.errors import Unavailable
    from coldframe.host.templates.store import Templates
    from coldframe.host.templates.systems import refuse_unable

    if template != "debian":
        check_ready_made(template)
    settings = load_settings(data_dir=data_dir or Chosen.data_dir)
    refuse_unable()
    templates = Templates(settings.data_dir)
    templates.sweep()
    known = [one for one in templates.list() if one.name == "debian"]
    if known and (not anew or template != "debian"):
        found = known[0]
    else:
        note("building the template `debian`")
        try:
            found = templates.build_debian(log=note)
        except KeyboardInterrupt:
            raise Unavailable("the build was broken off, and nothing is left of it", hint="run it again") from None
    if template != "debian":
        return set_up(template, anew=anew)
    value = {
        "name": found.name,
        "digest": found.digest,
        "release": found.release,
        "created_at": found.created_at.isoformat(),
        "packages": len(found.packages),
    }
    told = f"template `{found.name}`: {found.release}, {len(found.packages)} packages, digest {found.digest}"
    show(value, f"{told}\nuse it with: coldframe sandbox create --template {found.name}")
    return 0


def pool() -> int:
    """Show the boxes that stand ready for the next sandboxes, and what memory they take."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.pool()
    told = f"{found.ready} of at most {found.size} boxes wait, {found.used} were used, with {found.memory_bytes / (1 << 20):.1f} MiB of memory"
    show(found, f"{told}\nnone on this machine: {found.refused}" if found.refused else told)
    return 0


def doctor() -> int:
    """Build a throw-away box, measure its walls and try the promises in it. Needs no running server.

    Ends with 5 if a required wall is missing, a promise did not hold, or no box can be built, each with its remedy.
    """
    import asyncio

    from coldframe.cli.connection import connect_if_running, settings

    client = connect_if_running()
    if client is not None:
        with client:
            report = client.doctor()
    else:
        from coldframe.host.machine import Machine

        async def measure() -> "IsolationReport":
            chosen = settings()
            machine = Machine(chosen.data_dir, embedded=True, own_disks=chosen.own_disks, broker_uid=chosen.broker_uid)
            try:
                return await machine.doctor()
            finally:
                await machine.close()

        report = asyncio.run(measure())
    show_report(report)
    weak = any(one.required and one.state != "enforced" for one in report.properties)
    return EXIT_UNAVAILABLE if weak or not all(one.held for one in report.trials) else 0


def show_report(report: "IsolationReport") -> None:
    """The walls, the limits, and what this level cannot promise."""
    if Chosen.as_json:
        show_json(report)
        return
    lines = [f"isolation {report.level}, {report.kernel} kernel {report.kernel_release}, measured {report.measured_at}"]
    for one in report.properties:
        lines.append(f"  {one.state:9} {one.name}: {one.mechanism} ({one.evidence})")
        remedy = f"to do: {one.remedy}" if one.remedy else None
        lines += [f"            {text}" for text in (one.bound, one.caveat, remedy) if text]
    lines.append("limits")
    for limit in report.limits:
        bound = f", {limit.bound}" if limit.bound else ""
        lines.append(f"  {limit.strength:11} {limit.kind} {limit.limit:g} {limit.unit} by {limit.enforced_by}{bound}")
        if limit.reason:
            lines.append(f"              not hard: {limit.reason}")
    if report.boundary_weakened:
        lines.append(f"the boundary is weakened by mounts: {', '.join(report.boundary_weakened)}")
    opened = ", ".join(f"{one.kind} {one.name}" for one in report.interfaces)
    lines.append(f"open: {opened or 'nothing could be read'}; devices: {', '.join(one.path for one in report.devices)}")
    if report.trials:
        lines.append("promises tried from inside")
    for trial in report.trials:
        lines.append(f"  {'held' if trial.held else 'BROKEN':6} {trial.name}: {trial.promise} ({trial.seen})")
    lines += ["what this level cannot promise"] + [f"  {sentence}" for sentence in report.sentences]
    show(report, "\n".join(lines))
