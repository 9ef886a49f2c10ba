"""Whoever evaluates a sandbox is told what can be done, what remains and how reliably it is looked at or taken back, from live data."""

import os

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.promises.test_profiles import taken

LOOKS = 100
RESETS = 100 if os.environ.get("COLDFRAME_SLOW") else 12
SERVER = "import http.server; http.server.ThreadingHTTPServer(('127.0.0.1', 8123), http.server.SimpleHTTPRequestHandler).serve_forever()"


def by_id(description: object) -> dict[str, object]:
    parts = ("can", "remains", "inspect", "reset")
    found = {one.id: one for part in parts for one in getattr(description, part)}
    assert all(one.verified_by for one in found.values())
    return found


@pytest.mark.req("T4.04")
def test_a_description_answers_the_three_questions_from_live_data(sandbox: SyncSandbox) -> None:
    before = by_id(sandbox.describe())
    assert before["can.shell"].value["has"] and before["can.shell"].value["answer"] == "allow"  # type: ignore[attr-defined]
    assert not before["can.templates"].value["has"]  # type: ignore[attr-defined]
    assert before["remains.tree"].value["count"] == 0  # type: ignore[attr-defined]
    assert before["can.not.seccomp"].verified_by == "probe:seccomp"  # type: ignore[attr-defined]
    for name in ("a.txt", "b.txt"):
        sandbox.write_file(name, "x")
    sandbox.read_file("a.txt")
    sandbox.reset("empty")
    sandbox.write_file("c.txt", "y")
    after = by_id(sandbox.describe())
    assert after["remains.tree"].value["count"] == 1  # type: ignore[attr-defined]
    assert after["reset.here"].value == {"resets": 1, "done": 1, "snapshots": 1}  # type: ignore[attr-defined]
    assert after["inspect.reads"].value["looks"] > before["inspect.reads"].value["looks"]  # type: ignore[attr-defined]
    assert after["inspect.records"].value["receipts"] >= 4  # type: ignore[attr-defined]
    sandbox.stop()
    stopped = sandbox.describe()
    assert stopped.state == "stopped" and by_id(stopped)["inspect.files"].value is True  # type: ignore[attr-defined]


@pytest.mark.req("T4.04")
def test_a_hundred_looks_at_an_application_that_runs_all_succeed(sandbox: SyncSandbox) -> None:
    sandbox.write_file("index.html", "Total: 120.00")
    serving = sandbox.start(["python3", "-c", SERVER])
    for _ in range(LOOKS):
        assert sandbox.read_file("index.html").content == "Total: 120.00"
    assert serving.info().state == "running"
    found = by_id(sandbox.describe())["inspect.reads"]
    assert found.value["looks"] >= LOOKS  # type: ignore[attr-defined]
    serving.cancel()


@pytest.mark.req("T4.04")
def test_resets_of_an_application_that_runs_all_succeed(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.write_file("index.html", "Total: 120.00")
    good = taken(sandbox)
    for number in range(RESETS):
        serving = sandbox.start(["python3", "-c", SERVER])
        sandbox.write_file("index.html", f"spoiled {number}")
        sandbox.reset(good.snapshot_id, discard=True)
        assert serving.info().state != "running"
        assert sandbox.read_file("index.html").content == "Total: 120.00"
    found = by_id(client.sandboxes.get(sandbox.id).describe())["reset.here"]
    assert (found.value["resets"], found.value["done"]) == (RESETS, RESETS)  # type: ignore[attr-defined]
