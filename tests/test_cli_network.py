"""The network log on the command line: a line each that fits on a screen, and all that is known of it where one asks."""

from datetime import UTC, datetime, timedelta

import pytest

from coldframe.cli import network
from coldframe.contract.network import LoggedContact, NetworkContact, NetworkLookup, NetworkRequest
from coldframe.contract.policy import Outcome

COMMAND = "cmd_0123456789abcdef0123456789"


def _logged(**own: object) -> LoggedContact:
    now = datetime.now(UTC)
    contact = NetworkContact.model_validate(
        {
            "contact_id": "c-1",
            "protocol": "tcp",
            "address": "198.18.0.2",
            "port": 443,
            "name": "files.pythonhosted.org",
            "scheme": "https",
            "outcome": Outcome.ALLOW,
            "rule_id": "profile:packages:registries",
            "sent_bytes": 1234,
            "received_bytes": 34_567_890,
            "began_at": now,
            "ended": "closed",
            "program": "/usr/bin/python3.11",
            "pid": 17,
            "command_id": COMMAND,
            **own,
        }
    )
    return LoggedContact(number=7, change=9, sandbox_id="sb-1", agent_id="a", session_id="s", contact=contact)


def test_usual_contacts_take_a_line_each_of_at_most_120_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network, "_time", lambda _: "12:31:07")
    request = NetworkRequest(
        method="GET",
        path="/simple/requests/",
        outcome=Outcome.ALLOW,
        rule_id="r",
        status=200,
        at=datetime.now(UTC),
    )
    denied = {"outcome": Outcome.DENY, "rule_id": "network:default", "ended": "denied", "program": "/usr/bin/curl"}
    looked_up = NetworkLookup(kind="AAAA", answer="no-name")
    network._show(
        [
            _logged(requests=(request,)),
            _logged(name=None, address="fd00::1", ended=None, program="unknown", pid=None),
            _logged(**denied, name="metadata.google.internal", port=80, sent_bytes=0, received_bytes=0),
            _logged(**denied, port=53, protocol="udp", scheme=None, lookup=looked_up, times=12),
        ]
    )
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert max(map(len, lines)) <= 120
    shown = [line.split() for line in lines[-4:]]
    assert shown[0][1:] == [
        "allow",
        "files.pythonhosted.org:443",
        "GET",
        "/simple/requests/",
        "1.2K/35M",
        "closed",
        "python3.11",
    ]
    assert shown[1][1:] == ["allow", "[fd00::1]:443", "https", "1.2K/35M", "open", "unknown"]
    assert shown[2][1:] == ["deny", "metadata.google.internal:80", "https", "0/0", "by", "network:default", "curl"]
    assert shown[3][1:7] == ["deny", "files.pythonhosted.org:53", "look-up", "AAAA:", "no-name", "x12"]
    assert COMMAND not in "".join(lines)


def test_a_time_has_its_day_only_where_that_is_not_today() -> None:
    now = datetime.now().astimezone()
    assert network._time(now - timedelta(days=3)) == f"{now - timedelta(days=3):%Y-%m-%d %H:%M:%S}"
    short = network._time(now)
    assert short == f"{now:%H:%M:%S}" or datetime.now().astimezone().date() != now.date()


def test_the_long_form_has_all_that_a_line_has_no_room_for() -> None:
    row = network._long_row(_logged())
    assert {7, "1234/34567890", "profile:packages:registries", COMMAND, "/usr/bin/python3.11 (17)"} < set(row)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0K"), (9_940, "9.9K"), (34_567, "35K"), (5_600_000, "5.6M"), (10**16, "10000T")],
)
def test_bytes_take_few_characters(count: int, shown: str) -> None:
    assert network._size(count) == shown
