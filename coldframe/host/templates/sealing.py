"""Makes a layer of what a box has changed in a system, so that it can be a part of templates: the same work, the same layer.

What is of one run alone is taken away: caches, logs, whatever the machine is known by, and times after `EPOCH_S`. The files
go over from the users of the box to those of templates. The digest of a layer is of all that is in it then: names, modes,
owners by the numbers inside, links, attributes and content, and no times.

A layer can be looked over at the price of a listing: its *facts* are where each file lies, how large it is and when it was
changed. Other facts are no other content, as after a copy; then its digest tells.

What a box has changed is hostile: nothing in it is a link that is followed, and nobody works in it any more.
"""

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterator
from typing import Any

from coldframe.contract.errors import TooLarge, Unfit
from coldframe.host.layers.branch import OPAQUE, OVERLAY, Branch, is_whiteout, join, split
from coldframe.host.layers.manifest import file_digest, kind_of
from coldframe.host.layers.mapping import Users
from coldframe.host.layers.omissions import OF_SYSTEM, omitted, patterns_of
from coldframe.host.removal import remove_tree
from coldframe.host.templates.debian import EPOCH_S
from coldframe.host.templates.id_range import IdRange

CLEANED = (
    *(b"var/cache/apt/*", b"var/lib/apt/lists/*", b"var/log/apt/*", b"var/log/*.log", b"var/log/*.gz"),
    *(b"var/log/journal", b"var/log/lastlog", b"var/log/faillog", b"var/log/wtmp", b"var/log/btmp"),
    *(b"var/lib/dpkg/*-old", b"var/lib/dpkg/lock*", b"var/cache/ldconfig/aux-cache", b"var/cache/debconf/*-old"),
    *(b"etc/passwd-", b"etc/group-", b"etc/shadow-", b"etc/gshadow-", b"etc/subuid-", b"etc/subgid-", b"etc/.pwd.lock"),
    *(b"root/.cache", b"root/.npm", b"root/.bash_history", b"root/.wget-hsts", b"etc/resolv.conf", b"etc/hostname"),
)
"""Of one run, and of no use to another. What lies below the layer under such a name is seen again."""
MOST_LEVELS = 120
MOST_PATH = 3000
"""Bytes. Together they keep every file of a template within reach of a path."""
_EPOCH_NS = EPOCH_S * 1_000_000_000


def clean(directory: str) -> None:
    """Take away what is of one run alone. What was removed stays removed."""
    with Branch(directory) as branch:
        for path in omitted(branch, (*CLEANED, *patterns_of(OF_SYSTEM))):
            status = branch.status(path)
            if status is None or is_whiteout(status):
                continue
            if stat.S_ISDIR(status.st_mode) and branch.is_opaque(path):
                for name in branch.names(path):
                    _remove(branch, join(path, name))
            else:
                _remove(branch, path)


def _remove(branch: Branch, path: bytes) -> None:
    above, name = split(path)
    remove_tree(f"/proc/self/fd/{branch.directory(above)}/{os.fsdecode(name)}")


def hand_over(directory: str, users: Users, ids: IdRange) -> None:
    """Give all files to the users of templates, and times after EPOCH_S are EPOCH_S. As root.

    Raises:
        TooLarge: a name lies too deep. Unfit: a device, or a file of nobody inside.
    """
    done: set[tuple[int, int]] = set()
    with Branch(directory) as branch:
        _refuse_unreachable(b"", 0)
        folders = [(b"", branch.top())]
        for path, status in branch.walk():
            if stat.S_ISDIR(status.st_mode):
                _refuse_unreachable(path, path.count(b"/") + 1)
                folders.append((path, status))
                continue
            if status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in done:
                    continue
                done.add((status.st_dev, status.st_ino))
            above, name = split(path)
            _refuse_unreachable(path, 0)
            _dress(branch.directory(above), name, path, status, users, ids)
        for path, status in reversed(folders):  # what is below them changes their times
            _dress(branch.directory(path), b".", path, status, users, ids)


def layer_digest(directory: str, ids: IdRange) -> str:
    """Reads all of it."""
    found = hashlib.sha256()
    first_names: dict[tuple[int, int], bytes] = {}
    with Branch(directory) as branch:
        found.update(_line(branch, b"", branch.top(), ids, None))
        for path, status in branch.walk():
            first = None
            if not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1 and not is_whiteout(status):
                first = first_names.setdefault((status.st_dev, status.st_ino), path)
            found.update(_line(branch, path, status, ids, None if first == path else first))
    return found.hexdigest()


def facts_of_tree(directory: str) -> str:
    """Where each file lies, and how it was when it was last changed; looks into no file."""
    found = hashlib.sha256()
    for entries in _folders(directory):
        lines = []
        for name, one in entries:
            told = f"{one.st_ino} {one.st_size} {one.st_mtime_ns} {one.st_mode} {one.st_uid} {one.st_gid}"
            lines.append(f"{name}\0{told}\n")
        lines.sort()
        found.update("".join(lines).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def size_of_tree(directory: str) -> int:
    """Bytes on disk."""
    blocks: dict[int, int] = {}
    for entries in _folders(directory):
        for _, one in entries:
            blocks[one.st_ino] = one.st_blocks
    return 512 * sum(blocks.values())


def _folders(directory: str) -> Iterator[list[tuple[str, os.stat_result]]]:
    """What each folder holds. An ordinary user may be kept out of some by those of the range, and sees nothing of them."""
    ahead = [directory]
    while ahead:
        folder = ahead.pop()
        try:
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        except PermissionError:
            if os.getuid() == 0:
                raise
            continue
        ahead += [f"{folder}/{name}" for name, one in found if stat.S_ISDIR(one.st_mode)]
        yield found


def is_empty(directory: str) -> bool:
    """Whether a layer changes nothing at all."""
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def _dress(above: int, name: bytes, path: bytes, status: os.stat_result, users: Users, ids: IdRange) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind in (stat.S_IFBLK, stat.S_IFCHR) and not is_whiteout(status):
        raise Unfit(f"`/{os.fsdecode(path)}` is a device, which no template has", path=os.fsdecode(path))
    if is_whiteout(status):
        owner = (ids.first_uid, ids.first_gid)
    else:
        owner = (
            ids.first_uid + _required(users.inside(status.st_uid), path),
            ids.first_gid + _required(users.inside(status.st_gid, of_groups=True), path),
        )
    os.chown(name, *owner, dir_fd=above, follow_symlinks=False)
    if kind != stat.S_IFLNK and not is_whiteout(status) and stat.S_IMODE(status.st_mode) & 0o6000:
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=above)  # a change of owner takes these away
    changed = min(status.st_mtime_ns, _EPOCH_NS)
    os.utime(name, ns=(changed, changed), dir_fd=above, follow_symlinks=False)


def _required(number: int | None, path: bytes) -> int:
    if number is None:
        raise Unfit(f"`/{os.fsdecode(path)}` belongs to nobody inside", path=os.fsdecode(path))
    return number


def _line(branch: Branch, path: bytes, status: os.stat_result, ids: IdRange, first_name: bytes | None) -> bytes:
    kind = kind_of(status)
    fields: list[Any] = [os.fsdecode(path), kind]
    if kind == "device":
        raise Unfit(f"`/{os.fsdecode(path)}` is a device, which no template has", path=os.fsdecode(path))
    if first_name is not None:
        fields.append(os.fsdecode(first_name))
    elif kind != "whiteout":
        fields += [stat.S_IMODE(status.st_mode), status.st_uid - ids.first_uid, status.st_gid - ids.first_gid]
        if kind == "file":
            fields += [status.st_size, file_digest(branch.open_file(path))]
        elif kind == "symlink":
            fields.append(os.fsdecode(branch.link_target(path)))
        kept = _lasting(branch.attributes(path, of_overlay=True))
        fields.append(sorted((os.fsdecode(name), value.hex()) for name, value in kept.items()))
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _lasting(attributes: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in attributes.items() if name == OPAQUE or not name.startswith(OVERLAY)}


def _refuse_unreachable(path: bytes, level: int) -> None:
    if level > MOST_LEVELS or len(path) > MOST_PATH:
        raise TooLarge(
            f"directories are nested deeper than {MOST_LEVELS} levels, or names longer than {MOST_PATH} bytes",
            path=os.fsdecode(path[:200]),
        )


def paths_above(paths: Collection[bytes]) -> list[bytes]:
    """All directories that lead to these, each before what it holds."""
    found: set[bytes] = set()
    for path in paths:
        above, _ = split(path)
        while above and above not in found:
            found.add(above)
            above, _ = split(above)
    return sorted(found)
