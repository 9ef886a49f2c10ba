"""One set of promises at every isolation level that is offered, and the level named wherever a sandbox leaves a trace.

A level is offered if a sandbox can be created at it. Its section of the contract is all that may differ: what a person
does with files, commands, limits, network and lifecycle gives the same at each.
"""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from coldframe.client.answers import CommandAnswer
from coldframe.client.sync import Sandboxes, SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import SandboxSpec
from tests.conftest import WAY_OUT
from tests.host.machines import needs_bubblewrap
from tests.installation import Installation
from tests.promises.greed import BRIEF, GREEDY, LIMITS, PATIENCE_S

pytestmark = needs_bubblewrap
LEVELS = get_args(SandboxSpec.model_fields["isolation"].annotation)


@pytest.fixture(scope="module")
def shared(installation: Any) -> Iterator[dict[str, SyncSandbox]]:
    """One sandbox for each offered level."""
    made: dict[str, SyncSandbox] = {}
    with SyncColdframe(installation.url, installation.token) as client:
        for level in LEVELS:
            try:
                spec = SandboxSpec(agent_id=f"level-{level}", isolation=level, limits=LIMITS)
                made[level] = client.sandboxes.create(spec=spec)
            except ColdframeError as error:
                assert error.code == "ISOLATION_UNAVAILABLE", error
        assert made
        yield made
        for sandbox in made.values():
            sandbox.terminate()


def out(sandbox: SyncSandbox, line: str, **options: Any) -> str:
    return str(sandbox.run_command(line, **options).stdout)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(ColdframeError) as told:
        act()
    return told.value.code


def limit_met(answer: CommandAnswer) -> str | None:
    return answer.limit.kind if answer.limit is not None else None


def is_ended_by(kind: str, sandbox: SyncSandbox) -> bool:
    return limit_met(sandbox.run_command(GREEDY[kind], timeout_s=PATIENCE_S)) == kind


def is_ended_by_cpu_time(sandbox: SyncSandbox) -> bool:
    """In a box of its own: what meets the other limits needs CPU time, of which a slow machine takes more."""
    spec = sandbox.info.spec.model_copy(update={"limits": BRIEF})
    with Sandboxes(sandbox._transport).create(spec=spec) as brief:
        return is_ended_by("cpu", brief)


def attempt_is_recorded(sandbox: SyncSandbox) -> bool:
    """With the command that made it. Without control groups that is best effort: whoever ends at once may be gone before it is
    looked up, and then the attempt is on record of the sandbox alone. So an ordinary user has three."""
    return any(
        [one.address for one in sandbox.run_command("exec 3<>/dev/tcp/203.0.113.9/443").contacts] == ["203.0.113.9"]
        for _ in range(1 if os.geteuid() == 0 else 3)
    )


def is_removed(sandbox: SyncSandbox, path: str) -> bool:
    sandbox.remove_file(path)
    return sandbox.run_command(["test", "-e", path]).exit_code == 1


def is_cancelled(sandbox: SyncSandbox, line: str) -> bool:
    command_id = sandbox.run_command(line, background=True).command_id
    running = sandbox.command(command_id).state == "running"
    sandbox.signal(command_id, cancel=True)
    return running


Check = Callable[[SyncSandbox], bool]
SUITE: dict[str, Check] = {
    # files
    "a file that was written is read": lambda s: (
        s.write_file("a", "one\n").bytes_written == 4 and s.read_file("a").content == "one\n"
    ),
    "bytes survive": lambda s: s.upload("b", b"\0\xff\n").bytes_written == 3 and out(s, "wc -c < b").strip() == "3",
    "a file of a command is read": lambda s: (
        s.run_command("echo two > c").exit_code == 0 and s.read_file("c").content == "two\n"
    ),
    "an edit changes one place": lambda s: (
        s.write_file("d", "x y\n").bytes_written == 4 and s.edit_file("d", "y", "z").content == "x z\n"
    ),
    "a folder is listed": lambda s: "a" in {one.path for one in s.list_directory("").entries},
    "text is found": lambda s: [one.path for one in s.search_files("x z", "d").matches] == ["d"],
    "a missing file is told": lambda s: refused(lambda: s.read_file("none")) == "FILE_NOT_FOUND",
    "a path outside is refused": lambda s: refused(lambda: s.read_file("../../etc/passwd")) == "OUTSIDE_WORKSPACE",
    "a link outside is refused": lambda s: (
        s.run_command("ln -sf /etc/passwd l").exit_code == 0
        and refused(lambda: s.read_file("l")) in ("OUTSIDE_WORKSPACE", "NOT_REGULAR")
    ),
    "a file is removed": lambda s: is_removed(s, "b"),
    # commands
    "the exit code is the program's": lambda s: s.run_command("exit 7").exit_code == 7,
    "a signal is 128 and its number": lambda s: s.run_command("kill -9 $$").exit_code == 137,
    "a missing program is 127": lambda s: s.run_command(["no-such-program"]).exit_code == 127,
    "streams are apart": lambda s: (lambda done: (done.stdout, done.stderr) == ("o\n", "e\n"))(
        s.run_command("echo o; echo e >&2")
    ),
    "no shell reads a list": lambda s: s.run_command(["echo", "$HOME;x"]).stdout == "$HOME;x\n",
    "a variable is given": lambda s: out(s, "echo $NAME", env={"NAME": "value"}) == "value\n",
    "a folder is chosen": lambda s: out(s, "pwd", cwd="scratch") == "/home/user/scratch\n",
    "input is given and ends": lambda s: out(s, "cat", stdin=b"in") == "in",
    "the user is ordinary": lambda s: out(s, "id -u") == "1000\n",
    "home is the workspace": lambda s: out(s, "echo $HOME") == "/home/user\n",
    "the environment is clean": lambda s: "COLDFRAME_TOKEN" not in out(s, "env"),
    "output is whole": lambda s: out(s, "seq 20000").count("\n") == 20000,
    "a background command goes on until it is cancelled": lambda s: is_cancelled(s, "sleep 1000"),
    "python runs": lambda s: s.run_command(["python3", "-c", "print(6 * 7)"]).stdout == "42\n",
    # limits
    "wall time ends a command": lambda s: s.run_command("sleep 1000", timeout_s=0.5).timed_out,
    "CPU time ends a command": is_ended_by_cpu_time,
    "memory ends a command": lambda s: is_ended_by("memory", s),
    "output ends a command": lambda s: is_ended_by("output", s),
    "a file that does not fit is refused": lambda s: (
        refused(lambda: s.upload("big", b"\0" * (80 << 20))) == "LIMIT_DISK"
    ),
    "the next command works": lambda s: out(s, "echo next") == "next\n",
    # network
    "the only interface is lo": lambda s: out(s, "ls /proc/sys/net/ipv4/conf").split() == ["all", "default", "lo"],
    "nothing outside is reached": lambda s: (
        s.run_command("exec 3<>/dev/tcp/203.0.113.9/443 && echo x >&3 && read -r -n 1 -u 3").exit_code != 0
    ),
    "an attempt is recorded": lambda s: attempt_is_recorded(s),
    "no name is found": lambda s: s.run_command("getent hosts example.com").exit_code != 0,
    "loopback is free": lambda s: s.run_command("exec 3<>/dev/tcp/127.0.0.1/9").contacts == (),
    # lifecycle
    "it runs": lambda s: s.refresh().state.state == "running",
    "what was run is listed": lambda s: len(s.commands()) > 5,
    "processes are listed": lambda s: s.processes() is not None,
    "a receipt says what was done": lambda s: bool(s.run_command("true").result.receipt_id),
    "the contract has every section": lambda s: all(
        s.contract()[name] for name in ("inputs", "execution", "isolation", "not_prevented", "lifecycle")
    ),
    "what is allowed is listed": lambda s: "tool.call" in {one.operation for one in s.allowed()},
}


@pytest.mark.req("T3.23")
@pytest.mark.parametrize("promise", SUITE)
def test_the_same_is_promised_at_every_level(shared: dict[str, SyncSandbox], promise: str) -> None:
    assert {level: SUITE[promise](sandbox) for level, sandbox in shared.items()} == dict.fromkeys(shared, True)


@pytest.fixture(scope="module")
def with_a_way_out(installation: Installation) -> Iterator[SyncSandbox]:
    """A sandbox whose connections are taken by the broker. The rules lead nowhere, and are gone before it is used."""
    with SyncColdframe(installation.url, installation.token) as client:
        kept = client.policy.show().text
        client.policy.load(WAY_OUT)
        try:
            sandbox = client.sandboxes.create(spec=SandboxSpec(agent_id="level-way-out", limits=LIMITS))
        finally:
            client.policy.load(kept)
        with sandbox:
            assert sandbox.info.network == ("nowhere",)
            yield sandbox


@pytest.mark.parametrize("promise", SUITE)
def test_the_same_is_promised_of_a_sandbox_that_has_a_way_out(with_a_way_out: SyncSandbox, promise: str) -> None:
    assert SUITE[promise](with_a_way_out)


@pytest.mark.req("T3.23")
def test_the_suite_is_large_enough_to_mean_something() -> None:
    assert len(SUITE) >= 40


@pytest.mark.req("T3.23")
def test_the_level_stands_on_everything_that_a_sandbox_leaves(
    client: SyncColdframe, shared: dict[str, SyncSandbox]
) -> None:
    for level, sandbox in shared.items():
        assert sandbox.info.spec.isolation == level
        assert sandbox.report().level == level
        receipt = client.receipt(str(sandbox.run_command("true").result.receipt_id))
        assert receipt["inputs"]["isolation"] == level
        lines = {line["id"]: line["value"] for line in sandbox.contract()["isolation"]}
        assert lines["isolation.level"] == level
        created = client.ledger.entries(kinds=("sandbox.created",), subject=sandbox.id)
        assert json.loads(created[0].body["spec"])["isolation"] == level


# -- isolation and persistence -----------------------------------------------------------------------


@pytest.mark.req("T3.36")
@pytest.mark.parametrize("persistence", ["background", "durable"])
def test_what_survives_depends_on_persistence_alone_and_the_walls_on_the_level_alone(
    client: SyncColdframe, agent_id: str, shared: dict[str, SyncSandbox], persistence: str
) -> None:
    kept = persistence == "durable"
    for level, reference in shared.items():
        spec = SandboxSpec(
            agent_id=f"{agent_id}-{level}" if kept else None,
            background=not kept,
            isolation=reference.info.spec.isolation,
            limits=LIMITS,
        )
        with client.sandboxes.create(spec=spec) as first:
            first.run_command("echo marker > marker; echo marker > /tmp/marker; echo marker > /dev/shm/marker")
            assert walls_of(first) == walls_of(reference)
            said = {line["id"]: line["value"] for line in first.contract()["persistence"]}
        assert ("lost" in said["persistence.tree"]["events"]["sandbox_ends"]) is not kept
        assert said["persistence.temporary"]["events"]["sandbox_ends"] == "lost"
        with client.sandboxes.create(spec=spec) as second:
            assert out(second, "cat marker 2>/dev/null") == ("marker\n" if kept else "")
            assert out(second, "ls /tmp /var/tmp /dev/shm").count("marker") == 0


def walls_of(sandbox: SyncSandbox) -> list[tuple[object, ...]]:
    report = sandbox.report()
    walls: list[tuple[object, ...]] = [(one.name, one.state, one.mechanism) for one in report.properties]
    return walls + [(one.kind, one.limit, one.strength, one.enforced_by) for one in report.limits]
