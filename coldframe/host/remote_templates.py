"""Templates as the unprivileged server has them: through the daemon. A build lasts as long as its connection."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from coldframe.contract.snapshot import WorkspacePoint
from coldframe.contract.template import BuildEvent, BuildLine, BuildOrder, StepEnd, TemplateFacts
from coldframe.host.link import Connection, Link, LinkLost
from coldframe.host.remote_snapshots import answered, unreachable


class RemoteTemplates:
    """Implements Templates over the link to the daemon."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def _ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        try:
            return (await self._link.request({"verb": verb, **fields}))[0]
        except LinkLost as error:
            raise unreachable() from error

    async def missing_inputs(self, digests: Sequence[str]) -> tuple[str, ...]:
        return tuple((await self._ask("missing_inputs", sha256=list(digests)))["missing"])

    async def put_input(self, sha256: str, content: AsyncIterable[bytes], *, most_bytes: int) -> int:
        async with self._connection() as connection:
            await connection.send({"verb": "put_input", "sha256": sha256, "most_bytes": most_bytes})
            return int((await answered(connection, content))["bytes"])

    async def build(self, order: BuildOrder) -> AsyncGenerator[BuildEvent, None]:
        async with self._connection() as connection:  # which is closed if whoever asked leaves, and ends the build then
            await connection.send({"verb": "build_template", "order": order.model_dump(mode="json")})
            while True:
                head, _ = await connection.receive()
                if "line" in head:
                    yield BuildLine.model_validate(head["line"])
                elif "step" in head:
                    yield StepEnd.model_validate(head["step"])
                else:
                    break
        yield TemplateFacts.model_validate(head["answer"])

    async def reached(self) -> tuple[str, ...]:
        return tuple(str(one) for one in (await self._ask("reached_by_builds"))["boxes"])

    async def digests(self) -> set[str]:
        return {str(one) for one in (await self._ask("templates"))["digests"]}

    async def get(self, digest: str) -> TemplateFacts:
        return TemplateFacts.model_validate(await self._ask("template", digest=digest))

    async def begun(self, workspace: WorkspacePoint) -> str | None:
        digest = (await self._ask("begun_template", workspace=workspace.model_dump(mode="json")))["digest"]
        return None if digest is None else str(digest)

    async def verify(self, digest: str) -> None:
        await self._ask("verify_template", digest=digest)

    async def remove(self, digest: str) -> None:
        await self._ask("remove_template", digest=digest)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            async with self._link.connection() as connection:
                yield connection
        except LinkLost as error:
            raise unreachable() from error
