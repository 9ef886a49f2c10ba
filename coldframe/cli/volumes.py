"""`coldframe volume`: durable directories that sandboxes share, and their files at rest."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coldframe.cli.files import chunks_of, copied
from coldframe.cli.output import Chosen, note, plain, show, show_json, show_table, write_bytes

if TYPE_CHECKING:
    from coldframe.contract.volume import VolumeInfo

app = typer.Typer(help="Make volumes, say who may have them, and handle their files.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="VOLUME", help="Name of the volume.")]
Path = Annotated[str, typer.Argument(metavar="PATH", help="Relative to the top of the volume.")]
AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="Agent, `background` for temporary sandboxes, or `*`.")]


@app.command()
def create(
    name: Name,
    *,
    size_mib: Annotated[int | None, typer.Option("--size-mib", help="The most that its files may take.")] = None,
    label: Annotated[str | None, typer.Option(help="Of what is to be in it; PUBLIC if left out.")] = None,
) -> None:
    """Make a volume, empty."""
    from coldframe.cli.connection import connect

    with connect() as client:
        made = client.volumes.create(name, size_mib=size_mib, label=label)
    show(
        made,
        f"{made.name}: {made.size_mib} MiB, {made.label.value}\n"
        f"next: coldframe volume put {made.name} FILE: copies a file into it\n"
        f"next: coldframe sandbox create --agent AGENT --volume {made.name}:rw: shows it in a sandbox",
    )


@app.command("list")
def list_() -> None:
    """List volumes, with who has them."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.volumes.list()
    rows = [(one.name, one.size_mib, one.label.value, _holders(one), one.created_by, one.created_at) for one in found]
    show_table(found, ("volume", "MiB", "label", "had by", "made by", "made"), rows, empty="no volumes")


@app.command("show")
def show_(name: Name) -> None:
    """Show what is known of a volume, and how full it is."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.volumes.get(name)
    if Chosen.as_json:
        show_json(found)
        return
    told = {**plain(found), "holders": _holders(found)}
    told["grants"] = ", ".join(f"{one.agent_id} ({one.mode})" for one in found.grants) or "none"
    told["usage"] = "not known"
    if found.usage is not None:
        told["usage"] = f"{found.usage.bytes} bytes in {found.usage.files} files"
    rows = [(what.replace("_", " "), value) for what, value in told.items()]
    show_table(rows, ("what", "is"), rows, empty="")


@app.command()
def remove(name: Name) -> None:
    """Remove a volume with all its files, for good. Not while a sandbox has it, or is stopped and made with it."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.volumes.remove(name)
    show({"ok": True}, f"removed {name}")


@app.command()
def grant(name: Name, agent: AgentId, *, mode: Annotated[str, typer.Option(help="ro, or rw.")] = "ro") -> None:
    """Let sandboxes of an agent have it, whoever makes them."""
    from coldframe.cli.connection import connect

    with connect() as client:
        show(client.volumes.grant(name, agent, mode), f"{name} is granted to {agent} ({mode})")  # type: ignore[arg-type]


@app.command()
def revoke(name: Name, agent: AgentId) -> None:
    """Take a grant back. Sandboxes that have the volume keep it until they stop."""
    from coldframe.cli.connection import connect

    with connect() as client:
        show(client.volumes.revoke(name, agent), f"{name} is not granted to {agent}")


@app.command("ls")
def ls(
    name: Name,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Relative to the top of the volume.")] = "",
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Go into subdirectories.")] = False,
) -> None:
    """List a directory of it. Nothing is started."""
    from coldframe.cli.connection import connect

    with connect() as client:
        found = client.volumes.list_files(name, path, recursive=recursive)
    rows = [
        (
            f"{e.mode:04o}",
            e.size,
            e.modified_at,
            e.path + (f" -> {e.target}" if e.target else "/" if e.kind == "directory" else ""),
        )
        for e in found.entries
    ]
    show_table(found.entries, ("mode", "size", "changed", "path"), rows, empty="empty")
    if not found.complete:
        note("not all: there is more than one listing tells")


@app.command()
def cat(name: Name, path: Path) -> None:
    """Write the bytes of a file to standard output, exactly."""
    from coldframe.cli.connection import connect

    with connect() as client:
        for part in client.volumes.download(name, path):
            write_bytes(1, part)


@app.command()
def put(
    name: Name,
    local: Annotated[str, typer.Argument(metavar="FILE", help="Local file, or - for standard input.")],
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="By default the name of the local file.")] = None,
    *,
    label: Annotated[str | None, typer.Option(help="Of the content; the volume is labelled no lower then.")] = None,
) -> None:
    """Copy a local file, of any size, into it, while no sandbox can write to it."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    if local == "-" and path is None:
        raise InvalidArgument("standard input has no name", hint="give the PATH to write to")
    target = path or os.path.basename(local)
    with connect() as client:
        if local == "-":
            written = client.volumes.upload(name, target, chunks_of(sys.stdin.buffer), label=label)
        else:
            with open(local, "rb") as file:
                written = client.volumes.upload(name, target, chunks_of(file), label=label)
    show(written, f"{written['bytes_written']} bytes to {written['path']}")


@app.command()
def get(
    name: Name,
    path: Path,
    local: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="By default the name of the file, here.")
    ] = None,
) -> None:
    """Copy a file, of any size, out of it. A broken copy leaves nothing behind."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import InvalidArgument

    target = local or os.path.basename(path.rstrip("/"))
    if target in ("", ".", ".."):
        raise InvalidArgument(f"`{path}` has no file name", hint="give the FILE to write to")
    with connect() as client:
        size = copied(client.volumes.download(name, path), target)
    show({"path": path, "file": target, "bytes": size}, f"{size} bytes to {target}")


@app.command()
def rm(
    name: Name,
    path: Path,
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="A directory with all that is in it.")] = False,
) -> None:
    """Remove a file or directory of it."""
    from coldframe.cli.connection import connect

    with connect() as client:
        client.volumes.remove_file(name, path, recursive=recursive)
    show({"path": path, "removed": True}, f"removed {path}")


def mounts_of(words: list[str]) -> list[dict[str, str]]:
    """What `--volume NAME[:/PLACE][:rw]` asks for. Raises InvalidArgument."""
    from coldframe.contract.errors import InvalidArgument

    found = []
    for word in words:
        name, *rest = word.split(":")
        wanted = {"name": name}
        for part in rest:
            key = "mode" if part in ("ro", "rw") else "at"
            if key in wanted or (key == "at" and not part.startswith("/")):
                raise InvalidArgument(
                    f"`{word}` is no volume to have", hint="write NAME, NAME:rw or NAME:/home/user/PLACE:rw"
                )
            wanted[key] = part
        found.append(wanted)
    return found


def _holders(volume: "VolumeInfo") -> str:
    return ", ".join(f"{one.sandbox_id} ({one.mode}, {one.state})" for one in volume.holders) or "nobody"
