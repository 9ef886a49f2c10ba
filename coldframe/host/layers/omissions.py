"""What is never taken into a snapshot, so that it is safe to use again: by somebody else, or twice at once.

Neither a fork nor an export may carry who the original was logged in as, what its machine was known by, or the record
of what it did. What sandboxes are given of credentials (stand-ins, and a file of trust at a place of the box's own) is
not among their files in the first place, and whatever else the host gives them is named by the caller.
"""

import fnmatch
import stat
from collections.abc import Iterable, Iterator
from typing import Literal

from coldframe.host.layers.branch import Branch, join, split

Omission = Literal["history", "logins", "identity", "system_logins"]

_BROWSERS = (b".config/chromium", b".config/google-chrome", b".config/chrome")
_LOGINS = (b"Cookies*", b"Network/Cookies*", b"Login Data*", b"Web Data*", b"Sessions", b"Session Storage")
_OF_BROWSERS = (
    *(b"%s/*/%s" % (browser, name) for browser in _BROWSERS for name in _LOGINS),
    b".mozilla/firefox/*/cookies.sqlite*",
    b".mozilla/firefox/*/logins.json",
    b".mozilla/firefox/*/key4.db",
    b".mozilla/firefox/*/sessionstore*",
)

PATTERNS: dict[Omission, tuple[bytes, ...]] = {
    "history": (b".exec_history",),
    "logins": _OF_BROWSERS,
    "system_logins": tuple(home + b"/" + path for home in (b"root", b"home/*") for path in _OF_BROWSERS),
    "identity": (
        b"etc/machine-id",
        b"etc/hostid",
        b"etc/ssh/ssh_host_*",
        b"etc/dropbear/dropbear_*_host_key",
        b"var/lib/dbus/machine-id",
        b"var/lib/systemd/random-seed",
        b"var/lib/systemd/credential.secret",
        b"var/lib/urandom/random-seed",
        b"var/lib/NetworkManager/secret_key",
    ),
}
"""By what they would give away. A sandbox itself keeps all of it when it is snapshotted."""

OF_HOME: tuple[Omission, ...] = ("history", "logins")
OF_SYSTEM: tuple[Omission, ...] = ("identity", "system_logins")


def patterns_of(kinds: Iterable[Omission], more: Iterable[bytes] = ()) -> list[bytes]:
    return [pattern for kind in kinds for pattern in PATTERNS[kind]] + list(more)


def omitted(branch: Branch, patterns: Iterable[bytes]) -> list[bytes]:
    """The paths of a layer that match, uppermost only. Looks into no directory that no pattern names, and once where several
    begin alike: an agent may have filled it."""
    levels: dict[tuple[bytes, ...], list[bytes]] = {(): [b""]}
    found: set[bytes] = set()
    for pattern in patterns:
        parts = tuple(pattern.split(b"/"))
        for end in range(1, len(parts) + 1):
            if parts[:end] not in levels:
                above = levels[parts[: end - 1]]
                levels[parts[:end]] = [path for parent in above for path in _matching(branch, parent, parts[end - 1])]
        found.update(levels[parts])
    return sorted(path for path in found if found.isdisjoint(_above(path)))


def _above(path: bytes) -> Iterator[bytes]:
    while path := split(path)[0]:
        yield path


def _matching(branch: Branch, parent: bytes, part: bytes) -> list[bytes]:
    if b"*" not in part:
        path = join(parent, part)
        return [path] if branch.status(path) is not None else []
    status = branch.status(parent)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return []
    return [join(parent, name) for name in branch.names(parent) if fnmatch.fnmatchcase(name, part)]
