"""Coldframe with one wall taken away behind its back: a copy of the package whose code was altered at one place.

It stands for a kernel, a distribution's bubblewrap or a slip of ours that does not do what it was told, which no
setting can bring about. What is appended to a file of the copy replaces a function of it by one that does less; the
function must be there, so that a copy that alters nothing any more is no proof.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

from tests.conftest import WAY_OUT
from tests.installation import CHECKOUT


class Wall(NamedTuple):
    """One wall and how it is taken away."""

    name: str
    """As the isolation report names it."""
    replaced: dict[str, str]
    """File below `coldframe/` -> functions that replace its own."""
    rules: str = ""


_NO_FILTER = "def load_filter(program):\n    pass\n"
_WITHOUT = """
_whole = {function}
def {function}(*given, **named):
    line = _whole(*given, **named)
    at = next(at for at in range(len(line)) if line[at:at + {count}] == {words!r})
    return [*line[:at], *{instead!r}, *line[at + {count}:]]
"""
_SHARED = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup"]


def _without(function: str, *words: str, instead: tuple[str, ...] = ()) -> str:
    """Of what that function of the maker of boxes gives bubblewrap."""
    return _WITHOUT.format(function=function, count=len(words), words=list(words), instead=list(instead))


WALLS = (
    Wall("seccomp", {"host/seccomp.py": _NO_FILTER}),
    Wall(
        "no_new_privileges",
        # the kernel takes a filter only from who has no_new_privs
        {"host/confine.py": "def set_no_new_privs():\n    pass\n", "host/seccomp.py": _NO_FILTER},
    ),
    Wall("capabilities", {"host/confine.py": "def drop_all_capabilities():\n    pass\n"}),
    Wall("keeper", {"host/confine.py": "def set_not_dumpable():\n    prctl('', _PR_SET_DUMPABLE, 1)\n"}),
    Wall("system_read_only", {"host/isolation/namespaces.py": _without("_furnishing", "--remount-ro", "/")}),
    Wall("kernel_settings", {"host/confine.py": "def mask_proc():\n    pass\n"}),
    Wall(
        "net_namespace",
        {
            "host/isolation/namespaces.py": _without("_spaces", "--unshare-all", instead=tuple(_SHARED)),
            "host/confine.py": "_into = setns\ndef setns(file, kind):\n    kind == 'net' or _into(file, kind)\n",
            "host/routes.py": "def capture_everything():\n    pass\n",
            "guest/contacts.py": "def open_capture():\n    return socket.socketpair(type=socket.SOCK_DGRAM)[0]\n",
        },
    ),
    Wall(
        "programs",
        {"host/isolation/programs.py": "def leave_only(*given):\n    pass\n"},
        rules="version: 1\nsettings: {runtimes: {'*': [deno]}}\nrules: []\n",
    ),
    Wall(
        "denied_programs",
        {"host/isolation/denials.py": "_all = _cover\ndef _cover(files):\n    _all([*files][1:])\n"},
        rules="version: 1\nsettings: {deny_commands: [arch, tac]}\nrules: []\n",
    ),
    Wall(
        "egress_broker",
        {"host/egress/process.py": "def main(**given):\n    os._exit(3)\n", "host/egress/link.py": "SERVED_S = 2.0\n"},
        rules=WAY_OUT,
    ),
    Wall(
        "resolver",
        {
            "host/egress/capture.py": "def _datagrams(opened, family, address, port):\n"
            "    return _bound(opened, family, socket.SOCK_DGRAM, address, 0)\n"
        },
        rules=WAY_OUT,
    ),
)
NO_LIMITS = {
    "host/cgroups.py": "def _write_limits(*given):\n    pass\n",
    "host/limits.py": "def rlimit_steps(planned):\n    return ()\n",
    "host/io_limit.py": "def _tell(*given):\n    pass\n",
}
"""Control groups are made, but nobody writes the limits into them, and commands start without any of their own."""

LARGE_DISKS = {"host/disk_images.py": "_fit = size_for\ndef size_for(limit_mib):\n    return 4 * _fit(limit_mib)\n"}
"""A workspace gets a disk of its own that holds more than was asked for."""


def altered_copy(folder: str, replaced: dict[str, str]) -> str:
    """A copy of the package in *folder* with these functions replaced; what to put on PYTHONPATH."""
    package = os.path.join(folder, "coldframe")
    shutil.copytree(CHECKOUT / "coldframe", package)
    for name, functions in replaced.items():
        module = importlib.import_module("coldframe." + name.removesuffix(".py").replace("/", "."))
        for line in functions.splitlines():
            if line.startswith("def "):
                function = line.removeprefix("def ").partition("(")[0]
                assert hasattr(module, function), f"{name} has no `{function}` that could be replaced"
        with open(os.path.join(package, name), "a", encoding="utf-8") as file:
            file.write(f"\n\n{functions}")
    for path, folders, files in os.walk(folder):  # the keeper of a sandbox reads it as another user
        for entry in (*folders, *files):
            os.chmod(os.path.join(path, entry), 0o755)
    return folder


class Ran(NamedTuple):
    code: int
    answer: dict[str, Any]
    error: dict[str, Any]
    text: str


def run_altered(folder: str, replaced: dict[str, str], *arguments: str, rules: str = "", **settings: str) -> Ran:
    """Run the command line of an altered copy on a data directory of its own, with no server."""
    os.chmod(folder, 0o711)
    copy = os.path.join(folder, "copy")
    if not os.path.exists(copy):
        os.mkdir(copy, 0o755)
        altered_copy(copy, replaced)
    data = os.path.join(folder, "data")
    if rules:
        os.makedirs(data, mode=0o711, exist_ok=True)
        with open(os.path.join(data, "rules.yaml"), "w", encoding="utf-8") as file:
            file.write(rules)
    done = subprocess.run(
        [sys.executable, "-m", "coldframe.cli", "--json", *arguments],
        cwd=copy,
        env={
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": folder,
            "PYTHONPATH": copy,
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLDFRAME_DATA_DIR": data,
            **settings,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    out, wrong = done.stdout.decode(), done.stderr.decode()
    return Ran(done.returncode, _object(out), _object(wrong).get("error", {}), out + wrong)


def _object(text: str) -> dict[str, Any]:
    """The JSON object that *text* ends with, after notes for people; empty if there is none."""
    start = text.find("{")
    try:
        found: dict[str, Any] = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return found
