"""The verbs of the daemon that are about snapshots, and the two that carry archives in pieces."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from pydantic import TypeAdapter

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.files import DigestTree, FindUnsaved, ListDirectory, ReadFile, Request, SearchFiles
from coldframe.contract.git import ReadRepository
from coldframe.contract.packages import ListPackages
from coldframe.contract.paths import StatPath
from coldframe.contract.snapshot import Point, SnapshotContents, SnapshotWish, WorkspacePoint
from coldframe.guest.frames import PREFIX, BadFrame, decode_head, encode, lengths
from coldframe.host.snapshots import MachineSnapshots

MOST_PIECE_BYTES = 1024 * 1024
_POINT: TypeAdapter[Point] = TypeAdapter(Point)
REQUESTS: dict[str, type[Request[Any]]] = {
    "list_directory": ListDirectory,
    "stat_path": StatPath,
    "read_file": ReadFile,
    "search_files": SearchFiles,
    "find_unsaved": FindUnsaved,
    "list_packages": ListPackages,
    "digest_tree": DigestTree,
    "read_repository": ReadRepository,
}

Answer = dict[str, Any]


class DaemonSnapshots:
    """What the daemon asks of those of its machine."""

    def __init__(self, snapshots: MachineSnapshots) -> None:
        self._snapshots = snapshots

    def verbs(self) -> dict[str, Callable[[dict[str, Any], bytes], Awaitable[Answer]]]:
        return {
            "take_snapshot": self._take,
            "reset_workspace": self._reset,
            "snapshots": self._all,
            "remove_snapshot": self._remove,
            "changes": self._changes,
        }

    async def _take(self, head: dict[str, Any], _: bytes) -> Answer:
        workspace = WorkspacePoint.model_validate(head["workspace"])
        taken = await self._snapshots.take(workspace, SnapshotWish.model_validate(head["wish"]))
        return taken.model_dump(mode="json")

    async def _reset(self, head: dict[str, Any], _: bytes) -> Answer:
        workspace = WorkspacePoint.model_validate(head["workspace"])
        kept = await self._snapshots.reset(workspace, head["snapshot_id"], discard=bool(head["discard"]))
        return {"kept": None if kept is None else kept.model_dump(mode="json")}

    async def _all(self, _: dict[str, Any], __: bytes) -> Answer:
        return {"snapshots": [one.model_dump(mode="json") for one in await self._snapshots.all()]}

    async def _remove(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._snapshots.remove(head["snapshot_id"])
        return {}

    async def _changes(self, head: dict[str, Any], _: bytes) -> Answer:
        page = await self._snapshots.changes(
            _POINT.validate_python(head["before"]),
            _POINT.validate_python(head["after"]),
            after_path=head["after_path"],
            limit=int(head["limit"]),
        )
        return page.model_dump(mode="json")

    async def ask(self, head: dict[str, Any]) -> bytes:
        """The frame of an answer, with what it holds of a file as its body."""
        fields = head["request"]
        kind = REQUESTS.get(str(fields.get("verb")))
        if kind is None:
            raise InvalidArgument(f"files at rest do not answer `{str(fields.get('verb'))[:40]}`")
        answer = await self._snapshots.ask(_POINT.validate_python(head["point"]), kind.model_validate(fields))
        return encode({"answer": answer.model_dump(mode="json", exclude={"content"})}, getattr(answer, "content", b""))

    async def export(self, head: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Frames of pieces, then what they were."""
        async with aclosing(self._snapshots.export(_POINT.validate_python(head["point"]))) as parts:
            async for part in parts:
                if isinstance(part, SnapshotContents):
                    writer.write(encode({"answer": part.model_dump(mode="json")}))
                else:
                    writer.write(encode({"piece": True}, part))
                    await writer.drain()

    async def take_in(self, head: dict[str, Any], pieces: "Pieces") -> Answer:
        facts, contents = await self._snapshots.take_in(
            pieces,
            SnapshotWish.model_validate(head["wish"]),
            most_bytes=int(head["most_bytes"]),
            most_files=int(head["most_files"]),
            expected=head["expected"],
        )
        return {"facts": facts.model_dump(mode="json"), "contents": contents.model_dump(mode="json")}


class Pieces:
    """Of an archive, which follow a request."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._ended = False

    def __aiter__(self) -> "Pieces":
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        try:
            head, body = await self._next()
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("whoever sent the archive has left") from error
        if not head.get("piece"):
            self._ended = True
            raise StopAsyncIteration
        return body

    async def _next(self) -> tuple[dict[str, Any], bytes]:
        head_bytes, body_bytes = lengths(await self._reader.readexactly(PREFIX.size))
        if head_bytes > MOST_PIECE_BYTES or body_bytes > MOST_PIECE_BYTES:
            raise BadFrame("a piece over the cap")
        head = decode_head(await self._reader.readexactly(head_bytes))
        return head, await self._reader.readexactly(body_bytes)

    async def drop_rest(self) -> None:
        """What is on its way still: whoever sends it would else not read what was answered."""
        async for _ in self:
            pass
