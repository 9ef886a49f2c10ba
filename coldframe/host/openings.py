"""What of a box opens to anything: its mounts, its device nodes, its network interfaces and sockets.

Pure readers of what the kernel shows in /proc and of the keeper's listing of /dev; whoever calls has read the
text. Everything may be written by the box (names of sockets are), so nothing here raises for odd text.
"""

import contextlib
import re
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from coldframe.contract.cell import DRIVER, LENT
from coldframe.contract.isolation import DeviceInfo, InterfaceInfo, MountInfo, MountSource
from coldframe.host.isolation import denials
from coldframe.host.isolation.namespaces import FIRST, HOME, HOST_SETTINGS, SETTINGS, TOOLS
from coldframe.host.outfit import HOST_BUNDLES

_ALWAYS = ("dev", "packet", "unix", "sockstat", "sockstat6")
_COUNTED = {"tcp": "TCP", "tcp6": "TCP6", "udp": "UDP", "udp6": "UDP6", "raw": "RAW", "raw6": "RAW6"}
"""Table -> its name in the counts. The kernel takes 2 ms to show one of TCP, empty or not."""
MOST_KEPT_MOUNTS = 512
LISTED_SOCKETS = 500
"""Sockets told one by one: the box decides how many there are."""
_LISTEN = "0A"
_ACCEPTING = 0x10000
_ESCAPE = re.compile(r"\\([0-7]{3})")
_INTERFACE = re.compile(r"^\s*([^\s:|]+):", re.MULTILINE)
_MAKERS_OWN = frozenset({FIRST, *SETTINGS})


def mounts(mountinfo: str) -> Iterator[MountInfo]:
    """Every mount in the order of the table: a later one of the same target covers the earlier."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if len(fields) >= 6 and len(source) >= 3:
            yield _mount(fields[4], fields[5], *source[:3])


@lru_cache(MOST_KEPT_MOUNTS)
def _mount(place: str, flags: str, filesystem: str, device: str, superblock: str) -> MountInfo:
    """By what its line says: most lines are those of the box before."""
    options = flags.split(",")
    target = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), place).encode("utf-8", "replace").decode()
    return MountInfo(
        target=target,
        filesystem=filesystem,
        source=_source(target, filesystem, device),
        writable="rw" in options and "rw" in superblock.split(","),
        nosuid="nosuid" in options,
        nodev="nodev" in options,
        noexec="noexec" in options,
    )


def _source(target: str, filesystem: str, device: str) -> MountSource:
    """Told by place and file system: the place in a host's file system is no evidence of what lies there."""
    if filesystem == "tmpfs" and device == denials.DEVICE:
        return "mask"
    if target == "/" and filesystem == "overlay":
        return "layer"
    if target == HOME:
        return "workspace"
    if target == f"{HOME}/.exec_history":
        return "history"
    if target.startswith(f"{TOOLS}/") or target in (DRIVER, LENT):
        return "tool"
    if target.startswith("/proc"):
        return "kernel" if filesystem == "proc" else "mask"
    if target.startswith("/dev/") and filesystem in ("devtmpfs", "devpts"):
        return "device"
    if target in _MAKERS_OWN or target in HOST_BUNDLES:
        return "settings"
    if target == "/etc" or target in HOST_SETTINGS:
        return "settings"
    if filesystem == "tmpfs":
        return "mask" if target.startswith("/usr/") else "memory"
    if target == "/usr" or target.startswith("/usr/") or target in ("/bin", "/sbin") or re.match(r"/lib[^/]*$", target):
        return "system"
    return "other"


def devices(listing: object) -> Iterator[DeviceInfo]:
    """From rows of path, kind, major, minor, as the keeper sends them; anything else is left out."""
    for row in listing if isinstance(listing, Sequence) else ():
        if isinstance(row, Sequence) and len(row) == 4 and row[1] in ("character", "block"):
            path, kind, major, minor = row
            if isinstance(path, str) and isinstance(major, int) and isinstance(minor, int):
                yield DeviceInfo(path=path, kind=kind, major=major, minor=minor)


def network_tables(read: Callable[[str], str]) -> dict[str, str]:
    """The files of /proc/PID/net that `interfaces` looks at, by name; anybody may read them, of any process.

    *read* gives one by name. What cannot be read is left out; a table that the counts say is empty is not read.
    """
    found: dict[str, str] = {}

    def take(name: str) -> None:
        with contextlib.suppress(OSError):
            found[name] = read(name)

    for name in _ALWAYS:
        take(name)
    counts = {**_counts(found.get("sockstat", "")), **_counts(found.get("sockstat6", ""))}
    for name, counted in _COUNTED.items():
        if counts.get(counted) != "0":
            take(name)
    return found


def _counts(text: str) -> dict[str, str]:
    return {words[0].rstrip(":"): words[2] for words in (line.split() for line in text.splitlines()) if len(words) > 2}


def interface_names(net_dev: str) -> tuple[str, ...] | None:
    """Network interfaces; None if the table could not be read."""
    return tuple(sorted(_INTERFACE.findall(net_dev))) if net_dev else None


def interfaces(
    tables: Mapping[str, str], *, guest_link: str, ours: Collection[int] = ()
) -> tuple[tuple[InterfaceInfo, ...], int]:
    """What is open in the box's network namespace, and how many sockets were left out.

    Network interfaces; TCP and unix sockets that accept, bound UDP sockets, raw and packet sockets. Connections and
    unnamed pairs are not openings. `guest_link` is the socket outside on which the box is served; `ours` are the inodes of
    the sockets of its way out.
    """
    found = [
        InterfaceInfo(kind="network", name=name, held_by="box") for name in interface_names(tables.get("dev", "")) or ()
    ]
    found.append(InterfaceInfo(kind="guest_link", name=guest_link, held_by="product"))
    found += [
        InterfaceInfo(kind="packet", name="sees attempts to reach out", held_by="product")
        for _ in _rows(tables, "packet")
    ]
    of_internet = list(_internet(tables))
    found += [
        InterfaceInfo(kind=kind, name=name, held_by="product") for kind, name, inode in of_internet if inode in ours
    ]
    sockets = sorted({*((kind, name) for kind, name, inode in of_internet if inode not in ours), *_unix(tables)})
    found += [InterfaceInfo(kind=kind, name=name, held_by="box") for kind, name in sockets[:LISTED_SOCKETS]]
    return tuple(found), max(0, len(sockets) - LISTED_SOCKETS)


_Kind = Literal["tcp", "udp", "raw", "unix"]


def listening(tables: Mapping[str, str]) -> frozenset[int]:
    """Inodes of the internet sockets that are openings."""
    return frozenset(inode for _, _, inode in _internet(tables))


def _internet(tables: Mapping[str, str]) -> Iterator[tuple[_Kind, str, int]]:
    for table in _COUNTED:
        for fields in _rows(tables, table):
            if table.startswith("tcp") and fields[3:4] != [_LISTEN]:
                continue
            name = _address(fields[1]) if len(fields) > 1 else None
            if name is not None:
                inode = int(fields[9]) if len(fields) > 9 and fields[9].isdecimal() else 0
                yield "tcp" if "tcp" in table else "udp" if "udp" in table else "raw", name, inode


def _unix(tables: Mapping[str, str]) -> Iterator[tuple[_Kind, str]]:
    for line in tables.get("unix", "").split("\n")[1:]:
        fields = line.split(None, 7)
        if len(fields) == 8:
            try:
                accepting = bool(int(fields[3], 16) & _ACCEPTING) or fields[4] == "0002"  # a bound datagram socket too
            except ValueError:
                continue
            if accepting:
                yield "unix", fields[7].encode("utf-8", "replace").decode()


def _rows(tables: Mapping[str, str], name: str) -> Iterator[list[str]]:
    for line in tables.get(name, "").splitlines()[1:]:
        if fields := line.split():
            yield fields


def _address(text: str) -> str | None:
    """`0100007F:1F90` of /proc/net/tcp, each 32-bit word in the machine's own order, as `127.0.0.1:8080`."""
    address, _, port = text.partition(":")
    try:
        words = [int(address[start : start + 8], 16) for start in range(0, len(address), 8)]
        packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
        if len(packed) == 4:
            return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
        return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"
    except (ValueError, OSError, OverflowError):
        return None
