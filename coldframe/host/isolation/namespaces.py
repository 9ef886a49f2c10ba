"""Isolation level `namespaces`: the distribution's bubblewrap builds the box on the shared host kernel.

Standard library only: it runs in the keeper, as the sandbox's own unprivileged user and never as root
(bubblewrap started by uid 0 leaves files of /proc/sys writable from inside, however many capabilities
are dropped). What bubblewrap itself cannot do (masking of /proc entries, caps on inodes) is done while
joining, in `finish_mounts`.

Order matters in `_furnishing`: later mounts cover earlier ones, and the read-only remounts come last.
The first process sleeps and never forks: the kernel reaps for it, since it ignores SIGCHLD, and it has no
handler, so nothing inside can signal it. (A shell that reaps needs a child to wait for; a payload that killed
that child while the box was at its process limit ended the box, measured.) It gets this from bubblewrap, which is
started so and then does not see the first process end; the keeper does, and bubblewrap dies with it. Its program may
be executed and not read, so the kernel lets nobody inside trace it: what a hijacked first process forks would belong to
no command and keep none of a command's limits. bubblewrap gets an empty environment of its own, since `--clearenv` does
not reach its reaper.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from coldframe.host import confine, routes
from coldframe.host.isolation.bubblewrap import BWRAP as BWRAP
from coldframe.host.isolation.bubblewrap import (
    BuildFailed,
    Channels,
    Entrance,
    data_file,
    open_channels,
    start,
    start_in_groups,
)

LEVEL = "namespaces"
HOME = "/home/user"
TOOLS = "/opt/coldframe/bin"
FIRST = "/opt/coldframe/sleep"
SLEEP = "/usr/bin/sleep"
"""What `FIRST` is a copy of."""
_PROGRAM = (FIRST, "infinity")
BUILD_TIMEOUT_S = GO_TIMEOUT_S = 10.0
LOOK_S = 0.0002
"""Between two looks at a process that nobody tells about: what one look costs, ten times over."""
LISTEN_MS = 50
"""How long the end of bubblewrap's last file is waited for before the first look."""
UID = GID = 1000
HOSTNAME = "coldframe"
NAMESERVER = "198.18.0.1"
"""Of the range for benchmarks, which is never routed. In a box without network nobody answers there: look-ups fail at once
and are seen. In one with a way out the broker does."""
PATH = f"{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:{TOOLS}"

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
    "/etc/pip.conf": "",  # to be covered where boxes have packages
    # Read by the launcher of Debian's Chromium. The browser's own sandbox needs user namespaces, which no process of a box
    # can make: the box is its wall. Both file systems are memory, and /tmp is the larger one.
    "/etc/chromium.d/coldframe": 'CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --disable-dev-shm-usage"\n'
    'CHROMIUM_FLAGS="$CHROMIUM_FLAGS --disable-component-update"\n',
}

OWN_SETTINGS = frozenset({"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"})
"""Those that a system of its own has of us as well."""

CHROMIUM_POLICIES, FIREFOX_SETTINGS = "/opt/coldframe/chromium", "/opt/coldframe/firefox"
LINKS = {
    "/etc/chromium/policies/managed": CHROMIUM_POLICIES,
    "/etc/opt/chrome/policies/managed": CHROMIUM_POLICIES,
    "/etc/opt/chrome_for_testing/policies/managed": CHROMIUM_POLICIES,
    "/etc/firefox": FIREFOX_SETTINGS,
}
"""Where browsers look for their policies. Only a box with a way out has some (`browser_policies.py`), and as files of its
root: so they cost no mount."""

BOOT = "/proc/sys/kernel/random/boot_id"
"""The machine's would tell of two boxes that they are neighbours, and of one that was started again that it was not."""
_BOOT_FILE = "/opt/coldframe/boot_id"
"""What covers it."""

MASKED_SIZES = {"/tmp": 1024, "/var/tmp": 256, "/run": 16, "/dev/shm": 512}
"""Private memory file systems and their caps in MiB; they count as memory of whoever writes."""
INODES_PER_MIB = 256
_COVER = "/opt/.cover"
"""Name of a file until it is mounted over another one."""
MOST_TERMINALS = 64
"""Pseudo-terminals of one box: the kernel has about 3,000 for all boxes together, and one payload took them all."""


_NO_CAPABILITY, _ASLEEP, _ENDED = b"\nCapEff:\t0000000000000000\n", b"\nState:\tS", b"\nState:\tZ"


class Plan(NamedTuple):
    """What to build."""

    workspace: str | None
    """None for a box that gets one when it stands (see `attachment.py`)."""
    history: str
    """File that is shown read-only as `.exec_history`."""
    tools: dict[str, str]
    """Programs offered beside the host's own: name inside to path outside."""
    memory_mib: int
    tools_only: bool = False
    """The host's own will be covered (see `programs.py`)."""
    settings: str | None = None
    """A directory that holds all of /etc (see `settings.py`); None to put it together from its parts."""
    mark: str = ""
    """Of the installation (see `strays.py`)."""
    files: dict[str, str] = {}
    """More files of the root, by their paths."""
    covers: dict[str, str] = {}
    """Files in place of settings of the host, as far as those are there."""
    root: str | None = None
    """Directory that is the box's whole system, and writable (see `own_system.py`); None for that of the host."""
    users: tuple[int, int] | None = None
    """Beside it: the user namespace that owns the box, and the one of its commands."""
    directories: tuple[str, ...] = ()
    """More directories of the root."""
    lent: dict[str, str] = {}
    """Directories of the host by their places in the box, read-only."""
    binds: tuple[tuple[str, str], ...] = ()
    """Directories of the host, and where in the box they can be written to until they are placed (`volume_mounts.py`)."""


class Built(NamedTuple):
    init: int
    """Process id of the box's first process, in the builder's namespace."""
    bwrap: int
    """bubblewrap's own process; it ends when the first process does."""
    word: int
    """Write end of the pipe on which the first process waits for its filter."""


def _opening(mark: str, users: tuple[int, int] | None, channels: Channels) -> list[str]:
    """bubblewrap's command line as far as it is the same for all boxes. Numbers are descriptors that it inherits."""
    line = [marked_name(mark), *_spaces(users), "--cap-drop", "ALL"]
    line += ["--uid", str(UID), "--gid", str(GID), "--hostname", HOSTNAME, "--clearenv"]
    line += ["--new-session", "--die-with-parent", "--as-pid-1"]
    return [*line, "--info-fd", str(channels.info_write), "--seccomp", str(channels.filter_read)]


def _furnishing(plan: Plan, *, first: int, data: dict[str, int]) -> list[str]:
    """The rest of it but for the program."""
    line = []
    if plan.root is not None:
        line += ["--bind", plan.root, "/"]
    else:
        line += _of_the_host()
    if plan.root is not None:
        for path in OWN_SETTINGS - plan.covers.keys():
            line += ["--perms", "0444", "--ro-bind-data", str(data[path]), path]
    elif plan.settings is not None:
        line += ["--ro-bind", plan.settings, "/etc"]
    else:
        line += ["--perms", "0755", "--dir", "/etc"]
        for path in HOST_SETTINGS:
            line += ["--ro-bind-try", path, path]
        for path in SETTINGS.keys() - plan.covers.keys():
            line += ["--perms", "0444", "--file", str(data[path]), path]
        for path, target in LINKS.items():
            line += ["--symlink", target, path]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in memory_sizes(plan.memory_mib).items():
        line += ["--perms", "0755" if path == "/run" else "1777", "--size", str(size), "--tmpfs", path]
    if plan.root is not None:  # nothing of ours is to be in its layer
        line += ["--perms", "0755", "--tmpfs", os.path.dirname(FIRST)]
    line += ["--perms", "0755", "--dir", TOOLS]
    if not plan.tools_only and "python" not in plan.tools:
        line += ["--symlink", "/usr/bin/python3", f"{TOOLS}/python"]
    for name, path in plan.tools.items():
        line += ["--ro-bind", path, f"{TOOLS}/{name}"]
    for place, path in plan.lent.items():
        line += ["--ro-bind", path, place]
    if plan.workspace is None:
        line += ["--perms", "0700", "--dir", HOME]
    else:
        line += ["--bind", plan.workspace, HOME, "--ro-bind", plan.history, f"{HOME}/.exec_history"]
    for path in plan.directories if plan.root is None else ():
        line += ["--perms", "0755", "--dir", path]
    for path, target in plan.binds:
        line += ["--bind", path, target]
    for path in _covered(plan):
        line += ["--perms", "0444", "--ro-bind-data", str(data[path]), path]
    # Files of the root itself and no mounts, each of which would cost a tenth of a millisecond: / ends read-only. The last is `told`.
    for path in (*plan.files, _BOOT_FILE):
        line += ["--perms", "0444", "--file", str(data[path]), path]
    line += ["--perms", "0111", "--file", str(first), FIRST]
    closed = "/" if plan.root is None else os.path.dirname(FIRST)
    return [*line, "--remount-ro", "/dev", "--remount-ro", closed, "--chdir", HOME]


def _spaces(users: tuple[int, int] | None) -> list[str]:
    """bubblewrap's options for them: in a system of its own the users are there already."""
    if users is None:
        return ["--unshare-all", "--unshare-user", "--disable-userns"]
    outer, inner = map(str, users)
    kinds = [f"--unshare-{kind}" for kind in ("ipc", "pid", "net", "uts", "cgroup")]
    return [*kinds, "--userns", outer, "--userns2", inner]


def _covered(plan: Plan) -> dict[str, str]:
    """Where there is no file to be covered, none can be made: the settings are mounted read-only."""

    def is_there(path: str) -> bool:
        if plan.root is not None:  # and its roots are its own: its programs may replace them
            return path in SETTINGS
        return path in SETTINGS or os.path.isfile((plan.settings or "/etc") + path.removeprefix("/etc"))

    return {path: text for path, text in plan.covers.items() if is_there(path)}


def marked_name(mark: str) -> str:
    """What bubblewrap's processes call themselves, so that what is left of them can be found."""
    return f"{mark}/bwrap"


def memory_sizes(memory_mib: int) -> dict[str, int]:
    """Bytes of each memory file system of a box: all of them full leave a quarter of its memory to clean up with."""
    share = min(1.0, memory_mib * 0.75 / sum(MASKED_SIZES.values()))
    return {path: int(size_mib * share * (1 << 20)) >> 12 << 12 for path, size_mib in MASKED_SIZES.items()}


def prepare() -> None:
    """Find out what stays the same from box to box, so that a process forked after this knows it."""
    _of_the_host()
    _first_program()


@cache
def _of_the_host() -> list[str]:
    line = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            line += ["--ro-bind", path, path]
    for path in ("/home", "/opt", "/var"):
        line += ["--perms", "0755", "--dir", path]
    return line


@cache
def _first_program() -> bytes:
    with open(SLEEP, "rb") as file:
        return file.read()


class Early:
    """A bubblewrap that is started before anybody knows what box it is to build, and waits to be told. It is the user's that is
    likely to ask.
    """

    def __init__(self, mark: str, user: tuple[int, int], entrance: Entrance) -> None:
        """Raises OSError: there is none."""
        read, self._options = os.pipe2(os.O_CLOEXEC)
        channels = self.channels = open_channels(_first_program())
        line = [*_opening(mark, None, channels), "--args", str(read), *_PROGRAM]
        handed = (*channels.handed(), read)
        self.pid, self.row = start_in_groups(line, channels.complaint, handed, entrance, early=user)
        channels.hand_over()
        os.close(read)

    def waits(self) -> bool:
        """Whether it does still. One that has ended keeps its number."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def tell(self, options: list[str]) -> None:
        """Have it go on. Raises OSError: it has ended."""
        rest = memoryview(b"".join(b"%s\0" % os.fsencode(word) for word in options))
        try:
            while rest:
                rest = rest[os.write(self._options, rest) :]
        finally:
            os.close(self._options)

    def end(self) -> None:
        """Nobody wants it. For whoever may signal its user."""
        if self.waits():  # else, were it gone at its start already, the number could be another's, and this may be root
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._options)
        self.channels.close()


def can_be_told(plan: Plan) -> bool:
    """Whether one that was started early has all that this takes."""
    return plan.root is None and not _made_up(plan)


def _made_up(plan: Plan) -> dict[str, str]:
    """The files of a box that bubblewrap is given the text of, but for `_BOOT_FILE`."""
    settings = {path: SETTINGS[path] for path in OWN_SETTINGS} if plan.root is not None else SETTINGS
    return {**(settings if plan.settings is None else {}), **plan.files, **_covered(plan)}


def build(
    plan: Plan, *, begun: Callable[[int, int], None], entrance: Entrance | None = None, early: Early | None = None
) -> Built:
    """Start bubblewrap and wait until the box stands, with its first process about to start.

    `begun` is told the ids of that process and of bubblewrap's own as soon as there are both, while bubblewrap is still
    at work in the first. It waits for its filter then, the last thing that bubblewrap asks for; if the keeper dies, it
    ends for want of one. Must run as the sandbox's own user. bubblewrap dies with the calling *thread*, which is the
    keeper's only one, so the box cannot outlive its keeper. Where there is no birth in a group, it is for others to
    move both there. *early* one that `can_be_told` is used up, and has its entrance behind it.

    Raises:
        BuildFailed: with what bubblewrap said; nothing is left of the attempt.
    """
    if os.getuid() == 0:
        raise BuildFailed("refusing to build a box as uid 0")
    data = {path: data_file("setting", text.encode()) for path, text in _made_up(plan).items()}
    channels = open_channels(_first_program()) if early is None else early.channels
    furnishing = _furnishing(plan, first=channels.first, data={**data, _BOOT_FILE: channels.boot})
    row = None
    try:
        if early is not None:
            pid, row = early.pid, early.row
            early.tell(furnishing)
        else:
            line = [*_opening(plan.mark, plan.users, channels), *furnishing, *_PROGRAM]
            handed = (*channels.handed(), *data.values(), *(plan.users or ()))
            if entrance is None:
                pid = start(line, channels.complaint, handed)
            else:
                pid, row = start_in_groups(line, channels.complaint, handed, entrance)
            for file in handed:
                os.close(file)
    except OSError as error:
        raise BuildFailed(f"{BWRAP}: {error.strerror}") from error
    try:
        information = _read_all(channels.info_read)
        if information:
            init = int(json.loads(information)["child-pid"])
            begun(init, pid)
            if _stands(init, channels.told):
                return Built(init=init, bwrap=pid, word=channels.filter_write)
        os.close(channels.filter_write)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        said = os.pread(channels.complaint, 4000, 0).decode("utf-8", "replace").strip()
        if row is not None and (number := row.progress().error):
            said = f"{BWRAP}: {os.strerror(number)}"
        raise BuildFailed(said or "bubblewrap ended without a word")
    finally:
        channels.told.close()
        for file in (channels.info_read, channels.complaint):
            os.close(file)


def _stands(init: int, told: socket.socket) -> bool:
    """Wait until bubblewrap's child has built the box and waits for its filter; False if it ended, or takes too long.

    It tells nobody, but first it closes the last file that it is to make in the box, and then it can be seen: the last
    thing before it waits is to give its capabilities away, which it has from its first moment on. Should another
    bubblewrap do it in another order, then what is joined is no whole box, and is refused when it is measured.
    """
    deadline = time.monotonic() + BUILD_TIMEOUT_S
    closed = select.poll()
    closed.register(told, 0)
    closed.poll(LISTEN_MS)
    try:
        status = os.open(f"/proc/{init}/status", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):  # the second, if it ends in the middle
        return False
    try:
        while time.monotonic() < deadline:
            text = os.pread(status, 8192, 0)
            if _NO_CAPABILITY in text and _ASLEEP in text:
                return True
            if _ENDED in text:
                return False
            time.sleep(LOOK_S)
    except ProcessLookupError:
        pass
    finally:
        os.close(status)
    return False


def let_go(built: Built, program: bytes) -> None:
    """Once joined: give the first process its filter, so that it goes on to where nobody may look at it.

    Raises:
        BuildFailed: it did not get all of it. It must end then, as it does with its builder.
    """
    if os.write(built.word, program) != len(program):
        raise BuildFailed("the filter did not fit into the pipe")
    os.close(built.word)


def await_first() -> None:
    """From inside: return when the first process is where nobody may look at it.

    Raises:
        BuildFailed: it did not get there in time, so a command could meet it half-way.
    """
    deadline = time.monotonic() + GO_TIMEOUT_S
    name = os.open("/proc/1/comm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while time.monotonic() < deadline:
            if os.pread(name, 64, 0) == b"sleep\n":
                return
            time.sleep(LOOK_S)
    finally:
        os.close(name)
    raise BuildFailed("the first process of the box did not go on")


def _read_all(file: int) -> bytes:
    parts = []
    while part := os.read(file, 65536):
        parts.append(part)
    return b"".join(parts)


def dress(files: dict[str, str], covers: dict[str, str]) -> None:
    """While still privileged in a box that stands on the host's system: what `Plan` calls so, given later.

    Raises ConfineError, and OSError, for what does not take; the box must end then.
    """
    loose = confine.MS_NOSUID | confine.MS_NODEV
    confine.remount("/", loose)
    for path, text in files.items():
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        _write_new(path, text)
    for path, text in covers.items():
        if path in SETTINGS or os.path.isfile(path):
            _write_new(_COVER, text)
            confine.bind(_COVER, path)
            confine.remount(path, loose | confine.MS_RDONLY)
            os.unlink(_COVER)
    confine.remount("/", loose | confine.MS_RDONLY)


def _write_new(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444), "wb") as file:
        file.write(text.encode())


def finish_mounts() -> None:
    """While still privileged in the box's user namespace: what bubblewrap cannot do.

    Masks what /proc tells of the host, makes /proc/sys read-only, caps the number of files of the memory
    file systems (bubblewrap caps bytes only; 300,000 empty files cost kernel memory) and of terminals.
    """
    confine.mask_proc()
    confine.bind(_BOOT_FILE, BOOT)  # and read-only like what it lies in
    for path in MASKED_SIZES:
        cap = f"nr_inodes={MASKED_SIZES[path] * INODES_PER_MIB}"
        confine.mount(None, path, None, confine.MS_REMOUNT | confine.MS_NOSUID | confine.MS_NODEV, cap)
    options = f"newinstance,ptmxmode=0666,mode=620,max={MOST_TERMINALS}"
    confine.mount(None, "/dev/pts", None, confine.MS_REMOUNT | confine.MS_NOSUID | confine.MS_NOEXEC, options)
    routes.capture_everything()
