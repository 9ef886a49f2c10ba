"""What is promised of a sandbox holds in the same way for one whose box waited for it: the promises of other files, tried in such."""

import itertools
import json
import time
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation, wait_until
from tests.promises.test_tenants import test_who_comes_next_finds_nothing_of_who_was_there_before as test_who_comes_next  # noqa: F401
from tests.promises.test_walls import *  # noqa: F403

USED_WITHIN_S = 45.0


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    """In which boxes wait."""
    started = Installation(COLDFRAME_READY_BOXES="2", COLDFRAME_LOG_LEVEL="info")
    try:
        started.start()
        with SyncColdframe(started.url, started.token) as client, client.sandboxes.create(agent_id="first"):
            pass
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


@pytest.fixture
def sandbox(client: SyncColdframe, installation: Installation, agent_id: str) -> Iterator[SyncSandbox]:
    """One whose box waited, which is asserted."""
    deadline = time.monotonic() + USED_WITHIN_S
    for attempt in itertools.count():  # somebody may change what /etc of boxes is made of, and one waits in vain then
        wait_until(lambda: client.pool().ready, "a box waits", timeout_s=60)
        used = client.pool().used
        with client.sandboxes.create(agent_id=f"{agent_id}-{attempt}") as sandbox:
            if client.pool().used == used + 1:
                yield sandbox
                return
        if time.monotonic() > deadline:
            raise AssertionError(f"no box that waited was used in {attempt + 1} attempts:\n{installation.log}")


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
