"""In a real box with profile `packages` the plain commands install from the registries of the host's own settings.

Between real clients and the registries of a small world, from which no packet can leave.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterable, Iterator

import pytest

from coldframe.contract.network import NetworkPackage, NetworkRecord
from coldframe.contract.policy import Outcome
from tests.host.egress.packaged import find_program, needs_cc, needs_npm
from tests.host.egress.registries import PORT
from tests.host.egress.world import SITE
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, until
from tests.host.networked import WEB, Networked, on_a_networked_machine, rules

pytestmark = [needs_bubblewrap, pytest.mark.skipif(shutil.which("pip") is None, reason="pip is not installed")]

RULES = "version: 1\nnetwork:\n  use: {'*': packages}\n"


def set_clients() -> None:
    """The settings of the host's clients; this is a process of the test's own."""
    for name in [name for name in os.environ if name.lower().startswith(("pip_", "npm_config_"))]:
        del os.environ[name]
    os.environ["PIP_CONFIG_FILE"] = os.devnull
    os.environ["PIP_INDEX_URL"] = f"https://{SITE}:{PORT}/simple/"
    os.environ["NPM_CONFIG_REGISTRY"] = f"https://{SITE}:{PORT}/npm/"


async def packages(made: Networked) -> list[NetworkPackage]:
    """On record as handed over."""
    return list(packages_of((await made.page()).records))


def packages_of(records: Iterable[NetworkRecord]) -> Iterator[NetworkPackage]:
    for record in records:
        if record.event == "request" and record.contact is not None:
            for request in record.contact.requests:
                if request.package is not None:
                    yield request.package


@pytest.mark.req("T1.59", "T1.06", "T1.77", "T4.18")
@needs_cc
@as_root_and_ordinary
def test_pip_installs_a_wheel_and_a_source_build_that_the_next_command_imports(who: str) -> None:
    async def steps(made: Networked) -> None:
        set_clients()
        await made.host.use_network_rules(RULES)
        await made.box()
        done = await made.run("pip install colddemo coldnative 2>&1")
        assert done.result.exit_code == 0, done.stdout
        done = await made.run("python3 -c 'import colddemo, coldnative; print(colddemo.value, coldnative.answer())'")
        assert done.stdout == "base and demo 42\n", done.stdout
        done = await made.run(
            "find / \\( -name 'colddemo*' -o -name 'coldnative*' \\) -not -path '/proc/*' 2>/dev/null"
        )
        assert all(line.startswith(("/home/user/", "/tmp/")) for line in done.stdout.splitlines()), done.stdout
        found = await packages(made)
        assert {(one.name, one.version) for one in found} == {
            ("colddemo", "1.0"),
            ("coldbase", "1.0"),
            ("coldnative", "2.0"),
        }
        assert all(one.digest.startswith("sha256:") and one.source == "registry" for one in found)

    on_a_networked_machine(steps, who=who)


@pytest.mark.req("T1.58", "T1.06", "T1.77")
@needs_npm
@as_root_and_ordinary
def test_npm_installs_from_the_registry_alone_and_its_install_script_runs(who: str) -> None:
    async def steps(made: Networked) -> None:
        set_clients()
        await made.host.use_network_rules(RULES)
        await made.box()
        done = await made.run("mkdir app && cd app && npm init -y >/dev/null && npm install leftbox 2>&1")
        assert done.result.exit_code == 0, done.stdout
        use = "cd app && cat node_modules/leftbox/POSTINSTALL.txt && node -p \"require('leftbox')\" && ls"
        done = await made.run(use)
        assert done.stdout.splitlines() == ["ranleft of right", "node_modules", "package-lock.json", "package.json"]
        done = await made.run("cd app && rm -r node_modules && npm ci 2>&1 && cat node_modules/leftbox/POSTINSTALL.txt")
        assert done.result.exit_code == 0 and done.stdout.endswith("ran"), done.stdout
        for direct, name in (
            ("https://other.example.com/x.tgz", "other.example.com"),
            ("git+https://ssh.example.com/x.git", "ssh.example.com"),
        ):
            done = await made.run(f"cd app && npm install --fetch-retries=0 {direct} 2>&1")
            assert done.result.exit_code != 0, done.stdout
            records = (await made.page()).records
            assert name in {one.contact.name for one in records if one.contact and one.event == "denied"}
        reached = {one.contact.name for one in records if one.contact and one.contact.outcome is Outcome.ALLOW}
        assert reached == {SITE}

    on_a_networked_machine(steps, who=who)


@pytest.mark.req("T3.04")
@needs_npm
def test_what_an_install_script_reaches_for_is_denied_on_record_and_the_rules_may_keep_it_from_running() -> None:
    async def steps(made: Networked) -> None:
        set_clients()
        await made.host.use_network_rules(RULES)
        await made.box()
        done = await made.run("mkdir app && cd app && npm init -y >/dev/null && npm install badbox leftbox 2>&1")
        assert done.result.exit_code == 0, done.stdout
        records = (await made.contacts_until("denied", 1)).records
        denied = [one.contact for one in records if one.event == "denied" and one.contact is not None]
        assert {one.name for one in denied} == {"other.example.com"} and all(one.sent_bytes == 0 for one in denied)
        await made.host.use_network_rules(RULES + "  packages: {install_scripts: deny}\n")
        await made.box("other", agent="other")
        done = await made.run("mkdir app && cd app && npm init -y >/dev/null && npm install leftbox 2>&1", "other")
        assert done.result.exit_code == 0, done.stdout
        done = await made.run("ls app/node_modules/leftbox; pip install coldnative 2>&1", "other")
        assert "POSTINSTALL.txt" not in done.stdout and "index.js" in done.stdout, done.stdout
        assert "No matching distribution" in done.stdout, done.stdout

    on_a_networked_machine(steps)


@pytest.mark.req("T1.60", "T1.06", "T1.77")
@as_root_and_ordinary
def test_deno_adds_a_package_and_a_test_uses_it_with_the_cache_in_the_workspace(who: str) -> None:
    async def steps(made: Networked) -> None:
        set_clients()
        await made.host.use_network_rules(RULES)
        await made.box()
        test = "import right from 'rightbox'; Deno.test('it', () => { if (right !== 'right') throw right; });"
        begin = f"mkdir d && cd d && echo '{{}}' > deno.json && deno add npm:rightbox && echo \"{test}\" > it_test.ts"
        done = await made.run(f"{begin} && deno test 2>&1")
        assert done.result.exit_code == 0 and "1 passed" in done.stdout, done.stdout
        done = await made.run("find / -name 'rightbox' -not -path '/proc/*' 2>/dev/null")
        assert done.stdout and all(line.startswith("/home/user/") for line in done.stdout.splitlines()), done.stdout

    if find_program("deno") is None:
        pytest.skip("deno is not installed")
    on_a_networked_machine(steps, who=who)


@pytest.mark.req("T4.25")
@as_root_and_ordinary
def test_a_killed_broker_goes_on_with_what_is_kept_and_serves_nothing_half_written(who: str) -> None:
    async def steps(made: Networked) -> None:
        set_clients()
        await made.host.use_network_rules(RULES)
        await made.box()
        done = await made.run("pip download --no-deps -d one coldlarge 2>&1")
        assert done.result.exit_code == 0, done.stdout
        folder = os.path.join(made.folder, "host", "packages")
        with open(os.path.join(folder, "files", "new-half"), "wb") as half:
            half.write(b"half")
        if who == "root":
            os.chown(half.name, os.stat(folder).st_uid, -1)
        link = made.host._ways_out._link  # type: ignore[attr-defined]
        killed = link.pid
        os.kill(killed, signal.SIGKILL)

        async def is_another() -> bool:
            return link.pid not in (None, killed)

        await until(is_another, "another broker", timeout_s=30)
        done = await made.run("pip download --no-deps --no-cache-dir -d two coldlarge 2>&1 && cmp one/*.whl two/*.whl")
        assert done.result.exit_code == 0, done.stdout
        assert not os.path.exists(half.name)
        assert [one.source for one in await packages(made)][-1] == "cache"

    on_a_networked_machine(steps, who=who)


@pytest.mark.req("T3.43")
def test_a_box_can_neither_see_nor_write_what_is_kept() -> None:
    async def steps(made: Networked) -> None:
        set_clients()
        await made.host.use_network_rules(RULES)
        await made.box()
        assert (await made.run("pip install colddemo 2>&1")).result.exit_code == 0
        folder = os.path.join(made.folder, "host", "packages")
        (kept, *_) = os.listdir(os.path.join(folder, "files"))
        done = await made.run(
            f"ls {folder}; find / -name '{kept}' 2>/dev/null; echo x > {folder}/files/{kept}; echo $?"
        )
        assert done.stdout.splitlines()[-1] != "0" and kept not in done.stdout, done.stdout
        status = os.stat(folder)
        assert status.st_mode & 0o777 == 0o700
        put = f"curl -sS -X PUT --data-binary x https://{SITE}:{PORT}/simple/colddemo/colddemo-1.0-py3-none-any.whl"
        done = await made.run(put)
        assert json.loads(done.stdout)["error"]["code"] == "DENIED_BY_RULE", done.stdout
        page = await made.page()
        assert any(
            request.outcome is Outcome.DENY and request.method == "PUT"
            for record in page.records
            if record.contact
            for request in record.contact.requests
        )

    on_a_networked_machine(steps)


def test_boxes_are_told_of_registries_and_of_no_credential() -> None:
    async def steps(made: Networked) -> None:
        set_clients()
        os.environ["PIP_INDEX_URL"] = f"https://user:very-secret@{SITE}:{PORT}/simple/"
        await made.host.use_network_rules(RULES)
        await made.box()
        done = await made.run(
            "env; cat /opt/coldframe/* /etc/pip.conf; pip config list; npm config list 2>/dev/null; pip install colddemo 2>&1"
        )
        assert f"https://{SITE}:{PORT}/simple/" in done.stdout and "very-secret" not in done.stdout, done.stdout
        assert "Successfully installed" in done.stdout, done.stdout

    on_a_networked_machine(steps)


def test_what_a_user_sets_for_pip_in_the_box_goes_before_what_the_box_was_given() -> None:
    own = "printf '[global]\\nindex-url = https://own.example.com/simple/\\n' > .config/pip/pip.conf"

    async def steps(made: Networked) -> None:
        set_clients()
        await made.host.use_network_rules(RULES)
        await made.box()
        for line, index in (
            ("mkdir -p .config/pip", f"https://{SITE}:{PORT}/simple/"),
            (own, "https://own.example.com/"),
        ):
            done = await made.run(f"{line} && pip config list")
            assert f"global.index-url='{index}" in done.stdout, done
        done = await made.run("echo '[global]' > /etc/pip.conf")
        assert done.result.exit_code != 0

    on_a_networked_machine(steps)


def test_without_a_directory_for_them_packages_are_denied_and_all_else_goes_on() -> None:
    async def steps(made: Networked) -> None:
        set_clients()
        with open(os.path.join(made.folder, "host", "packages"), "w"):
            pass  # no directory
        web = WEB.replace("[443, 8443]", "[443]")
        await made.host.use_network_rules(rules(web).replace("own:\n", "own:\n      base: packages\n"))
        await made.box()
        done = await made.run(f"curl -sS https://{SITE}/x; curl -sS https://{SITE}:{PORT}/simple/colddemo/")
        assert "answer to GET /x" in done.stdout and "packages:cache" in done.stdout, done

    on_a_networked_machine(steps)
