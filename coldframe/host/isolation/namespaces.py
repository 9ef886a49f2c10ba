"""Isolation level `namespaces`: the distribution's bubblewrap builds the box on the shared host kernel.

Standard library only: it runs in the keeper, as the sandbox's own unprivileged user and never as root
(bubblewrap started by uid 0 leaves files of /proc/sys writable from inside, however many capabilities
are dropped). What bubblewrap itself cannot do (masking of /proc entries, caps on inodes) is done while
joining, in `finish_mounts`.

Order matters in `arguments`: later mounts cover earlier ones, and the read-only remounts come last.
The first process sleeps and never forks: the kernel reaps for it, since it ignores SIGCHLD, and it has no
handler, so nothing inside can signal it. (A shell that reaps needs a child to wait for; a payload that killed
that child while the box was at its process limit ended the box, measured.) Its program may be executed and not
read, so the kernel lets nobody inside trace it: what a hijacked first process forks would belong to no command
and keep none of a command's limits. bubblewrap gets an empty environment of its own, since `--clearenv` does not
reach its reaper.
"""

import json
import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from coldframe.host import confine, routes

LEVEL = "namespaces"
BWRAP = "/usr/bin/bwrap"
HOME = "/home/user"
TOOLS = "/opt/coldframe/bin"
FIRST = "/opt/coldframe/sleep"
SLEEP = "/usr/bin/sleep"
"""What `FIRST` is a copy of."""
GO_TIMEOUT_S = 10.0
UID = GID = 1000
HOSTNAME = "coldframe"
NAMESERVER = "198.18.0.1"
"""Nobody answers there: look-ups fail at once and are seen. The benchmark range is never routed."""
PATH = f"{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:{TOOLS}"

INIT = (
    # It waits for a line before it goes on: from then on nobody may look at it, and the keeper has to join it first.
    "env --ignore-signal=CHLD true 2>&- && quiet=1; echo ready; read -r _; exec <&- >&- 2>&-; "
    "trap '' HUP INT TERM QUIT; "
    f'[ "$quiet" ] && exec env -i --ignore-signal=CHLD {FIRST} infinity; '
    "while :; do sleep 1000000000 & wait; done"  # an `env` older than coreutils 8.31
)

ENVIRONMENT = {
    "PATH": PATH,
    "HOME": HOME,
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "TMPDIR": "/tmp",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "DENO_NO_UPDATE_CHECK": "1",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # The distribution marks its Python as its own; here it is read-only, and pip installs below HOME.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    # Python takes a compiled file for fresh if size and whole second of its source agree: an agent that
    # edits and runs within a second would see the old program. pip still compiles what it installs.
    "PYTHONDONTWRITEBYTECODE": "1",
}

HOST_SETTINGS = (
    "/etc/alternatives",
    "/etc/ca-certificates.conf",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/perl",
    "/etc/protocols",
    "/etc/python3",
    "/etc/python3.11",
    "/etc/python3.12",
    "/etc/python3.13",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
    "/etc/vim",
)
"""Settings of the host that programs of /usr need and that hold no secret. All else of /etc is made up."""

SETTINGS = {
    "/etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    f"user:x:{UID}:{GID}:user:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": f"root:x:0:\nuser:x:{GID}:\ntty:x:5:\nnogroup:x:65534:\n",
    "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost {HOSTNAME}\n",
    "/etc/hostname": f"{HOSTNAME}\n",
    "/etc/resolv.conf": f"nameserver {NAMESERVER}\noptions timeout:1 attempts:1\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "/etc/shells": "/bin/sh\n/bin/bash\n",
}

MASKED_SIZES = {"/tmp": 1024, "/var/tmp": 256, "/run": 16, "/dev/shm": 512}
"""Private memory file systems and their caps in MiB; they count as memory of whoever writes."""
INODES_PER_MIB = 256
MOST_TERMINALS = 64
"""Pseudo-terminals of one box: the kernel has about 3,000 for all boxes together, and one payload took them all."""


class Plan(NamedTuple):
    """What to build."""

    workspace: str
    history: str
    """File that is shown read-only as `.exec_history`."""
    tools: dict[str, str]
    """Programs offered beside the host's own: name inside to path outside."""
    memory_mib: int
    tools_only: bool = False
    """The host's own will be covered (see `programs.py`)."""


class Built(NamedTuple):
    init: int
    """Process id of the box's first process, in the builder's namespace."""
    bwrap: int
    """bubblewrap's own process; it ends when the first process does."""
    go: int
    """Write end of a pipe: a line on it lets the first process go on, to where nobody may look at it any more."""


class BuildFailed(Exception):
    """The box could not be built; the text is bubblewrap's own or the step's."""


def arguments(plan: Plan, *, info: int, filter_file: int, first: int, data: dict[str, int]) -> list[str]:
    """bubblewrap's command line. Numbers are descriptors that it inherits."""
    line = [BWRAP, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    line += ["--uid", str(UID), "--gid", str(GID), "--hostname", HOSTNAME, "--clearenv"]
    line += ["--new-session", "--die-with-parent", "--as-pid-1", "--info-fd", str(info), "--seccomp", str(filter_file)]
    line += ["--ro-bind", "/usr", "/usr", *_top_level_links()]
    for path in ("/etc", "/home", "/opt", "/var"):
        line += ["--perms", "0755", "--dir", path]
    for path in HOST_SETTINGS:
        if os.path.exists(path):
            line += ["--ro-bind", path, path]
    for path, number in data.items():
        line += ["--perms", "0444", "--ro-bind-data", str(number), path]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in memory_sizes(plan.memory_mib).items():
        line += ["--perms", "0755" if path == "/run" else "1777", "--size", str(size), "--tmpfs", path]
    line += ["--perms", "0755", "--dir", TOOLS]
    if not plan.tools_only:
        line += ["--symlink", "/usr/bin/python3", f"{TOOLS}/python"]
    line += ["--perms", "0111", "--ro-bind-data", str(first), FIRST]
    for name, path in plan.tools.items():
        line += ["--ro-bind", path, f"{TOOLS}/{name}"]
    line += ["--bind", plan.workspace, HOME, "--ro-bind", plan.history, f"{HOME}/.exec_history"]
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME]
    return [*line, "/bin/sh", "-c", INIT]


def memory_sizes(memory_mib: int) -> dict[str, int]:
    """Bytes of each memory file system of a box: all of them full leave a quarter of its memory to clean up with."""
    share = min(1.0, memory_mib * 0.75 / sum(MASKED_SIZES.values()))
    return {path: int(size_mib * share * (1 << 20)) >> 12 << 12 for path, size_mib in MASKED_SIZES.items()}


def _top_level_links() -> Iterable[str]:
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)


def build(plan: Plan, *, program: bytes) -> Built:
    """Start bubblewrap and wait until the box's first process runs.

    Must run as the sandbox's own user. bubblewrap dies with the calling *thread*, which is the
    keeper's only one, so the box cannot outlive its keeper.

    Raises:
        BuildFailed: with what bubblewrap said; nothing is left of the attempt.
    """
    if os.getuid() == 0:
        raise BuildFailed("refusing to build a box as uid 0")
    info_read, info_write = os.pipe2(os.O_CLOEXEC)
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    complaint = os.memfd_create("complaint", os.MFD_CLOEXEC)
    filter_file = _data_file("filter", program)
    data = {path: _data_file("setting", text.encode()) for path, text in SETTINGS.items()}
    with open(SLEEP, "rb") as program_file:
        first = _data_file("sleep", program_file.read())
    line = arguments(plan, info=info_write, filter_file=filter_file, first=first, data=data)
    pid = os.fork()
    if pid == 0:
        _become_bwrap(line, (go_read, ready_write, complaint), (info_write, filter_file, first, *data.values()))
    for file in (info_write, ready_write, go_read, filter_file, first, *data.values()):
        os.close(file)
    try:
        information = _read_all(info_read)
        ready = _read_line(ready_read)
        if ready != b"ready\n":
            os.close(go_write)
            os.waitpid(pid, 0)
            said = os.pread(complaint, 4000, 0).decode("utf-8", "replace").strip()
            raise BuildFailed(said or "bubblewrap ended without a word")
        return Built(init=int(json.loads(information)["child-pid"]), bwrap=pid, go=go_write)
    finally:
        for file in (info_read, ready_read, complaint):
            os.close(file)


def let_go(built: Built) -> None:
    """From inside, once joined: let the first process go on to where nobody may look at it, and see it there.

    Raises:
        BuildFailed: it did not get there in time, so a command could meet it half-way.
    """
    os.write(built.go, b"\n")
    os.close(built.go)
    deadline = time.monotonic() + GO_TIMEOUT_S
    while time.monotonic() < deadline:
        with open("/proc/1/comm", encoding="utf-8", errors="replace") as source:
            name = source.read().strip()
        # An old `env` leaves a shell with a child instead.
        if name == "sleep" or sum(entry.isdigit() for entry in os.listdir("/proc")) > 1:
            return
        time.sleep(0.0005)
    raise BuildFailed("the first process of the box did not go on")


def _become_bwrap(line: list[str], streams: tuple[int, int, int], inherited: tuple[int, ...]) -> None:
    """The child's side. Never returns."""
    try:
        for number, file in enumerate(streams):
            os.dup2(file, number)
        for file in inherited:
            os.set_inheritable(file, True)
        highest = max(inherited)
        for file in range(3, highest + 1):
            if file not in inherited:
                try:
                    os.set_inheritable(file, False)
                except OSError:
                    pass
        confine.close_range(highest + 1)
        # An empty environment: bubblewrap's own reaper would show ours to the box.
        os.execve(BWRAP, line, {})
    except OSError as error:
        os.write(2, f"{BWRAP}: {error.strerror}".encode())
    finally:
        os._exit(127)


def _data_file(name: str, content: bytes) -> int:
    file = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _read_all(file: int) -> bytes:
    parts = []
    while part := os.read(file, 65536):
        parts.append(part)
    return b"".join(parts)


def _read_line(file: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(file, 64)
        if not part:
            break
        line += part
    return line


def finish_mounts() -> None:
    """While still privileged in the box's user namespace: what bubblewrap cannot do.

    Masks what /proc tells of the host, makes /proc/sys read-only, caps the number of files of the memory
    file systems (bubblewrap caps bytes only; 300,000 empty files cost kernel memory) and of terminals.
    """
    confine.mask_proc()
    for path in MASKED_SIZES:
        cap = f"nr_inodes={MASKED_SIZES[path] * INODES_PER_MIB}"
        confine.mount(None, path, None, confine.MS_REMOUNT | confine.MS_NOSUID | confine.MS_NODEV, cap)
    options = f"newinstance,ptmxmode=0666,mode=620,max={MOST_TERMINALS}"
    confine.mount(None, "/dev/pts", None, confine.MS_REMOUNT | confine.MS_NOSUID | confine.MS_NOEXEC, options)
    routes.capture_everything()
