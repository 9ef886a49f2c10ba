"""Programs that boxes get beside the host's own /usr, what these need to start, and those that they may not have."""

import json
import os
import subprocess
from collections.abc import Iterable, Sequence

import coldframe
from coldframe.contract.cell import DRIVER, LENT
from coldframe.contract.errors import IsolationUnavailable
from coldframe.host import interpreter
from coldframe.host.isolation import denials, programs

NOTHING_DENIED: dict[str, list[str]] = {"denied": [], "denied_links": []}
MOST_NAMED_BYTES = 40_000
"""Of what a keeper is told about denied programs, in JSON."""


def offered_tools() -> dict[str, str]:
    """Where each of them is, by its name inside."""
    found = {}
    deno = interpreter.deno()
    if deno and os.stat(deno).st_mode & 0o005 == 0o005:
        found["deno"] = deno
    return found


def lent_directories() -> dict[str, str]:
    """Where in a box what is: the packages for code cells that this machine lends, if they are installed here, and the driver."""
    driver = os.path.join(os.path.dirname(os.path.abspath(coldframe.__file__)), "kernel")
    packages = interpreter.place()
    found = {DRIVER: driver}
    if os.path.isdir(packages) and os.stat(packages).st_mode & 0o005 == 0o005:
        found[LENT] = packages
    return found


def libraries_of(runtimes: Iterable[str]) -> list[str]:
    """The files that the programs of these runtimes need to start, told by the machine's own loader.

    Raises:
        IsolationUnavailable: one of them is not on this machine.
    """
    tools = offered_tools()
    found: set[str] = set()
    for name in runtimes:
        if name not in tools:
            raise IsolationUnavailable(
                f"the sandbox is restricted to `{name}`, which this machine does not have",
                hint=f"install `{name}` beside this installation or on the PATH of the host daemon",
                property="programs",
            )
        try:
            listing = subprocess.run(["ldd", tools[name]], capture_output=True, text=True, check=True, env={})
        except (OSError, subprocess.CalledProcessError) as error:
            raise IsolationUnavailable(f"the libraries of `{name}` could not be listed", property="programs") from error
        found.update(programs.files_of(listing.stdout))
    return sorted(found)


def denied_here(patterns: Sequence[str]) -> dict[str, list[str]]:
    """What a keeper has to know to cover these programs (see `denials.py`): nothing of those that are not here.

    Raises:
        IsolationUnavailable: it is too much, or the program directories cannot be read.
    """
    try:
        named = denials.in_use(patterns, offered_tools())
        links = denials.other_names(named)
    except OSError as error:
        raise IsolationUnavailable(
            f"denied programs cannot be looked for: {error}",
            hint="let everybody list the program directories, also the user of the host daemon (mode 0755)",
            property="denied_programs",
        ) from error
    if sum(len(json.dumps(one)) + 2 for one in (*named, *links)) > MOST_NAMED_BYTES:
        raise IsolationUnavailable(
            f"{len(named)} programs of this machine are denied one by one",
            hint="deny them by patterns such as `python3*`, or leave only some `runtimes`",
            property="denied_programs",
        )
    return {"denied": named, "denied_links": links}
