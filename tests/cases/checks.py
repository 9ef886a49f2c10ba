"""Checks of the cases whose right behaviour no single expression can judge, by case id."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from coldframe.client.sandbox import Sandbox
from tests.cases.runner import Bench
from tests.installation import Installation

Check = Callable[["Lab"], Awaitable[None]]
CHECKS: dict[str, Check] = {}

SWAPPER = """
import os, sys, time
os.makedirs("race", exist_ok=True)
end = time.monotonic() + 120
while not os.path.exists("stop") and time.monotonic() < end:
    with open("race/real", "w") as file:
        file.write("inside")
    os.replace("race/real", "p")
    os.symlink("/tmp/outside.txt", "race/link")
    os.replace("race/link", "p")
"""
RACE_CALLS = 1000
"""Reads, and as many writes, against the swapping loop; it swaps several thousand times a second."""

# A fifth of the case's 80,000 files: what is skipped costs the same, and making them is all the time this takes.
HUGE_TREE = """
import os
for folder, count in ((".git/objects", 10_000), ("node_modules/lib", 6_000)):
    for index in range(count):
        where = f"{folder}/{index // 500:03d}"
        if index % 500 == 0:
            os.makedirs(where)
        with open(f"{where}/{index}", "w") as file:
            file.write("needle")
os.truncate(os.open("huge.bin", os.O_CREAT | os.O_RDWR), 3 * 1024**3)
os.makedirs("src")
open("src/one.py", "w").write("# the needle\\n")
"""


class NotThereYet(Exception):
    """The case needs the named part, which this version has not. What could be tried without it holds."""

    def __init__(self, missing: str, *, tried: str = "nothing") -> None:
        super().__init__(f"not there yet: {missing}; tried and held: {tried}")


class Lab(Protocol):
    """What a check gets: sandboxes of its own and the bytes routes, through the public SDK."""

    installation: Installation
    """The one that all cases share. What a case needs to break or change it starts for itself."""

    async def bench(self, *, agent_id: str | None = None, **spec: Any) -> Bench:
        """A new sandbox, on the workspace of *agent_id* or of an agent of its own."""
        ...

    async def upload(self, bench: Bench, path: str, content: bytes) -> None: ...

    async def limits(self, bench: Bench) -> dict[str, str]:
        """Strength of each limit by kind, from the isolation report."""
        ...

    async def end(self, bench: Bench) -> None: ...

    def agent(self, name: str) -> str:
        """Id of an agent of this case, which is deleted with it."""
        ...

    def sandbox_of(self, bench: Bench) -> Sandbox: ...

    async def adopt(self, sandbox_id: str) -> Sandbox:
        """A sandbox that somebody else made, to be ended with this case."""
        ...

    async def ledger(self, bench: Bench) -> list[dict[str, Any]]:
        """Entries of the ledger about the sandbox, oldest first."""
        ...


def check(case_id: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS[case_id] = function
        return function

    return register


@check("B013")
async def memory_kill_is_claimed_only_when_the_kernel_counted_one(lab: Lab) -> None:
    bench = await lab.bench(limits={"memory_mib": 128}, on_missing="degrade")
    hard = (await lab.limits(bench)).get("memory") == "hard"
    view = await bench.run('python3 -c "b=bytearray(10**9)"; echo rc=$?', timeout_s=60)
    assert view.error is None, view
    if hard:
        assert "rc=137" in view.out, view
        assert view.value["out_of_memory"] is True, view
    else:
        assert "rc=0" not in view.out, view
        assert view.value["out_of_memory"] is False, "no controller counted a kill, so none may be claimed"
    forged = await bench.run("exit 137")
    assert (forged.code, forged.value["out_of_memory"]) == (137, False)


@check("B061")
async def a_stale_write_is_a_conflict_and_a_plain_one_leaves_both_digests(lab: Lab) -> None:
    bench = await lab.bench()
    await bench.steps(
        [
            {"op": "write", "path": "f", "text": "one\n"},
            {"op": "read", "path": "f"},
            {"op": "edit", "path": "f", "old": "one", "new": "two"},
        ]
    )
    _, read, edited = bench.views
    stale = await bench.ask("write_file", path="f", content="three\n", if_version=read.value["version"])
    assert stale.error == "CONFLICT", stale
    assert edited.value["version"] in str(stale.value), "the refusal names the present version"
    assert await bench.bytes_of("f") == b"two\n"
    plain = await bench.ask("write_file", path="f", content="three\n")
    assert plain.error is None, plain
    assert plain.value["sha256_before"] == edited.value["sha256"]
    ended = str([entry for entry in await lab.ledger(bench) if entry["kind"] == "call.ended"][-1])
    assert plain.value["sha256"] in ended and plain.value["sha256_before"] in ended, ended


@check("B067")
async def a_link_swapped_under_a_call_never_leads_outside(lab: Lab) -> None:
    bench = await lab.bench(track_files=False)
    await bench.run("printf SECRET > /tmp/outside.txt; printf inside > p")
    started = await bench.call("run_command", command=["python3", "-c", SWAPPER], background=True)
    assert started["state"] == "running"
    try:
        for _ in range(RACE_CALLS // 4):
            answers = await asyncio.gather(
                *(bench.ask("read_file", path="p") for _ in range(4)),
                *(bench.ask("write_file", path="p", content="written") for _ in range(4)),
            )
            assert not any("SECRET" in f"{view.text}{view.value}" for view in answers)
            clean = {None, "OUTSIDE_WORKSPACE", "CONFLICT", "FILE_NOT_FOUND", "NOT_A_REGULAR_FILE"}
            assert [view for view in answers if view.error not in clean] == []
    finally:
        await bench.run("touch stop")
    assert (await bench.run("cat /tmp/outside.txt")).out == "SECRET"


@check("B077")
async def a_huge_tree_is_searched_within_the_budget_and_what_was_skipped_is_told(lab: Lab) -> None:
    bench = await lab.bench(track_files=False)
    made = await bench.run(["python3", "-c", HUGE_TREE], timeout_s=120)
    assert made.code == 0, made
    view = await bench.ask("search_files", pattern="needle")
    assert view.error is None, view
    assert view.dur < 15
    assert [match["path"] for match in view.value["matches"]] == ["src/one.py"]
    assert {".git", "node_modules"} <= set(view.value["directories_skipped"])
    assert view.value["large_skipped"] == ["huge.bin"]
    assert 1 <= view.value["files_searched"] < 1000


@check("B083")
async def modification_times_stay_when_the_sandbox_is_replaced(lab: Lab) -> None:
    """The part that exists: the workspace outlives its sandbox. Snapshots come with a later version."""
    first = await lab.bench(agent_id="mtimes")
    made = await first.run(
        "mkdir tree && printf 'out: in\\n\\tcp in out\\n' > tree/Makefile && echo x > tree/in && cp tree/in tree/out"
        " && ln -s in tree/link && touch -hd 2001-02-03T04:05:06Z tree/in tree/Makefile tree/link"
        " && touch -d 2024-02-03T04:05:06Z tree/out && touch -d 2001-02-03T04:05:06Z tree"
    )
    assert made.code == 0, made
    listed = await first.ask("list_directory", path="tree")
    await lab.end(first)
    second = await lab.bench(agent_id="mtimes")
    again = await second.ask("list_directory", path="tree")
    times = [{e["name"]: e["modified_at"][:19] for e in view.value["entries"]} for view in (listed, again)]
    assert times[0] == times[1]
    assert times[1]["in"] == times[1]["link"] == "2001-02-03T04:05:06"
    old = await second.run(
        "find . -maxdepth 1 -name tree ! -newermt 2001-02-04; command -v make >/dev/null && make -C tree -q; echo rc=$?"
    )
    assert old.out.startswith("./tree\n"), old
    assert "rc=0" in old.out or "rc=127" in old.out or (await second.run("command -v make")).code != 0, old


@check("B085")
async def files_that_tools_make_belong_to_the_sandbox_user(lab: Lab) -> None:
    bench = await lab.bench()
    await bench.call("write_file", path="w.txt", content="w\n")
    await bench.call("write_file", path="new/deep/w.txt", content="w\n")
    await lab.upload(bench, "u.txt", b"u\n")
    await lab.upload(bench, "up/deep/u.txt", b"u\n")
    view = await bench.run(
        "set -e; for f in w.txt new/deep/w.txt u.txt up/deep/u.txt; do"
        ' test "$(stat -c %u:%g "$f")" = "$(id -u):$(id -g)"; echo more >> "$f"; : > "$(dirname "$f")/sibling"; rm "$f"; done'
        "; echo fine"
    )
    assert (view.code, view.out) == (0, "fine\n"), view


@check("B087")
async def a_write_outside_fails_at_once_or_stays(lab: Lab) -> None:
    bench = await lab.bench()
    view = await bench.run(
        "echo x > /etc/cf-probe; echo rc=$?; echo x > /opt/cf-probe; echo rc=$?; mkdir /newtop; echo rc=$?"
    )
    codes = [int(line.removeprefix("rc=")) for line in view.out.split()]
    assert len(codes) == 3 and all(codes), view
    assert (await bench.run("ls -d /etc/cf-probe /opt/cf-probe /newtop")).out == ""


@check("B089")
async def odd_repositories_start_and_the_protected_path_stays(lab: Lab) -> None:
    variants = (
        "git init -q . && mkdir hooks && rm -rf .git/hooks && ln -s ../hooks .git/hooks",
        (
            "git init -q main && git -C main -c user.name=t -c user.email=t@example.invalid commit -q --allow-empty -m x"
            " && git -C main worktree add -q ../tree && cp tree/.git .git"
        ),
        "git init -q one && git init -q two",
        "true",
    )
    for variant in variants:
        bench = await lab.bench()
        made = await bench.run(variant)
        assert made.code == 0, made
        view = await bench.run("pwd; git -C . status >/dev/null 2>&1; echo done")
        assert view.out == "/home/user\ndone\n", view
        attack = await bench.run(
            "echo forged >> .exec_history; rm -f .exec_history; mv .exec_history gone; ln -sf /tmp/x .exec_history;"
            " test -f .exec_history && test ! -L .exec_history && ! grep -q forged .exec_history && echo kept"
        )
        assert attack.out == "kept\n", attack
        write = await bench.ask("write_file", path=".exec_history", content="forged")
        assert write.error in {"READ_ONLY", "PERMISSION_DENIED", "DENIED_BY_RULE"}, write
