"""What a command did is carried out again from what it began from, and comes out the same, or is told where it does not."""

import json

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import DeniedByRule, GrantMissing, InvalidArgument, NotReplayable
from coldframe.contract.policy import Role
from coldframe.contract.receipt import Receipt
from tests.installation import Installation
from tests.promises.governed import token_of
from tests.promises.raw import all_entries
from tests.promises.test_snapshots import can_hold, take

BROKEN = "def total(numbers):\n    return sum(numbers) - 1\n"
MENDED = "def total(numbers):\n    return sum(numbers)\n"
TESTS = """
import sys
sys.dont_write_bytecode = True
from project import total

def test_of_none():
    assert total([]) == 0

def test_of_three():
    assert total([1, 2, 3]) == 6

def test_of_text():
    try:
        total(["a"])
    except TypeError:
        return
    assert False

failed = []
for name, test in sorted(globals().copy().items()):
    if name.startswith("test_"):
        try:
            test()
        except AssertionError:
            failed.append(name)
print("failed:", *failed)
names = [name for name in sorted(globals()) if name.startswith("test_")]
with open("report.tap", "w") as tap:
    for number, name in enumerate(names, start=1):
        print("not ok" if name in failed else "ok", number, "-", name, file=tap)
    print(f"1..{len(names)}", file=tap)
with open("report.txt", "a") as report:
    report.write(f"{len(failed)}\\n")
sys.exit(bool(failed))
"""


def receipt_of(client: SyncColdframe, sandbox: SyncSandbox, command: str | list[str], **more: object) -> Receipt:
    answer = sandbox.run_command(command, **more)  # type: ignore[arg-type]
    return Receipt.model_validate(client.receipt(str(answer.result.receipt_id)))


def failed_tests(receipt: Receipt) -> tuple[str, ...]:
    assert receipt.declared_outputs is not None and receipt.declared_outputs.code is None
    return receipt.declared_outputs.failed_tests


@pytest.mark.req("T3.13")
def test_three_rounds_of_a_project_come_out_the_same_again(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.write_file("tests.py", TESTS)
    rounds: list[Receipt] = []
    failing = []
    for text in (BROKEN, BROKEN.replace("- 1", "- len(numbers)"), MENDED):
        sandbox.write_file("project.py", text)
        taken = take(sandbox)
        rounds.append(receipt_of(client, sandbox, "python3 tests.py", outputs=["report.tap"]))
        failing.append(sandbox.run_command("tail -n 1 report.txt").stdout)
        assert taken.state == "ready"
    assert [one.exit_code for one in rounds] == [1, 1, 0] and failing == ["2\n", "1\n", "0\n"]
    assert [failed_tests(one) for one in rounds] == [("test_of_none", "test_of_three"), ("test_of_three",), ()]
    assert len({one.tree_sha256_before for one in rounds}) == 3
    now = receipt_of(client, sandbox, "true").tree_sha256_after
    for one in rounds:
        done = client.replay(one.receipt_id)
        assert done.same and done.complete and not done.differences, done
        again = Receipt.model_validate(client.receipt(done.replay_receipt_id))
        assert (again.exit_code, again.stdout, again.stderr) == (one.exit_code, one.stdout, one.stderr)
        assert failed_tests(again) == failed_tests(one)
        assert (again.files, again.tree_sha256_after) == (one.files, one.tree_sha256_after)
        assert (done.basis.tree_sha256_before, done.basis.previous_receipt_id) == (
            one.tree_sha256_before, one.previous_receipt_id
        )  # fmt: skip
        assert done.basis.begun_from == "snapshot" and done.sandbox_id != sandbox.id
        assert client.sandboxes.get(done.sandbox_id).info.state.state == "terminated"
        entry = client.ledger.entries(after=done.ledger_seq - 1, limit=1)[0]
        assert (entry.kind, entry.subject, entry.body["same"]) == ("replay.ended", one.call_id, True)
    assert receipt_of(client, sandbox, "true").tree_sha256_before == now


@pytest.mark.req("T3.13")
def test_what_comes_out_otherwise_is_told_by_name_and_line(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation
) -> None:
    begun = take(sandbox)
    command = "echo same; date +%s.%N; date +%s.%N > when; echo as-before > kept; rm -f gone; ls / >&2"
    one = receipt_of(client, sandbox, command)
    later = take(sandbox)
    assert later.snapshot_id != begun.snapshot_id
    done = client.replay(one.receipt_id)
    assert not done.same and done.basis.snapshot_id == begun.snapshot_id
    found = {each.what: each for each in done.differences}
    assert set(found) == {"stdout", "file:when", "tree"}
    assert found["stdout"].line == 2 and one.stdout is not None and found["stdout"].original == one.stdout.sha256
    again = Receipt.model_validate(client.receipt(done.replay_receipt_id))
    assert again.stdout is not None and found["stdout"].replay == again.stdout.sha256
    told = installation.cli("replay", one.receipt_id, "--json")
    assert told.returncode == 6 and {each["what"] for each in json.loads(told.stdout)["differences"]} == set(found)


@pytest.mark.req("T3.13")
def test_a_test_that_fails_only_once_is_a_difference_by_its_name(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    take(sandbox)
    command = "read -r whim < /proc/sys/kernel/random/uuid; printf '1..1\\nnot ok 1 - %s\\n' $whim > report.tap"
    one = receipt_of(client, sandbox, command, outputs=["report.tap"])
    done = client.replay(one.receipt_id)
    (again,) = failed_tests(Receipt.model_validate(client.receipt(done.replay_receipt_id)))
    told = {each.what: (each.original, each.replay) for each in done.differences}
    (first,) = failed_tests(one)
    assert (told[f"test:{first}"], told[f"test:{again}"]) == (("failed", None), (None, "failed"))


@pytest.mark.req("T3.13")
def test_without_a_snapshot_the_workspace_has_to_be_what_it_was(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation, agent_id: str
) -> None:
    sandbox.write_file("in.txt", "3\n")
    one = receipt_of(client, sandbox, ["sort", "in.txt"])
    snapshots = client.snapshots.list(agent_id=agent_id)
    if can_hold(sandbox):
        done = client.replay(one.receipt_id)
        assert done.same and done.basis.begun_from == "workspace", done
    else:
        sandbox.stop()
        assert client.replay(one.receipt_id).same
        sandbox.start_again()
    assert client.snapshots.list(agent_id=agent_id) == snapshots
    sandbox.write_file("in.txt", "4\n")
    before = [each.id for each in client.sandboxes.list()]
    with pytest.raises(NotReplayable) as refused:
        client.replay(one.receipt_id)
    assert refused.value.facts["missing"] == "files" and "snapshot" in refused.value.advice
    assert [each.id for each in client.sandboxes.list()] == before
    assert sandbox.read_file("in.txt").content == "4\n"
    told = installation.cli("replay", one.receipt_id)
    assert told.returncode == 6 and b"NOT_REPLAYABLE" in told.stderr
    sandbox.write_file("in.txt", "3\n")
    sandbox.terminate()
    with pytest.raises(NotReplayable):
        client.replay(one.receipt_id)


@pytest.mark.req("T3.13")
def test_what_a_receipt_has_by_digest_alone_is_brought_and_checked(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    take(sandbox)
    one = receipt_of(client, sandbox, "cat; echo $GREETING", env={"GREETING": "hello"}, stdin="given")
    for environment, stdin, missing in (({}, b"given", "environment"), ({"GREETING": "hello"}, b"", "stdin")):
        with pytest.raises(NotReplayable) as refused:
            client.replay(one.receipt_id, environment=environment, stdin=stdin)
        assert refused.value.facts["missing"] == missing
    for environment, stdin in (
        ({"GREETING": "other"}, b"given"),
        ({"GREETING": "hello"}, b"other"),
        ({"GREETING": "hello", "MORE": ""}, b"given"),
    ):
        with pytest.raises(InvalidArgument):
            client.replay(one.receipt_id, environment=environment, stdin=stdin)
    assert client.replay(one.receipt_id, environment={"GREETING": "hello"}, stdin=b"given").same
    written = str(sandbox.call("write_file", {"path": "a", "content": ""}).receipt_id)
    with pytest.raises(NotReplayable):
        client.replay(written)
    shell = receipt_of(client, sandbox, "true", shell_session="main")
    with pytest.raises(NotReplayable) as refused:
        client.replay(shell.receipt_id)
    assert refused.value.facts["missing"] == "shell_session"


@pytest.mark.req("T3.13")
def test_a_replay_is_judged_and_no_agent_has_one_made(
    owner: SyncColdframe, box: SyncSandbox, governed: Installation, agent_id: str
) -> None:
    take(box)
    one = receipt_of(owner, box, "cat a.txt")
    with SyncColdframe(governed.url, token_of(owner, Role.AGENT, agent_id)) as agent:
        with pytest.raises(GrantMissing):
            agent.replay(one.receipt_id)
    with SyncColdframe(governed.url, token_of(owner, Role.MEMBER)) as member:
        assert member.replay(one.receipt_id).same
    since = owner.ledger.verify().head_seq
    owner.policy.load(
        "version: 1\nrules:\n  - {id: no-replays, hook: PRE_TOOL_CALL, when: {tool: replay_call}, then: deny}\n"
    )
    with pytest.raises(DeniedByRule):
        owner.replay(one.receipt_id)
    owner.policy.load(
        "version: 1\nrules:\n  - {id: no-cat, hook: PRE_TOOL_CALL, when: {tool: run_command}, then: deny}\n"
    )
    with pytest.raises(DeniedByRule):
        owner.replay(one.receipt_id)
    kinds = [each.kind for each in all_entries(owner, after=since)]
    assert kinds.count("replay.started") == kinds.count("replay.ended") == 1 and "act.refused" in kinds
    ended = [each for each in all_entries(owner, after=since) if each.kind == "replay.ended"][0]
    assert ended.body["code"] == "DENIED_BY_RULE"
    made = [each.subject for each in all_entries(owner, after=since) if each.kind == "sandbox.created"]
    assert [owner.sandboxes.get(each).info.state.state for each in made] == ["terminated"]
