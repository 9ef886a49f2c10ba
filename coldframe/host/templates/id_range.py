"""The users of a system that is not the host's: root, `user`, those that packages make, each another user on the host.

They are a range of host users that are nobody's on the host, with root first. A program that makes such a system is root
over this range and nothing else: a user namespace maps it alone. To hand directories over to the range, or to take them
back, an ordinary user maps itself beside it for a program of the host; root needs no namespace for that.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coldframe.contract.errors import Internal, IsolationUnavailable
from coldframe.host.removal import remove_tree

COUNT = 65_536
FIRST_UID = 2_097_152
"""Of a root installation: above the users of workspaces (`workspaces.py`), far above people, services and subordinate ids."""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/"}
_JOIN = (
    "import ctypes, os, select, sys; "
    "libc = ctypes.CDLL(None, use_errno=True); "
    "kinds = 0x10000000 | 0x20000 | 0x20000000; "  # user, mount and process id namespaces
    "libc.unshare(kinds) == 0 or sys.exit('no namespaces: ' + os.strerror(ctypes.get_errno())); "
    "os.write(1, b'.'); os.read(0, 1) or sys.exit(1); "
    "os.setresgid(0, 0, 0); os.setresuid(0, 0, 0); os.setgroups([]); "
    "output, errors = map(int, sys.argv[1].split(',')); "
    "os.dup2(os.open('/dev/null', os.O_RDWR), 0); os.dup2(output, 1); os.dup2(errors, 2); "
    "reading, writing = os.pipe(); "
    "child = os.fork(); "  # the first of the new process ids: all that it starts ends with it
    # It ends with this one. If this one has ended before it could ask for that, the pipe is at its end.
    "child or (os.close(writing), libc.prctl(1, 9, 0, 0, 0), select.select([reading], [], [], 0)[0] and os._exit(1), "
    "os.execvp(sys.argv[2], sys.argv[2:])); "
    "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)"
)


class IdRange(NamedTuple):
    """Host users and groups, as many of each, that are told by the same numbers inside: 0 is *first*."""

    first_uid: int
    first_gid: int
    size: int = COUNT


def own_range(*, subuid: str = "/etc/subuid", subgid: str = "/etc/subgid") -> IdRange:
    """Of this process's user: as root the installation's, else the subordinate ids that the user has been given.

    Raises:
        IsolationUnavailable: there are none, with the command that gives some.
    """
    if os.getuid() == 0:
        return IdRange(FIRST_UID, FIRST_UID)
    name = pwd.getpwuid(os.getuid()).pw_name if _is_known(os.getuid()) else str(os.getuid())
    first_uid, first_gid = (_subordinate(path, name) for path in (subuid, subgid))
    if first_uid is None or first_gid is None:
        raise _missing(
            f"user `{name}` has no {COUNT} subordinate ids",
            f"have an administrator run: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}",
        )
    if shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
        raise _missing(
            "`newuidmap` is not installed", "have an administrator install it (Debian and Ubuntu: package `uidmap`)"
        )
    return IdRange(first_uid, first_gid)


def start_in_range(
    ids: IdRange,
    program: Sequence[str],
    *,
    output: int,
    errors: int,
    environment: Mapping[str, str] | None = None,
    beside_own: bool = False,
) -> subprocess.Popen[bytes]:
    """Start *program* as root over *ids*, on these descriptors; all that it starts ends with it. Blocks shortly.

    *beside_own* makes it root over what is this process's user's as well: for programs of the host alone, and never as root.

    Raises:
        IsolationUnavailable: this machine does not give the namespaces.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _JOIN, f"{output},{errors}", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds={output, errors},
        env={**ENVIRONMENT, **(environment or {})},
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    if process.stdout.read(1) != b".":
        _, said = process.communicate()
        reason = said.decode("utf-8", "replace").strip()
        raise _missing(reason, "see docs/isolation.md about user namespaces on this system")
    try:
        _map(process.pid, ids, beside_own=beside_own)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    os.write(process.stdin.fileno(), b".")
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    return process


def hand_over(path: str, ids: IdRange) -> None:
    """Make a directory of this process's user the range's root's."""
    if os.getuid() == 0:
        os.chown(path, ids.first_uid, ids.first_gid)
    else:
        _run_beside_own(ids, ["chown", "0:0", path])


def remove_in_range(path: str, ids: IdRange) -> None:
    """Remove a tree that holds files of the range, in a directory of this process's user. Nothing happens if it is gone."""
    if os.getuid() == 0:
        remove_tree(path)
    elif os.path.lexists(path):
        _run_beside_own(ids, ["rm", "-rf", "--one-file-system", "--", path])


def _run_beside_own(ids: IdRange, program: Sequence[str]) -> None:
    with tempfile.TemporaryFile() as said:
        process = start_in_range(ids, program, output=said.fileno(), errors=said.fileno(), beside_own=True)
        if process.wait() != 0:
            said.seek(0)
            raise Internal(f"{program[0]}: {said.read().decode('utf-8', 'replace').strip()}")


def _map(pid: int, ids: IdRange, *, beside_own: bool) -> None:
    if beside_own and os.getuid() == 0:
        raise Internal("root is never mapped beside a range: whoever can be the host's root holds the host")
    for kind, first, own in (("uid", ids.first_uid, os.getuid()), ("gid", ids.first_gid, os.getgid())):
        lines = [(0, first, ids.size), *([(ids.size, own, 1)] if beside_own else [])]
        if os.getuid() == 0:
            with open(f"/proc/{pid}/{kind}_map", "w", encoding="ascii") as table:
                table.write("\n".join(" ".join(map(str, line)) for line in lines))
        else:
            numbers = [str(number) for line in lines for number in line]
            done = subprocess.run([f"new{kind}map", str(pid), *numbers], capture_output=True, check=False)
            if done.returncode != 0:
                raise _missing(
                    f"new{kind}map: {done.stderr.decode('utf-8', 'replace').strip()}",
                    f"compare /etc/sub{kind} with the ids {first} to {first + ids.size - 1}",
                )


def _subordinate(path: str, name: str) -> int | None:
    """The first of enough ids that the file gives to the user."""
    try:
        with open(path, encoding="utf-8", errors="replace") as table:
            lines = [line.strip().split(":") for line in table]
    except OSError:
        return None
    for line in lines:
        is_own = len(line) == 3 and line[0] in (name, str(os.getuid()))
        if is_own and line[1].isdigit() and line[2].isdigit() and int(line[2]) >= COUNT:
            return int(line[1])
    return None


def _is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _missing(reason: str, remedy: str) -> IsolationUnavailable:
    return IsolationUnavailable(
        f"a system of its own cannot be had here: {reason}",
        hint=remedy,
        property="id_range",
        reason=reason,
        remedy=remedy,
    )
