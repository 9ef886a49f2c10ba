"""A short task on a copy of durable files: a sandbox that is thrown away, and back into the workspace only what was named."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from coldframe.cli.output import note

if TYPE_CHECKING:
    from coldframe.client.sync import SyncColdframe, SyncSandbox
    from coldframe.contract.sandbox import SandboxSpec

PATIENCE_S, PAUSE_S = 15.0, 0.5


def run_on_copy(
    client: "SyncColdframe",
    agent_id: str,
    spec: "SandboxSpec",
    run: "Callable[[SyncSandbox], int]",
    paths: Sequence[str],
) -> int:
    """Run on the files of an agent as they are now, in a sandbox of *spec* that ends with it, and put *paths* into the workspace
    afterwards. Nothing else of the workspace changes.

    Raises:
        FileMissing: the command ended with 0 and has not made one of them.
        WrongState: what ran there has a higher label than the workspace, so nothing is put back.
    """
    home = client.sandboxes.create(agent_id)  # of our own: another one may end at any time
    try:
        home.stop()  # files at rest are copied also where no process can be held still
        copy = _forked(home, spec)
        try:
            code = run(copy)
            if paths:
                home.start_again()
                _check_label(client, home, copy)
            for path in paths:
                _put_back(home, copy, path, is_needed=code == 0)
            return code
        finally:
            taken = client.sandboxes.get(copy.id).info.spec.snapshot
            copy.terminate(discard=True)
            if taken is not None:
                client.snapshots.remove(taken)
    finally:
        home.terminate()


def _forked(home: "SyncSandbox", spec: "SandboxSpec") -> "SyncSandbox":
    """Where nothing can be held still another run like this one is in the way for the moment in which it begins or ends."""
    from coldframe.contract.errors import WrongState

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return home.fork(spec=spec)
        except WrongState:
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE_S)


def _check_label(client: "SyncColdframe", home: "SyncSandbox", copy: "SyncSandbox") -> None:
    from coldframe.contract.errors import WrongState
    from coldframe.policy.labels import join

    here, there = (client.sandboxes.get(one.id).info.workspace_label for one in (home, copy))
    if join(here, there) is not here:
        raise WrongState(
            f"what ran on the copy is labelled {there.value}, and the workspace {here.value}: nothing is put back",
            hint=f"run it on the workspace itself, or raise its label first (coldframe agent label {home.info.agent_id})",
        )


def _put_back(home: "SyncSandbox", copy: "SyncSandbox", path: str, *, is_needed: bool) -> None:
    from coldframe.contract.errors import FileMissing

    try:
        home.upload(path, copy.download(path), source=f"{copy.id}/{path}")
    except FileMissing:
        if is_needed:
            raise
        note(f"there is no {path} to put back")
