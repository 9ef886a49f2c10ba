"""What work has left is told by kind, with origin and digest, from a run in a real box; and a person who knows better is heard."""

import hashlib
import json

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.artifact import ArtifactKind
from coldframe.contract.errors import GrantMissing, InvalidArgument, NotFound
from coldframe.contract.policy import Role
from tests.installation import Installation
from tests.promises.governed import token_of
from tests.promises.test_network_log import CRM, RULES, settled
from tests.reachable import Reachable

PICTURE = "\x89PNG\r\n\x1a\nnothing more".encode("latin-1")
WRITTEN = ("app/main.py", "web/index.html", "Makefile")
"""By calls of an agent."""
MADE = {
    "app/models.py": "printf 'class Ticket: ...\\n' > app/models.py",
    "dist/app.js": "mkdir -p dist && printf '1' > dist/app.js",
    "by_category.csv": "printf 'a,1\\n' > by_category.csv",
    "chart.png": "printf 'chart' > chart.png",
    "build/app.o": "mkdir -p build && printf 'obj' > build/app.o",
    "junit.xml": "printf '<testsuites/>' > junit.xml",
    "coverage/lcov.info": "mkdir -p coverage && printf 'TN:' > coverage/lcov.info",
    "test-results/trace.zip": "mkdir -p test-results && printf 'PK' > test-results/trace.zip",
    "results.tap": "printf '1..0\\n' > results.tap",
    "server.log": "printf 'up\\n' > server.log",
    "logs/access.txt": "mkdir -p logs && printf 'GET /\\n' > logs/access.txt",
    "screenshots/home.png": "mkdir -p screenshots && printf 'p' > screenshots/home.png",
    "test-results/failed-1.png": "printf 'p' > test-results/failed-1.png",
    "Screenshot 2026-05-04.png": "printf 'p' > 'Screenshot 2026-05-04.png'",
    "cypress/form.webp": "mkdir -p cypress && printf 'p' > cypress/form.webp",
    "node_modules/tiny/index.js": "mkdir -p node_modules/tiny && printf 'x' > node_modules/tiny/index.js",
}
EXPECTED: dict[ArtifactKind, set[str]] = {
    "source": {*WRITTEN, "app/models.py"},
    "output": {"dist/app.js", "by_category.csv", "chart.png", "build/app.o"},
    "test": {"junit.xml", "coverage/lcov.info", "test-results/trace.zip", "results.tap"},
    "log": {"server.log", "logs/access.txt", "STDOUT", "STDERR"},
    "screenshot": {
        "screenshots/home.png",
        "test-results/failed-1.png",
        "Screenshot 2026-05-04.png",
        "cypress/form.webp",
    },
    "input": {"answer.json", "tickets.csv", "brief.pdf", "node_modules/tiny/index.js"},
}
"""24 samples; the names of what was printed are filled in."""


def worked(box: SyncSandbox, agent: SyncSandbox) -> dict[ArtifactKind, set[str]]:
    for path in WRITTEN:
        agent.write_file(path, f"{path}\n")
    for command in MADE.values():
        assert box.run_command(command).exit_code == 0
    fetched = box.run_command(f"curl -4sSo answer.json {CRM}")
    assert fetched.exit_code == 0, fetched.stderr
    settled(box, 1)
    box.upload("tickets.csv", b"a,b\n", source="https://files.example.com/tickets.csv")
    box.upload("brief.pdf", b"%PDF-1.7\n")
    printed = box.run_command("echo out; echo err >&2").command_id
    names = {"STDOUT": f"{printed}/stdout", "STDERR": f"{printed}/stderr"}
    return {kind: {names.get(name, name) for name in some} for kind, some in EXPECTED.items()}


@pytest.mark.req("T4.15")
def test_each_of_24_samples_is_of_the_right_kind_also_when_its_sandbox_has_ended(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("maker") as box:
            with SyncColdframe(client.url, token_of(client, Role.AGENT, "maker")) as own:
                expected = worked(box, own.sandboxes.get(box.id))
        ended = client.sandboxes.get(box.id)
        assert ended.info.state.state == "terminated"
        assert sum(map(len, expected.values())) == 24
        for kind, names in expected.items():
            page = ended.artifacts(kind)
            assert {one.name for one in page.artifacts} == names, kind
            assert {one.kind for one in page.artifacts} == {kind}
            assert all(one.sha256 and one.rule and one.receipt_id for one in page.artifacts)
            assert page.complete
        whole = {one.name: one for one in ended.artifacts().artifacts}
        assert {one.kind: one.number for one in ended.artifacts(limit=1).counts} == dict.fromkeys(expected, 4)
        answer = whole["answer.json"]
        assert (answer.origin, answer.endpoints) == ("downloaded", ("other.example.com",))
        assert answer.command_id is not None
        assert client.receipt(answer.receipt_id)["command"].startswith("curl")
        assert whole["tickets.csv"].said_source == "https://files.example.com/tickets.csv"
        assert whole["app/main.py"].sha256 == hashlib.sha256(b"app/main.py\n").hexdigest()
        parts, after = [], None
        while True:
            page = ended.artifacts(after=after, limit=5)
            parts += [one.name for one in page.artifacts]
            after = page.next_after
            if after is None:
                break
        assert parts == [*whole]

    room.use(steps)


@pytest.mark.req("T4.15")
def test_a_person_says_of_what_kind_something_is_and_that_is_on_record(
    governed: Installation, owner: SyncColdframe, agent_id: str
) -> None:
    with owner.sandboxes.create(agent_id) as box:
        box.run_command("printf x > notes.bin; printf y > gone; rm gone; mkdir d; git init -q repo")
        (before,) = [one for one in box.artifacts().artifacts if not one.name.startswith("cmd_")]
        assert (before.name, before.kind, before.corrected_by) == ("notes.bin", "output", None)
        done = box.correct_artifact("notes.bin", "input")
        assert (done.kind, done.sha256) == ("input", before.sha256)
        assert done.corrected_by is not None and done.corrected_by in done.rule
        (entry,) = owner.ledger.entries(kinds=["artifact.corrected"], sandbox_id=box.id)
        assert (entry.body["kind_before"], entry.body["kind"], entry.body["sha256"]) == (
            "output",
            "input",
            before.sha256,
        )
        with pytest.raises(NotFound):
            box.correct_artifact("gone", "log")
        with pytest.raises(InvalidArgument):
            box.correct_artifact("notes.bin", "toy")  # type: ignore[arg-type]
        for role in (Role.VIEWER, Role.AGENT):
            token = token_of(owner, role, agent_id if role is Role.AGENT else None)
            with SyncColdframe(governed.url, token) as other:
                seen = other.sandboxes.get(box.id)
                assert [one.name for one in seen.artifacts("input").artifacts] == ["notes.bin"]
                with pytest.raises(GrantMissing):
                    seen.correct_artifact("notes.bin", "log")
    with owner.sandboxes.create(agent_id) as later:
        (same,) = later.artifacts("input").artifacts
        assert same.name == "notes.bin", "it is the same workspace"
        shown = governed.cli("artifacts", later.id, "--kind", "input", "--json")
        assert [one["name"] for one in json.loads(shown.stdout)] == ["notes.bin"]
        back = governed.cli("sandbox", "correct", later.id, "notes.bin", "rules")
        assert b"notes.bin: output" in back.stdout


def test_what_a_rule_has_withheld_is_told_to_owners_alone(
    governed: Installation, owner: SyncColdframe, agent_id: str
) -> None:
    owner.policy.load(
        """version: 1
rules:
  - id: marker
    hook: POST_TOOL_RESPONSE
    when: {output: {contains: "TOP-SECRET"}}
    then: deny
    reason: it must not get out
"""
    )
    with owner.sandboxes.create(agent_id) as box:
        with SyncColdframe(governed.url, token_of(owner, Role.AGENT, agent_id)) as agent:
            own = agent.sandboxes.get(box.id)
            own.write_file("open.py", "1\n")
            with pytest.raises(Exception, match=r".*"):
                own.run_command("echo TOP-SECRET; printf x > secret-plan.pdf; printf y >> open.py")
            page = own.artifacts()
            assert ([one.name for one in page.artifacts], page.withheld) == ([], 1)
        names = {one.name for one in box.artifacts().artifacts}
        assert {"secret-plan.pdf", "open.py"} <= names
