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


@pytest.mark.req("T3.70", "T4.18")
def test_what_is_suggested_for_packages_of_the_distribution_makes_the_very_command_pass(client: SyncColdframe) -> None:
    """For six of the eight kinds, by nothing but what each failure suggests; the two others are those of npm and pip alone."""
    if reason := reason_not_to(PackageKind.DEBIAN) or reason_not_to(PackageKind.PYTHON):
        pytest.skip(reason)
    client.policy.load("version: 1\nnetwork:\n  use: {'*': packages}\n")
    with client.sandboxes.create("diagnosed", template="debian") as sandbox:
        for name, content in SOURCES.items():
            sandbox.write_file(name, content)
        for ecosystem, command, expected in SUGGESTED:
            assert [one for one, _ in follow(sandbox, command)] == [ecosystem], ecosystem
            if ecosystem == "compiler":
                prepared = sandbox.run_command(STUB)
                assert prepared.exit_code == 0, prepared
            again = sandbox.run_command(command, timeout_s=PATIENCE_S)
            assert (again.exit_code, again.diagnosis) == (0, None), again
            assert expected in (again.stdout or ""), again
        told = sandbox.packages()
        (row,) = [one for one in told.packages if (one.manager, one.name) == ("apt", "hello")]
        assert row.installed is not None and row.in_template is None and row.cached is True, row
        assert row.command_id is not None
        receipt = client.receipt(row.command_id.replace("cmd_", "rcp_"))
        taken = {(one["manager"], one["name"]): one for one in receipt["dependencies"]}
        assert taken["apt", "hello"]["version"] == row.installed, "and with the digest of what was handed over"
        assert taken["apt", "hello"]["digest"].startswith("sha")
        drifted = {one.name for one in told.since_template if one.manager == "apt" and one.before is None}
        assert {"hello", "gcc", "zlib1g-dev", "libyaml-0-2", "chromium"} <= drifted
        met = follow(sandbox, "python3 -c 'import toolz; print(toolz.__name__)'")
        assert met[0] == ("python", "toolz") and set(met[1:]) <= {("python", "pip")}, met


def follow(
    sandbox: SyncSandbox, command: str | list[str], *, user: str = "user", most: int = 6
) -> list[tuple[str, str]]:
    """Do what is suggested until it passes, also when what was suggested fails for want of something itself. What was missing,
    by kind and name."""
    met: list[tuple[str, str]] = []
    while (answer := sandbox.run_command(command, user=user, timeout_s=PATIENCE_S)).exit_code != 0:
        assert answer.diagnosis is not None and len(met) < most, answer
        args = answer.diagnosis.suggested_action.args
        met.append((answer.diagnosis.ecosystem, answer.diagnosis.name))
        met += follow(sandbox, args["command"], user=str(args.get("user", "user")), most=most - 1)
    return met


SOURCES = {
    "plain.c": '#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n',
    "header.c": "#include <stdio.h>\n#include <zlib.h>\nint main(void) { puts(zlibVersion()); return 0; }\n",
    "stub.c": 'const char *yaml_get_version_string(void) { return "stub"; }\n',
    "needs.c": "#include <stdio.h>\nconst char *yaml_get_version_string(void);\n"
    "int main(void) { puts(yaml_get_version_string()); return 0; }\n",
    "page.html": "<p id=p></p><script>document.getElementById('p').textContent = 6 * 7</script>",
}
STUB = (
    "gcc -shared -fPIC -o libyaml-0.so.2 -Wl,-soname,libyaml-0.so.2 stub.c && gcc -o needs needs.c ./libyaml-0.so.2"
    " && rm libyaml-0.so.2"
)
"""Linked against a library of that name which is gone then."""
SUGGESTED: tuple[tuple[str, str, str], ...] = (
    ("shell", "hello", "Hello, world!"),
    ("compiler", "gcc -o plain plain.c && ./plain", "compiled"),
    ("header", "gcc -o header header.c -lz && ./header", "1."),
    ("shared_library", "./needs", "0."),
    ("shell", "chromium --headless --no-sandbox --dump-dom page.html", '<p id="p">42</p>'),
)
"""What is missing, a command, and what it says when nothing is."""
