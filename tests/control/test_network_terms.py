"""Held here: the contract says what code can reach and as whom, worked out from what was granted, and no line outlives its
grant."""

import asyncio
from datetime import datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from coldframe.contract.credential import NewCredential
from coldframe.contract.document import ContractDocument
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.network_terms import find_terms
from coldframe.policy.rules import load_rules
from tests.control.bench import OWNER, Bench, opened

RULES = """version: 1
network:
  profiles:
    crm:
      rules:
        - {id: read, to: crm.example.com, methods: [GET], paths: [/v1/], label: CONFIDENTIAL}
        - {id: wide, to: "*.example.org", ports: [443, 8000-8002]}
        - {id: no-logs, to: logs.example.org, then: deny}
        - {id: inner, to: 10.1.0.0/16, mode: raw, ports: 5432}
    narrow:
      rules:
        - {id: one, to: one.example.org}
        - {id: ask, to: crm.example.com, then: ask}
        - {id: part, to: 10.1.2.0/24, mode: raw, ports: 5432}
    wheels:
      base: packages
      rules:
        - {id: api, to: api.example.com}
  use: {"*": crm}
"""


def reached(*profiles: str) -> dict[str, str]:
    return {one.name: one.how for one in find_terms(load_rules(RULES).network, profiles).endpoints}


def ids(document: ContractDocument, section: str) -> list[str]:
    return [line.id for line in getattr(document, section)]


async def contract(bench: Bench, info: SandboxInfo) -> ContractDocument:
    return await bench.control.sandboxes.contract(OWNER, info.sandbox_id)


@pytest.mark.req("T3.50")
@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (("none",), {}),
        (("crm", "none"), {}),
        (("unknown",), {}),
        (("packages",), {}),
        (("open",), {"*": "by http or https on every port"}),
        (
            ("crm",),
            {
                "crm.example.com": "by https on port 443 with GET only below /v1/ only",
                "*.example.org": "by https on port 443, 8000-8002",
                "10.1.0.0/16": "by tcp on port 5432",
            },
        ),
        (
            ("narrow",),
            {
                "one.example.org": "by https on port 443",
                "crm.example.com": "by https on port 443 after a person has agreed",
                "10.1.2.0/24": "by tcp on port 5432",
            },
        ),
        (
            ("crm", "narrow"),
            {
                "crm.example.com": "by https on port 443 with GET only below /v1/ only; and by https on port 443 after a"
                " person has agreed",
                "one.example.org": "by https on port 443, 8000-8002; and by https on port 443",
                "10.1.2.0/24": "by tcp on port 5432",
            },
        ),
        (("open", "narrow"), {
            "one.example.org": "by http or https on every port; and by https on port 443",
            "crm.example.com": "by http or https on every port; and by https on port 443 after a person has agreed",
        }),
        (("wheels",), {"api.example.com": "by https on port 443"}),
        (("wheels", "packages"), {}),
        (("wheels", "crm"), {}),
    ],
)  # fmt: skip
def test_what_can_be_reached_is_what_all_profiles_agree_to(profiles: tuple[str, ...], expected: dict[str, str]) -> None:
    assert reached(*profiles) == expected


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (("packages",), True),
        (("wheels", "packages"), True),
        (("open", "packages"), True),
        (("open",), False),
        (("crm", "packages"), False),
    ],
)
def test_packages_are_told_where_all_profiles_give_them(profiles: tuple[str, ...], expected: bool) -> None:
    assert find_terms(load_rules(RULES).network, profiles).registries is expected


@pytest.mark.req("T3.09", "T3.50", "T3.53")
def test_each_endpoint_and_credential_has_its_lines_and_loses_them_with_its_grant(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info, without = await bench.sandbox(), await bench.sandbox("eve", network="none")
            names = ["crm.example.com", "*.example.org", "10.1.0.0/16"]
            document = await contract(bench, info)
            for section in ("exposure", "effective_reach", "not_prevented"):
                own = ["loopback"] if section == "exposure" else []
                assert [one for one in ids(document, section) if one.startswith(f"{section}.network.")] == [
                    f"{section}.network.{name}" for name in (*own, *names)
                ]
                assert not [one for one in ids(document, section) if ".credential." in one]
            (line,) = [one for one in document.exposure if one.id == "exposure.network.crm.example.com"]
            assert line.value["exposure"] == "brokered"
            (grant,) = line.value["grants"]
            assert grant["granted_by"] == "rule read of network profile crm"
            assert datetime.fromisoformat(grant["granted_at"]) < info.created_at
            assert (grant["methods"], grant["paths"], grant["label"]) == (["GET"], ["/v1/"], "CONFIDENTIAL")
            closed = await contract(bench, without)
            assert [one.value for one in closed.exposure if one.id == "exposure.network"] == ["none"]
            assert not [one for one in ids(closed, "not_prevented") if ".network." in one]

            new = NewCredential(
                name="crm",
                base="https://crm.example.com/v1",
                variable="CRM_TOKEN",
                methods=("GET", "DELETE"),
                paths=("/items/*",),
                agents=("ada", "eve"),
                production=True,
                secret=SecretStr("a secret of a test"),
            )
            with pytest.raises(ColdframeError, match="write access to production"):
                bench.control.credentials.add(new, caller=OWNER)
            confirmed = new.model_copy(update={"confirm": "write access to production"})
            bench.control.credentials.add(confirmed, caller=OWNER)
            document = await contract(bench, info)
            assert document.version > 1
            (line,) = [one for one in document.effective_reach if one.id == "effective_reach.credential.crm"]
            assert line.value["service"] == "https://crm.example.com/v1"
            assert (line.value["methods"], line.value["paths"]) == (["GET", "DELETE"], ["/items/*"])
            assert (line.value["identity"], line.value["production"]) == ("crm", True)
            (given,) = bench.control.credentials.list(OWNER)
            assert line.value["granted_by"] == OWNER.name == given.added_by
            assert datetime.fromisoformat(line.value["granted_at"]) == given.created_at
            assert (line.value["reason"], line.value["expires"]) == ("", None)
            assert "write access to production" in line.text
            assert "exposure.credential.crm" in ids(document, "exposure")
            assert "not_prevented.credential.crm" in ids(document, "not_prevented")
            assert "a secret of a test" not in document.model_dump_json()
            assert not [one for one in ids(await contract(bench, without), "effective_reach") if ".credential." in one]

            # the way there is taken away, and with it the lines about what is accepted there
            await bench.control.rulebook.load(RULES.replace("to: crm.example.com, methods", "to: csm.example.com, methods"), caller=OWNER)  # fmt: skip
            document = await contract(bench, info)
            assert "exposure.network.csm.example.com" in ids(document, "exposure")
            for section in ("exposure", "effective_reach", "not_prevented"):
                assert not [one for one in ids(document, section) if "crm" in one]
            await bench.control.rulebook.load(RULES, caller=OWNER)
            assert "exposure.credential.crm" in ids(await contract(bench, info), "exposure")
            await bench.control.credentials.revoke("crm", caller=OWNER)
            assert "exposure.credential.crm" not in ids(await contract(bench, info), "exposure")

    asyncio.run(scenario())


@pytest.mark.req("T3.53")
def test_a_grant_of_the_rules_has_the_time_when_they_came_into_force_and_no_later_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()

            async def granted_at() -> datetime:
                document = await contract(bench, info)
                values = [one.value for one in document.exposure if one.id.startswith("exposure.network.")]
                (at,) = {one["granted_at"] for value in values for one in value.get("grants", ())}
                return datetime.fromisoformat(at)

            first = await granted_at()
            await bench.restart()
            await bench.control.rulebook.load(RULES, caller=OWNER)
            await bench.restart()
            assert await granted_at() == first
            before = bench.clock()
            await bench.control.rulebook.load(f"{RULES}# other rules\n", caller=OWNER)
            assert before < await granted_at() < bench.clock()
            await bench.control.rulebook.load(RULES, caller=OWNER)
            assert await granted_at() > first  # they were not in force in between

    asyncio.run(scenario())
