"""The measured systems: which are here, how each is started, how the peers are installed apart from everything else.

Peers live in a folder of their own (`--peers`, by default in the user's cache): a virtual environment or node folder
each, and Debian packages unpacked, not installed. Nothing of them is needed or touched by the product.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHECKOUT = Path(__file__).resolve().parents[1]
PYPI = {
    "swe-rex": ("swe-rex==1.4.0", "aiohttp"),  # its client needs aiohttp and does not say so
    "inspect-ai": ("inspect-ai==0.3.285",),
    "srt-python": ("sandbox-runtime==0.2.0",),
}
NPM = {"srt-npm": "@anthropic-ai/sandbox-runtime@0.0.78"}
DEBIAN = ("runc", "ripgrep", "socat", "libwrap0")
"""socat with its library and ripgrep are what both sandbox-runtimes ask for."""


class System(NamedTuple):
    name: str
    what: str
    kind: Literal["floor", "product", "isolated", "server", "bare"]
    """*server* and *bare* do not isolate; *server* is reached over HTTP."""
    command: tuple[str, ...]
    """Starts its worker; the worker's folder is appended."""
    options: tuple[str, ...] = ()


class Missing(NamedTuple):
    name: str
    reason: str


def default_folder() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "coldframe-bench")


def search_path(peers: str) -> str:
    """The system's own programs, so that `python3` is the same one for everybody, then the unpacked packages."""
    own = [os.path.join(peers, "debian", "root", part) for part in ("usr/sbin", "usr/bin")]
    return os.pathsep.join([SYSTEM_PATH, *own])


def worker_environment(peers: str) -> dict[str, str]:
    """Nothing of the developer's own, but a path to the unpacked Debian packages."""
    return {
        "PATH": search_path(peers),
        "LD_LIBRARY_PATH": os.path.join(peers, "debian", "root", "usr", "lib", "x86_64-linux-gnu"),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def find_systems(peers: str) -> tuple[list[System], list[Missing]]:
    """All that can be measured here, in the order of a round; and what cannot, with the reason."""
    here: list[System] = []
    missing: list[Missing] = []
    ours = (sys.executable, "-m", "bench.workers")
    path = search_path(peers)

    def add(reason: str | None, system: System) -> None:
        if reason is None:
            here.append(system)
        else:
            missing.append(Missing(system.name, reason))

    add(None, System("plain", "a program started without any isolation; plain files", "floor", (*ours, "plain")))
    bwrap = shutil.which("bwrap", path=path)
    add(
        None if bwrap else "bwrap is not installed",
        System("bwrap", "a fresh bubblewrap for each command", "isolated", (*ours, "bwrap")),
    )
    add(None, System("coldframe", "Coldframe, everything on", "product", (*ours, "coldframe")))
    runc = shutil.which("runc", path=path)
    add(
        "runc is not here: `python -m bench --install-peers`"
        if runc is None
        else None
        if os.geteuid() == 0
        else "needs root",
        System("runc", "a container that lives, `runc exec`", "isolated", (*ours, "runc"), (f"program={runc}",)),
    )
    for name, what, kind in (
        ("srt-python", "PyPI sandbox-runtime: a fresh bubblewrap for each command", "isolated"),
        ("swe-rex", "SWE-ReX remote: an HTTP server for each sandbox, no isolation", "server"),
        ("inspect-ai", "inspect-ai local: a temporary directory, no isolation", "bare"),
    ):
        python = os.path.join(peers, name, "bin", "python")
        reason = None if os.path.exists(python) else f"{PYPI[name][0]} is not here: `python -m bench --install-peers`"
        add(reason, System(name, what, kind, (python, "-m", "bench.workers", name)))  # type: ignore[arg-type]
    folder = os.path.join(peers, "srt-npm")
    node = shutil.which("node", path=path)
    reason = "node is not installed" if node is None else None
    if reason is None and not os.path.isdir(os.path.join(folder, "node_modules")):
        reason = f"{NPM['srt-npm']} is not here: `python -m bench --install-peers`"
    script = str(CHECKOUT / "bench" / "workers" / "srt_npm.mjs")
    add(
        reason,
        System(
            "srt-npm",
            "npm sandbox-runtime: a fresh bubblewrap for each command",
            "isolated",
            (node or "node", script, folder),
        ),
    )
    return here, missing


def ripgrep(peers: str) -> str:
    """The program that searches for the floor of S1; empty where grep has to stand in."""
    return shutil.which("rg", path=search_path(peers)) or ""


def install(peers: str) -> list[str]:
    """Install every peer with its own package manager. Returns what failed, as sentences."""
    os.makedirs(peers, exist_ok=True)
    failed: list[str] = []

    def attempt(name: str, *commands: Sequence[str], folder: str) -> None:
        sys.stderr.write(f"bench: installing {name}\n")
        for command in commands:
            try:
                done = subprocess.run(
                    command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
            except OSError as error:
                failed.append(f"{name}: {error}")
                return
            if done.returncode != 0:
                failed.append(f"{name}: `{command[0]}` said {done.stdout[-300:].decode(errors='replace').strip()}")
                return

    for name, packages in PYPI.items():
        home = os.path.join(peers, name)
        pip = (os.path.join(home, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-input", *packages)
        attempt(name, (sys.executable, "-m", "venv", home), pip, folder=peers)
    for name, package in NPM.items():
        home = os.path.join(peers, name)
        os.makedirs(home, exist_ok=True)
        attempt(name, ("npm", "install", "--no-fund", "--no-audit", "--prefix", home, package), folder=home)
    debian = os.path.join(peers, "debian")
    os.makedirs(debian, exist_ok=True)
    attempt("Debian packages", ("apt-get", "download", *DEBIAN), folder=debian)
    for file in sorted(Path(debian).glob("*.deb")):
        attempt(file.name, ("dpkg", "-x", str(file), os.path.join(debian, "root")), folder=debian)
    return failed
