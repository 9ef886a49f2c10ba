"""What a preview is made from is looked for by its digest or name before anything is served from it."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.models import PreviewCreated
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import CredentialMissing, GuestLost, InputMissing, PreviewUnavailable, WrongState
from coldframe.contract.preview import PreviewChange
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.volume import VolumeMount
from coldframe.control import previews
from coldframe.control.sandboxes import Sandboxes
from tests.fakes.host import FakeHost
from tests.fronts.served import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(str(tmp_path), FakeHost)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(served: Served) -> Iterator[SyncColdframe]:
    with served.sync_client() as client:
        yield client


def share(client: SyncColdframe, sandbox: SyncSandbox) -> PreviewCreated:
    """A command of the fake runs on this machine, so its port has to be free here."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sandbox.write_file("index.html", "hello")
    start = f"exec python3 -m http.server {port} --bind 127.0.0.1"
    return client.previews.create(sandbox.id, port, start=start)


def snapshots_of(client: SyncColdframe, sandbox: SyncSandbox) -> list[str]:
    return [one.snapshot_id for one in client.snapshots.list() if sandbox.id in one.name]


def test_from_what_one_was_made_is_kept_as_long_as_it_is_shared(client: SyncColdframe) -> None:
    sandbox = client.sandboxes.create(agent_id="one")
    preview = share(client, sandbox)
    assert preview.inputs is not None
    assert snapshots_of(client, sandbox) == [preview.inputs.snapshot_id]
    client.previews.revoke(preview.preview_id)
    assert snapshots_of(client, sandbox) == []


def test_one_that_does_not_come_to_serve_leaves_nothing_behind(client: SyncColdframe) -> None:
    sandbox = client.sandboxes.create(agent_id="one")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for start, wait_s in (("exit 3", 10.0), ("exec sleep 600", 0.2)):
        with pytest.raises(PreviewUnavailable):
            client.previews.create(sandbox.id, port, start=start, ready_timeout_s=wait_s)
        assert snapshots_of(client, sandbox) == []
        assert [one for one in sandbox.commands() if one.state == "running"] == []


def test_a_stop_that_ends_nothing_says_so(client: SyncColdframe, monkeypatch: pytest.MonkeyPatch) -> None:
    preview = share(client, client.sandboxes.create(agent_id="one"))
    seen_inside = Sandboxes.seen_inside
    seen: list[Any] = []

    async def as_before(self: Sandboxes, info: SandboxInfo, command_id: str | None) -> Any:
        if not seen:
            seen.append(await seen_inside(self, info, command_id))
        return seen[0]

    async def not_at_all(self: Sandboxes, info: SandboxInfo, command_id: str | None) -> Any:
        raise GuestLost("it does not answer")

    monkeypatch.setattr(previews, "END_S", 0.01)
    for look, error in ((not_at_all, GuestLost), (as_before, WrongState)):
        monkeypatch.setattr(Sandboxes, "seen_inside", look)
        with pytest.raises(error):
            client.previews.stop(preview.preview_id)
        assert client.ledger.entries(kinds=["preview.stopped"], subject=preview.preview_id) == []
    monkeypatch.undo()
    client.previews.stop(preview.preview_id)


@pytest.mark.req("T3.48")
def test_a_volume_that_is_gone_is_named_and_one_that_is_there_is_attached_again(client: SyncColdframe) -> None:
    client.volumes.create("data")
    spec = SandboxSpec(background=True, volumes=(VolumeMount(name="data"),), max_age_s=5000)
    sandbox = client.sandboxes.create(spec=spec)
    preview = share(client, sandbox)
    client.previews.stop(preview.preview_id)
    rebuilt = client.previews.rebuild(preview.preview_id)
    other = client.sandboxes.get(rebuilt.sandbox_id)
    assert other.id != sandbox.id
    assert (other.info.spec.volumes, other.info.spec.max_age_s) == (spec.volumes, 5000)
    client.previews.stop(preview.preview_id)
    for one in (sandbox, other):
        one.terminate()
    client.volumes.remove("data")
    with pytest.raises(InputMissing) as caught:
        client.previews.rebuild(preview.preview_id)
    assert caught.value.facts == {"input": "volume", "name": "data"}


@pytest.mark.req("T3.48")
def test_a_template_that_is_gone_is_named(served: Served, client: SyncColdframe) -> None:
    facts = served.host.templates.add_setup()
    sandbox = client.sandboxes.create(agent_id="one", template="debian")
    preview = share(client, sandbox)
    assert preview.inputs is not None
    assert preview.inputs.template_sha256 == facts.digest
    served.host.templates.known.clear()
    with pytest.raises(InputMissing) as caught:
        client.previews.rebuild(preview.preview_id)
    assert caught.value.facts == {"input": "template", "id": facts.digest}
    assert client.previews.get(preview.preview_id).sandbox_id == sandbox.id


@pytest.mark.req("T3.48")
def test_a_credential_that_was_withdrawn_is_named(client: SyncColdframe) -> None:
    terms = {"name": "crm", "base": "https://api.example.com", "variable": "CRM_KEY", "agents": ["*"]}
    client.credentials.add(terms, "a-secret-of-some-length")
    preview = share(client, client.sandboxes.create(agent_id="one"))
    assert preview.inputs is not None
    assert preview.inputs.credentials == ("crm",)
    client.credentials.revoke("crm")
    before = len(client.sandboxes.list(state=["running"]))
    with pytest.raises(CredentialMissing) as caught:
        client.previews.rebuild(preview.preview_id, agent_id="two")
    assert caught.value.facts == {"name": "crm", "kind": "credential"}
    assert len(client.sandboxes.list(state=["running"])) == before


@pytest.mark.req("T3.48")
def test_files_that_are_others_by_now_are_no_input(served: Served, client: SyncColdframe, tmp_path: Path) -> None:
    preview = share(client, client.sandboxes.create(agent_id="one"))
    assert preview.inputs is not None
    found = [one for one in tmp_path.rglob("index.html") if preview.inputs.snapshot_id in str(one)]
    assert found
    for one in found:
        one.write_text("other bytes")
    with pytest.raises(InputMissing) as caught:
        client.previews.rebuild(preview.preview_id)
    assert caught.value.facts["input"] == "snapshot"


def test_who_shares_with_fewer_while_it_is_recorded_is_not_overruled(
    client: SyncColdframe, monkeypatch: pytest.MonkeyPatch
) -> None:
    preview = client.previews.create(client.sandboxes.create(agent_id="one").id, 8000, public=True)

    async def meanwhile(self: previews.Previews, caller: Any, _: Any, row: Any) -> None:
        await self.change(caller, row.preview_id, PreviewChange(public=False))

    monkeypatch.setattr(previews.Previews, "_record_now", meanwhile)
    assert not client.previews.change(preview.preview_id, record=True).public
    assert not client.previews.get(preview.preview_id).public
