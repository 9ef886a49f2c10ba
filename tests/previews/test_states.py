"""A preview that shows nothing says why, the same to visitors and to whoever asks, and comes back under its address."""

import json
import threading
from collections.abc import Callable

import pytest

from coldframe.client.models import PreviewInfo
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import PreviewProcessExited, PreviewStarting, PreviewUnavailable, WrongState
from coldframe.contract.preview import PreviewStatus
from coldframe.contract.sandbox import Limits
from tests.installation import Installation
from tests.previews.visiting import APP, Visitor, read_until, serve
from tests.promises.raw import own_installation

pytestmark = pytest.mark.req("T3.71")
PAGE = {"Accept": "text/html,application/xhtml+xml"}


def status_of(client: SyncColdframe, preview: PreviewInfo) -> PreviewStatus:
    found: PreviewStatus | None = client.previews.get(preview.preview_id).status
    assert found is not None
    return found


def told_alike(client: SyncColdframe, preview: PreviewInfo, visitor: Visitor, code: str) -> PreviewStatus:
    """By the API, to programs and to people."""
    status = status_of(client, preview)
    assert status.code == code
    assert status.status is not None
    assert status.status.next_actions
    answer = visitor.ask("/")
    assert (answer.status, answer.json["error"]["code"], answer.get("Coldframe-Code")) == (503, code, code)
    page = visitor.ask("/", headers=PAGE)
    assert (page.status, page.get("Coldframe-Code")) == (503, code)
    assert page.body.startswith(b"<!doctype html>")
    assert code.encode() in page.body
    return status


def test_a_server_that_ends_is_told_with_its_code_and_its_last_words_and_comes_back_at_its_address(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    preview = serve(client, sandbox, 8000)
    visitor = Visitor(preview)
    assert status_of(client, preview).state == "healthy"
    end(visitor)
    status = told_alike(client, preview, visitor, "PREVIEW_PROCESS_EXITED")
    assert (status.state, status.exit_code) == ("stopped", 3)
    assert status.log_lines == ("begins", "the last words")
    assert b"the last words" in visitor.ask("/", headers=PAGE).body
    assert status.status is not None
    assert status.status.next_actions[0]["op"] == "preview.restart"
    again = client.previews.restart(preview.preview_id)
    assert again.url == preview.url
    assert visitor.ask("/echo").status == 200
    assert client.previews.log(preview.preview_id) == ("begins",)


def test_one_that_was_ended_for_memory_says_so(client: SyncColdframe) -> None:
    eater = "exec python3 -c \"import app, http.server\nx=[]\nclass H(app.Handler):\n  def do_eat(self, _):\n    while True: x.append(bytearray(1<<22))\napp.Server(('127.0.0.1', 8000), H).serve_forever()\""
    with client.sandboxes.create(background=True, limits=Limits(memory_mib=64)) as small:
        if not any(one.kind == "memory" and one.strength == "hard" for one in small.report().limits):
            pytest.skip("no memory controller says why a process was ended")
        preview = serve(client, small, 8000, start=eater)
        visitor = Visitor(preview)
        end(visitor, "/eat", "PREVIEW_OUT_OF_MEMORY")
        told_alike(client, preview, visitor, "PREVIEW_OUT_OF_MEMORY")
        client.previews.restart(preview.preview_id)
        assert visitor.ask("/echo").status == 200


def test_a_paused_and_a_stopped_sandbox_are_asleep_and_a_restart_wakes_them(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    preview = serve(client, sandbox, 8000)
    visitor = Visitor(preview)
    can_pause = "memory" in sandbox.report().pause_kinds
    for sleep in (sandbox.pause, sandbox.stop) if can_pause else (sandbox.stop,):
        sleep()
        assert told_alike(client, preview, visitor, "PREVIEW_ASLEEP").state == "asleep"
        assert client.previews.restart(preview.preview_id).url == preview.url
        assert visitor.ask("/echo").status == 200


def test_what_ran_before_a_stop_is_not_there_after_it(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    preview = serve(client, sandbox, 8000)
    sandbox.stop()
    sandbox.resume()
    told_alike(client, preview, Visitor(preview), "PREVIEW_PROCESS_EXITED")


@pytest.mark.req("T4.49")
def test_a_sandbox_that_has_ended_leads_to_the_rebuild(client: SyncColdframe) -> None:
    with client.sandboxes.create(background=True) as box:
        preview = serve(client, box, 8000)
        visitor = Visitor(preview)
    status = told_alike(client, preview, visitor, "PREVIEW_ENDED")
    assert status.state == "ended"
    assert status.status is not None
    operations = ["preview.show", "preview.log"]
    if preview.inputs is not None:  # else it could not be rebuilt, and that is not offered
        operations.insert(0, "preview.rebuild")
    for told in (status.status.next_actions, visitor.ask("/").json["error"]["next_actions"]):
        assert [one["op"] for one in told] == operations
        assert all(one["args"] == {"preview_id": preview.preview_id} for one in told)
    with pytest.raises(PreviewUnavailable) as caught:
        client.previews.restart(preview.preview_id)
    assert caught.value.code == "PREVIEW_ENDED"
    client.previews.revoke(preview.preview_id)


@pytest.mark.req("T4.49")
def test_what_work_has_left_opens_after_its_sandbox_has_ended_for_as_long_as_results_are_kept() -> None:
    with (
        own_installation(COLDFRAME_RESULTS_KEEP_S="86400") as installation,
        SyncColdframe(installation.url, installation.token) as client,
    ):
        with client.sandboxes.create(agent_id="evidence") as box:
            box.write_file("shots/screenshots/page.png", b"\x89PNG")
            printed = box.run_command("echo all well; echo made > report.txt")
            preview = serve(client, box, 8000)
            link = client.previews.link(preview.preview_id).url
        visitor = Visitor(preview)
        came = visitor.ask(link.partition(visitor.host)[2], as_visitor=False)
        assert came.status == 303  # the link opens; what it leads to is the record
        cookie = {"Cookie": str(came.get("Set-Cookie")).partition(";")[0], **PAGE}
        page = visitor.ask("/", headers=cookie, as_visitor=False)
        assert (page.status, page.get("Coldframe-Code")) == (503, "PREVIEW_ENDED")
        for command in ("show", "log", *(["rebuild"] if preview.inputs is not None else [])):
            assert f"coldframe preview {command} {preview.preview_id}".encode() in page.body
        assert client.previews.log(preview.preview_id) == ("begins",)
        assert client.previews.get(preview.preview_id).command_id == preview.command_id
        ended = client.sandboxes.get(box.id)
        assert ended.info.state.state == "terminated"
        assert ended.output(printed.command_id).data == b"all well\n"
        kinds = {one.name: one.kind for one in ended.artifacts().artifacts}
        assert (kinds["report.txt"], kinds["shots/screenshots/page.png"]) == ("output", "screenshot")
        assert ended.read_file("report.txt").content == "made\n"
        assert b"".join(ended.download("shots/screenshots/page.png")) == b"\x89PNG"


@pytest.mark.req("T4.43")
def test_a_server_that_moves_to_another_port_is_found_there(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.write_file("app.py", APP)
    sandbox.write_file("port", "8000")
    line = "while :; do python3 app.py 127.0.0.1 $(cat port); done"
    preview = client.previews.create(sandbox.id, 8000, start=line)
    visitor = Visitor(preview)
    sandbox.write_file("port", "8001")
    visitor.ask("/exit")
    other = Visitor(client.previews.create(sandbox.id, 8001))
    until(lambda: other.ask("/echo").status == 200)
    status = told_alike(client, preview, visitor, "PREVIEW_PORT_MOVED")
    assert status.ports == (8001,)
    assert status.status is not None
    assert status.status.next_actions[0] == {
        "op": "preview.create",
        "args": {"sandbox_id": sandbox.id, "port": 8001},
        "effect": "shares it",
    }


def test_one_that_lives_and_does_not_answer_is_told_after_its_time_and_can_be_restarted(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    preview = serve(client, sandbox, 8000, answer_timeout_s=0.5)
    visitor = Visitor(preview)
    answer = visitor.ask("/hang", headers=PAGE)
    assert (answer.status, answer.get("Coldframe-Code")) == (503, "PREVIEW_UNHEALTHY")
    assert b"gave no answer within 0.5 s" in answer.body
    assert visitor.ask("/echo").status == 200


@pytest.mark.req("T4.43")
def test_one_that_nobody_has_started_yet_is_not_listening_and_serves_as_soon_as_somebody_does(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    preview = client.previews.create(sandbox.id, 8000)
    visitor = Visitor(preview)
    told_alike(client, preview, visitor, "PREVIEW_NOT_LISTENING")
    assert visitor.ask("/", headers=PAGE).get("Retry-After") is not None
    with pytest.raises(WrongState):
        client.previews.restart(preview.preview_id)
    sandbox.write_file("app.py", APP)
    sandbox.run_command("exec python3 app.py ::1 8000", background=True)
    until(lambda: visitor.ask("/echo").status == 200)
    assert status_of(client, preview).state == "healthy"


@pytest.mark.parametrize("found_by", ["a visit", "a look", "a stop"])
def test_one_that_was_shared_before_its_server_listened_learns_its_command(
    client: SyncColdframe, sandbox: SyncSandbox, found_by: str
) -> None:
    preview = client.previews.create(sandbox.id, 8000)
    visitor = Visitor(preview)
    sandbox.write_file("app.py", APP)
    line = "exec python3 app.py 127.0.0.1 8000"
    job = sandbox.run_command(line, background=True)
    if found_by == "a visit":
        until(lambda: visitor.ask("/echo").status == 200)
        until(lambda: client.previews.list(sandbox.id)[0].command_id is not None)
    else:
        until(lambda: any(port.port == 8000 for one in sandbox.processes() for port in one.ports))
    if found_by == "a stop":
        client.previews.stop(preview.preview_id)
        told_alike(client, preview, visitor, "PREVIEW_STOPPED")
    else:
        shown = client.previews.get(preview.preview_id)
        assert (shown.command_id, shown.command) == (job.command_id, line)
        assert shown.status is not None
        assert shown.status.status is not None
        assert shown.status.status.evidence == (job.command_id,)
        end(visitor)
        assert "the last words" in told_alike(client, preview, visitor, "PREVIEW_PROCESS_EXITED").log_lines
    client.previews.restart(preview.preview_id)
    assert visitor.ask("/echo").status == 200


def test_a_server_that_ran_before_is_known_by_its_port_and_can_be_started_again(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    sandbox.write_file("app.py", APP)
    job = sandbox.run_command("exec python3 app.py 127.0.0.1 8000", background=True)
    until(lambda: any(port.port == 8000 for one in sandbox.processes() for port in one.ports))
    preview = client.previews.create(sandbox.id, 8000)
    assert preview.command_id == job.command_id
    assert preview.command == "exec python3 app.py 127.0.0.1 8000"
    visitor = Visitor(preview)
    end(visitor)
    told_alike(client, preview, visitor, "PREVIEW_PROCESS_EXITED")
    client.previews.restart(preview.preview_id)
    assert visitor.ask("/echo").status == 200


def test_one_that_is_stopped_says_who_did_it(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    preview = serve(client, sandbox, 8000)
    visitor = Visitor(preview)
    client.previews.stop(preview.preview_id)
    status = told_alike(client, preview, visitor, "PREVIEW_STOPPED")
    assert preview.created_by in status.cause
    assert not [one for one in sandbox.processes() if one.command_id == preview.command_id]


def test_one_that_is_not_ready_yet_is_starting_and_what_fails_to_start_is_taken_back(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation
) -> None:
    with pytest.raises(PreviewProcessExited) as failed:
        client.previews.create(sandbox.id, 8000, start="echo no such thing; exit 4")
    assert failed.value.facts["exit_code"] == 4
    assert failed.value.facts["log_lines"] == ["no such thing"]
    assert [one.revoked_at is None for one in client.previews.list(sandbox.id)] == [False]
    with pytest.raises(PreviewUnavailable):
        client.previews.create(sandbox.id, 8000, start="exec sleep 100", ready_timeout_s=0.3)

    def begin() -> None:
        with SyncColdframe(installation.url, installation.token) as other:
            other.previews.create(sandbox.id, 8001, start="read x < go; exec python3 app.py 127.0.0.1 8001")

    sandbox.write_file("app.py", APP)
    sandbox.run_command("mkfifo go")
    starting = threading.Thread(target=begin)
    starting.start()
    try:
        until(lambda: any(one.command_id and one.port == 8001 for one in client.previews.list(sandbox.id)))
        preview = next(one for one in client.previews.list(sandbox.id) if one.port == 8001)
        assert status_of(client, preview).code == PreviewStarting.code
    finally:
        sandbox.run_command("echo > go")
        starting.join(30)
    assert status_of(client, preview).state == "healthy"


def test_public_visitors_are_told_the_cause_and_not_the_log(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    preview = serve(client, sandbox, 8000, public=True)
    visitor = Visitor(preview)
    assert preview.token is None
    end(visitor)
    answer = visitor.ask("/", headers=PAGE)
    assert answer.get("Coldframe-Code") == "PREVIEW_PROCESS_EXITED"
    assert b"the last words" not in answer.body
    assert b"the last words" not in visitor.ask("/").body


def test_a_page_shows_what_was_printed_as_text(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    line = "echo '<script>alert(1)</script>'; exec python3 app.py 127.0.0.1 8000"
    visitor = Visitor(serve(client, sandbox, 8000, start=line))
    end(visitor)
    page = visitor.ask("/", headers=PAGE)
    assert b"&lt;script&gt;alert(1)" in page.body
    assert b"<script>" not in page.body
    assert "default-src 'none'" in (page.get("Content-Security-Policy") or "")


def test_a_web_socket_ends_with_the_server_behind_it(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    preview = serve(client, sandbox, 8000)
    visitor = Visitor(preview)
    with visitor.upgrade() as one:
        read_until(one, b"\r\n\r\n")
        client.previews.stop(preview.preview_id)
        assert one.recv(1) == b""


def test_the_command_line_shows_the_same(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation
) -> None:
    sandbox.write_file("app.py", APP)
    line = "exec python3 app.py 127.0.0.1 8000"
    made = installation.cli("--json", "preview", "create", sandbox.id, "8000", "--start", line)
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout)
    visitor = Visitor(client.previews.get(told["preview_id"]), told["token"])
    assert visitor.ask("/echo").status == 200
    end(visitor)
    shown = installation.cli("preview", "show", told["preview_id"])
    text = shown.stdout.decode() + shown.stderr.decode()
    assert "PREVIEW_PROCESS_EXITED" in text
    assert "the last words" in text
    assert "begins" in installation.cli("preview", "log", told["preview_id"]).stdout.decode()
    again = json.loads(installation.cli("--json", "preview", "restart", told["preview_id"]).stdout)
    assert again["status"]["state"] == "healthy"
    link = installation.cli("preview", "open", told["preview_id"]).stdout.decode().strip()
    assert visitor.ask(link.partition(visitor.host)[2], as_visitor=False).status == 303
    listed = installation.cli("preview", "list", sandbox.id).stdout.decode()
    assert told["preview_id"] in listed
    assert installation.cli("preview", "revoke", told["preview_id"]).returncode == 0
    assert visitor.ask("/echo").status == 410


def end(visitor: Visitor, path: str = "/exit", code: str = "PREVIEW_PROCESS_EXITED") -> None:
    """Have the server end; for a moment its connections are gone, and it is not."""
    visitor.ask(path)
    until(lambda: visitor.ask("/").get("Coldframe-Code") == code)


def until(condition: Callable[[], bool]) -> None:
    from tests.installation import wait_until

    wait_until(condition, "it serves")


def test_a_server_outlives_the_time_that_other_commands_have(client: SyncColdframe) -> None:
    with client.sandboxes.create(background=True, limits=Limits(wall_s=5)) as sandbox:
        preview = serve(client, sandbox, 8000)
        other = sandbox.run_command(["sleep", "600"])  # begins later, so its end is past the time of both
        assert other.timed_out
        assert status_of(client, preview).state == "healthy"
        assert Visitor(preview).ask("/echo").status == 200
