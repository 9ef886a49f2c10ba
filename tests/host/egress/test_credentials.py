"""Promise: a secret leaves in the one header of a request that may have it, and neither the box nor another place sees it."""

import asyncio
import base64
import http.client
import json
import os
import subprocess
from dataclasses import replace

import pytest

from coldframe.contract.policy import Outcome
from coldframe.host.egress import forwarding
from coldframe.host.egress.contact import EgressContact, EgressRequest, HandleUse, Journal, JournalLost, SecretAnswer
from coldframe.host.egress.forwarding import Asked
from coldframe.host.egress.handles import SentSecrets, Swap, find_handle
from coldframe.host.egress.passage import Denied
from coldframe.host.egress.requests import read_head
from coldframe.policy.network import NetworkVerdict
from tests.host.egress.intercepted import Scene, ask, connect, error_of, get, with_interception
from tests.host.egress.test_broker import Log
from tests.host.egress.world import OTHER, SITE
from tests.host.machines import as_root_and_ordinary

HANDLE = "cfh_" + "0f" * 24
SECRET = "real-Secret+token/42"
BASIC = base64.b64encode(f"git:{SECRET}".encode()).decode()
RULES = (
    f"{{id: all, to: {SITE}, ports: [8443], methods: [GET, POST, WEBSOCKET]}}",
    f"{{id: plain, to: {SITE}, ports: [8080], scheme: http}}",
    f"{{id: other, to: {OTHER}, ports: [8443], mode: intercept}}",
)


class Vaulted(Log):
    """Gives the secret, unless it was told to refuse."""

    def __init__(self, answer: SecretAnswer | None = None) -> None:
        super().__init__()
        self.uses: list[HandleUse] = []
        self.answer = answer or SecretAnswer(SECRET, "crm")
        self.is_deaf = False

    def journal(self) -> Journal:
        async def secret(contact: EgressContact, request: EgressRequest, use: HandleUse) -> SecretAnswer:
            if self.is_deaf:
                raise JournalLost("nobody is there")
            self.uses.append(use)
            return self.answer

        return replace(super().journal(), secret=secret)


def log_of(scene: Scene) -> Vaulted:
    assert isinstance(scene.log, Vaulted)
    return scene.log


def everything(scene: Scene) -> str:
    """All that is told to whoever keeps records."""
    return repr((scene.log.begun, scene.log.requests, scene.log.ended))


@as_root_and_ordinary
def test_the_server_sees_the_secret_and_the_box_its_handle(who: str) -> None:
    async def steps(scene: Scene) -> None:
        def all_of_it() -> list[tuple[int, str]]:
            client = connect()
            sent = {"Authorization": f"Bearer {HANDLE}", "Accept-Encoding": "gzip"}
            found = [ask(client, "GET", path, headers=sent) for path in ("/v1/account", "/v1/slowly", "/v1/what")]
            client.request("GET", "/v1/account", headers=sent)
            answer = client.getresponse()
            shown = (answer.getheader("X-Said") or "") + (answer.getheader("Location") or "") + answer.read().decode()
            return [*((status, body.decode()) for status, body in found), (answer.status, shown)]

        account, slowly, what, shown = await scene.inside(all_of_it)
        assert account == (200, f"Bearer {HANDLE}") and slowly == account
        headers = json.loads(what[1])["headers"]
        assert (headers["authorization"], headers["accept-encoding"]) == (f"Bearer {HANDLE}", "identity")
        assert SECRET not in shown[1] and shown[1].count(HANDLE) == 3
        assert [use.header for use in log_of(scene).uses] == ["authorization: Bearer {secret}"] * 4
        assert all(use.handle == HANDLE and use.is_verified for use in log_of(scene).uses)
        contact = await scene.contact()
        assert [one.credential for one in contact.requests] == ["crm"] * 4
        assert [one.credential for one in scene.log.requests] == ["crm"] * 4
        assert SECRET not in everything(scene)

    with_interception(steps, *RULES, who=who, log_of=Vaulted)


def test_the_server_really_gets_the_secret() -> None:
    async def steps(scene: Scene) -> None:
        def sizes() -> list[int]:
            client, found = connect(), []
            for value in (f"Bearer {HANDLE}", f"Basic {base64.b64encode(f'git:{HANDLE}'.encode()).decode()}"):
                client.request("HEAD", "/v1/account", headers={"Authorization": value})
                answer = client.getresponse()
                found.append(int(answer.getheader("Content-Length") or -1))
                answer.read()
            return found

        assert await scene.inside(sizes) == [len(f"Bearer {SECRET}"), len(f"Basic {BASIC}")]

    with_interception(steps, f"{{id: all, to: {SITE}, ports: [8443], methods: [HEAD]}}", log_of=Vaulted)


def test_basic_is_decoded_swapped_and_encoded_and_comes_back_as_the_box_wrote_it() -> None:
    async def steps(scene: Scene) -> None:
        def curl() -> str:
            line = ["curl", "-sS", "--fail", f"https://git:{HANDLE}@{SITE}:8443/v1/account"]
            return subprocess.run(line, capture_output=True, text=True, check=True).stdout

        said = await scene.inside(curl)
        assert said == "Basic " + base64.b64encode(f"git:{HANDLE}".encode()).decode()
        assert [use.header for use in log_of(scene).uses] == ["authorization: Basic git:{secret}"]

    with_interception(steps, *RULES, log_of=Vaulted)


def test_a_secret_that_was_sent_is_taken_out_of_later_answers_of_the_connection_too() -> None:
    async def steps(scene: Scene) -> None:
        def later() -> tuple[bytes, bytes, bytes, int]:
            client = connect()
            ask(client, "GET", "/v1/account", headers={"Authorization": f"Bearer {HANDLE}"})
            echo = ask(client, "POST", "/v1/echo", body=SECRET.encode())[1]  # as a server does that remembers it
            what = ask(client, "GET", "/v1/what", headers={"Accept-Encoding": "gzip"})[1]
            upgrade = {"Connection": "upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x"}
            status = ask(client, "GET", "/v1/socket", headers=upgrade)[0]
            return echo, what, ask(connect(), "POST", "/v1/echo", body=SECRET.encode())[1], status

        echo, what, elsewhere, status = await scene.inside(later)
        assert (echo, elsewhere) == (HANDLE.encode(), SECRET.encode())
        assert json.loads(what)["headers"]["accept-encoding"] == "identity"
        assert status == 403

    with_interception(steps, *RULES, log_of=Vaulted)


def test_a_handle_anywhere_else_is_passed_on_as_it_is() -> None:
    async def steps(scene: Scene) -> None:
        def elsewhere() -> tuple[bytes, bytes]:
            client = connect()
            what = ask(client, "GET", f"/v1/what/?key={HANDLE}")[1]
            return what, ask(client, "POST", "/v1/echo", body=HANDLE.encode() * 100)[1]

        what, echo = await scene.inside(elsewhere)
        assert HANDLE.encode() in what and echo == HANDLE.encode() * 100
        assert log_of(scene).uses == []

    with_interception(steps, *RULES, log_of=Vaulted)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (SecretAnswer(refusal="all used", code="CREDENTIAL_BUDGET"), (403, "CREDENTIAL_BUDGET")),
        (SecretAnswer(refusal="it is over", code="CREDENTIAL_EXPIRED"), (403, "CREDENTIAL_EXPIRED")),
        (SecretAnswer(refusal="ask", code="PENDING_APPROVAL"), (403, "PENDING_APPROVAL")),
        (SecretAnswer(refusal="no key", code="CREDENTIAL_UNREADABLE"), (503, "CREDENTIAL_UNREADABLE")),
        (SecretAnswer(refusal="odd", code="ODD"), (403, "DENIED_BY_RULE")),
        (SecretAnswer(SECRET, "crm", "both", "DENIED_BY_RULE"), (403, "DENIED_BY_RULE")),
        (SecretAnswer(), (403, "DENIED_BY_RULE")),
    ],
)
def test_a_refused_use_reaches_nobody_and_says_why(answer: SecretAnswer, wanted: tuple[int, str]) -> None:
    async def steps(scene: Scene) -> None:
        def refused() -> tuple[tuple[int, str, str], int]:
            client = connect()
            first = ask(client, "GET", "/v1/account", headers={"Authorization": f"Bearer {HANDLE}"})
            return error_of(first), ask(client, "GET", "/v1/text")[0]

        error, after = await scene.inside(refused)
        assert error == (*wanted, "floor:credential")
        assert after == 200
        assert await scene.seen() == ["GET /v1/text HTTP/1.1"]
        first, second = (await scene.contact()).requests
        assert (first.outcome, first.rule_id, first.credential) == (Outcome.DENY, "floor:credential", None)
        assert second.outcome is Outcome.ALLOW
        assert SECRET not in everything(scene)

    with_interception(steps, *RULES, log_of=lambda: Vaulted(answer))


def test_plain_http_never_carries_a_secret_whatever_is_answered() -> None:
    async def steps(scene: Scene) -> None:
        def plainly() -> tuple[int, str, str]:
            return error_of(ask(connect(port=8080), "GET", "/v1/account", headers={"X-Key": HANDLE}))

        assert (await scene.inside(plainly))[:2] == (403, "DENIED_BY_RULE")
        assert [use.is_verified for use in log_of(scene).uses] == [False]
        assert await scene.seen() == []

    with_interception(steps, *RULES, f"{{id: seen, to: {SITE}, ports: [8443], paths: [/v1/seen]}}", log_of=Vaulted)


def test_a_request_with_a_secret_is_not_even_written_for_a_server_that_has_proven_nothing() -> None:
    head = read_head(f"GET / HTTP/1.1\r\nHost: {SITE}\r\nAuthorization: Bearer {HANDLE}\r\n\r\n".encode())
    found = find_handle(head.headers)
    assert found is not None
    asked = Asked(head, False, NetworkVerdict(Outcome.ALLOW, "all", ""), 0, Swap(found, SECRET))
    assert SECRET.encode() in forwarding._head_of(asked, SentSecrets(), is_proven=True)
    with pytest.raises(Denied, match="proven"):
        forwarding._head_of(asked, SentSecrets(), is_proven=False)


@pytest.mark.parametrize(
    "lines",
    [
        (f"Authorization: Bearer {HANDLE}", "Authorization: Bearer other"),
        (f"Authorization: Bearer {HANDLE}", f"X-Key: {HANDLE}"),
        (f"Authorization: Bearer {HANDLE}", "authorization : Bearer b"),
        (f"Authorization: Bearer {HANDLE}", "X-A: b\r\nAuthorization: Bearer other"),
        (f"Authorization: Bearer {HANDLE}", "X-A: b\nAuthorization: Bearer other"),
        (f"Authorization: Bearer {HANDLE}\r\n X-A: b", "Accept: */*"),
        (f"Authorization_: Bearer {HANDLE}\x00", "Accept: */*"),
        (f"Authorization: Bearer {HANDLE}", "Connection: upgrade\r\nUpgrade: websocket"),
    ],
)
def test_a_request_in_which_the_credential_could_be_meant_in_two_ways_reaches_nobody(lines: tuple[str, ...]) -> None:
    async def steps(scene: Scene) -> None:
        head = "\r\n".join(["GET /v1/account HTTP/1.1", f"Host: {SITE}:8443", *lines, "", ""])

        def ask_raw() -> bytes:
            client = connect()
            client.connect()
            client.sock.sendall(head.encode())
            return client.sock.recv(65536)

        heard = await scene.inside(ask_raw)
        assert heard.split(b" ")[1] in (b"400", b"403")
        assert log_of(scene).uses == [] and await scene.seen() == []

    with_interception(steps, *RULES, log_of=Vaulted)


def test_an_answer_that_nobody_can_read_is_not_passed_on() -> None:
    async def steps(scene: Scene) -> None:
        def packed() -> list[tuple[int, bytes]]:
            sent = {"Authorization": f"Bearer {HANDLE}"}
            return [get("/v1/packed"), ask(connect(), "GET", "/v1/packed", headers=sent)]

        free, bound = await scene.inside(packed)
        assert free[0] == 200
        assert error_of(bound)[:2] == (502, "SERVER_FAILED")

    with_interception(steps, *RULES, log_of=Vaulted)


def test_without_anybody_to_ask_nothing_is_sent() -> None:
    async def steps(scene: Scene) -> None:
        log_of(scene).is_deaf = True
        sent = {"Authorization": f"Bearer {HANDLE}"}
        error = await scene.inside(lambda: error_of(ask(connect(), "GET", "/v1/account", headers=sent)))
        assert error == (503, "LEDGER_UNAVAILABLE", "network:journal")
        assert await scene.seen() == []

    with_interception(steps, *RULES, log_of=Vaulted)


def test_what_is_under_way_with_a_credential_ends_when_it_is_taken_back() -> None:
    async def steps(scene: Scene) -> None:
        def listen() -> tuple[bytes, str]:
            client = connect()
            client.request("GET", "/v1/events", headers={"Authorization": f"Bearer {HANDLE}"})
            answer = client.getresponse()
            first = answer.readline()
            os.write(writing, b"x")
            try:
                return first, repr(answer.read())
            except (OSError, http.client.HTTPException):
                return first, "broken off"

        reading, writing = os.pipe()
        running = scene.world.box.start(listen, files=scene.files())
        await asyncio.to_thread(os.read, reading, 1)
        scene.broker.withdraw_credential("another")
        assert not scene.log.ended
        scene.broker.withdraw_credential("crm")
        assert await asyncio.to_thread(running.result) == (b"data: first\n", "broken off")
        assert (await scene.contact()).ended == "its credential was revoked"
        os.close(reading)
        os.close(writing)

    with_interception(steps, *RULES, log_of=Vaulted)
