"""Puts the houses together: the embedded installation of one process, and the processes of `coldframe up`.

`up` stays as a small parent. It starts the host daemon (with its rights, in a session of its own) unless one
runs already, and the server as its child: as root under another user, without any of root's rights. If
parent or server are killed, the daemon, the keepers and their commands go on, and the next `up` finds them.
A graceful end stops server and daemon; sandboxes go on.

This file also is the program of both children, `python -m coldframe.assembly daemon|server`, started with a
clean environment and without the current directory in the module path. Since nothing is started before the parent
has loaded this file, what only the children need is imported where they do.
"""

import contextlib
import fcntl
import functools
import gc
import hashlib
import importlib
import json
import logging
import os
import re
import resource
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import coldframe
from coldframe.config import Settings
from coldframe.contract.errors import (
    ColdframeError,
    HostUnreachable,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from coldframe.data_dir import ServerUser, prepare_data_dir, server_user, write_default_rules

if TYPE_CHECKING:
    import socket

    from coldframe.control.control import Control
    from coldframe.fronts.edge.authority import EdgeAuthority

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
MAX_DAEMON_RESTARTS = 5
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection, so that none is closed under a request."""
GC_THRESHOLDS = (10_000, 20, 20)
"""A request makes a few hundred objects and leaves no circles: Python's 700 has the server look for them at
every other."""
TOKEN_NAME = "local owner"  # noqa: S105  a name, no secret
_SERVER_CODE = (
    "coldframe.control.control",
    "coldframe.fronts.rest",
    "coldframe.host.remote",
    "coldframe.fronts.corked",
    "coldframe.fronts.edge.listener",
    "coldframe.fronts.edge.protocol",
    "coldframe.fronts.previews.porter",
    "uvloop",
)
_OF_CLIENTS = re.compile(
    r"(?:pip|npm|node_auth)_.*|(?:https?|all|no)_proxy|netrc|xdg_config_(?:home|dirs)", re.IGNORECASE
)
"""Variables of the caller's that the daemon reads: settings of package clients, with the tokens that these name, and proxies."""
_log = logging.getLogger("coldframe.assembly")


def build_embedded(settings: Settings) -> "Control":
    """An installation within this process. Its sandboxes end with it. Start it, and close it.

    Raises:
        WrongState: a server has the data directory open.
    """
    from coldframe.control.control import build_control
    from coldframe.control.makers import Maxima
    from coldframe.control.retention import Retention
    from coldframe.control.sandbox_specs import Longest
    from coldframe.control.snapshots import SnapshotLimits
    from coldframe.host.machine import Machine

    prepare_data_dir(settings)
    return build_control(
        data_dir=settings.data_dir,
        host=Machine(settings.data_dir, embedded=True, own_disks=settings.own_disks, broker_uid=settings.broker_uid),
        clock=_now,
        rules_path=settings.rules_path if os.path.exists(settings.rules_path) else None,
        longest=Longest(settings.max_idle_s, settings.max_age_s),
        most_running=settings.max_running,
        retention=Retention(settings.stopped_keep_s or None, settings.results_keep_s),
        snapshot_limits=SnapshotLimits(settings.max_snapshots, settings.max_snapshots_mib),
        maxima=Maxima(settings.max_owned, settings.max_owned_mib),
    )


@contextlib.asynccontextmanager
async def embedded(settings: Settings) -> AsyncIterator["Control"]:
    """`build_embedded`, started and closed."""
    control = build_embedded(settings)
    try:
        await control.start()
        yield control
    finally:
        await control.close()
        await control.host.close()
        prepare_data_dir(settings)


def _now() -> datetime:
    return datetime.now(UTC)


class Running(NamedTuple):
    """What `up` tells its user."""

    url: str
    client_file: str
    server_pid: int
    daemon_pid: int


def serve(settings: Settings, *, started: Callable[[Running], None] = lambda _: None) -> int:
    """Run an installation until SIGINT, SIGTERM or SIGHUP. Returns 0 for a graceful end.

    A host daemon that ends by itself is started again, up to MAX_DAEMON_RESTARTS times.

    Raises:
        WrongState: one runs on this data directory already.
        Unavailable: a process did not start; its own words are on standard error.
    """
    from coldframe.host.successor import announced

    prepare_data_dir(settings)
    user = server_user(settings)
    launched = _launch_server(settings, user)
    try:
        write_default_rules(settings.rules_path)
        running = _find_daemon(settings)
        daemon_pid = running or _start_daemon(settings, user)
    except BaseException:
        _call_off(launched)
        raise
    ours = running is None
    stop_read, stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    old_wakeup = signal.set_wakeup_fd(stop_write, warn_on_full_buffer=False)
    old_handlers = {number: signal.signal(number, lambda *_: None) for number in _STOP_SIGNALS}
    try:
        server, url = launched.process, _start_server(launched)
        ours = True  # a daemon found running is another installation's until the server has the data directory
        wanted = {"own_disks": settings.own_disks, "program": program_mark()}
        if running is not None and not wanted.items() <= _ping_daemon(settings).items():
            # Whoever asks for disks must not get directories, and one of an earlier version does not know what it is asked.
            with announced(settings.data_dir):
                _end_daemon(settings, daemon_pid)
                daemon_pid = _start_daemon(settings, user)
        started(Running(url, settings.client_file, server.pid, daemon_pid))
        for restarts_left in range(MAX_DAEMON_RESTARTS, -1, -1):
            ended = _wait(server, daemon_pid, stop_read)
            if ended != "daemon":
                break
            _log.error("the host daemon ended by itself; %d restarts left", restarts_left)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(daemon_pid, os.WNOHANG)
            if restarts_left:
                with announced(settings.data_dir):
                    daemon_pid = _start_daemon(settings, user)
        return _stop_server(server)
    finally:
        if ours:
            _end_daemon(settings, daemon_pid)
        signal.set_wakeup_fd(old_wakeup)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        os.close(stop_read)
        os.close(stop_write)


def _wait(server: "subprocess.Popen[bytes]", daemon_pid: int, stop: int) -> Literal["server", "daemon", "asked"]:
    """Until one of the two ends by itself, or a signal asks to stop."""
    with contextlib.ExitStack() as opened:
        watches = []
        for pid in (server.pid, daemon_pid):
            try:
                watches.append(os.pidfd_open(pid))
            except ProcessLookupError:
                return "server" if pid == server.pid else "daemon"
            opened.callback(os.close, watches[-1])
        ready, _, _ = select.select([*watches, stop], [], [])
    if stop in ready:
        return "asked"
    return "server" if watches[0] in ready else "daemon"


def _stop_server(server: "subprocess.Popen[bytes]") -> int:
    """End the server in order. Returns 1 if it had ended before, or would not."""
    if server.poll() is not None:
        _log.error("the server ended by itself with %d", server.returncode)
        return 1
    server.terminate()
    try:
        return 0 if server.wait(STOP_TIMEOUT_S) in (0, -signal.SIGTERM) else 1
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        return 1


def _child_command(role: str, settings: Settings, ready: int, **more: Any) -> list[str]:
    given = {"settings": settings.model_dump(mode="json"), "ready": ready, **more}
    return [sys.executable, "-P", "-m", "coldframe.assembly", role, json.dumps(given)]


def _child_environment() -> dict[str, str]:
    """Nothing of the caller's but what is needed to find this package and to write messages."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(coldframe.__file__)))
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": package,
        "PYDANTIC_DISABLE_PLUGINS": "__all__",  # to look for some is a part of every start, and here are none
    }


def _daemon_environment() -> dict[str, str]:
    """That, and what tells the clients of this machine its registries and its proxies: boxes are given the same ways."""
    told = {name: value for name, value in os.environ.items() if _OF_CLIENTS.fullmatch(name) is not None}
    return {**told, **_child_environment()}


def _find_daemon(settings: Settings) -> int | None:
    """Process id of the daemon that runs on this data directory already."""
    told = _ping_daemon(settings)
    return int(told["pid"]) if told else None


def _ping_daemon(settings: Settings) -> dict[str, Any]:
    """What the daemon of this data directory tells of itself; nothing if none runs."""
    if not os.path.exists(settings.host_socket):
        return {}
    import asyncio

    from coldframe.host.remote import RemoteHost

    async def ping() -> dict[str, Any]:
        host = RemoteHost(settings.data_dir)
        try:
            return await host.ping()
        except HostUnreachable:
            return {}
        finally:
            await host.close()

    return asyncio.run(ping())


def program_mark() -> str:
    """Another one after every change of the program's files."""
    mark = hashlib.sha256()
    for folder, below, names in os.walk(os.path.dirname(os.path.abspath(coldframe.__file__))):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(name for name in names if name.endswith(".py")):
            status = os.stat(os.path.join(folder, name))
            mark.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return mark.hexdigest()


def _start_daemon(settings: Settings, user: ServerUser | None) -> int:
    os.makedirs(os.path.join(settings.data_dir, "host"), mode=0o711, exist_ok=True)
    read, write = os.pipe2(os.O_CLOEXEC)
    log = os.open(
        os.path.join(settings.data_dir, "host", "daemon.log"),
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
    )
    try:
        process = subprocess.Popen(
            _child_command("daemon", settings, write, server_uid=None if user is None else user.uid),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_daemon_environment(),
            cwd="/",
            pass_fds=[write],
            start_new_session=True,
        )
    finally:
        os.close(write)
        os.close(log)
    _await_ready(process, read, "host daemon", f"see `{settings.data_dir}/host/daemon.log`")
    return process.pid


class _Launched(NamedTuple):
    """A server that has loaded its code and waits for its word to start."""

    process: "subprocess.Popen[bytes]"
    ready: int
    go: int


def _launch_server(settings: Settings, user: ServerUser | None) -> _Launched:
    """Start the process, which does nothing yet but load its code; it ends if `go` is closed without a word."""
    read, write = os.pipe2(os.O_CLOEXEC)
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(
            _child_command("server", settings, write, parent=os.getpid(), go=go_read),
            stdin=subprocess.DEVNULL,
            env=_child_environment(),
            cwd="/",
            pass_fds=[write, go_read],
            # A signal of the terminal reaches the parent alone, which ends the server in order.
            start_new_session=True,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else [],
        )
    except BaseException:
        os.close(read)
        os.close(go_write)
        raise
    finally:
        os.close(write)
        os.close(go_read)
    return _Launched(process, read, go_write)


def _start_server(launched: _Launched) -> str:
    """Let the server begin, and return its address once it answers."""
    with contextlib.suppress(BrokenPipeError):  # it ended by itself; why is told below
        os.write(launched.go, b"go")
    os.close(launched.go)
    return _await_ready(launched.process, launched.ready, "server", "its own words are above")


def _call_off(launched: _Launched) -> None:
    os.close(launched.go)
    os.close(launched.ready)
    launched.process.wait()


def _await_ready(process: "subprocess.Popen[bytes]", read: int, name: str, where: str) -> str:
    """The line a child writes when it is ready: `ok TEXT`, or the wire form of its error."""
    with os.fdopen(read, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], START_TIMEOUT_S)
        line = pipe.readline().decode() if ready else ""
    if line.startswith("ok "):
        return line[3:].strip()
    process.kill()
    process.wait()
    if line:
        from coldframe.contract.errors import from_wire

        raise from_wire(json.loads(line))
    raise Unavailable(f"the {name} did not start", hint=where)


def _end_daemon(settings: Settings, pid: int) -> None:
    """End the daemon, if that process still is the one that answers; wait until it is gone."""
    if _find_daemon(settings) != pid:
        return
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(watch, signal.SIGTERM)
        select.select([watch], [], [], STOP_TIMEOUT_S)
    finally:
        os.close(watch)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


# -- the children ------------------------------------------------------------------------------------------------


def _run_daemon(settings: Settings, ready: int, *, server_uid: int | None) -> None:
    import asyncio

    from coldframe.host.daemon import serve as serve_host

    program = program_mark()
    lock = os.open(os.path.join(settings.data_dir, "host", "daemon.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WrongState("another host daemon runs on this data directory and does not answer") from None

    def told_ready() -> None:
        _say(ready, "ok")
        gc.freeze()
        gc.enable()

    async def run() -> None:
        task = asyncio.ensure_future(
            serve_host(
                settings.data_dir,
                server_uid=server_uid,
                own_disks=settings.own_disks,
                broker_uid=settings.broker_uid,
                ready_boxes=settings.ready_boxes,
                program=program,
                ready=told_ready,
            )
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


def _run_server(settings: Settings, ready: int, *, parent: int, go: int) -> None:
    if os.geteuid() == 0:
        raise WrongState("the server never runs as root")
    _die_with(parent)
    _load_server()
    told = os.read(go, 2)
    os.close(go)
    if told == b"go":
        asyncio_run(_serve_http(settings, ready))


def _load_server() -> None:
    """Load the code of the server ahead of its start: while its parent looks for the host daemon, or starts it."""
    for name in _SERVER_CODE:
        importlib.import_module(name)


def asyncio_run(coroutine: Any) -> None:
    import uvloop

    uvloop.run(coroutine)


async def _serve_http(settings: Settings, ready: int) -> None:
    import asyncio

    import uvicorn

    from coldframe.contract.edge import EdgeInfo
    from coldframe.control.control import build_control
    from coldframe.control.makers import Maxima
    from coldframe.control.retention import Retention
    from coldframe.control.sandbox_specs import Longest
    from coldframe.control.snapshots import SnapshotLimits
    from coldframe.fronts.corked import CorkedProtocol
    from coldframe.fronts.e2b import make_apps
    from coldframe.fronts.edge import Edge
    from coldframe.fronts.edge.listener import EdgeListener
    from coldframe.fronts.edge.protocol import KEEP_ALIVE_S as EDGE_KEEP_ALIVE_S
    from coldframe.fronts.edge.protocol import EdgeProtocol
    from coldframe.fronts.previews.porter import PreviewPorter
    from coldframe.fronts.rest import build_app
    from coldframe.host.remote import RemoteHost

    listener = _listen(settings.bind, settings.port, "port")
    edge_listener = _listen(settings.bind, settings.edge_listens_on, "edge_port")
    address, port = listener.getsockname()[:2]
    host = RemoteHost(settings.data_dir)
    control = build_control(
        data_dir=settings.data_dir,
        host=host,
        clock=_now,
        rules_path=settings.rules_path,
        longest=Longest(settings.max_idle_s, settings.max_age_s),
        most_running=settings.max_running,
        retention=Retention(settings.stopped_keep_s or None, settings.results_keep_s),
        snapshot_limits=SnapshotLimits(settings.max_snapshots, settings.max_snapshots_mib),
        maxima=Maxima(settings.max_owned, settings.max_owned_mib),
    )
    edge_connections = None
    try:
        await control.start()
        url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
        _write_client_file(control, settings, url)
        names, edge_port = (settings.bind, *settings.allowed_hosts), edge_listener.getsockname()[1]
        apps = functools.partial(make_apps, control, on_missing=settings.on_missing)
        edge = Edge(apps, domains=("localhost", *settings.edge_domains), names=names)
        authority = functools.cache(
            functools.partial(_edge_authority, os.path.join(settings.control_dir, "edge"), edge.domains)
        )
        app = build_app(
            control,
            allowed_hosts=names,
            on_missing=settings.on_missing,
            edge=lambda: EdgeInfo(port=edge_port, domains=edge.domains, certificate=authority().certificate),
        )
        common: dict[str, Any] = {
            "loop": "none",
            "ws": "none",
            "lifespan": "off",
            "access_log": False,
            "log_level": settings.log_level,
            "server_header": False,
            "timeout_graceful_shutdown": 5,
        }
        server = uvicorn.Server(uvicorn.Config(app, http=CorkedProtocol, timeout_keep_alive=KEEP_ALIVE_S, **common))

        def end(_: int, __: object) -> None:
            """In place of uvicorn's own, which raises the signal once more when it has ended: nothing would be closed then."""
            server.force_exit = server.should_exit
            server.should_exit = True

        server.handle_exit = end  # type: ignore[method-assign, assignment]
        porter = PreviewPorter(control.previews.access, edge.domains, edge.names)
        control.previews.place = functools.partial(_preview_url, (*settings.edge_domains, "localhost")[0], edge_port)
        at_edge = uvicorn.Config(edge, http=EdgeProtocol, timeout_keep_alive=EDGE_KEEP_ALIVE_S, **common)
        at_edge.load()
        edge_connections = EdgeListener(
            edge_listener,
            lambda: EdgeProtocol(at_edge, server.server_state, {}, porter=porter),
            lambda: authority().context(),
        )
        edge_connections.start()
        # What is here now stays: without this, the garbage collector looks at all of it again and again. To look once
        # before, for what may be left of the start, costs a tenth of it and finds a few hundred objects.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        asyncio.get_running_loop().call_soon(_say, ready, f"ok {url}")
        await server.serve(sockets=[listener])
    finally:
        if edge_connections is not None:
            edge_connections.close()
        edge_listener.close()
        await control.close()
        await host.close()


def _preview_url(domain: str, port: int, address: str) -> str:
    """Of names below `localhost` no browser asks anybody, and none would trust a certificate of ours unasked."""
    scheme = "http" if domain == "localhost" else "https"
    return f"{scheme}://{address}.{domain}:{port}/"


def _edge_authority(directory: str, domains: tuple[str, ...]) -> "EdgeAuthority":
    from coldframe.fronts.edge.authority import EdgeAuthority  # 20 ms that most starts have no use for

    return EdgeAuthority(directory, domains)


def _listen(bind: str, port: int, setting: str) -> "socket.socket":
    import socket

    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        option = "--port or COLDFRAME_PORT" if setting == "port" else f"COLDFRAME_{setting.upper()}"
        raise Unavailable(
            f"cannot listen on {bind} port {port}: {(error.strerror or str(error)).lower()}",
            hint=f"choose another port with {option}",
            port=port,
        ) from error
    return listener


def _write_client_file(control: "Control", settings: Settings, url: str) -> None:
    """Leave address and owner token for local clients, readable by this user alone. A token that still works
    is kept."""
    from coldframe.contract.policy import Role

    secret = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, Unauthenticated):
        with open(settings.client_file, encoding="utf-8") as file:
            kept = str(json.load(file)["token"])
        if control.tokens.authenticate(kept, surface="rest").role is Role.OWNER:
            secret = kept
    if secret is None:
        secret, _ = control.tokens.create(Role.OWNER, TOKEN_NAME)
    draft = settings.client_file + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"url": url, "token": secret}, file)
    os.rename(draft, settings.client_file)


def _die_with(parent: int) -> None:
    """End when the parent does, however it ends: a server nobody supervises would hold port and database."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    set_parent_death_signal = 1
    if libc.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        raise Unavailable("the parent of the server is gone")


def _say(ready: int, line: str) -> None:
    if line == "ok":
        line = "ok "
    os.write(ready, line.encode() + b"\n")
    os.close(ready)


def _main(role: str, given: str) -> None:
    gc.disable()  # until all code is loaded: none of it is garbage, and to look for some is a fifth of the start
    content = json.loads(given)
    settings, ready = Settings.model_validate(content["settings"]), int(content["ready"])
    os.set_inheritable(ready, False)
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o077 if role == "server" else 0o022)
    # Secrets may be in memory. One byte and not none: with that the kernel hands nothing to a program either (core(5)).
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    try:
        if role == "daemon":
            _run_daemon(settings, ready, server_uid=content["server_uid"])
        else:
            go = int(content["go"])
            os.set_inheritable(go, False)
            _run_server(settings, ready, parent=int(content["parent"]), go=go)
    except ColdframeError as error:
        with contextlib.suppress(OSError):  # it may have been said already
            _say(ready, json.dumps(error.to_wire(), default=str))
        sys.exit(1)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
