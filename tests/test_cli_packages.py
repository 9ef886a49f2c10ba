"""`coldframe network packages` shows each file once, of all pages of the log, with who asked for it."""

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from coldframe.cli import connection
from coldframe.cli.output import Chosen
from coldframe.cli.packages import packages
from coldframe.contract.network import LoggedContact, NetworkContact, NetworkLog, NetworkPackage, NetworkRequest
from coldframe.contract.policy import Outcome

NOW = datetime.now(UTC)


def contact(number: int, *files: str) -> LoggedContact:
    requests = tuple(
        NetworkRequest(
            method="GET",
            path=f"/{file}",
            outcome=Outcome.ALLOW,
            rule_id="packages:x",
            at=NOW,
            package=NetworkPackage(kind="python", name="demo", version="1.0", file=file, digest="sha256:00"),
        )
        for file in files
    )
    said = NetworkContact(
        contact_id=f"c{number}",
        protocol="tcp",
        address="198.18.0.2",
        port=443,
        name="mirror.example.com",
        outcome=Outcome.ALLOW,
        rule_id="packages:x",
        began_at=NOW,
        command_id=f"cmd-{number}",
        requests=requests,
    )
    facts = {"sandbox_id": "sb", "agent_id": "ada", "session_id": "s", "number": number, "change": number}
    return LoggedContact.model_validate({**facts, "contact": said})


def test_each_file_is_shown_once_with_the_command_that_asked_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = {
        0: NetworkLog(contacts=(contact(1, "demo-1.0.whl", ""),), next_after=1),
        1: NetworkLog(contacts=(contact(2, "demo-1.0.whl", "other-1.0.whl"),), next_after=None),
    }

    @contextlib.contextmanager
    def connect() -> Iterator[SimpleNamespace]:
        sandbox = SimpleNamespace(network_log=lambda *, after, **_: pages[after])
        yield SimpleNamespace(sandboxes=SimpleNamespace(get=lambda _: sandbox))

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(Chosen, "as_json", True)
    packages("sb")
    found = json.loads(capsys.readouterr().out)
    assert [(one["file"], one["command_id"], one["from"]) for one in found] == [
        ("demo-1.0.whl", "cmd-1", "mirror.example.com"),
        ("other-1.0.whl", "cmd-2", "mirror.example.com"),
    ]
    monkeypatch.setattr(Chosen, "as_json", False)
    packages("sb")
    assert "mirror.example.com" in capsys.readouterr().out
