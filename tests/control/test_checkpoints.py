"""Head and checkpoints vouch for the ledger: what was done to them is found, and another program can check them."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.contract.errors import LedgerUnavailable
from coldframe.control.ledger import CHECKPOINT_EVERY, Ledger, verify_directory
from coldframe.control.store import Store
from tests.control.keeping import Keeping, found


def lines_of(keeping: Keeping) -> list[bytes]:
    return Path(keeping.marks, "checkpoints.jsonl").read_bytes().splitlines()


@pytest.mark.req("TP.15")
@pytest.mark.parametrize(
    ("attack", "kind"),
    [
        (lambda lines: [lines[0].replace(b'"seq":256', b'"seq":255'), *lines[1:]], "checkpoint_invalid"),
        (lambda lines: [b"nonsense", *lines[1:]], "checkpoint_invalid"),
        (lambda lines: [lines[0], *lines[2:]], "checkpoint_missing"),
        (lambda lines: lines[1:], "checkpoint_missing"),
        (lambda lines: lines[:-1], "checkpoint_missing"),
        (lambda lines: [], "checkpoint_missing"),
    ],
)
def test_a_checkpoint_that_was_changed_or_removed_is_found(
    keeping: Keeping, attack: Callable[[list[bytes]], list[bytes]], kind: str
) -> None:
    keeping.fill(CHECKPOINT_EVERY * 3 + 1)
    keeping.close()
    lines = attack(lines_of(keeping))
    Path(keeping.marks, "checkpoints.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    assert kind in {kind for kind, _ in found(keeping.verdict())}
    keeping.open()
    assert kind in {kind for kind, _ in found(keeping.ledger.verify())}


def test_a_checkpoint_that_a_power_cut_left_unfinished_is_no_fault(keeping: Keeping) -> None:
    keeping.fill(CHECKPOINT_EVERY + 1)
    keeping.close()
    path = Path(keeping.marks, "checkpoints.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:100])
    assert keeping.verdict().intact
    keeping.open()
    keeping.fill(CHECKPOINT_EVERY)
    assert keeping.ledger.verify().intact
    assert path.read_bytes().startswith(whole)


def test_a_head_that_was_changed_is_found(keeping: Keeping) -> None:
    keeping.fill(10)
    with keeping.attacked() as raw:
        raw.execute("DELETE FROM ledger WHERE seq > 8")
    head = Path(keeping.marks, "head")
    head.write_bytes(head.read_bytes().replace(b" 00000000000000000010 ", b" 00000000000000000008 "))
    assert ("checkpoint_invalid", 0) in found(keeping.verdict())
    keeping.open()


def test_a_head_that_is_gone_is_found(keeping: Keeping) -> None:
    keeping.fill(10)
    keeping.close()
    os.unlink(os.path.join(keeping.marks, "head"))
    assert ("checkpoint_missing", 0) in found(keeping.verdict())
    keeping.open()


def test_checkpoints_can_be_checked_by_another_program_with_the_public_key_alone(keeping: Keeping) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    keeping.fill(10)
    keeping.close()
    fields = json.loads(lines_of(keeping)[-1])
    import base64

    signature = base64.b64decode(fields.pop("signature"))
    key = load_pem_public_key(Path(keeping.marks, "signing.pub").read_bytes())
    assert isinstance(key, Ed25519PublicKey)
    key.verify(signature, json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    assert fields["seq"] == 10
    assert Path(keeping.marks, "signing.key").stat().st_mode & 0o077 == 0
    keeping.open()


def test_verification_works_on_a_copy_without_the_private_key(keeping: Keeping, tmp_path: Path) -> None:
    keeping.fill(300)
    keeping.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(keeping.database, copy / "control.db")
    shutil.copytree(keeping.marks, copy / "ledger")
    (copy / "ledger" / "signing.key").unlink()
    assert verify_directory(str(copy / "control.db"), str(copy / "ledger")).intact
    lines = Path(copy, "ledger", "checkpoints.jsonl").read_bytes()
    Path(copy, "ledger", "checkpoints.jsonl").write_bytes(lines.replace(b'"number":1', b'"number":2', 1))
    assert not verify_directory(str(copy / "control.db"), str(copy / "ledger")).intact
    keeping.open()


def test_a_ledger_with_entries_but_without_its_key_is_refused(keeping: Keeping) -> None:
    keeping.fill(3)
    keeping.close()
    key = Path(keeping.marks, "signing.key")
    content = key.read_bytes()
    key.unlink()
    store = Store(keeping.database)
    with pytest.raises(LedgerUnavailable, match="signing key"):
        Ledger(store, keeping.marks, keeping.clock)
    store.close()
    key.write_bytes(content)
    keeping.open()
