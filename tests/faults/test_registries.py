"""The registry is down, or slow: loads end in a published state, and a generic client installs once it is well again."""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection

import pytest

from coldframe.contract.sandbox import SandboxSpec
from tests.chaos.patience import connected
from tests.faults.faults import FAULTS, LIMITS, is_alive
from tests.faults.jumping import JumpingInstallation
from tests.faults.loads import GATE, GATED, LOADS, Told
from tests.faults.test_loads import HANG_S, SLOW, is_there, judge_told, let_go, work
from tests.faults.test_recovery import GenericClient
from tests.host.egress.registries import CONTROL_PORT, PORT
from tests.host.egress.world import ADDRESSES, SITE
from tests.installation import wait_until
from tests.reachable import alone_with

pytestmark = [
    pytest.mark.once,
    pytest.mark.timeout(1200 if SLOW else 300),
    pytest.mark.skipif(shutil.which("pip") is None, reason="pip is not installed"),
]
RULES = 'version: 1\nnetwork: {use: {"*": packages}}\n'
CLIENTS = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"https://{SITE}:{PORT}/simple/"}
MODES = {"registry down": "down", "registry slow": "slow"}
PIP = "pip install --no-cache-dir --disable-pip-version-check --retries 0 --target site-$KEY "
PACKAGES = {"registry down": "colddemo", "registry slow": "coldlarge"}
"""What is slow is a large file, of which a piece comes now and then."""
WAIT_S = 8
"""Of the command: what is slow takes longer."""


@contextlib.contextmanager
def _registry(mode: str) -> Iterator[None]:
    _say(mode)
    try:
        yield
    finally:
        _say("well")


def _say(mode: str) -> None:
    asked = HTTPConnection(ADDRESSES[SITE][0], CONTROL_PORT, timeout=30)
    asked.request("GET", f"/?mode={mode}")
    asked.getresponse().read()
    asked.close()


def _in_a_room(steps: Callable[[JumpingInstallation], None]) -> None:
    alone_with(lambda: JumpingInstallation(**CLIENTS), steps, patience_s=1100 if SLOW else 250)


def _load(installation: JumpingInstallation, load: str, fault: str) -> None:
    """One pair: `install` is a load of its own, which the others know nothing of."""
    key = f"{load}-{fault}".replace(" ", "-")
    told: list[Told] = []
    with connected(installation) as client:
        client.policy.load(RULES)
        sandbox = client.sandboxes.create(spec=SandboxSpec(agent_id=key, limits=LIMITS))
        own = {"install": GATE + PIP.replace("$KEY", "{key}") + PACKAGES.get(fault, "colddemo")}
        args = (installation, sandbox.id, load, key, told, own)
        ended = threading.Thread(target=work, args=args, daemon=True)
        ended.start()
        if load in GATED or load in own:
            wait_until(lambda: is_there(client, sandbox.id, f"begun-{key}"), "the load works", timeout_s=60)
        with contextlib.ExitStack() as while_it_lasts:
            if fault in MODES:
                while_it_lasts.enter_context(_registry(MODES[fault]))
            else:
                while_it_lasts.enter_context(FAULTS[fault](installation, sandbox, key, fault))
            let_go(installation, sandbox.id, key)
            ended.join(HANG_S)
            assert not ended.is_alive(), f"a call hangs; so far {told}"
    judge_told(installation, told)
    assert is_alive(installation, sandbox.id, key)
    with connected(installation) as client:
        client.sandboxes.get(sandbox.id).terminate()


INSTALLS = [("install", fault) for fault in (*MODES, *FAULTS)]
OTHERS = [(load, fault) for load in LOADS for fault in MODES]
SAMPLE = [
    ("install", "registry down"),
    ("install", "guest lost"),
    ("import", "registry down"),
    ("server", "registry slow"),
]


@pytest.mark.req("T3.67")
def test_loads_with_packages_end_in_a_published_state() -> None:
    def steps(installation: JumpingInstallation) -> None:
        for load, fault in [*INSTALLS, *OTHERS] if SLOW else SAMPLE:
            _load(installation, load, fault)

    _in_a_room(steps)


@pytest.mark.req("T3.72")
@pytest.mark.parametrize("fault", MODES)
def test_a_generic_client_installs_once_the_registry_is_well_again(fault: str) -> None:
    def steps(installation: JumpingInstallation) -> None:
        key = f"recover-{fault}".replace(" ", "-")
        spec = SandboxSpec(agent_id=key, limits=LIMITS.model_copy(update={"wall_s": float(WAIT_S)}))
        with connected(installation) as client:
            client.policy.load(RULES)
            sandbox = client.sandboxes.create(spec=spec)
        with contextlib.ExitStack() as while_it_lasts:
            while_it_lasts.enter_context(_registry(MODES[fault]))

            def pass_away(attempts: int) -> None:
                if attempts > 1:
                    while_it_lasts.close()

            generic = GenericClient(installation, sandbox.id, spec)
            assert generic.work(f"{PIP}{PACKAGES[fault]} && echo done".replace("$KEY", key), key, pass_away) == ""
        assert generic.attempts > 1
        with connected(installation) as client:
            first = client.sandboxes.get(sandbox.id).commands()[0]
            status = client.sandboxes.get(sandbox.id).command(first.command_id).status
            assert status is not None and status.retryable
            assert status.code == ("REGISTRY_UNREACHABLE" if fault == "registry down" else "TIMED_OUT_WALL")
            client.sandboxes.get(sandbox.id).terminate()

    _in_a_room(steps)
