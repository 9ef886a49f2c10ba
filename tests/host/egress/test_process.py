"""The broker's process has little that somebody who takes it over could use."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.host import landlock
from tests.host import boxes
from tests.host.forked import in_child
from tests.host.machines import as_root_and_ordinary

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PROGRAM = """
import errno, json, os, socket, sys, threading
sys.path.insert(0, sys.argv[1])
from coldframe.host.egress.process import give_up_rights

def code_of(step, *arguments):
    try:
        step(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]

folder, user, channel = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
gaps = give_up_rights(channel, user)
done = []
thread = threading.Thread(target=lambda: done.append(socket.getaddrinfo("127.0.0.1", None)))
thread.start()
thread.join()
found = {
    "gaps": gaps,
    "resolves": bool(done),
    "of the resolver": code_of(open, "/etc/nsswitch.conf" if os.path.exists("/etc/nsswitch.conf") else "/etc/hosts"),
    "read": code_of(open, folder + "/file"),
    "make": code_of(open, folder + "/new", "w"),
    "list": code_of(os.listdir, folder),
    "truncate": code_of(os.truncate, folder + "/file", 0),
    "remove": code_of(os.unlink, folder + "/file"),
    "mode": code_of(os.chmod, folder + "/file", 0o777),
    "times": code_of(os.utime, folder + "/file"),
    "fork": code_of(os.fork),
    "execute": code_of(os.execv, "/bin/true", ["true"]),
    "signal": code_of(os.kill, os.getppid(), 0),
    "connect": code_of(lambda: socket.socket(socket.AF_UNIX)),
    "listen": code_of(lambda: socket.socket().listen()),
}
os.write(channel, json.dumps(found).encode())
"""


@pytest.fixture
def folder() -> Iterator[str]:
    """Whose file everybody may read and change."""
    with tempfile.TemporaryDirectory(prefix="cf-broker-", dir="/tmp") as path:
        os.chmod(path, 0o777)
        with open(f"{path}/file", "w") as file:
            file.write("of its user")
        os.chmod(f"{path}/file", 0o666)
        yield path


def test_the_code_that_runs_is_that_beside_the_program_whatever_else_is_installed(tmp_path: Path) -> None:
    package = tmp_path / "coldframe" / "host" / "egress"
    package.mkdir(parents=True)
    for folder in (package.parent.parent, package.parent, package):
        (folder / "__init__.py").touch()
    shutil.copy(Path(ROOT, "coldframe/host/egress/__main__.py"), package)
    (package / "process.py").write_text(
        "import sys\ndef main(**given): print(__file__, given['channel'], given['packages'], sys.path[0])\n"
    )
    program = [sys.executable, "-I", str(package / "__main__.py"), "7", "1"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30)
    assert done.stdout.split()[:3] == [str(package / "process.py"), "7", "None"], done.stderr
    assert str(tmp_path) not in done.stdout.split()[3]  # where nothing else is looked for


@pytest.mark.skipif(landlock.version() < 3, reason="the kernel's Landlock is too old or absent")
@as_root_and_ordinary
def test_it_opens_no_files_of_its_user_and_reaches_no_process(folder: str, who: str) -> None:
    def child() -> bytes:
        if who == "ordinary":
            boxes.become_ordinary()
        ours, theirs = socket.socketpair()
        number = str(theirs.fileno())
        program = [sys.executable, "-I", "-c", PROGRAM, ROOT, folder, str(boxes.NOBODY), number]
        subprocess.run(program, pass_fds=[theirs.fileno()], check=True, timeout=30)
        return ours.recv(65536)

    found = json.loads(in_child(child))
    assert found.pop("gaps") == [] and found.pop("resolves") is True and found.pop("of the resolver") is None
    by_landlock = {name: found.pop(name) for name in ("read", "make", "list", "truncate", "remove")}
    assert by_landlock == dict.fromkeys(by_landlock, errno.errorcode[errno.EACCES])
    assert found == dict.fromkeys(found, errno.errorcode[errno.EPERM])
    assert os.path.getsize(f"{folder}/file") == len("of its user")
