"""What somebody wants who creates a sandbox by E2B, as a spec and a lease of ours.

A field that we cannot keep to is refused with the reason: a sandbox that quietly does less than was asked for is worse than none.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from coldframe.contract.errors import InvalidArgument, NotFound
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import LARGEST, LONGEST_TIMER_S, Limits, SandboxSpec
from coldframe.contract.template import HOST
from coldframe.control.leases import AtEnd, LeaseTerms
from coldframe.fronts.e2b.egress import Egress, read_egress
from coldframe.fronts.e2b.named_snapshots import find_by_id, find_by_name, source_of
from coldframe.fronts.e2b.routes import E2bCall, refuse_field
from coldframe.fronts.e2b.template_names import STAND_INS, find_template, id_of, read_name, size_of

BARE = "debian"
"""A template without Python, Git and Node, which E2B's own have."""
MOST_WORDS = 200
MOST_CHARACTERS = 32_768
MOST_TOGETHER = 131_072
AGENT_KEY = "coldframe.agent"
"""Metadata that give a sandbox the durable workspace of an agent in place of a temporary one."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNKNOWN = {
    "iam": ("this server issues no workload identities", "give the sandbox a credential: `coldframe credential add`"),
}


class Wish(NamedTuple):
    """A sandbox that is asked for."""

    spec: SandboxSpec
    terms: LeaseTerms
    timeout_s: float


async def read_wish(call: E2bCall, body: Mapping[str, Any], *, default_timeout_s: int) -> Wish:
    """Raises InvalidArgument, NotFound."""
    for name, (why, hint) in _UNKNOWN.items():
        if body.get(name):
            raise refuse_field(name, why, hint)
    template = body.get("templateID")
    if not isinstance(template, str) or not template.strip():
        raise InvalidArgument("`templateID` names the template to begin from", argument="templateID")
    metadata = read_words(body.get("metadata"), "metadata")
    egress = read_egress(body)
    given: dict[str, Any] = {
        "on_timeout": "terminate",
        "on_missing": call.on_missing,
        "network": _network(call, egress),
        "volumes": _volumes(body.get("volumeMounts")),
    }
    agent_id = metadata.get(AGENT_KEY)
    given |= {"background": True} if agent_id is None else {"agent_id": agent_id}
    asked: dict[str, Any] = {"network": egress.told} if egress.told else {}
    snapshot, found = find_by_id(call.control, call.caller, template), None
    if snapshot is None:
        try:
            found = await _template(call, template)
        except NotFound:
            snapshot = find_by_name(call.control, call.caller, template)
            if snapshot is None:
                raise
    if snapshot is not None:
        source = source_of(snapshot)
        given |= {"snapshot": source.snapshot_id, "template": source.template}
        asked |= {"templateID": template}
    elif found is not None:
        ref, named = found
        given |= {"template": ref, "limits": await _limits(call, ref)}
        asked |= {"templateID": named[0], "alias": named[1]}
    terms = LeaseTerms(
        **_lifecycle(body),
        resume_s=max(1, round(read_timeout(body.get("timeout"), default_timeout_s))),
        needs_token=egress.needs_token,
        egress=None if egress.nothing else egress.lease,
        host=egress.host,
        metadata=metadata,
        environment=read_variables(body.get("envVars")),
        asked=asked,
    )
    try:
        spec = SandboxSpec.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = {"agent_id": f"metadata.{AGENT_KEY}", "volumes": "volumeMounts"}.get(
            str(first["loc"][0]) if first["loc"] else "", ""
        )
        raise InvalidArgument(f"`{where or 'templateID'}`: {first['msg']}", argument=where or "templateID") from None
    return Wish(spec, terms, read_timeout(body.get("timeout"), default_timeout_s))


def read_timeout(value: object, default_s: int) -> float:
    """Seconds from now. Raises InvalidArgument."""
    if value is None:
        return float(default_s)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_TIMER_S:
        raise InvalidArgument(f"`timeout` is a number of seconds from 0 to {LONGEST_TIMER_S:.0f}", argument="timeout")
    return float(value)


def read_words(value: object, name: str) -> dict[str, str]:
    """An object of texts. Raises InvalidArgument."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MOST_WORDS:
        raise InvalidArgument(f"`{name}` is an object of at most {MOST_WORDS} texts", argument=name)
    if sum(len(str(key)) + len(str(text)) for key, text in value.items()) > MOST_TOGETHER:
        raise InvalidArgument(f"`{name}` has more than {MOST_TOGETHER} characters together", argument=name)
    for key, text in value.items():
        if not isinstance(text, str) or len(text) + len(key) > MOST_CHARACTERS:
            raise InvalidArgument(f"`{name}`: `{str(key)[:80]}` is no text, or too long", argument=name)
    return dict(value)


def read_variables(value: object) -> dict[str, str]:
    found = read_words(value, "envVars")
    for name, text in found.items():
        if _VARIABLE.fullmatch(name) is None or "\0" in text:
            raise InvalidArgument(f"`{name[:80]}` is no variable", argument="envVars")
    return found


def _lifecycle(body: Mapping[str, Any]) -> dict[str, Any]:
    resume = body.get("autoResume")
    resumes = bool(resume.get("enabled", False)) if isinstance(resume, dict) else bool(resume)
    at_end: AtEnd = "terminate"
    if body.get("autoPause"):
        at_end = "pause" if body.get("autoPauseMemory") is not False else "stop"
    if resumes and at_end == "stop":
        raise InvalidArgument(
            "what was paused without its memory is not resumed by traffic, so `autoResume` cannot be kept",
            hint="leave out `autoPauseMemory: false`, or resume it by `connect`",
            argument="autoResume",
        )
    return {"at_end": at_end, "resumes_by_itself": resumes}


def _volumes(value: object) -> list[dict[str, str]]:
    found = []
    for one in value if isinstance(value, list) else []:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not isinstance(one.get("path"), str):
            raise InvalidArgument("`volumeMounts` are objects with `name` and `path`", argument="volumeMounts")
        found.append({"name": one["name"], "at": one["path"], "mode": "rw"})
    return found


async def _template(call: E2bCall, text: str) -> tuple[str, tuple[str, str | None]]:
    """What to begin from, and its id and name for E2B. A name of E2B's own for which nothing stands here is the machine."""
    try:
        ref = await find_template(call.control, call.caller, text)
    except (NotFound, InvalidArgument):
        if text not in STAND_INS:
            raise NotFound(
                f"template `{text[:100]}` not found",
                hint="`coldframe template list` shows those that there are; `base` is always there",
                template=text[:100],
            ) from None
        return HOST, (id_of(text), text)
    if ref.partition(":")[0] == BARE and text in STAND_INS:
        return HOST, (id_of(text), text)  # which has more of what programs of E2B look for
    name = ref.partition(":")[0] if text.partition(":")[0] not in STAND_INS else read_name(text).name
    return ref, (id_of(name), name)


async def _limits(call: E2bCall, ref: str) -> dict[str, float]:
    """Commands end with the lease, and not before; size is what the template was built for, if it says so. Of both, whoever
    may not raise limits has no more than the defaults."""
    limits: dict[str, float] = {"wall_s": LARGEST.wall_s, "cpu_s": LARGEST.wall_s}
    if ref != HOST and (sizes := await size_of(call.control, call.caller, ref)) is not None:
        limits |= {"cpus": sizes.cpus, "memory_mib": sizes.memory_mib}
    if call.caller.role in (Role.OWNER, Role.ADMIN):
        return limits
    most = Limits()
    return {name: value if name == "cpus" else min(value, getattr(most, name)) for name, value in limits.items()}


def _network(call: E2bCall, egress: Egress) -> str | None:
    """The profile to ask for: none where the rules give one, which is what holds then; else as open as whoever may choose can have
    it, since that is what E2B gives."""
    if egress.nothing:
        return "none"
    rules, caller = call.control.rulebook.current.network, call.caller
    if rules.granted(sandbox_id="", agent_id=None, role=caller.role):
        return None
    return "open" if caller.role in (Role.OWNER, Role.ADMIN) else None
