"""`host:` steps about the way out: what arrived outside, what the name server was asked, and what the records say."""

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

from coldframe.client import models
from coldframe.client.api import Coldframe
from coldframe.client.transport import ask_json
from coldframe.contract.errors import ColdframeError
from tests.installation import wait_until
from tests.security.host_steps import step
from tests.security.outside import ALLOWED, RULES, Arrived
from tests.security.scene import Breach, NotHere, Scene

SECRET = "real-secret-of-the-service-71c4"
MANY_DENIALS, MOST_DENIALS = 100, 20_000
NEIGHBOUR_WITHIN_S = 20.0
"""For one request of the other sandbox. A gate that is held up by a flood answers when that is over, or never."""


async def bind_credential(client: Coldframe) -> dict[str, str]:
    """Give all sandboxes the use of a secret at the allowed host. The placeholders that go with it."""
    payload = {
        "name": "service",
        "base": f"https://{ALLOWED}/v1",
        "variable": "CF_TOKEN",
        "agents": ["*"],
        "secret": SECRET,
    }
    try:
        await ask_json(client._transport, "POST", "/v1/credentials", payload=payload)
    except ColdframeError as error:
        if error.code != "NOT_FOUND":
            raise
        return {}
    return {"real_secret": SECRET}


def arrived(scene: Scene) -> Arrived:
    """Outside, since the row began."""
    assert scene.place.outside is not None
    return scene.place.outside.since(scene.mark)


async def contacts(scene: Scene, **query: Any) -> list[models.NetworkContact]:
    """Everything on record of the sandbox."""
    found, after = [], 0
    while True:
        page = await scene.sandbox.network_log(after=after, limit=1000, **query)
        found += [one.contact for one in page.contacts]
        if page.next_after is None:
            return found
        after = page.next_after


# -- what arrived ----------------------------------------------------------------------------------


@step(r"^BREACH if the upstream log has (.+?), else HELD")
async def the_upstream_has_not_seen(scene: Scene, found: re.Match[str]) -> None:
    if seen := [one for one in arrived(scene).requests if found[1] in one]:
        raise Breach(f"the server was sent {found[1]!r}: {seen[0][:300]!r}")


@step(r"^the upstream log has (.+?) (\d+) times?$")
async def the_upstream_has_seen(scene: Scene, found: re.Match[str]) -> None:
    count = sum(one.count(found[1]) for one in arrived(scene).requests)
    if count != int(found[2]):
        raise Breach(f"the server was sent {found[1]!r} {count} times: {arrived(scene).requests}")


@step(r"^nothing arrived$")
async def nothing_arrived(scene: Scene, found: re.Match[str]) -> None:
    came = arrived(scene)
    if came.requests or came.questions or came.sent_bytes:
        raise Breach(f"arrived outside: {came}")


@step(r"^count upstream queries")
async def no_question_was_passed_on(scene: Scene, found: re.Match[str]) -> None:
    if asked := arrived(scene).questions:
        raise Breach(f"the name server was asked: {asked[:5]}")


@step(r"^BREACH if the upstream resolver saw (\S+), else HELD")
async def the_resolver_has_not_seen(scene: Scene, found: re.Match[str]) -> None:
    sought = found[1].replace("_", "").lower()
    if asked := [one for one in arrived(scene).questions if sought in one.replace("_", "")]:
        raise Breach(f"the name server was asked: {asked[:5]}")


# -- what is on record -----------------------------------------------------------------------------


@step(r"^on record: (allow|deny) (\S+) (\d+|\*)(?: by (\S+))?$")
async def it_is_on_record(scene: Scene, found: re.Match[str]) -> None:
    outcome, wanted, port, rule = found.groups()
    kept: list[models.NetworkContact] = []

    async def is_there() -> bool:
        kept[:] = await contacts(scene)
        return any(
            wanted in (one.name, one.address)
            and port in ("*", str(one.port))
            and (one.outcome == outcome or any(request.outcome == outcome for request in one.requests))
            and (rule is None or rule in (one.rule_id, *(request.rule_id for request in one.requests)))
            for one in kept
        )

    for _ in range(100):  # what a program sees may be before what is on record
        if await is_there():
            return
        await asyncio.sleep(0.1)
    shown = [(one.outcome, one.name or one.address, one.port, one.rule_id) for one in kept]
    raise Breach(f"not on record: {found[0]}; there is {shown[:20]}")


# -- what changes outside and here -----------------------------------------------------------------


@step(r"^(\S+) resolves to ((?:\S+|, then )+?)(?: as (\S+))?$")
async def a_name_gets_other_addresses(scene: Scene, found: re.Match[str]) -> None:
    assert scene.place.outside is not None
    turns = [one.split(",") for one in found[2].split(", then ")]
    scene.place.outside.answer(found[1], *turns, records=found[3] or "")


@step(r"sandbox B makes an allowed request meanwhile", during=True, sh_timeout_s=30)
async def the_other_sandbox_goes_on_being_served(scene: Scene, found: re.Match[str]) -> None:
    for _ in range(5):
        answer = await scene.run(
            ["curl", "-sS", "-m", f"{NEIGHBOUR_WITHIN_S:g}", f"https://{ALLOWED}/v1/ok"], on=scene.place.neighbour
        )
        if not answer.stdout.startswith("ok GET"):
            raise Breach(f"the other sandbox is not served: {answer.text[:300]}")


@step(r"^kill the broker meanwhile", during=True, sh_timeout_s=40)
async def the_broker_is_killed(scene: Scene, found: re.Match[str]) -> None:
    await _until_arrived(scene)
    for _ in range(300):  # before, there is no connection that could break off
        if (await scene.run("test -e echoed")).value.get("exit_code") == 0:
            break
        await asyncio.sleep(0.1)
    else:
        raise RuntimeError("the script has had no answer")
    pid = _broker()
    if not pid:  # which would be everybody of this group
        raise RuntimeError("there is no broker to kill")
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: _broker() not in (0, pid), "there is another broker", timeout_s=30)


@step(r"^the rules are taken away meanwhile", during=True, sh_timeout_s=40)
async def nothing_is_allowed_any_more(scene: Scene, found: re.Match[str]) -> None:
    await _until_arrived(scene)
    await scene.place.client.policy.load("version: 1\n")
    try:
        await scene.run("touch rules-are-gone")
        for _ in range(200):
            if (await scene.run("test -e looked")).value.get("exit_code") == 0:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError("the script has not looked")
    finally:
        await scene.place.client.policy.load(RULES)


@step(r"^rules that open too much: (within \S+|use open)$")
async def rules_open_too_much(scene: Scene, found: re.Match[str]) -> None:
    """For controls alone: they stay."""
    text = RULES.replace("cname.example.com, many.example.com]", f"cname.example.com], {found[1].replace(' ', ': ')}")
    if found[1] == "use open":
        text = RULES.replace('"*": attacked', '"*": open')
    assert text != RULES
    await scene.place.client.policy.load(text)


async def _until_arrived(scene: Scene) -> None:
    for _ in range(200):
        if arrived(scene).requests:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("the script opened no connection")


def _broker() -> int:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if b"host/egress/__main__.py" in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return int(entry)
            except OSError:
                continue
    return 0


@step(r"^denied attempts are on record, and few$")
async def a_flood_of_denials_is_bounded(scene: Scene, found: re.Match[str]) -> None:
    kept = await contacts(scene)
    sums = (await scene.sandbox.network_log(limit=1)).denied_sums
    told = len(kept) + sum(one.times for one in sums)
    if not kept or told < MANY_DENIALS:
        raise Breach(f"of a flood {told} attempts are on record")
    if len(kept) > MOST_DENIALS:
        raise Breach(f"{len(kept)} denied attempts are written one by one")


@step(r"^the script had time$", sh_timeout_s=120)
async def the_script_had_time(scene: Scene, found: re.Match[str]) -> None:
    """For what the product slows down on purpose."""


@step(r"^there is a credential$")
async def there_is_a_credential(scene: Scene, found: re.Match[str]) -> None:
    if scene.values["real_secret"] != SECRET:
        raise NotHere("credentials")
