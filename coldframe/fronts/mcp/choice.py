"""Which sandbox a call is about. A client that has one need not name it; where there are more, none is guessed."""

from coldframe.contract.caller import Caller
from coldframe.contract.errors import InvalidArgument, NotFound, next_action
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.call_records import ids_of
from coldframe.control.control import Control

MOST_TOLD = 20
"""Sandboxes named in the answer to a call that has to choose."""


def choose_sandbox(control: Control, caller: Caller, sandbox_id: str | None, workspace: str | None) -> str:
    """The id given; else the newest that runs on *workspace*; else the only one of the caller's that runs.

    Raises:
        NotFound: none runs.
        InvalidArgument: several do.
    """
    if sandbox_id is not None:
        return sandbox_id
    running = control.sandboxes.list(caller, states=("running",), agent_id=workspace)
    if not running:
        raise NotFound(
            "no sandbox runs" if workspace is None else f"no sandbox runs on the workspace `{workspace[:80]}`",
            hint="make one with `create_workspace`, or name a `sandbox_id` of `list_sandboxes`",
            next_actions=[
                next_action("create_workspace", "makes a sandbox, on a workspace that is there or a new one")
            ],
        )
    if workspace is None and len(running) > 1:
        raise InvalidArgument(
            f"{len(running)} sandboxes run, so say which",
            hint="give `sandbox_id` or `workspace`",
            next_actions=[next_action("list_sandboxes", "lists them with their workspaces")],
            argument="sandbox_id",
            sandboxes=[one.sandbox_id for one in running[:MOST_TOLD]],
        )
    return running[0].sandbox_id


def sandbox_of_command(control: Control, caller: Caller, command_id: str, sandbox_id: str | None = None) -> SandboxInfo:
    """The sandbox that a command was started in. Raises NotFound if there is no such command, or it is not the caller's."""
    missing = NotFound(f"no command `{command_id[:80]}`", command_id=command_id[:80])
    if sandbox_id is None:
        started = control.ledger.course(ids_of(command_id).call_id).get("call.started")
        if started is None or started.body.get("command_id") != command_id:
            raise missing
        sandbox_id = str(started.body["sandbox_id"])
    try:
        return control.sandboxes.get(caller, sandbox_id)
    except NotFound:
        raise missing from None
