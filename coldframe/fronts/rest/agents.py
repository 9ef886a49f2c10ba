"""Agents, their workspaces and their sessions."""

from typing import Any

from starlette.requests import Request

from coldframe.contract.errors import WrongState, from_wire
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import AgentInfo, SandboxSpec, SessionInfo, checked_agent_id
from coldframe.control.rights import require
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of, own_agent, own_session

CLEAN_SCRATCH = ("sh", "-c", "chmod -R u+rwX scratch && find scratch -mindepth 1 -delete")
"""Directories that deny their owner would stop `find`, so their modes come first."""


class NewAgent(Model):
    agent_id: str


class NewLabel(Model):
    label: Label
    reason: str


async def create_agent(request: Request, body: NewAgent) -> AgentInfo:
    """Make an agent with its workspace, or return the one there is."""
    caller = caller_of(request)
    require(caller, "agent.create")
    return await control_of(request).agents.ensure(checked_agent_id(body.agent_id), caller=caller)


async def list_agents(request: Request) -> list[AgentInfo]:
    caller = caller_of(request)
    require(caller, "agent.read")
    return [agent for agent in control_of(request).agents.list() if caller.agent_id in (None, agent.agent_id)]


async def get_agent(request: Request) -> AgentInfo:
    caller = caller_of(request)
    require(caller, "agent.read")
    return control_of(request).agents.get(own_agent(caller, request.path_params["agent_id"]))


async def delete_agent(request: Request) -> dict[str, Any]:
    """Delete the workspace; refused while a sandbox runs on it. The ledger keeps all it has."""
    await control_of(request).agents.delete(request.path_params["agent_id"], caller=caller_of(request))
    return {"ok": True}


async def set_label(request: Request, body: NewLabel) -> AgentInfo:
    """Set the label of a workspace, also downward; owner and admin only, with a reason, recorded."""
    control, agent_id = control_of(request), request.path_params["agent_id"]
    info = control.agents.set_label(agent_id, body.label, caller=caller_of(request), reason=body.reason)
    await control.taints.settle_agent(agent_id)
    return info


async def clean_scratch(request: Request) -> dict[str, Any]:
    """Empty the `scratch` directory and touch nothing else."""
    control, caller, agent_id = control_of(request), caller_of(request), request.path_params["agent_id"]
    require(caller, "agent.clean")
    control.agents.get(agent_id)
    mine = [box for box in control.sandboxes.list(caller) if box.agent_id == agent_id and box.state.state == "running"]
    box = mine[0] if mine else await control.creation.create(caller, SandboxSpec(agent_id=agent_id))
    try:
        # As the sandbox's own user, through the gate: a link planted in place of `scratch` is not followed.
        result = await control.gate.call(caller, box.sandbox_id, "run_command", {"command": list(CLEAN_SCRATCH)})
    finally:
        if not mine:
            await control.lifecycle.terminate(caller, box.sandbox_id)
    if result.error is not None:
        raise from_wire(result.error)
    if result.value["exit_code"] != 0:
        raise WrongState(
            f"`scratch` could not be emptied: {str(result.value['stderr']).strip()[-300:]}",
            hint="look at the modes of what is left in `scratch`",
            command_id=str(result.value["command_id"]),
        )
    return {"ok": True, "call_id": result.call_id}


async def get_session(request: Request) -> SessionInfo:
    """One session with its taint."""
    caller = caller_of(request)
    require(caller, "session.read")
    return own_session(caller, control_of(request).sessions.get(request.path_params["session_id"]))


async def reset_session(request: Request) -> SessionInfo:
    """Archive the session and open a new one at PUBLIC. The label of the workspace stays."""
    return await control_of(request).taints.reset(request.path_params["session_id"], caller=caller_of(request))


_ALL = "/v1/agents"
_ONE = _ALL + "/{agent_id}"
_SESSION = "/v1/sessions/{session_id}"
ROUTES = (
    JsonRoute("POST", _ALL, create_agent, AgentInfo, body=NewAgent),
    JsonRoute("GET", _ALL, list_agents, list[AgentInfo]),
    JsonRoute("GET", _ONE, get_agent, AgentInfo),
    JsonRoute("DELETE", _ONE, delete_agent, Any),
    JsonRoute("PUT", _ONE + "/label", set_label, AgentInfo, body=NewLabel),
    JsonRoute("POST", _ONE + "/scratch/clean", clean_scratch, Any),
    JsonRoute("GET", _SESSION, get_session, SessionInfo),
    JsonRoute("POST", _SESSION + "/reset", reset_session, SessionInfo),
)
