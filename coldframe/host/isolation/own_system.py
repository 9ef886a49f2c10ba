"""A box whose system is its own: a template below, a private layer on top, and root inside who is nobody's on the host.

The box's users are a range of host users that no other workspace has, but for `user`, who is the sandbox user that owns the
workspace. They are told by two user namespaces, one in the other. The outer one owns the box, its mounts and its network,
and is left for good before anything runs; commands live in the inner one, which has the same users and owns nothing. So a
right that is held there is a right over files and users of the box, and over no mount, network or namespace.

A template belongs to a range of its own. It is shown as the box's by mounting it with its users mapped, which takes root;
nothing of it is copied or changed. An ordinary user has one range, of the subordinate ids, for the template and all boxes:
there the keeper goes into a user namespace first in which it may mount, and in which numbers are those of the box. What the box writes is in the upper layer, under the users of its range, in a directory
that none but the host daemon's user may enter: a program that it makes set-uid is reached by nobody there.

Standard library only: it runs in the keeper, before bubblewrap, with a mount namespace of its own, so that all of this is
gone with keeper and box.
"""

import codecs
import ctypes
import os
import resource
import secrets
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import NamedTuple, NoReturn

from coldframe.guest.rows import Call
from coldframe.guest.spawn import BoxUser
from coldframe.host import confine
from coldframe.host.isolation.host_keys import give_host_key
from coldframe.host.isolation.namespaces import FIRST, GID, HOME, MASKED_SIZES, OWN_SETTINGS, TOOLS, UID
from coldframe.host.isolation.programs import unescape
from coldframe.host.layers.mapping import Extents, mount_with_users
from coldframe.host.layers.mounts import Stacking, mount_stack
from coldframe.host.quota import Layer

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""What root has inside, all of it over the box's own files, users and processes. What a package manager needs, and KILL to
end services, without which the keeper could not end what root has started either."""
_NUMBERS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7}
HELD = sum(1 << _NUMBERS[name] for name in CAPABILITIES)
TO_BECOME = sum(1 << _NUMBERS[name] for name in ("KILL", "SETGID", "SETUID"))
"""What the keeper uses by itself: it starts commands as either user and ends them."""
_TO_LOOK = 1 << 1 | 1 << 19
"""DAC_OVERRIDE and SYS_PTRACE, which the keeper uses to add up what the box has on disk, and for nothing else: to see
directories, and descriptors of processes, of all its users."""
HELD_BY_KEEPER = HELD | _TO_LOOK
COUNT = 65_536
ROOT_ENVIRONMENT = {
    b"HOME": b"/root",
    b"USER": b"root",
    b"LOGNAME": b"root",
    b"PATH": f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{TOOLS}".encode(),
}
_DIRECTORIES = tuple(
    path.lstrip("/")
    for path in ("/home", HOME, "/opt", os.path.dirname(FIRST), "/var", "/etc", "/proc", "/dev", *MASKED_SIZES)
    if not path.startswith("/dev/")  # made by bubblewrap, in memory
)
_FILES = tuple(path.lstrip("/") for path in (*sorted(OWN_SETTINGS), "/etc/pip.conf"))
"""All below the root that bubblewrap mounts something at, what is above it first."""
_SYS_MOVE_MOUNT = 429
"""On every architecture."""
_AT_FDCWD, _MOVE_FROM_DESCRIPTOR = -100, 4
_DUMPABLE = 4
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_call = ctypes.CDLL(None, use_errno=True).syscall


class System(NamedTuple):
    """What a box has as its root file system. Travels in the keeper's order."""

    template: str
    """Directory of the template's root."""
    template_layers: tuple[str, ...]
    """Directories of the sealed layers that the template has above its root, the highest first."""
    template_first: tuple[int, int]
    """First user and group of the range that the files of all these belong to."""
    first: tuple[int, int]
    """Of the box's own range."""
    lower: tuple[str, ...]
    """Sealed layers above the template, the highest first."""
    upper: str
    work: str
    place: str
    """An empty directory."""
    maps: tuple[tuple[Extents, Extents] | None, ...] = ()
    """For each of *lower* the users and groups that it is to be shown with; None for what is the box's own already."""


class Users(NamedTuple):
    """Descriptors of the two user namespaces."""

    outer: int
    inner: int


def box_extents(first: int, own: int, own_inside: int) -> Extents:
    """The box's users: a range, in which `own_inside` is the user that the workspace belongs to."""
    return (
        (0, first, own_inside),
        (own_inside, own, 1),
        (own_inside + 1, first + own_inside + 1, COUNT - own_inside - 1),
    )


def enter_users(users: int) -> tuple[int, int]:
    """As an ordinary user: go where one is `user` of the box and has every right over its users, and none over others.

    From there on all is as for root. `users` is a descriptor (see `templates/id_range.py`), which is closed. Raises ConfineError.
    """
    confine.setns(users, "user")
    os.close(users)
    return UID, GID


def make_users(first: tuple[int, int], own: tuple[int, int], *, most_processes: int | None = None) -> Users:
    """Namespaces that belong to the sandbox user `own`. As root, or in `enter_users`. Raises OSError, ConfineError.

    `most_processes`, for where no control group counts them, is of all users inside together: a limit that each process has is
    of one user alone, and root inside can be 65,536.
    """
    uids, gids = box_extents(first[0], own[0], UID), box_extents(first[1], own[1], GID)
    told, tell = os.pipe2(os.O_CLOEXEC)
    waits, go = os.pipe2(os.O_CLOEXEC)
    outer = os.fork()
    if outer == 0:
        _end_after(lambda: _become_users(own, tell, waits, most_processes), without=(told, go))
    os.close(tell)
    os.close(waits)
    try:
        _heard(told, b"o")
        _write_maps(outer, uids, gids)
        os.write(go, b".")
        inner = struct.unpack("i", _heard_bytes(told, 4))[0]
        return Users(_user_namespace(outer), _user_namespace(inner))
    finally:
        os.close(told)
        os.close(go)
        os.waitpid(outer, 0)


def mount_system(system: System, workspace: str, own: tuple[int, int]) -> Layer:
    """At its place, in a mount namespace of this process's own. As root, or in `enter_users`. Raises OSError, ConfineError.

    OSError EINVAL where the kernel, or the file system of the template, cannot map users of a mount below an overlay.
    """
    confine.unshare("mnt")
    confine.mount(None, "/", None, confine.MS_REC | confine.MS_SLAVE)  # what the host unmounts is not held by this box
    _let_go_of_others(workspace)
    maps = []
    for first, shown, own_id, own_inside in zip(system.template_first, system.first, own, (UID, GID), strict=True):
        extents = box_extents(shown, own_id, own_inside)
        maps.append(tuple((first + inside, outside, count) for inside, outside, count in extents))
    below = _show_below(system, maps[0], maps[1])
    sealed = tuple(os.open(one, _DIRECTORY) for one in below[: len(system.lower)])
    mount_stack(Stacking(system.place, tuple(below), system.upper, system.work))
    _make_sound(system)
    files = os.open(system.upper, _DIRECTORY)
    return Layer(files, os.stat(system.place).st_dev, _seeing_everything, sealed)


def _show_below(system: System, uids: Extents, gids: Extents) -> list[str]:
    """All that lies below what the box writes, the highest first. What belongs to other users is mounted with these mapped:
    alone at the place itself, several in a directory each, and what is then mounted at the place covers all of it."""
    template = None if system.template_first == system.first else (uids, gids)
    parts = list(zip_longest(system.lower, system.maps))
    parts += [(directory, template) for directory in (*system.template_layers, system.template)]
    are_several = sum(maps is not None for _, maps in parts) > 1
    if are_several:
        confine.mount("below", system.place, "tmpfs", confine.MS_NOSUID | confine.MS_NODEV, "size=256k,mode=0700")
    shown = []
    for number, (directory, maps) in enumerate(parts):
        if maps is None:
            shown.append(directory)
            continue
        shown.append(os.path.join(system.place, str(number)) if are_several else system.place)
        if are_several:
            os.mkdir(shown[-1], 0o700)
        _mount_mapped(directory, shown[-1], *maps)
    return shown


def _let_go_of_others(workspace: str) -> None:
    """What is mounted of other workspaces, which bubblewrap's own process would keep in use as long as the box lives."""
    data = os.path.dirname(os.path.dirname(workspace))
    workspaces = (f"{data}/workspace/", f"{data}/background/")
    for target in reversed(_mounted()):
        if target.startswith(workspaces) and target != workspace and not target.startswith(f"{workspace}/"):
            try:
                confine.detach(target)
            except confine.ConfineError:
                if target in _mounted():
                    raise
                # else the host has unmounted it meanwhile, of which this namespace hears


def _mounted() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        return [unescape(line.split()[4]) for line in table]


def settle_inside() -> None:
    """Privileged, in the box's view and its outer namespace, before settings of the kernel are closed: what bubblewrap has made
    for `user` and a system has for root; and ports of servers, for which root of the box has no right over its network."""
    for path in MASKED_SIZES:
        os.chown(path, 0, 0)
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w", encoding="ascii") as first_port:
        first_port.write("0")


def _make_sound(system: System) -> None:
    """Where bubblewrap mounts something there are directories and files, and no links that root of an earlier box has left:
    they could lead out of the box while it is built. Nobody is in it now."""
    top = os.open(system.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in (*_DIRECTORIES, *_FILES):
            _require(top, path, system.first, is_wanted=stat.S_ISDIR if path in _DIRECTORIES else stat.S_ISREG)
        _give_identity(top, system.first)
        give_host_key(top, system.first)
    finally:
        os.close(top)


def _give_identity(top: int, owner: tuple[int, int]) -> None:
    """What programs know a machine by, if it has none: no template has, and nothing that begins as a snapshot. A file of nothing
    is none either, as whoever was killed here leaves it, and whoever prepares a machine to be copied."""
    settings = os.open("etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        with suppress(FileNotFoundError):
            there = os.stat("machine-id", dir_fd=settings, follow_symlinks=False)
            if stat.S_ISREG(there.st_mode) and there.st_size == 0:
                os.unlink("machine-id", dir_fd=settings)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open("machine-id", flags, 0o444, dir_fd=settings), "w", encoding="ascii") as made:
            made.write(secrets.token_hex(16) + "\n")
            os.fchown(made.fileno(), *owner)
    except FileExistsError:
        pass
    finally:
        os.close(settings)


def _require(top: int, path: str, owner: tuple[int, int], *, is_wanted: Callable[[int], bool]) -> None:
    """What stands above it has been seen to. Something else in its place is kept beside it."""
    above, _, name = path.rpartition("/")
    parent = os.open(above or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        try:
            if is_wanted(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                return
            os.rename(name, f"{name}.replaced-{secrets.token_hex(4)}", src_dir_fd=parent, dst_dir_fd=parent)
        except FileNotFoundError:
            pass
        if is_wanted is stat.S_ISDIR:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent))
        os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def trust_no_modules() -> None:
    """To be called before this process is rooted in the box: from then on nothing is imported, since where Python looks for its
    modules root of the box may have put others."""
    for encoding in ("ascii", "latin-1", "utf-8"):
        codecs.lookup(encoding)
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.meta_path.clear()


@contextmanager
def _seeing_everything() -> Iterator[None]:
    confine.set_held_capabilities(permitted=HELD_BY_KEEPER, effective=TO_BECOME | _TO_LOOK)
    try:
        yield
    finally:
        confine.set_held_capabilities(permitted=HELD_BY_KEEPER, effective=TO_BECOME)


def users_inside() -> dict[str, BoxUser]:
    """Whom commands can be started as: what a child of the keeper does for it, right before it is the program."""

    def keep(capabilities: int) -> Call:
        header, sets = confine.capability_sets(permitted=capabilities, effective=capabilities)
        return Call("capset", ctypes.addressof(header), ctypes.addressof(sets), kept=(header, sets))

    # To become another user makes the memory as dumpable as the machine has it for that (fs.suid_dumpable): it is the keeper's
    # too. It is set back while the rights are still more than anybody inside has, so that nobody could trace it meanwhile.
    hidden = Call("prctl", _DUMPABLE, 0)
    root = (Call("setgroups", 0, 0), Call("setresgid", 0, 0, 0), Call("setresuid", 0, 0, 0), hidden, keep(HELD))
    return {"user": BoxUser((Call("setgroups", 0, 0), keep(0)), {}), "root": BoxUser(root, ROOT_ENVIRONMENT)}


def _become_users(own: tuple[int, int], tell: int, waits: int, most_processes: int | None) -> None:
    """In a child: the outer namespace, and the inner one in another child, until both are held from outside."""
    uid, gid = own
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    confine.unshare("user")
    # Else what the kernel shows of the next child is root's, and this one could not write its maps. Nobody of the same user
    # sees either of them: boxes have process namespaces of their own.
    confine.prctl("let its maps be written", _DUMPABLE, 1)
    os.write(tell, b"o")
    if not os.read(waits, 1):
        return
    made, make = os.pipe2(os.O_CLOEXEC)
    inner = os.fork()
    if inner == 0:
        _end_after(lambda: _become_inner(make, waits, most_processes), without=(made, tell))
    os.close(make)
    try:
        _heard(made, b"i")
        # Line by line: what is mapped together has to be in one line of the map above.
        _write_maps(inner, box_extents(0, UID, UID), box_extents(0, GID, GID))
        # The inner one counts as its one. What is made in there counts here too, whoever makes it.
        with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as limit:
            limit.write("1")
        os.write(tell, struct.pack("i", inner))
        os.read(waits, 1)
    finally:
        os.close(made)
        os.kill(inner, signal.SIGKILL)
        os.waitpid(inner, 0)


def _become_inner(make: int, waits: int, most_processes: int | None) -> None:
    if most_processes is not None:  # what its maker is held to, a namespace is for good
        resource.setrlimit(resource.RLIMIT_NPROC, (most_processes, most_processes))
    confine.unshare("user")
    os.write(make, b"i")
    os.read(waits, 1)


def _end_after(work: Callable[[], None], *, without: tuple[int, ...]) -> NoReturn:
    """In a child: do it and end. Nobody waits for an answer of one that fails: its ends of the pipes close with it."""
    try:
        for file in without:
            os.close(file)
        work()
    finally:
        os._exit(0)


def _heard(file: int, word: bytes) -> None:
    if _heard_bytes(file, 1) != word:
        raise confine.ConfineError("make the users of the box", "a process that was to hold them says something else")


def _heard_bytes(file: int, size: int) -> bytes:
    told = os.read(file, size)
    if len(told) != size:
        raise confine.ConfineError("make the users of the box", "a process that was to hold them ended")
    return told


def _write_maps(pid: int, uids: Extents, gids: Extents) -> None:
    for name, extents in (("uid_map", uids), ("gid_map", gids)):
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as table:
            table.write("\n".join(" ".join(map(str, extent)) for extent in extents))


def _user_namespace(pid: int) -> int:
    return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _mount_mapped(source: str, target: str, uids: Extents, gids: Extents) -> None:
    """It has to stand somewhere: before Linux 6.15 an overlay takes nothing else."""
    directory = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        tree = mount_with_users(directory, uids, gids)
    finally:
        os.close(directory)
    try:
        if _call(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_FROM_DESCRIPTOR) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)
    finally:
        os.close(tree)
