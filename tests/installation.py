"""A real installation for tests: the server as a process of its own on a data directory of its own, and what it leaves behind.

The directory lies below /tmp and lets other users pass, since server and boxes run as other users when the
tests run as root. Only processes that were started here are ever signalled.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldframe.client.api import Coldframe

ready_boxes = "0"
"""As the option `--ready-boxes` has it. By default each box is built when a test asks for it, so that no two runs differ."""
CHECKOUT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


def wait_until(condition: Callable[[], Any], what: str, *, timeout_s: float = 10.0) -> Any:
    """Return the first true answer of *condition*; AssertionError naming *what* after *timeout_s*."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)
    return answer


class Installation:
    """One installation. `start` and `stop` may alternate; `close` also removes the directory and returns what was left."""

    def __init__(self, **environment: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="cf-test-")
        os.chmod(self.folder, 0o711)
        self.data_dir = os.path.join(self.folder, "data")
        self.home = os.path.join(self.folder, "home")
        os.mkdir(self.home, 0o700)
        self.log_path = os.path.join(self.folder, "server.log")
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self, *, port: int = 0) -> "Installation":
        """Start the server and wait until it answers. Port 0 takes a free one."""
        Path(self.data_dir, "control", "client.json").unlink(missing_ok=True)
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                self.line("up", "--data-dir", self.data_dir, "--port", str(port)),
                cwd=self.checkout,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._answers, "the server answers", timeout_s=START_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log}") from None
        return self

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"`coldframe up` ended with {self._process.returncode}")
        try:
            with urllib.request.urlopen(f"{self.url}/v1/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError, KeyError):
            return False

    def stop(self) -> None:
        """End the server in an orderly way (TERM) and wait for it. Sandboxes go on."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
        self._reap(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """`kill -9` of the process that `coldframe up` is."""
        assert self._process is not None
        self._process.kill()
        self._reap(STOP_TIMEOUT_S)

    def _reap(self, timeout_s: float) -> None:
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the server did not end within {timeout_s:g} s:\n{self.log}") from None
        finally:
            self._process = None

    def end_sandboxes(self) -> None:
        """Terminate every sandbox: they outlive their server on purpose, so that somebody has to say when to end."""

        async def end_all() -> None:
            async with Coldframe(self.url, self.token) as client:
                for sandbox in await client.sandboxes.list():
                    await sandbox.terminate(discard=True)

        asyncio.run(end_all())

    def close(self) -> list[str]:
        """Stop, look for what is left, end that, remove the directory. Returns the left-overs as sentences."""
        try:
            if self._process is not None and self._process.poll() is None:
                self.end_sandboxes()
            self.stop()
            try:
                wait_until(lambda: not self.leftovers(), "nothing is left", timeout_s=10)
            except AssertionError:
                pass
            return self.leftovers()
        finally:
            for pid in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            _unlock(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def checkout(self) -> Path:
        """Of the product and these tests, as whoever has this installation can read it."""
        return CHECKOUT

    def line(self, *arguments: str) -> list[str]:
        """What starts the command line client as whoever has this installation."""
        return [sys.executable, "-m", "coldframe.cli", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """What every process of this installation and its clients gets: nothing of the developer's own."""
        return {
            "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": self.home,
            "PYTHONPATH": str(self.checkout),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLDFRAME_DATA_DIR": self.data_dir,
            "COLDFRAME_READY_BOXES": ready_boxes,
            **self._environment,
        }

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return str(self._client_file()["url"])

    @property
    def token(self) -> str:
        """The owner's token that `coldframe up` left for local clients."""
        return str(self._client_file()["token"])

    def _client_file(self) -> dict[str, Any]:
        with open(os.path.join(self.data_dir, "control", "client.json"), encoding="utf-8") as file:
            content: dict[str, Any] = json.load(file)
        return content

    @property
    def log(self) -> str:
        try:
            return Path(self.log_path).read_text(encoding="utf-8", errors="replace")[-20_000:]
        except OSError:
            return ""

    def cli(self, *arguments: str, timeout_s: float = 60, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run the command line client as a person of this installation would."""
        environment = {**self.environment, "COLDFRAME_URL": self.url, "COLDFRAME_TOKEN": self.token}
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            self.line(*arguments),
            cwd=self.checkout,
            env=environment,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            **options,
        )

    # -- what is left ----------------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Processes that belong to this installation: its directory or mark stands in their facts."""
        marks = [self.folder.encode()]
        if self.installation_id is not None:
            marks.append(f"coldframe-{self.installation_id}".encode())
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]
        return [pid for pid in pids if any(_mentions(pid, mark) for mark in marks)]

    def leftovers(self) -> list[str]:
        """Processes, mounts and control groups of this installation, as sentences."""
        left = [f"process {pid}: {_command_line(pid)}" for pid in self.processes()]
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            left += [f"mount: {line.strip()}" for line in mounts if self.folder in line]
        left += [f"control group: {path}" for path in self._control_groups()]
        return left

    def _control_groups(self) -> list[str]:
        identity = self.installation_id
        if identity is None:
            return []
        found = []
        for folder, names, _ in os.walk("/sys/fs/cgroup"):
            found += [os.path.join(folder, name) for name in names if f"coldframe-{identity}" in name]
        return found

    @property
    def installation_id(self) -> str | None:
        """The mark that the host puts on what it makes; None before the first start."""
        try:
            return Path(self.data_dir, "host", "installation").read_text(encoding="ascii").strip() or None
        except OSError:
            return None


def waits_for_a_box(pid: int) -> bool:
    """Whether it is a keeper, or a bubblewrap, that was started ahead and has no box: it still sees what we see."""
    words = _command_line(pid)
    if " -I -S -c " not in words and "/bwrap --unshare-all" not in words:
        return False
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def _mentions(pid: int, mark: bytes) -> bool:
    for name in ("cmdline", "environ"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if mark in file.read():
                    return True
        except OSError:
            continue
    try:
        # What a box has mounted names the workspace on the host, and where it is mounted does not. A disk or a stack of a
        # workspace is in the table of every process of the machine, at a place that has the name, and so in every copy of
        # that table; whoever is named here gets killed.
        with open(f"/proc/{pid}/mountinfo", "rb") as file:
            if any(mark in line.split()[3] and mark not in line.split()[4] for line in file):
                return True
    except OSError:
        pass
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.fsencode(os.readlink(f"/proc/{pid}/fd/{number}")).startswith(mark):
                    return True
            except OSError:
                continue
    except OSError:
        pass
    return False


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:200] or f"[{pid}]"
    except OSError:
        return "(ended)"


def _unlock(folder: str) -> None:
    """Make every directory below *folder* removable: agents leave them without any mode bit."""
    for path, names, _ in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            try:
                if not os.path.islink(full):
                    os.chmod(full, 0o700)
            except OSError:
                continue
