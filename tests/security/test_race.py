"""Between the look at a path and its use nothing can be slipped in: a million swaps under the tools, and not one escape."""

import json
import os
from typing import Any

import pytest

from tests.security.race import SWAPS
from tests.security.wrapper import Who, in_wrapper

TOOLS = {"write_file", "read_file", "edit_file", "list_directory", "search_files"}


def race(*arguments: str, who: Who) -> dict[str, Any]:
    ended = in_wrapper(["-m", "tests.security.race", *arguments], who=who, timeout_s=900)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(960)
@pytest.mark.req("T1.93")
def test_a_million_swaps_of_directory_and_link_during_tool_calls_let_nothing_out(
    in_a_wrapper: None, request: pytest.FixtureRequest
) -> None:
    who: Who = request.config.getoption("--attacks-as") or ("root" if os.geteuid() == 0 else "ordinary")
    found = race(who=who)
    assert found["breaches"] == []
    said, swaps = found["attacker"].split()[-2:]
    assert said == "swaps" and int(swaps) >= SWAPS, found["attacker"]
    # Each tool met both: the directory, and the link that leads out.
    assert found["outcomes"].keys() == TOOLS
    for tool, outcomes in found["outcomes"].items():
        assert outcomes.get("done", 0) > 10 < outcomes.get("OUTSIDE_WORKSPACE", 0), (tool, outcomes)
    assert found["wrote"] > 10


def test_a_program_that_looks_before_it_opens_loses_the_same_race(in_a_wrapper: None) -> None:
    assert race("control", who="ordinary")["breaches"]
