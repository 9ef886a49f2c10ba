"""Each capability is used once in each profile: it works, or is refused with the profiles that have it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coldframe.client.models import SnapshotInfo
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, NotInProfile
from coldframe.contract.profile import CAPABILITIES, has
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host import interpreter
from tests.previews.visiting import Visitor
from tests.promises.test_diagnoses import wheel

SERVE = "import http.server, sys; http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()"
PROFILES = ("interpreter", "sandbox", "workspace")
"""Those without a system of their own. A `computer` is tried where templates are."""


def taken(sandbox: SyncSandbox) -> SnapshotInfo:
    """Of one that is stopped: not every machine can hold its processes still."""
    sandbox.stop()
    try:
        return sandbox.take_snapshot()
    finally:
        sandbox.start_again()


def code_cells(_: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.run_code("x = 41")
    outcome = sandbox.run_code("print(x + 1)")
    assert outcome.stdout == "42\n"


def shell(_: SyncColdframe, sandbox: SyncSandbox) -> None:
    assert sandbox.run_command("echo one").stdout == "one\n"


def files(_: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.write_file("notes/a.txt", "one")
    assert sandbox.edit_file("notes/a.txt", "one", "two").path == "notes/a.txt"
    assert sandbox.read_file("notes/a.txt").content == "two"
    assert sandbox.search_files("two").matches[0].path == "notes/a.txt"
    assert [one.name for one in sandbox.list_directory("notes").entries] == ["a.txt"]


def package_install(_: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.upload("wheels/tinychart-1.2-py3-none-any.whl", wheel("tinychart", "1.2"))
    line = "python3 -m pip install --no-index --find-links wheels tinychart"
    if sandbox.info.spec.profile == "interpreter":
        sandbox.run_code(f"!{line}")
        return
    if sandbox.run_command("python3 -m pip --version").exit_code != 0:
        pytest.skip("there is no pip on this machine")
    assert sandbox.run_command(line).exit_code == 0
    assert sandbox.run_command(["python3", "-c", "import tinychart; tinychart.main()"]).stdout == "tinychart 1.2\n"


def background_jobs(_: SyncColdframe, sandbox: SyncSandbox) -> None:
    assert sandbox.start("echo later").wait().state == "ended"


def ports(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    shared = client.previews.create(sandbox.id, 8131)
    serving = sandbox.start(["python3", "-c", SERVE, "8131"])
    listens = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8131))' 2>/dev/null; do sleep 0.1; done"
    assert sandbox.run_command(listens, timeout_s=60).exit_code == 0
    assert Visitor(shared).ask().status == 200
    serving.cancel()


def preview(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    made = client.previews.create(sandbox.id, 8132, start=["python3", "-c", SERVE, "8132"], record=False)
    assert Visitor(made).ask().status == 200
    client.previews.stop(made.preview_id)


def snapshots(_: SyncColdframe, sandbox: SyncSandbox) -> None:
    assert taken(sandbox).snapshot_id


def reset(_: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.write_file("spoiled", "x")
    sandbox.reset("empty")
    assert "spoiled" not in [one.name for one in sandbox.list_directory().entries]


def templates(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    profile = sandbox.info.spec.profile
    client.sandboxes.create(spec=like(profile, template="debian")).terminate(discard=True)


def volume(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    name = f"cell-{sandbox.id[-8:]}"
    client.volumes.create(name)
    profile = sandbox.info.spec.profile
    try:
        if profile == "workspace":
            client.volumes.grant(name, f"reads-{name}", "rw")
        with client.sandboxes.create(spec=like(profile, name, volumes=[{"name": name, "mode": "rw"}])) as other:
            assert other.info.spec.volumes[0].name == name
    finally:
        client.volumes.remove(name)


def artifacts(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    with client.sandboxes.create(spec=like(sandbox.info.spec.profile, "artifacts", outputs=["chart.txt"])) as other:
        other.write_file("chart.txt", "x")
        assert [one.path for one in other.outputs().found] == ["chart.txt"]


def evidence(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    result = sandbox.call("write_file", {"path": "b.txt", "content": "x"})
    assert client.receipt(result.receipt_id or "")["sandbox_id"] == sandbox.id


CELLS: dict[str, Callable[[SyncColdframe, SyncSandbox], None]] = {
    one.__name__: one
    for one in (
        *(code_cells, shell, files, package_install, background_jobs, ports, preview, snapshots, reset, templates),
        *(volume, artifacts, evidence),
    )
}


def like(profile: str, name: str = "other", **more: Any) -> SandboxSpec:
    whose = {"agent_id": f"reads-{name}"} if profile in ("workspace", "computer") else {}
    return SandboxSpec.model_validate({"profile": profile, **whose, **more})


@pytest.fixture(scope="module", params=PROFILES)
def cell(request: pytest.FixtureRequest, installation: Any) -> Iterator[tuple[SyncColdframe, SyncSandbox]]:
    with SyncColdframe(installation.url, installation.token) as client:
        spec = like(request.param, "profiles")
        with client.sandboxes.create(spec=spec) as sandbox:
            assert sandbox.info.spec.profile == request.param
            yield client, sandbox


@pytest.mark.req("T4.01")
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_capability_works_in_a_profile_or_is_refused_with_those_that_have_it(
    cell: tuple[SyncColdframe, SyncSandbox], capability: str
) -> None:
    client, sandbox = cell
    check_cell(client, sandbox, capability)


def check_cell(client: SyncColdframe, sandbox: SyncSandbox, capability: str) -> None:
    profile = sandbox.info.spec.profile
    if not CAPABILITIES[capability].exists:
        assert capability not in CELLS, "what there is, is tried"
        told = {one.id: one for one in sandbox.describe().can}[f"can.{capability}"]
        assert not told.value["has"] and "in no profile of this version" in told.text
        return
    if capability == "code_cells" and interpreter.listing() is None:
        pytest.skip("no packages for code cells: run `coldframe code install`")
    if has(profile, capability):
        CELLS[capability](client, sandbox)
        return
    with pytest.raises(ColdframeError) as refused:
        CELLS[capability](client, sandbox)
    error = refused.value
    assert isinstance(error, NotInProfile), error
    code = "INSTALL_NOT_IN_PROFILE" if capability == "package_install" else "NOT_IN_PROFILE"
    assert (error.code, error.facts["profiles"]) == (code, list(CAPABILITIES[capability].profiles))
    assert error.next_actions[0]["op"] == "sandbox.promote"
