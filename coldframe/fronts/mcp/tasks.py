"""Tasks: what a client that knows them gets in place of the result of a command that takes its time.

A task is the command itself, under its id: nothing is kept for it, so it outlives the client, the connection and the server.
"""

from datetime import UTC, datetime
from typing import Any, Literal

from coldframe.contract.command import CommandInfo
from coldframe.contract.errors import ColdframeError, GuestLost, WrongState
from coldframe.control.call_records import ids_of
from coldframe.fronts.mcp.answers import CallAnswer, answered, command_text, of_error
from coldframe.fronts.mcp.choice import sandbox_of_command
from coldframe.fronts.mcp.offers import Asked
from coldframe.tools.registry import find_tool

POLL_MS = 1000
RECORDED_WITHIN_S = 5.0
MOST_OUTPUT_BYTES = 8 * 1024 * 1024
"""Of each stream in the result of a task; the rest is read by `read_logs`."""
_FALSE = ("timed_out", "cancelled", "out_of_memory", "invalid_utf8", "complete", "truncated", "streamed")


def begun(asked: Asked, answer: CallAnswer) -> dict[str, Any]:
    """The task that stands for *answer*, which says that its command runs."""
    task_id = answer["structuredContent"]["command_id"]
    at = _begun_at(asked, task_id)
    return {"resultType": "task", **_task(task_id, "working", at, at)}


async def state_of(asked: Asked, task_id: str) -> dict[str, Any]:
    """How it stands, with its result if it has one. Raises NotFound."""
    info = sandbox_of_command(asked.control, asked.caller, task_id)
    known = await asked.control.outputs.command(asked.caller, info.sandbox_id, task_id)
    at = _begun_at(asked, task_id)
    if known.state != "running" and not _is_recorded(asked, task_id):
        await asked.control.gate.await_end(task_id, RECORDED_WITHIN_S)  # the box is ahead of the ledger for a moment
    if known.state == "running" or not _is_recorded(asked, task_id):
        return {"resultType": "complete", **_task(task_id, "working", at, _time(datetime.now(UTC)))}
    result = known.result
    if result is None:
        lost = GuestLost(f"command `{task_id}` was lost with its sandbox", command_id=task_id)
        return {
            "resultType": "complete",
            **_task(task_id, "completed", at, at),
            "result": {"resultType": "complete", **of_error(lost)},
        }
    ended = _time(result.ended_at)
    if result.cancelled:
        return {"resultType": "complete", **_task(task_id, "cancelled", at, ended)}
    answer = {"resultType": "complete", **await stored_answer(asked, info.sandbox_id, known)}
    return {"resultType": "complete", **_task(task_id, "completed", at, ended), "result": answer}


async def cancel(asked: Asked, task_id: str) -> None:
    """End it. One that has ended already stays as it is. Raises NotFound."""
    info = sandbox_of_command(asked.control, asked.caller, task_id)
    try:
        await asked.control.outputs.signal(asked.caller, info.sandbox_id, task_id, 15, cancel=True)
    except WrongState:
        return


def _task(task_id: str, status: str, created_at: str, updated_at: str) -> dict[str, Any]:
    return {
        "taskId": task_id,
        "status": status,
        "createdAt": created_at,
        "lastUpdatedAt": updated_at,
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _is_recorded(asked: Asked, command_id: str) -> bool:
    return bool({"call.ended", "call.interrupted"} & asked.control.ledger.course(ids_of(command_id).call_id).keys())


def _begun_at(asked: Asked, command_id: str) -> str:
    """As the ledger has it."""
    entry = asked.control.ledger.course(ids_of(command_id).call_id).get("call.started")
    return _time(datetime.now(UTC) if entry is None else entry.at)


def _time(at: datetime) -> str:
    return at.isoformat()


async def stored_answer(asked: Asked, sandbox_id: str, known: CommandInfo) -> CallAnswer:
    """The answer that a caller would have got who had waited for the end of the command."""
    assert known.result is not None
    result = {"paused_s": known.result.paused_s, **known.result.model_dump(mode="json")}
    properties = find_tool("run_command").answer.model_fields
    value: dict[str, Any] = {name: result.get(name) for name in properties if name != "transcript"}
    value.update({name: bool(value[name]) for name in _FALSE})
    value.update(state="ended", encoding="utf-8", complete=True, pid=known.pid)
    value["outputs"] = None if known.outputs is None else known.outputs.model_dump(mode="json")
    try:
        for stream, info in (("stdout", known.result.stdout), ("stderr", known.result.stderr)):
            data = await _output(asked, sandbox_id, known.command_id, stream, info.bytes)  # type: ignore[arg-type]
            value[stream] = data.decode("utf-8", "replace")
            whole = len(data) == info.bytes
            value["complete"] = value["complete"] and whole
            value["invalid_utf8"] = value["invalid_utf8"] or info.invalid_utf8
            value[f"{stream}_info"] = {
                "bytes": info.bytes,
                "sha256": info.sha256,
                "invalid_utf8": info.invalid_utf8,
                "complete": whole,
                "omitted_bytes": info.bytes - len(data),
                "omitted_at": None if whole else len(data),
            }
    except ColdframeError as error:
        return of_error(error)
    value["truncated"] = not value["complete"]
    value["call"] = await _call_of(asked, sandbox_id, known.command_id)
    return answered(value, command_text(value))


async def _output(
    asked: Asked, sandbox_id: str, command_id: str, stream: Literal["stdout", "stderr"], size: int
) -> bytes:
    if not size:
        return b""
    window = await asked.control.outputs.output(
        asked.caller, sandbox_id, command_id, stream, 0, min(size, MOST_OUTPUT_BYTES)
    )
    return window.data


async def _call_of(asked: Asked, sandbox_id: str, command_id: str) -> dict[str, Any]:
    receipt = asked.control.receipts.get(asked.caller, ids_of(command_id).receipt_id)
    return {
        "call_id": receipt.call_id,
        "sandbox_id": sandbox_id,
        "session_id": receipt.session_id,
        "label": receipt.label.value,
        "decision": receipt.decision.outcome.value,
        "receipt_id": receipt.receipt_id,
    }
