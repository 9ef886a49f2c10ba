"""Kernels that speak Jupyter's protocol, on sockets that nobody outside the box can reach.

The client is our own: what is needed of the protocol are signed messages in five parts, and `pyzmq` loads in a tenth of the
time of `jupyter_client`. Whether a kernel lives is seen by its process, and not by heartbeats, which a machine under load
delays as if it were dead.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import zmq

from coldframe.kernel.listener import Listener
from coldframe.kernel.nursery import Nursery, how_it_ended

PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
AGAIN_S = 0.03
"""How soon a kernel is asked again whether it is there: what it says while the way is made is lost."""
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RECONNECT_MS = 5
"""How soon it is looked again whether a kernel listens, which it does long after it was started. By itself libzmq waits for a
tenth of a second and more each time, as long as a kernel takes to load."""
_DELIMITER = b"<IDS|MSG>"


def maker_of(language: str, nursery: Nursery | None) -> Callable[[Listener], "JupyterKernel"]:
    """How a kernel of that language is made."""
    if nursery is not None:
        return lambda driver: PythonKernel(driver, nursery)
    if language in ("javascript", "typescript"):
        return DenoKernel
    return RKernel


class JupyterKernel:
    """One kernel, and the next if it ends."""

    shows_late = False
    """What a cell shows may come after the kernel has said that it is done; it has come once the next message is answered."""

    def __init__(self, driver: Listener) -> None:
        self._driver = driver
        self._context = zmq.Context()
        self._folder = tempfile.mkdtemp(prefix="kernel-", dir="/tmp")
        self._number = 0
        self._key = b""
        self._session = secrets.token_hex(8)
        self._shell: Any = None
        self._control: Any = None
        self._iopub: Any = None
        self._asked = ""
        """Id of the message that is worked at."""
        self._earlier: tuple[str, dict[str, Any]] | None = None
        """Message that was done, and its reply, while what it shows late is waited for."""
        self._is_silent = False
        self._greetings: set[str] = set()
        self._has_replied = self._is_idle = True
        self._reply: dict[str, Any] = {}
        self._ask_at = 0.0
        self._greeted = False

    # -- of each kernel its own --------------------------------------------------------------------

    def launch(self, connection_file: str) -> None:
        raise NotImplementedError

    def process_file(self) -> int:
        """Something to wait for that can be read when the kernel ends."""
        raise NotImplementedError

    def ended(self) -> str | None:
        """How it ended, once it has."""
        raise NotImplementedError

    def kill_process(self) -> None:
        raise NotImplementedError

    def set_environment(self, values: dict[str, str | None]) -> str:
        raise NotImplementedError

    def shown(self, bundle: dict[str, Any]) -> dict[str, Any]:
        return bundle

    # -- its life ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._close()
        self._number += 1
        self._key = secrets.token_hex(16).encode()
        name = os.path.join(self._folder, f"{self._number}.json")
        connection = {"key": self._key.decode(), "signature_scheme": "hmac-sha256", **self.addresses()}
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(connection, file)
        self._greeted, self._greetings, self._earlier = False, set(), None
        self._is_idle = self._has_replied = False
        self.launch(name)
        self._shell, self._control, self._iopub = (
            self._connect(kind, connection, port)
            for kind, port in ((zmq.DEALER, "shell_port"), (zmq.DEALER, "control_port"), (zmq.SUB, "iopub_port"))
        )
        self._greet()

    def addresses(self) -> dict[str, Any]:
        """Files of the box, so that kernels which start at once do not take each other's ports."""
        place = os.path.join(self._folder, str(self._number))
        return {"transport": "ipc", "ip": place, **{port: number for number, port in enumerate(PORTS, 1)}}

    def files(self) -> list[int]:
        found = [self.process_file()]
        return found + [one.getsockopt(zmq.FD) for one in (self._shell, self._control, self._iopub) if one is not None]

    def step(self) -> None:
        while True:
            moved = False
            for one in (self._iopub, self._control, self._shell):  # what it shows is told before its end
                if one is not None and one.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                    self._take(one)
                    moved = True
                    break
            if not moved:
                break
        if (how := self.ended()) is not None:
            self._close()
            self._driver.on_death(how)
        elif not self._greeted and time.monotonic() >= self._ask_at:
            self._greet()

    def execute(self, code: str, *, silent: bool) -> None:
        self._is_silent = silent
        self._ask_to_execute(code)

    def _ask_to_execute(self, code: str) -> None:
        self._is_idle = self._has_replied = False
        content = {
            "code": code,
            "silent": self._is_silent,
            "store_history": not self._is_silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        self._asked = self._send(self._shell, "execute_request", content)

    def interrupt(self) -> None:
        self._send(self._control, "interrupt_request", {})

    def kill(self) -> None:
        self.kill_process()
        self._close()

    # -- messages ----------------------------------------------------------------------------------

    def _greet(self) -> None:
        self._ask_at = time.monotonic() + AGAIN_S
        self._greetings.add(self._send(self._shell, "kernel_info_request", {}))

    def wait_s(self) -> float | None:
        return None if self._greeted else max(0.0, self._ask_at - time.monotonic())

    def _connect(self, kind: int, connection: dict[str, Any], port: str) -> Any:
        one = self._context.socket(kind)
        one.linger = 0
        one.rcvhwm = one.sndhwm = 0
        one.reconnect_ivl = RECONNECT_MS
        if kind == zmq.SUB:
            one.subscribe(b"")
        place, number = connection["ip"], connection[port]
        one.connect(f"ipc://{place}-{number}" if connection["transport"] == "ipc" else f"tcp://{place}:{number}")
        return one

    def _close(self) -> None:
        for one in (self._shell, self._control, self._iopub):
            if one is not None:
                one.close()
        self._shell = self._control = self._iopub = None

    def _send(self, one: Any, kind: str, content: dict[str, Any]) -> str:
        message_id = secrets.token_hex(16)
        header = {
            "msg_id": message_id,
            "session": self._session,
            "username": "user",
            "date": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
            "msg_type": kind,
            "version": "5.3",
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        one.send_multipart([_DELIMITER, self._sign(parts), *parts])
        return message_id

    def _sign(self, parts: list[bytes]) -> bytes:
        signature = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            signature.update(part)
        return signature.hexdigest().encode()

    def _take(self, one: Any) -> None:
        frames = one.recv_multipart()
        if _DELIMITER not in frames:
            return
        signature, *parts = frames[frames.index(_DELIMITER) + 1 :][:5]
        if len(parts) != 4 or not hmac.compare_digest(signature, self._sign(parts)):
            return
        header, parent, _, content = (json.loads(part) for part in parts)
        asked = parent.get("msg_id")
        kind = header.get("msg_type")
        if self._earlier is not None and asked == self._earlier[0] and one is self._iopub and kind != "status":
            self._show(kind, content)
            return
        if asked not in self._greetings if not self._greeted else asked != self._asked:
            return
        if one is self._shell:
            self._has_replied, self._reply = True, content
            self._settle()
        elif kind == "status":
            self._is_idle = self._is_idle or content.get("execution_state") == "idle"
            self._settle()
        elif self._greeted and self._earlier is None:
            self._show(kind, content)

    def _show(self, kind: str, content: dict[str, Any]) -> None:
        driver = self._driver
        if kind == "stream":
            driver.on_stream("stderr" if content.get("name") == "stderr" else "stdout", str(content.get("text", "")))
        elif kind == "execute_input":
            driver.on_count(int(content.get("execution_count") or 0))
        elif kind in ("execute_result", "display_data", "update_display_data"):
            driver.on_result(self.shown(dict(content.get("data") or {})), is_main=kind == "execute_result")
        elif kind == "error":
            self._fail(content)

    def _fail(self, content: dict[str, Any]) -> None:
        traceback = "\n".join(map(str, content.get("traceback") or ()))
        self._driver.on_error(
            str(content.get("ename", "")), ANSI.sub("", str(content.get("evalue", ""))), ANSI.sub("", traceback)
        )

    def _settle(self) -> None:
        if not (self._has_replied and self._is_idle):
            return
        reply, asked, self._asked = self._reply, self._asked, ""
        if not self._greeted:
            self._greeted = True
            about = reply.get("language_info") or {}
            self._driver.on_ready(f"{about.get('name', '')} {about.get('version', '')}".strip())
            self._driver.take_up()
            return
        if self._earlier is not None:
            _, reply = self._earlier
            self._earlier = None
        elif self.shows_late and not self._is_silent:
            self._earlier, self._is_silent = (asked, reply), True
            self._ask_to_execute("undefined")
            return
        if reply.get("status") == "error":
            self._fail(reply)
        names = reply.get("coldframe_names")
        self._driver.on_idle(names=names if isinstance(names, list) else None)


class PythonKernel(JupyterKernel):
    """ipykernel, forked from a process that has loaded it already."""

    def __init__(self, driver: Listener, nursery: Nursery) -> None:
        super().__init__(driver)
        self._nursery = nursery

    def launch(self, connection_file: str) -> None:
        self._nursery.bear(connection_file)

    def process_file(self) -> int:
        return self._nursery.fileno()

    def ended(self) -> str | None:
        return self._nursery.ended()

    def kill_process(self) -> None:
        self._nursery.kill()

    def interrupt(self) -> None:
        """To its whole group: also to a program that it waits for."""
        self._nursery.signal(signal.SIGINT)

    def set_environment(self, values: dict[str, str | None]) -> str:
        environment = "__import__('os').environ"
        given = {name: value for name, value in values.items() if value is not None}
        gone = [name for name, value in values.items() if value is None]
        return f"{environment}.update({given!r}); [{environment}.pop(name, None) for name in {gone!r}]"


class ProgramKernel(JupyterKernel):
    """A program that is told the file of its addresses."""

    def __init__(self, driver: Listener) -> None:
        super().__init__(driver)
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1

    def command(self, connection_file: str) -> list[str]:
        raise NotImplementedError

    def launch(self, connection_file: str) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._process = subprocess.Popen(
            self.command(connection_file),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)

    def addresses(self) -> dict[str, Any]:
        """Ports of the box alone, which are free now."""
        held = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
        try:
            numbers = [one.getsockname()[1] for one in held]
        finally:
            for one in held:
                one.close()
        return {"transport": "tcp", "ip": "127.0.0.1", **dict(zip(PORTS, numbers, strict=True))}

    def process_file(self) -> int:
        return self._pidfd

    def ended(self) -> str | None:
        code = None if self._process is None else self._process.poll()
        return None if code is None else how_it_ended(code)

    def kill_process(self) -> None:
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


class DenoKernel(ProgramKernel):
    """JavaScript and TypeScript."""

    shows_late = True

    def command(self, connection_file: str) -> list[str]:
        return [_program("deno"), "jupyter", "--kernel", "--conn", connection_file]

    def launch(self, connection_file: str) -> None:
        os.environ.setdefault("DENO_DIR", "/tmp/.deno")  # noqa: S108
        super().launch(connection_file)

    def set_environment(self, values: dict[str, str | None]) -> str:
        lines = []
        for name, value in values.items():
            if value is None:
                lines.append(f"Deno.env.delete({json.dumps(name)});")
            else:
                lines.append(f"Deno.env.set({json.dumps(name)}, {json.dumps(value)});")
        return "\n".join([*lines, "undefined"])

    def shown(self, bundle: dict[str, Any]) -> dict[str, Any]:
        return {kind: ANSI.sub("", value) if kind == "text/plain" else value for kind, value in bundle.items()}


class RKernel(ProgramKernel):
    """R, where it and its kernel are installed."""

    def command(self, connection_file: str) -> list[str]:
        return [_program("R"), "--no-echo", "--no-save", "-e", "IRkernel::main()", "--args", connection_file]

    def interrupt(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGINT)

    def set_environment(self, values: dict[str, str | None]) -> str:
        lines = []
        for name, value in values.items():
            if value is None:
                lines.append(f"Sys.unsetenv({json.dumps(name)})")
            else:
                lines.append(f"do.call(Sys.setenv, setNames(list({json.dumps(value)}), {json.dumps(name)}))")
        return "\n".join(["invisible({", *lines, "})"])


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"there is no `{name}` here")
    return found
