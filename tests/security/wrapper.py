"""The disposable outer wrapper: whatever an attack destroys or sends in it, it destroys a copy and sends to nobody.

A process in here has its own mount, network, pid, ipc and uts namespaces. `/` is new, each of
its directories is an overlay whose upper layer is a tmpfs and goes with the wrapper (one that has mounts below it is not
there); `/tmp`, `/run`, `/var/tmp` and `/dev` are new as well, and the network is loopback alone, or loopback and a wire to
another such network (`outside.py`), from which nothing leads on. The first process
is a helper that keeps the rights to mount, for steps that take a part of the machine away. As root the wrapper is made by
root, and "ordinary" drops to uid 65534 inside; without root it is made in a user namespace, and the program runs in a
second one under the caller's own uid.

What it does not do: `/proc/sys` and the control groups are those of the host, since the product needs them as they are.
Programs that are meant to win (the controls) therefore never run with root's own rights in here.
"""

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from coldframe.host import confine
from tests.security.outside import start_outside

CHECKOUT = Path(__file__).resolve().parents[2]
NOBODY = 65534
FIRST_PID = 2000
ORDINARY = 1000
"""The caller's number inside, without root. Not 65534: that is what the kernel shows for every user that has no number."""
UPPER = "/run/wrapper/upper"
"""Inside: the upper layers of the overlays, which hold exactly what differs from the host."""
HOST_IP = "10.99.0.1"
"""Inside: an address of the "host" besides loopback."""
SHOWN = "/srv/shown"
"""Inside: a directory of the host, as it is and read-only."""
SUBORDINATE = 3_000_000_000
"""Inside: the first subordinate id of "ordinary"."""
CONTROL_FD = "COLDFRAME_WRAPPER_FD"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
NEW_DIRECTORIES = frozenset({"dev", "proc", "sys", "tmp", "run", "mnt", "media", "boot", "lost+found"})
SYSTEM_TMPFS = {"tmp": "mode=1777,size=3g", "run": "mode=755,size=64m", "var/tmp": "mode=1777,size=64m"}
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 0x4000, 1 << 18

Who = Literal["root", "ordinary"]

_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """Why no wrapper can be made here, or None. Found by making one."""
    tried = in_wrapper(["-c", "print('inside')"], who="root" if os.geteuid() == 0 else "ordinary", timeout_s=60)
    if tried.returncode == 0 and tried.stdout.strip() == "inside":
        return None
    return f"no disposable wrapper can be made here: {tried.stderr.strip()[-500:] or f'exit {tried.returncode}'}"


def in_wrapper(
    arguments: Sequence[str],
    *,
    who: Who,
    timeout_s: float,
    stdin: str = "",
    control_groups: bool = True,
    outside: bool = False,
    shown: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in a wrapper of its own; everything that it started is gone afterwards.

    Without *control_groups* those of the host are covered: for programs that are meant to do harm. With *outside* there
    is a wire, and at its other end everything that has an address (`outside.py`). The directory *shown* of the host is there as
    SHOWN; where root makes the wrapper "ordinary" has subordinate ids from SUBORDINATE on.
    """
    base = tempfile.mkdtemp(prefix="cf-wrapper-", dir="/tmp")
    try:
        return subprocess.run(
            [
                *(sys.executable, "-m", "tests.security.wrapper", "--base", base, "--who", who),
                *(() if control_groups else ("--without-control-groups",)),
                *(("--outside",) if outside else ()),
                *(("--shown", shown) if shown is not None else ()),
                *("--", *arguments),
            ],
            cwd=CHECKOUT,
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "LANG": "C.UTF-8",
                "HOME": "/tmp",
                "PYTHONPATH": str(CHECKOUT),
                "PYTHONDONTWRITEBYTECODE": "1",
                "COLDFRAME_SLOW": os.environ.get("COLDFRAME_SLOW", ""),
            },
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    finally:
        shutil.rmtree(base, ignore_errors=True)


# -- inside --------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", required=True)
    parser.add_argument("--who", choices=("root", "ordinary"), required=True)
    parser.add_argument("--without-control-groups", action="store_true")
    parser.add_argument("--outside", action="store_true")
    parser.add_argument("--shown")
    parser.add_argument("arguments", nargs="+")
    wanted = parser.parse_args()
    confine.set_parent_death_signal()
    uid = os.geteuid()
    if uid != 0:
        _own_users(0)
    confine.unshare("mnt", "net", "pid", "ipc", "uts")
    pid = os.fork()
    if pid == 0:
        confine.set_parent_death_signal()
        code = 1
        try:
            _count_on()
            _build(wanted.base, plain=uid == 0, shown=wanted.shown)
            if wanted.without_control_groups and os.path.isdir("/sys/fs/cgroup"):
                confine.mount("none", "/sys/fs/cgroup", "tmpfs", MS_NOSUID | MS_NODEV, "mode=555,size=4k")
            if wanted.outside and (reason := start_outside()):
                print(f"wrapper: nothing is outside: {reason}", file=sys.stderr)
            code = _serve(wanted.arguments, who=wanted.who, uid=uid)
        except (OSError, confine.ConfineError) as error:
            print(f"wrapper: {error}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _count_on() -> None:
    """Let process numbers begin far above those of a box: a number of the outside must be nobody's inside."""
    with suppress(OSError):  # of a kernel that does not let them be set: then by counting
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(FIRST_PID), encoding="ascii")
    pid = 0
    while pid < FIRST_PID:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def _own_users(inside: int) -> None:
    """A user namespace in which the caller is *inside*."""
    uid, gid = os.geteuid(), os.getegid()
    confine.unshare("user")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{inside} {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{inside} {gid} 1", encoding="ascii")


def _build(base: str, *, plain: bool, shown: str | None) -> None:
    """Make the file system and enter it."""
    confine.mount(None, "/", None, MS_REC | MS_PRIVATE)
    confine.mount("wrapper", base, "tmpfs", MS_NOSUID, "mode=755,size=1g")
    root = os.path.join(base, "root")
    os.mkdir(root, 0o755)
    confine.mount("root", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for entry in os.scandir("/"):
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), f"{root}{entry.path}")
        elif entry.is_dir():
            os.mkdir(f"{root}{entry.path}", 0o755)
            if entry.name not in NEW_DIRECTORIES and not any(path.startswith(f"{entry.path}/") for path in _mounts()):
                try:
                    _overlay(base, entry.path, plain=plain)
                except (
                    confine.ConfineError
                ) as error:  # some file systems cannot be below; if it is needed, it is missed
                    print(f"wrapper: {entry.path} is left out: {error}", file=sys.stderr)
    for name, options in SYSTEM_TMPFS.items():
        confine.mount(name, f"{root}/{name}", "tmpfs", MS_NOSUID | MS_NODEV, options)
    for path in sorted({str(CHECKOUT), sys.prefix, sys.base_prefix}):
        if not os.path.isdir(root + path):
            os.makedirs(root + path)
            _overlay(base, path, plain=plain)
    confine.bind("/sys", f"{root}/sys", recursive=True)
    confine.mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    confine.mount("dev", f"{root}/dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name in DEVICES:
        Path(root, "dev", name).touch()
        confine.bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{root}/dev/{name}")
    confine.mount("pts", f"{root}/dev/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")
    confine.mount("shm", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=256m")
    for name, target in {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1"}.items():
        os.symlink(target, f"{root}/dev/{name}")
    os.makedirs(root + UPPER)
    os.makedirs(f"{root}/srv/host", exist_ok=True)
    os.chmod(f"{root}/srv/host", 0o777)
    if shown is not None:
        os.makedirs(root + SHOWN)
        confine.bind(shown, root + SHOWN)
        confine.remount(root + SHOWN, confine.MS_RDONLY | MS_NODEV)
    if plain and os.path.isdir(f"{root}/etc"):
        for name in ("subuid", "subgid"):
            Path(root, "etc", name).write_text(f"nobody:{SUBORDINATE}:65536\n", encoding="ascii")
    socket.sethostname("host-of-coldframe")
    confine.bind(f"{base}/upper", root + UPPER)
    os.chdir(root)
    if _libc.pivot_root(b".", b".") != 0:
        raise OSError(ctypes.get_errno(), "could not enter the wrapper's file system")
    confine.detach(".")
    os.chdir(CHECKOUT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        _address(link, b"lo:1", HOST_IP)
        fcntl.ioctl(link, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running


def _mounts() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [line.split()[4] for line in file]


def _overlay(base: str, path: str, *, plain: bool) -> None:
    """One directory of `/`. An overlay over `/` itself is refused in a user namespace: it would uncover what lies below mounts."""
    upper, work = f"{base}/upper{path}", f"{base}/work{path}"
    os.makedirs(upper)
    os.makedirs(work)
    shutil.copymode(path, upper)
    options = f"lowerdir={path},upperdir={upper},workdir={work}" + ("" if plain else ",userxattr")
    confine.mount("wrapper", f"{base}/root{path}", "overlay", MS_NODEV, options)


def _address(link: socket.socket, interface: bytes, address: str) -> None:
    request = struct.pack("16sHH4s8x", interface, socket.AF_INET, 0, socket.inet_aton(address))
    fcntl.ioctl(link, 0x8916, request)  # SIOCSIFADDR


def _serve(arguments: list[str], *, who: Who, uid: int) -> int:
    """Run the program, carry out its requests, reap everybody. Returns the program's exit code."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            os.set_inheritable(theirs.fileno(), True)
            os.environ[CONTROL_FD] = str(theirs.fileno())
            if who == "ordinary":
                if uid == 0:
                    os.setgroups([])
                    os.setresgid(NOBODY, NOBODY, NOBODY)
                    os.setresuid(NOBODY, NOBODY, NOBODY)
                else:
                    _own_users(ORDINARY)
            os.execv(sys.executable, [sys.executable, *arguments])
        except (OSError, confine.ConfineError) as error:
            print(f"wrapper: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(126)
    theirs.close()
    ours.settimeout(0.2)
    while True:
        try:
            request = ours.recv(65536)
            if request:
                ours.send(json.dumps(_carry_out(json.loads(request))).encode())
        except TimeoutError:
            request = b"-"
        except OSError:
            request = b""
        while True:
            try:
                ended, status = os.waitpid(-1, 0 if not request else os.WNOHANG)
            except ChildProcessError:
                return 1
            if ended == 0:
                break
            if ended == pid:
                return os.waitstatus_to_exitcode(status) & 0xFF


def _carry_out(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request["do"] == "cover":
            confine.bind("/dev/null", request["path"])
        elif request["do"] == "bind":
            confine.bind(request["source"], request["path"])
        elif request["do"] == "uncover":
            confine.detach(request["path"])
        elif request["do"] == "tmpfs":
            before = os.stat(request["path"])
            options = f"mode={before.st_mode & 0o7777:o},size={request['mib']}m,nr_inodes={request['inodes']}"
            confine.mount("attacked", request["path"], "tmpfs", MS_NOSUID | MS_NODEV, options)
            if os.geteuid() == 0 and Path("/proc/self/uid_map").read_text(encoding="ascii").split()[2] != "1":
                os.chown(request["path"], before.st_uid, before.st_gid)
        else:
            return {"error": f"unknown request {request['do']!r}"}
    except (OSError, confine.ConfineError) as error:
        return {"error": str(error)}
    return {}


class Helper:
    """The program's side: asks the wrapper's first process for what needs rights."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=int(os.environ.pop(CONTROL_FD)))
        os.set_inheritable(self._socket.fileno(), False)

    def ask(self, do: str, **request: Any) -> None:
        self._socket.send(json.dumps({"do": do, **request}).encode())
        answer = json.loads(self._socket.recv(65536))
        if "error" in answer:
            raise RuntimeError(f"the wrapper could not {do}: {answer['error']}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main())
