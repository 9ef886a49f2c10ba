"""The verbs of the daemon that are about templates, and the two that take long: a build, and what is put here for one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from coldframe.contract.errors import Internal
from coldframe.contract.ports import Templates
from coldframe.contract.snapshot import WorkspacePoint
from coldframe.contract.template import BuildEvent, BuildLine, BuildOrder, StepEnd
from coldframe.guest.frames import encode
from coldframe.host.daemon_snapshots import Pieces

Answer = dict[str, Any]


class DaemonTemplates:
    """What the daemon asks of those of its machine."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    def verbs(self) -> dict[str, Callable[[dict[str, Any], bytes], Awaitable[Answer]]]:
        return {
            "missing_inputs": self._missing,
            "reached_by_builds": self._reached,
            "templates": self._digests,
            "template": self._get,
            "begun_template": self._begun,
            "verify_template": self._verify,
            "remove_template": self._remove,
        }

    async def _missing(self, head: dict[str, Any], _: bytes) -> Answer:
        return {"missing": list(await self._templates.missing_inputs([str(one) for one in head["sha256"]]))}

    async def _reached(self, _: dict[str, Any], __: bytes) -> Answer:
        return {"boxes": list(await self._templates.reached())}

    async def _digests(self, _: dict[str, Any], __: bytes) -> Answer:
        return {"digests": sorted(await self._templates.digests())}

    async def _get(self, head: dict[str, Any], _: bytes) -> Answer:
        return (await self._templates.get(str(head["digest"]))).model_dump(mode="json")

    async def _begun(self, head: dict[str, Any], _: bytes) -> Answer:
        return {"digest": await self._templates.begun(WorkspacePoint.model_validate(head["workspace"]))}

    async def _verify(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._templates.verify(str(head["digest"]))
        return {}

    async def _remove(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._templates.remove(str(head["digest"]))
        return {}

    async def put(self, head: dict[str, Any], pieces: Pieces) -> Answer:
        size = await self._templates.put_input(str(head["sha256"]), pieces, most_bytes=int(head["most_bytes"]))
        return {"bytes": size}

    async def build(self, head: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Frames of lines and ends of steps as they come; returns the one with the template. Ends with the client's leaving.

        Raises ConnectionResetError: it has left.
        """
        order = BuildOrder.model_validate(head["order"])
        building = asyncio.ensure_future(self._pass_on(order, writer))
        leaving = asyncio.ensure_future(
            reader.read(1)
        )  # nothing is said here before the answer: it is told to have left
        try:
            await asyncio.wait({building, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not building.done():
                raise ConnectionResetError("whoever asked for the build has left")
        finally:
            for task in (building, leaving):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, Exception):
                        await task
        return building.result()

    async def _pass_on(self, order: BuildOrder, writer: asyncio.StreamWriter) -> bytes:
        answer = None
        events = cast("AsyncGenerator[BuildEvent, None]", self._templates.build(order))
        async with aclosing(events) as source:
            async for event in source:
                if isinstance(event, BuildLine):
                    writer.write(encode({"line": event.model_dump(mode="json")}))
                elif isinstance(event, StepEnd):
                    writer.write(encode({"step": event.model_dump(mode="json")}))
                else:
                    answer = event
                await writer.drain()
        if answer is None:
            raise Internal("the build ended without a template")
        return encode({"answer": answer.model_dump(mode="json")})
