"""Pipelines of a sandbox: named steps that run one after the other, and again where they did not succeed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coldframe.client import models
from coldframe.client.commands import WAIT_S
from coldframe.client.replies import read_answer, read_answers
from coldframe.client.transport import Transport, ask, encode_path


class Pipelines:
    """Those of one sandbox."""

    _transport: Transport
    _path: str

    def pipeline(self, pipeline_id: str) -> Pipeline:
        """The handle on one that was started, by whomever and whenever. Nothing is asked yet."""
        return Pipeline(self._transport, self._path, pipeline_id)

    async def pipelines(self) -> list[models.PipelineInfo]:
        """The newest hundred of this sandbox, oldest first."""
        return read_answers(models.PipelineInfo, (await ask(self._transport, "GET", f"{self._path}/pipelines")).body)

    async def start_pipeline(
        self,
        steps: Sequence[Mapping[str, Any] | models.PipelineStep],
        *,
        name: str = "",
        on_failure: Literal["stop", "continue"] = "stop",
        idempotency_key: str | None = None,
    ) -> Pipeline:
        """Run *steps* one after the other and return at once; each is a command of its own. Whoever leaves ends nothing.

        A step is `{"name": "build", "command": "make", "needs": [], "inputs": ["Makefile"], "timeout_s": 600}`, of which
        all but the first two may be left out.
        """
        spec = models.PipelineSpec.model_validate({"name": name, "steps": list(steps), "on_failure": on_failure})
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}  # asked again, it is the same one
        reply = await ask(
            self._transport,
            "POST",
            f"{self._path}/pipelines",
            payload=spec.model_dump(mode="json"),
            headers=headers,
            repeatable=True,
        )
        return self.pipeline(read_answer(models.PipelineInfo, reply.body).pipeline_id)


class Pipeline:
    """One pipeline; it is looked up anew by each question."""

    def __init__(self, transport: Transport, path: str, pipeline_id: str) -> None:
        self.id = pipeline_id
        self._transport = transport
        self._path = f"{path}/pipelines/{encode_path(pipeline_id)}"

    async def info(self) -> models.PipelineInfo:
        return read_answer(models.PipelineInfo, (await ask(self._transport, "GET", self._path)).body)

    async def wait(self, timeout_s: float | None = None) -> models.PipelineInfo:
        """Return when it is over, or how it stands after *timeout_s*."""
        left = math.inf if timeout_s is None else timeout_s
        while True:
            wait_s = max(0.0, min(left, WAIT_S))
            reply = await ask(self._transport, "GET", self._path, query={"wait_s": wait_s})
            info = read_answer(models.PipelineInfo, reply.body)
            left -= wait_s
            if info.state != "running" or left <= 0:
                return info

    async def rerun(self, *steps: str, changed: Literal["refuse", "rerun", "keep"] = "refuse") -> models.PipelineInfo:
        """Run again what did not succeed, or *steps*. What succeeded stays, unless *changed* says otherwise.

        Raises:
            Conflict: inputs of steps that succeeded are others now; `changed` of its facts names these.
            WrongState: it runs, or everything succeeded.
        """
        payload = {"steps": steps, "changed": changed}
        reply = await ask(self._transport, "POST", f"{self._path}/rerun", payload=payload)
        return read_answer(models.PipelineInfo, reply.body)

    async def cancel(self) -> models.PipelineInfo:
        """Start no further step, and end the one that runs."""
        return read_answer(models.PipelineInfo, (await ask(self._transport, "POST", f"{self._path}/cancel")).body)
