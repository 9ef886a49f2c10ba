"""`coldframe up` and `coldframe doctor`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.output import Chosen, note, show, show_json

if TYPE_CHECKING:
    from coldframe.assembly import Running
    from coldframe.contract.isolation import IsolationReport


def up(
    *,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for a free one. [COLDFRAME_PORT]")] = None,
    bind: Annotated[str | None, typer.Option(help="Address to listen on. [COLDFRAME_BIND]")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Data directory. [COLDFRAME_DATA_DIR]")] = None,
) -> int:
    """Start the installation: host daemon and server. Ends with Ctrl-C; sandboxes go on and are found again."""
    from coldframe.assembly import serve
    from coldframe.config import load_settings

    settings = load_settings(data_dir=data_dir or Chosen.data_dir, port=port, bind=bind)
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


def doctor() -> int:
    """Build a throw-away box and report what holds on this machine. Needs no running server."""
    import asyncio

    from coldframe.cli.connection import connect_if_running, settings

    client = connect_if_running()
    if client is not None:
        with client:
            report = client.doctor()
    else:
        from coldframe.host.machine import Machine

        async def measure() -> "IsolationReport":
            machine = Machine(settings().data_dir, embedded=True)
            try:
                return await machine.doctor()
            finally:
                await machine.close()

        report = asyncio.run(measure())
    show_report(report)
    return 5 if any(one.required and one.state != "enforced" for one in report.properties) else 0


def show_report(report: "IsolationReport") -> None:
    """The walls, the limits, and what this level cannot promise."""
    if Chosen.as_json:
        show_json(report)
        return
    lines = [f"isolation {report.level}, {report.kernel} kernel {report.kernel_release}, measured {report.measured_at}"]
    for one in report.properties:
        lines.append(f"  {one.state:9} {one.name}: {one.mechanism} ({one.evidence})")
        lines += [f"            {text}" for text in (one.bound, one.caveat, one.remedy) if text]
    lines.append("limits")
    for limit in report.limits:
        bound = f", {limit.bound}" if limit.bound else ""
        lines.append(f"  {limit.strength:11} {limit.kind} {limit.limit:g} {limit.unit} by {limit.enforced_by}{bound}")
    lines += ["what this level cannot promise"] + [f"  {sentence}" for sentence in report.sentences]
    show(report, "\n".join(lines))
