"""Whatever an agent does and whatever goes wrong meanwhile: it ends in a state that is published, nothing is INTERNAL, nothing hangs.

A sample in every run, each fault and each load in it; all pairs with `COLDFRAME_SLOW=1`, as `scripts/loads` does.
"""

import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import SandboxSpec
from tests.chaos.patience import connected
from tests.faults import faults, loads
from tests.faults.conftest import took_s
from tests.faults.faults import FAULTS, LIMITS, is_alive
from tests.faults.jumping import JumpingInstallation
from tests.faults.loads import GATED, LOADS, Told, run_load
from tests.installation import wait_until

HANG_S = 100.0
"""After which a call counts as one that hangs; commands have less, and whoever asks again is patient for less."""
STATES = {"done", "refused", "exited", "signalled", "lost", "timed_out", "limit", "cancelled", "not_started"}
"""Of commands as published (docs/commands.md); `done` and `refused` are of calls that are none."""
PAIRS = [(load, fault) for load in LOADS for fault in FAULTS]
SAMPLE = [(LOADS[number % len(LOADS)], fault) for number, fault in enumerate(FAULTS)]
SLOW = "COLDFRAME_SLOW" in os.environ
CHOSEN = PAIRS if SLOW else SAMPLE


@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.req("T3.67")
@pytest.mark.parametrize(("load", "fault"), CHOSEN, ids=["-".join(pair).replace(" ", "_") for pair in CHOSEN])
def test_a_load_under_a_fault_ends_in_a_published_state(killable: JumpingInstallation, load: str, fault: str) -> None:
    key = f"{load}_{fault}".replace(" ", "_")
    agent_id = key.replace("_", "-")
    told: list[Told] = []
    with connected(killable) as client:
        sandbox = client.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, limits=LIMITS))
        ended = threading.Thread(target=work, args=(killable, sandbox.id, load, key, told), daemon=True)
        ended.start()
        if load in GATED:
            wait_until(lambda: is_there(client, sandbox.id, f"begun-{key}"), "the load works", timeout_s=60)
        with FAULTS[fault](killable, sandbox, key, fault):
            let_go(killable, sandbox.id, key)
            join_and_note(ended, f"{load}, {fault}")
            assert not ended.is_alive(), f"a call hangs; so far {told}"
    judge_told(killable, told)
    assert is_alive(killable, sandbox.id, agent_id)
    with connected(killable) as client:
        client.sandboxes.get(sandbox.id).terminate()


def judge_told(installation: JumpingInstallation, told: list[Told]) -> None:
    """Nothing but published states and codes, and something to do next where it did not come to its end."""
    with connected(installation) as client:
        codes = {one.code for one in client.errors()}
    for one in told:
        assert one.state in STATES, told
        assert one.code is None or one.code in codes, told
        assert one.code != "INTERNAL", told
        assert one.actions or one.state in ("done", "exited"), told
    assert told


def join_and_note(ended: threading.Thread, pair: str) -> None:
    """Wait for its end, and tell the summary how long that took from when the fault was there."""
    began = time.monotonic()
    ended.join(HANG_S)
    took_s[pair] = time.monotonic() - began


def work(
    installation: JumpingInstallation,
    sandbox_id: str,
    load: str,
    key: str,
    told: list[Told],
    own: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """As a client does that is patient with a server that starts again: what is asked again has the same key. *own*: commands
    beside those of `loads`."""
    deadline = threading.Event()
    while not deadline.wait(0.1):
        try:
            with connected(installation) as client:
                found = run_load(client, sandbox_id, load, key, own)
        except (OSError, ValueError, KeyError):  # the file for clients is being written anew
            continue
        if all(not one.retryable or one.state != "refused" for one in found):
            told += found
            return


def is_there(client: SyncColdframe, sandbox_id: str, path: str) -> bool:
    try:
        return bool(client.sandboxes.get(sandbox_id).read_file(path).content)
    except ColdframeError:
        return False


def let_go(installation: JumpingInstallation, sandbox_id: str, key: str) -> None:
    """By an empty file, for which there is room on a full disk; a box that is lost needs none."""
    try:
        with connected(installation) as client:
            client.sandboxes.get(sandbox_id).write_file(f"go-{key}", "")
    except ColdframeError:
        pass


@pytest.mark.req("T3.67")
def test_a_clock_that_jumps_in_both_directions_stops_nothing(killable: JumpingInstallation) -> None:
    with connected(killable) as client:
        for ahead_s in (3600, 0, -3600, 0):
            killable.jump(ahead_s)
            with client.sandboxes.create("jumping") as sandbox:
                ahead = sandbox.info.created_at - datetime.now(UTC)
                assert abs(ahead.total_seconds() - ahead_s) < 1800, "it jumps"
                assert sandbox.run_command("echo on").stdout == "on\n"
        assert client.ledger.verify().intact


def test_what_is_not_tried_is_named_with_the_reason() -> None:
    assert len(LOADS) + len(loads.WAITING) - 1 == 12, "`server` stands for the preview, which waits"
    assert len(FAULTS) + len(faults.ELSEWHERE) == 12
    assert {fault for _, fault in SAMPLE} == set(FAULTS) and {load for load, _ in SAMPLE} == set(LOADS)
