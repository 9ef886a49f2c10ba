"""What a preview is made from is looked for by its digest or name before anything is served from it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.client.models import PreviewCreated
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import CredentialMissing, InputMissing
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
