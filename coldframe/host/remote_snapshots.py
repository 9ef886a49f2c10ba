"""Snapshots as the unprivileged server has them: through the daemon, archives in pieces, none of them held whole."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from coldframe.contract.errors import HostUnreachable
from coldframe.contract.files import Request
from coldframe.contract.model import Model
from coldframe.contract.snapshot import (
    ChangesPage,
    Point,
    SnapshotContents,
    SnapshotFacts,
    SnapshotWish,
    WorkspacePoint,
)
from coldframe.host.box import answer_model, parse_answer
from coldframe.host.link import Connection, Link, LinkLost

A = TypeVar("A", bound=Model)
PIECE_BYTES = 256 * 1024


class RemoteSnapshots:
    """Implements Snapshots over the link to the daemon."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def _ask(self, verb: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
        try:
            return await self._link.request({"verb": verb, **fields})
        except LinkLost as error:
            raise unreachable() from error

    async def take(self, workspace: WorkspacePoint, wish: SnapshotWish) -> SnapshotFacts:
        answer, _ = await self._ask("take_snapshot", workspace=_wire(workspace), wish=_wire(wish))
        return SnapshotFacts.model_validate(answer)

    async def reset(
        self, workspace: WorkspacePoint, snapshot_id: str | None, *, discard: bool = False
    ) -> SnapshotFacts | None:
        answer, _ = await self._ask(
            "reset_workspace", workspace=_wire(workspace), snapshot_id=snapshot_id, discard=discard
        )
        kept = answer["kept"]
        return None if kept is None else SnapshotFacts.model_validate(kept)

    async def all(self) -> list[SnapshotFacts]:
        answer, _ = await self._ask("snapshots")
        return [SnapshotFacts.model_validate(one) for one in answer["snapshots"]]

    async def remove(self, snapshot_id: str) -> None:
        await self._ask("remove_snapshot", snapshot_id=snapshot_id)

    async def changes(self, before: Point, after: Point, *, after_path: str | None = None, limit: int) -> ChangesPage:
        answer, _ = await self._ask(
            "changes", before=_wire(before), after=_wire(after), after_path=after_path, limit=limit
        )
        return ChangesPage.model_validate(answer)

    async def ask(self, point: Point, request: Request[A]) -> A:
        fields = request.model_dump(mode="json", exclude={"content"})
        answer, body = await self._ask("ask_at_rest", point=_wire(point), request=fields)
        return parse_answer(answer_model(type(request)), answer, body)

    async def export(self, point: Point) -> AsyncGenerator[bytes | SnapshotContents, None]:
        async with self._connection() as connection:
            await connection.send({"verb": "export", "point": _wire(point)})
            while True:
                head, piece = await connection.receive()
                if "answer" in head:
                    break
                yield piece
        yield SnapshotContents.model_validate(head["answer"])

    async def take_in(
        self,
        content: AsyncIterable[bytes],
        wish: SnapshotWish,
        *,
        most_bytes: int,
        most_files: int,
        expected: str | None = None,
    ) -> tuple[SnapshotFacts, SnapshotContents]:
        async with self._connection() as connection:
            caps = {"most_bytes": most_bytes, "most_files": most_files}
            await connection.send({"verb": "take_in", "wish": _wire(wish), "expected": expected, **caps})
            answer = await answered(connection, content)
        return SnapshotFacts.model_validate(answer["facts"]), SnapshotContents.model_validate(answer["contents"])

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            async with self._link.connection() as connection:
                yield connection
        except LinkLost as error:
            raise unreachable() from error


async def answered(connection: Connection, content: AsyncIterable[bytes]) -> dict[str, Any]:
    """What is answered to a request that *content* belongs to, which is sent in pieces."""
    sending = asyncio.ensure_future(_send_pieces(connection, content))
    receiving = asyncio.ensure_future(connection.receive())
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and not receiving.done():
            with suppress(LinkLost):  # a refusal that came before that is told, or else that it is lost
                await sending  # what went wrong with the content is what the caller is told
        head, _ = await receiving  # also before the end: a refusal
        if not sending.done():
            raise unreachable()
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
    answer: dict[str, Any] = head["answer"]
    return answer


async def _send_pieces(connection: Connection, content: AsyncIterable[bytes]) -> None:
    async for part in content:
        whole = memoryview(part)
        for start in range(0, len(part), PIECE_BYTES):
            await connection.send({"piece": True}, whole[start : start + PIECE_BYTES])
    await connection.send({"piece": False})


def _wire(model: Model) -> dict[str, Any]:
    return model.model_dump(mode="json")


def unreachable() -> HostUnreachable:
    return HostUnreachable("the host daemon does not answer", hint="start it with `coldframe up`")
