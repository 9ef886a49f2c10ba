"""A tenant that takes all it can get: busy loops, bombs, files, a full disk, endless output, connections, calls, streams.

Everything it does is bounded by the limits of its own sandboxes; what it is told must be a limit or a refusal by code.
"""

import threading
import time
from typing import NamedTuple

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import Limits, SandboxSpec
from tests.promises.greed import GREEDY, PATIENCE_S

LIMITS = Limits(memory_mib=96, pids=64, disk_mib=64, output_mib=4)
"""Of what shall meet one of these: neither CPU nor wall time comes first, however little of the machine is left."""
BUSY_LIMITS = LIMITS.model_copy(update={"cpu_s": 6.0, "wall_s": 20.0})
"""Of what takes CPU time, and may not get that much."""
_FORK = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.05)\n"
_FILES = "import os\nos.mkdir('many')\nfor n in range({files}): open(f'many/{{n}}', 'w').write('x' * 4096)\n"
_CONNECT = (
    "import socket\nserver = socket.create_server(('127.0.0.1', 0), backlog=64)\nserver.settimeout(5)\n"
    "for _ in range({connections}):\n    one = socket.create_connection(server.getsockname(), 5)\n"
    "    server.accept()[0].close()\n    one.close()\n"
)
COMMANDS = {"busy": GREEDY["cpu"], "memory": GREEDY["memory"], "disk": GREEDY["disk"], "log": GREEDY["output"]}
_LONGEST_S = {"busy": 20.0, "fork": 8.0}


class Met(NamedTuple):
    """What one thing that was done came to."""

    what: str
    outcome: str
    """`limit:KIND`, an error code, or `done`."""


class NoisyTenant:
    """Does all of it at once, in threads of its own, from `start` until `finish`. *scale* 1 is for a test of seconds; with
    *for_s* each begins again until so long is over."""

    def __init__(self, url: str, token: str, *, scale: int = 1, streams: int = 20, for_s: float = 0.0) -> None:
        self._url, self._token, self._streams, self._for_s = url, token, streams, for_s
        self._files, self._connections, self._wishes = 4000 * scale, 400 * scale, 60 * scale
        self._until = 0.0
        self.met: list[Met] = []
        self.untyped: list[str] = []
        """What went wrong in a way that no code tells of."""
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        tasks = [*COMMANDS, "fork", "files", "connections", "wishes", "streams"]
        self._threads = [threading.Thread(target=self._do, args=(what,), name=f"red-{what}") for what in tasks]
        for thread in self._threads:
            thread.start()

    @property
    def active(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join()

    def _do(self, what: str) -> None:
        until = self._until = time.monotonic() + self._for_s
        self._do_once(what)
        while time.monotonic() < until:
            self._do_once(what)

    def _do_once(self, what: str) -> None:
        try:
            with SyncColdframe(self._url, self._token) as client:
                if what == "wishes":
                    self._wish(client)
                    return
                limits = BUSY_LIMITS if what in _LONGEST_S else LIMITS
                spec = SandboxSpec(agent_id=f"red-{what}", limits=limits)
                with client.sandboxes.create(spec=spec) as sandbox:
                    if what == "streams":
                        self._stream(sandbox)
                    else:
                        self._run(sandbox, what)
        except ColdframeError as error:
            self._told(what, error)
        except Exception as error:
            self.untyped.append(f"{what}: {error!r}")

    def _told(self, what: str, error: ColdframeError) -> None:
        self.met.append(Met(what, error.code))
        if error.code == "INTERNAL":
            self.untyped.append(f"{what}: {error}")

    def _run(self, sandbox: SyncSandbox, what: str) -> None:
        programs = {
            "fork": _FORK,
            "files": _FILES.format(files=self._files),
            "connections": _CONNECT.format(connections=self._connections),
        }
        command = COMMANDS.get(what) or ["python3", "-c", programs[what]]
        longest_s = _LONGEST_S.get(what, PATIENCE_S)
        if self._for_s:  # none goes on for long when the time is over
            longest_s = min(longest_s, max(self._until - time.monotonic(), 1.0))
        ended = sandbox.run_command(command, timeout_s=longest_s)
        self.met.append(Met(what, f"limit:{ended.limit.kind}" if ended.limit is not None else "done"))

    def _wish(self, client: SyncColdframe) -> None:
        """Sandboxes that nobody can have, one after the other."""
        for number in range(self._wishes):
            try:
                client.sandboxes.create(spec=SandboxSpec(agent_id=f"red-{number}", requires=("gpu",)))
            except ColdframeError as error:
                self._told("wishes", error)

    def _stream(self, sandbox: SyncSandbox) -> None:
        """Followers of one command that writes, each with a connection of its own."""
        running = sandbox.run_command("for n in $(seq 40); do echo $n; sleep 0.1; done", background=True)

        def follow() -> None:
            try:
                with SyncColdframe(self._url, self._token) as client:
                    seen = list(client.sandboxes.get(sandbox.id).follow(running.command_id))
                self.met.append(Met("streams", "done" if seen else "nothing"))
            except ColdframeError as error:
                self._told("streams", error)

        followers = [threading.Thread(target=follow) for _ in range(self._streams)]
        for thread in followers:
            thread.start()
        for thread in followers:
            thread.join()
