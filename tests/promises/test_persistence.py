"""Every cell of the persistence table, item by event, is tried in a real sandbox, as its contract has it; and the table of a
sandbox says what of each item there is, and where.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import InvalidArgument, PauseKindUnsupported
from coldframe.contract.persistence import EVENTS, ITEMS, fate
from tests.installation import Installation

RULES = 'version: 1\nnetwork:\n  use: {"*": packages}\n'
CREDENTIAL = {
    "name": "crm",
    "base": "https://api.example.com/v1",
    "variable": "CRM",
    "roles": ["owner"],
}
PACKAGE = b"a package that was fetched"
MAKE = (
    "git init -q repo && git -C repo -c user.name=a -c user.email=a@b commit -q --allow-empty -m saved && "
    "echo marker > file && mkdir -p node_modules/own && echo marker > node_modules/own/index.js && "
    "mkdir -p .config/tool .config/chromium/Default && echo marker > .config/tool/settings && "
    "echo marker > .config/chromium/Default/Cookies && "
    "echo marker > volumes/marked/file && "
    "echo marker > /tmp/file && echo marker > /dev/shm/file && { sleep 1000 & echo $! > pid; } && echo marker"
)
LOOK = {
    "commits": "git -C repo log --format=%s | grep -qx saved",
    "tree": "grep -q marker file",
    "dependencies": "grep -q marker node_modules/own/index.js",
    "home": "grep -q marker .config/tool/settings",
    "browser": "grep -q marker .config/chromium/Default/Cookies",
    "system": "test -s /etc/passwd && test -x /bin/sh",
    "volume": "grep -q marker volumes/marked/file",
    "temporary": "grep -q marker /tmp/file && grep -q marker /dev/shm/file",
    "processes": 'grep -q sleep "/proc/$(cat pid)/cmdline"',
}
"""Item: a command that ends with 0 if it is there."""
HERE = tuple(ITEMS)
Cells = dict[str, tuple[str, str]]
"""Item: what the contract says, and what was found."""


class Marked(NamedTuple):
    """A sandbox with one marker for each item."""

    sandbox_id: str
    command_id: str
    receipt_id: str
    preview_id: str
    background: bool


class NotHere(Exception):
    """The event cannot be on this machine."""


def command_ends(_: Installation, client: SyncColdframe, marked: Marked) -> str | None:
    assert client.sandboxes.get(marked.sandbox_id).run_command("true").exit_code == 0
    return marked.sandbox_id


def preview_stopped(_: Installation, client: SyncColdframe, marked: Marked) -> str | None:
    client.previews.stop(marked.preview_id)
    status = client.previews.get(marked.preview_id).status
    assert status is not None
    assert status.code == "PREVIEW_STOPPED"
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


def reset(_: Installation, client: SyncColdframe, marked: Marked) -> str | None:
    client.sandboxes.get(marked.sandbox_id).reset("empty")
    return marked.sandbox_id


def sandbox_ends(_: Installation, client: SyncColdframe, marked: Marked) -> str | None:
    """The next one on the same workspace can have what was kept; there is none on a temporary one."""
    agent_id = client.sandboxes.get(marked.sandbox_id).info.agent_id
    client.sandboxes.get(marked.sandbox_id).terminate()
    return client.sandboxes.create(agent_id, background=agent_id is None, volumes=[{"name": "marked"}]).id


HAPPEN: dict[str, Callable[[Installation, SyncColdframe, Marked], str | None]] = {
    one.__name__: one
    for one in (
        command_ends,
        preview_stopped,
        server_restarts,
        paused_and_resumed,
        stopped_and_started,
        reset,
        sandbox_ends,
    )
}
"""Event: lets it happen; in which sandbox to look then."""


def mark(client: SyncColdframe, agent_id: str | None) -> Marked:
    volumes = [{"name": "marked", "mode": "rw"}]
    sandbox = client.sandboxes.create(agent_id, background=agent_id is None, volumes=volumes)
    made = sandbox.call("run_command", {"command": MAKE})
    assert made.value["exit_code"] == 0, made.value
    assert made.receipt_id is not None
    preview = client.previews.create(
        sandbox.id, 8000, start="exec python3 -m http.server --directory node_modules 8000"
    )
    return Marked(sandbox.id, made.value["command_id"], made.receipt_id, preview.preview_id, agent_id is None)


def what_lies_outside(installation: Installation, client: SyncColdframe, marked: Marked) -> dict[str, str]:
    """Item: what has become of it."""
    sandbox = client.sandboxes.get(marked.sandbox_id)
    output = sandbox.output(marked.command_id).data
    ended = client.ledger.entries(kinds=["call.ended"], sandbox_id=marked.sandbox_id)
    handles = next(one.count for one in sandbox.persistence() if one.item == "grants")
    preview = client.previews.get(marked.preview_id)
    there = {
        "preview": preview.address == f"8000-{marked.sandbox_id.removeprefix('sbx_')}"
        and preview.revoked_at is None
        and (preview.inputs is not None or "memory" not in sandbox.report().pause_kinds),
        "records": output == b"marker\n" and client.receipt(marked.receipt_id)["exit_code"] == 0,
        "audit": len(ended) > 0 and client.ledger.verify().intact,
        "cache": cached(installation).read_bytes() == PACKAGE,
    }
    return {item: "kept" if is_there else "lost" for item, is_there in there.items()} | {
        "grants": "kept" if handles else "revoked"
    }


def cached(installation: Installation) -> Path:
    """As the broker keeps what it has fetched."""
    name = f"sha256-{hashlib.sha256(PACKAGE).hexdigest()}"
    return Path(installation.data_dir, "host", "packages", "files", name)


def try_event(installation: Installation, event: str, *, background: bool) -> Cells:
    with SyncColdframe(installation.url, installation.token) as client:
        marked = mark(client, None if background else event.replace("_", "-"))
        lines = {
            line["id"]: line["value"] for line in client.sandboxes.get(marked.sandbox_id).contract()["persistence"]
        }
        where = HAPPEN[event](installation, client, marked)
    with SyncColdframe(installation.url, installation.token) as client:
        found = what_lies_outside(installation, client, marked)
        for item, look in LOOK.items():
            is_there = where is not None and client.sandboxes.get(where).run_command(look).exit_code == 0
            found[item] = "kept" if is_there else "lost"
        for sandbox in client.sandboxes.list(state=["running"]):
            sandbox.terminate()
    return {item: (lines[f"persistence.{item}"]["events"][event], fate) for item, fate in found.items()}


@pytest.fixture(scope="module")
def tried() -> Iterator[Callable[[str, bool], Cells]]:
    """Lets an event happen once, for all its cells."""
    known: dict[tuple[str, bool], Cells | NotHere] = {}
    installation = Installation()
    try:
        installation.start()
        with SyncColdframe(installation.url, installation.token) as client:
            client.policy.load(RULES)
            client.credentials.add(CREDENTIAL, "a secret of sixteen")
            client.sandboxes.create(background=True).terminate()
            client.volumes.create("marked")
        cached(installation).write_bytes(PACKAGE)

        def find(event: str, background: bool) -> Cells:
            if (event, background) not in known:
                try:
                    known[event, background] = try_event(installation, event, background=background)
                except NotHere as error:
                    known[event, background] = error
                finally:
                    installation.end_sandboxes()  # whatever became of it, the next event needs the volume
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
@pytest.mark.parametrize("item", HERE)
def test_what_the_contract_says_of_an_item_and_an_event_is_so(
    tried: Callable[[str, bool], Cells], item: str, event: str, background: bool
) -> None:
    said, found = tried(event, background)[item]
    assert said == found


def test_every_line_has_a_way_to_be_tried() -> None:
    assert set(LOOK) | {"records", "audit", "cache", "grants", "preview"} == set(HERE)
    assert set(HAPPEN) == set(EVENTS)
    fates = {fate(item, event, background=flag) for item in HERE for event in EVENTS for flag in (False, True)}
    assert fates == {"kept", "lost", "revoked"}


PLACES = {
    "repo/.git/objects/pack": "commits",
    "/home/user/notes/a.txt": "tree",
    ".": "tree",
    "/home/user/node_modules/own/index.js": "dependencies",
    "app/.venv/lib/python3.11/site-packages/own.py": "dependencies",
    "/home/user/node_modules/own/.git/HEAD": "dependencies",
    "/home/user/.config/tool/settings": "home",
    "/home/user/.config/chromium/Default/Cookies": "browser",
    "/usr/bin/env": "system",
    "/etc/passwd": "system",
    "/tmp/../tmp/file": "temporary",
    "/dev/shm/file": "temporary",
    "/proc/1/status": "processes",
    "/home/user/.exec_history/history.jsonl": "records",
}


@pytest.mark.req("T3.40")
@pytest.mark.without_way_out
def test_the_table_of_a_sandbox_has_fourteen_items_with_what_there_is_of_each(
    installation: Installation, sandbox: SyncSandbox
) -> None:
    before = {one.item: one for one in sandbox.persistence()}
    assert list(before) == list(ITEMS)
    assert len(before) == 14
    assert sandbox.run_command(f"mkdir -p volumes/marked && {MAKE} && rm -r volumes").exit_code == 0
    sandbox.write_file("notes/ten", "0123456789")
    now = {one.item: one for one in sandbox.persistence()}
    lines = {line["id"]: line["value"] for line in sandbox.contract()["persistence"]}
    for item, row in now.items():
        said = lines[f"persistence.{item}"]
        assert said["exists"] is row.exists
        if row.exists:
            told = {"owner": row.owner, "places": list(row.places), "lifetime": row.lifetime, "events": row.events}
            assert said == {"exists": True, **told}
    assert {item for item, row in now.items() if not row.exists} == {"volume", "grants"}
    assert {row.owner for row in now.values()} == {"workspace", "sandbox", "host", "tenant"}
    grown = {item: (now[item].bytes or 0) - (before[item].bytes or 0) for item in now}
    assert grown["tree"] == len("marker\n") + len("0123456789") + len(b"".join(sandbox.download("pid")))
    assert grown["dependencies"] == grown["home"] == grown["browser"] == len("marker\n")
    assert grown["commits"] > 0
    assert (now["temporary"].count or 0) - (before["temporary"].count or 0) == 2
    assert now["processes"].count == 1
    assert grown["records"] == len("marker\n")
    assert grown["audit"] > 0
    shown = installation.cli("contract", "table", sandbox.id, "--json")
    assert [row["item"] for row in json.loads(shown.stdout)] == list(ITEMS)
    assert b"shared memory" not in shown.stderr
    sandbox.stop()
    stopped = {one.item: one for one in sandbox.persistence()}
    assert (stopped["processes"].count, stopped["tree"].bytes) == (0, None)


@pytest.mark.req("T3.40")
@pytest.mark.without_way_out
def test_a_place_inside_tells_which_item_it_belongs_to(installation: Installation, sandbox: SyncSandbox) -> None:
    assert len(PLACES) == 14
    found = {path: sandbox.where(path) for path in PLACES}
    assert {path: where.item for path, where in found.items()} == PLACES
    for path, where in found.items():
        assert where.writable is (where.item not in ("system", "records")), path
        assert (where.owner, where.events) == (
            ITEMS[where.item].owner,
            {event: fate(where.item, event, background=False) for event in EVENTS},
        )
    told = installation.cli("contract", "where", sandbox.id, "/tmp/file")
    assert told.stdout.startswith(b"/tmp/file: temporary, of the sandbox")
    with pytest.raises(InvalidArgument):
        sandbox.where("a\0b")
