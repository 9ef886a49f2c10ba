"""A sandbox inherits nothing: of forty routes to what programs of this host can reach, each finds its canary from outside of a
sandbox, and none does from inside; nothing is connected to, and each attempt that would leave the sandbox is on record as denied."""

import json
import os

import pytest

from tests.security.routes import KINDS, NETWORKS, load_routes
from tests.security.wrapper import Who, in_wrapper


def test_there_are_forty_routes_and_each_canary_has_some() -> None:
    routes = load_routes()
    assert len({one["id"] for one in routes}) == len(routes) == 40
    assert {one["canary"] for one in routes} == {*KINDS, "metadata", "production"}


@pytest.mark.req("T3.07")
@pytest.mark.once
@pytest.mark.parametrize("who", ["root", "ordinary"])
def test_what_forty_routes_find_outside_they_do_not_find_in_a_sandbox(who: Who, in_a_wrapper: None) -> None:
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    ended = in_wrapper(["-m", "tests.security.routes"], who=who, timeout_s=300, outside=True)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    expected = {one["id"]: one["canary"] for one in load_routes()}
    assert {name: one for name, one in told["outside"].items() if expected[name] not in one["found"]} == {}
    for network in NETWORKS:
        assert told[network]["found"].keys() == expected.keys()
        assert {name: one for name, one in told[network]["found"].items() if one["found"]} == {}
        assert told[network]["reached"] == []
        assert told[network]["unrecorded"] == []
    assert told["left"] == []
