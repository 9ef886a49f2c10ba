"""Results and errors of the product as answers of tools: text for a model to read, and the same with its structure."""

import json
from collections.abc import Mapping
from typing import Any

from coldframe.contract.errors import ColdframeError, TooLarge
from coldframe.contract.model import Model
from coldframe.contract.tool import ToolResult

CallAnswer = dict[str, Any]
"""`content`, `structuredContent` and, of one that failed, `isError`."""
EVENT_CAP_BYTES = 768 * 1024
"""Longest answer on a stream of events: common clients take no event over a MiB. One that comes by itself has no such cap."""
SHORTENED_TO = 64 * 1024
"""Characters of each stream in an answer that would be longer than that."""
MOST_SHORTENED_RESULTS = 50
"""Of a cell, in such an answer."""


def answered(value: Mapping[str, Any], text: str | None = None) -> CallAnswer:
    return {"content": [_text(_dumped(value) if text is None else text)], "structuredContent": dict(value)}


def of_model(model: Model) -> CallAnswer:
    return answered(model.model_dump(mode="json"))


def of_result(result: ToolResult) -> CallAnswer:
    """The tool's own answer, with what the gate says of the call as `call`."""
    value = {name: content for name, content in result.value.items() if name != "transcript"}
    value["call"] = call_of(result)
    if result.error is not None:
        return _failed({**result.error}, value["call"])
    return answered(value, _for_reading(result.tool, value))


def call_of(result: ToolResult) -> dict[str, Any]:
    return {
        "call_id": result.call_id,
        "sandbox_id": result.sandbox_id,
        "session_id": result.session_id,
        "label": result.label.value,
        "label_reason": result.label_reason,
        "taint": result.taint.value,
        "decision": result.decision.value,
        "rule_id": result.rule_id,
        "receipt_id": result.receipt_id,
        "degraded": list(result.degraded),
    }


def of_error(error: ColdframeError) -> CallAnswer:
    return _failed(error.to_wire(), None)


def _failed(wire: dict[str, Any], call: dict[str, Any] | None) -> CallAnswer:
    hint = wire.get("hint")
    text = f"{wire.get('code')}: {wire.get('message')}" + (f". {hint[:1].upper()}{hint[1:]}." if hint else "")
    offers = [f"{one.get('op')}: {one.get('effect')}" for one in wire.get("next_actions") or ()]
    value: dict[str, Any] = {"error": wire} if call is None else {"error": wire, "call": call}
    return {
        "content": [_text("\n".join([text, *offers]))],
        "structuredContent": value,
        "isError": True,
    }


def _for_reading(tool: str, value: Mapping[str, Any]) -> str | None:
    """What a person at a terminal would see, where that says more than JSON."""
    if tool == "run_command":
        return command_text(value)
    if tool == "read_file" and isinstance(value.get("content"), str):
        return str(value["content"])
    return None


def command_text(value: Mapping[str, Any]) -> str:
    parts = []
    for stream in ("stdout", "stderr"):
        shown = value.get(stream) or value.get(f"{stream}_base64") or ""
        if shown:
            parts.append(shown if stream == "stdout" else f"[stderr]\n{shown}")
    if value.get("state") == "running":
        parts.append(
            f"[runs as {value['command_id']}: `wait_command` waits for its end, `read_logs` reads what it printed so far, "
            "`signal_command` ends it]"
        )
        return "\n".join(parts)
    how = value.get("ended")
    facts = f"exit code {value.get('exit_code')}" if how == "exited" else f"{how}, exit code {value.get('exit_code')}"
    if value.get("start_error"):
        facts += f": {value['start_error']}"
    if not value.get("complete", True):
        facts += "; a part of the output is shown, `read_logs` reads the rest"
    parts.append(f"[{facts}, {(value.get('duration_ms') or 0) / 1000:.2f} s]")
    return "\n".join(part.rstrip("\n") for part in parts)


def fitted(result: dict[str, Any]) -> dict[str, Any]:
    """The same for where a whole one cannot be carried: an answer of a tool, or a task with one, is shortened.

    Raises:
        TooLarge: it is something else, which has no shorter form.
    """
    if "structuredContent" in result:
        return {**result, **shortened(result)}
    of_task = result.get("result")
    if isinstance(of_task, dict) and "structuredContent" in of_task:
        return {**result, "result": {**of_task, **shortened(of_task)}}
    raise _too_large("take it as JSON, which has no such limit, or ask for less at once")


def shortened(answer: CallAnswer) -> CallAnswer:
    """With less of the output of a command or of a cell, and saying so."""
    value = dict(answer["structuredContent"])
    if "stdout_info" in value:
        return _shortened_command(answer, value)
    if "cell_id" in value and "results" in value:
        return _shortened_cell(answer, value)
    return of_error(_too_large("ask for less at once"))


def _too_large(hint: str) -> TooLarge:
    return TooLarge(f"the answer is longer than the {EVENT_CAP_BYTES} bytes of one event", hint=hint)


def _shortened_command(answer: CallAnswer, value: dict[str, Any]) -> CallAnswer:
    for stream in ("stdout", "stderr", "stdout_base64", "stderr_base64"):
        shown = value.get(stream)
        if not isinstance(shown, str) or len(shown) <= SHORTENED_TO:
            continue
        value.update({stream: shown[:SHORTENED_TO], "complete": False, "truncated": True})
        kept = SHORTENED_TO * 3 // 4 if stream.endswith("base64") else len(shown[:SHORTENED_TO].encode())
        name = stream.removesuffix("_base64") + "_info"
        info = value.get(name)
        if isinstance(info, dict):
            left_out = max(int(info.get("bytes", 0)) - kept, 0)
            value[name] = {**info, "complete": False, "omitted_bytes": left_out, "omitted_at": kept}
    return {**answer, "content": [_text(command_text(value))], "structuredContent": value}


def _shortened_cell(answer: CallAnswer, value: dict[str, Any]) -> CallAnswer:
    """Without pictures and what else is long, which whoever fetches the cell by its id as JSON gets."""
    value["complete"] = False
    for stream in ("stdout", "stderr"):
        value[stream] = value[stream][:SHORTENED_TO]
    if raised := value.get("raised"):
        value["raised"] = {name: _start(content) for name, content in raised.items()}
    left, results = SHORTENED_TO, list[dict[str, Any]]()
    for one in value["results"]:
        data = {}
        for mime, content in one["data"].items():
            size = len(_dumped(content))
            data[mime] = content if size <= left else None
            left -= size if size <= left else 0
        if len(results) < MOST_SHORTENED_RESULTS:
            results.append({**one, "data": data})
    value["results"] = results
    texts = [_start(one["text"]) for one in answer["content"] if one.get("type") == "text"]
    note = f"[a part of what it showed, without pictures; `get_cell` has all of `{value['cell_id']}`]"
    return {**answer, "content": [_text("\n".join([*texts, note]))], "structuredContent": value}


def _start(content: Any) -> Any:
    return content[:SHORTENED_TO] if isinstance(content, str) else content


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
