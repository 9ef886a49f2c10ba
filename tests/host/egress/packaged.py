"""Boxes in profile `packages` with the registries of the small world behind the broker, and what clients of them do."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.policy import Outcome
from coldframe.host.egress.broker import Broker
from coldframe.host.egress.contact import EgressPackage, EgressRequest
from coldframe.host.egress.intercept import Interception
from coldframe.host.egress.packages.cache import CacheUsage, PackageCache, measure_cache, open_cache
from coldframe.host.egress.packages.view import PackageView
from coldframe.host.package_clients import PIP_FILE, client_environment, client_files
from coldframe.host.registries import RegistryCredential, RegistrySettings
from coldframe.policy.document import read_document
from coldframe.policy.network_rules import PackageKind, Registry, Scheme
from coldframe.policy.network_section import load_network
from tests.host.egress.registries import CONTROL_PORT, PORT, SECRET
from tests.host.egress.test_broker import ORIGIN, Log
from tests.host.egress.world import ADDRESSES, RESOLVER, SITE, World, in_world

PYTHON = Registry(SITE, PORT, "/simple/", Scheme.HTTPS, PackageKind.PYTHON)
PRIVATE = Registry(SITE, PORT, "/private/simple/", Scheme.HTTPS, PackageKind.PYTHON)
NPM = Registry(SITE, PORT, "/npm/", Scheme.HTTPS, PackageKind.NPM)
SETTINGS = RegistrySettings((PYTHON, PRIVATE), NPM, credentials=(RegistryCredential(PRIVATE, SECRET),))
ALL = "use: {'*': packages}\n"
PIP = "python3 -m pip install --no-cache-dir --target site"
DEMO = "python3 -c 'import sys; sys.path.insert(0, \"site\"); import colddemo; print(colddemo.value)'"
ROOTS = "/etc/ssl/certs/ca-certificates.crt"


def find_program(name: str) -> str | None:
    """Also that of the environment of the tests, which boxes get as theirs."""
    return shutil.which(name) or shutil.which(name, path=f"{Path(sys.executable).parent}")


needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
needs_cc = pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/python3.11/Python.h").exists(),
    reason="no C compiler for Python",
)


@dataclass
class Scene:
    world: World
    broker: Broker
    interception: Interception
    log: Log
    folder: str
    clock: list[float]

    @property
    def cache(self) -> str:
        return os.path.join(self.folder, "cache")

    def open_view(self, *, most_bytes: int = 1 << 30, settings: RegistrySettings = SETTINGS) -> PackageView:
        """Also anew, as after a restart."""
        if self.interception.packages is not None:
            self.interception.packages.close()
        authority = self.world.certificates.authority
        view = self.interception.packages = PackageView(
            PackageCache(open_cache(self.cache, None), most_bytes=most_bytes),
            lambda: ssl.create_default_context(cafile=authority),
            self.world.resolve,
            clock=lambda: self.clock[0],
        )
        view.use(settings.all, settings.credentials)
        return view

    async def run(self, shell: str, *, home: str = "home", patience_s: float = 50) -> tuple[int, str]:
        """How a command of the box ended, and what it printed."""
        place = os.path.join(self.folder, home)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": place,
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PIP_BREAK_SYSTEM_PACKAGES": "1",
            **dict.fromkeys(
                ("SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE", "DENO_CERT"), ROOTS
            ),
            "PIP_CONFIG_FILE": self._own(PIP_FILE),  # the one of this machine is not to be covered
            **{name: self._own(value) for name, value in client_environment(SETTINGS).items()},
        }

        def inside() -> tuple[int, str]:
            os.makedirs(place, exist_ok=True)
            for path, text in client_files(SETTINGS).items():
                Path(self._own(path)).write_text(text)
            done = subprocess.run(
                ["/bin/sh", "-c", shell],
                env=environment,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=patience_s,
            )
            return done.returncode, done.stdout

        trusted = self.interception.authority(ORIGIN.sandbox_id).bundle(b"").decode()
        return await self.world.inside(inside, files={**RESOLVER, ROOTS: trusted})

    def _own(self, path: str) -> str:
        return os.path.join(self.folder, os.path.basename(path)) if path in client_files(SETTINGS) else path

    async def ask(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
        """Status, its text and body of a bare request of the box."""
        told = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        text = f"{method} {path} HTTP/1.1\r\nHost: {SITE}:{PORT}\r\n{told}Connection: close\r\n\r\n"

        def inside() -> bytes:
            with socket.create_connection((SITE, PORT), timeout=30) as plain:
                context = ssl.create_default_context()
                with context.wrap_socket(plain, server_hostname=SITE) as client:
                    client.sendall(text.encode())
                    heard = b""
                    while part := client.recv(65536):
                        heard += part
            return heard

        trusted = self.interception.authority(ORIGIN.sandbox_id).bundle(b"").decode()
        heard = await self.world.inside(inside, files={**RESOLVER, ROOTS: trusted})
        head, _, body = heard.partition(b"\r\n\r\n")
        _, status, reason = head.split(b"\r\n")[0].decode().split(" ", 2)
        return int(status), reason, body

    async def time(self, *paths: str, turns: int) -> tuple[dict[str, set[int]], dict[str, float]]:
        """Statuses, and medians of the seconds that a program of the box waits for an answer, asking in *turns*."""

        def inside() -> tuple[dict[str, set[int]], dict[str, list[float]]]:
            statuses: dict[str, set[int]] = {path: set() for path in paths}
            seconds: dict[str, list[float]] = {path: [] for path in paths}
            with closing(HTTPSConnection(SITE, PORT, timeout=30)) as client:
                for turn in range(turns):
                    for path in paths if turn % 2 else reversed(paths):
                        begun = time.perf_counter()
                        client.request("GET", path)
                        answer = client.getresponse()
                        answer.read()
                        seconds[path].append(time.perf_counter() - begun)
                        statuses[path].add(answer.status)
            return statuses, seconds

        trusted = self.interception.authority(ORIGIN.sandbox_id).bundle(b"").decode()
        statuses, seconds = await self.world.inside(inside, files={**RESOLVER, ROOTS: trusted})
        return statuses, {path: statistics.median(found) for path, found in seconds.items()}

    async def site(self, *, mode: str = "", forget: bool = False) -> list[tuple[str, dict[str, str]]]:
        """What the registries were asked until now; afterwards they behave as *mode* says."""
        address = ADDRESSES[SITE][0]
        url = f"http://{address}:{CONTROL_PORT}/?{f'mode={mode}&' if mode else ''}{'forget=1' if forget else ''}"

        def ask() -> Any:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
                return json.load(answer)

        return [(first, headers) for first, headers in await asyncio.to_thread(ask)]

    async def paths(self) -> list[str]:
        return [first.split(" ")[1] for first, _ in await self.site()]

    def usage(self) -> CacheUsage:
        directory = os.open(self.cache, os.O_RDONLY)
        try:
            return measure_cache(directory)
        finally:
            os.close(directory)

    def handed_over(self) -> list[EgressPackage]:
        """As the lineage has it."""
        return [one.package for one in self.log.requests if one.package is not None]

    def denied(self) -> list[EgressRequest]:
        return [one for one in self.log.requests if one.outcome is not Outcome.ALLOW]


def with_packages(steps: Callable[[Scene], Awaitable[None]], *, who: str = "root", rules: str = ALL) -> None:
    async def whole(world: World) -> None:
        log = Log()
        interception = Interception(trust=ssl.create_default_context(cafile=world.certificates.authority))
        network = load_network(read_document(rules)).for_registries(SETTINGS.all)
        broker = Broker(network, log.journal(), resolve=world.resolve, intercept=interception)
        broker.open(ORIGIN, world.box.arrivals)
        with tempfile.TemporaryDirectory(prefix="cf-packages-", dir="/tmp") as folder:
            os.chmod(folder, 0o777)
            scene = Scene(world, broker, interception, log, folder, [1000.0])
            scene.open_view()
            try:
                await steps(scene)
            finally:
                await broker.close()
                assert interception.packages is not None
                interception.packages.close()

    in_world(who, whole)
