"""What goes wrong while a load works: each is let loose in one sandbox, or on the product itself, and taken back again."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import Limits
from tests.chaos.patience import ask_until_told
from tests.chaos.storm import revive
from tests.chaos.victims import Victims, kill
from tests.faults.jumping import JumpingInstallation
from tests.installation import wait_until

LIMITS = Limits(memory_mib=128, disk_mib=64, pids=48, cpu_s=30.0, wall_s=50.0)
HOLD_PORT = """python3 -c 'import socket, time
s = socket.create_server(("127.0.0.1", 8099))
print("set", flush=True)
time.sleep(40)'"""
REACH_OUT = """python3 -c 'import socket
try: socket.create_connection(("192.0.2.1", 443), 2)
except OSError as error: print("set", error, flush=True)'; sleep 40"""
IN_BOX = {
    "disk full": ("head -c 200M /dev/zero > filler; echo set", "filler"),
    "memory": ("echo set; python3 -c 'import time; held = bytearray(400 << 20); time.sleep(40)'; sleep 40", None),
    "cpu": ("echo set; for n in 1 2 3 4; do (while :; do :; done) & done; wait", None),
    "pids": ("for n in $(seq 60); do sleep 40 & done 2>/dev/null; echo set; wait", None),
    "port taken": (HOLD_PORT, None),
    "egress denied": (REACH_OUT, None),
}
"""A command that says `set` when the fault is there, and a file that it leaves."""
ELSEWHERE = {"registry down", "registry slow"}
"""Faults of the list that test_registries.py has."""


@contextlib.contextmanager
def _in_box(installation: JumpingInstallation, sandbox: SyncSandbox, key: str, name: str) -> Iterator[None]:
    line, left = IN_BOX[name]
    try:
        fault = sandbox.start(line)
        wait_until(
            lambda: b"set" in fault.output() or fault.info().state != "running", f"{name} is there", timeout_s=60
        )
    except ColdframeError:
        fault = None  # a load that is a call may have taken all there is before
    yield
    with contextlib.suppress(ColdframeError):
        if fault is not None:
            fault.cancel()
            fault.wait(20)
        if left is not None:
            sandbox.remove_file(left)


@contextlib.contextmanager
def _crash(installation: JumpingInstallation, sandbox: SyncSandbox, key: str, name: str) -> Iterator[None]:
    """The program of the load itself, which has written its process id."""
    with contextlib.suppress(ColdframeError):
        sandbox.run_command(f"kill -SEGV $(head -c 20 begun-{key}) 2>/dev/null")
    yield


@contextlib.contextmanager
def _guest_lost(installation: JumpingInstallation, sandbox: SyncSandbox, key: str, name: str) -> Iterator[None]:
    keeper = Victims(installation).keepers.get(sandbox.id)
    assert keeper is not None and kill(keeper)
    yield


@contextlib.contextmanager
def _product_killed(installation: JumpingInstallation, sandbox: SyncSandbox, key: str, name: str) -> Iterator[None]:
    """Everything but the boxes, at once; whoever supervises it starts it again."""
    victims = Victims(installation)
    os.kill(installation.pid, signal.SIGKILL)
    for process in (*victims.servers, *victims.daemons, *victims.zygotes):
        kill(process)
    wait_until(lambda: not installation.running, "it has ended")
    revive(installation)
    yield


@contextlib.contextmanager
def _clock_jump(installation: JumpingInstallation, sandbox: SyncSandbox, key: str, name: str) -> Iterator[None]:
    """An hour ahead, and back again: for server and daemon. What a box sees of the machine's clock cannot be set for it."""
    installation.jump(3600)
    try:
        yield
    finally:
        installation.jump(0)


Fault = Callable[[JumpingInstallation, SyncSandbox, str, str], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {
    **dict.fromkeys(IN_BOX, _in_box),
    "application crash": _crash,
    "guest lost": _guest_lost,
    "product killed": _product_killed,
    "clock jump of 1 h": _clock_jump,
}


def is_alive(installation: JumpingInstallation, sandbox_id: str, agent_id: str) -> bool:
    """Whether the next command runs: in the same sandbox, or in a new one where that is lost."""

    def run(client: SyncColdframe) -> bool:
        sandbox = client.sandboxes.get(sandbox_id)
        if sandbox.info.state.state == "running":
            return sandbox.run_command("echo alive").stdout == "alive\n"
        with client.sandboxes.create(agent_id=agent_id) as another:
            return another.run_command("echo alive").stdout == "alive\n"

    return ask_until_told(installation, "the next command", run)
