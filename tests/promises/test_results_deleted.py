"""A sandbox whose result is to be deleted keeps it until somebody has confirmed its digest, and then leaves nothing but records."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError, Conflict, InvalidArgument, WrongState
from coldframe.contract.result import SandboxResult, result_digest
from coldframe.contract.sandbox import SandboxSpec
from tests.installation import Installation, wait_until
from tests.promises.raw import own_installation

SPEC = SandboxSpec(
    background=True, outputs=("report/*.txt",), max_age_s=600, on_timeout="terminate", on_result="delete"
)
WORK = "mkdir report && echo one > report/one.txt && echo two > report/two.txt && echo CANARY-5e1f"


@pytest.fixture
def working(client: SyncColdframe) -> Iterator[SyncSandbox]:
    with client.sandboxes.create(spec=SPEC) as sandbox:
        yield sandbox


def fetch(sandbox: SyncSandbox, offered: SandboxResult) -> str:
    """The digest of what comes over the wire."""
    contents = {one.path: b"".join(sandbox.download(one.path)) for one in offered.files}
    return result_digest((path, len(data), hashlib.sha256(data).hexdigest()) for path, data in contents.items())


def used(data_dir: str) -> int:
    """Bytes that the files below take on disk, but for the records: what was done is not forgotten."""
    total = 0
    for path, folders, names in os.walk(data_dir):
        if path == data_dir:
            folders.remove("control")
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def holds(folder: str, marker: bytes) -> list[str]:
    """Files with the marker in them."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in files if marker in path.read_bytes()]


@pytest.mark.req("T3.39")
@pytest.mark.without_way_out
def test_what_was_fetched_and_confirmed_is_gone_and_its_record_stays() -> None:
    with own_installation() as installation, SyncColdframe(installation.url, installation.token) as client:
        fetch_and_confirm(installation, client)


def fetch_and_confirm(installation: Installation, client: SyncColdframe) -> None:
    """Where nobody else writes or deletes."""
    with client.sandboxes.create(background=True) as warm:
        warm.run_command("true")
    before = used(installation.data_dir)
    sandbox = client.sandboxes.create(spec=SPEC)
    done = sandbox.run_command(WORK)
    sandbox.run_command("head -c 8M /dev/zero > large; yes CANARY-5e1f | head -c 4M")
    assert used(installation.data_dir) > before + (10 << 20)
    assert sandbox.result().state == "open"
    offered = sandbox.offer_result()
    assert (offered.state, [one.path for one in offered.files]) == (
        "awaiting_fetch",
        ["report/one.txt", "report/two.txt"],
    )
    assert offered.kept_until is not None
    digest = fetch(sandbox, offered)
    assert digest == offered.sha256
    deleted = sandbox.confirm_result(digest)
    assert deleted.state == "deleted" and deleted.deleted_at is not None
    assert sandbox.refresh().state.state == "terminated"
    assert holds(os.path.join(installation.data_dir, "boxes"), b"CANARY-5e1f") == []
    assert holds(os.path.join(installation.data_dir, "background"), b"one\n") == []
    wait_until(lambda: abs(used(installation.data_dir) - before) < 1 << 20, "the disk use is what it was")
    with pytest.raises(ColdframeError):
        sandbox.output(done.command_id)
    (record,) = client.ledger.entries(kinds=["result.deleted"], sandbox_id=sandbox.id)
    assert record.body["sha256"] == digest
    assert (
        client.receipt(str(done.result.receipt_id))["stdout"]["sha256"] == hashlib.sha256(b"CANARY-5e1f\n").hexdigest()
    )
    assert client.ledger.verify().intact
    assert sandbox.confirm_result(digest) == sandbox.result() == deleted
    with pytest.raises(WrongState):
        sandbox.offer_result()


@pytest.mark.req("T3.39")
@pytest.mark.without_way_out
def test_another_digest_or_none_deletes_nothing(working: SyncSandbox) -> None:
    with pytest.raises(WrongState):  # its outputs are missing
        working.offer_result()
    working.run_command(WORK)
    with pytest.raises(WrongState):  # nobody can have what was not offered
        working.confirm_result("0" * 64)
    offered = working.offer_result()
    with pytest.raises(Conflict) as wrong:
        working.confirm_result("0" * 64)
    assert wrong.value.facts["offered"] == offered.sha256
    digest = fetch(working, offered)
    working.run_command("echo changed > report/one.txt")
    with pytest.raises(Conflict):
        working.confirm_result(digest)
    assert working.result().state == "awaiting_fetch"
    assert b"".join(working.download("report/one.txt")) == b"changed\n"
    assert fetch(working, working.offer_result()) == working.result().sha256 != digest


@pytest.mark.without_way_out
def test_only_what_is_kept_for_a_stated_time_can_be_deleted_on_its_result(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    for change in ({"max_age_s": None}, {"outputs": ()}, {"on_timeout": "stop"}):
        with pytest.raises(InvalidArgument):
            client.sandboxes.create(spec=SPEC.model_copy(update=change))
    with pytest.raises(WrongState):
        sandbox.result()


@pytest.mark.req("T3.39")
@pytest.mark.without_way_out
def test_what_nobody_confirms_in_time_is_gone_with_what_commands_have_written(
    installation: Installation, client: SyncColdframe
) -> None:
    sandbox = client.sandboxes.create(spec=SPEC.model_copy(update={"max_age_s": 3}))
    done = sandbox.run_command(WORK.replace("5e1f", "7a02"))
    offered = sandbox.offer_result()
    wait_until(lambda: sandbox.result().deleted_at is not None, "its time is over")
    assert sandbox.result().state == "expired" and sandbox.result().sha256 == offered.sha256
    for folder in ("boxes", "background"):
        assert holds(os.path.join(installation.data_dir, folder), b"CANARY-7a02") == []
    with pytest.raises(ColdframeError):
        sandbox.output(done.command_id)
    assert client.receipt(str(done.result.receipt_id))["exit_code"] == 0
