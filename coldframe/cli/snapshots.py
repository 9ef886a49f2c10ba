"""`coldframe snapshot`: take, look at, compare, carry away and bring in snapshots."""

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.files import chunks_of, copied
from coldframe.cli.output import Chosen, note, plain, printable, show, show_json, show_table, write_bytes

if TYPE_CHECKING:
    from coldframe.contract.snapshot import Change, SnapshotInfo

app = typer.Typer(help="Take, look at, compare, export and import snapshots.", no_args_is_help=True)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
SnapshotId = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Id of the snapshot.")]
Point = Annotated[str, typer.Argument(metavar="POINT", help="Snapshot, or sandbox for what it has now.")]
InSandbox = Annotated[
    str | None, typer.Option("--sandbox", help="In whose session it is looked at; by default the one it was taken of.")
]
ExpiresIn = Annotated[float | None, typer.Option("--expires-in", help="Keep it for so many seconds only.")]


@app.command()
def take(
    sandbox: SandboxId,
    *,
    name: Annotated[str, typer.Option(help="What it is called.")] = "",
    expires_in_s: ExpiresIn = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do nothing, and say what it would have.")] = False,
) -> None:
    """Take a snapshot of the files of a sandbox, which goes on."""
    from coldframe.cli.connection import connect

    if dry_run:
        with connect() as client:
            plan = client.sandboxes.get(sandbox).plan_snapshot()
        lines = [f"{len(plan.paths)} paths, {plan.bytes} bytes{'' if plan.complete else ', and more'}"]
        lines += [f"  would have {path}" for path in plan.paths]
        lines += [f"  would leave out {path}" for path in plan.temporary]
        lines += [f"  would leave out: {one.what}" for one in plan.left_out]
        show(plan, "\n".join(lines))
        return
    note(f"taking a snapshot of {sandbox}")
    with connect() as client:
        taken = client.sandboxes.get(sandbox).take_snapshot(name, expires_in_s=expires_in_s)
    live = " while its processes stood still" if taken.was_live else ""
    show(
        taken,
        f"{taken.snapshot_id}: taken{live}{_size(taken, ', ')}\n"
        f"next: coldframe sandbox reset {sandbox} --to {taken.snapshot_id}: goes back to it\n"
        f"next: coldframe sandbox fork {taken.snapshot_id} --agent AGENT: makes another sandbox of it",
    )


@app.command("list")
def list_(
    *,
    sandbox: Annotated[str | None, typer.Option(help="Only those taken through this sandbox.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    reason: Annotated[str | None, typer.Option(help="asked, automatic, discarded or imported.")] = None,
    label: Annotated[str | None, typer.Option(help="Only with this label.")] = None,
    after: Annotated[str | None, typer.Option(help="Only those that come after this one.")] = None,
    limit: Annotated[int | None, typer.Option(help="Most that are listed.")] = None,
) -> None:
    """List snapshots, newest first."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.snapshots.list(
            sandbox_id=sandbox, agent_id=agent, reason=reason, label=label, after=after, limit=limit
        )
    columns = ("snapshot", "name", "agent", "reason", "label", "size", "taken", "expires")
    rows = [
        (i.snapshot_id, i.name, i.agent_id, _state(i), i.label.value, _size(i), i.created_at, i.expires_at)
        for i in found
    ]
    show_table(found, columns, rows, empty="no snapshots")


@app.command("show")
def show_(snapshot: SnapshotId) -> None:
    """Show what is known of a snapshot."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.snapshots.get(snapshot)
    if Chosen.as_json:
        show_json(found)
        return
    rows = [(name.replace("_", " "), value) for name, value in plain(found).items()]
    show_table(rows, ("what", "is"), rows, empty="")


@app.command()
def rename(
    snapshot: SnapshotId, name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")]
) -> None:
    """Give a snapshot another name."""
    from coldframe.cli.connection import connect

    with connect() as client:
        show(client.snapshots.rename(snapshot, name), f"{snapshot} is called {name}")


@app.command()
def remove(snapshot: SnapshotId) -> None:
    """Forget a snapshot. What was forked from it goes on."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.snapshots.remove(snapshot)
    show({"ok": True}, f"removed {snapshot}")


@app.command()
def diff(
    before: Point,
    after: Point,
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="One file, line by line; all paths without it.")
    ] = None,
    *,
    sandbox: InSandbox = None,
    system: Annotated[
        bool, typer.Option("--system", help="Of the systems of their own; `template` for what they began as.")
    ] = False,
) -> int:
    """Show what differs between two points. Ends with 1 if something does."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    with connect() as client:
        if path is not None and system:
            raise InvalidArgument(
                "files of a system are not compared line by line",
                hint="read both with `coldframe snapshot read --system`",
                argument="path",
            )
        if path is not None:
            text = client.snapshots.compare_file(before, after, path, sandbox_id=sandbox)
            if Chosen.as_json:
                show_json(text)
            elif text.binary:
                sys.stdout.write(printable(f"{text.path} is no text at one of them\n"))
            else:
                sys.stdout.write(printable(text.diff))
            return int(text.sha256_before != text.sha256_after)
        changes: list[Change] = []
        next_after: str | None = None
        while True:
            part = "system" if system else None
            page = client.snapshots.compare(before, after, sandbox_id=sandbox, next_after=next_after, part=part)
            changes += page.changes
            next_after = page.next_after
            if next_after is None:
                break
            note(f"{len(changes)} paths so far")
    show_table(changes, ("change", "kind", "before", "after", "path"), rows_of(changes), empty="no differences")
    return int(bool(changes))


def rows_of(changes: "list[Change] | tuple[Change, ...]") -> list[tuple[object, ...]]:
    return [(one.change, one.kind, one.bytes_before, one.bytes_after, one.path or "(the top)") for one in changes]


@app.command()
def read(
    snapshot: SnapshotId,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Relative to the workspace.")],
    *,
    sandbox: InSandbox = None,
    system: Annotated[
        bool, typer.Option("--system", help="Of the system that it holds; PATH is relative to its root.")
    ] = False,
) -> None:
    """Write the bytes of a file of a snapshot to standard output, exactly. `coldframe files` does more with --snapshot."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    with connect() as client:
        of = sandbox or client.snapshots.get(snapshot).sandbox_id
        if of is None:
            raise InvalidArgument(
                f"snapshot `{snapshot}` was not taken through a sandbox, so it is not known in whose session it is read",
                hint="name one with --sandbox",
                argument="sandbox",
            )
        for part in client.sandboxes.get(of).download(path, snapshot=f"{snapshot}:system" if system else snapshot):
            write_bytes(1, part)


@app.command("export")
def export_(
    snapshot: SnapshotId,
    local: Annotated[str, typer.Argument(metavar="FILE", help="Local file, or - for standard output.")],
) -> None:
    """Write a snapshot into one tar file. A broken export leaves nothing behind."""
    from coldframe.cli.connection import connect

    with connect() as client:
        note(f"exporting {snapshot}")
        if local == "-":
            for part in client.snapshots.export(snapshot):
                write_bytes(1, part)
            return
        size = copied(client.snapshots.export(snapshot), local)
        found = client.snapshots.get(snapshot)
        if found.system is not None:
            note("the archive holds the files of the workspace, and not its system")
    show(
        {"snapshot_id": snapshot, "file": local, "bytes": size, "sha256": found.sha256, "label": found.label.value},
        f"{size} bytes to {local}, labelled {found.label.value}\n"
        f"next: coldframe snapshot import {local} --expected {found.sha256}: brings it in, if it is whole",
    )


@app.command("import")
def import_(
    local: Annotated[str, typer.Argument(metavar="FILE", help="Local file, or - for standard input.")],
    *,
    name: Annotated[str, typer.Option(help="What it is called.")] = "",
    label: Annotated[
        str | None, typer.Option(help="Of the data: PUBLIC, INTERNAL, CONFIDENTIAL or RESTRICTED.")
    ] = None,
    expected: Annotated[str | None, typer.Option(help="The digest that the export told.")] = None,
    expires_in_s: ExpiresIn = None,
) -> None:
    """Make a snapshot of a tar file that an export has written."""
    from coldframe.cli.connection import connect

    note(f"importing {local}")
    with contextlib.ExitStack() as opened, connect() as client:
        file = sys.stdin.buffer if local == "-" else opened.enter_context(open(local, "rb"))
        made = client.snapshots.import_archive(
            chunks_of(file), name=name, label=label, expected=expected, expires_in_s=expires_in_s
        )
    show(
        made,
        f"{made.snapshot_id}: brought in{_size(made, ', ')}, labelled {made.label.value}\n"
        f"next: coldframe sandbox fork {made.snapshot_id} --agent AGENT: makes a sandbox of it",
    )


def _size(info: "SnapshotInfo", before: str = "") -> str:
    """Empty as long as it was not added up."""
    said = [f"{number} {what}" for number, what in ((info.files, "files"), (info.bytes, "bytes")) if number is not None]
    return before + ", ".join(said) if said else ""


def _state(info: "SnapshotInfo") -> str:
    return info.reason if info.state == "ready" else f"{info.reason}, lost"
