"""The base `debian`: a whole system of its own, put together by mmdebstrap from the package sources of the host.

Where the host is Debian its own sources are taken, so that a company's mirror just works; elsewhere Debian's. What is
the machine's own and no system's is taken out again: machine id, keys of a secure shell server, package lists.
"""

import os
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coldframe.contract.errors import IsolationUnavailable, Unavailable
from coldframe.guest.paths import open_unlinked
from coldframe.host.templates.id_range import SHOWN, IdRange, start_in_range

PROGRAM = "mmdebstrap"
RELEASE = "bookworm"
"""Where the host is no Debian."""
PACKAGES = ("bash", "ca-certificates", "curl", "git", "less", "procps", "python3", "python3-pip", "python3-venv")
USER_ID = 1000
EPOCH_S = 1_700_000_000
"""What steps of a build that write down a time are told it is, so that the same packages make the same system."""
MOST_STATUS = 64 * 1024 * 1024
"""Characters of the list of installed packages."""
_STATUS = b"var/lib/dpkg/status"
KEPT_LINES = 8
"""Of what it said, in the error."""

_SETTLE = (
    # The name and number that every box has for its user.
    f'chroot "$1" useradd --uid {USER_ID} --user-group --create-home --shell /bin/bash user',
    'rm -f "$1"/etc/machine-id "$1"/var/lib/dbus/machine-id "$1"/etc/ssh/ssh_host_* "$1"/var/lib/systemd/random-seed',
    'rm -f "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/var/log/*.log "$1"/var/log/apt/* "$1"/var/cache/ldconfig/aux-cache',
)
_NO_SERVERS = 'printf "#!/bin/sh\\nexit 101\\n" > "$1"/usr/sbin/policy-rc.d && chmod 0755 "$1"/usr/sbin/policy-rc.d'
"""Packages that want to start servers are told that there is nothing to start them with. mmdebstrap removes this at its end."""


class Package(NamedTuple):
    name: str
    version: str
    architecture: str


def sources(etc: str = "/etc") -> tuple[str, list[str]]:
    """The release, and files of the host that say where its packages come from; none of them to take Debian's own."""
    told = {}
    with open(os.path.join(etc, "os-release"), encoding="utf-8") as release:
        for line in release:
            key, _, value = line.strip().partition("=")
            told[key] = value.strip('"')
    if told.get("ID") != "debian" or not told.get("VERSION_CODENAME"):
        return RELEASE, []
    folder = os.path.join(etc, "apt", "sources.list.d")
    found = [os.path.join(etc, "apt", "sources.list")]
    if os.path.isdir(folder):
        found += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    files = [path for path in found if path.endswith((".list", ".sources")) and _names_packages(path)]
    return told["VERSION_CODENAME"], files


def build(
    target: str,
    ids: IdRange,
    *,
    log: Callable[[str], None],
    extra: Sequence[str] = (),
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Make the system in *target*, an empty directory of the range's root. Blocks for half a minute and more.

    *log* is told each line that is said on the way; once *is_wanted* says no, the work is broken off.

    Raises:
        IsolationUnavailable: mmdebstrap is missing, or this machine does not give the namespaces.
        Unavailable: it failed, with the last that it said. What is in *target* then is for the caller to remove.
    """
    if shutil.which(PROGRAM) is None:
        raise IsolationUnavailable(
            f"`{PROGRAM}` is not installed",
            hint=f"install it (Debian and Ubuntu: apt-get install {PROGRAM})",
            property="template:debian",
        )
    release, files = sources()
    line = [PROGRAM, "--mode=root", "--variant=apt", "--format=directory", f"--include={','.join((*PACKAGES, *extra))}"]
    line += ["--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*"]
    line += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    line += [f"--customize-hook={step}" for step in _SETTLE]
    line += ["--skip=output/dev", "--skip=chroot/mount/sys", release, SHOWN, *files]
    said = deque[str](maxlen=KEPT_LINES)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with open(reading, encoding="utf-8", errors="replace") as lines:
        try:
            variables = {"SOURCE_DATE_EPOCH": str(EPOCH_S)}
            process = start_in_range(ids, line, output=writing, errors=writing, environment=variables, shown=target)
        finally:
            os.close(writing)
        try:
            for text in lines:
                said.append(text.rstrip())
                log(said[-1])
                if not is_wanted():
                    process.kill()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.wait() != 0:
        raise Unavailable(
            f"`{PROGRAM}` failed: {'; '.join(said) or 'without a word'}",
            hint="see the log of the build; most often a package source could not be reached",
        )
    with tempfile.TemporaryFile() as complaint:
        process = start_in_range(
            ids,
            ["sh", "-c", _NO_SERVERS, "sh", SHOWN],
            output=complaint.fileno(),
            errors=complaint.fileno(),
            shown=target,
        )
        if process.wait() != 0:
            raise Unavailable("the system that was built cannot be changed", hint="build it again")


def packages(root: str) -> list[Package]:
    """What is installed in a system, by name. The system was made by programs of others, so no link in it is followed.

    Raises Unavailable: it does not say so.
    """
    return installed_of(_read_status(root))


def installed_of(status: str) -> list[Package]:
    """What the text of dpkg's record says is installed, by name."""
    found = []
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            found.append(Package(*(fields.get(name, "") for name in ("Package", "Version", "Architecture"))))
    return sorted(found)


def _read_status(root: str) -> str:
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        file = open_unlinked(top, _STATUS, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _no_packages(error.strerror or str(error)) from error
    finally:
        os.close(top)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _no_packages("it is no file")
    with open(file, encoding="utf-8", errors="replace") as status:
        text = status.read(MOST_STATUS + 1)
    if len(text) > MOST_STATUS:
        raise _no_packages("it is too long")
    return text


def _no_packages(reason: str) -> Unavailable:
    return Unavailable(
        f"the system does not tell its packages: {os.fsdecode(_STATUS)}: {reason}",
        hint="one of the packages has changed it; build without it",
    )


def _names_packages(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return any(line.startswith(("deb ", "deb\t", "URIs:")) for line in source)
    except OSError:
        return False
