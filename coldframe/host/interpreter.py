"""The packages for code cells that this machine lends its boxes: what is installed of them, and how.

They are of the machine's own Python, which boxes have as well, and lie beside this installation in a directory of their own;
boxes have it read-only. Which they are is the extra `interpreter` of this package. Deno, the extra `runtimes`, is put there
with them where this machine has none: cells of JavaScript and TypeScript run on it.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from coldframe.contract.errors import Unavailable

PYTHON = "/usr/bin/python3"
"""Of the machine, and of its boxes."""
LISTING = "packages.json"
LEFT_OUT = ("debugpy", "bin", "share", "jupyter.py")
"""What comes along and no kernel needs: a debugger, programs, and files for servers."""
_EXTRA = re.compile(r"""extra\s*==\s*['"]([a-z0-9-]+)['"]""")


def place() -> str:
    return os.path.join(sys.prefix, "share", "coldframe", "interpreter")


def deno() -> str | None:
    """Where the machine has it: beside this installation's Python, where it was put with the packages, or on the PATH."""
    for place_of_it in (os.path.join(os.path.dirname(sys.executable), "deno"), _own_deno()):
        if os.path.exists(place_of_it):
            return place_of_it
    return shutil.which("deno")


def _own_deno() -> str:
    return os.path.join(place(), "deno")


def listing() -> dict[str, Any] | None:
    """What is installed: `python`, `packages` with name and version, their `sha256`, and the `requirements` they came by."""
    try:
        with open(os.path.join(place(), LISTING), encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def requirements() -> list[str]:
    """What the extras ask for, Deno only where it is not there by another way."""
    by_another_way = deno() not in (None, _own_deno())
    extras = {"interpreter"} if by_another_way else {"interpreter", "runtimes"}
    asked = ((one, _EXTRA.search(one)) for one in importlib.metadata.requires("coldframe") or [])
    return sorted(one.partition(";")[0].strip() for one, extra in asked if extra is not None and extra[1] in extras)


def install(say: Callable[[str], None], *, anew: bool = False) -> dict[str, Any]:
    """Install them, unless they are there. Boxes that are made afterwards have them.

    Raises:
        Unavailable: there is no such Python, or pip could not fetch or write them.
    """
    version, wanted = _version(), requirements()
    there = listing()
    if not anew and there is not None and (there["python"], there["requirements"]) == (version, wanted):
        return there
    say(f"installing packages for code cells: {', '.join(wanted)}")
    target = place()
    os.makedirs(target, mode=0o755, exist_ok=True)
    fresh = tempfile.mkdtemp(prefix=".new-", dir=target)
    try:
        line = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--disable-pip-version-check", "--no-input"]
        done = subprocess.run(
            [*line, "--quiet", "--target", fresh, *wanted],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()
            raise Unavailable(
                f"pip could not install the packages for code cells: {last[-1] if last else done.returncode}",
                hint="see whether the registry can be reached, and whether this user may write beside the installation",
            )
        program = os.path.join(fresh, "bin", "deno")
        if os.path.exists(program):
            os.chmod(program, 0o755)
            os.rename(program, _own_deno())
        for name in LEFT_OUT:
            path = os.path.join(fresh, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)
        told = {"python": version, "requirements": wanted, **_found(fresh)}
        for folder, _, names in os.walk(fresh):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                os.chmod(path, os.stat(path).st_mode | (0o055 if path == folder else 0o044))
        final = os.path.join(target, "python" + ".".join(version.split(".")[:2]))
        if os.path.lexists(final):
            old = tempfile.mkdtemp(prefix=".old-", dir=target)
            os.rename(final, os.path.join(old, "packages"))
            shutil.rmtree(old)
        os.rename(fresh, final)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    with open(os.path.join(target, LISTING), "w", encoding="utf-8") as file:
        json.dump(told, file, indent=1)
    return told


def _version() -> str:
    try:
        return subprocess.run(
            [PYTHON, "-c", "import sys; print(sys.version.split()[0])"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise Unavailable(
            f"there is no `{PYTHON}` on this machine", hint="install python3; boxes have what the machine has"
        ) from None


def _found(folder: str) -> dict[str, Any]:
    packages = sorted(
        (str(one.metadata["Name"]), one.version) for one in importlib.metadata.distributions(path=[folder])
    )
    digest = hashlib.sha256()
    for one in sorted(os.listdir(folder)):
        if one.endswith(".dist-info"):
            with open(os.path.join(folder, one, "RECORD"), "rb") as file:
                digest.update(one.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return {
        "packages": [{"name": name, "version": version} for name, version in packages],
        "sha256": digest.hexdigest(),
    }
