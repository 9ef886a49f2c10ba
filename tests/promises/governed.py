"""What the tests of governance share: a call of each tool that works, no rules, short ways to ledger and tokens,
and a watch over a box in which nothing may happen."""

import contextlib
import json
import weakref
from collections.abc import Iterator
from typing import Any

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.policy import Role
from tests.installation import Installation
from tests.promises.raw import all_entries

NO_RULES = "version: 1\n"
EVERY_TOOL: dict[str, dict[str, object]] = {
    "write_file": {"path": "a.txt", "content": "one\n"},
    "read_file": {"path": "a.txt"},
    "edit_file": {"path": "a.txt", "old": "one", "new": "one"},
    "list_directory": {"path": ""},
    "search_files": {"pattern": "one"},
    "run_command": {"command": "cat a.txt"},
}
"""Each can be called any number of times, in any order, in a sandbox that has the file."""
_heads: weakref.WeakKeyDictionary[SyncColdframe, int] = weakref.WeakKeyDictionary()


def head(client: SyncColdframe) -> int:
    """Number of the newest entry of the ledger. Asked again, it reads on: to check the whole ledger each time takes long."""
    known = _heads.get(client) or client.ledger.verify().head_seq
    _heads[client] = max((one.seq for one in all_entries(client, after=known)), default=known)
    return _heads[client]


def token_of(owner: SyncColdframe, role: Role, agent_id: str | None = None) -> str:
    return owner.tokens.create(role, f"{role} of a test", agent_id=agent_id)[0]


def calls(client: SyncColdframe, sandbox: SyncSandbox, after: int = 0) -> list[LedgerEntry]:
    return [one for one in all_entries(client, after=after, sandbox_id=sandbox.id) if one.kind.startswith("call.")]


def history(sandbox: SyncSandbox, home: Installation) -> list[dict[str, Any]]:
    """The lines of `.exec_history`, read by a command, which is thereby the first that is not among them."""
    done = home.cli("exec", sandbox.id, "--", "cat", ".exec_history")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def tokens_of(owner: SyncColdframe, agent_id: str) -> dict[Role, str]:
    """One of each role; the agent's is that of *agent_id*."""
    return {role: token_of(owner, role, agent_id if role is Role.AGENT else None) for role in Role}


@contextlib.contextmanager
def nothing_happens(sandbox: SyncSandbox) -> Iterator[None]:
    """The block starts no process in the box and changes no file of the workspace.

    Processes are counted by the numbers that the kernel gives out in the box's own namespace: reading the number
    twice in a row tells what one reading costs, and around the block it must cost the same.
    """

    def look() -> tuple[int, str, str]:
        ran = sandbox.run_command("echo $$; find . -path ./.exec_history -o -printf '%p %i %s %m %T@ %C@\\n' | sort")
        files = ran.files
        assert files is not None and ran.stdout is not None
        number, _, listing = ran.stdout.partition("\n")
        return int(number), listing, str(files.tree_sha256_after)

    first, second = look(), look()
    yield
    third = look()
    assert third[0] - second[0] == second[0] - first[0], "a process was started"
    assert third[1:] == second[1:], "a file was changed"
