"""Outputs that were declared are told with what they are, and a run that did not make them says so whatever it returns."""

import base64
import hashlib

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.sandbox import SandboxSpec
from tests.installation import Installation

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
MAKE = (
    "base64 -d > chart.png && mkdir -p report && echo '<p>one' > report/one.html && echo '<p>two' > report/two.html && "
    "echo beside > beside.txt && ln -sf /etc/passwd report/out.html"
)


def told(outputs: DeclaredOutputs | None) -> dict[str, tuple[int, str, str]]:
    assert outputs is not None
    return {one.path: (one.bytes, one.sha256, one.type) for one in outputs.found}


def as_told(content: bytes, kind: str) -> tuple[int, str, str]:
    return len(content), hashlib.sha256(content).hexdigest(), kind


EXPECTED = {
    "chart.png": as_told(PNG, "image/png"),
    "report/one.html": as_told(b"<p>one\n", "text/html"),
    "report/two.html": as_told(b"<p>two\n", "text/html"),
}


@pytest.mark.req("T3.18")
@pytest.mark.without_way_out
def test_each_declared_output_is_told_and_what_came_beside_and_what_leads_out(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    stdin = base64.b64encode(PNG)
    done = sandbox.run_command(MAKE, stdin=stdin, outputs=["chart.png", "report/*.html"])
    assert done.exit_code == 0
    assert told(done.outputs) == EXPECTED
    assert done.outputs is not None
    assert [(one.path, one.reason) for one in done.outputs.refused] == [("report/out.html", "link_outside")]
    assert (done.outputs.missing, done.outputs.undeclared) == ((), ("beside.txt",))
    assert done.outputs.code == "OUTPUT_MISSING"  # what leads out is none
    status = sandbox.command(done.command_id).status
    assert status is not None
    assert (status.state, status.code, status.family) == ("exited", "OUTPUT_MISSING", "input")
    receipt = client.receipt(str(done.result.receipt_id))
    assert DeclaredOutputs.model_validate(receipt["declared_outputs"]) == done.outputs
    assert receipt["exit_code"] == 0


@pytest.mark.req("T3.18")
@pytest.mark.without_way_out
def test_a_missing_output_is_the_outcome_of_a_run_that_returns_zero(sandbox: SyncSandbox) -> None:
    done = sandbox.run_command("echo only > one.txt", outputs=["one.txt", "two.txt", "none/*"])
    assert (done.exit_code, done.ended) == (0, "exited")
    assert done.outputs is not None
    assert (done.outputs.code, done.outputs.missing) == ("OUTPUT_MISSING", ("two.txt", "none/*"))
    status = sandbox.command(done.command_id).status
    assert status is not None
    assert status.message == "it was to make two.txt, none/*"
    assert status.next_actions
    whole = sandbox.run_command("true", outputs=["one.txt"])
    status = sandbox.command(whole.command_id).status
    assert status is not None
    assert (whole.outputs is not None and whole.outputs.code, status.code) == (None, None)
    assert sandbox.run_command("true").outputs is None
    with pytest.raises(InvalidArgument):
        sandbox.run_command("true", outputs=["../out"])


@pytest.mark.req("T3.18")
@pytest.mark.without_way_out
def test_a_job_has_its_outputs_when_it_has_ended_and_a_repeated_call_those_of_its_run(sandbox: SyncSandbox) -> None:
    job = sandbox.start("read -r word; echo $word > made.txt", stdin_open=True, outputs=["made.txt"])
    job.send_stdin(b"first\n")
    job.wait()
    info = sandbox.command(job.id)
    assert told(info.outputs) == {"made.txt": as_told(b"first\n", "text/plain")}
    first = sandbox.run_command("echo a > same.txt", outputs=["same.txt"], idempotency_key="outputs")
    sandbox.write_file("same.txt", "changed since")
    again = sandbox.run_command("echo a > same.txt", outputs=["same.txt"], idempotency_key="outputs")
    assert again.command_id == first.command_id
    assert told(again.outputs) == told(first.outputs) == {"same.txt": as_told(b"a\n", "text/plain")}


@pytest.mark.req("T3.18")
@pytest.mark.without_way_out
def test_the_outputs_of_a_sandbox_are_those_that_its_files_are_now(client: SyncColdframe, agent_id: str) -> None:
    spec = SandboxSpec(agent_id=agent_id, outputs=("chart.png", "report/*.html"))
    with client.sandboxes.create(spec=spec) as sandbox:
        assert sandbox.outputs().missing == spec.outputs
        sandbox.run_command(MAKE, stdin=base64.b64encode(PNG))
        sandbox.run_command("echo later > later.txt; rm beside.txt; rm report/out.html")
        found = sandbox.outputs()
        assert told(found) == EXPECTED
        assert (found.code, found.undeclared) == (None, ("later.txt",))
        lines = {line["id"]: line["value"] for line in sandbox.contract()["outputs"]}
        assert lines["outputs.declared"] == list(spec.outputs)
        named = sandbox.run_command("echo x > $'report/\\xff.html'", outputs=["report/*"])
        assert named.outputs is not None
        assert [one.path for one in named.outputs.found if not one.path.isascii()] == ["report/\ufffd.html"]
        assert [one.path for one in sandbox.outputs().found][-1] == "report/\\udcff.html"


CHART = """
import struct, zlib
part = lambda name, content: struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
rows = zlib.compress((b"\\0" + b"rgb" * 320) * 200)
chart = b"\\x89PNG\\r\\n\\x1a\\n" + part(b"IHDR", struct.pack(">IIBBBBB", 320, 200, 8, 2, 0, 0, 0)) + part(b"IDAT", rows)
open("chart.png", "wb").write(chart + part(b"IEND", b""))
open("cut.png", "wb").write(chart)
"""


@pytest.mark.req("T3.19")
@pytest.mark.without_way_out
def test_a_chart_is_told_with_its_size_and_one_that_is_cut_off_without(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    done = sandbox.run_command(["python3", "-c", CHART], outputs=["*.png"])
    assert done.exit_code == 0 and done.outputs is not None
    assert [(one.path, one.type, one.width, one.height) for one in done.outputs.found] == [
        ("chart.png", "image/png", 320, 200),
        ("cut.png", "image/png", None, None),
    ]
    receipt = client.receipt(str(done.result.receipt_id))
    assert DeclaredOutputs.model_validate(receipt["declared_outputs"]) == done.outputs
    assert "width" not in receipt["declared_outputs"]["found"][1]


TESTS = """
import unittest
class Sums(unittest.TestCase):
    def test_one(self): self.assertEqual(1, 1)
    def test_two(self): self.assertEqual(1 + 1, 2)
    def test_three(self): self.assertEqual(1 + 1 + 1, 4, "three is not four")
    def test_four(self): self.assertEqual(2 + 2, 4)
    def test_five(self): self.assertEqual(2 + 3, 5)
"""


@pytest.mark.req("T3.19")
@pytest.mark.without_way_out
def test_a_failing_test_is_told_by_name_with_what_it_says_and_its_log(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation
) -> None:
    sandbox.write_file("sums.py", TESTS)
    done = sandbox.run_command("python3 -m unittest sums 2>&1 | tee log.txt; false", outputs=["log.txt", "*.py"])
    assert done.outputs is not None and done.outputs.failed_tests == ("sums.Sums::test_three",)
    log, source = done.outputs.found
    assert (log.kind, source.kind, source.report) == ("test_report", "file", None)
    report = log.report
    assert report is not None and (report.framework, report.total, report.failed) == ("unittest", 5, 1)
    assert report.log_artifact_id == done.command_id and report.failures[0].name == "test_three"
    assert "three is not four" in str(report.failures[0].text)
    assert "three is not four" in sandbox.output(str(report.log_artifact_id)).data.decode()
    receipt = client.receipt(str(done.result.receipt_id))
    kept = DeclaredOutputs.model_validate(receipt["declared_outputs"])
    assert kept.failed_tests == done.outputs.failed_tests and kept.found[0].report is not None
    assert kept.found[0].report.failures[0].text is None  # what was printed is not in the ledger
    assert "three is not four" not in str(client.ledger.entries(sandbox_id=sandbox.id))
    spec = SandboxSpec(agent_id=sandbox.info.agent_id, outputs=("log.txt",))
    with client.sandboxes.create(spec=spec) as other:
        told = other.outputs()
        assert told.failed_tests == done.outputs.failed_tests and told.found[0].report is not None
        shown = installation.cli("contract", "outputs", other.id).stdout.decode()
        assert "1 of 5 tests failed" in shown and "sums.Sums::test_three" in shown
