"""Plain package clients install through the broker's view of registries, and nothing of them or of the box goes further."""

import asyncio
import json
import os
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress.broker import Broker
from coldframe.host.egress.contact import EgressPackage, EgressRequest
from coldframe.host.egress.intercept import Interception
from coldframe.host.egress.packages import download, fetch
from coldframe.host.egress.packages import view as view_of_packages
from coldframe.host.egress.packages.cache import CacheUsage, PackageCache, measure_cache, open_cache, purge_cache
from coldframe.host.egress.packages.view import PackageView
from coldframe.host.egress.requests import read_head
from coldframe.host.package_clients import client_environment, client_files
from coldframe.host.registries import RegistryCredential, RegistrySettings
from coldframe.policy.document import read_document
from coldframe.policy.network_rules import PackageKind, Registry, Scheme
from coldframe.policy.network_section import load_network
from tests.host.egress.registries import CONTROL_PORT, PORT, SECRET
from tests.host.egress.test_broker import ORIGIN, Log
from tests.host.egress.world import ADDRESSES, RESOLVER, SITE, World, in_world
from tests.host.machines import as_root_and_ordinary

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
        return os.path.join(self.folder, os.path.basename(path)) if path.startswith("/opt/coldframe/") else path

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


# -- plain clients ---------------------------------------------------------------------------------


@as_root_and_ordinary
def test_pip_installs_a_wheel_and_what_it_needs_and_both_are_on_record(who: str) -> None:
    async def steps(scene: Scene) -> None:
        code, said = await scene.run(f"{PIP} colddemo && {DEMO}")
        assert code == 0 and "base and demo" in said, said
        files = {one.file: one for one in scene.handed_over()}
        assert {"colddemo-1.0-py3-none-any.whl", "coldbase-1.0-py3-none-any.whl"} <= files.keys()
        one = files["colddemo-1.0-py3-none-any.whl"]
        assert (one.kind, one.name, one.version, one.source) == ("python", "colddemo", "1.0", "registry")
        assert one.digest.startswith("sha256:") and len(one.digest) == 71
        assert {contact.name for contact in await scene.log.of(1)} == {SITE}
        asked = await scene.site()
        for first, headers in asked:
            assert first.startswith("GET ") and "?" not in first
            own = {"authorization"} if first.startswith("GET /private/") else set()
            assert headers.keys() <= {"host", "accept", "accept-encoding", "user-agent", "if-none-match"} | own, headers
            assert headers["user-agent"] == "coldframe"

    with_packages(steps, who=who)


@needs_cc
def test_pip_builds_a_source_distribution_with_native_code() -> None:
    async def steps(scene: Scene) -> None:
        check = "python3 -c 'import sys; sys.path.insert(0, \"site\"); import coldnative; print(coldnative.answer())'"
        code, said = await scene.run(f"/usr/bin/{PIP} coldnative && /usr/bin/{check}")
        assert code == 0 and said.endswith("42\n"), said
        assert [one.file for one in scene.handed_over()] == ["coldnative-2.0.tar.gz"]

    with_packages(steps)


@needs_npm
@as_root_and_ordinary
def test_npm_installs_a_tree_with_an_install_script_and_again_from_its_lock_file(who: str) -> None:
    async def steps(scene: Scene) -> None:
        use = "node -e \"console.log(require('leftbox'))\" && cat node_modules/leftbox/POSTINSTALL.txt"
        begin = "mkdir app && cd app && npm init -y > /dev/null"
        code, said = await scene.run(f"{begin} && npm install leftbox @cold/inner && {use}")
        assert code == 0 and said.endswith("left of right\nran"), said
        lock = json.loads((Path(scene.folder) / "home/app/package-lock.json").read_text())
        for name, one in lock["packages"].items():
            if name:
                package = name.removeprefix("node_modules/")
                assert one["resolved"].startswith(f"https://{SITE}:{PORT}/npm/{package}/-/")
                assert one["integrity"].startswith("sha512-")
        versions = {(one.name, one.version) for one in scene.handed_over()}
        assert versions == {("leftbox", "1.0.0"), ("rightbox", "2.1.0"), ("@cold/inner", "0.1.0")}
        await scene.site(forget=True)
        again = f"cd app && rm -rf node_modules ~/.npm && npm ci && {use}"
        code, said = await scene.run(again)
        assert code == 0 and said.endswith("left of right\nran"), said
        assert await scene.paths() == []
        assert {one.source for one in scene.handed_over()[-3:]} == {"cache"}

    with_packages(steps, who=who)


@pytest.mark.req("T4.25")
@needs_npm
def test_a_lock_file_holds_against_a_registry_that_says_otherwise() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.run("mkdir app && cd app && npm init -y && npm install rightbox"))[0] == 0
        path = Path(scene.folder) / "home/app/package-lock.json"
        lock = json.loads(path.read_text())
        lock["packages"]["node_modules/rightbox"]["integrity"] = "sha512-" + "A" * 86 + "=="
        path.write_text(json.dumps(lock))
        code, said = await scene.run("cd app && rm -rf node_modules ~/.npm && npm ci")
        assert code != 0 and "EINTEGRITY" in said, said

    with_packages(steps)


def test_deno_adds_a_package_and_uses_it() -> None:
    async def steps(scene: Scene) -> None:
        use = "echo 'import left from \"rightbox\"; console.log(left)' > main.ts && deno run -A main.ts"
        code, said = await scene.run(f"mkdir d && cd d && echo '{{}}' > deno.json && deno add npm:rightbox && {use}")
        assert code == 0 and said.endswith("right\n"), said
        assert [one.file for one in scene.handed_over()] == ["rightbox-2.1.0.tgz"]

    if find_program("deno") is None:
        pytest.skip("deno is not installed")
    with_packages(steps)


# -- what does not pass ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/simple/colddemo/?secret=1"),
        ("GET", "/simple/colddemo/x/y"),
        ("GET", "/simple/"),
        ("GET", "/simple/not%20a%20name/"),
        ("GET", "/npm/-/v1/search"),
        ("GET", "/npm/-/npm/v1/security/advisories/bulk"),
        ("GET", "/elsewhere"),
        ("POST", "/npm/-/npm/v1/security/audits"),
        ("PUT", "/npm/leftbox"),
        ("DELETE", "/simple/colddemo/colddemo-1.0-py3-none-any.whl"),
    ],
)
def test_what_is_no_package_is_refused_on_record_and_asked_of_nobody(method: str, path: str) -> None:
    async def steps(scene: Scene) -> None:
        status, _, body = await scene.ask(path, method=method)
        assert status in (403, 404, 405) and b"DENIED_BY_RULE" in body, (status, body)
        assert await scene.paths() == []
        (denied,) = scene.denied()
        assert denied.rule_id.startswith(("packages:", "network:"))

    with_packages(steps)


def test_nothing_that_a_client_says_about_itself_goes_to_the_registry() -> None:
    async def steps(scene: Scene) -> None:
        status, *_ = await scene.ask(
            "/simple/colddemo/",
            cookie="session=1",
            authorization="Bearer of-the-box",
            user_agent="pip/1 {my secret}",
            referer="https://inner.example.com/",
            x_token="secret",
            accept_language="de",
            accept="*/*; secret=1",
        )
        assert status == 200
        ((_, headers),) = await scene.site()
        assert "secret" not in json.dumps(headers) and headers.keys() == {
            "host",
            "accept",
            "accept-encoding",
            "user-agent",
        }

    with_packages(steps)


def test_a_session_above_public_asks_for_no_package_unless_a_rule_clears_the_registry() -> None:
    cleared = f"{{id: mirror, to: {SITE}, ports: [{PORT}], methods: [GET, HEAD], paths: [/simple/], label: INTERNAL}}"
    rules = f"profiles: {{own: {{base: packages, rules: [{cleared}]}}}}\nuse: {{'*': own}}\n"

    async def steps(scene: Scene) -> None:
        scene.broker.raise_taint(ORIGIN.sandbox_id, Label.INTERNAL)
        assert (await scene.ask("/simple/colddemo/"))[0] == 200
        status, _, body = await scene.ask("/npm/rightbox")
        assert status == 403 and "cleared for PUBLIC" in json.loads(body)["error"]
        assert await scene.paths() == ["/simple/colddemo/"]
        scene.broker.raise_taint(ORIGIN.sandbox_id, Label.CONFIDENTIAL)
        code, said = await scene.run(f"{PIP} colddemo")
        assert code != 0 and "code=DENIED_BY_RULE; rule=floor:write-down" in said, said

    with_packages(steps, rules=rules)


def test_pip_is_told_which_rule_denies_a_package_whatever_the_rule_is_called() -> None:
    deny = f"{{id: keine größe, to: {SITE}, paths: [/simple/colddemo], then: deny}}"

    async def steps(scene: Scene) -> None:
        _, said = await scene.run(f"{PIP} colddemo")
        assert "rule=keine%20gr%C3%B6%C3%9Fe" in said, said
        status, _, body = await scene.ask("/simple/colddemo/")
        assert status == 403 and json.loads(body)["error"]["rule"] == "keine größe"

    with_packages(steps, rules=f"profiles: {{own: {{base: packages, rules: [{deny}]}}}}\nuse: {{'*': own}}\n")


# -- credentials -----------------------------------------------------------------------------------


def test_a_credential_of_the_host_goes_to_its_registry_alone_and_is_not_seen_in_the_box() -> None:
    async def steps(scene: Scene) -> None:
        name = "/private/simple/coldprivate/coldprivate-1.0-py3-none-any.whl"
        status, _, body = await scene.ask(name)
        assert status == 200 and body.startswith(b"PK")
        shown = [(first.split(" ")[1], headers.get("authorization")) for first, headers in await scene.site()]
        assert shown == [
            ("/private/simple/coldprivate/", SECRET),
            ("/files/coldprivate/coldprivate-1.0-py3-none-any.whl", None),
        ]
        code, said = await scene.run("env; cat ../pip.conf ../npmrc")
        assert code == 0 and "of-the-host" not in said

    with_packages(steps)


@pytest.mark.req("T3.43")
def test_what_one_credential_fetched_is_told_to_nobody_without_it() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.ask("/private/simple/coldprivate/"))[0] == 200
        scene.open_view(settings=SETTINGS._replace(credentials=()))
        status, _, body = await scene.ask("/private/simple/coldprivate/")
        assert status == 404 and b"NOT_FOUND" in body
        status, _, body = await scene.ask("/private/simple/coldprivate/coldprivate-1.0-py3-none-any.whl")
        assert status == 404

    with_packages(steps)


@pytest.mark.req("T3.43")
def test_a_box_that_may_not_have_a_private_package_is_told_the_same_whether_it_is_kept_or_not() -> None:
    deny = f"{{id: not-theirs, to: {SITE}, paths: [/private/simple/coldprivate], then: deny}}"
    rules = f"profiles: {{own: {{base: packages, rules: [{deny}]}}}}\nuse: {{'*': own}}\n"

    async def steps(scene: Scene) -> None:
        before = await scene.ask("/private/simple/coldprivate/")
        assert before[0] == 403
        view = scene.interception.packages
        assert view is not None
        head = read_head(b"GET /private/simple/coldprivate/ HTTP/1.1\r\nHost: x.example.com\r\n\r\n")
        (await view.answer(PRIVATE, head, box="another")).close()
        asked = await scene.paths()
        assert await scene.ask("/private/simple/coldprivate/") == before
        assert await scene.paths() == asked

    with_packages(steps, rules=rules)


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.req("T4.25")
def test_with_the_registry_down_a_second_installation_works_from_what_is_kept_and_that_is_on_record() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.run(f"{PIP} colddemo"))[0] == 0
        await scene.site(mode="down")
        scene.clock[0] += 3600
        code, said = await scene.run(f"{PIP} colddemo && {DEMO}", home="other")
        assert code == 0 and "base and demo" in said, said
        assert {one.source for one in scene.handed_over()[-4:]} == {"stale", "cache"}

    with_packages(steps)


@pytest.mark.req("T4.25")
@pytest.mark.parametrize("mode", ["down", "silent"])
def test_what_is_not_kept_of_a_registry_that_is_down_is_said_to_be_unreachable(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2 * fetch.HEAD_S < 30  # in which it has to be said, for a listing and a file
    monkeypatch.setattr(fetch, "HEAD_S", 1.0)

    async def steps(scene: Scene) -> None:
        await scene.site(mode=mode)
        status, reason, body = await scene.ask("/simple/colddemo/")
        assert (status, reason) == (424, "REGISTRY_UNREACHABLE")
        assert (
            json.loads(body)["error"]["code"] == "REGISTRY_UNREACHABLE" and SITE in json.loads(body)["error"]["message"]
        )
        assert [one.reason.partition(":")[0] for one in scene.log.requests][-1] == "REGISTRY_UNREACHABLE"
        count = len(await scene.paths())
        assert (await scene.ask("/simple/coldbase/"))[0] == 424
        assert len(await scene.paths()) == count  # it rests meanwhile
        code, said = await scene.run(f"{PIP} coldbase")
        assert code != 0 and "REGISTRY_UNREACHABLE" in said, said

    with_packages(steps)


@needs_npm
def test_npm_says_that_the_registry_is_unreachable() -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode="down")
        code, said = await scene.run("npm init -y > /dev/null; npm install leftbox")
        assert code != 0 and "REGISTRY_UNREACHABLE" in said, said

    with_packages(steps)


@pytest.mark.req("T4.25", "T3.43")
def test_bytes_that_are_not_those_that_were_published_are_refused_and_that_is_on_record() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.ask("/simple/coldbase/"))[0] == 200
        await scene.site(mode="changed")
        status, _, body = await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl")
        assert (status, json.loads(body)["error"]["code"]) == (403, "PACKAGE_CHANGED")
        denied = scene.denied()
        assert [one.rule_id for one in denied] == ["packages:digest"]
        scene.clock[0] += 3600  # the registry says another digest now, which is not followed
        status, *_ = await scene.ask("/simple/coldbase/")
        assert status == 200
        status, _, body = await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl")
        assert status == 403 and b"PACKAGE_CHANGED" in body
        await scene.site(mode="well")
        assert (await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl"))[0] == 200

    with_packages(steps)


def test_the_first_digest_holds_for_both_forms_in_which_npm_tells_of_a_package() -> None:
    async def steps(scene: Scene) -> None:
        short = {"accept": "application/vnd.npm.install-v1+json"}
        first = json.loads((await scene.ask("/npm/rightbox", **short))[2])["versions"]["2.1.0"]["dist"]["integrity"]
        await scene.site(mode="changed")
        whole = json.loads((await scene.ask("/npm/rightbox"))[2])["versions"]["2.1.0"]["dist"]["integrity"]
        assert whole == first
        assert (await scene.ask("/npm/rightbox/-/rightbox-2.1.0.tgz"))[0] == 403

    with_packages(steps)


def test_where_a_registry_publishes_no_digest_the_first_bytes_hold() -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode="undigested")
        name = "/simple/coldbase/coldbase-1.0-py3-none-any.whl"
        status, _, first = await scene.ask(name)
        assert status == 200
        listing = (await scene.ask("/simple/coldbase/"))[2].decode()
        assert "#sha256=" in listing
        for entry in os.scandir(os.path.join(scene.cache, "files")):
            os.unlink(entry)
        await scene.site(mode="changed")
        assert (await scene.ask(name))[0] == 403
        await scene.site(mode="undigested")
        assert (await scene.ask(name))[2] == first

    with_packages(steps)


@pytest.mark.req("T4.25")
def test_a_file_that_breaks_off_never_looks_whole_and_is_not_kept() -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode="half")
        name = "/simple/coldlarge/coldlarge-1.0-py3-none-any.whl"
        status, _, body = await scene.ask(name)
        assert status == 424 and b"REGISTRY_UNREACHABLE" in body
        assert scene.usage().files == 0
        await scene.site(mode="well")
        assert (await scene.ask(name))[0] == 200

    with_packages(steps)


@pytest.mark.req("T4.25")
def test_a_slow_registry_is_seen_to_get_on_and_stops_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SHOWN_AT_S", 0.3)

    async def steps(scene: Scene) -> None:
        await scene.site(mode="slow")
        name = f"https://{SITE}:{PORT}/simple/coldlarge/coldlarge-1.0-py3-none-any.whl"
        fetch = f"import urllib.request; a = urllib.request.urlopen('{name}'); print(len(a.read(2048)), a.length > 0)"
        code, said = await scene.run(f"python3 -c {shlex.quote(fetch)}")
        assert (code, said) == (0, "2048 True\n")
        (contact,) = await scene.log.of(1)
        assert 2048 <= contact.received_bytes < 1 << 20
        view = scene.interception.packages
        assert view is not None
        while view._downloads:  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0.01)
        assert not [name for name in os.listdir(scene.cache) if name.startswith("new-")]

    with_packages(steps)


@pytest.mark.req("T4.25")
def test_twenty_at_once_are_one_question_and_twenty_right_answers() -> None:
    async def steps(scene: Scene) -> None:
        name = f"https://{SITE}:{PORT}/simple/coldlarge/coldlarge-1.0-py3-none-any.whl"
        fetch = (
            "import concurrent.futures as c, hashlib, urllib.request as u\n"
            f"def one(_): return hashlib.sha256(u.urlopen('{name}').read()).hexdigest()\n"
            "with c.ThreadPoolExecutor(20) as pool: found = list(pool.map(one, range(20)))\n"
            "print(len(found), len(set(found)))"
        )
        code, said = await scene.run(f"python3 -c {shlex.quote(fetch)}")
        assert (code, said) == (0, "20 1\n")
        assert sorted(await scene.paths()) == [
            "/files/coldlarge/coldlarge-1.0-py3-none-any.whl",
            "/simple/coldlarge/",
        ]

    with_packages(steps)


def test_what_is_kept_and_was_damaged_is_fetched_again() -> None:
    async def steps(scene: Scene) -> None:
        name = "/simple/coldbase/coldbase-1.0-py3-none-any.whl"
        _, _, first = await scene.ask(name)
        (kept,) = os.scandir(os.path.join(scene.cache, "files"))
        Path(kept.path).write_bytes(first[: len(first) // 2])
        status, _, again = await scene.ask(name)
        assert (status, again) == (200, first)
        assert scene.handed_over()[-1].source == "registry"

    with_packages(steps)


@pytest.mark.req("T3.43")
def test_a_purged_cache_is_fetched_again_and_what_is_installed_stays() -> None:
    async def steps(scene: Scene) -> None:
        assert (await scene.run(f"{PIP} colddemo"))[0] == 0
        directory = os.open(scene.cache, os.O_RDONLY)
        assert purge_cache(directory).files >= 2
        os.close(directory)
        assert scene.usage().bytes == 0
        assert (await scene.run(DEMO))[0] == 0
        await scene.site(forget=True)
        assert (await scene.run(f"{PIP} colddemo", home="other"))[0] == 0
        assert len(await scene.paths()) >= 4

    with_packages(steps)


@pytest.mark.parametrize("mode", ["loop", "inward", "plain", "address", "bomb"])
def test_a_registry_that_leads_elsewhere_or_grows_without_end_is_no_registry(mode: str) -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode=mode)
        status, _, body = await scene.ask("/simple/colddemo/")
        assert status == 424 and b"REGISTRY_UNREACHABLE" in body, body
        assert scene.usage() == CacheUsage(0, 0, 0)

    with_packages(steps)


def test_a_change_of_the_rules_ends_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SHOWN_AT_S", 0.1)

    async def steps(scene: Scene) -> None:
        await scene.site(mode="slow")
        name = f"https://{SITE}:{PORT}/simple/coldlarge/coldlarge-1.0-py3-none-any.whl"
        fetch = f"import urllib.request as u; a = u.urlopen('{name}'); open('begun', 'w'); print(len(a.read()))"
        running = asyncio.ensure_future(scene.run(f"python3 -c {shlex.quote(fetch)} 2>&1"))
        while not (Path(scene.folder) / "home/begun").exists():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        scene.broker.raise_taint(ORIGIN.sandbox_id, Label.CONFIDENTIAL)
        code, said = await running
        assert code != 0, said
        (contact,) = await scene.log.of(1)
        assert (contact.rule_id, contact.outcome) == ("floor:write-down", Outcome.DENY)
        view = scene.interception.packages
        assert view is not None
        while view._downloads:  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0.01)

    with_packages(steps)


@pytest.mark.parametrize("mode", ["html", "redirect"])
def test_listings_in_html_and_redirects_are_followed(mode: str) -> None:
    async def steps(scene: Scene) -> None:
        await scene.site(mode=mode)
        code, said = await scene.run(f"{PIP} colddemo && {DEMO}")
        assert code == 0 and "base and demo" in said, said

    with_packages(steps)


def test_a_listing_is_fresh_for_a_while_and_then_asked_for_by_its_tag() -> None:
    async def steps(scene: Scene) -> None:
        for _ in range(3):
            assert (await scene.ask("/simple/colddemo/"))[0] == 200
        scene.clock[0] += view_of_packages.FRESH_S + 1
        assert (await scene.ask("/simple/colddemo/"))[0] == 200
        tags = [headers.get("if-none-match") for _, headers in await scene.site()]
        assert len(tags) == 2 and tags[0] is None and tags[1] is not None

    with_packages(steps)


def test_a_program_asks_whether_its_own_copy_holds() -> None:
    async def steps(scene: Scene) -> None:
        script = (
            "import urllib.request as u, urllib.error as e\n"
            f"a = u.urlopen('https://{SITE}:{PORT}/npm/rightbox'); tag = a.headers['etag']\n"
            f"r = u.Request('https://{SITE}:{PORT}/npm/rightbox', headers={{'If-None-Match': tag}})\n"
            "try: u.urlopen(r)\n"
            "except e.HTTPError as error: print(error.code)"
        )
        assert await scene.run(f"python3 -c {shlex.quote(script)}") == (0, "304\n")
        status, _, body = await scene.ask("/npm/rightbox", method="HEAD")
        assert (status, body) == (200, b"")
        assert json.loads((await scene.ask("/npm/rightbox/latest"))[2])["version"] == "2.1.0"
        assert (await scene.ask("/npm/rightbox/9.9.9"))[0] == 404

    with_packages(steps)


def test_room_is_made_for_what_is_new() -> None:
    async def steps(scene: Scene) -> None:
        scene.open_view(most_bytes=1 << 20)
        await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl")
        await scene.ask("/simple/coldlarge/coldlarge-1.0-py3-none-any.whl")
        assert scene.usage().bytes <= 1 << 20
        assert (await scene.ask("/simple/coldbase/coldbase-1.0-py3-none-any.whl"))[0] == 200

    with_packages(steps)
