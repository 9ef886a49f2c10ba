"""Templates of an installation: built of recipes, followed, looked at, marked, withdrawn, removed."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, Mapping
from typing import TypeAlias

from coldframe.client import models
from coldframe.client.commands import WAIT_S
from coldframe.client.gathered import Gathered
from coldframe.client.replies import read_answer, read_answers
from coldframe.client.transport import Transport, ask, encode_path, raise_for

TemplateItems: TypeAlias = "list[models.TemplateRecord]"
BuildItems: TypeAlias = "list[models.BuildInfo]"
TagItems: TypeAlias = "list[models.TemplateTag]"


class Templates:
    """Those of one installation. One is named as `name`, the newest of that name, `name:version` or `sha256:DIGEST`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, *, name: str | None = None) -> TemplateItems:
        """All, or those of a name, newest first."""
        reply = await ask(self._transport, "GET", "/v1/templates", query={"name": name})
        return read_answers(models.TemplateRecord, reply.body)

    async def get(self, template: str) -> models.TemplateDetails:
        """One with its packages, and the recipe that builds just that again."""
        return read_answer(models.TemplateDetails, (await ask(self._transport, "GET", _template_path(template))).body)

    async def build(
        self,
        recipe: Gathered | models.Recipe | Mapping[str, object],
        *,
        no_cache: bool = False,
        idempotency_key: str | None = None,
    ) -> TemplateBuild:
        """Upload what a recipe needs and is not there yet, begin to build it, and return at once.

        A recipe from this machine's disk is read with `coldframe.client.recipes`.
        """
        gathered = _gathered_of(recipe)
        missing = await self.missing_inputs(*gathered.recipe.inputs)
        for digest in missing:
            if digest in gathered.sources:  # the server names what is not
                await self.upload_input(digest, gathered.sources[digest])
        reply = await ask(
            self._transport,
            "POST",
            "/v1/template-builds",
            payload={"recipe": gathered.recipe.model_dump(mode="json"), "no_cache": no_cache},
            headers={"Idempotency-Key": idempotency_key or os.urandom(16).hex()},  # asked again, it is the same one
            repeatable=True,
        )
        return self.get_build(read_answer(models.BuildInfo, reply.body).build_id)

    async def missing_inputs(self, *digests: str) -> tuple[str, ...]:
        """Which of these bytes are not on the server's machine."""
        payload = {"sha256": digests}
        reply = await ask(self._transport, "POST", "/v1/template-inputs/missing", payload=payload, repeatable=True)
        return read_answer(models.MissingInputs, reply.body).sha256

    async def upload_input(self, sha256: str, source: str | bytes) -> None:
        """Put bytes, or the file at a path, where builds find them. Raises InvalidArgument: they have another digest."""
        path = f"/v1/template-inputs/{encode_path(sha256)}"
        raise_for(await self._transport.request("PUT", path, body=_input_parts(source)))

    def get_build(self, build_id: str) -> TemplateBuild:
        """The handle on a build, whoever began it, and whenever. Nothing is asked yet."""
        return TemplateBuild(self._transport, build_id)

    async def builds(self, *, name: str | None = None) -> BuildItems:
        """The newest hundred builds, newest first."""
        reply = await ask(self._transport, "GET", "/v1/template-builds", query={"name": name})
        return read_answers(models.BuildInfo, reply.body)

    async def verify(self, template: str) -> models.TemplateRecord:
        """Have all of it read. Raises TemplateChanged if it is not what was built."""
        reply = await ask(self._transport, "POST", f"{_template_path(template)}/verify")
        return read_answer(models.TemplateRecord, reply.body)

    async def mark(
        self, template: str, check: str, *, timeout_s: float = 300.0, network: str | None = None
    ) -> models.TemplateRecord:
        """Mark it as known good, if *check*, a line for bash, ends with 0 in a fresh sandbox of it.

        Raises TemplateCheckFailed: it did not; `stdout` and `stderr` are in its facts.
        """
        payload = {"check": check, "timeout_s": timeout_s, "network": network}
        reply = await ask(self._transport, "POST", f"{_template_path(template)}/mark", payload=payload)
        return read_answer(models.TemplateRecord, reply.body)

    async def withdraw(self, template: str, why: str) -> models.TemplateRecord:
        """Let nothing new start from it. Sandboxes that run on it go on, and are told."""
        reply = await ask(
            self._transport, "POST", f"{_template_path(template)}/withdraw", payload={"why": why}, repeatable=True
        )
        return read_answer(models.TemplateRecord, reply.body)

    async def tags(self, name: str) -> TagItems:
        """Names of versions that move, of one template."""
        reply = await ask(self._transport, "GET", f"{_template_path(name)}/tags")
        return read_answers(models.TemplateTag, reply.body)

    async def tag(self, template: str, *tags: str) -> TagItems:
        """Have *tags* stand for this version from now on. Raises Conflict: a version is called so."""
        payload = {"tags": tags}
        reply = await ask(self._transport, "POST", f"{_template_path(template)}/tags", payload=payload, repeatable=True)
        return read_answers(models.TemplateTag, reply.body)

    async def untag(self, name: str, *tags: str) -> TagItems:
        """Take tags away, and return those that are left."""
        payload = {"tags": tags}
        reply = await ask(self._transport, "POST", f"{_template_path(name)}/untag", payload=payload, repeatable=True)
        return read_answers(models.TemplateTag, reply.body)

    async def remove(self, template: str) -> None:
        """Forget one that nothing stands on; its version stays taken."""
        await ask(self._transport, "DELETE", _template_path(template), repeatable=True)


class TemplateBuild:
    """One build; it is looked up anew by each question."""

    def __init__(self, transport: Transport, build_id: str) -> None:
        self.id = build_id
        self._transport = transport
        self._path = f"/v1/template-builds/{encode_path(build_id)}"

    async def info(self) -> models.BuildInfo:
        return read_answer(models.BuildInfo, (await ask(self._transport, "GET", self._path)).body)

    async def wait(self, timeout_s: float | None = None) -> models.BuildInfo:
        """Return when it is over, or how it stands after *timeout_s*."""
        left = math.inf if timeout_s is None else timeout_s
        while True:
            wait_s = max(0.0, min(left, WAIT_S))
            reply = await ask(self._transport, "GET", self._path, query={"wait_s": wait_s})
            info = read_answer(models.BuildInfo, reply.body)
            left -= wait_s
            if info.state != "building" or left <= 0:
                return info

    async def log(self, *, after_seq: int = 0, limit: int | None = None, wait_s: float = 0) -> models.BuildLogPage:
        """Lines after *after_seq*, and how the build stood when they were read; with *wait_s*, as soon as there are some."""
        query = {"after_seq": after_seq, "limit": limit, "wait_s": wait_s}
        reply = await ask(self._transport, "GET", f"{self._path}/log", query=query)
        return read_answer(models.BuildLogPage, reply.body)

    async def follow(self, *, after_seq: int = 0) -> AsyncGenerator[models.BuildLogEntry, None]:
        """Lines after *after_seq* as they come, to the end of the build: each once, however often one begins anew."""
        while True:
            page = await self.log(after_seq=after_seq, wait_s=WAIT_S)
            for entry in page.entries:
                yield entry
                after_seq = entry.seq
            if page.build.state != "building" and after_seq >= page.build.last_seq:
                return

    async def cancel(self) -> models.BuildInfo:
        """End it; the steps that are whole are kept for the next build."""
        return read_answer(models.BuildInfo, (await ask(self._transport, "POST", f"{self._path}/cancel")).body)


def _template_path(template: str) -> str:
    return f"/v1/templates/{encode_path(template)}"


def _gathered_of(recipe: Gathered | models.Recipe | Mapping[str, object]) -> Gathered:
    if isinstance(recipe, Gathered):
        return recipe
    return Gathered(models.Recipe.model_validate(recipe) if isinstance(recipe, Mapping) else recipe, {})


async def _input_parts(source: str | bytes) -> AsyncGenerator[bytes, None]:
    from coldframe.client.recipes import read_parts

    for part in read_parts(source):
        yield part
