"""What may be asked for when a sandbox is made, and what the rules leave of it."""

from typing import NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, InvalidArgument
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import LARGEST, Limits, SandboxSpec
from coldframe.control.judgement import digest_of
from coldframe.policy.network_rules import NONE
from coldframe.policy.rules import RuleSet

MOST_DENIED = 256
"""Programs that whoever makes a sandbox may deny in it beside the rules."""


_LATER = ("denied_programs", "idle_timeout_s", "max_age_s", "on_timeout")


class Longest(NamedTuple):
    """What the operator lets timers be; None for anything."""

    idle_s: float | None = None
    age_s: float | None = None


ANY_LENGTH = Longest()


def timed(spec: SandboxSpec, longest: Longest) -> SandboxSpec:
    """With the operator's timers where it has none.

    Raises:
        InvalidArgument: it asks for longer ones.
    """
    changed = {}
    for name, most in (("idle_timeout_s", longest.idle_s), ("max_age_s", longest.age_s)):
        wanted = getattr(spec, name)
        if most is not None and wanted is None:
            changed[name] = most
        elif most is not None and wanted > most:
            raise InvalidArgument(
                f"`{name}` of {wanted:g} is over {most:g}, which the operator of this installation has set",
                hint=f"ask for {most:g} or less",
                argument=name,
            )
    return spec.model_copy(update=changed) if changed else spec


def check_denied(names: tuple[str, ...]) -> None:
    """Bound what looking for programs by name can cost the host. What the rules deny comes on top.

    Raises:
        InvalidArgument: there are more.
    """
    if len(names) > MOST_DENIED:
        raise InvalidArgument(
            f"{len(names)} denied programs are more than {MOST_DENIED}",
            hint="deny them by patterns such as `python3*`, or in the rules",
            argument="denied_programs",
        )


def check_limits(caller: Caller, limits: Limits) -> None:
    """Limits go down for anybody and up for owner and admin alone (A-36), and never over what a machine can hold.

    Raises:
        InvalidArgument: with the first limit that is over the largest, and the largest.
        GrantMissing: with the first limit that is over the default, and the default.
    """
    for name, most in LARGEST.model_dump().items():
        wanted = getattr(limits, name)
        if wanted > most:
            raise InvalidArgument(f"`{name}` of {wanted:g} is over {most:g}, the largest", argument=f"limits.{name}")
    if caller.role in (Role.OWNER, Role.ADMIN):
        return
    for name, default in Limits().model_dump().items():
        wanted = getattr(limits, name)
        # `cpus` 0 is no cap at all, so any value is a tightening of the default.
        if wanted > default and name != "cpus":
            raise GrantMissing(
                f"`{name}` of {wanted:g} is over the default of {default:g}",
                hint="ask for less, or have an owner or admin create the sandbox",
                argument=f"limits.{name}",
            )


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

    None of them knew `denied_programs` and timers, so those are told only where there are some. Before there was a network, everybody
    was told to have asked for `none`; so whoever asks for that now is told in other words, and is not taken for somebody
    who asks for nothing.
    """
    unsaid = {name for name in _LATER if getattr(spec, name) == SandboxSpec.model_fields[name].default}
    told = spec.model_dump(mode="json", exclude=unsaid)
    forms = [told]
    if spec.network is None or spec.network == NONE:
        forms = [{**told, "network": None if spec.network is None else [NONE]}, {**told, "network": NONE}]
    return [digest_of({"operation": "sandbox.create", "spec": form}) for form in forms]
