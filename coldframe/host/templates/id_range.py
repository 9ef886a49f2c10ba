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
from coldframe.host.isolation.namespaces import GID, UID
from coldframe.host.isolation.own_system import COUNT, box_extents
from coldframe.host.layers.mapping import Extents

FIRST_UID = 2_097_152
"""Of a root installation: above the users of workspaces (`workspaces.py`), far above people, services and the
subordinate ids of the first thirty users, as distributions give them out."""
FIRST_SUBORDINATE = 100_000
"""Where distributions begin to give them out."""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/"}
SHOWN = "/mnt"
"""Where a program of a range sees the directory that it is to work in, in mounts of its own."""
_HOLD = (
    "import ctypes, os, sys; "
    "libc = ctypes.CDLL(None, use_errno=True); "
    "libc.unshare(0x10000000) == 0 or sys.exit('no namespaces: ' + os.strerror(ctypes.get_errno())); "
    "os.write(1, b'.'); os.read(0, 1)"
)
_JOIN = (
    "import ctypes, os, select, sys; "
    "libc = ctypes.CDLL(None, use_errno=True); "
    "kinds = 0x10000000 | 0x20000 | 0x20000000; "  # user, mount and process id namespaces
    "libc.unshare(kinds) == 0 or sys.exit('no namespaces: ' + os.strerror(ctypes.get_errno())); "
    "os.write(1, b'.'); os.read(0, 1) or sys.exit(1); "
    "os.setresgid(0, 0, 0); os.setresuid(0, 0, 0); os.setgroups([]); "
    "output, errors, shown = map(int, sys.argv[1].split(',')); "
    "os.dup2(os.open('/dev/null', os.O_RDWR), 0); os.dup2(output, 1); os.dup2(errors, 2); "
    # As the directory in which one is: those above it may be closed to the range.
    f"shown and libc.mount(b'.', b'{SHOWN}', None, 0x1000, None) and sys.exit('{SHOWN}: ' + os.strerror(ctypes.get_errno())); "
    f"os.chdir('{SHOWN}' if shown else '/'); "
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
        IsolationUnavailable: there are none, with the command that gives some; or those of the installation are another's.
    """
    if os.getuid() == 0:
        for one in given_ids(subuid=subuid, subgid=subgid):
            if one.reaches(FIRST_UID, COUNT):
                raise _missing(
                    f"subordinate ids of `{one.user}` reach into {FIRST_UID}-{FIRST_UID + COUNT - 1}, those of templates",
                    f"give `{one.user}` others in {subuid} and {subgid}",
                )
        return IdRange(FIRST_UID, FIRST_UID)
    name = pwd.getpwuid(os.getuid()).pw_name if _is_known(os.getuid()) else str(os.getuid())
    first_uid, first_gid = (_subordinate(path, name) for path in (subuid, subgid))
    if first_uid is None or first_gid is None:
        first = max(_first_free(path) for path in (subuid, subgid))
        ids = f"{first}-{first + COUNT - 1}"
        raise _missing(
            f"user `{name}` has no {COUNT} subordinate ids",
            f"have an administrator add the line `{name}:{first}:{COUNT}` to {subuid} and to {subgid}, as does: "
            f"usermod --add-subuids {ids} --add-subgids {ids} {name}",
        )
    if shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
        raise _missing(
            "`newuidmap` is not installed",
            "have an administrator run: apt-get install uidmap (other systems: the package with `newuidmap`)",
        )
    return IdRange(first_uid, first_gid)


def start_in_range(
    ids: IdRange,
    program: Sequence[str],
    *,
    output: int,
    errors: int,
    environment: Mapping[str, str] | None = None,
    shown: str | None = None,
    beside_own: bool = False,
    as_box: bool = False,
) -> subprocess.Popen[bytes]:
    """Start *program* as root over *ids*, on these descriptors; all that it starts ends with it. Blocks shortly.

    The directory *shown* it sees as SHOWN, and begins there. *beside_own* makes it root over what is this process's user's as
    well, *as_box* with the number that an ordinary user has in its boxes: both for programs of the host alone.

    Raises:
        IsolationUnavailable: this machine does not give the namespaces.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _JOIN, f"{output},{errors},{int(shown is not None)}", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds={output, errors},
        env={**ENVIRONMENT, **(environment or {})},
        cwd=shown or "/",
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    _map_once_begun(process, *_extents(ids, beside_own=beside_own, as_box=as_box and os.getuid() != 0))
    os.write(process.stdin.fileno(), b".")
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    return process


def hold_users(ids: IdRange) -> int:
    """A descriptor of a user namespace, this user's own, in which an ordinary user is `user` of a box and *ids* are all the
    others. What stands in it may mount, and has no rights over anybody else.

    Raises:
        IsolationUnavailable: these are not the user's ids, or this machine does not give the namespace.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        cwd="/",
    )
    _map_once_begun(process, *_extents(ids, as_box=True))
    try:
        return os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        process.communicate()


class Given(NamedTuple):
    """Subordinate ids, of users or of groups, that a user of the host may become: whatever is theirs is that user's too."""

    user: str
    first: int
    size: int

    def reaches(self, first: int, size: int) -> bool:
        return self.first < first + size and first < self.first + self.size


def given_ids(*, subuid: str = "/etc/subuid", subgid: str = "/etc/subgid") -> list[Given]:
    """What users of this host have been given, but for root, who may become anybody."""
    lines = [*_lines(subuid), *_lines(subgid)]
    return [Given(*line) for line in lines if line[0] not in ("root", "0")]


def require_range(ids: IdRange) -> None:
    """Try, as an ordinary user, all that a system of its own takes of the machine.

    Raises:
        IsolationUnavailable: no namespace over these ids, or no mount in one, can be had.
    """
    os.close(hold_users(ids))
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as said:
        os.chmod(place, 0o711)
        process = start_in_range(ids, ["true"], output=said.fileno(), errors=said.fileno(), shown=place)
        if process.wait() != 0:
            said.seek(0)
            raise _missing(
                f"a user namespace may not mount: {said.read().decode('utf-8', 'replace').strip()}",
                "see docs/isolation.md about user namespaces on this system",
            )


def hand_over(path: str, ids: IdRange) -> None:
    """Make a directory of this process's user the range's root's."""
    if os.getuid() == 0:
        os.chown(path, ids.first_uid, ids.first_gid)
    else:
        _run_beside_own(ids, ["chown", "0:0", path])


def take_back(path: str, ids: IdRange) -> None:
    """Make a directory of the range's this process's user's again, who may do everything in it. Not as root."""
    own = f"{ids.size}:{ids.size}"
    _run_beside_own(ids, ["sh", "-c", 'chown -h "$1" "$2" && chmod u+rwx "$2"', "sh", own, path])


def take_users_files(root: str, ids: IdRange) -> None:
    """What `user` has in a system that an ordinary user has built becomes that user's, who is `user` of the boxes on it."""
    for which, number, change in (("-uid", UID, f"{ids.size}"), ("-gid", GID, f":{ids.size}")):
        line = ["find", root, "-xdev", which, str(number), "-exec", "chown", "-h", change, "{}", "+"]
        _run_beside_own(ids, line)


def clear_in_range(path: str, ids: IdRange) -> None:
    """Remove a tree that holds files of the range, in a directory of this process's user, who is not root."""
    _run_beside_own(ids, ["rm", "-rf", "--one-file-system", "--", path])


def size_in_range(path: str, ids: IdRange) -> int:
    """Bytes on disk of a tree that holds files of the range, for an ordinary user, to whom some of its directories are closed."""
    return 512 * int(_run_beside_own(ids, ["du", "-s", "-x", "--block-size=512", "--", path]).split()[0])


def _run_beside_own(ids: IdRange, program: Sequence[str]) -> str:
    """What it says."""
    with tempfile.TemporaryFile() as output:
        process = start_in_range(ids, program, output=output.fileno(), errors=output.fileno(), beside_own=True)
        code = process.wait()
        output.seek(0)
        said = output.read().decode("utf-8", "replace").strip()
    if code != 0:
        raise Internal(f"{program[0]}: {said}")
    return said


def _extents(ids: IdRange, *, beside_own: bool = False, as_box: bool = False) -> tuple[Extents, Extents]:
    if (beside_own or as_box) and os.getuid() == 0:
        raise Internal("root is never mapped beside a range: whoever can be the host's root holds the host")
    if as_box:
        return box_extents(ids.first_uid, os.getuid(), UID), box_extents(ids.first_gid, os.getgid(), GID)
    uids, gids = ((0, first, ids.size) for first in (ids.first_uid, ids.first_gid))
    if not beside_own:
        return (uids,), (gids,)
    return (uids, (ids.size, os.getuid(), 1)), (gids, (ids.size, os.getgid(), 1))


def _map_once_begun(process: subprocess.Popen[bytes], uids: Extents, gids: Extents) -> None:
    """What is to be mapped says a byte when it is in its namespace. It is ended if it cannot be."""
    assert process.stdout is not None
    if process.stdout.read(1) != b".":
        _, said = process.communicate()
        reason = said.decode("utf-8", "replace").strip()
        raise _missing(reason, "see docs/isolation.md about user namespaces on this system")
    try:
        for kind, extents in (("uid", uids), ("gid", gids)):
            _map(process.pid, kind, extents)
    except BaseException:
        process.kill()
        process.communicate()
        raise


def _map(pid: int, kind: str, extents: Extents) -> None:
    lines = [" ".join(map(str, extent)) for extent in extents]
    if os.getuid() == 0:
        with open(f"/proc/{pid}/{kind}_map", "w", encoding="ascii") as table:
            table.write("\n".join(lines))
        return
    done = subprocess.run([f"new{kind}map", str(pid), *" ".join(lines).split()], capture_output=True, check=False)
    if done.returncode != 0:
        first = next(outside for inside, outside, _ in extents if inside == 0)
        raise _missing(
            f"new{kind}map: {done.stderr.decode('utf-8', 'replace').strip()}",
            f"compare /etc/sub{kind} with the ids {first} to {first + COUNT - 1}",
        )


def _subordinate(path: str, name: str) -> int | None:
    """The first of enough ids that the file gives to the user."""
    for user, first, count in _lines(path):
        if user in (name, str(os.getuid())) and count >= COUNT:
            return first
    return None


def _first_free(path: str) -> int:
    return max([FIRST_SUBORDINATE, *(first + count for _, first, count in _lines(path))])


def _lines(path: str) -> list[tuple[str, int, int]]:
    """User, first and count of each that the file gives; none where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as table:
            lines = [line.strip().split(":") for line in table]
    except OSError:
        return []
    whole = (line for line in lines if len(line) == 3 and line[1].isdigit() and line[2].isdigit())
    return [(user, int(first), int(count)) for user, first, count in whole]


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
