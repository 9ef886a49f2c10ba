"""`coldframe network cache`: the packages that were fetched for boxes, in the data directory of this machine."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from coldframe.cli.output import Chosen, show_json

if TYPE_CHECKING:
    from coldframe.host.egress.packages.cache import CacheUsage

app = typer.Typer(help="See and empty the cache of packages. Works on this machine alone.", no_args_is_help=True)


@app.command()
def show() -> None:
    """Tell how much is kept, and where."""
    from coldframe.host.egress.packages.cache import measure_cache

    _tell("kept", *_look(measure_cache))


@app.command()
def purge() -> None:
    """Remove all that is kept. What is installed stays; the next installation asks the registries again."""
    from coldframe.host.egress.packages.cache import purge_cache

    _tell("removed", *_look(purge_cache))


def _look(work: "Callable[[int], CacheUsage]") -> "tuple[str, CacheUsage]":
    from coldframe.cli.connection import settings
    from coldframe.contract.errors import PermissionDenied
    from coldframe.host.egress.packages.cache import FOLDER, CacheUsage

    path = os.path.join(settings().data_dir, "host", FOLDER)
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return path, CacheUsage(0, 0, 0)
    except PermissionError:
        hint = "ask as the user who started the installation, or as root"
        raise PermissionDenied(f"`{path}` is not yours", hint=hint, path=path) from None
    try:
        return path, work(directory)
    finally:
        os.close(directory)


def _tell(done: str, path: str, usage: "CacheUsage") -> None:
    if Chosen.as_json:
        show_json({"path": path, "files": usage.files, "packages": usage.packages, "bytes": usage.bytes})
        return
    size = f"{usage.bytes / (1 << 20):.1f} MiB"
    sys.stdout.write(f"{done}: {usage.files} files and listings of {usage.packages} packages, {size}, in {path}\n")
