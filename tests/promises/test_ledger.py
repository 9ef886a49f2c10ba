"""The record of an installation does not vanish unseen."""

import shutil
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe
from tests.promises.raw import own_installation


@pytest.mark.req("TP.15")
def test_a_ledger_that_was_removed_as_a_whole_is_missed_when_its_agents_have_workspaces() -> None:
    with own_installation() as home:
        with SyncColdframe(home.url, home.token) as client, client.sandboxes.create(agent_id="ada") as sandbox:
            sandbox.write_file("a", "x")
            if Path(home.data_dir, "workspace").stat().st_nlink < 3:
                pytest.skip("this file system does not count directories")
        home.stop()
        shutil.rmtree(Path(home.data_dir, "control"))
        home.start()
        with SyncColdframe(home.url, home.token) as client:
            verdict = client.ledger.verify()
            assert [(fault.kind, fault.seq) for fault in verdict.faults] == [("missing", 1)]
            assert client.ledger.entries(limit=1)[0].kind == "ledger.fault_found"
