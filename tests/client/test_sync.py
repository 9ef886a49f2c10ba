"""The blocking SDK is the asynchronous one: generated, up to date, with the same names."""

import inspect
import subprocess
import sys
from pathlib import Path

from coldframe.client import api, sandbox, sync

ROOT = Path(__file__).parent.parent.parent


def test_the_generated_file_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_sync"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_public_method_exists_in_both_forms_with_the_same_parameters() -> None:
    pairs: list[tuple[type, type]] = [(api.Coldframe, sync.SyncColdframe), (sandbox.Sandbox, sync.SyncSandbox)]
    pairs += [(getattr(api, name), getattr(sync, name)) for name in ("Sandboxes", "Agents", "LedgerView", "Policy")]
    for first, second in pairs:
        names = {name for name in vars(first) if not name.startswith("_")} - {"aclose"}
        assert names <= set(vars(second))
        for name in names:
            if callable(getattr(first, name)):
                ours, theirs = inspect.signature(getattr(first, name)), inspect.signature(getattr(second, name))
                assert list(ours.parameters) == list(theirs.parameters), name


def test_the_generated_file_awaits_nothing() -> None:
    assert not any(inspect.iscoroutinefunction(member) for _, member in inspect.getmembers(sync.SyncSandbox))
