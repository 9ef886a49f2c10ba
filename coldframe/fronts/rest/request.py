"""What every handler needs from its request."""

import re
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from coldframe.contract.caller import Caller
from coldframe.contract.errors import InvalidArgument, NotFound
from coldframe.contract.policy import Decision, Role
from coldframe.contract.sandbox import SandboxInfo, SessionInfo
from coldframe.control.control import Control
from coldframe.control.judgement import build_context, digest_of, judge_call
from coldframe.tools.registry import find_tool

_WHOLE = re.compile(r"-?[0-9]{1,17}")


def control_of(request: Request) -> Control:
    return cast("Control", request.app.control)


def caller_of(request: Request) -> Caller:
    """The caller that the door authenticated. A request that did not come through it has none, and fails."""
    return cast("Caller", request.scope["state"]["caller"])


def session_of(request: Request) -> str | None:
    return request.headers.get("coldframe-session")


def path_after(request: Request, marker: str) -> str:
    """What follows *marker* in the URL, byte for byte, with surrogate escapes for what is no UTF-8."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return unquote_to_bytes(raw.partition(marker.encode())[2]).decode("utf-8", "surrogateescape")


def number_of(request: Request, name: str, default: int | None) -> int | None:
    """A query parameter that is a whole number of at least -1."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not _WHOLE.fullmatch(text) or int(text) < -1:
        raise InvalidArgument(f"`{name}` is not a whole number: `{text[:40]}`", argument=name)
    return int(text)


def own_agent(caller: Caller, agent_id: str) -> str:
    """Return *agent_id*, unless the caller is another agent: then it is as good as not there."""
    if caller.role is Role.AGENT and caller.agent_id != agent_id:
        raise NotFound(f"no agent `{agent_id[:80]}`", hint="use the agent of your token")
    return agent_id


def own_session(caller: Caller, session: SessionInfo) -> SessionInfo:
    """Return *session*, unless it is another agent's."""
    if caller.role is Role.AGENT and (session.agent_id is None or session.agent_id != caller.agent_id):
        raise NotFound(f"no session `{session.session_id}`")
    return session


def judge_now(control: Control, caller: Caller, info: SandboxInfo, tool: str, arguments: dict[str, Any]) -> Decision:
    """What the gate would answer to a call in the sandbox's session now. Nothing is run or recorded.

    Raises:
        UnknownTool, InvalidArgument: the call would not come as far as a decision.
        PolicyUnavailable: it cannot be judged, so it would be refused.
    """
    checked = find_tool(tool).check(arguments)
    checked.fit(info.spec)
    taint = control.sandboxes.session(info).taint
    context = build_context(caller, info, info.session_id, taint, tool, checked.facts(), digest_of(arguments))
    return judge_call(context, control.rulebook.current)
