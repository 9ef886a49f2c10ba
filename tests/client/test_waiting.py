"""Whoever waits for the end of a command asks seldom, and not for ever."""

import json

import pytest

from coldframe.client import sync
from coldframe.client.sync import Commands, Transport
from coldframe.client.transport import Reply


def test_a_part_of_a_second_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def ask(_: object, __: str, ___: str, *, query: dict[str, object]) -> Reply:
        asked.append(query["wait_s"])
        assert len(asked) < 10
        return Reply(200, {}, json.dumps({"command_id": "cmd_1", "state": "running"}).encode())

    monkeypatch.setattr(sync, "ask", ask)
    commands = Commands(Transport("http://localhost", None), "/v1/sandboxes/sbx_1")
    assert commands.wait("cmd_1", timeout_s=30.4).result is None
    assert commands.wait("cmd_1", timeout_s=0).result is None
    assert asked == [30, 1, 0]
