"""The host as attacks find it: canary files, services, processes and secrets, and a way to see whether anything of it moved.

Made inside the disposable wrapper. What the placeholders of an attack file stand for is `Landscape.values`.
"""

import ctypes
import hashlib
import os
import re
import secrets
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

from tests.security.wrapper import HOST_IP, UPPER

FIXTURES = "/srv/host"
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z][a-z0-9_]+)\}")
_IPC_CREAT = 0o1000

NEIGHBOUR = "neighbour"
NEIGHBOUR_PORT = 45_671
NEIGHBOUR_SHM_KEY = 0x0CF0B0B0
NEIGHBOUR_SERVER = f"""
import ctypes, fcntl, os, socket, sys
canary = sys.argv[1].encode()
ctypes.CDLL(None).shmget({NEIGHBOUR_SHM_KEY}, 4096, 0o1666)
abstract = socket.socket(socket.AF_UNIX)
abstract.bind(chr(0) + "cf-neighbour-abstract")
abstract.listen()
for path in ("/dev/shm/cf-neighbour", "/dev/shm/cf-shared", "/tmp/cf-neighbour"):
    open(path, "wb").write(canary)
lock = open("/home/user/lock-b", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
fcntl.lockf(lock, fcntl.LOCK_EX)
server = socket.create_server(("127.0.0.1", {NEIGHBOUR_PORT}))
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    peer.sendall(canary)
    peer.close()
"""


class Unknown(Exception):
    """A placeholder of the file has no fixture here."""


class Landscape:
    """Everything of the "host" that an attack may go for. `values` are the placeholders; harness steps may add more."""

    def __init__(self) -> None:
        mark = secrets.token_hex(6)
        self.canary = f"canary-{mark}"
        self.canary_b = f"neighbour-{mark}"
        self.env_secret = f"secret-{mark}"
        self.canary_dir = f"{FIXTURES}/canaries"
        self.host_dir = f"{FIXTURES}/open"
        self.hits: list[str] = []
        """One line for each connection or packet that reached a service of the host."""
        os.makedirs(self.canary_dir)
        os.makedirs(self.host_dir)
        os.chmod(self.host_dir, 0o777)
        canary_file = f"{self.canary_dir}/canary.txt"
        open_file = f"{self.host_dir}/open.txt"
        for path, mode in ((canary_file, 0o644), (f"{self.canary_dir}/second.bin", 0o644), (open_file, 0o666)):
            Path(path).write_text(f"{self.canary}\n" * 50, encoding="ascii")
            os.chmod(path, mode)
        os.symlink("canary.txt", f"{self.canary_dir}/link")
        shared_key = 0x0CF0A0A0
        ctypes.CDLL(None).shmget(shared_key, 4096, _IPC_CREAT | 0o666)
        Path("/dev/shm/cf-shared").write_bytes(self.canary.encode())
        os.chmod("/dev/shm/cf-shared", 0o666)
        self._sockets: list[socket.socket] = []
        host_tcp = self._serve(socket.create_server(("0.0.0.0", 0)))
        self._serve(socket.create_server(("::1", host_tcp), family=socket.AF_INET6))
        host_unix = f"{self.host_dir}/service.sock"
        self._serve(_unix_server(host_unix))
        os.chmod(host_unix, 0o777)
        host_abstract = f"cf-host-{mark}"
        self._serve(_unix_server(f"\0{host_abstract}"))
        host_udp = self._serve_udp()
        disk = _first_disk()
        self.values: dict[str, str] = {
            "canary": self.canary,
            "canary_file": canary_file,
            "canary_dir": self.canary_dir,
            "canary_b": self.canary_b,
            "canary_out": f"out_{mark}",
            "host_dir": self.host_dir,
            "open_file": open_file,
            "host_tcp": str(host_tcp),
            "host_udp": str(host_udp),
            "host_unix": host_unix,
            "host_sock": host_unix,
            "host_socket": host_unix,
            "host_abstract": host_abstract,
            "host_ip": HOST_IP,
            "host_name": socket.gethostname(),
            "host_machine_id": _machine_id() or f"no-machine-id-{mark}",
            "env_secret": self.env_secret,
            "real_secret": self.env_secret,
            "other_port": str(NEIGHBOUR_PORT),
            "shm_key_hex": f"{shared_key:08x}",
            "other_shm_key_hex": f"{NEIGHBOUR_SHM_KEY:08x}",
            "disk_major": disk[0],
            "disk_minor": disk[1],
            "allowed_host": "allowed.example.com",
            "denied_host": "denied.example.net",
            "allowed_wild": "wild.example.com",
            "denied_marker": f"denied-{mark}",
        }

    def fill(self, text: str) -> str:
        """*text* with its placeholders replaced.

        Raises:
            Unknown: for a name that has no fixture.
        """

        def value(found: re.Match[str]) -> str:
            try:
                return self.values[found[1]]
            except KeyError:
                raise Unknown(f"placeholder {found[0]} has no fixture here") from None

        return _PLACEHOLDER.sub(value, text)

    def secrets_in(self, text: str) -> list[str]:
        """Names of the secrets of host and neighbour that stand in *text*."""
        return [name for name in ("canary", "canary_b", "env_secret", "real_secret") if self.values[name] in text]

    def state(self) -> dict[str, str]:
        """All of the host's files that differ from what was there before the wrapper, with their content's digest."""
        found = {}
        for top in (UPPER, FIXTURES):
            for folder, folders, files in os.walk(top):
                for name in (*folders, *files):
                    path = os.path.join(folder, name)
                    found[path.removeprefix(UPPER)] = _fact(path)
        return found

    def victim(self, uid: int | None) -> "subprocess.Popen[bytes]":
        """A process of the host with a secret in its environment; of the sandbox's own uid where that can be had."""
        whose = uid if os.geteuid() == 0 else None
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; print(flush=True); time.sleep(10**6)"],
            env={"VICTIM_SECRET": self.env_secret, "PATH": "/usr/bin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            user=whose,
            group=whose,
            extra_groups=None if whose is None else [],
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    # -- services --------------------------------------------------------------------------------------------------

    def _serve(self, server: socket.socket) -> int:
        self._sockets.append(server)
        server.listen()
        answer = f"HTTP/1.0 200 OK\r\n\r\n{self.canary}\n".encode()

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                self.hits.append(f"connection to {server.getsockname()}")
                try:
                    peer.settimeout(5)
                    peer.recv(4096)
                    peer.sendall(answer)
                except OSError:
                    pass
                peer.close()

        threading.Thread(target=serve, daemon=True).start()
        return int(server.getsockname()[1]) if server.family != socket.AF_UNIX else 0

    def _serve_udp(self) -> int:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("0.0.0.0", 0))
        self._sockets.append(server)

        def serve() -> None:
            while True:
                try:
                    _, peer = server.recvfrom(4096)
                    self.hits.append("a packet")
                    server.sendto(self.canary.encode(), peer)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        return int(server.getsockname()[1])


def _unix_server(address: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    return server


def _fact(path: str) -> str:
    info = os.lstat(path)
    fact = f"{stat.filemode(info.st_mode)} {info.st_uid} {info.st_size}"
    if stat.S_ISLNK(info.st_mode):
        return f"{fact} {os.readlink(path)}"
    if stat.S_ISREG(info.st_mode):
        try:
            return f"{fact} {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
        except OSError:
            return f"{fact} unreadable"
    return stat.filemode(info.st_mode) if stat.S_ISDIR(info.st_mode) else fact


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _first_disk() -> tuple[str, str]:
    try:
        lines = Path("/proc/partitions").read_text(encoding="ascii").splitlines()[2:]
        major, minor = lines[0].split()[:2]
        return major, minor
    except (OSError, IndexError, ValueError):
        return "8", "0"
