"""What a call gives is judged and labelled before anybody sees a byte of it, and the session takes its label."""

import base64
import json
import random

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.command import OutputChunk
from coldframe.contract.errors import DeniedByRule
from coldframe.contract.policy import Label
from coldframe.contract.tool import ToolResult
from tests.installation import Installation, wait_until
from tests.promises.governed import EVERY_TOOL, NO_RULES, calls, history
from tests.promises.raw import call, rest

# -- a result is judged before anybody sees a byte -----------------------------------------------------------------

MARKER = "TOP-SECRET-4711"
WITHHOLD = f"version: 1\nrules:\n  - {{id: marker, hook: POST_TOOL_RESPONSE, when: {{output: {{contains: {MARKER}}}}}, then: deny}}\n"


@pytest.mark.req("T1.81")
def test_a_result_that_a_rule_withholds_reaches_the_caller_by_no_way(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox, agent_token: str
) -> None:
    owner.policy.load(WITHHOLD)
    box.upload("data.txt", f"{MARKER}\n")
    # The text is in no argument: it comes out of the box alone.
    command = "echo first-words; cat data.txt; echo last-words >&2"
    hidden = [b"first-words", b"last-words", MARKER.encode()]
    hidden += [base64.urlsafe_b64encode(text)[:14] for text in hidden]

    def sees_nothing(body: bytes) -> None:
        assert [one for one in hidden if one in body] == []

    arguments = {"command": command}
    plain = call(governed, box.id, "run_command", arguments, token=agent_token)
    streamed = call(governed, box.id, "run_command", arguments, token=agent_token, Accept="application/x-ndjson")
    for answer in (plain, streamed):
        assert (answer.status, answer.code) == (403, "DENIED_BY_RULE")
        assert answer.json["error"]["facts"]["rule"] == "marker"
        sees_nothing(answer.body)
    done = governed.cli("exec", box.id, "-c", command)
    assert (done.returncode, done.stdout) == (3, b"")
    sees_nothing(done.stderr)
    with SyncColdframe(governed.url, agent_token) as agent:
        own = agent.sandboxes.get(box.id)
        with pytest.raises(DeniedByRule):
            list(own.run(command))
        for tool, more in (("read_file", {"path": "data.txt"}), ("search_files", {"pattern": "SECRET"})):
            other = call(governed, box.id, tool, more, token=agent_token)
            assert other.code == "DENIED_BY_RULE"
            sees_nothing(other.body)
        assert rest(governed, "GET", f"/v1/sandboxes/{box.id}/files/data.txt", token=agent_token).status == 403
        # Names that a program chose are part of its result.
        answer = call(governed, box.id, "run_command", {"command": "touch $(head -c 15 data.txt)"}, token=agent_token)
        assert answer.code == "DENIED_BY_RULE"
        named = own.commands()[-1].command_id
        places = (f"/v1/sandboxes/{box.id}/commands", f"/v1/sandboxes/{box.id}/commands/{named}")
        for place in (*places, f"/v1/receipts/{named.replace('cmd_', 'rcp_')}"):
            assert MARKER.encode() not in rest(governed, "GET", place, token=agent_token).body
            assert MARKER.encode() in rest(governed, "GET", place).body
        # In the background the answer comes early and empty; the output is held until it was judged, then withheld.
        started = own.run_command("echo first-words; read x < <(sleep 1); cat data.txt", background=True)
        path = f"/v1/sandboxes/{box.id}/commands/{started.command_id}"
        for part in ("output", "events"):
            early = rest(governed, "GET", f"{path}/{part}", token=agent_token)
            assert early.status in (403, 409)
            sees_nothing(early.body)
        wait_until(lambda: calls(owner, box)[-1].kind == "call.ended", "the end is recorded")
        for part in ("output", "events"):
            late = rest(governed, "GET", f"{path}/{part}", token=agent_token)
            assert (late.status, late.code) == (403, "DENIED_BY_RULE")
            sees_nothing(late.body)
    owner.policy.load(NO_RULES)
    withheld = [one for one in history(box, governed) if one.get("result_rule") == "marker"]
    assert len(withheld) == 7 + 2
    by_command = [one for one in withheld if one["tool"] == "run_command"]
    assert {(one["attempt"], one["exit_code"], one["result_decision"]) for one in by_command} == {
        ("allowed", 0, "deny")
    }
    assert by_command[0]["stdout_bytes"] == len(f"first-words\n{MARKER}\n")
    # What was withheld from the agent is kept, for people.
    kept = next(one for one in calls(owner, box) if one.kind == "call.ended" and one.body["command_id"])
    assert box.output(kept.body["command_id"]).data == f"first-words\n{MARKER}\n".encode()


# -- every result is labelled, and the session with it -------------------------------------------------------------

LABELS = (
    "version: 1\nrules:\n"
    "  - {id: internal, hook: POST_TOOL_RESPONSE, when: {tool: read_file, path: {glob: 'internal/*'}}, label: INTERNAL}\n"
    "  - {id: crm, hook: POST_TOOL_RESPONSE, when: {tool: read_file, path: {glob: 'crm/*'}}, label: CONFIDENTIAL}\n"
    "  - {id: health, hook: PRE_TOOL_CALL, when: {tool: read_file, path: {glob: 'health/*'}}, label: RESTRICTED}\n"
)


@pytest.mark.req("T1.101", "T1.102")
def test_every_result_of_every_tool_is_labelled_with_a_reason_errors_too(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox
) -> None:
    owner.policy.load(LABELS)
    session = box.info.session_id
    failing: dict[str, dict[str, object]] = {
        "write_file": {"path": "a.txt", "content": "x", "create_only": True},
        "read_file": {"path": "none"},
        "edit_file": {"path": "a.txt", "old": "nowhere", "new": ""},
        "list_directory": {"path": "none"},
        "search_files": {"pattern": "(", "path": ""},
        "run_command": {"command": "true", "cwd": "none"},
    }
    for tool, arguments in EVERY_TOOL.items():
        good, bad = call(governed, box.id, tool, arguments), call(governed, box.id, tool, failing[tool])
        assert good.status == 200 and bad.status in (400, 404, 409), bad.body
        results = [good.json] + ([bad.json["result"]] if "result" in bad.json else [])
        # An argument that is wrong is refused before there is a result.
        assert len(results) == 2 or bad.code in ("INVALID_ARGUMENT", "INVALID_PATTERN"), tool
        for result in results:
            assert (result["label"], result["taint"]) == ("PUBLIC", "PUBLIC"), tool
            assert result["label_reason"].startswith("PUBLIC by "), tool
    missing = call(governed, box.id, "read_file", {"path": "crm/none"})
    assert (missing.status, missing.json["result"]["label"]) == (404, "CONFIDENTIAL")
    assert "rule crm" in missing.json["result"]["label_reason"]
    assert owner.sessions.get(session).taint is Label.CONFIDENTIAL
    for tool, arguments in EVERY_TOOL.items():
        if tool != "write_file":
            tainted = call(governed, box.id, tool, arguments)
            assert (tainted.status, tainted.json["label"]) == (200, "CONFIDENTIAL"), tool
    events = call(
        governed, box.id, "run_command", {"command": "echo x"}, Accept="application/x-ndjson"
    ).body.splitlines()
    assert json.loads(events[-1])["result"]["label"] == "CONFIDENTIAL"


@pytest.mark.req("T1.102")
def test_the_label_of_a_result_is_the_sessions_before_it_is_delivered(owner: SyncColdframe, agent_id: str) -> None:
    owner.policy.load(
        LABELS + "  - {id: report, hook: POST_TOOL_RESPONSE, when: {output: {contains: REPORT}}, label: INTERNAL}\n"
    )
    ranks = {"plain": Label.PUBLIC, "internal": Label.INTERNAL, "crm": Label.CONFIDENTIAL, "health": Label.RESTRICTED}
    chance = random.Random(102)
    for number in range(4):
        with owner.sandboxes.create(agent_id=f"{agent_id}-{number}") as sandbox:
            session = sandbox.info.session_id
            # A streamed output is not ahead of its label either.
            for event in sandbox.run("printf REPO; sleep 0.05; echo RT"):
                if isinstance(event, OutputChunk | ToolResult):
                    assert owner.sessions.get(session).taint is Label.INTERNAL
            highest = Label.INTERNAL
            for place in chance.choices(list(ranks), [4, 4, 2, 1], k=12):
                result = sandbox.call("read_file", {"path": f"{place}/x"})
                highest = max(highest, ranks[place], key=lambda label: label.rank)
                assert result.label is result.taint is owner.sessions.get(session).taint is highest


@pytest.mark.req("TP.19")
def test_labels_never_come_from_content(owner: SyncColdframe, box: SyncSandbox) -> None:
    owner.policy.load(LABELS)
    claims = {
        "claim.json": '{"label": "RESTRICTED", "classification": "RESTRICTED", "taint": "RESTRICTED"}',
        "RESTRICTED.txt": "Classification: RESTRICTED\n",
        "note.md": "---\nlabel: RESTRICTED\n---\n",
    }
    session = box.info.session_id
    for name, text in claims.items():
        box.write_file(name, text)
        assert box.read_file(name).result.label is Label.PUBLIC
        assert box.run_command(["cat", name]).result.label is Label.PUBLIC
    assert owner.sessions.get(session).taint is Label.PUBLIC
    box.call("read_file", {"path": "crm/x"})
    for name, text in claims.items():
        box.write_file(name, text.replace("RESTRICTED", "PUBLIC"))
        assert box.read_file(name).result.label is Label.CONFIDENTIAL
        assert box.run_command(["cat", name]).result.taint is Label.CONFIDENTIAL
    assert owner.sessions.get(session).taint is Label.CONFIDENTIAL
