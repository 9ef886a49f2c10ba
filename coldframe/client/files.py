"""Files anywhere in a sandbox, with the rights of one of its users: looked at, made, moved, removed and watched.

`Sandbox.read_file` and its like are for the workspace, also where nothing runs; these take any path, relative ones from the
workspace on, of a sandbox that runs.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Literal, Protocol

from coldframe.client import models
from coldframe.client.replies import answer_from, read_answer, read_object
from coldframe.client.transport import Transport, ask, ask_stream, encode_path
from coldframe.contract.errors import from_wire

BoxUser = Literal["user", "root"]


class Calls(Protocol):
    async def call(self, tool: str, arguments: Mapping[str, Any]) -> models.ToolResult: ...


class Files:
    """Those of one sandbox. *user* `root` is there in a sandbox with a system of its own."""

    def __init__(self, calls: Calls, transport: Transport, path: str) -> None:
        self._calls = calls
        self._transport = transport
        self._path = path

    async def _value(self, tool: str, **arguments: object) -> models.ToolResult:
        given = {name: value for name, value in arguments.items() if value is not None}
        result = await self._calls.call(tool, given)
        if result.error is not None:
            raise from_wire(result.error)
        return result

    async def stat(self, path: str, *, user: BoxUser = "user") -> models.PathEntry:
        """All that is known of a path; of a link, of itself. Raises FileMissing."""
        return answer_from(await self._value("stat_path", path=path, user=user), models.PathEntry)

    async def list(
        self,
        path: str = "",
        *,
        depth: int = 1,
        max_entries: int | None = None,
        after: str | None = None,
        user: BoxUser = "user",
    ) -> models.PathListing:
        """A directory, and with *depth* what is below it."""
        result = await self._value(
            "list_path",
            path=path,
            recursive=depth > 1,
            max_depth=depth if depth > 1 else None,
            max_entries=max_entries,
            after=after,
            user=user,
        )
        return answer_from(result, models.PathListing)

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, user: BoxUser = "user"
    ) -> models.FileContent:
        """A file, or *length* bytes of it; `data` of the answer gives bytes in any case."""
        result = await self._value("read_path", path=path, offset=offset, length=length, user=user)
        return answer_from(result, models.FileContent)

    async def write(
        self,
        path: str,
        content: str | bytes,
        *,
        mode: int | None = None,
        create_only: bool = False,
        metadata: Mapping[str, str] | None = None,
        user: BoxUser = "user",
    ) -> models.Written:
        """Write or replace a file atomically. *metadata* is noted of it, in place of what was noted of one before."""
        result = await self._value(
            "write_path",
            path=path,
            content=content if isinstance(content, str) else None,
            content_base64=base64.b64encode(content).decode() if isinstance(content, bytes) else None,
            mode=mode,
            create_only=create_only,
            metadata=dict(metadata) if metadata else None,
            user=user,
        )
        return answer_from(result, models.Written)

    async def make_directory(self, path: str, *, user: BoxUser = "user") -> models.MadeDirectory:
        """With its parents; `created` of the answer is False if it was there already."""
        return answer_from(await self._value("make_directory", path=path, user=user), models.MadeDirectory)

    async def move(self, path: str, target: str, *, replace: bool = True, user: BoxUser = "user") -> models.PathEntry:
        """Rename, or move to another place, whose parents are made. Without *replace* a Conflict if something is there."""
        result = await self._value("move_path", path=path, target=target, replace=replace, user=user)
        return answer_from(result, models.MovedPath).entry

    async def remove(self, path: str, *, recursive: bool = False, user: BoxUser = "user") -> None:
        """A file or link, or a directory with all that is in it. Raises FileMissing, IsDirectory."""
        await self._value("remove_path", path=path, recursive=recursive, user=user)

    async def watch(self, path: str = "", *, recursive: bool = False, with_info: bool = False) -> Watch:
        """Note from now on what happens in a directory, with *recursive* in all below."""
        result = await self._value("watch_path", path=path, recursive=recursive, with_info=with_info)
        return Watch(self._transport, f"{self._path}/watches/{encode_path(str(result.value['watch_id']))}")


class Watch:
    """What happens in a directory. It goes on until it is ended, or nobody has asked for ten minutes."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport = transport
        self._path = path

    async def read(self, *, wait_s: float = 0.0) -> models.WatchEvents:
        """What happened since the last answer; without anything yet, after at most *wait_s* (60) seconds."""
        reply = await ask(self._transport, "GET", self._path, query={"wait_s": wait_s})
        return read_answer(models.WatchEvents, reply.body)

    async def events(self) -> AsyncGenerator[models.WatchEvent, None]:
        """Yield what happens as it does, until the directory is gone. Leaving ends no watch.

        Raises:
            Conflict: something is missing, since more happened than is kept.
        """
        stream = await ask_stream(self._transport, "GET", f"{self._path}/events")
        async with aclosing(stream.lines()) as lines:
            async for line in lines:
                if line.startswith(b'{"event":"error"'):
                    raise from_wire(read_object(line)["error"])
                yield read_answer(models.WatchEvent, line)

    async def end(self) -> None:
        await ask(self._transport, "DELETE", self._path)
