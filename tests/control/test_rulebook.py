"""Held here: a broken rule file never loosens anything, and every set that was in force can be found again."""

import asyncio
from pathlib import Path

import pytest

from coldframe.contract.errors import GrantMissing, NotFound, PolicyUnavailable, RulesInvalid
from tests.control.bench import AGENT, OWNER, VIEWER, Bench, opened

GOOD = "version: 1\nsettings: {strict_parsing: true}\n"
BAD = "version: 1\nrules:\n  - {id: a, hook: NO_SUCH_HOOK, then: deny}\n"


@pytest.mark.req("TP.06")
def test_an_invalid_set_is_refused_with_its_line_and_the_old_one_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, GOOD) as bench:
            rulebook = bench.control.rulebook
            before = rulebook.current
            with pytest.raises(RulesInvalid) as caught:
                await rulebook.load(BAD, caller=OWNER)
            assert caught.value.facts["line"] == 3
            assert rulebook.current is before
            assert bench.kinds().count("policy.changed") == 1

    asyncio.run(scenario())


@pytest.mark.req("TP.15")
def test_a_change_is_for_admins_recorded_with_both_digests_and_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            first = bench.control.rulebook.current.sha256
            for caller in (AGENT, VIEWER):
                with pytest.raises(GrantMissing):
                    await bench.control.rulebook.load(GOOD, caller=caller)
            second = (await bench.control.rulebook.load(GOOD, caller=OWNER)).sha256
            assert [entry.body["code"] for entry in bench.entries(kinds=["policy.refused"])] == ["GRANT_MISSING"] * 2
            body = bench.entries(kinds=["policy.changed"])[-1].body
            assert (body["sha256_before"], body["sha256_after"], body["caller"]) == (first, second, OWNER.name)
            await bench.restart()
            assert bench.control.rulebook.current.sha256 == second
            assert bench.control.rulebook.text == GOOD
            assert bench.control.rulebook.past(first).sha256 == first
            with pytest.raises(NotFound):
                bench.control.rulebook.past("0" * 64)
            assert bench.kinds().count("policy.changed") == 2

    asyncio.run(scenario())


def test_a_set_loaded_at_run_time_holds_over_restarts_until_the_file_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, "version: 1\n") as bench:
            loaded = (await bench.control.rulebook.load(GOOD, caller=OWNER)).sha256
            await bench.restart()
            assert bench.control.rulebook.current.sha256 == loaded
            (tmp_path / "rules.yaml").write_text("version: 1\nsettings: {deny_commands: [make]}\n")
            await bench.restart()
            assert bench.control.rulebook.current.settings.deny_commands == ("make",)

    asyncio.run(scenario())


@pytest.mark.req("TP.03", "TP.06")
def test_a_broken_file_at_start_keeps_the_set_last_in_force_or_refuses_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path / "kept", None) as bench:
            await bench.control.rulebook.load(GOOD, caller=OWNER)
            bench.rules_path = str(tmp_path / "kept" / "rules.yaml")
            Path(bench.rules_path).write_text(BAD)
            await bench.restart()
            assert bench.control.rulebook.text == GOOD
            assert "rules.yaml" in (bench.control.rulebook.problem or "")
        (tmp_path / "none").mkdir()
        bench = Bench(tmp_path / "none", BAD)
        await bench.start()
        try:
            with pytest.raises(PolicyUnavailable):
                _ = bench.control.rulebook.current
            with pytest.raises(PolicyUnavailable):
                await bench.sandbox()  # without rules its permissions are undefined, so there is no contract
            assert bench.control.sandboxes.list(OWNER) == []
            assert await bench.host.boxes() == []
            await bench.control.rulebook.load(GOOD, caller=OWNER)
            assert (await bench.sandbox()).state.state == "running"
        finally:
            await bench.control.close()

    (tmp_path / "kept").mkdir()
    asyncio.run(scenario())
