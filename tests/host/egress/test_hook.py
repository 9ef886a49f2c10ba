"""NETWORK_EGRESS fires in the broker's own process: for every connection, and for every request where these are read."""

import asyncio
import json
from functools import partial

import pytest

from coldframe.contract.policy import Label, Outcome
from coldframe.policy.egress import narrow
from coldframe.policy.rules import RuleSet, load_rules
from tests.host.egress.brokered import INSIDE, PLAIN, Brokered, refused, section, send_all, with_link
from tests.host.egress.intercepted import RULES, Scene, ask, connect, error_of, with_interception
from tests.host.egress.test_broker import network
from tests.host.egress.world import SSH


def hooks(*rules: str) -> str:
    listed = [{"id": f"h{number}", "hook": "NETWORK_EGRESS", **json.loads(rule)} for number, rule in enumerate(rules)]
    return json.dumps({"version": 1, "rules": listed})


def loaded(*rules: str) -> RuleSet:
    return load_rules(hooks(*rules))


@pytest.mark.parametrize("who", ["root", "ordinary"])
def test_a_connection_is_judged_by_the_hook_in_the_brokers_process(who: str) -> None:
    async def steps(made: Brokered) -> None:
        assert await made.inside(lambda: send_all(b"open")) == b"openend"
        for then in ("deny", "ask"):
            rule = json.dumps(
                {"when": {"name": SSH, "port": 9000, "agent_id": "agent-7"}, "then": then, "reason": "no"}
            )
            await made.link.use_rules(section(PLAIN), hooks=hooks(rule))
            assert await made.inside(refused) == "ECONNRESET"
        denied = [line.contact for line in made.lines() if line.event == "denied" and line.contact is not None]
        assert {(one.outcome, one.rule_id) for one in denied} == {(Outcome.DENY, "h0")}  # one for each family it tried
        assert (denied[0].reason, denied[-1].reason) == ("no", "a person has to decide: no")
        await made.link.use_rules(section(PLAIN))
        assert await made.inside(lambda: send_all(b"again")) == b"againend"

    with_link(steps, who=who)


def test_rules_that_the_broker_cannot_read_allow_nothing() -> None:
    async def steps(made: Brokered) -> None:
        pid = made.link.pid
        await made.link.use_rules(section(PLAIN), hooks="version: 2")
        while made.link.pid in (pid, None):  # noqa: ASYNC110 - it is ended, and another one started
            await asyncio.sleep(0.005)
        # Not even a name. Each broker ends in turn, so that questions get lost: they are asked once, and not for long.
        files = {**INSIDE, "/etc/resolv.conf": f"{INSIDE['/etc/resolv.conf']}options timeout:1 attempts:1\n"}
        assert await made.world.inside(refused, files=files) == "gaierror"

    with_link(steps)


def test_an_open_connection_ends_when_a_rule_of_the_hook_forbids_it() -> None:
    async def steps(scene: Scene) -> None:
        def hold() -> tuple[int, str]:
            client = connect()
            first = ask(client, "GET", "/v1/text")[0]
            try:
                return first, error_of(ask(client, "GET", "/v1/never"))[2]
            except ConnectionError:
                return first, "broken off"

        running = scene.world.box.start(hold, files=scene.files())
        while not any(one.path == "/v1/never" for one in scene.log.requests):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
        rules = loaded('{"when": {"path": "/v1/never"}, "then": "deny"}')
        scene.broker.use_rules(network(*RULES), partial(narrow, rules))
        assert await asyncio.to_thread(running.result) == (200, "broken off")

    with_interception(steps)


def test_each_request_is_judged_by_the_hook() -> None:
    rules = loaded(
        '{"when": {"method": "POST"}, "then": "deny", "reason": "reading only"}',
        '{"when": {"path": {"glob": "/v1/what*"}}, "then": "ask"}',
        '{"when": {"path": "/v1/text"}, "label": "CONFIDENTIAL"}',
    )

    async def steps(scene: Scene) -> None:
        scene.broker.use_rules(network(*RULES), partial(narrow, rules))

        def several() -> list[tuple[int, str]]:
            client = connect()
            found = []
            for method, path in (("GET", "/v1/text"), ("GET", "/v1/what"), ("POST", "/v1/store")):
                answer = ask(client, method, path)
                found.append((answer[0], "" if answer[0] == 200 else error_of(answer)[1]))
            return found

        assert await scene.inside(several) == [(200, ""), (403, "PENDING_APPROVAL"), (403, "DENIED_BY_RULE")]
        text, what, store = (await scene.contact()).requests
        assert (text.label, text.outcome) == (Label.CONFIDENTIAL, Outcome.ALLOW)
        assert (what.rule_id, store.rule_id, store.reason) == ("h1", "h0", "reading only")
        assert await scene.seen() == ["GET /v1/text HTTP/1.1"]

    with_interception(steps)
