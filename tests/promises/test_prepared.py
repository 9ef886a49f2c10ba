"""What was installed once is there for every later command, whatever happens to the sandbox in between."""

import base64
import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation
from tests.promises.test_package_cache import CLIENTS, RULES, asked_of_the_registry, installed
from tests.reachable import alone

NAME = "leftbox"


def wheel() -> str:
    """A package that any pip installs, without a registry."""
    content, folder = io.BytesIO(), f"{NAME}-1.0.dist-info"
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr(f"{NAME}.py", "value = 41 + 1\n")
        packed.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        packed.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{folder}/RECORD", "")
    return base64.b64encode(content.getvalue()).decode()


def works(sandbox: SyncSandbox, **how: str) -> None:
    answer = sandbox.run_command("tool", **how)  # type: ignore[arg-type]
    assert (answer.exit_code, answer.stdout) == (0, "42 9\n"), answer


@pytest.mark.req("T4.20", "T4.24", "T4.19")
def test_what_was_installed_once_is_there_for_every_command_session_and_client(
    installation: Installation, client: SyncColdframe, agent_id: str, tmp_path: Path
) -> None:
    sandbox = client.sandboxes.create(agent_id)
    packed = f"{NAME}-1.0-py3-none-any.whl"
    sandbox.run_command(["sh", "-c", f"base64 -d > {packed}"], stdin=wheel())
    if sandbox.run_command("python3 -m pip --version").exit_code != 0:
        sandbox.terminate()
        pytest.skip("there is no pip on this machine")
    before = sandbox.run_command("python3 -m venv --without-pip .venv")
    assert before.exit_code == 0, before
    installed = sandbox.run_command(
        f"python3 -m pip --python .venv/bin/python install -q --no-index --no-deps --disable-pip-version-check ./{packed}"
    )
    assert installed.exit_code == 0, installed
    tool = f"#!/bin/sh\nexec /home/user/.venv/bin/python -c 'import {NAME}; print({NAME}.value, open(\"/home/user/.cache/warm\").read())'\n"
    sandbox.write_file(".local/bin/tool", tool)
    assert sandbox.run_command("chmod +x .local/bin/tool && mkdir -p .cache && printf 9 > .cache/warm").exit_code == 0
    if ".local/bin" not in (sandbox.run_command("echo $PATH").stdout or ""):
        path = "export PATH=$HOME/.local/bin:$PATH"
        sandbox.run_command(path, shell_session="one")
        sandbox.run_command(path, shell_session="two")
        sandbox.terminate()
        pytest.skip("commands have no folder of the workspace on their PATH")
    (row,) = [one for one in sandbox.packages().packages if one.name == NAME]
    assert (row.manager, row.installed, row.command_id) == ("pip", "1.0", installed.command_id)
    lock = tmp_path / "requirements.txt"
    for version, difference in (("1.0", False), ("1.1", True)):
        lock.write_text(f"# made by hand\n{NAME}=={version} \\\n    --hash=sha256:{'0' * 64}\n")
        compared = installation.cli("--json", "env", "compare", str(lock), sandbox.id)
        line = {"manager": "pip", "name": NAME, "locked": version, "installed": "1.0"}
        assert (compared.returncode, json.loads(compared.stdout)) == (int(difference), [line] if difference else [])
    for number in range(200):
        works(sandbox, **({"shell_session": ("one", "two")[number % 2]} if number % 4 == 3 else {}))
    if "memory" in sandbox.report().pause_kinds:
        sandbox.pause()
        sandbox.resume()
        works(sandbox)
    sandbox.stop()
    sandbox.start_again()
    works(sandbox)
    with SyncColdframe(installation.url, installation.token) as another:
        works(another.sandboxes.get(sandbox.id))
    sandbox.terminate()
    with client.sandboxes.create(agent_id) as again:
        works(again)
    asked = sandbox.network_log(limit=10).contacts
    assert [one for one in asked if one.contact.requests] == []


STARTS = 20
APPLICATION_TEST = """
import sys
sys.path.insert(0, "site")
import colddemo, unittest
class Works(unittest.TestCase):
    def test_value(self):
        self.assertEqual(colddemo.value, "base and demo")
unittest.main()
"""
PACKAGES = "pip list --disable-pip-version-check --path site --format freeze; find site -type f ! -name '*.pyc' -exec sha256sum {} + | sort -k 2"


@pytest.mark.skipif(shutil.which("pip") is None, reason="pip is not installed")
@pytest.mark.req("T4.21")
def test_an_application_is_ready_to_test_from_a_snapshot_without_a_registry_and_always_with_the_same_packages() -> None:
    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            with client.sandboxes.create("first") as first:
                installed(client, first)
                first.write_file("test_app.py", APPLICATION_TEST)
                packages = first.run_command(PACKAGES).stdout
                assert packages is not None and "colddemo==" in packages and "coldbase==" in packages
                ready = first.take_snapshot("ready to test")
            assert asked_of_the_registry() != []
            seen = []
            for number in range(STARTS):
                with client.sandboxes.create(background=True, snapshot=ready.snapshot_id) as start:
                    tested = start.run_command("python3 test_app.py")
                    assert tested.exit_code == 0, (number, tested)
                    seen.append(start.run_command(PACKAGES).stdout)
                    assert not any(one.contact.requests for one in start.network_log(limit=10).contacts)
            assert seen == [packages] * STARTS
            assert asked_of_the_registry() == []

    alone(steps, **CLIENTS)
