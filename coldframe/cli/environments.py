"""`coldframe env`: what is installed in a sandbox against what a lock file says."""

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from coldframe.cli.output import show_table

if TYPE_CHECKING:
    from coldframe.contract.packages import PackageView

app = typer.Typer(help="Compare what is installed with a lock file.", no_args_is_help=True)
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;\\#]+)")
_OWN_TOOLS = frozenset({"pip", "setuptools", "wheel"})
"""Of a virtual environment, which locks of Python do not name."""
_Versions = dict[tuple[str, str], list[str]]


class Lock(NamedTuple):
    """What a lock file says."""

    versions: _Versions
    """By manager and name."""
    optional: frozenset[tuple[str, str]] = frozenset()
    """Those that need not be there, as what is for other machines."""


@app.command()
def compare(
    lock: Annotated[str, typer.Argument(metavar="LOCKFILE", help="requirements.txt with `==`, or package-lock.json.")],
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Id of the sandbox.")],
) -> None:
    """List each package whose version differs from the lock, or that only one of both has. Fails if there is one."""
    from coldframe.cli.connection import connect
    from coldframe.contract.errors import WrongState

    wanted = read_lock(lock)
    with connect() as client:
        found = client.sandboxes.get(sandbox).packages()
    if not found.complete:
        raise WrongState("not all that is installed could be looked at", hint="ask again when less runs on the machine")
    lines = differences(wanted, found)
    rows = [(one["manager"], one["name"], one["locked"], one["installed"]) for one in lines]
    show_table(lines, ("by", "name", "locked", "installed"), rows, empty="0 differences")
    if lines:
        raise typer.Exit(1)


def read_lock(path: str) -> Lock:
    """Raises InvalidArgument for what is no such file, or pins nothing."""
    from coldframe.contract.errors import InvalidArgument

    hint = "give a requirements.txt in which every line has `==`, or a package-lock.json of npm 7 or later"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError:
        raise InvalidArgument(f"`{path}` is no lock file", hint=hint, argument="lock") from None
    found = _of_npm(text) if text.lstrip().startswith("{") else _of_pip(text)
    if not found.versions:
        raise InvalidArgument(f"`{path}` pins no version", hint=hint, argument="lock")
    return found


def _of_pip(text: str) -> Lock:
    from coldframe.contract.errors import InvalidArgument

    found: _Versions = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "--")):
            continue
        match = _PINNED.match(line)
        if match is None:
            raise InvalidArgument(f"line {number} pins no version: `{line[:80]}`", argument="lock", line=number)
        found.setdefault(("pip", re.sub(r"[-_.]+", "-", match.group(1)).lower()), []).append(match.group(2))
    return Lock(found)


def _of_npm(text: str) -> Lock:
    from coldframe.contract.errors import InvalidArgument

    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the lock file is no JSON: {error}", argument="lock") from None
    packages = told.get("packages") if isinstance(told, dict) else None
    found: _Versions = {}
    optional = set()
    for place, one in packages.items() if isinstance(packages, dict) else ():
        _, folder, name = place.rpartition("node_modules/")
        if folder and isinstance(one, dict) and isinstance(one.get("version"), str) and not one.get("link"):
            key = ("npm", str(one.get("name") or name))
            found.setdefault(key, []).append(one["version"])
            if one.get("optional") or one.get("peer"):
                optional.add(key)
    return Lock(found, frozenset(optional))


def differences(lock: Lock, found: "PackageView") -> list[dict[str, Any]]:
    """A line for each version that only one of both has, of the managers that the lock is about."""
    wanted = lock.versions
    managers = {manager for manager, _ in wanted}
    there: _Versions = {}
    for one in found.packages:
        if one.installed is not None and one.manager in managers:
            there.setdefault((one.manager, one.name), []).append(one.installed)
    lines: list[dict[str, Any]] = []
    for key in sorted(wanted.keys() | there.keys()):
        if key not in wanted and key[0] == "pip" and key[1] in _OWN_TOOLS:
            continue
        locked, installed = sorted(set(wanted.get(key, ()))), sorted(set(there.get(key, ())))
        if locked != installed and not (key in lock.optional and not installed):
            lines.append(
                {"manager": key[0], "name": key[1], "locked": ", ".join(locked), "installed": ", ".join(installed)}
            )
    return lines
