"""Events are announced to whom an owner says: signed, in order, until they are taken, and to no address that is not to be reached."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import ColdframeError, GrantMissing, InvalidArgument, WrongState
from coldframe.contract.policy import Role
from coldframe.contract.webhook import is_signed, sign
from coldframe.control import webhook_posts, webhooks
from coldframe.control.ledger import Ledger
from tests.fronts.served import Served, serve_fake
from tests.installation import wait_until

pytestmark = pytest.mark.req("T4.33")


class Receiver:
    """Takes what is announced, or answers with what `answers` has next."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.times: list[datetime] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.times.append(datetime.now(UTC))
                receiver.seen.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = receiver.answers.pop(0) if receiver.answers else 204
                self.send_response(status)
                self.send_header("Location", receiver.url)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/told?by=test"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.seen]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(webhooks, "LONGEST_PAUSE_S", 0.05)


def test_the_end_of_a_command_is_announced_signed_and_without_output(served: Served, receiver: Receiver) -> None:
    with served.sync_client() as client, client.sandboxes.create("announced") as sandbox:
        made = client.webhooks.add(receiver.url, sandbox_id=sandbox.id, allow_private=True)
        began = time.time()
        ran = sandbox.run_command("echo the-output; exit 3")
        sandbox.write_file("a", "no command\n")
        sandbox.run_command("true")
        wait_until(lambda: len(receiver.seen) == 2, "both ends are announced")
        (headers, body), (_, second) = receiver.seen
        assert is_signed(made.secret, body, headers["coldframe-signature"], now_s=began)
        assert not is_signed(made.secret, body + b" ", headers["coldframe-signature"], now_s=began)
        assert not is_signed("whsec_other", body, headers["coldframe-signature"], now_s=began)
        assert not is_signed(made.secret, body, headers["coldframe-signature"], now_s=began + 3600)
        told = json.loads(body)
        assert headers["coldframe-event-id"] == told["id"] < json.loads(second)["id"]
        assert (told["type"], told["command_id"], told["sandbox_id"]) == ("command.ended", ran.command_id, sandbox.id)
        assert (told["facts"]["ended"], told["facts"]["exit_code"]) == ("exited", 3)
        assert b"the-output" not in body and b"echo" not in body
        assert told["facts"]["duration_ms"] is not None
        wait_until(lambda: client.webhooks.get(made.webhook.webhook_id).delivered_at, "it is kept that it was taken")
        assert made.secret not in str(served.json("GET", "/v1/webhooks")[1])
        client.webhooks.remove(made.webhook.webhook_id)
        sandbox.run_command("true")
        assert client.webhooks.list() == [] and len(receiver.seen) == 2


def test_it_comes_within_two_seconds_of_the_end(served: Served, receiver: Receiver) -> None:
    with served.sync_client() as client, client.sandboxes.create("soon") as sandbox:
        made = client.webhooks.add(receiver.url, sandbox_id=sandbox.id, allow_private=True)
        for number in range(1, 6):
            sandbox.run_command("true")
            wait_until(lambda number=number: len(receiver.seen) == number, "it is announced")
        took = [
            at - datetime.fromisoformat(told["at"]) for at, told in zip(receiver.times, receiver.bodies, strict=True)
        ]
        assert min(took) < timedelta(seconds=2)  # each of them, on a machine that has time
        client.webhooks.remove(made.webhook.webhook_id)


def test_what_is_not_taken_is_sent_again_before_anything_behind_it(served: Served, receiver: Receiver) -> None:
    receiver.answers = [500, 302, 404]
    with served.sync_client() as client, client.sandboxes.create("again") as sandbox:
        made = client.webhooks.add(receiver.url, sandbox_id=sandbox.id, allow_private=True)
        codes = [sandbox.run_command(f"exit {code}").exit_code for code in (1, 2, 3)]
        wait_until(lambda: len(receiver.seen) == 6, "all are taken")
        assert [told["facts"]["exit_code"] for told in receiver.bodies] == [1, 1, 1, *codes]
        assert len({told["id"] for told in receiver.bodies[:4]}) == 1
        wait_until(lambda: client.webhooks.get(made.webhook.webhook_id).state == "active", "it is well again")
        client.webhooks.remove(made.webhook.webhook_id)


def test_what_happened_while_receiver_and_server_were_away_comes_afterwards(tmp_path: Path, receiver: Receiver) -> None:
    with serve_fake(str(tmp_path / "data")) as first, first.sync_client() as client:
        sandbox = client.sandboxes.create("away")
        receiver.answers = [503] * 10_000
        client.webhooks.add(receiver.url, events=["command.ended", "sandbox.terminated"], allow_private=True)
        sandbox.run_command("exit 4")
        sandbox.run_command("exit 5")
        sandbox.terminate()
        wait_until(lambda: client.webhooks.list()[0].state == "failing", "it is told that it fails")
        assert client.webhooks.list()[0].last_error == "it answered 503"
    before = receiver.bodies[0]["id"]
    receiver.seen.clear()
    receiver.answers.clear()
    with serve_fake(str(tmp_path / "data")):
        wait_until(lambda: len(receiver.seen) == 3, "all comes after a restart")
    assert [told["type"] for told in receiver.bodies] == ["command.ended", "command.ended", "sandbox.terminated"]
    assert [told["facts"].get("exit_code") for told in receiver.bodies[:2]] == [4, 5]
    assert receiver.bodies[0]["id"] == before


def test_what_becomes_of_pipelines_and_sandboxes_is_announced_in_the_order_of_the_ledger(
    served: Served, receiver: Receiver
) -> None:
    events = ["sandbox.created", "pipeline.ended", "sandbox.paused", "sandbox.resumed", "sandbox.stopped"]
    with served.sync_client() as client:
        made = client.webhooks.add(receiver.url, agent_id="ordered", events=events, allow_private=True)
        with client.sandboxes.create("ordered") as sandbox:
            pipeline = sandbox.start_pipeline([{"name": "a", "command": "true"}])
            pipeline.wait(30)
            sandbox.pause()
            sandbox.resume()
            sandbox.stop()
        wait_until(lambda: len(receiver.seen) == len(events), "all are announced")
        assert [told["type"] for told in receiver.bodies] == events
        assert {told["sandbox_id"] for told in receiver.bodies} == {sandbox.id}
        assert receiver.bodies[1]["subject"] == pipeline.id
        client.webhooks.remove(made.webhook.webhook_id)


def test_of_what_is_labelled_higher_only_that_it_happened_is_told(served: Served, receiver: Receiver) -> None:
    with served.sync_client() as client, client.sandboxes.create("labelled") as sandbox:
        client.agents.set_label("labelled", "CONFIDENTIAL", reason="test")
        low = client.webhooks.add(receiver.url, agent_id="labelled", allow_private=True)
        high = client.webhooks.add(receiver.url, agent_id="labelled", label="RESTRICTED", allow_private=True)
        sandbox.run_command("exit 6")
        wait_until(lambda: len(receiver.seen) == 2, "both are told")
        told = {one["webhook_id"]: one for one in receiver.bodies}
        withheld, whole = told[low.webhook.webhook_id], told[high.webhook.webhook_id]
        assert (withheld["withheld"], withheld["facts"], withheld["label"]) == (True, {}, "CONFIDENTIAL")
        assert (whole["withheld"], whole["facts"]["exit_code"]) == (False, 6)
        for one in (low, high):
            client.webhooks.remove(one.webhook.webhook_id)


def test_what_becomes_of_builds_pipelines_and_sandboxes_has_their_label_and_no_free_text(
    served: Served, receiver: Receiver
) -> None:
    events = ["build.ended", "pipeline.ended", *(f"sandbox.{one}" for one in _BECOMES)]
    with served.sync_client() as client:
        client.sandboxes.create("told")
        client.agents.set_label("told", "RESTRICTED", reason="test")
        low = client.webhooks.add(receiver.url, agent_id="told", events=events, allow_private=True)
        high = client.webhooks.add(receiver.url, agent_id="told", events=events, label="RESTRICTED", allow_private=True)
        sandbox = client.sandboxes.create("told")
        sandbox.start_pipeline([{"name": "a", "command": "true"}]).wait(30)
        client.builds.wait(client.builds.start(sandbox.id, [{"name": "a", "command": "true"}]).build_id)
        sandbox.pause()
        sandbox.resume()
        sandbox.stop()
        sandbox.start_again()
        served.call(served.host.lose(sandbox.id))
        with pytest.raises(ColdframeError):
            sandbox.run_command("true")
        client.sandboxes.create("told").terminate()
        wait_until(lambda: {one["type"] for one in receiver.bodies} == {*events}, "all are announced")
        for one in (low, high):
            client.webhooks.remove(one.webhook.webhook_id)
    for told in receiver.bodies:
        assert told["label"] == "RESTRICTED", told
        if told["webhook_id"] == low.webhook.webhook_id:
            assert (told["withheld"], told["facts"]) == (True, {})
        else:
            assert not told["withheld"] and set(told["facts"]) <= {"state", "code", "build_id", "pipeline_id"}, told


_BECOMES = ("created", "paused", "resumed", "stopped", "started", "terminated", "lost")


def test_what_was_interrupted_counts_until_that_was_noticed(tmp_path: Path, receiver: Receiver) -> None:
    with serve_fake(str(tmp_path / "data")) as first, first.sync_client() as client:
        sandbox = client.sandboxes.create("interrupted")
        for min_s in (60, 3600):
            client.webhooks.add(receiver.url, min_duration_s=min_s, allow_private=True)
        job = sandbox.run_command("sleep 30", background=True)
    with serve_fake(str(tmp_path / "data"), ahead=timedelta(minutes=2)) as second, second.sync_client() as client:
        wait_until(lambda: receiver.seen, "it is announced where a minute is enough")
        [told] = receiver.bodies
        assert (told["command_id"], told["facts"]["ended"]) == (job.command_id, "not_started")
        assert told["facts"]["duration_ms"] is None
        of_long = next(one for one in client.webhooks.list() if one.terms.min_duration_s == 3600)
        assert of_long.delivered_at is None


def test_the_time_while_the_server_was_off_does_not_count_for_its_death(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers = [503] * 10_000
    with serve_fake(str(tmp_path / "data")) as first, first.sync_client() as client:
        client.webhooks.add(receiver.url, allow_private=True)
        client.sandboxes.create("off").run_command("true")
        wait_until(lambda: client.webhooks.list()[0].state == "failing", "it fails")
    before = len(receiver.seen)
    with serve_fake(str(tmp_path / "data"), ahead=timedelta(days=2)) as second, second.sync_client() as client:
        wait_until(lambda: len(receiver.seen) >= before + 3, "it is tried again")
        info = client.webhooks.list()[0]
        assert info.state == "failing" and info.attempts > 1


def test_without_its_key_it_waits_and_says_so_and_goes_on_by_itself(served: Served, receiver: Receiver) -> None:
    key = Path(served.data_dir, "control", "webhooks.key")
    with served.sync_client() as client, client.sandboxes.create("locked") as sandbox:
        webhook_id = client.webhooks.add(receiver.url, sandbox_id=sandbox.id, allow_private=True).webhook.webhook_id
        aside = key.rename(key.with_suffix(".aside"))
        try:
            sandbox.run_command("exit 9")
            wait_until(lambda: client.webhooks.get(webhook_id).last_error, "it says what is in the way")
            info = client.webhooks.get(webhook_id)
            assert "webhooks.key` is missing" in str(info.last_error) and info.state == "active"
        finally:
            aside.rename(key)  # and nothing happens in the installation after that
        wait_until(lambda: receiver.seen, "it goes on by itself")
        assert receiver.bodies[0]["facts"]["exit_code"] == 9
        wait_until(lambda: client.webhooks.get(webhook_id).last_error is None, "it is out of trouble")
        client.webhooks.remove(webhook_id)


def test_others_have_a_turn_between_two_pages_and_none_is_looked_through_twice(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "PAGE", 2)
    pages: list[tuple[int, int]] = []
    turn = 0
    read = Ledger.entries

    async def turning() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def entries(self: Ledger, **asked: Any) -> Any:
        if asked.get("limit") == 2:
            if not pages:
                others.append(asyncio.ensure_future(turning()))
            pages.append((turn, asked["after"]))
        return read(self, **asked)

    others: list[asyncio.Task[None]] = []
    with serve_fake(str(tmp_path / "data")) as first, first.sync_client() as client:
        sandbox = client.sandboxes.create("pages")
        client.webhooks.add(receiver.url, min_duration_s=1e6, allow_private=True)
        first.call(first.control.webhooks.close())
        for _ in range(9):
            sandbox.run_command("true")
    monkeypatch.setattr(Ledger, "entries", entries)
    with serve_fake(str(tmp_path / "data")) as second:
        wait_until(lambda: len(pages) >= 5, "all is looked through")
        second.call(_end(others))
        turns = [at for at, _ in pages[:5]]
        assert turns == sorted(set(turns)), "somebody else had a turn between any two"
        last = pages[-1][1]
    pages.clear()
    others.clear()
    with serve_fake(str(tmp_path / "data")) as third:
        wait_until(lambda: pages, "it goes on")
        third.call(_end(others))
        assert pages[0][1] > last
    assert receiver.seen == []


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def test_names_that_nobody_answers_for_hold_up_nobody(
    served: Served, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, asked = threading.Event(), []
    resolve = socket.getaddrinfo

    def hang(host: Any, *more: Any, **named: Any) -> Any:
        if not str(host).endswith(".invalid"):
            return resolve(host, *more, **named)
        asked.append(host)
        answered.wait()
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(webhook_posts, "CONNECT_S", 0.01)
    try:
        with served.sync_client() as client, client.sandboxes.create("hung") as sandbox:
            made = [client.webhooks.add(f"http://n{number}.invalid/", sandbox_id=sandbox.id) for number in range(40)]
            well = client.webhooks.add(f"http://localhost:{receiver.port}/", sandbox_id=sandbox.id, allow_private=True)
            sandbox.run_command("true")
            wait_until(lambda: receiver.seen, "another one is delivered")
            wait_until(
                lambda: all(one.attempts > 2 for one in client.webhooks.list() if one.state == "failing"), "tried"
            )
            assert served.call(asyncio.wait_for(asyncio.to_thread(lambda: "free"), 10)) == "free"
            wait_until(lambda: len(asked) == 40, "each is asked for")
            assert len(set(asked)) == 40, "and once as long as there is no answer"
            for one in (*made, well):
                client.webhooks.remove(one.webhook.webhook_id)
    finally:
        answered.set()


@pytest.mark.parametrize("text", ["93.184.215.14", "[::ffff:93.184.215.14]", "[64:ff9b::5db8:d70e]"])
def test_a_public_address_of_this_machine_is_its_own_in_every_spelling(
    served: Served, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(webhook_posts, "_is_own", lambda address: str(address) == "93.184.215.14", raising=False)
    with served.sync_client() as client:
        with pytest.raises(GrantMissing, match="own address"):
            client.webhooks.add(f"http://{text}/")
        client.webhooks.remove(client.webhooks.add(f"http://{text}/", allow_private=True).webhook.webhook_id)
        client.webhooks.remove(client.webhooks.add("http://93.184.215.15/").webhook.webhook_id)


def test_the_kernel_tells_which_addresses_are_of_this_machine() -> None:
    assert webhook_posts._is_own(ip_address("127.0.0.1"))
    assert not webhook_posts._is_own(ip_address("192.0.2.1"))


def test_one_that_takes_nothing_for_long_is_dead_until_somebody_resumes_it(
    served: Served, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "DEAD_AFTER", timedelta(0))
    receiver.answers = [500]
    with served.sync_client() as client, client.sandboxes.create("dead") as sandbox:
        webhook_id = client.webhooks.add(receiver.url, sandbox_id=sandbox.id, allow_private=True).webhook.webhook_id
        sandbox.run_command("exit 7")
        wait_until(lambda: client.webhooks.get(webhook_id).state == "dead", "it is dead")
        assert [entry.kind for entry in client.ledger.entries(limit=1000, kinds=["webhook.dead"])] == ["webhook.dead"]
        sandbox.run_command("exit 8")
        assert client.webhooks.resume(webhook_id).state == "active"
        wait_until(lambda: len(receiver.seen) == 3, "it goes on where it was")
        assert [told["facts"]["exit_code"] for told in receiver.bodies] == [7, 7, 8]
        with pytest.raises(WrongState):
            client.webhooks.resume(webhook_id)
        client.webhooks.remove(webhook_id)


def test_nothing_goes_where_it_is_not_to(served: Served, receiver: Receiver) -> None:
    with served.sync_client() as client, client.sandboxes.create("private") as sandbox:
        for url in (receiver.url, "http://10.0.0.1/", "http://[::1]/", "http://169.254.169.254/latest"):
            with pytest.raises(GrantMissing):
                client.webhooks.add(url)
        with pytest.raises(GrantMissing):  # where clouds keep secrets, whoever says so
            client.webhooks.add("http://169.254.169.254/latest", allow_private=True)
        for url in (
            "ftp://example.com/",
            "https://user:secret@example.com/",
            "https:///path",
            "https://example.com:x/",
        ):
            with pytest.raises(InvalidArgument):
                client.webhooks.add(url)
        with served.sync_client(Role.ADMIN) as admin, pytest.raises(GrantMissing):
            admin.webhooks.add(receiver.url, allow_private=True)
        with served.sync_client(Role.AGENT, "private") as agent, pytest.raises(ColdframeError) as refused:
            agent.webhooks.add("https://example.com/")
        assert refused.value.code == "GRANT_MISSING"
        # A name is judged when it is dialled, by what it means then.
        named = client.webhooks.add(f"http://localhost:{receiver.port}/", sandbox_id=sandbox.id).webhook.webhook_id
        sandbox.run_command("true")
        wait_until(lambda: client.webhooks.get(named).last_error, "it was tried")
        assert "loopback" in str(client.webhooks.get(named).last_error)
        assert receiver.seen == []
        client.webhooks.remove(named)


def test_the_signature_is_what_the_documentation_says() -> None:
    assert sign("whsec_1", b'{"id":"evt_1"}', 1780000000) == (
        "t=1780000000,v1=" + _hmac_of_documentation("whsec_1", b'1780000000.{"id":"evt_1"}')
    )


def _hmac_of_documentation(secret: str, text: bytes) -> str:
    import hashlib
    import hmac

    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
