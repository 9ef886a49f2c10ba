"""`coldframe files`: the files of a sandbox's workspace."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, BinaryIO

import typer

from coldframe.cli.output import note, show, show_table, write_bytes

app = typer.Typer(help="List, read, write, edit and search the files of a sandbox.", no_args_is_help=True)
SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")]
Path = Annotated[str, typer.Argument(metavar="PATH", help="Relative to the workspace.")]
Snapshot = Annotated[str | None, typer.Option(help="In this snapshot, in place of now.")]
CHUNK_BYTES = 256 * 1024


@app.command("ls")
def ls(
    sandbox: SandboxId,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Relative to the workspace.")] = "",
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Go into subdirectories.")] = False,
    snapshot: Snapshot = None,
) -> None:
    """List a directory."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.sandboxes.get(sandbox)
        listing = found.list_directory(path, recursive=recursive, snapshot=snapshot)
        entries, errors = list(listing.entries), list(listing.errors)
        while listing.next_after is not None:
            listing = found.list_directory(path, after=listing.next_after, snapshot=snapshot)
            entries += listing.entries
            errors += listing.errors
    rows = [
        (
            f"{e.mode:04o}",
            e.size,
            e.modified_at,
            e.path + (f" -> {e.target}" if e.target else "/" if e.type == "directory" else ""),
        )
        for e in entries
    ]
    show_table(entries, ("mode", "size", "changed", "path"), rows, empty="empty")
    if not listing.complete:
        note(f"not all: stopped by {listing.truncated_because}")
    for fault in errors:
        note(f"not read: {fault.path}: {fault.reason}")


@app.command()
def cat(sandbox: SandboxId, path: Path, *, snapshot: Snapshot = None) -> None:
    """Write the bytes of a file to standard output, exactly."""
    from coldframe.cli.connection import connect

    with connect() as client:
        for part in client.sandboxes.get(sandbox).download(path, snapshot=snapshot):
            write_bytes(1, part)


@app.command()
def put(
    sandbox: SandboxId,
    local: Annotated[str, typer.Argument(metavar="FILE", help="Local file or folder, or - for standard input.")],
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="By default the name of the local file.")] = None,
) -> None:
    """Copy a local file, of any size, into the workspace, or a folder, which then must not be there. A copy of a file that
    breaks off goes on from there when it is repeated within a day; a folder is there whole or not at all."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    if local == "-" and path is None:
        raise InvalidArgument("standard input has no name", hint="give the PATH to write to")
    target = path or os.path.basename(local.rstrip("/"))
    with connect() as client, Moved("up") as moved:
        found = client.sandboxes.get(sandbox)
        if local == "-":
            written = found.upload(target, chunks_of(sys.stdin.buffer))
        elif os.path.isdir(local):
            size = found.upload_folder(local, target, progress=moved).bytes_written
            show({"folder": local, "path": target, "archive_bytes": size}, f"{local} to {target}")
            return
        else:
            written = found.upload_file(local, target, progress=moved)
    show(written, f"{written.bytes_written} bytes to {written.path}")


class Moved:
    """How far a copy is, on one line of a terminal that is written again; nothing where no person looks."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._told = False

    def __enter__(self) -> "Moved":
        return self

    def __exit__(self, *_: object) -> None:
        if self._told:
            sys.stderr.write("\r\x1b[K")

    def __call__(self, there: int, whole: int) -> None:
        if sys.stderr.isatty():
            self._told = True
            sys.stderr.write(f"\r{self._way}: {there * 100 // max(whole, 1)} % of {whole} bytes")
            sys.stderr.flush()


def chunks_of(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


@app.command()
def attach(
    sandbox: SandboxId,
    local: Annotated[str, typer.Argument(metavar="LOCAL", help="File of this machine; `-` for standard input.")],
    *,
    name: Annotated[str | None, typer.Option(help="Under `inputs/`; by default that of the file.")] = None,
    source: Annotated[str | None, typer.Option(help="Where it is from, for the record.")] = None,
) -> None:
    """Put a file into a sandbox as `inputs/NAME`, to be read and not written."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    called = name or os.path.basename(local)
    if local == "-" and name is None:
        raise InvalidArgument("standard input has no name", hint="say one with --name", argument="name")
    with contextlib.ExitStack() as opened:
        file = sys.stdin.buffer if local == "-" else opened.enter_context(open(local, "rb"))
        content = file.read()
    with connect() as client:
        made = client.sandboxes.get(sandbox).attach(called, content, source=source)
    show(made, made.path if made.note is None else f"{made.path}: {made.note}")


@app.command()
def get(
    sandbox: SandboxId,
    path: Path,
    local: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="By default the name of the file, here.")
    ] = None,
    *,
    folder: Annotated[bool, typer.Option("--folder", "-r", help="PATH is a folder; FILE must not be there.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what has come of a copy that breaks off, and go on from there.")
    ] = False,
    skip_foreign_links: Annotated[
        bool, typer.Option("--skip-foreign-links", help="Leave out links that point out of the folder.")
    ] = False,
    snapshot: Snapshot = None,
) -> None:
    """Copy a file, of any size, out of the workspace, or a folder. A broken copy leaves nothing behind, unless it is to be
    resumed."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    target = local or os.path.basename(path.rstrip("/"))
    if target in ("", ".", ".."):
        raise InvalidArgument(f"`{path}` has no file name", hint="give the FILE to write to")
    if folder and (resume or snapshot):
        raise InvalidArgument("a folder is copied at once, and as it is now", hint="leave out --resume and --snapshot")
    with connect() as client, Moved("down") as moved:
        found = client.sandboxes.get(sandbox)
        if folder:
            skipped = found.download_folder(path, target, skip_foreign_links=skip_foreign_links, progress=moved)
            show({"path": path, "folder": target, "skipped": skipped}, f"{path} to {target}")
            for name in skipped:
                note(f"left out: the link {name}")
            return
        size = found.download_file(path, target, resume=resume, snapshot=snapshot, progress=moved)
    show({"path": path, "file": target, "bytes": size}, f"{size} bytes to {target}")


def copied(parts: Iterable[bytes], target: str) -> int:
    """Put them into a local file as a whole; how many bytes that is. What breaks off leaves nothing behind."""
    draft = f"{target}.{os.getpid()}.part"
    size = 0
    try:
        with open(draft, "xb") as file:
            for part in parts:
                size += file.write(part)
        os.replace(draft, target)
    except BaseException:
        if os.path.exists(draft):
            os.unlink(draft)
        raise
    return size


@app.command()
def edit(
    sandbox: SandboxId,
    path: Path,
    old: Annotated[str, typer.Argument(help="Text to replace, exactly as it stands.")],
    new: Annotated[str, typer.Argument(help="Text to put there.")],
    *,
    replace_all: Annotated[bool, typer.Option("--all", help="Replace every occurrence.")] = False,
) -> None:
    """Replace text that occurs exactly once, or everywhere with --all."""
    from coldframe.cli.connection import connect

    with connect() as client:
        edited = client.sandboxes.get(sandbox).edit_file(path, old, new, replace_all=replace_all)
    show(edited, f"{edited.replacements} replaced in {edited.path}")


@app.command()
def search(
    sandbox: SandboxId,
    pattern: Annotated[str, typer.Argument(help="Regular expression, or text with -F.")],
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Below this directory.")] = "",
    *,
    literal: Annotated[bool, typer.Option("-F", "--literal", help="The pattern is plain text.")] = False,
    ignore_case: Annotated[bool, typer.Option("-i", "--ignore-case", help="Upper and lower case alike.")] = False,
    glob: Annotated[str | None, typer.Option(help="Only files whose name matches, as *.py.")] = None,
    snapshot: Snapshot = None,
) -> int:
    """Search the content of files. Ends with 1 if nothing was found."""
    from coldframe.cli.connection import connect
    from coldframe.cli.output import Chosen, printable, show_json

    with connect() as client:
        found = client.sandboxes.get(sandbox).search_files(
            pattern, path, regex=not literal, ignore_case=ignore_case, glob=glob, snapshot=snapshot
        )
    if Chosen.as_json:
        show_json(found)
    else:
        for match in found.matches:
            sys.stdout.write(printable(f"{match.path}:{match.line}:{match.text}") + "\n")
        if not found.complete:
            note(f"not all: stopped by {found.truncated_because}")
    return 0 if found.matches else 1


@app.command()
def rm(
    sandbox: SandboxId,
    path: Path,
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="A directory with all that is in it.")] = False,
) -> None:
    """Remove a file or directory."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.sandboxes.get(sandbox).remove_file(path, recursive=recursive)
    show({"path": path, "removed": True}, f"removed {path}")


AnyPath = Annotated[str, typer.Argument(metavar="PATH", help="Relative to the workspace, or absolute anywhere.")]
AsRoot = Annotated[bool, typer.Option("--root", help="As root, in a sandbox with a system of its own.")]


@app.command("stat")
def stat_path(sandbox: SandboxId, path: AnyPath, *, root: AsRoot = False) -> None:
    """Tell all that is known of a path, of a link of itself."""
    from coldframe.cli.connection import connect

    with connect() as client:
        entry = client.sandboxes.get(sandbox).files.stat(path, user="root" if root else "user")
    leads = f" -> {entry.target}" if entry.target is not None else ""
    noted = "".join(f"\n  {name}: {value}" for name, value in entry.metadata.items())
    owner = f"{entry.owner}:{entry.group}"
    show(entry, f"{entry.type} {entry.mode:04o} {owner} {entry.size} {entry.modified_at} {entry.path}{leads}{noted}")


@app.command()
def mkdir(sandbox: SandboxId, path: AnyPath, *, root: AsRoot = False) -> None:
    """Make a directory with its parents; one that is there is fine."""
    from coldframe.cli.connection import connect

    with connect() as client:
        made = client.sandboxes.get(sandbox).files.make_directory(path, user="root" if root else "user")
    show(made, f"{'made' if made.created else 'there already:'} {made.entry.path}")


@app.command()
def mv(
    sandbox: SandboxId,
    path: AnyPath,
    target: Annotated[str, typer.Argument(help="The new path; its parents are made.")],
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Refuse if something is there.")] = False,
    root: AsRoot = False,
) -> None:
    """Rename a file or directory, or move it to another place."""
    from coldframe.cli.connection import connect

    with connect() as client:
        files = client.sandboxes.get(sandbox).files
        entry = files.move(path, target, replace=not keep, user="root" if root else "user")
    show(entry, f"{path} to {entry.path}")


@app.command("watch")
def watch_directory(
    sandbox: SandboxId,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory.")] = "",
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="All directories below as well.")] = False,
) -> None:
    """Print what happens in a directory as it happens, until it is gone or you leave."""
    from coldframe.cli.connection import connect
    from coldframe.cli.output import Chosen, printable
    from coldframe.contract.errors import ColdframeError

    with connect() as client:
        watch = client.sandboxes.get(sandbox).files.watch(path, recursive=recursive)
        try:
            for event in watch.events():
                line = event.model_dump_json() if Chosen.as_json else printable(f"{event.kind:6} {event.name or '.'}")
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
        finally:
            with contextlib.suppress(ColdframeError):  # the directory, or the sandbox, is gone
                watch.end()
