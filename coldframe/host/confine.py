"""Thin words for the kernel calls that confine a process: one function per call, none with a choice in it.

Standard library only and light to import, since the keeper starts with ``python -I -S``. Every function
raises ConfineError naming its step, so a wall that did not come up is never taken for one that did.

The order of a join is not free. ``bwrap --disable-userns`` nests two user namespaces: the outer one owns
the mount, network, pid, ipc, uts and cgroup namespaces, the inner one is where commands live and owns
nothing. So: into the outer (full capabilities there), into the others, finish the mounts, and only then
into the inner one, where the capabilities over the box are gone for good.
"""

import ctypes
import errno
import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

NAMESPACES = {
    "user": 0x10000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "net": 0x40000000,
    "cgroup": 0x02000000,
    "pid": 0x20000000,
    "mnt": 0x00020000,
}
"""Name under /proc/PID/ns -> CLONE_NEW* flag, in the order in which a join takes them."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
MS_PRIVATE, MS_SLAVE = 1 << 18, 1 << 19
_MNT_DETACH = 2
MOUNT_RDONLY, MOUNT_NOSUID, MOUNT_NODEV = 1, 2, 4
"""Flags of `seal_tree`."""
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442
"""On every architecture."""
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_FROM_NOTHING, _MOVE_MOUNT_TO_OPEN = 1, 4, 0x40

MASKED_PROC_FILES = (
    "kcore",
    "keys",
    "key-users",
    "locks",  # those of open file descriptions are shown across pid namespaces, a keeper's on its workspace among them
    "timer_list",
    "sched_debug",
    "kallsyms",
    "latency_stats",
    "kpagecount",
    "kpageflags",
    "kpagecgroup",
    "sysrq-trigger",
    "config.gz",
    "cmdline",
    "iomem",
    "ioports",
    "slabinfo",
    "vmallocinfo",
)
MASKED_PROC_DIRECTORIES = ("acpi", "scsi", "asound")
READ_ONLY_PROC_DIRECTORIES = ("sys", "bus", "fs", "irq", "pressure")

_NS_GET_USERNS = 0xB701
PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
CLOSE_RANGE_CLOEXEC = 4

_libc = ctypes.CDLL(None, use_errno=True)
# Said once, and not with each argument: a new box takes more than a hundred of these calls.
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_libc.mount.argtypes = (*(ctypes.c_char_p,) * 3, ctypes.c_ulong, ctypes.c_char_p)


class ConfineError(Exception):
    """A step of the confinement did not take. Nothing may run after this."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"could not {step}: {reason}")
        self.step = step
        self.reason = reason


def _fail(step: str) -> NoReturn:
    raise ConfineError(step, os.strerror(ctypes.get_errno()))


@contextmanager
def _step(step: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfineError(step, error.strerror or str(error)) from error


def prctl(step: str, option: int, second: int = 0, third: int = 0) -> int:
    result = int(_libc.prctl(option, second, third, 0, 0))
    if result < 0:
        _fail(step)
    return result


def setns(descriptor: int, kind: str) -> None:
    """Enter the namespace behind `descriptor`. For `pid` only children are in it, not this process."""
    if _libc.setns(descriptor, NAMESPACES[kind]) != 0:
        _fail(f"enter the {kind} namespace")


def unshare(*kinds: str) -> None:
    """Give this process fresh namespaces of these kinds."""
    flags = 0
    for kind in kinds:
        flags |= NAMESPACES[kind]
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        _fail(f"make new namespaces ({', '.join(kinds)})")


def owning_user_namespace(descriptor: int) -> int:
    """A new descriptor of the user namespace that owns the namespace behind `descriptor`."""
    with _step("ask for the owning user namespace"):
        return fcntl.ioctl(descriptor, _NS_GET_USERNS)


def mount(source: str | None, target: str, filesystem: str | None, flags: int = 0, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, filesystem, options)]
    if _libc.mount(*encoded[:3], flags, encoded[3]) != 0:
        _fail(f"mount `{target}`")


def bind(source: str, target: str, *, recursive: bool = False) -> None:
    """Flags other than MS_REC are ignored by the kernel on a bind; use `remount` after it."""
    mount(source, target, None, MS_BIND | (MS_REC if recursive else 0))


def remount(target: str, flags: int) -> None:
    """Change the flags of one mount point, not of the file system behind it."""
    mount(None, target, None, MS_BIND | MS_REMOUNT | flags)


def detach(target: str) -> None:
    """Unmount lazily: gone from the view at once, freed when the last user is."""
    if _libc.umount2(os.fsencode(target), _MNT_DETACH) != 0:
        _fail(f"unmount `{target}`")


def open_tree(place: int) -> int:
    """A copy of what is mounted at the open file or directory `place` and below it, mounted nowhere: a new descriptor."""
    tree = _libc.syscall(_SYS_OPEN_TREE, place, b"", _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE)
    if tree < 0:
        _fail("take a mount along")
    return int(tree)


def seal_tree(tree: int, flags: int) -> None:
    """Set flags (`MOUNT_RDONLY`…) on all mounts of a copy; what is mounted later where it came from is mounted there, too."""
    attributes = struct.pack("<4Q", flags, 0, MS_SLAVE, 0)
    size = ctypes.c_size_t(len(attributes))
    if _libc.syscall(_SYS_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes, size) != 0:
        _fail("set the flags of a mount")


def mount_tree(tree: int, target: str, *, place: int | None = None) -> None:
    """Mount a copy, here, in whatever namespace it was made: at `place`, if that is open, which is told as `target`. Else a
    link at the end of `target` is not followed."""
    at, path, flags = _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_FROM_NOTHING
    if place is not None:
        at, path, flags = place, b"", flags | _MOVE_MOUNT_TO_OPEN
    if _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", at, path, flags) != 0:
        _fail(f"mount `{target}`")


def drop_all_capabilities() -> None:
    """Empty the ambient, bounding, permitted, effective and inheritable sets."""
    drop_bounding_set()
    drop_held_capabilities()


def drop_bounding_set(*, but: int = 0) -> None:
    """No program that is started from here on gains a capability, `but` those of this mask. Takes CAP_SETPCAP."""
    for capability in range(64):
        if but >> capability & 1:
            continue
        try:
            prctl(f"drop capability {capability}", _PR_CAPBSET_DROP, capability)
        except ConfineError:
            if ctypes.get_errno() != errno.EINVAL or capability == 0:
                raise
            break  # past the last one of this kernel


def drop_held_capabilities() -> None:
    """Empty the ambient, permitted, effective and inheritable sets."""
    prctl("clear the ambient capabilities", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    set_held_capabilities(permitted=0, effective=0)


def keep_capabilities(permitted: int, *, bounding: int, effective: int) -> None:
    """Drop all but those of these masks; `bounding` is for what is started from here on. None is inheritable or ambient."""
    drop_bounding_set(but=bounding)
    prctl("clear the ambient capabilities", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    set_held_capabilities(permitted=permitted, effective=effective)


def set_held_capabilities(*, permitted: int, effective: int) -> None:
    header, sets = capability_sets(permitted=permitted, effective=effective)
    if _libc.capset(header, sets) != 0:
        _fail("drop the capabilities")


Buffer = ctypes.Array[ctypes.c_char]


def capability_sets(*, permitted: int, effective: int) -> tuple[Buffer, Buffer]:
    """What capset takes, for this thread: a header and the sets. Both machines with a filter table are little-endian."""
    header = _CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4)
    words = [word >> shift & 0xFFFF_FFFF for shift in (0, 32) for word in (effective, permitted, 0)]
    return ctypes.create_string_buffer(header), ctypes.create_string_buffer(struct.pack("<6I", *words))


def set_no_new_privs() -> None:
    """From here on no exec, set-uid or file capability included, gains anything."""
    prctl("set no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)


def set_not_dumpable() -> None:
    """No process of the same uid may trace this one or open its memory; a child inherits it until exec.

    Without this a box process attached to the child of the keeper between fork and exec.
    """
    prctl("become not dumpable", _PR_SET_DUMPABLE, 0)


def set_subreaper() -> None:
    """Orphaned descendants become children of this process."""
    prctl("become subreaper", _PR_SET_CHILD_SUBREAPER, 1)


def set_parent_death_signal(number: int = signal.SIGKILL) -> None:
    """Get signal `number` when the *thread* that forked this process ends. Lost on a change of uid or by set-uid exec."""
    prctl("set the parent death signal", PR_SET_PDEATHSIG, number)


def close_range(first: int, last: int = 0xFFFFFFFF, *, on_exec: bool = False) -> None:
    """Close every descriptor from `first` to `last`, or mark them to be closed by exec."""
    if _libc.close_range(ctypes.c_uint(first), ctypes.c_uint(last), CLOSE_RANGE_CLOEXEC if on_exec else 0) != 0:
        _fail("close descriptors")


def join_namespaces(
    pid: int,
    *,
    while_privileged: Callable[[], None],
    before_mounts: Callable[[int, int], None] = lambda _, __: None,
) -> None:
    """Enter the box whose first process is `pid` (numbered in this process's own pid namespace).

    `before_mounts` runs with the same capabilities as the next, while the mounts are still those of before; it gets
    descriptors of the box's mount namespace and of its root, which it may duplicate.

    `while_privileged` runs inside the box's root with full capabilities over the box, and none over the
    host, as the last thing before these capabilities go. Afterwards this process is rooted in the box;
    it is still outside its pid namespace and therefore not visible there, while its children will be in.
    Raises ConfineError; the process is then half inside and must end.
    """
    opened: list[int] = []

    def hold(descriptor: int) -> int:
        opened.append(descriptor)
        return descriptor

    try:
        with _step(f"open the namespaces of process {pid}"):
            # everything through one descriptor, so that a reused pid cannot give a mixture
            proc = hold(os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            spaces = {k: hold(os.open(f"ns/{k}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)) for k in NAMESPACES}
            root = hold(os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc))
            own_user_inode = os.stat("/proc/self/ns/user").st_ino
        outer = hold(owning_user_namespace(spaces["mnt"]))
        if os.fstat(outer).st_ino != own_user_inode:
            setns(outer, "user")
        for kind in NAMESPACES:
            if kind == "mnt":  # the last
                before_mounts(spaces[kind], root)
            if kind != "user":
                setns(spaces[kind], kind)
        with _step("enter the root of the box"):
            os.fchdir(root)
            os.chroot(".")
            os.chdir("/")
        while_privileged()
        inner_inode = os.fstat(spaces["user"]).st_ino
        if inner_inode != os.fstat(outer).st_ino:
            setns(spaces["user"], "user")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def mask_proc() -> None:
    """Cover what /proc tells and offers about the machine; to be called inside the box, while privileged.

    Files become ``/dev/null``, directories of drivers become empty, and the sysctl and driver trees
    read-only: permission checks in ``/proc/sys`` look at the host uid, not at capabilities. Entries that
    this kernel does not have are skipped; one that is there and cannot be covered raises.
    """
    mask = ""
    for name in MASKED_PROC_FILES:
        place = f"/proc/{name}"
        with _if_there(place, os.path.exists):
            bind(mask or "/dev/null", place)
            if not mask:  # the next ones get the flags of what they are bound from
                remount(place, MS_RDONLY | MS_NOSUID | MS_NOEXEC)
                mask = place
    for name in MASKED_PROC_DIRECTORIES:
        with _if_there(f"/proc/{name}", os.path.isdir):
            mount("tmpfs", f"/proc/{name}", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0,mode=0555")
    for name in READ_ONLY_PROC_DIRECTORIES:
        with _if_there(f"/proc/{name}", os.path.isdir):
            bind(f"/proc/{name}", f"/proc/{name}", recursive=True)
            remount(f"/proc/{name}", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


@contextmanager
def _if_there(place: str, is_there: Callable[[str], bool]) -> Iterator[None]:
    """Asked when it could not be covered, and not before: half of what a box waits for here would be questions."""
    try:
        yield
    except ConfineError:
        if is_there(place):
            raise
