"""Every cell of the persistence table, item by event, is tried in a real sandbox, as its contract has it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import PauseKindUnsupported
from coldframe.contract.persistence import EVENTS, ITEMS, is_kept
from tests.installation import Installation

MAKE = (
    "git init -q repo && git -C repo -c user.name=a -c user.email=a@b commit -q --allow-empty -m saved && "
    "echo marker > file && mkdir -p node_modules/own && echo marker > node_modules/own/index.js && "
    "echo marker > /tmp/file && echo marker > /dev/shm/file && { sleep 1000 & echo $! > pid; } && echo marker"
)
LOOK = {
    "commits": "git -C repo log --format=%s | grep -qx saved",
    "tree": "grep -q marker file",
    "dependencies": "grep -q marker node_modules/own/index.js",
    "system": "test -s /etc/passwd && test -x /bin/sh",
    "temporary": "grep -q marker /tmp/file && grep -q marker /dev/shm/file",
    "processes": 'grep -q sleep "/proc/$(cat pid)/cmdline"',
}
"""Item: a command that ends with 0 if it is there."""
Cells = dict[str, tuple[str, str]]
"""Item: what the contract says, and what was found."""


class Marked(NamedTuple):
    """A sandbox with one marker for each item."""

    sandbox_id: str
    command_id: str
    receipt_id: str
    background: bool


class NotHere(Exception):
    """The event cannot be on this machine."""


def command_ends(_: Installation, client: SyncColdframe, marked: Marked) -> str | None:
    assert client.sandboxes.get(marked.sandbox_id).run_command("true").exit_code == 0
    return marked.sandbox_id


def server_restarts(installation: Installation, _: SyncColdframe, marked: Marked) -> str | None:
    installation.kill()
    installation.start()
    return marked.sandbox_id


def paused_and_resumed(_: Installation, client: SyncColdframe, marked: Marked) -> str | None:
    sandbox = client.sandboxes.get(marked.sandbox_id)
    try:
        sandbox.pause()
    except PauseKindUnsupported as error:
        raise NotHere(error.message) from error
    sandbox.resume()
    return marked.sandbox_id


def stopped_and_started(_: Installation, client: SyncColdframe, marked: Marked) -> str | None:
    sandbox = client.sandboxes.get(marked.sandbox_id)
    sandbox.stop()
    sandbox.start_again()
    return marked.sandbox_id


def sandbox_ends(_: Installation, client: SyncColdframe, marked: Marked) -> str | None:
    """The next one on the same workspace can have what was kept; there is none on a temporary one."""
    agent_id = client.sandboxes.get(marked.sandbox_id).info.agent_id
    client.sandboxes.get(marked.sandbox_id).terminate()
    return client.sandboxes.create(agent_id, background=agent_id is None).id


HAPPEN: dict[str, Callable[[Installation, SyncColdframe, Marked], str | None]] = {
    one.__name__: one for one in (command_ends, server_restarts, paused_and_resumed, stopped_and_started, sandbox_ends)
}
"""Event: lets it happen; in which sandbox to look then."""


def mark(client: SyncColdframe, agent_id: str | None) -> Marked:
    sandbox = client.sandboxes.create(agent_id, background=agent_id is None)
    made = sandbox.call("run_command", {"command": MAKE})
    assert made.value["exit_code"] == 0, made.value
    assert made.receipt_id is not None
    return Marked(sandbox.id, made.value["command_id"], made.receipt_id, agent_id is None)


def are_records_there(client: SyncColdframe, marked: Marked) -> bool:
    output = client.sandboxes.get(marked.sandbox_id).output(marked.command_id).data
    ended = client.ledger.entries(kinds=["call.ended"], sandbox_id=marked.sandbox_id)
    return output == b"marker\n" and client.receipt(marked.receipt_id)["exit_code"] == 0 and len(ended) > 0


def try_event(installation: Installation, event: str, *, background: bool) -> Cells:
    with SyncColdframe(installation.url, installation.token) as client:
        marked = mark(client, None if background else event.replace("_", "-"))
        lines = {
            line["id"]: line["value"] for line in client.sandboxes.get(marked.sandbox_id).contract()["persistence"]
        }
        where = HAPPEN[event](installation, client, marked)
    with SyncColdframe(installation.url, installation.token) as client:
        there = {"records": are_records_there(client, marked)}
        for item, look in LOOK.items():
            there[item] = where is not None and client.sandboxes.get(where).run_command(look).exit_code == 0
        for sandbox in client.sandboxes.list(state=["running"]):
            sandbox.terminate()
    return {
        item: (lines[f"persistence.{item}"][event], "kept" if is_there else "lost") for item, is_there in there.items()
    }


@pytest.fixture(scope="module")
def tried() -> Iterator[Callable[[str, bool], Cells]]:
    """Lets an event happen once, for all its cells."""
    known: dict[tuple[str, bool], Cells | NotHere] = {}
    installation = Installation()
    try:
        installation.start()

        def find(event: str, background: bool) -> Cells:
            if (event, background) not in known:
                try:
                    known[event, background] = try_event(installation, event, background=background)
                except NotHere as error:
                    known[event, background] = error
            found = known[event, background]
            if isinstance(found, NotHere):
                pytest.skip(str(found))
            return found

        yield find
    finally:
        left = installation.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


@pytest.mark.req("T3.20", "T3.41", "T3.36")
@pytest.mark.parametrize("background", [False, True], ids=["agent", "background"])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("item", ITEMS)
def test_what_the_contract_says_of_an_item_and_an_event_is_so(
    tried: Callable[[str, bool], Cells], item: str, event: str, background: bool
) -> None:
    said, found = tried(event, background)[item]
    assert said == found


def test_every_line_has_a_way_to_be_tried() -> None:
    assert set(LOOK) | {"records"} == set(ITEMS)
    assert set(HAPPEN) == set(EVENTS)
    assert {is_kept(item, event, background=flag) for item in ITEMS for event in EVENTS for flag in (False, True)} == {
        True,
        False,
    }
