"""An installation whose boxes reach local sites, and nobody else: for tests of the network through the public surface.

Server, daemon, broker and boxes live in a room of their own: a network namespace with one wire to another one, where the
sites are (`tests/host/egress/world.py`), a table of their names, and host roots among which is the authority of
their certificates. No packet can leave. What a test does there it does in a process that joins the room.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from coldframe.client.sync import SyncColdframe
from coldframe.host import confine
from coldframe.host.outfit import host_roots
from tests.host.egress.world import ADDRESSES, FAR, leave_network, make_certificates, start_far_side
from tests.host.forked import in_child
from tests.installation import Installation

T = TypeVar("T")
Place = TypeVar("Place", bound=Installation)
PATIENCE_S = 110
"""Of one run in a room; then the process is ended by the kernel."""
_SPACES = ("user", "net", "mnt")


class Reachable:
    """A running installation in a room, and the way in."""

    def __init__(self, installation: Installation, room: int) -> None:
        self.installation = installation
        self._room = room

    def run(self, steps: Callable[[Installation], T]) -> T:
        """What *steps* return, called in a process of the room. What they raise is raised here, as text."""

        def within() -> T:
            signal.alarm(PATIENCE_S)
            spaces = [(kind, os.open(f"/proc/{self._room}/ns/{kind}", os.O_RDONLY)) for kind in _SPACES]
            for kind, space in spaces:
                if not os.path.sameopenfile(space, os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)):
                    confine.setns(space, kind)
            os.chdir("/")
            return steps(self.installation)

        return in_child(within)

    def use(self, steps: Callable[[SyncColdframe], T]) -> T:
        """The same, with a client of its owner."""

        def with_client(installation: Installation) -> T:
            with SyncColdframe(installation.url, installation.token) as client:
                return steps(client)

        return self.run(with_client)


@contextmanager
def reachable(**environment: str) -> Iterator[Reachable]:
    """One that many tests share; it must leave nothing behind."""
    installation = Installation(**environment)
    told, tell = os.pipe()
    ended, end = os.pipe()
    room = os.fork()
    if room == 0:
        code = 1
        try:
            os.close(told)
            os.close(end)
            confine.set_parent_death_signal()
            code = _keep(installation, tell, ended)
        except BaseException as error:
            os.write(tell, f"{type(error).__name__}: {error}".encode()[-4000:])
        finally:
            os._exit(code)
    os.close(tell)
    os.close(ended)
    try:
        with os.fdopen(told, "rb") as answers:
            first = answers.readline()
            if first != b"ready\n":
                raise AssertionError((first + answers.read()).decode())
            try:
                yield Reachable(installation, room)
            finally:
                os.write(end, b".")  # not its end alone: a child forked meanwhile may hold it too
                os.close(end)
                left = answers.read()
            assert not left, f"the installation left behind:\n{left.decode()}"
    finally:
        os.waitpid(room, 0)


def alone(steps: Callable[[Installation], T], **environment: str) -> T:
    """What *steps* return, called in a room of their own with an installation that they may stop and start."""
    return alone_with(lambda: Installation(**environment), steps)


def alone_with(make: Callable[[], Place], steps: Callable[[Place], T], *, patience_s: int = PATIENCE_S) -> T:
    """The same with another kind of installation."""

    def whole() -> T:
        signal.alarm(patience_s)
        installation = make()
        with _room():
            try:
                installation.start()
                answer = steps(installation)
            finally:
                left = installation.close()
            assert not left, "the installation left behind:\n" + "\n".join(left)
            return answer

    return in_child(whole)


def _keep(installation: Installation, tell: int, ended: int) -> int:
    with _room():
        try:
            installation.start()
            os.write(tell, b"ready\n")
            os.read(ended, 1)
        finally:
            left = installation.close()
        os.write(tell, "\n".join(left).encode())
        return 0


@contextmanager
def _room() -> Iterator[None]:
    """Take this process there; whatever it starts is there as well."""
    with tempfile.TemporaryDirectory(prefix="cf-room-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        leave_network()
        confine.unshare("mnt")
        confine.mount(None, "/", None, confine.MS_REC | confine.MS_PRIVATE)
        certificates = make_certificates(folder)
        roots, place = host_roots()
        with open(certificates.authority, encoding="ascii") as authority:
            _cover(folder, place, f"{roots.rstrip()}\n{authority.read()}")
        # with a dot at their ends, as they are asked for
        names = [f"{text} {name}.\n" for name, texts in ADDRESSES.items() for text in texts]
        _cover(folder, "/etc/hosts", "".join(["127.0.0.1 localhost\n", *names]))
        _cover(folder, "/etc/resolv.conf", f"nameserver {FAR}\noptions timeout:1 attempts:1\n")  # who refuses at once
        stop = start_far_side(certificates)
        try:
            yield
        finally:
            stop()


def _cover(folder: str, path: str, text: str) -> None:
    own = os.path.join(folder, os.path.basename(path))
    with open(own, "w", encoding="ascii") as file:
        file.write(text)
    os.chmod(own, 0o644)
    confine.bind(own, path)


def command_line(pid: int) -> bytes:
    """Words of a process, with a NUL after each; empty for one that has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
