"""Agents, their workspaces and their sessions."""

from fastapi import APIRouter, Response

from coldframe.contract.errors import WrongState, from_wire
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import AgentInfo, SandboxSpec, SessionInfo, checked_agent_id
from coldframe.control.rights import require
from coldframe.fronts.answers import json_response
from coldframe.fronts.rest.request import OneCaller, TheControl, own_agent, own_session

router = APIRouter(prefix="/v1")


CLEAN_SCRATCH = ("sh", "-c", "chmod -R u+rwX scratch && find scratch -mindepth 1 -delete")
"""Directories that deny their owner would stop `find`, so their modes come first."""


class NewAgent(Model):
    agent_id: str


class NewLabel(Model):
    label: Label
    reason: str


@router.post("/agents")
async def create_agent(body: NewAgent, caller: OneCaller, control: TheControl) -> AgentInfo:
    """Make an agent with its workspace, or return the one there is."""
    require(caller, "agent.create")
    return await control.agents.ensure(checked_agent_id(body.agent_id), caller=caller)


@router.get("/agents")
async def list_agents(caller: OneCaller, control: TheControl) -> list[AgentInfo]:
    require(caller, "agent.read")
    return [agent for agent in control.agents.list() if caller.agent_id in (None, agent.agent_id)]


@router.get("/agents/{agent_id}")
async def get_agent(agent_id: str, caller: OneCaller, control: TheControl) -> AgentInfo:
    require(caller, "agent.read")
    return control.agents.get(own_agent(caller, agent_id))


@router.delete("/agents/{agent_id}")
async def delete_agent(agent_id: str, caller: OneCaller, control: TheControl) -> Response:
    """Delete the workspace; refused while a sandbox runs on it. The ledger keeps all it has."""
    await control.agents.delete(agent_id, caller=caller)
    return json_response({"ok": True})


@router.put("/agents/{agent_id}/label")
async def set_label(agent_id: str, body: NewLabel, caller: OneCaller, control: TheControl) -> AgentInfo:
    """Set the label of a workspace, also downward; owner and admin only, with a reason, recorded."""
    return control.agents.set_label(agent_id, body.label, caller=caller, reason=body.reason)


@router.post("/agents/{agent_id}/scratch/clean")
async def clean_scratch(agent_id: str, caller: OneCaller, control: TheControl) -> Response:
    """Empty the `scratch` directory and touch nothing else."""
    require(caller, "agent.clean")
    control.agents.get(agent_id)
    mine = [box for box in control.sandboxes.list(caller) if box.agent_id == agent_id and box.state.state == "running"]
    box = mine[0] if mine else await control.sandboxes.create(caller, SandboxSpec(agent_id=agent_id))
    try:
        # As the sandbox's own user, through the gate: a link planted in place of `scratch` is not followed.
        result = await control.gate.call(caller, box.sandbox_id, "run_command", {"command": list(CLEAN_SCRATCH)})
    finally:
        if not mine:
            await control.sandboxes.terminate(caller, box.sandbox_id)
    if result.error is not None:
        raise from_wire(result.error)
    if result.value["exit_code"] != 0:
        raise WrongState(
            f"`scratch` could not be emptied: {str(result.value['stderr']).strip()[-300:]}",
            hint="look at the modes of what is left in `scratch`",
            command_id=str(result.value["command_id"]),
        )
    return json_response({"ok": True, "call_id": result.call_id})


@router.get("/sessions/{session_id}")
async def get_session(session_id: str, caller: OneCaller, control: TheControl) -> SessionInfo:
    """One session with its taint."""
    require(caller, "session.read")
    return own_session(caller, control.sessions.get(session_id))


@router.post("/sessions/{session_id}/reset")
async def reset_session(session_id: str, caller: OneCaller, control: TheControl) -> SessionInfo:
    """Archive the session and open a new one at PUBLIC. The label of the workspace stays."""
    return control.sessions.reset(session_id, caller=caller)
