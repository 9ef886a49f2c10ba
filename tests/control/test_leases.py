"""A lease ends when it says, also when that was moved to before. Access tokens open one sandbox for who has them, and what a
lease reaches is never more than the rules give."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    GrantMissing,
    HostUnreachable,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    WrongState,
)
from coldframe.contract.policy import Outcome, Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.control.leases import AtEnd, Lease, LeaseEgress, LeaseTerms
from coldframe.policy.network import Origin, judge_connection
from tests.control.bench import Bench, opened

BACKGROUND = SandboxSpec(background=True, on_timeout="terminate")


def caller_of(bench: Bench, role: Role = Role.OWNER, agent_id: str | None = None) -> Caller:
    secret, _ = bench.control.tokens.create(role, f"a {role}", agent_id=agent_id, form="e2b")
    return bench.control.tokens.authenticate(secret, surface="e2b")


async def leased(
    bench: Bench, caller: Caller, seconds: float | None, spec: SandboxSpec = BACKGROUND, **terms: object
) -> tuple[SandboxInfo, Lease]:
    info = await bench.control.creation.create(caller, spec)
    ends_at = None if seconds is None else bench.clock() + timedelta(seconds=seconds)
    return info, bench.control.leases.take(info.sandbox_id, caller, ends_at, LeaseTerms.model_validate(terms))


async def state_after(bench: Bench, info: SandboxInfo, seconds: float) -> str:
    bench.pass_time(timedelta(seconds=seconds))
    await bench.control.timers.turn()
    return bench.control.sandboxes.find(info.sandbox_id).state.state


@pytest.mark.req("T4.60")
@pytest.mark.parametrize(("at_end", "becomes"), [("terminate", "terminated"), ("pause", "paused"), ("stop", "stopped")])
def test_a_sandbox_becomes_what_its_lease_says_at_its_end(tmp_path: Path, at_end: AtEnd, becomes: str) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, _ = await leased(bench, caller_of(bench), 100, at_end=at_end)
            other, _ = await leased(bench, caller_of(bench), None)
            assert await state_after(bench, info, 95) == "running"
            assert bench.entries(kinds=("sandbox.expiring",))[-1].body["reason"] == "lease"
            assert await state_after(bench, info, 10) == becomes
            acted = bench.entries(sandbox_id=info.sandbox_id, kinds=(f"sandbox.{becomes}",))[-1]
            assert (acted.body["caller"], acted.body["reason"]) == ("timer", "lease")
            assert await state_after(bench, other, 1_000_000) == "running"

    asyncio.run(scenario())


@pytest.mark.req("T4.60")
def test_the_end_of_a_lease_can_be_moved_either_way_and_holds_over_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            caller = caller_of(bench)
            info, lease = await leased(bench, caller, 100)
            lease = bench.control.leases.set_end(lease, bench.clock() + timedelta(seconds=1000), caller)
            assert await state_after(bench, info, 500) == "running"
            await bench.restart()
            bench.control.leases.set_end(lease, bench.clock() + timedelta(seconds=5), caller)
            assert await state_after(bench, info, 6) == "terminated"
            ends = [entry.body["ends_at"] for entry in bench.entries(kinds=("sandbox.leased", "sandbox.lease_changed"))]
            assert len(set(ends)) == 3

    asyncio.run(scenario())


def test_variables_of_a_lease_are_there_for_each_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            caller = caller_of(bench)
            info, _ = await leased(bench, caller, None, environment={"GREETING": "hello"})
            result = await bench.control.gate.call(
                caller, info.sandbox_id, "run_command", {"command": 'echo "$GREETING"'}
            )
            assert result.value["stdout"] == "hello\n"

    asyncio.run(scenario())


def test_variables_of_a_lease_are_gone_with_its_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, _ = await leased(
                bench, caller_of(bench), 100, environment={"KEY": "a-secret-word"}, metadata={"a": "b"}
            )
            assert await state_after(bench, info, 101) == "terminated"
            kept = bench.control.leases.find(info.sandbox_id)
            assert kept is not None
            assert (kept.terms.environment, kept.terms.metadata) == ({}, {"a": "b"})

    asyncio.run(scenario())


def test_an_access_token_is_its_holder_in_one_sandbox_until_the_key_is_revoked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            access = bench.control.access_tokens
            owner, member = caller_of(bench), caller_of(bench, Role.MEMBER)
            (first, _), (second, _) = await leased(bench, owner, None), await leased(bench, member, None)
            tokens = [access.give(caller, one.sandbox_id) for caller in (owner, member) for one in (first, second)]
            assert len(set(tokens)) == 4
            assert all(len(token) == 64 and int(token, 16) for token in tokens)
            assert access.open(tokens[0], first.sandbox_id) == access.open(tokens[0], None)
            assert access.open(tokens[2], None).caller == member
            with pytest.raises(Unauthenticated):
                access.open(tokens[0], second.sandbox_id)
            with pytest.raises(Unauthenticated):
                access.open("0" * 64, first.sandbox_id)
            assert access.find(lambda token: token == tokens[3], None).sandbox_id == second.sandbox_id
            with pytest.raises(Unauthenticated):
                access.find(lambda token: token == tokens[3], first.sandbox_id)
            await bench.restart()
            access = bench.control.access_tokens
            assert access.give(member, second.sandbox_id) == tokens[3]
            bench.control.tokens.revoke(member.token_id, caller=owner)
            for token in (tokens[2], tokens[3]):
                with pytest.raises(Unauthenticated):
                    access.open(token, None)

    asyncio.run(scenario())


def test_a_key_of_an_agent_gets_no_access_to_another_agents_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox("ada")
            with pytest.raises(NotFound):
                bench.control.access_tokens.give(caller_of(bench, Role.AGENT, "bob"), info.sandbox_id)
            assert bench.control.access_tokens.give(caller_of(bench, Role.AGENT, "ada"), info.sandbox_id)

    asyncio.run(scenario())


def reaches(bench: Bench, info: SandboxInfo, role: Role = Role.OWNER) -> Callable[[str], bool]:
    """By the rules as the host has them."""
    rules = bench.control.rulebook.current.network

    def judged(destination: str) -> bool:
        origin = Origin(info.sandbox_id, info.agent_id, role, info.spec.network, info.workspace_label)
        place = ip_address(destination) if destination[0].isdigit() else destination
        return judge_connection(rules, origin, place, 443).outcome is Outcome.ALLOW

    return judged


def test_a_lease_says_what_its_sandbox_reaches_and_may_change_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            caller, networks = caller_of(bench), bench.control.lease_networks
            egress = LeaseEgress(
                everything=False, names=("api.example.com", "*.example.org"), addresses=("1.1.1.1/32",)
            )
            name = await networks.open(egress)
            spec = BACKGROUND.model_copy(update={"network": name})
            info, lease = await leased(bench, caller, None, spec, egress=egress, network=name)
            networks.made(name, lease)
            places = ("api.example.com", "a.example.org", "example.org", "1.1.1.1", "8.8.8.8")
            assert [reaches(bench, info)(place) for place in places] == [True, True, False, True, False]
            other = LeaseEgress(everything=False, addresses=("8.8.8.0/24",))
            lease = await networks.change(lease, info, other, caller)
            assert [reaches(bench, info)(place) for place in places] == [False, False, False, False, True]
            await bench.restart()
            assert [reaches(bench, info)(place) for place in places] == [False, False, False, False, True]
            text = bench.host.rules[-1]
            assert name in text
            assert name not in bench.control.rulebook.text

    asyncio.run(scenario())


def test_a_lease_never_opens_what_the_rules_close(tmp_path: Path) -> None:
    rules = """version: 1
network:
  profiles: {crm: {rules: [{id: crm, to: crm.example.com}]}}
  use: {"*": crm}
"""

    async def scenario() -> None:
        async with opened(tmp_path, rules) as bench:
            caller, networks = caller_of(bench, Role.MEMBER), bench.control.lease_networks
            egress = LeaseEgress(everything=False, names=("crm.example.com", "evil.example.com"))
            name = await networks.open(egress)
            spec = BACKGROUND.model_copy(update={"network": name})
            info, _ = await leased(bench, caller, None, spec, egress=egress, network=name)
            judged = reaches(bench, info, Role.MEMBER)
            assert (judged("crm.example.com"), judged("evil.example.com")) == (True, False)

    asyncio.run(scenario())


def test_what_no_rule_can_say_and_a_sandbox_without_network_are_refused_with_nothing_changed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            caller, networks = caller_of(bench), bench.control.lease_networks
            with pytest.raises(InvalidArgument):
                await networks.open(LeaseEgress(everything=False, addresses=("169.254.169.254/32",)))
            info, lease = await leased(bench, caller, None)
            with pytest.raises(WrongState):
                await networks.change(lease, info, LeaseEgress(everything=False, names=("a.example.com",)), caller)
            open_spec = BACKGROUND.model_copy(update={"network": "open"})
            info, lease = await leased(bench, caller, None, open_spec)
            narrow = LeaseEgress(everything=False, names=("a.example.com",))
            lease = await networks.change(lease, info, narrow, caller)
            assert [reaches(bench, info)(place) for place in ("a.example.com", "b.example.com")] == [True, False]
            await networks.change(lease, info, LeaseEgress(), caller)
            assert [reaches(bench, info)(place) for place in ("a.example.com", "b.example.com")] == [True, True]
            assert bench.control.rulebook.current.network.profiles == ("none", "packages", "open")

    asyncio.run(scenario())


CRM, NARROWER = "crm.example.com", LeaseEgress(everything=False, names=("a.crm.example.com",))
BELOW = LeaseEgress(everything=False, names=("*.crm.example.com",))


def test_whoever_may_not_choose_narrows_the_network_of_an_owners_sandbox_and_never_widens_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            owner, member, networks = caller_of(bench), caller_of(bench, Role.MEMBER), bench.control.lease_networks
            name = await networks.open(BELOW)
            spec = BACKGROUND.model_copy(update={"network": name})
            info, lease = await leased(bench, owner, None, spec, egress=BELOW, network=name)
            networks.made(name, lease)
            wide = (
                LeaseEgress(),
                LeaseEgress(everything=False, names=(CRM,)),
                LeaseEgress(everything=False, addresses=("1.1.1.1",)),
            )
            for egress in wide:
                with pytest.raises(GrantMissing):
                    await networks.change(lease, info, egress, member)
            assert reaches(bench, info)("b.crm.example.com")
            assert not reaches(bench, info)("evil.example.com")
            refused = bench.entries(kinds=("act.refused",))[-1]
            assert (refused.body["act"], refused.body["caller"]) == ("widen_network", member.name)
            lease = await networks.change(lease, info, NARROWER, member)
            assert [reaches(bench, info)(f"{one}.crm.example.com") for one in "ab"] == [True, False]
            with pytest.raises(GrantMissing):
                await networks.change(lease, info, BELOW, member)
            await networks.change(lease, info, LeaseEgress(), owner)
            assert reaches(bench, info)("evil.example.com")

    asyncio.run(scenario())


def test_a_narrowing_is_taken_back_by_those_alone_who_may_choose_and_gives_nothing_by_itself(tmp_path: Path) -> None:
    given = "version: 1\nnetwork: {use: {'*': open}}\n"

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            owner, member, networks = caller_of(bench), caller_of(bench, Role.MEMBER), bench.control.lease_networks
            spec = BACKGROUND.model_copy(update={"network": "open"})
            info, lease = await leased(bench, owner, None, spec)
            lease = await networks.change(lease, info, NARROWER, owner)
            with pytest.raises(GrantMissing):
                await networks.change(lease, info, LeaseEgress(), member)
            await bench.control.rulebook.load(given, caller=owner)
            lease = await networks.change(lease, info, LeaseEgress(), member)
            assert reaches(bench, info)("evil.example.com")
            by_rules, other = await leased(bench, member, None)
            await networks.change(other, by_rules, NARROWER, member)
            assert reaches(bench, by_rules, Role.MEMBER)("a.crm.example.com")
            await bench.control.rulebook.load("version: 1\n", caller=owner)
            assert not reaches(bench, by_rules, Role.MEMBER)("a.crm.example.com")

    asyncio.run(scenario())


def test_a_change_that_the_host_does_not_take_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            owner, networks = caller_of(bench), bench.control.lease_networks
            info, lease = await leased(bench, owner, None, BACKGROUND.model_copy(update={"network": "open"}))

            async def lost(_: str) -> None:
                raise HostUnreachable("the host does not answer")

            with monkeypatch.context() as patch:
                patch.setattr(bench.host, "use_network_rules", lost)
                with pytest.raises(HostUnreachable):
                    await networks.change(lease, info, NARROWER, owner)
            await bench.control.rulebook.use_more_network()
            assert reaches(bench, info)("evil.example.com")
            assert "narrow-" not in bench.host.rules[-1]

    asyncio.run(scenario())


def test_what_a_lease_keeps_is_forgotten_after_the_end_of_its_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            caller, leases = caller_of(bench), bench.control.leases
            info, _ = await leased(bench, caller, None, environment={"KEY": "a secret"})
            kept, _ = await leased(bench, caller, None)
            token = bench.control.access_tokens.give(caller, info.sandbox_id)
            await bench.control.endings.terminate(caller, info.sandbox_id, discard=True)
            await leased(bench, caller, None)
            assert (leases.find(info.sandbox_id), leases.environment(info.sandbox_id)) == (None, {})
            assert leases.find(kept.sandbox_id) is not None
            with pytest.raises(Unauthenticated):
                bench.control.access_tokens.open(token, None)

    asyncio.run(scenario())


def test_a_lease_is_given_time_by_those_alone_who_may_extend(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            _, lease = await leased(bench, caller_of(bench), 100)
            with pytest.raises(GrantMissing):
                bench.control.leases.set_end(lease, None, caller_of(bench, Role.VIEWER))

    asyncio.run(scenario())
