"""Promise: a secret is given to one request at a time that may have it, counted and on record, and shows nowhere else."""

import asyncio
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from coldframe.contract.credential import HANDLE, CredentialInfo, NewCredential
from coldframe.contract.errors import (
    Conflict,
    CredentialRevoked,
    CredentialUnreadable,
    GrantMissing,
    InvalidArgument,
    NotFound,
)
from coldframe.contract.network import NetworkAnswer, NetworkQuestion, NetworkRequest
from coldframe.contract.policy import Label, Outcome, Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from tests.control.bench import AGENT, OWNER, VIEWER, Bench, opened, until
from tests.fakes.network import contact

SECRET = "s3cret-Canary-0123456789"
RULES = """version: 1
rules:
  - {id: no-late-uses, hook: SECRET_ACCESS, when: {credential: ruled, path: {glob: "/v1/never*"}}, then: deny, reason: "not that"}
  - {id: ask-first, hook: SECRET_ACCESS, when: {credential: ruled, uses: {at_least: 1}}, then: ask}
network:
  profiles:
    crm:
      rules:
        - {id: crm, to: api.example.com, methods: [GET, POST], label: CONFIDENTIAL}
  use:
    "*": crm
"""


def new(**changes: Any) -> NewCredential:
    given = {
        "name": "crm",
        "base": "https://api.example.com/v1",
        "variable": "CRM_TOKEN",
        "agents": ["ada"],
        "secret": SECRET,
    }
    return NewCredential.model_validate(given | changes)


def add(bench: Bench, **changes: Any) -> CredentialInfo:
    return bench.control.credentials.add(new(**changes), caller=OWNER)


def handle(bench: Bench, info: SandboxInfo, name: str = "crm") -> str:
    return next(one.handle for one in bench.control.credentials.handles(info) if one.credential == name)


async def ask(bench: Bench, info: SandboxInfo, held: str, **changes: Any) -> NetworkAnswer:
    """As the host does, about a request that was allowed."""
    given: dict[str, Any] = {"method": "GET", "path": "/v1/items", "label": Label.CONFIDENTIAL} | changes
    number = len(bench.host._waiting) + int(bench.clock().timestamp() * 1_000_000)
    question = NetworkQuestion(
        question_id=f"q{number}",
        sandbox_id=info.sandbox_id,
        kind="secret",
        label=given["label"],
        contact=contact(mode="intercept", **given.pop("contact", {})),
        request=NetworkRequest(
            method=given["method"],
            path=given["path"],
            outcome=Outcome.ALLOW,
            rule_id="crm",
            label=given["label"],
            at=bench.clock(),
        ),
        handle=held,
        header=given.get("header", "authorization: Bearer {secret}"),
        is_verified=given.get("is_verified", True),
    )
    await until(lambda: bench.host.has_reader)
    return await bench.host.ask(question)


def everything(bench: Bench) -> bytes:
    """All that is on disk beside the key, and all that the public surface tells."""
    bench.control.store.settle()
    found = [path.read_bytes() for path in bench.root.rglob("*") if path.is_file()]
    shown = [*bench.entries(), *bench.control.credentials.list(OWNER)]
    return b"".join(found) + repr(shown).encode() + "".join(one.model_dump_json() for one in shown).encode()


@pytest.mark.req("T2.33")
def test_a_request_that_fits_gets_the_secret_once_counted_and_on_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            added = add(bench, budget=3, purpose="reports", label="CONFIDENTIAL")
            held = handle(bench, info)
            assert HANDLE.fullmatch(held.encode()) and handle(bench, info) == held
            answer = await ask(bench, info, held)
            assert (answer.secret, answer.credential, answer.refusal) == (SECRET, "crm", None)
            (entry,) = bench.entries(kinds=["secret.used"])
            assert entry.subject == added.credential_id
            body = entry.body
            assert (body["credential"], body["host"], body["method"], body["path"]) == (
                *("crm", "api.example.com", "GET", "/v1/items"),
            )
            assert (body["sandbox_id"], body["agent_id"], body["uses"]) == (info.sandbox_id, "ada", 1)
            assert body["session_id"] == info.session_id and body["decision"]["hook"] == "SECRET_ACCESS"
            assert body["context"]["purpose"] == "reports"
            (use,) = bench.control.credentials.uses("crm", VIEWER)
            assert (use.outcome, use.host, use.path) == ("used", "api.example.com", "/v1/items")
            assert bench.control.credentials.get("crm", VIEWER).uses == 1
            assert SECRET not in repr(answer)
            assert SECRET.encode() not in everything(bench)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "POST"}, "POST"),
        ({"path": "/v2/items"}, "path"),
        ({"contact": {"name": "other.example.com"}}, "another place"),
        ({"contact": {"port": 8443}}, "another place"),
        ({"contact": {"scheme": "http", "port": 80}}, "TLS"),
        ({"is_verified": False}, "TLS"),
        ({"header": "x-key: {secret}"}, "header"),
        ({"label": Label.PUBLIC}, "label"),
    ],
)
@pytest.mark.req("T3.52")
def test_any_other_request_gets_nothing_and_that_is_on_record(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench, label="CONFIDENTIAL")
            answer = await ask(bench, info, handle(bench, info), **changes)
            assert (answer.secret, answer.code) == (None, "DENIED_BY_RULE")
            assert reason in str(answer.refusal)
            assert [entry.body["code"] for entry in bench.entries(kinds=["secret.refused"])] == ["DENIED_BY_RULE"]
            assert bench.control.credentials.get("crm", OWNER).uses == 0

    asyncio.run(scenario())


def test_a_handle_is_worth_nothing_in_another_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            mine, other = await bench.sandbox(), await bench.sandbox()
            add(bench, agents=["*"])
            held = handle(bench, mine)
            assert handle(bench, other) != held
            for odd in (held, "cfh_" + "0" * 48, ""):
                answer = await ask(bench, other, odd)
                assert (answer.secret, answer.code) == (None, "DENIED_BY_RULE")
            assert (await ask(bench, mine, held)).secret == SECRET

    asyncio.run(scenario())


def test_a_handle_that_came_to_a_sandbox_of_nobody_who_is_named_is_worth_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            ada, bob = await bench.sandbox("ada"), await bench.sandbox("bob")
            add(bench)
            held = handle(bench, ada)
            with bench.control.store.transaction() as connection:
                connection.exec_driver_sql("UPDATE credential_handles SET sandbox_id = ?", (bob.sandbox_id,))
            answer = await ask(bench, bob, held)
            assert (answer.secret, answer.code) == (None, "DENIED_BY_RULE")
            assert "not for this sandbox" in str(answer.refusal)

    asyncio.run(scenario())


def test_a_credential_is_for_the_agents_and_roles_that_are_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            ada, bob = await bench.sandbox("ada"), await bench.sandbox("bob")
            add(bench)
            add(bench, name="made-by-owners", variable="OWN", agents=[], roles=["owner"])
            add(bench, name="made-by-viewers", variable="VIEW", agents=[], roles=["viewer"])
            names = [[one.credential for one in bench.control.credentials.handles(info)] for info in (ada, bob)]
            assert names == [["crm", "made-by-owners"], ["made-by-owners"]]
            with pytest.raises(InvalidArgument):
                add(bench, name="nobodys", agents=[])

    asyncio.run(scenario())


def test_a_sandbox_without_an_agent_is_none_of_all_agents_and_is_named_by_role_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.control.creation.create(OWNER, SandboxSpec(background=True))
            add(bench, agents=["*"])
            assert bench.control.credentials.handles(info) == []
            add(bench, name="by-role", variable="OWN", agents=[], roles=["owner"])
            assert [one.credential for one in bench.control.credentials.handles(info)] == ["by-role"]
            ada = await bench.sandbox("ada")
            assert [one.credential for one in bench.control.credentials.handles(ada)] == ["crm", "by-role"]

    asyncio.run(scenario())


def test_an_agent_does_not_inherit_what_was_given_to_one_of_its_id_that_was_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            credentials, agents = bench.control.credentials, bench.control.agents
            info = await bench.sandbox()
            add(bench, agents=["ada", "bob"])
            add(bench, name="hers", variable="HERS")
            add(bench, name="everybodys", variable="ALL", agents=["*"])
            assert len(credentials.handles(info)) == 3
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            await agents.delete("ada", caller=OWNER)
            again = await bench.sandbox()
            assert [one.credential for one in credentials.handles(again)] == ["everybodys"]
            assert [one.credential for one in credentials.handles(await bench.sandbox("bob"))] == ["crm", "everybodys"]
            assert credentials.get("hers", OWNER).terms.agents == ()
            entries = bench.entries(kinds=["credential.agent_removed"])
            assert [(one.body["credential"], one.body["agent_id"], one.body["agents"]) for one in entries] == [
                ("crm", "ada", ["bob"]),
                ("hers", "ada", []),
            ]
            await bench.restart()
            assert [one.credential for one in bench.control.credentials.handles(again)] == ["everybodys"]

    asyncio.run(scenario())


def test_what_is_given_to_an_agent_while_it_is_deleted_is_taken_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            await bench.control.agents.ensure("ada", caller=OWNER)
            delete_workspace = bench.host.delete_workspace

            async def delete(agent_id: str) -> None:
                add(bench)
                await delete_workspace(agent_id)

            with monkeypatch.context() as patch:
                patch.setattr(bench.host, "delete_workspace", delete)
                await bench.control.agents.delete("ada", caller=OWNER)
            assert bench.control.credentials.handles(await bench.sandbox()) == []

    asyncio.run(scenario())


@pytest.mark.req("T3.52")
def test_a_budget_is_not_overrun_by_requests_at_the_same_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench, budget=20)
            held = handle(bench, info)
            answers = await asyncio.gather(*(ask(bench, info, held) for _ in range(60)))
            assert [one.secret for one in answers].count(SECRET) == 20
            assert {one.code for one in answers if one.secret is None} == {"CREDENTIAL_BUDGET"}
            assert len(bench.entries(kinds=["secret.used"])) == 20
            assert bench.control.credentials.get("crm", OWNER).state == "used_up"
            await bench.restart()
            assert (await ask(bench, info, held)).code == "CREDENTIAL_BUDGET"

    asyncio.run(scenario())


@pytest.mark.req("T3.52")
def test_a_credential_ends_when_it_was_said_to_and_when_it_is_revoked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench, expires_at=bench.clock() + timedelta(minutes=10))
            add(bench, name="other", variable="OTHER")
            held, other = handle(bench, info), handle(bench, info, "other")
            assert (await ask(bench, info, held)).secret == SECRET
            bench._now += timedelta(minutes=10)
            assert (await ask(bench, info, held)).code == "CREDENTIAL_EXPIRED"
            revoked = await bench.control.credentials.revoke("other", caller=OWNER)
            assert revoked.state == "revoked" and bench.host.withdrawn == ["other"]
            assert (await ask(bench, info, other)).code == "CREDENTIAL_REVOKED"
            assert [one.credential for one in bench.control.credentials.handles(info)] == ["crm"]
            assert (await bench.control.credentials.revoke("other", caller=OWNER)).revoked_at == revoked.revoked_at
            with pytest.raises(CredentialRevoked):
                bench.control.credentials.rotate("other", SecretStr(SECRET), caller=OWNER)
            add(bench, name="other", variable="OTHER", secret="another-secret")
            assert (await ask(bench, info, other)).code == "CREDENTIAL_REVOKED"
            assert (await ask(bench, info, handle(bench, info, "other"))).secret == "another-secret"

    asyncio.run(scenario())


def test_a_rotated_secret_is_the_one_of_the_next_request_under_the_same_handle(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench)
            held = handle(bench, info)
            bench.control.credentials.rotate("crm", SecretStr("the-next-secret"), caller=OWNER)
            assert handle(bench, info) == held
            assert (await ask(bench, info, held)).secret == "the-next-secret"
            assert SECRET.encode() not in everything(bench) and b"the-next-secret" not in everything(bench)

    asyncio.run(scenario())


@pytest.mark.req("T2.33")
def test_rules_of_secret_access_deny_and_ask(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench, name="ruled")
            held = handle(bench, info, "ruled")
            denied = await ask(bench, info, held, path="/v1/never/this")
            assert (denied.code, denied.refusal) == ("DENIED_BY_RULE", "not that")
            assert (await ask(bench, info, held)).secret == SECRET
            assert (await ask(bench, info, held)).code == "PENDING_APPROVAL"
            assert bench.control.credentials.get("ruled", OWNER).uses == 1

    asyncio.run(scenario())


def test_equal_refusals_do_not_fill_the_ledger(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench)
            for _ in range(50):
                await ask(bench, info, handle(bench, info), method="DELETE")
            assert len(bench.entries(kinds=["secret.refused"])) == 1
            bench._now += timedelta(minutes=2)
            await ask(bench, info, handle(bench, info), method="DELETE")
            assert len(bench.entries(kinds=["secret.refused"])) == 2

    asyncio.run(scenario())


@pytest.mark.req("T3.50")
def test_one_of_production_is_added_only_with_the_words_that_name_what_it_gives(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            for methods, words in (
                (["GET", "POST"], "write access to production"),
                (["GET"], "read access to production"),
            ):
                with pytest.raises(InvalidArgument, match=words) as refused:
                    add(bench, production=True, methods=methods)
                assert refused.value.facts["confirm"] == words
                with pytest.raises(InvalidArgument):
                    add(bench, production=True, methods=methods, confirm="yes")
            add(bench, production=True, methods=["POST"], confirm="write access to production")
            (entry,) = bench.entries(kinds=["credential.added"])
            assert entry.body["access"] == "write access to production"

    asyncio.run(scenario())


def test_only_those_with_the_right_add_rotate_and_revoke(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            add(bench)
            credentials = bench.control.credentials
            for caller in (VIEWER, AGENT):
                with pytest.raises(GrantMissing):
                    credentials.add(new(name="x", variable="X"), caller=caller)
                with pytest.raises(GrantMissing):
                    credentials.rotate("crm", SecretStr(SECRET), caller=caller)
                with pytest.raises(GrantMissing):
                    await credentials.revoke("crm", caller=caller)
            assert [one.terms.name for one in credentials.list(VIEWER)] == ["crm"]
            with pytest.raises(GrantMissing):
                credentials.list(AGENT)
            with pytest.raises(NotFound):
                credentials.get("none", OWNER)

    asyncio.run(scenario())


def test_a_name_or_a_variable_that_is_taken_is_a_conflict(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            add(bench)
            for changes in ({"variable": "X"}, {"name": "x"}, {"name": "x", "agents": ["*"]}):
                with pytest.raises(Conflict):
                    add(bench, **changes)
            add(bench, name="x", agents=["bob"])
            past = datetime.fromisoformat("2020-01-01T00:00:00+00:00")
            for odd in ({"expires_at": past}, {"expires_at": past.replace(tzinfo=None)}, {"base": "https://localhost"}):
                with pytest.raises(InvalidArgument):
                    add(bench, name="y", variable="Y", **odd)

    asyncio.run(scenario())


def test_the_key_lies_apart_and_without_it_nothing_is_given_and_why_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            key = tmp_path / "control" / "credentials.key"
            assert not key.exists()
            add(bench)
            assert key.stat().st_mode & 0o777 == 0o600
            held, text = handle(bench, info), key.read_bytes()
            for spoiled in (None, b"", b"no key\n", b"A" * 44):
                key.unlink(missing_ok=True)
                if spoiled is not None:
                    key.touch(0o600)
                    key.write_bytes(spoiled)
                answer = await ask(bench, info, held)
                assert (answer.secret, answer.code) == (None, "CREDENTIAL_UNREADABLE")
                assert "credentials.key" in str(answer.refusal)
            with pytest.raises(CredentialUnreadable):
                add(bench, name="x", variable="X", agents=["bob"]) if not key.exists() else key.unlink()
                add(bench, name="x", variable="X", agents=["bob"])
            key.write_bytes(text)
            key.chmod(0o640)
            assert "open to others" in str((await ask(bench, info, held)).refusal)
            key.chmod(0o600)
            assert (await ask(bench, info, held)).secret == SECRET

    asyncio.run(scenario())


def test_commands_of_a_sandbox_with_a_network_have_the_handle_and_no_other_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info, without = await bench.sandbox(), await bench.sandbox(network="none")
            add(bench)
            shown = (await bench.call(info, "run_command", command="printenv CRM_TOKEN")).value["stdout"].strip()
            assert shown == handle(bench, info)
            assert (await bench.call(without, "run_command", command="printenv CRM_TOKEN")).value["stdout"] == ""
            own = await bench.call(info, "run_command", command="printenv CRM_TOKEN", env={"CRM_TOKEN": "mine"})
            assert own.value["stdout"].strip() == "mine"
            assert SECRET.encode() not in everything(bench)

    asyncio.run(scenario())


def test_the_use_names_the_command_that_ran(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench)
            started = await bench.call(
                info, "run_command", command="while [ ! -e go ]; do sleep 0.01; done", background=True
            )
            await ask(bench, info, handle(bench, info), contact={"began_at": bench.clock()})
            bench.go()
            (use,) = bench.control.credentials.uses("crm", OWNER)
            assert use.command_id == started.value["command_id"]

    asyncio.run(scenario())


REACH = """version: 1
network:
  profiles:
    read:
      rules:
        - {{id: read, to: prod.test.example, mode: intercept}}
    unread:
      rules:
        - {{id: unread, to: prod.test.example}}
    denied:
      base: open
      rules:
        - {{id: denied, to: prod.test.example, then: deny}}
  use: {{"agent:ada": {use}}}
"""


@pytest.mark.req("T3.50")
@pytest.mark.parametrize(
    ("changes", "use", "line"),
    [
        ({}, "read", "GET of /**; read access"),
        ({"methods": ["GET", "POST"]}, "read", "GET, POST of /**; write access"),
        ({"methods": ["POST"], "production": True}, "read", "POST of /**; write access to production"),
        ({"production": True}, "read", "GET of /**; read access to production"),
        ({"paths": ["/items/*", "/notes"]}, "read", "GET of /items/*, /notes; read access"),
        ({"agents": ["*"]}, "read", "GET of /**; read access"),
        ({"agents": [], "roles": ["owner"]}, "read", "GET of /**; read access"),
        ({"agents": ["bob"]}, "read", None),
        ({"base": "https://other.test.example/v1"}, "read", None),
        ({"base": "https://prod.test.example:8443/v1"}, "read", None),
        ({}, "unread", None),
        ({}, "denied", None),
    ],
)
def test_the_contract_shows_what_can_be_done_with_which_credential_where(
    tmp_path: Path, changes: dict[str, Any], use: str, line: str | None
) -> None:
    async def scenario() -> None:
        rules = REACH.format(use=use)
        async with opened(tmp_path, rules) as bench:
            info = await bench.sandbox()
            given = {"base": "https://prod.test.example/v1", **changes}
            words = new(**given).access
            add(bench, **given, confirm=words)

            async def lines() -> list[str]:
                document = await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
                found = [one for one in document.effective_reach if one.id.startswith("effective_reach.credential.")]
                return [one.text for one in found]

            wanted = [] if line is None else [f"https://prod.test.example/v1 as `crm`: {line}."]
            assert await lines() == wanted
            await bench.control.rulebook.load(REACH.format(use="unread"), caller=OWNER)
            assert await lines() == []
            await bench.control.rulebook.load(rules, caller=OWNER)
            assert await lines() == wanted
            await bench.control.credentials.revoke("crm", caller=OWNER)
            assert await lines() == []

    asyncio.run(scenario())


def test_a_use_can_be_replayed_from_its_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench, name="ruled")
            await ask(bench, info, handle(bench, info, "ruled"))
            (entry,) = bench.entries(kinds=["secret.used"])
            stored, again = bench.control.gate.replay(entry.seq)
            assert stored == again and stored.rule_id == "default"

    asyncio.run(scenario())


def test_a_key_of_another_user_is_not_followed_through_a_link(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            os.symlink(tmp_path / "elsewhere", tmp_path / "control" / "credentials.key")
            with pytest.raises(CredentialUnreadable):
                add(bench)
            assert not (tmp_path / "elsewhere").exists()
            assert bench.control.credentials.list(OWNER) == [] and Role.OWNER

    asyncio.run(scenario())


def test_a_use_is_judged_by_the_label_of_the_files_as_well_as_that_of_the_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            add(bench)
            with bench.control.store.transaction() as connection:  # another box of the agent does so
                bench.control.sandboxes.raise_workspace_label(info, Label.CONFIDENTIAL, connection=connection)
            await ask(bench, info, handle(bench, info))
            (entry,) = bench.entries(kinds=["secret.used"])
            assert entry.body["context"]["taint"] == "CONFIDENTIAL"

    asyncio.run(scenario())
