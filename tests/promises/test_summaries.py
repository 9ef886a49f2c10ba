"""A second agent that has only the summary and the tools goes on where the first one stopped."""

import json
import threading

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import Conflict
from coldframe.contract.policy import Role
from coldframe.contract.summary import MOST_BYTES, WorkspaceSummary
from tests.installation import Installation
from tests.promises.governed import token_of

APPLICATION = {
    "NOTES.md": "# Totals\nThe tests run with `python3 -m unittest`. One failed when I stopped; the server is on 8124.\n",
    "src/__init__.py": "",
    "src/total.py": "def total(prices, tax):\n    return sum(prices) - tax\n",
    "src/page.py": "from src.total import total\n\ndef page():\n    return f'Sum: {total([100, 10], 10):.2f}'\n",
    "tests/__init__.py": "",
    "tests/test_total.py": "import unittest\nfrom src.total import total\n\n\nclass Totals(unittest.TestCase):\n"
    "    def test_tax_is_added(self):\n        self.assertEqual(total([100, 10], 10), 120)\n",
}
TEST = "python3 -m unittest"
PATIENCE_S = 60
SERVER = (
    "import http.server; http.server.ThreadingHTTPServer(('127.0.0.1', 8124), http.server.SimpleHTTPRequestHandler)"
    ".serve_forever()"
)


def size(summary: WorkspaceSummary) -> int:
    return len(summary.model_dump_json().encode())


def first_agent(sandbox: SyncSandbox) -> None:
    """It stops after four steps, without a word."""
    for path, content in APPLICATION.items():
        sandbox.write_file(path, content)
    assert sandbox.run_command(TEST).exit_code == 1
    sandbox.start(["python3", "-c", SERVER])
    listens = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8124))' 2>/dev/null; do sleep 0.1; done"
    assert sandbox.run_command(listens, timeout_s=60).exit_code == 0
    sandbox.edit_file("src/page.py", "Sum", "Total")


@pytest.mark.req("T4.14", "T4.57")
def test_a_second_agent_finishes_with_the_summary_alone(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox, agent_id: str
) -> None:
    first_agent(sandbox)
    with SyncColdframe(installation.url, token_of(client, Role.AGENT, agent_id)) as other:
        second = other.sandboxes.get(sandbox.id)
        told = second.summary()
        assert size(told) <= MOST_BYTES
        [failed] = told.failed
        assert failed.command == TEST and not failed.passed_since
        assert "test_tax_is_added" in failed.last_output and "100 != 120" in failed.last_output
        [running] = told.running
        assert running.ports == (8124,)
        assert [(one.port, one.command_id) for one in told.ports] == [(8124, running.command_id)]
        assert told.notes is not None and told.notes.path == "NOTES.md" and "unittest" in told.notes.text
        newest = told.recent_changes[0]
        assert (newest.path, newest.change) == ("src/page.py", "changed")  # the edit that is not committed anywhere
        # What it does follows from what it was told, and from nothing else.
        suspect = next(one.path for one in told.tree if one.path.startswith("src/") and "total" in one.path)
        source = second.read_file(suspect)
        second.edit_file(suspect, "- tax", "+ tax", if_version=source.version)
        done = second.run_command(failed.command)
        assert done.exit_code == 0, done.stderr
        fetch = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8124/src/page.py').read().decode())"
        assert "Total:" in (second.run_command(["python3", "-c", fetch]).stdout or "")
        after = second.summary()
        assert after.failed[0].passed_since
        assert {one.receipt_id for one in after.recent_changes} > {one.receipt_id for one in told.recent_changes[1:2]}
        callers = {other.receipt(one.receipt_id)["caller"] for one in after.recent_changes}
        assert len(callers) == 2, "both are told apart by what they changed"
        with pytest.raises(Exception, match="changed"):
            second.edit_file(suspect, "+ tax", "* tax", if_version=source.version)


@pytest.mark.req("T4.14")
def test_a_summary_of_much_stays_small_and_says_what_it_leaves_out(sandbox: SyncSandbox) -> None:
    many = "import os\nfor n in range(900):\n    os.makedirs(f'd{n % 30}/deep/er/est', exist_ok=True)\n"
    many += "    open(f'd{n % 30}/deep/er/est/f{n}', 'w').close()\n    open(f'file-with-a-long-name-{n}.txt', 'w').write('x' * n)\n"
    assert sandbox.run_command(["python3", "-c", many]).exit_code == 0
    sandbox.write_file("README.md", "long words " * 2000)
    for number in range(5):
        sandbox.run_command(["python3", "-c", f"import sys; sys.exit('no ' * 3000 + '{number}')"])
    told = sandbox.summary()
    assert size(told) <= MOST_BYTES
    assert told.notes is not None and not told.notes.complete
    assert len(told.failed) == 3 and told.failed[0].last_output.rstrip().endswith("4")
    assert any(one.startswith("tree:") for one in told.left_out)
    assert json.loads(told.model_dump_json())["sandbox_id"] == sandbox.id


@pytest.mark.req("T4.14")
def test_a_summary_is_what_is_there(sandbox: SyncSandbox) -> None:
    assert sandbox.summary().tree == ()
    for number in range(5):
        path = f"dir{number}/file{number}.txt"
        sandbox.write_file(path, "x" * number)
        told = sandbox.summary()
        assert {one.path: one.bytes for one in told.tree}[path] == number
        assert (told.recent_changes[0].path, told.recent_changes[0].change) == (path, "created")
        sandbox.remove_file(path)
        assert path not in {one.path for one in sandbox.summary().tree}
        assert sandbox.run_command(f"exit {number}").exit_code == number
        failed = {one.command: one.exit_code for one in sandbox.summary().failed}
        assert (f"exit {number}" in failed) is (number > 0)
    sandbox.write_file(".git/objects/x", "x")
    sandbox.write_file("app/node_modules/left/index.js", "x")
    told = sandbox.summary()
    assert {one.path: one.files for one in told.tree if one.files is not None} == {".git/": 1, "app/node_modules/": 1}
    sandbox.stop()
    stopped = sandbox.summary()
    assert (stopped.state, stopped.running, stopped.ports) == ("stopped", (), ())
    assert stopped.tree == told.tree


@pytest.mark.req("T4.57")
def test_two_agents_at_once_on_several_files_lose_no_edit(
    installation: Installation, client: SyncColdframe, sandbox: SyncSandbox, agent_id: str
) -> None:
    paths, rounds = [f"src/{name}.txt" for name in ("one", "two", "three")], 5
    for path in paths:
        sandbox.write_file(path, "begun\n")
    refused: list[str] = []

    def add_lines(who: str) -> None:
        with SyncColdframe(installation.url, token_of(client, Role.AGENT, agent_id)) as one:
            mine = one.sandboxes.get(sandbox.id)
            for number in range(rounds):
                found = {path: mine.read_file(path) for path in paths}
                together.wait(PATIENCE_S)  # both have read all of them before either writes
                for path in paths:
                    while True:
                        text = f"{found[path].content}{who} {number}\n"
                        try:
                            mine.write_file(path, text, if_version=found[path].version)
                            break
                        except Conflict:
                            refused.append(path)
                            found[path] = mine.read_file(path)
                together.wait(PATIENCE_S)

    together = threading.Barrier(2)
    agents = [threading.Thread(target=add_lines, args=(who,)) for who in ("first", "second")]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join(PATIENCE_S)
    for path in paths:
        lines = str(sandbox.read_file(path).content).splitlines()
        assert sorted(lines) == sorted(["begun", *(f"{who} {n}" for who in ("first", "second") for n in range(rounds))])
    assert set(refused) == set(paths)
