"""How a command stands is told by a code of the catalogue and by what can be done, in one shape."""

from datetime import UTC, datetime
from typing import Any

import pytest

from coldframe.contract.command import CommandResult, FileChanges, LimitHit, StreamInfo
from coldframe.control.command_states import COMMAND_CODES, command_status

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EMPTY = StreamInfo(sha256="0" * 64)


def ended(**fields: Any) -> CommandResult:
    return CommandResult.model_validate(
        {
            "command_id": "cmd_1",
            "ended": "exited",
            "exit_code": 0,
            "started_at": NOW,
            "ended_at": NOW,
            "duration_ms": 1.0,
            "stdout": EMPTY,
            "stderr": EMPTY,
            "files": FileChanges(recorded=False),
            "artifact_id": "cmd_1",
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("result", "state", "code"),
    [
        (ended(), "exited", None),
        (ended(exit_code=1), "exited", None),
        (ended(ended="signalled", exit_code=137, signal=9), "signalled", None),
        (
            ended(ended="timed_out", timed_out=True, limit=LimitHit(kind="wall", limit=1, unit="s")),
            "timed_out",
            "TIMED_OUT_WALL",
        ),
        (ended(ended="limit", limit=LimitHit(kind="cpu", limit=1, unit="s")), "limit", "LIMIT_CPU"),
        (ended(limit=LimitHit(kind="memory", limit=1, used=2, unit="bytes")), "limit", "LIMIT_MEMORY"),
        (ended(ended="cancelled", cancelled=True), "cancelled", "CANCELLED"),
        (ended(ended="not_started", exit_code=127, start_error="x: command not found"), "not_started", "NOT_STARTED"),
        (ended(ended="lost", exit_code=None), "lost", "PROCESS_LOST"),
    ],
)
def test_an_ended_command_has_its_state_code_and_actions(result: CommandResult, state: str, code: str | None) -> None:
    status = command_status("cmd_1", "ended", result)
    assert (status.state, status.code, status.since) == (state, code, NOW)
    assert status.family == (COMMAND_CODES[code] if code else None)
    assert status.next_actions
    assert bool(status.message) == (code is not None)


def test_a_running_and_a_lost_command_say_what_can_be_done() -> None:
    running, lost = command_status("cmd_1", "running", None), command_status("cmd_1", "lost", None)
    assert [action["op"] for action in running.next_actions] == [
        "command.follow",
        "command.signal",
        "command.extend",
        "command.cancel",
    ]
    assert (lost.state, lost.code, lost.retryable) == ("lost", "PROCESS_LOST", True)
