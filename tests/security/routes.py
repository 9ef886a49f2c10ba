"""A host full of canaries, and forty routes to what the usual environment of a program can reach: outside of a sandbox each finds
its canary, inside none does.

`python -m tests.security.routes` tries them as a plain program and in sandboxes without and with a network, and prints what came
of it as JSON. Started through the wrapper and by nothing else.
"""

import json
import os
import secrets
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation
from tests.security.outside import FAR, RULES, Outside
from tests.security.wrapper import HOST_IP, NOBODY

HERE = Path(__file__).parent
PRODUCTION = "93.184.215.77"
HOME, MOUNTED, SOCKETS = "/srv/host/home", "/srv/host/mounted", "/srv/host/run"
ABSTRACT = "cf-bus-of-the-host"
DATABASE_PORT = 5432
KINDS = ("ssh-key", "cloud", "netrc", "browser", "mounted", "environment", "ssh-agent", "engine", "bus", "database")
"""Of the canaries that are planted; those of the metadata address and of production are pages outside."""
NETWORKS = ("none", "attacked")
"""Profiles of the sandboxes: without a way out, and with one that leads to none of these."""


class Tried(NamedTuple):
    """In one sandbox."""

    found: dict[str, Any]
    """By route."""
    unrecorded: list[str]
    """Attempts that are not on record as denied."""
    reached: list[str]
    """Of services of the host, and outside."""


def load_routes() -> list[dict[str, str]]:
    """With the facts of this host in them."""
    facts = {"home": HOME, "mounted": MOUNTED, "sockets": SOCKETS, "abstract": ABSTRACT}
    facts |= {"host_ip": HOST_IP, "production": PRODUCTION, "name_server": FAR}
    text = (HERE / "routes.jsonl").read_text(encoding="ascii")
    for name, value in facts.items():
        text = text.replace(f"{{{name}}}", value)
    return [json.loads(line) for line in text.splitlines()]


class Canaries:
    """Everything that is planted. It belongs to an ordinary user, and is open to everybody: no mode is what keeps it."""

    def __init__(self) -> None:
        self._texts = {kind: f"cf-canary-{kind}-{secrets.token_hex(12)}" for kind in KINDS}
        self.hits: list[str] = []
        self.user = NOBODY if os.geteuid() == 0 else None
        self._plant_files()
        self._plant_services()
        self.environment = {
            "HOME": HOME,
            "SERVICE_SECRET": self._texts["environment"],
            "AWS_SHARED_CREDENTIALS_FILE": f"{HOME}/.aws/credentials",
            "SSH_AUTH_SOCK": f"{SOCKETS}/ssh-4711/agent.4712",
            "DOCKER_HOST": f"unix://{SOCKETS}/docker.sock",
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={SOCKETS}/bus",
        }

    def _plant_files(self) -> None:
        texts = self._texts
        credentials = f"[default]\naws_secret_access_key = {texts['cloud']}\n"
        for path, text in {
            f"{HOME}/.ssh/id_ed25519": texts["ssh-key"],
            f"{HOME}/.aws/credentials": credentials,
            f"{HOME}/.netrc": f"machine prod.test login service password {texts['netrc']}\n",
            f"{HOME}/.git-credentials": f"https://service:{texts['netrc']}@prod.test\n",
            f"{HOME}/.gitconfig": "[credential]\n\thelper = store\n",
            f"{HOME}/.bash_profile": f"export LOGIN_SECRET={texts['environment']}\n",
            f"{HOME}/.mozilla/firefox/a.default/logins.json": json.dumps({"logins": [texts["browser"]]}),
            f"{HOME}/probe/prober.py": (HERE / "prober.py").read_text(encoding="ascii"),
            f"{HOME}/probe/routes.json": json.dumps(load_routes()),
            f"{MOUNTED}/notes.txt": texts["mounted"],
            "/dev/shm/cf-of-the-host": texts["environment"],
        }.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, encoding="ascii")
        cookies = Path(HOME, ".config/chromium/Default/Cookies")
        cookies.parent.mkdir(parents=True)
        with sqlite3.connect(cookies) as database:
            database.execute("CREATE TABLE cookies (value TEXT)")
            database.execute("INSERT INTO cookies VALUES (?)", (texts["browser"],))
        database.close()
        if self.user is not None:
            for folder, _, names in os.walk(HOME):
                for name in (".", *names):
                    os.chown(os.path.join(folder, name), self.user, self.user)

    def _plant_services(self) -> None:
        for kind, name in (("ssh-agent", "ssh-4711/agent.4712"), ("engine", "docker.sock"), ("bus", "bus")):
            path = Path(SOCKETS, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._serve(kind, socket.AF_UNIX, str(path))
            path.chmod(0o777)
        self._serve("bus", socket.AF_UNIX, f"\0{ABSTRACT}")
        self._serve("database", socket.AF_INET, ("0.0.0.0", DATABASE_PORT))
        self._serve("database", socket.AF_INET6, ("::1", DATABASE_PORT))

    def _serve(self, kind: str, family: int, address: Any) -> None:
        server = socket.socket(family, socket.SOCK_STREAM)
        server.bind(address)
        server.listen()
        answer = f"HTTP/1.0 200 OK\r\n\r\n{self._texts[kind]}\n".encode()

        def serve() -> None:
            while True:
                peer, _ = server.accept()
                self.hits.append(f"{kind} at {address!r}")
                try:
                    peer.settimeout(5)
                    peer.recv(4096)
                    peer.sendall(answer)
                except OSError:
                    pass
                peer.close()

        threading.Thread(target=serve, daemon=True).start()

    def start(self, *command: str, **options: Any) -> "subprocess.Popen[str]":
        """A program of the host, in the usual environment."""
        return subprocess.Popen(
            command,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **self.environment},
            stdout=subprocess.PIPE,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            text=True,
            **options,
        )

    @contextmanager
    def somebody_at_work(self) -> Iterator[None]:
        """A process at home in it: the key is open, and secrets stand in its environment and its words."""
        program = "import sys; key = open('.ssh/id_ed25519'); print(flush=True); sys.stdin.read()"
        words = (sys.executable, "-c", program, f"--password={self._texts['environment']}")
        with self.start(*words, cwd=HOME, stdin=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield

    def try_outside(self) -> dict[str, Any]:
        """What the routes find as a plain program does."""
        with self.start(sys.executable, "prober.py", "routes.json", cwd=f"{HOME}/probe") as prober:
            return dict(json.loads(prober.communicate(timeout=120)[0]))


def try_inside(client: SyncColdframe, canaries: Canaries, outside: Outside, network: str) -> Tried:
    canaries.hits.clear()
    mark = outside.mark()
    routes = load_routes()
    with client.sandboxes.create(f"prober-{network}", network=network) as box:
        box.write_file("prober.py", (HERE / "prober.py").read_text(encoding="ascii"))
        box.write_file("routes.json", json.dumps(routes))
        done = box.run_command(["python3", "prober.py", "routes.json"], timeout_s=120)
        assert done.exit_code == 0, done.stderr
        recorded = {
            f"{who} {one.port}" for one in done.contacts if one.verdict == "refused" for who in (one.name, one.address)
        }
        for kept in box.network_log(outcome="deny", limit=1000).contacts if network != "none" else ():
            recorded |= {f"{who} {kept.contact.port}" for who in (kept.contact.name, kept.contact.address)}
    wanted = [one["denied"] for one in routes if "denied" in one]
    arrived = outside.since(mark)
    return Tried(
        json.loads(str(done.stdout)),
        [one for one in wanted if one not in recorded],
        [*canaries.hits, *arrived.strays, *arrived.questions, *arrived.requests],
    )


def main() -> None:
    canaries, outside = Canaries(), Outside()
    for name in ("prod.test", "db.prod.test"):
        outside.answer(name, [PRODUCTION])
    with canaries.somebody_at_work():
        told: dict[str, Any] = {"outside": canaries.try_outside()}
        installation = Installation(**canaries.environment)
        try:
            installation.start()
            with SyncColdframe(installation.url, installation.token) as client:
                client.policy.load(RULES)
                for network in NETWORKS:
                    told[network] = try_inside(client, canaries, outside, network)._asdict()
        finally:
            told["left"] = installation.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
