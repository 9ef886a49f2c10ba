"""What may be asked for when a sandbox is made, and what the rules leave of it."""

from collections.abc import Iterator
from typing import NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, GrantMissing, InvalidArgument, NotFound
from coldframe.contract.policy import Role
from coldframe.contract.profile import require_capability
from coldframe.contract.sandbox import LARGEST, Limits, SandboxSpec
from coldframe.contract.template import HOST
from coldframe.control.judgement import digest_of
from coldframe.control.rights import require
from coldframe.policy.network_rules import NONE
from coldframe.policy.rules import RuleSet

MOST_DENIED = 256
"""Programs that whoever makes a sandbox may deny in it beside the rules."""


_FIRST = frozenset(
    {
        *("agent_id", "background", "template", "profile", "isolation", "requires", "network", "limits", "runtimes"),
        *("leftovers", "track_files", "on_missing"),
    }
)
"""Fields that a spec had before any other was added."""
UNCAPPED = frozenset({"cpus", "io_mib_s"})
"""Limits that are none unless one is asked for."""


class Longest(NamedTuple):
    """What the operator lets timers be; None for anything."""

    idle_s: float | None = None
    age_s: float | None = None


ANY_LENGTH = Longest()


def timed(spec: SandboxSpec, longest: Longest) -> SandboxSpec:
    """With the operator's timers where it has none."""
    kept = {"idle_timeout_s": longest.idle_s, "max_age_s": longest.age_s}
    changed = {name: most for name, most in kept.items() if most is not None and getattr(spec, name) is None}
    return spec.model_copy(update=changed) if changed else spec


def check_spec(caller: Caller, spec: SandboxSpec, longest: Longest = ANY_LENGTH) -> None:
    """Return if *caller* may ask for that.

    Raises:
        GrantMissing, InvalidArgument: not this, or not by this caller; all that is in the way is told as `faults`.
        NotInProfile: its profile has no such thing.
        NotFound: an agent asks for what is not its own.
    """
    require(caller, "sandbox.create")
    if spec.template != HOST:
        require_capability(spec.profile, "templates")
    if spec.volumes:
        require_capability(spec.profile, "volume")
    if found := _faults(caller, spec, longest):
        first = min(found, key=lambda one: isinstance(one, GrantMissing))
        first.facts["faults"] = [{"argument": one.facts["argument"], "reason": one.message} for one in found]
        raise first
    if caller.role is Role.AGENT and (spec.background or spec.agent_id != caller.agent_id):
        raise NotFound(f"no agent `{spec.agent_id or 'background'}`", hint="use the agent of your token")


def faults_beside(
    caller: Caller, spec: SandboxSpec, left_out: frozenset[str], longest: Longest = ANY_LENGTH
) -> list[tuple[str, str]]:
    """Argument and reason of what is in the way of *spec*, of which the fields *left_out* are no such thing at all.

    Raises GrantMissing.
    """
    require(caller, "sandbox.create")
    found = ((str(one.facts["argument"]), one.message) for one in _faults(caller, spec, longest))
    return [(name, reason) for name, reason in found if not left_out & _TOGETHER.get(name, {name})]


_TOGETHER = {
    "agent_id": {"agent_id", "background"},
    "on_result": {"on_result", "background", "outputs", "max_age_s", "on_timeout"},
}
"""Which fields are looked at for a fault that is told of one of them."""


def _faults(caller: Caller, spec: SandboxSpec, longest: Longest) -> list[ColdframeError]:
    return [*_limit_faults(caller, spec.limits), *_other_faults(spec, longest)]


def _limit_faults(caller: Caller, limits: Limits) -> Iterator[ColdframeError]:
    """Limits go down for anybody and up for owner and admin alone (A-36), and never over what a machine can hold."""
    may_raise = caller.role in (Role.OWNER, Role.ADMIN)
    largest, defaults = LARGEST.model_dump(), Limits().model_dump()
    for name, wanted in limits.model_dump().items():
        if wanted > largest[name]:
            yield InvalidArgument(
                f"`{name}` of {wanted:g} is over {largest[name]:g}, the largest", argument=f"limits.{name}"
            )
        # 0 is no cap at all here, so any value is a tightening of the default.
        elif wanted > defaults[name] and name not in UNCAPPED and not may_raise:
            yield GrantMissing(
                f"`{name}` of {wanted:g} is over the default of {defaults[name]:g}",
                hint="ask for less, or have an owner or admin create the sandbox",
                argument=f"limits.{name}",
            )


def _other_faults(spec: SandboxSpec, longest: Longest) -> Iterator[ColdframeError]:
    if len(spec.denied_programs) > MOST_DENIED:  # bounds what looking for them by name can cost the host
        yield InvalidArgument(
            f"{len(spec.denied_programs)} denied programs are more than {MOST_DENIED}",
            hint="deny them by patterns such as `python3*`, or in the rules",
            argument="denied_programs",
        )
    if (spec.agent_id is None) != spec.background:
        yield InvalidArgument(
            "a sandbox has either an agent or a temporary background workspace",
            hint="give `agent_id`, or `background: true`",
            argument="agent_id",
        )
    if spec.on_result == "delete" and not _is_deletable(spec, longest):
        yield InvalidArgument(
            "a result that is deleted when it was fetched is that of a temporary workspace, and kept for a stated time",
            hint="give `background: true`, `outputs`, `max_age_s`, and `on_timeout: terminate`",
            argument="on_result",
        )
    for name, most in (("idle_timeout_s", longest.idle_s), ("max_age_s", longest.age_s)):
        wanted = getattr(spec, name)
        if most is not None and wanted is not None and wanted > most:
            yield InvalidArgument(
                f"`{name}` of {wanted:g} is over {most:g}, which the operator of this installation has set",
                hint=f"ask for {most:g} or less",
                argument=name,
            )


def _is_deletable(spec: SandboxSpec, longest: Longest) -> bool:
    is_kept_for_a_time = spec.on_timeout == "terminate" and (spec.max_age_s or longest.age_s) is not None
    return spec.background and bool(spec.outputs) and is_kept_for_a_time


def restricted(spec: SandboxSpec, rules: RuleSet) -> SandboxSpec:
    """With the programs that the rules leave a new sandbox of this agent; limits are told to the box, not built in."""
    agent_id = spec.agent_id or "background"
    denied = tuple(dict.fromkeys((*spec.denied_programs, *rules.denied_programs_of(agent_id))))
    if denied != spec.denied_programs:
        spec = spec.model_copy(update={"denied_programs": denied})
    allowed = rules.runtimes_of(agent_id)
    if allowed is None:
        return spec
    wanted = allowed if spec.runtimes is None else spec.runtimes
    return spec.model_copy(update={"runtimes": tuple(name for name in wanted if name in allowed)})


def tightened(spec: SandboxSpec, rules: RuleSet | None) -> SandboxSpec:
    """With the limits that the rules put on the agent, where they are lower."""
    lower = {} if rules is None else rules.limits_of(spec.agent_id or "background")
    changed = {name: value for name, value in lower.items() if value < getattr(spec.limits, name)}
    if not changed:
        return spec
    return spec.model_copy(update={"limits": spec.limits.model_copy(update=changed)})


def digests_of(spec: SandboxSpec) -> list[str]:
    """What was asked for, as it is remembered with the key, and behind that as earlier versions have remembered the same.

    None of them knew the fields that came later, so those are told only where something is asked for. Before there was a
    network, everybody was told to have asked for `none`; so whoever asks for that now is told in other words, and is not
    taken for somebody who asks for nothing. What is a sandbox or a workspace now, was `exec`.
    """
    fields = SandboxSpec.model_fields
    unsaid = {name for name in fields if name not in _FIRST and getattr(spec, name) == fields[name].default}
    told = spec.model_dump(mode="json", exclude=unsaid)
    if not spec.limits.io_mib_s:  # a limit that came later
        del told["limits"]["io_mib_s"]
    forms = [told]
    if spec.network is None or spec.network == NONE:
        forms = [{**told, "network": None if spec.network is None else [NONE]}, {**told, "network": NONE}]
    if spec.profile in ("sandbox", "workspace"):
        forms += [{**form, "profile": "exec"} for form in forms]
    return [digest_of({"operation": "sandbox.create", "spec": form}) for form in forms]
