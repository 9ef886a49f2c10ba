"""Whatever fails while a sandbox is made, from its row to its record, is told with a code, and nothing of it is left."""

import errno
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, LedgerUnavailable
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxSpec
from coldframe.control.control import Control, build_control
from coldframe.control.ledger import Ledger
from coldframe.host import construction
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.life import KeeperLife
from coldframe.host.marks import Marks
from coldframe.host.remote import RemoteHost
from coldframe.host.workspaces import Workspaces
from tests.host.machines import needs_bubblewrap, processes_below, until
from tests.host.test_daemon import with_a_daemon

pytestmark = needs_bubblewrap
OWNER = Caller(token_id="tok_owner", role=Role.OWNER, surface="rest")
BROKEN = "as the test wants it"


def no_space(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, BROKEN)


def confined(*_: Any, **__: Any) -> Any:
    raise ConfineError("limit the box", BROKEN)


def unrecorded(append: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(ledger: Ledger, kind: str, *arguments: Any, **more: Any) -> Any:
        if kind == "sandbox.created":
            raise LedgerUnavailable(BROKEN)
        return append(ledger, kind, *arguments, **more)

    return refuse


STEPS: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "workspace": (Workspaces, "make", no_space, "INTERNAL"),
    "socket": (construction, "_listen", no_space, "INTERNAL"),
    "control groups": (BoxGroups, "create", confined, "ISOLATION_UNAVAILABLE"),
    "order": (BoxGroups, "descriptors", no_space, "ISOLATION_UNAVAILABLE"),
    "walls": (Workspaces, "history_of", lambda *_: f"/nonexistent/{BROKEN}", "ISOLATION_UNAVAILABLE"),
    "limits": (BoxGroups, "settle", confined, "ISOLATION_UNAVAILABLE"),
    "mark": (Marks, "write", no_space, "INTERNAL"),
    "measurement": (KeeperLife, "measure", no_space, "INTERNAL"),
    "record": (Ledger, "append", unrecorded(Ledger.append), "LEDGER_UNAVAILABLE"),
}
"""What breaks, and the code that it is told with. The walls are really refused, by bubblewrap."""


def left(folder: str) -> list[str]:
    """Of boxes."""
    found = [f"directory {name}" for name in os.listdir(os.path.join(folder, "boxes"))]
    found += [f"process {pid}" for pid in processes_below(folder)]
    own = f"coldframe-{Path(folder, 'host', 'installation').read_text().strip()}"
    for place, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"control group {name}" for name in names if own in place and name.startswith("sbx_")]
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        found += [f"mount {line}" for line in mounts if folder in line]
    return found


async def breaks(control: Control, folder: str, step: str, agent_id: str | None) -> None:
    place, name, broken, code = STEPS[step]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, broken)
        with pytest.raises(ColdframeError, match=BROKEN) as told:
            spec = SandboxSpec(agent_id=agent_id, background=agent_id is None)
            await control.creation.create(OWNER, spec, idempotency_key="key")
    assert told.value.code == code
    assert control.sandboxes.list(OWNER) == []
    assert await control.host.boxes() == []
    failed = control.ledger.entries(kinds=("sandbox.failed",))[-1]
    assert failed.body["code"] == code

    async def nothing() -> bool:
        return not left(folder)

    await until(nothing, f"nothing is left of a start that broke at its {step}")
    background = os.path.join(folder, "background")
    assert not os.path.exists(background) or not os.listdir(background)


@pytest.mark.req("T4.59")
def test_a_start_that_breaks_at_any_step_is_told_and_leaves_nothing() -> None:
    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        control = build_control(data_dir=folder, host=host, clock=lambda: datetime.now(UTC), rules_path=None)
        await control.start()
        try:
            for number, step in enumerate(STEPS):
                # of a workspace that is to be made, and of a temporary one
                await breaks(control, folder, step, f"agent-{number}" if number % 2 else None)
                await breaks(control, folder, step, f"other-{number}" if number % 2 == 0 else None)
            made = await control.creation.create(OWNER, SandboxSpec(background=True), idempotency_key="key")
            ran = await control.gate.call(OWNER, made.sandbox_id, "run_command", {"command": "echo now"})
            assert ran.value["stdout"] == "now\n"
            await control.lifecycle.terminate(OWNER, made.sandbox_id)
        finally:
            await control.close()
            await host.close()

    with_a_daemon(steps)
