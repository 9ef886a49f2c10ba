"""Builds of an installation: commands on a workspace, with what went in, all they printed, and what came out."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, TypeAlias

from coldframe.client import models
from coldframe.client.commands import WAIT_S
from coldframe.client.replies import read_answer, read_answers, read_part
from coldframe.client.transport import Transport, ask, encode_path

WorkspaceBuildItems: TypeAlias = "list[models.BuildSummary]"


class Builds:
    """Of every workspace that the caller may see."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def start(
        self,
        sandbox_id: str,
        phases: Sequence[str | Mapping[str, Any] | models.PipelineStep],
        *,
        artifacts: Sequence[str] = (),
        name: str = "",
        inputs_kept_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> models.Build:
        """Take in the files as they are, run *phases* on them one after the other, and return at once. Whoever leaves ends nothing.

        A phase is a line for bash, or `{"name": "test", "command": "pytest", "cwd": "", "timeout_s": 600}`, of which all but
        the first two may be left out. *artifacts* are patterns of files that it shall make.

        Raises:
            WrongState: the sandbox does not run.
        """
        steps = [
            {"name": f"phase-{n}", "command": one} if isinstance(one, str) else one for n, one in enumerate(phases, 1)
        ]
        spec = models.BuildSpec.model_validate(
            {"name": name, "phases": steps, "artifacts": list(artifacts), "inputs_kept_s": inputs_kept_s}
        )
        reply = await ask(
            self._transport,
            "POST",
            f"/v1/sandboxes/{encode_path(sandbox_id)}/builds",
            payload=spec.model_dump(mode="json"),
            headers={"Idempotency-Key": idempotency_key or secrets.token_hex(16)},  # asked again, it is the same one
            repeatable=True,
        )
        return read_answer(models.Build, reply.body)

    async def list(
        self,
        *,
        sandbox_id: str | None = None,
        agent_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> WorkspaceBuildItems:
        """Newest first, those of ended sandboxes too; *after* a build, the older ones."""
        query = {"sandbox_id": sandbox_id, "agent_id": agent_id, "after": after, "limit": limit}
        return read_answers(models.BuildSummary, (await ask(self._transport, "GET", "/v1/builds", query=query)).body)

    async def get(self, build_id: str) -> models.Build:
        return read_answer(models.Build, (await ask(self._transport, "GET", _build_path(build_id))).body)

    async def wait(self, build_id: str, timeout_s: float | None = None) -> models.Build:
        """Return when it is over, or how it stands after *timeout_s*."""
        left = math.inf if timeout_s is None else timeout_s
        while True:
            wait_s = max(0.0, min(left, WAIT_S))
            reply = await ask(self._transport, "GET", _build_path(build_id), query={"wait_s": wait_s})
            build = read_answer(models.Build, reply.body)
            left -= wait_s
            if build.state != "running" or left <= 0:
                return build

    async def cancel(self, build_id: str) -> models.Build:
        """Start no further phase, and end the one that runs."""
        reply = await ask(self._transport, "POST", f"{_build_path(build_id)}/cancel", repeatable=True)
        return read_answer(models.Build, reply.body)

    async def rebuild(self, build_id: str, *, agent_id: str | None = None, keep_sandbox: bool = False) -> models.Build:
        """Make it again in a new sandbox, from what went into it and nothing else; answers when that has begun.

        Raises:
            InputMissing: `facts["input"]` says what is not to be had any more.
        """
        payload = {"agent_id": agent_id, "keep_sandbox": keep_sandbox}
        reply = await ask(self._transport, "POST", f"{_build_path(build_id)}/rebuild", payload=payload)
        return read_answer(models.Build, reply.body)

    async def compare(self, before: str, after: str) -> models.BuildComparison:
        """In what two builds differ: commands, template, input, dependencies, output."""
        reply = await ask(self._transport, "GET", f"{_build_path(before)}/compare/{encode_path(after)}")
        return read_answer(models.BuildComparison, reply.body)

    async def log(
        self, build_id: str, *, phase: str | None = None, offset: int = 0, length: int | None = None
    ) -> models.BuildLog:
        """Bytes of its log, at most 16 MiB from *offset*."""
        query = {"phase": phase, "offset": offset, "length": length}
        reply = await ask(self._transport, "GET", f"{_build_path(build_id)}/log", query=query)
        headers = reply.headers
        window = {
            "build_id": build_id,
            "offset": headers.get("coldframe-offset"),
            "data": reply.body,
            "next_offset": headers.get("coldframe-next-offset"),
            "total_bytes": headers.get("coldframe-total-bytes"),
            "ended": headers.get("coldframe-ended"),
            "label": headers.get("coldframe-label"),
        }
        return read_part(models.BuildLog, window)

    async def log_parts(self, build_id: str, *, phase: str | None = None) -> AsyncGenerator[bytes, None]:
        """The whole log as it is now, in parts."""
        offset: int | None = 0
        while offset is not None:
            window = await self.log(build_id, phase=phase, offset=offset)
            if window.data:
                yield window.data
            offset = window.next_offset if window.data else None


def _build_path(build_id: str) -> str:
    return f"/v1/builds/{encode_path(build_id)}"
