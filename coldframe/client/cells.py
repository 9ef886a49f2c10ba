"""Code cells of a sandbox: code that shares variables, with what it shows in every form that there is of it."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Literal

from coldframe.client import models
from coldframe.client.replies import read_answer, read_answers, read_object, read_part, unknown_answer
from coldframe.client.transport import Transport, ask, ask_stream, encode_path
from coldframe.contract.errors import HostUnreachable, from_wire


class Cells:
    """Those of one sandbox."""

    _transport: Transport
    _path: str

    async def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: str | None = None,
        timeout_s: float | None = None,
        queue_s: float | None = None,
        env: Mapping[str, str] | None = None,
        inline_bytes: int | None = None,
    ) -> models.CellOutcome:
        """Run *code* in the context that there is for its language, or in *context*, and return what it came to.

        It waits for its turn there, for *queue_s* at most. An error that it raises is `error` of the outcome, and none here;
        a limit that ended it is its `status` and `code`. Whoever stops waiting before its turn takes it back.

        Raises:
            CellNotBegun: its turn did not come.
            Refused: the gate is against it. KernelUnavailable: there is no kernel for it.
        """
        payload = _cell_payload(code, language, context, timeout_s, queue_s, env, inline_bytes)
        reply = await ask(self._transport, "POST", f"{self._path}/cells", payload=payload)
        return _cell_outcome(read_object(reply.body))

    async def code_events(
        self,
        code: str,
        *,
        language: str | None = None,
        context: str | None = None,
        timeout_s: float | None = None,
        queue_s: float | None = None,
        env: Mapping[str, str] | None = None,
        inline_bytes: int | None = None,
        on_leave: Literal["go_on", "interrupt"] = "go_on",
    ) -> AsyncGenerator[models.CellEvent | models.CellOutcome, None]:
        """Like `run_code`, yielding what the cell shows as it does, and what it came to last. *on_leave* says what becomes of
        it if the connection ends while it runs."""
        payload = _cell_payload(code, language, context, timeout_s, queue_s, env, inline_bytes) | {"on_leave": on_leave}
        stream = await ask_stream(
            self._transport,
            "POST",
            f"{self._path}/cells",
            payload=payload,
            headers={"Accept": "application/x-ndjson"},
        )
        complete = False
        async with aclosing(stream.lines()) as lines:
            async for line in lines:
                event = _cell_event(read_object(line))
                complete = isinstance(event, models.CellOutcome)
                yield event
        if not complete:
            raise HostUnreachable("the events of the cell stopped before its end")

    async def cell(self, cell_id: str, *, wait_s: float = 0) -> models.CellOutcome:
        """What a cell of before came to, by its id; of one that runs, once it has ended within *wait_s*."""
        path = f"{self._path}/cells/{encode_path(cell_id)}"
        return _cell_outcome(read_object((await ask(self._transport, "GET", path, query={"wait_s": wait_s})).body))

    async def interrupt_cell(self, cell_id: str) -> None:
        """Stop a cell that runs."""
        await ask(self._transport, "POST", f"{self._path}/cells/{encode_path(cell_id)}/interrupt")

    async def attach(self, name: str, content: bytes, *, source: str | None = None) -> models.Attachment:
        """Put a file into the sandbox as `inputs/NAME`, to be read and not written. If the name is taken by another file, it
        gets a number, and `note` says so."""
        query = {"name": name} if source is None else {"name": name, "source": source}
        reply = await ask(self._transport, "POST", f"{self._path}/attachments", query=query, body=content)
        return read_answer(models.Attachment, reply.body)

    async def contexts(self) -> list[models.ContextInfo]:
        """Those that are there without being made first, and then as they were made."""
        return read_answers(models.ContextInfo, (await ask(self._transport, "GET", f"{self._path}/contexts")).body)

    async def open_context(self, language: str = "python", *, cwd: str = "") -> models.ContextInfo:
        """Make one with variables of its own."""
        payload = {"language": language, "cwd": cwd}
        reply = await ask(self._transport, "POST", f"{self._path}/contexts", payload=payload)
        return read_answer(models.ContextInfo, reply.body)

    async def restart_context(self, context_id: str) -> models.ContextInfo:
        """Begin anew: all that cells have defined is gone."""
        path = f"{self._path}/contexts/{encode_path(context_id)}/restart"
        return read_answer(models.ContextInfo, (await ask(self._transport, "POST", path)).body)

    async def close_context(self, context_id: str) -> None:
        """End its kernel and forget it."""
        await ask(self._transport, "DELETE", f"{self._path}/contexts/{encode_path(context_id)}")


async def execute_once(
    transport: Transport,
    code: str,
    files: Mapping[str, bytes] | None = None,
    *,
    language: str | None = None,
    outputs: tuple[str, ...] = (),
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    template: str | None = None,
    keep: Literal["nothing", "io"] = "nothing",
    source: Mapping[str, str] | None = None,
    again: str | None = None,
) -> models.OnceAnswer:
    given = {
        "language": language,
        "timeout_s": timeout_s,
        "template": template,
        "again": again,
    }
    payload: dict[str, Any] = {
        "code": code,
        "files": {name: base64.b64encode(content).decode() for name, content in (files or {}).items()},
        "outputs": list(outputs),
        "env": dict(env or {}),
        "keep": keep,
        "source": dict(source or {}),
        **{name: value for name, value in given.items() if value is not None},
    }
    return read_answer(models.OnceAnswer, (await ask(transport, "POST", "/v1/once", payload=payload)).body)


def _cell_payload(
    code: str,
    language: str | None,
    context: str | None,
    timeout_s: float | None,
    queue_s: float | None,
    env: Mapping[str, str] | None,
    inline_bytes: int | None,
) -> dict[str, Any]:
    given = {
        "language": language,
        "context_id": context,
        "timeout_s": timeout_s,
        "queue_s": queue_s,
        "inline_bytes": inline_bytes,
    }
    return {"code": code, "env": dict(env or {}), **{name: one for name, one in given.items() if one is not None}}


def _cell_outcome(content: dict[str, Any]) -> models.CellOutcome:
    result = read_part(models.ToolResult, content)
    if result.error is not None:
        raise from_wire(result.error)
    outcome = read_part(models.CellOutcome, result.value)
    outcome._result = result
    return outcome


def _cell_event(content: dict[str, Any]) -> models.CellEvent | models.CellOutcome:
    kind = content.get("event")
    if kind == "tool_result":
        return _cell_outcome(content["result"])
    if isinstance(error := content.get("error"), dict) and kind == "error":
        raise from_wire(error)
    if kind == "begun":
        return read_part(models.CellBegun, content)
    if kind in ("stdout", "stderr"):
        return read_part(models.CellText, content)
    if kind == "result":
        return read_part(models.CellResult, content)
    if kind == "error":
        return read_part(models.CellError, content)
    if kind == "ended":
        return read_part(models.CellEnded, content)
    raise unknown_answer("an event without a meaning here")
