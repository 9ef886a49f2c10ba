"""Who gets in to a preview, up to which label, for how long, and what is on record of it."""

import socket
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from coldframe.client.models import PreviewCreated
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import Conflict, DeniedByRule, GrantMissing, InvalidArgument, PreviewLabelled
from coldframe.contract.policy import Role
from tests.installation import Installation, wait_until
from tests.previews.visiting import Visitor, read_until, serve
from tests.promises.raw import own_installation

LABELLING = """version: 1
rules:
  - {id: crm, hook: PRE_TOOL_CALL, when: {tool: read_file, path: {glob: 'crm/*'}}, label: CONFIDENTIAL}
"""


@pytest.fixture
def preview(client: SyncColdframe, sandbox: SyncSandbox) -> PreviewCreated:
    return serve(client, sandbox, 8000)


@pytest.fixture
def visitor(preview: PreviewCreated) -> Visitor:
    return Visitor(preview)


@pytest.fixture(scope="module")
def governed() -> Iterator[Installation]:
    with own_installation() as started:
        yield started


@pytest.fixture
def owner(governed: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(governed.url, governed.token) as client:
        client.policy.load("version: 1\n")
        yield client
        client.policy.load("version: 1\n")


def enter(client: SyncColdframe, preview: PreviewCreated, visitor: Visitor) -> str:
    """The cookie that a link gives."""
    link = client.previews.link(preview.preview_id).url
    answer = visitor.ask(link.partition(visitor.host)[2], as_visitor=False)
    assert (answer.status, answer.get("Location"), answer.get("Referrer-Policy")) == (303, "/", "no-referrer")
    cookie = answer.get("Set-Cookie")
    assert cookie is not None
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "domain" not in cookie.lower()
    return cookie.partition(";")[0]


def is_cut(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def kinds(client: SyncColdframe, preview: PreviewCreated) -> list[str]:
    entries = client.ledger.entries(subject=preview.preview_id, limit=1000)
    return [one.kind.removeprefix("preview.") for one in entries]


@pytest.mark.req("T4.45")
@pytest.mark.parametrize("header", ["Coldframe-Preview-Token", "E2b-Traffic-Access-Token", "Authorization"])
def test_its_token_opens_it_in_each_header_and_no_other_does(
    visitor: Visitor, preview: PreviewCreated, header: str
) -> None:
    start = "Bearer " if header == "Authorization" else ""
    assert visitor.ask("/echo", headers={header: f"{start}{preview.token}"}, as_visitor=False).status == 200
    wrong = visitor.ask("/echo", headers={header: f"{start}{preview.token}x"}, as_visitor=False)
    assert wrong.status == (403 if header.startswith("E2b") else 401)
    assert visitor.ask("/echo", as_visitor=False).status == 401


@pytest.mark.req("T4.45")
def test_a_link_opens_it_once_and_the_browser_is_known_from_then_on(
    client: SyncColdframe, preview: PreviewCreated, visitor: Visitor
) -> None:
    link = client.previews.link(preview.preview_id).url
    path = link.partition(visitor.host)[2]
    first = visitor.ask(path, as_visitor=False)
    cookie = str(first.get("Set-Cookie")).partition(";")[0]
    assert visitor.ask(path, as_visitor=False).status == 401
    for _ in range(2):
        assert visitor.ask("/echo", headers={"Cookie": cookie}, as_visitor=False).status == 200
    for wrong in (
        cookie[:-1] + ("0" if cookie[-1] != "0" else "1"),
        cookie.replace(".", ".9", 1),
        "coldframe_preview=",
    ):
        assert visitor.ask("/echo", headers={"Cookie": wrong}, as_visitor=False).status == 401


def test_the_page_of_a_private_one_takes_the_token(visitor: Visitor, preview: PreviewCreated) -> None:
    page = visitor.ask("/", headers={"Accept": "text/html"}, as_visitor=False)
    assert page.status == 401
    assert b'action="/.coldframe/enter"' in page.body
    for token, status in ((preview.token, 303), ("wrong", 401), ("", 401)):
        form = urllib.parse.urlencode({"token": token}).encode()
        asked = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{visitor.host}"}
        answer = visitor.ask("/.coldframe/enter", method="POST", body=form, headers=asked, as_visitor=False)
        assert answer.status == status
        if status == 303:
            cookie = str(answer.get("Set-Cookie")).partition(";")[0]
            assert visitor.ask("/echo", headers={"Cookie": cookie}, as_visitor=False).status == 200
    form = urllib.parse.urlencode({"token": preview.token}).encode()
    foreign = {"Origin": "https://evil.test"}
    assert visitor.ask("/.coldframe/enter", method="POST", body=form, headers=foreign, as_visitor=False).status == 401


def test_whoever_may_see_the_sandbox_opens_it_with_their_own_token(
    client: SyncColdframe, visitor: Visitor, installation: Installation
) -> None:
    for role in (Role.OWNER, Role.MEMBER, Role.VIEWER):
        token, _ = client.tokens.create(role, f"{role} that visits")
        answer = visitor.ask("/echo", headers={"Authorization": f"Bearer {token}"}, as_visitor=False)
        assert answer.status == 200
        assert token not in answer.body.decode()


def test_a_public_one_is_for_everybody_until_it_is_not(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation
) -> None:
    preview = serve(client, sandbox, 8000, public=True)
    visitor = Visitor(preview)
    assert visitor.ask("/echo").status == 200
    with visitor.upgrade() as one:
        read_until(one, b"\r\n\r\n")
        client.previews.change(preview.preview_id, public=False)
        assert is_cut(one)
        assert visitor.ask("/echo").status == 401
    with pytest.raises(InvalidArgument):
        client.previews.change(preview.preview_id, public=True, up_to="INTERNAL")


def test_an_agent_shares_with_tokens_and_not_with_everybody(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation
) -> None:
    token, _ = client.tokens.create(Role.AGENT, "shares", agent_id=sandbox.info.agent_id)
    with SyncColdframe(installation.url, token) as agent:
        with pytest.raises(GrantMissing):
            agent.previews.create(sandbox.id, 8000, public=True)
        made = agent.previews.create(sandbox.id, 8000)
        with pytest.raises(GrantMissing):
            agent.previews.change(made.preview_id, public=True)
        with pytest.raises(GrantMissing):
            agent.previews.rebuild(made.preview_id)
    viewer, _ = client.tokens.create(Role.VIEWER, "looks")
    with SyncColdframe(installation.url, viewer) as looks:
        assert looks.previews.get(made.preview_id).port == 8000
        for act in (looks.previews.link, looks.previews.revoke, looks.previews.restart, looks.previews.stop):
            with pytest.raises(GrantMissing):
                act(made.preview_id)


def test_one_port_is_shared_once(client: SyncColdframe, preview: PreviewCreated, sandbox: SyncSandbox) -> None:
    with pytest.raises(Conflict) as caught:
        client.previews.create(sandbox.id, 8000)
    assert caught.value.facts["preview_id"] == preview.preview_id
    client.previews.revoke(preview.preview_id)
    assert client.previews.create(sandbox.id, 8000).url == preview.url


@pytest.mark.req("T4.45")
def test_one_that_was_taken_back_lets_nobody_in_and_sends_away_who_is_in(
    client: SyncColdframe, preview: PreviewCreated, visitor: Visitor
) -> None:
    cookie = enter(client, preview, visitor)
    link = client.previews.link(preview.preview_id).url
    with visitor.upgrade() as one, visitor.connect() as other:
        read_until(one, b"\r\n\r\n")
        other.sendall(visitor.head("GET /events HTTP/1.1"))
        read_until(other, b"data: one\n\n")
        client.previews.revoke(preview.preview_id)
        for left in (one, other):
            with pytest.raises(ConnectionResetError):
                assert left.recv(1) == b""
                raise ConnectionResetError
    assert visitor.ask("/echo").status == 410
    assert visitor.ask("/echo", headers={"Cookie": cookie}, as_visitor=False).status == 410
    assert visitor.ask(link.partition(visitor.host)[2], as_visitor=False).status == 410
    assert client.previews.get(preview.preview_id).status.state == "revoked"


@pytest.mark.req("T4.45")
def test_one_whose_time_is_over_ends_what_is_under_way(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    preview = serve(client, sandbox, 8000, expires_in_s=60)
    visitor = Visitor(preview)
    assert visitor.ask("/echo").status == 200
    client.previews.change(preview.preview_id, expires_in_s=1)
    with visitor.upgrade() as one:
        read_until(one, b"\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            assert one.recv(1) == b""
            raise ConnectionResetError
    wait_until(lambda: visitor.ask("/echo").status == 410, "it is over")
    assert client.previews.get(preview.preview_id).status.state == "expired"


def test_a_shorter_time_and_a_revoked_token_end_what_is_under_way(
    client: SyncColdframe, preview: PreviewCreated, visitor: Visitor
) -> None:
    token, info = client.tokens.create(Role.MEMBER, "visits for a while")
    with visitor.upgrade(f"Authorization: Bearer {token}", own=False) as one:
        read_until(one, b"\r\n\r\n")
        client.tokens.revoke(info.token_id)
        assert is_cut(one)
    with visitor.upgrade() as one:
        read_until(one, b"\r\n\r\n")
        client.previews.change(preview.preview_id, expires_in_s=1)
        assert is_cut(one)


WITHHOLDING = """version: 1
rules:
  - {id: quiet, hook: POST_TOOL_RESPONSE, when: {tool: run_command, output: {contains: 'last words'}}, then: deny}
"""


def test_what_a_rule_withholds_of_a_server_is_told_to_no_visitor(owner: SyncColdframe) -> None:
    owner.policy.load(WITHHOLDING)
    with owner.sandboxes.create(agent_id="withheld") as sandbox:
        preview = serve(owner, sandbox, 8000)
        visitor = Visitor(preview)
        assert preview.status is not None
        assert preview.status.log_lines == ()
        visitor.ask("/exit")
        wait_until(lambda: visitor.ask("/").get("Coldframe-Code") == "PREVIEW_PROCESS_EXITED", "it has ended")
        assert b"last words" not in visitor.ask("/").body
        status = owner.previews.get(preview.preview_id).status
        assert status is not None
        assert status.log_lines == ()
        assert "the last words" in owner.previews.log(preview.preview_id)  # as owners read all output


def test_visitors_are_refused_as_soon_as_the_session_is_labelled_higher_than_it_is_shared_for(
    owner: SyncColdframe, governed: Installation
) -> None:
    owner.policy.load(LABELLING)
    with owner.sandboxes.create(agent_id="labelled") as sandbox:
        preview = serve(owner, sandbox, 8000)
        visitor = Visitor(preview)
        sandbox.write_file("crm/a", "customer")
        with visitor.upgrade() as one:
            read_until(one, b"\r\n\r\n")
            assert visitor.ask("/echo").status == 200
            sandbox.read_file("crm/a")
            with pytest.raises(ConnectionResetError):
                assert one.recv(1) == b""
                raise ConnectionResetError
        answer = visitor.ask("/echo")
        assert (answer.status, answer.json["error"]["code"]) == (403, "PREVIEW_LABEL")
        member, _ = owner.tokens.create(Role.MEMBER, "works with it")
        viewer, _ = owner.tokens.create(Role.VIEWER, "looks")
        for token, status in ((member, 200), (viewer, 403)):
            sent = {"Authorization": f"Bearer {token}"}
            assert visitor.ask("/echo", headers=sent, as_visitor=False).status == status
        for wish in ({"public": True}, {"up_to": "INTERNAL"}):
            with pytest.raises(PreviewLabelled):
                owner.previews.change(preview.preview_id, **wish)
        with pytest.raises(PreviewLabelled):
            owner.previews.create(sandbox.id, 8001, public=True)
        owner.previews.change(preview.preview_id, up_to="CONFIDENTIAL")
        assert visitor.ask("/echo").status == 200


def test_a_rule_says_who_may_share_what(owner: SyncColdframe) -> None:
    owner.policy.load(
        "version: 1\nrules:\n  - {id: closed, hook: PRE_TOOL_CALL, when: {tool: share_port}, then: deny}\n"
    )
    with owner.sandboxes.create(agent_id="ruled") as sandbox:
        with pytest.raises(DeniedByRule) as caught:
            owner.previews.create(sandbox.id, 8000)
        assert caught.value.facts["rule"] == "closed"
        refused = owner.ledger.entries(kinds=["act.refused"], subject=sandbox.id)[-1]
        assert refused.body["act"] == "share_port"
        assert owner.previews.list(sandbox.id) == []


def test_each_visitor_is_on_record_once_and_who_was_turned_away_as_well(
    client: SyncColdframe, preview: PreviewCreated, visitor: Visitor
) -> None:
    for _ in range(3):
        visitor.ask("/echo")
        visitor.ask("/echo", as_visitor=False)
    enter(client, preview, visitor)
    recorded = ["recorded"] if preview.inputs is not None else []
    assert kinds(client, preview) == ["created", *recorded, "opened", "denied", "linked", "entered"]
    entries = client.ledger.entries(subject=preview.preview_id, limit=1000)
    opened = next(one.body for one in entries if one.kind == "preview.opened")
    assert (opened["way"], opened["port"], opened["address"], opened["label"]) == ("token", 8000, "127.0.0.1", "PUBLIC")
    assert str(preview.token) not in str([one.body for one in entries])
    assert next(one.body for one in entries if one.kind == "preview.denied")["code"] == "PREVIEW_LOCKED"


def test_what_visitors_did_is_counted_and_recorded_and_all_of_it_outlives_the_server() -> None:
    with own_installation() as installation:
        with SyncColdframe(installation.url, installation.token) as client:
            sandbox = client.sandboxes.create(agent_id="lasting")
            preview = serve(client, sandbox, 8000)
            visitor = Visitor(preview)
            visitor.ask("/bytes?n=1000")
            visitor.ask("/upload", method="POST", body=b"x" * 500)
            cookie = enter(client, preview, visitor)
            port = visitor.port
        installation.stop()
        installation.start()
        with SyncColdframe(installation.url, installation.token) as client:
            again = client.previews.get(preview.preview_id)
            assert again.status is not None
            assert again.status.state == "healthy"
            back = Visitor(again, preview.token)
            assert again.url == str(preview.url).replace(str(port), str(back.port))
            assert back.ask("/echo").status == 200
            assert back.ask("/echo", headers={"Cookie": cookie}, as_visitor=False).status == 200
            visited = client.ledger.entries(kinds=["preview.visited"], subject=preview.preview_id)
            assert [(one.body["requests"], one.body["bytes_in"]) for one in visited] == [(2, 500)]
            assert visited[0].body["bytes_out"] > 1000


def test_ports_of_a_sandbox_of_e2b_are_shared_as_its_protocol_says(client: SyncColdframe, served: Visitor) -> None:
    import http.client
    import json

    key, _ = client.tokens.create(Role.OWNER, "e2b", form="e2b")

    def ask(method: str, path: str, payload: object = None, **headers: str) -> tuple[int, dict[str, object]]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        body = None if payload is None else json.dumps(payload)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Content-Type": "application/json", **sent})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text.startswith(b"{") else {}

    api = {"Host": f"127.0.0.1:{served.port}", "X_API_KEY": key}
    for private in (False, True):
        wish = {"templateID": "base", "timeout": 60, **({"network": {"allowPublicTraffic": False}} if private else {})}
        status, made = ask("POST", "/v2/sandboxes", wish, **api)
        assert status == 201, made
        name = str(made["sandboxID"])
        with client.sandboxes.get(f"sbx_{name}") as sandbox:
            from tests.previews.visiting import APP

            host = {"Host": f"8000-{name}.localhost:{served.port}"}
            sent = {"e2b_traffic_access_token": str(made["trafficAccessToken"])} if private else {}
            status, told = ask("GET", "/echo", **host, **sent)
            assert (status, told["message"]) == (502, "The sandbox is running but port is not open")
            assert (told["sandboxId"], told["port"], told["code"]) == (name, 8000, 502)
            sandbox.write_file("app.py", APP)
            sandbox.run_command("exec python3 app.py 127.0.0.1 8000", background=True)
            wait_until(lambda: ask("GET", "/echo", **host, **sent)[0] == 200, "it serves")  # noqa: B023  at once
            by_headers = {"Host": f"127.0.0.1:{served.port}", "E2b_Sandbox_Id": name, "E2b_Sandbox_Port": "8000"}
            assert ask("GET", "/echo", **by_headers, **sent)[0] == 200
            if private:
                for wrong in ({}, {"e2b_traffic_access_token": "x"}):
                    status, told = ask("GET", "/echo", **host, **wrong)
                    assert status == 403
                    assert "traffic access token" in str(told["message"])
        status, told = ask("GET", "/echo", **host, **sent)
        assert (status, told["message"]) == (502, "The sandbox was not found")


def opened(client: SyncColdframe, preview: PreviewCreated, visitor: Visitor, **asked: Any) -> dict[str, str]:
    """The header of a browser that has opened a link."""
    link = client.previews.link(preview.preview_id, **asked).url
    cookie = visitor.ask(link.partition(visitor.host)[2], as_visitor=False).get("Set-Cookie")
    assert cookie is not None
    return {"Cookie": cookie.partition(";")[0]}


@pytest.mark.req("T4.45")
def test_a_link_for_viewers_lets_look_and_no_more(
    client: SyncColdframe, preview: PreviewCreated, visitor: Visitor
) -> None:
    viewer, member = (opened(client, preview, visitor, role=role) for role in ("viewer", "member"))
    token, _ = client.tokens.create(Role.VIEWER, "looks as well")
    for sent, acts in ((viewer, 403), (member, 200), ({"Authorization": f"Bearer {token}"}, 403)):
        for method in ("GET", "HEAD", "OPTIONS"):
            assert visitor.ask("/echo", method=method, headers=sent, as_visitor=False).status == 200
        for method in ("POST", "PUT", "DELETE"):
            answer = visitor.ask("/upload", method=method, body=b"x", headers=sent, as_visitor=False)
            assert answer.status == acts
        (name, value), own = *sent.items(), f"Origin: http://{visitor.host}"
        with visitor.upgrade(f"{name}: {value}", own, own=False) as one:
            status = b"101" if acts == 200 else b"403"
            assert read_until(one, b"\r\n\r\n").startswith(b"HTTP/1.1 " + status)
    forged = viewer["Cookie"].replace("viewer-", "")
    assert visitor.ask("/echo", headers={"Cookie": forged}, as_visitor=False).status == 401


@pytest.mark.req("T4.45")
def test_who_came_by_a_link_is_sent_away_when_its_time_is_over_and_when_links_are_ended(
    client: SyncColdframe, preview: PreviewCreated, visitor: Visitor
) -> None:
    own = f"Origin: http://{visitor.host}"
    short = opened(client, preview, visitor, expires_in_s=1)
    with visitor.upgrade(f"Cookie: {short['Cookie']}", own, own=False) as one:
        read_until(one, b"\r\n\r\n")
        assert is_cut(one)
    assert visitor.ask("/echo", headers=short, as_visitor=False).status == 401
    lasting = opened(client, preview, visitor)
    unopened = client.previews.link(preview.preview_id).url
    with visitor.upgrade(f"Cookie: {lasting['Cookie']}", own, own=False) as one, visitor.upgrade() as by_token:
        for each in (one, by_token):
            read_until(each, b"\r\n\r\n")
        client.previews.change(preview.preview_id, end_links=True)
        assert is_cut(one)
        by_token.sendall(b"a")
        assert by_token.recv(1) == b"A"
    assert visitor.ask("/echo", headers=lasting, as_visitor=False).status == 401
    assert visitor.ask(unopened.partition(visitor.host)[2], as_visitor=False).status == 401
    assert visitor.ask("/echo", headers=opened(client, preview, visitor), as_visitor=False).status == 200
    assert kinds(client, preview).count("changed") == 1


@pytest.mark.req("T4.45")
def test_links_are_ended_without_the_right_to_share_since_that_shares_with_nobody(
    owner: SyncColdframe, governed: Installation
) -> None:
    with owner.sandboxes.create(agent_id="ending-links") as sandbox:
        preview = serve(owner, sandbox, 8000, public=True)
        visitor = Visitor(preview)
        came = opened(owner, preview, visitor)
        secret, _ = owner.tokens.create(Role.AGENT, "agent", agent_id="ending-links")
        owner.policy.load(
            "version: 1\nrules:\n  - {id: closed, hook: PRE_TOOL_CALL, when: {tool: share_port}, then: deny}\n"
        )
        with SyncColdframe(governed.url, secret) as agent:
            agent.previews.change(preview.preview_id, end_links=True)
            with pytest.raises(GrantMissing):
                agent.previews.change(preview.preview_id, public=True, expires_in_s=None, up_to="CONFIDENTIAL")
            with pytest.raises(DeniedByRule):
                owner.previews.change(preview.preview_id, up_to="INTERNAL", public=False)
            agent.previews.change(preview.preview_id, public=False)
            with pytest.raises(GrantMissing):
                agent.previews.change(preview.preview_id, public=True)
        assert visitor.ask("/echo", headers=came, as_visitor=False).status == 401
        changed = owner.ledger.entries(kinds=["preview.changed"], subject=preview.preview_id)
        assert [one.body.get("end_links", False) for one in changed] == [True, False]


@pytest.mark.req("T4.45")
def test_a_viewer_of_a_public_one_may_do_what_strangers_may_and_for_as_long(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    preview = serve(client, sandbox, 8000, public=True)
    visitor = Visitor(preview)
    viewer = opened(client, preview, visitor, role="viewer")
    token, _ = client.tokens.create(Role.VIEWER, "looks")
    for sent in (viewer, {"Authorization": f"Bearer {token}"}, {}):
        assert visitor.ask("/upload", method="POST", body=b"x", headers=sent, as_visitor=False).status == 200
    with visitor.upgrade(f"Cookie: {viewer['Cookie']}", f"Origin: http://{visitor.host}", own=False) as one:
        assert read_until(one, b"\r\n\r\n").startswith(b"HTTP/1.1 101")
        client.previews.change(preview.preview_id, public=False)
        assert is_cut(one)
    assert visitor.ask("/echo", headers=viewer, as_visitor=False).status == 200
    page = visitor.ask("/upload", method="POST", body=b"x", headers={**viewer, "Accept": "text/html"}, as_visitor=False)
    assert (page.status, b"<title>You may only look here</title>" in page.body) == (403, True)
    assert client.previews.list(sandbox.id)[0].public is False


@pytest.mark.req("T4.45")
def test_no_answer_is_to_be_indexed_and_no_secret_is_in_a_log(
    client: SyncColdframe, preview: PreviewCreated, visitor: Visitor, installation: Installation
) -> None:
    link = client.previews.link(preview.preview_id).url
    opening = visitor.ask(link.partition(visitor.host)[2], as_visitor=False)
    answers = [opening, visitor.ask("/echo"), visitor.ask("/robots.txt", as_visitor=False), visitor.ask("/bytes?n=1")]
    assert [one.status for one in answers] == [303, 200, 401, 200]
    assert {one.get("X-Robots-Tag") for one in answers} == {"noindex, nofollow"}
    client.previews.change(preview.preview_id, public=True)
    assert visitor.ask("/echo", as_visitor=False).get("X-Robots-Tag") == "noindex, nofollow"
    cookie = str(opening.get("Set-Cookie")).partition(";")[0].partition("=")[2]
    told = installation.log + "\n".join(client.previews.log(preview.preview_id))
    told += str([one.body for one in client.ledger.entries(subject=preview.preview_id, limit=1000)])
    for secret in (link.rpartition("=")[2], cookie, str(preview.token)):
        assert secret
        assert secret not in told
