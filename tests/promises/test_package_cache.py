"""Packages are kept apart from what is installed: two tenants install from what was fetched once, and what is kept can be thrown
away without harm to either."""

import json
import os
import shutil
from http.client import HTTPConnection

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.host.egress.connect_proxy import USER
from tests.host.egress.registries import CONTROL_PORT, PORT
from tests.host.egress.world import ADDRESSES, FAR, OTHER, PROXY_PORT, SITE
from tests.installation import Installation
from tests.reachable import alone

pytestmark = pytest.mark.skipif(shutil.which("pip") is None, reason="pip is not installed")
RULES = 'version: 1\nnetwork: {use: {"*": packages}}\n'
CLIENTS = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"https://{SITE}:{PORT}/simple/"}
"""Settings of the host's clients, in the environment of `coldframe up`."""
APP = "import sys; sys.path.insert(0, 'site'); import colddemo; print(colddemo.value)\n"
RUN = ["python3", "app.py"]


def installed(client: SyncColdframe, box: SyncSandbox) -> dict[str, str]:
    """Where each file came from that an installation in the box took."""
    box.write_file("app.py", APP)
    done = box.run_command("pip install --no-cache-dir --disable-pip-version-check --target site colddemo 2>&1")
    assert done.exit_code == 0, done.stdout
    receipt = client.receipt(done.command_id.replace("cmd_", "rcp_"))
    taken = {(one["manager"], one["name"], one["version"]) for one in receipt["dependencies"]}
    assert taken == {("pip", "colddemo", "1.0"), ("pip", "coldbase", "1.0")}
    assert all(one["digest"].startswith("sha256:") and one["file"] for one in receipt["dependencies"])
    assert box.run_command(RUN).stdout == "base and demo\n"
    requests = [request for one in box.network_log(limit=1000).contacts for request in one.contact.requests]
    return {one.package.file: one.package.source for one in requests if one.package and one.package.file}


@pytest.mark.req("T3.43", "T4.18")
def test_a_purged_cache_is_fetched_again_and_takes_nothing_from_what_is_installed() -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            with client.sandboxes.create("red") as red, client.sandboxes.create("blue") as blue:
                first = installed(client, red)
                assert {name.split("-")[0] for name in first} == {"colddemo", "coldbase"}
                assert set(first.values()) == {"registry"}
                assert installed(client, blue) == dict.fromkeys(first, "cache")
                purged = installation.cli("--json", "network", "cache", "purge")
                assert json.loads(purged.stdout)["files"] >= len(first), purged.stderr
                assert json.loads(installation.cli("--json", "network", "cache", "show").stdout)["bytes"] == 0
                for box in (red, blue):
                    assert box.run_command(RUN).stdout == "base and demo\n"
                with client.sandboxes.create("green") as green:
                    assert installed(client, green) == first

    alone(steps, **CLIENTS)


def asked_of_the_registry() -> list[str]:
    """What it was asked since this was asked last."""
    peer = HTTPConnection(ADDRESSES[SITE][0], CONTROL_PORT, timeout=30)
    peer.request("GET", "/?forget=1")
    seen = json.loads(peer.getresponse().read())
    peer.close()
    return [first for first, _ in seen]


@pytest.mark.req("T4.20")
def test_a_registry_is_asked_once_for_what_is_installed_however_often_and_whereby_it_is_used() -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            box = client.sandboxes.create("red")
            installed(client, box)
            assert len(asked_of_the_registry()) >= 4, "a listing and a file of each of two packages"
            for number in range(40):
                session = {"shell_session": ("one", "two")[number % 2]} if number % 4 == 3 else {}
                assert box.run_command("python3 app.py", **session).stdout == "base and demo\n"  # type: ignore[arg-type]
            if "memory" in box.report().pause_kinds:
                box.pause()
                box.resume()
                assert box.run_command(RUN).stdout == "base and demo\n"
            box.stop()
            box.start_again()
            with SyncColdframe(installation.url, installation.token) as another:
                assert another.sandboxes.get(box.id).run_command(RUN).stdout == "base and demo\n"
            box.terminate()
            with client.sandboxes.create("red") as again:
                assert again.run_command(RUN).stdout == "base and demo\n"
            assert asked_of_the_registry() == []

    alone(steps, **CLIENTS)


def test_registries_are_asked_by_the_proxy_that_the_environment_names() -> None:
    """Of `coldframe up`, that is: its daemon has no other part of it."""

    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            with client.sandboxes.create("red") as red:
                assert set(installed(client, red).values()) == {"registry"}
        proxy = HTTPConnection(FAR, PROXY_PORT, timeout=30)
        proxy.request("GET", "/")
        assert set(json.loads(proxy.getresponse().read())) == {f"{ADDRESSES[SITE][0]}:{PORT}"}
        proxy.close()

    proxies = {"HTTPS_PROXY": f"http://{USER}@{FAR}:{PROXY_PORT}", "no_proxy": OTHER}  # where the files are
    alone(steps, **proxies, **CLIENTS)
