"""The largest profile: what only a computer can do, the way to it under one id, and packages of the distribution that are missing."""

import hashlib
import os
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import DemotionRefused, NotInProfile
from coldframe.contract.profile import CAPABILITIES
from coldframe.policy.network_rules import PackageKind
from tests.host.test_real_registries import reason_not_to
from tests.installation import Installation
from tests.promises.test_profiles import check_cell

pytestmark = pytest.mark.timeout(900)  # whoever comes first waits for the template to be built
PATIENCE_S = 200
FILES = {"data.csv": b"a,b\n1,2\n", "code/work.py": b"print('worked')\n", "out/chart.bin": bytes(range(256))}
PLACE = "import sys; print(f'.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages')"
NOT_HERE = frozenset({"code_cells", "package_install"})
"""Debian as it is built has neither a kernel nor pip: a recipe brings them."""


@pytest.fixture
def client(installed: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(installed.url, installed.token) as client:
        yield client
        client.policy.load("version: 1\n")


def digests(sandbox: SyncSandbox) -> dict[str, str]:
    return {path: hashlib.sha256(sandbox.read_file(path).data).hexdigest() for path in FILES}


@pytest.mark.req("T4.01")
def test_a_computer_has_all_that_there_is(client: SyncColdframe, installed: Installation) -> None:
    with client.sandboxes.create("all-there-is", profile="computer") as sandbox:
        assert (sandbox.info.spec.profile, sandbox.info.spec.template) == ("computer", "debian")
        left_out = set(NOT_HERE) if has_python(sandbox) else NOT_HERE | {"ports", "preview"}
        if os.stat(installed.data_dir).st_uid != 0:
            left_out = left_out | {"reset"}  # a system of subordinate ids has no part in snapshots, and says so
        for capability in CAPABILITIES.keys() - left_out:
            check_cell(client, sandbox, capability)


def has_python(sandbox: SyncSandbox) -> bool:
    return sandbox.run_command("python3 --version").exit_code == 0


@pytest.mark.req("T4.03")
def test_an_interpreter_becomes_a_workspace_and_that_a_computer_with_the_same_files(client: SyncColdframe) -> None:
    with client.sandboxes.create(profile="interpreter") as sandbox:
        for path, content in FILES.items():
            sandbox.upload(path, content)
        before = digests(sandbox)
        first = sandbox.call("write_file", {"path": "note.txt", "content": "x"}).receipt_id
        assert sandbox.promote("workspace", agent_id="promoted-twice").sandbox_id == sandbox.id
        with pytest.raises(NotInProfile):
            sandbox.run_command("id -u", user="root")
        done = sandbox.promote("computer")
        assert (done.sandbox_id, done.spec.profile, done.agent_id) == (sandbox.id, "computer", "promoted-twice")
        assert done.template_sha256 is not None and done.state.state == "running"
        assert sandbox.run_command("id -u", user="root", timeout_s=PATIENCE_S).stdout == "0\n"
        assert sandbox.run_command("id -un").stdout == "user\n"
        assert digests(sandbox) == before
        last = sandbox.call("write_file", {"path": "note.txt", "content": "y"}).receipt_id
        chain = [client.receipt(last or "")]
        while (previous := chain[-1]["previous_receipt_id"]) is not None:
            chain.append(client.receipt(str(previous)))
        assert first in [one["receipt_id"] for one in chain]
        assert {one["sandbox_id"] for one in chain} == {sandbox.id}
        with pytest.raises(DemotionRefused) as refused:
            sandbox.promote("workspace")
        assert refused.value.facts["missing"] == ["browser", "templates"]
        sandbox.stop()
        sandbox.start_again()
        assert digests(sandbox) == before


@pytest.mark.req("T3.70")
def test_what_is_suggested_for_packages_of_the_distribution_installs_them(client: SyncColdframe) -> None:
    if reason := reason_not_to(PackageKind.DEBIAN):
        pytest.skip(reason)
    client.policy.load("version: 1\nnetwork:\n  use: {'*': packages}\n")
    with client.sandboxes.create("diagnosed", template="debian") as sandbox:
        shell = "hello"
        library = "./needs"
        sandbox.write_file("needs", NEEDS, mode=0o755)
        for command, ecosystem in ((shell, "shell"), (library, "shared_library")):
            failed = sandbox.run_command(command)
            assert failed.exit_code == 127 and failed.diagnosis is not None, failed
            assert failed.diagnosis.ecosystem == ecosystem
            args = failed.diagnosis.suggested_action.args
            assert args["user"] == "root"
            done = sandbox.run_command(args["command"], user="root", timeout_s=PATIENCE_S)
            assert done.exit_code == 0, done
            again = sandbox.run_command(command)
            assert (again.exit_code, again.diagnosis) == (0, None), again


NEEDS = """#!/bin/sh
# what the loader says of a program that was linked against it
ldconfig -p | grep -q libpq.so.5 && exit 0
echo "./needs: error while loading shared libraries: libpq.so.5: cannot open shared object file: No such file or directory" >&2
exit 127
"""
