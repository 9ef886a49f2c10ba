"""A preview is made again on another sandbox from what is on record of it, and from nothing that is only similar."""

import shutil
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from coldframe.client.models import PreviewCreated
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import (
    CredentialMissing,
    GrantMissing,
    InputChanged,
    InputMissing,
    InvalidArgument,
    PreviewProcessExited,
    WrongState,
)
from coldframe.contract.policy import Role
from tests.host.egress.registries import CONTROL_PORT, PORT
from tests.host.egress.world import ADDRESSES, SITE
from tests.installation import Installation, wait_until
from tests.previews.visiting import APP, Visitor, sha256
from tests.reachable import alone

pytestmark = pytest.mark.req("T3.48")
PAGE = b"<!doctype html><p>Total: 120.00</p>"
START = "exec python3 -m http.server 8000 --bind 127.0.0.1 --directory dist"
NODE_SERVER = """
const box = require("leftbox")
require("http").createServer((_, answer) => answer.end(box)).listen(8000, "127.0.0.1")
"""
SETUP = "mkdir dist && cp page dist/index.html"


@pytest.fixture(autouse=True)
def needs_snapshots(still: SyncSandbox) -> None:
    """Of sandboxes that run."""


@pytest.fixture
def preview(client: SyncColdframe, sandbox: SyncSandbox) -> Iterator[PreviewCreated]:
    sandbox.write_file("page", PAGE.decode())
    sandbox.write_file("package-lock.json", '{"lockfileVersion": 3}')
    made = client.previews.create(sandbox.id, 8000, start=START, setup=[SETUP])
    yield made
    for one in client.sandboxes.list():
        if one.id == client.previews.get(made.preview_id).sandbox_id != sandbox.id:
            one.terminate(discard=True)


def test_it_answers_the_same_bytes_at_the_same_address_from_another_sandbox(
    client: SyncColdframe, sandbox: SyncSandbox, preview: PreviewCreated
) -> None:
    visitor = Visitor(preview)
    assert preview.inputs is not None
    assert preview.inputs.setup == (SETUP,)
    assert [(one.path, one.sha256) for one in preview.inputs.files] == [
        ("package-lock.json", sha256(b'{"lockfileVersion": 3}'))
    ]
    assert preview.inputs.body_sha256 == sha256(PAGE)
    sandbox.run_command("rm -rf dist page; echo changed > page")
    sandbox.terminate(discard=True)
    assert visitor.ask("/").json["error"]["code"] == "PREVIEW_ENDED"
    rebuilt = client.previews.rebuild(preview.preview_id)
    assert rebuilt.sandbox_id != sandbox.id
    assert rebuilt.url == preview.url
    assert (rebuilt.body_same, rebuilt.body_sha256) == (True, sha256(PAGE))
    answer = visitor.ask("/")
    assert (answer.status, answer.body) == (200, PAGE)
    kinds = [one.kind for one in client.ledger.entries(subject=preview.preview_id, limit=1000)]
    assert [one for one in kinds if "rebuil" in one] == ["preview.rebuild_started", "preview.rebuilt"]


def test_a_snapshot_that_is_gone_is_named_and_the_old_one_goes_on(
    client: SyncColdframe, sandbox: SyncSandbox, preview: PreviewCreated
) -> None:
    assert preview.inputs is not None
    client.snapshots.remove(preview.inputs.snapshot_id)
    before = {one.id for one in client.sandboxes.list()}
    with pytest.raises(InputMissing) as caught:
        client.previews.rebuild(preview.preview_id)
    assert caught.value.facts["input"] == "snapshot"
    assert {one.id for one in client.sandboxes.list()} == before
    assert Visitor(preview).ask("/").body == PAGE
    failed = client.ledger.entries(kinds=["preview.rebuild_failed"], subject=preview.preview_id)
    assert [(one.body["code"], one.body["input"]) for one in failed] == [("INPUT_MISSING", "snapshot")]


def test_the_value_of_a_variable_is_not_kept_and_has_to_be_given_again(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    sandbox.write_file("app.py", APP)
    line = 'test "${#KEY}" = 6 && exec python3 app.py 127.0.0.1 8000'
    preview = client.previews.create(sandbox.id, 8000, start=line, env={"KEY": "sesame"})
    assert preview.inputs is not None
    assert preview.inputs.environment == ("KEY",)
    assert "sesame" not in client.previews.get(preview.preview_id).model_dump_json()
    with pytest.raises(CredentialMissing) as caught:
        client.previews.rebuild(preview.preview_id)
    assert caught.value.facts["name"] == "KEY"
    before = {one.id for one in client.sandboxes.list()}
    with pytest.raises(PreviewProcessExited):
        client.previews.rebuild(preview.preview_id, env={"KEY": "another"})
    assert {one.id for one in client.sandboxes.list() if one.info.state.state == "running"} <= before
    rebuilt = client.previews.rebuild(preview.preview_id, env={"KEY": "sesame"})
    assert Visitor(rebuilt, preview.token).ask("/echo").status == 200
    client.sandboxes.get(rebuilt.sandbox_id).terminate(discard=True)


def test_a_step_that_fails_now_leaves_the_address_where_it_was(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.write_file("app.py", APP)
    once = "test ! -e /tmp/never && mkdir -p d && test $(ls -d /home/user/d) && test -e app.py"
    preview = client.previews.create(
        sandbox.id, 8000, start="exec python3 app.py 127.0.0.1 8000", setup=[f"{once} && test ! -e made-before"]
    )
    sandbox.write_file("made-before", "")
    assert client.previews.rebuild(preview.preview_id).body_same is not None  # what came later is not in it
    moved = client.previews.get(preview.preview_id)
    assert moved.sandbox_id != sandbox.id
    client.sandboxes.get(moved.sandbox_id).terminate(discard=True)


def test_one_of_which_nothing_is_on_record_says_so(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    preview = client.previews.create(sandbox.id, 8000)
    with pytest.raises(WrongState):
        client.previews.rebuild(preview.preview_id)


def test_one_that_was_shared_before_its_server_listened_is_recorded_later(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation
) -> None:
    preview = client.previews.create(sandbox.id, 8000)
    with pytest.raises(InvalidArgument) as nobody:
        client.previews.change(preview.preview_id, record=True)
    assert nobody.value.facts["argument"] == "record"
    sandbox.write_file("dist/index.html", PAGE.decode())
    sandbox.run_command(START, background=True)
    visitor = Visitor(preview)
    wait_until(lambda: visitor.ask("/").status == 200, "it serves")
    told = installation.cli("preview", "change", preview.preview_id, "--record")
    assert told.returncode == 0, told.stderr
    kept = client.previews.change(preview.preview_id, record=True).inputs  # a second time changes nothing
    assert kept is not None
    assert (kept.start.command, kept.body_sha256) == (START, sha256(PAGE))
    recorded = client.ledger.entries(kinds=["preview.recorded"], subject=preview.preview_id)
    assert [one.body["snapshot_id"] for one in recorded] == [kept.snapshot_id]
    sandbox.terminate(discard=True)
    rebuilt = client.previews.rebuild(preview.preview_id)
    assert (rebuilt.body_same, visitor.ask("/").body) == (True, PAGE)
    client.sandboxes.get(rebuilt.sandbox_id).terminate(discard=True)


def test_another_sandbox_is_taken_only_if_it_began_from_the_same(
    client: SyncColdframe, sandbox: SyncSandbox, preview: PreviewCreated
) -> None:
    assert preview.inputs is not None
    with client.sandboxes.create(background=True) as other, pytest.raises(WrongState):
        client.previews.rebuild(preview.preview_id, sandbox_id=other.id)
    with client.sandboxes.create(background=True, snapshot=preview.inputs.snapshot_id) as same:
        rebuilt = client.previews.rebuild(preview.preview_id, sandbox_id=same.id)
        assert (rebuilt.sandbox_id, rebuilt.body_same) == (same.id, True)


def test_a_viewer_rebuilds_nothing(client: SyncColdframe, preview: PreviewCreated, installation: Installation) -> None:
    token, _ = client.tokens.create(Role.VIEWER, "looks")
    with SyncColdframe(installation.url, token) as viewer, pytest.raises(GrantMissing):
        viewer.previews.rebuild(preview.preview_id)


# From packages.


def set_mode(mode: str) -> None:
    """What the registry of the room does from now on."""
    peer = HTTPConnection(ADDRESSES[SITE][0], CONTROL_PORT, timeout=30)
    peer.request("GET", f"/?mode={mode}")
    peer.getresponse().read()
    peer.close()


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_a_registry_that_has_other_bytes_by_now_is_told_with_the_name_of_the_package() -> None:
    """With a lock npm itself refuses them; without one nobody would."""

    def steps(installation: Installation) -> None:
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load('version: 1\nnetwork: {use: {"*": packages}}\n')
            loose = "npm install --no-package-lock --ignore-scripts leftbox@1.0.0"
            made = []
            for name, setup in (("locked", "npm ci --ignore-scripts"), ("loose", loose)):
                box = client.sandboxes.create(name)
                box.write_file("package.json", '{"dependencies": {"leftbox": "1.0.0"}}')
                box.write_file("server.js", NODE_SERVER)
                locked = box.run_command("npm install --package-lock-only --ignore-scripts 2>&1")
                assert locked.exit_code == 0, locked.stdout
                made.append(client.previews.create(box.id, 8000, start="exec node server.js", setup=[setup]))
            for preview in made:
                assert preview.inputs is not None
                assert {one.name for one in preview.inputs.packages} == {"leftbox", "rightbox"}
            purge(installation)
            same = client.previews.rebuild(made[0].preview_id)
            assert same.body_same
            set_mode("changed")
            for preview in made:
                purge(installation)
                with pytest.raises(InputChanged) as caught:
                    client.previews.rebuild(preview.preview_id)
                assert caught.value.facts["input"] in ("leftbox", "rightbox")
            now = client.previews.get(made[0].preview_id)
            assert (now.sandbox_id, now.status and now.status.state) == (same.sandbox_id, "healthy")

    alone(steps, NPM_CONFIG_REGISTRY=f"https://{SITE}:{PORT}/npm/")


def purge(installation: Installation) -> None:
    done = installation.cli("network", "cache", "purge")
    assert done.returncode == 0, done.stderr
