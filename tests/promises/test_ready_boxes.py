"""What is promised of a sandbox holds in the same way for one whose box waited for it: the promises of other files, tried in such."""

import json
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation, wait_until
from tests.promises.test_tenants import test_who_comes_next_finds_nothing_of_who_was_there_before as test_who_comes_next  # noqa: F401
from tests.promises.test_walls import *  # noqa: F403


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    """In which boxes wait."""
    started = Installation(COLDFRAME_READY_BOXES="2")
    try:
        started.start()
        with SyncColdframe(started.url, started.token) as client, client.sandboxes.create(agent_id="first"):
            pass
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


@pytest.fixture
def sandbox(client: SyncColdframe, agent_id: str) -> Iterator[SyncSandbox]:
    """One whose box waited, which is asserted."""
    for attempt in range(5):  # somebody may change what /etc of boxes is made of, and one waits in vain then
        wait_until(lambda: client.pool().ready, "a box waits", timeout_s=60)
        used = client.pool().used
        with client.sandboxes.create(agent_id=f"{agent_id}-{attempt}") as sandbox:
            if client.pool().used == used + 1:
                yield sandbox
                return
    raise AssertionError("no box that waited was used")


def test_boxes_that_wait_are_no_sandboxes_and_are_told_with_what_they_hold(
    client: SyncColdframe, installation: Installation
) -> None:
    running = len(client.sandboxes.list())
    found = wait_until(lambda: (now := client.pool()).ready and now, "a box waits")
    assert found.size == 2
    assert found.refused is None
    assert 0 < found.memory_bytes < 200 << 20
    assert len(client.sandboxes.list()) == running
    shown = json.loads(installation.cli("pool", "--json").stdout)
    assert (shown["size"], shown["used"]) == (2, found.used)
    assert "of at most 2 boxes wait" in installation.cli("pool").stdout.decode()
