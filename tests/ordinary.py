"""An installation of an ordinary user who has subordinate ids, also where the tests run as root and nobody has any.

Root gives the user some by a file of its own over `/etc/subuid` and `/etc/subgid`, in mounts that only the processes of this
installation have: nothing on the machine is changed.
"""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coldframe.contract.errors import IsolationUnavailable
from coldframe.host.isolation.own_system import COUNT
from coldframe.host.templates.id_range import own_range, require_range
from tests.installation import Installation
from tests.parts import BECOME, NOBODY, checkout_for_others

FIRST = 3_000_000_000
"""Far from what people have, and from what installations of root use."""
_TABLES = ("/etc/subuid", "/etc/subgid")
_GIVE = 'mount --bind "$1" /etc/subuid && mount --bind "$1" /etc/subgid && shift && exec "$@"'


class OrdinaryInstallation(Installation):
    """As root: one that NOBODY has, with subordinate ids from FIRST on. *checkout* and *python* are such as it can read."""

    def __init__(self, checkout: Path, python: str, **environment: str) -> None:
        super().__init__(**environment)
        self._checkout, self._python = checkout, python
        self._given = os.path.join(self.folder, "subordinate")
        Path(self._given).write_text(f"{pwd.getpwuid(NOBODY).pw_name}:{FIRST}:{COUNT}\n", encoding="ascii")
        os.mkdir(self.data_dir, 0o711)
        for path in (self.data_dir, self.home):
            os.chown(path, NOBODY, NOBODY)

    @property
    def checkout(self) -> Path:
        return self._checkout

    def line(self, *arguments: str) -> list[str]:
        given = ("unshare", "--mount", "sh", "-c", _GIVE, "sh", self._given)
        return [*given, *BECOME, self._python, "-m", "coldframe.cli", *arguments]


def why_not() -> str | None:
    """Why there can be no installation of an ordinary user with subordinate ids here."""
    if os.geteuid() != 0:
        try:
            require_range(own_range())
        except IsolationUnavailable as error:
            return str(error)
        return None
    for program in ("newuidmap", "newgidmap", "unshare", "setpriv"):
        if shutil.which(program) is None:
            return f"there is no `{program}` on this machine"
    for table in _TABLES:
        if not os.path.exists(table):
            return f"there is no `{table}` on this machine, over which ids could be given"
    try:
        if pwd.getpwuid(NOBODY).pw_gid != NOBODY:
            return f"the group of user {NOBODY} is another"
    except KeyError:
        return f"user {NOBODY} has no name on this machine"
    return None


@contextmanager
def ordinary_installation() -> Iterator[Installation]:
    """Not started. Whoever runs the tests has it, or NOBODY if that is root. Only where `why_not` knows no reason."""
    shelter = Path(tempfile.mkdtemp(prefix="cf-ordinary-", dir="/tmp"))
    shelter.chmod(0o711)
    try:
        if os.geteuid() == 0:
            started: Installation = OrdinaryInstallation(*checkout_for_others(shelter))
        else:
            started = Installation()
        try:
            yield started
        finally:
            left = started.close()
        assert not left, "the installation left behind:\n" + "\n".join(left)
    finally:
        shutil.rmtree(shelter, ignore_errors=True)
