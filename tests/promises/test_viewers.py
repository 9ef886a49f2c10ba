"""A viewer reads files and writes none: judged, labelled and on record as whoever else reads."""

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import DeniedByRule, GrantMissing
from coldframe.contract.policy import Role
from tests.promises.raw import own_installation

RULES = """version: 1
rules:
  - {id: not-for-viewers, hook: PRE_TOOL_CALL, when: {role: viewer, path: {glob: 'staff/*'}}, then: deny}
  - {id: crm, hook: PRE_TOOL_CALL, when: {tool: read_file, path: {glob: 'crm/*'}}, label: CONFIDENTIAL}
"""


@pytest.mark.req("T4.16", "TP.17")
def test_what_a_viewer_reads_is_judged_labelled_and_on_record_also_after_the_end() -> None:
    with own_installation() as governed, SyncColdframe(governed.url, governed.token) as owner:
        with owner.sandboxes.create(agent_id="seen") as box:
            for path in ("crm/list", "staff/list", "report.txt"):
                box.write_file(path, f"in {path}")
            owner.policy.load(RULES)
            token, made = owner.tokens.create(Role.VIEWER, "reviewer")
            with SyncColdframe(governed.url, token) as viewer:
                seen = viewer.sandboxes.get(box.id)
                assert seen.read_file("report.txt").content == "in report.txt"
                assert viewer.sessions.get(seen.info.session_id).taint == "PUBLIC"
                assert seen.read_file("crm/list").result.label == "CONFIDENTIAL"
                assert (
                    viewer.sessions.get(seen.info.session_id).taint == "CONFIDENTIAL"
                )  # as of everybody who reads in that session
                for read in (seen.read_file, lambda path: b"".join(seen.download(path)), seen.files.read):
                    with pytest.raises(DeniedByRule):
                        read("staff/list")
                assert [one.path for one in seen.search_files("in crm").matches] == ["crm/list"]
                assert seen.files.stat("/etc/hosts").type == "file"
                listed = {one.operation: one.answer for one in seen.allowed()}
                assert (listed["file.read"], listed["tool.call"]) == ("allow", "deny")
                assert (listed["tool.list_directory"], listed["tool.write_file"]) == ("allow", "deny")
            entries = owner.ledger.entries(kinds=["call.started", "call.refused"], limit=1000)
            by_viewer = [one.body for one in entries if made.token_id in str(one.body.get("caller"))]
            assert len(by_viewer) == 7
            assert {one["tool"] for one in by_viewer} == {"read_file", "search_files", "stat_path"}
        with SyncColdframe(governed.url, token) as viewer:
            ended = viewer.sandboxes.get(box.id)
            assert ended.read_file("report.txt").content == "in report.txt"
            with pytest.raises(GrantMissing):
                ended.write_file("report.txt", "changed")
        owner.tokens.revoke(made.token_id)
