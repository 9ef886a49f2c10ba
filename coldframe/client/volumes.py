"""Volumes of an installation: durable directories with a life of their own, and their files at rest."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, TypeAlias

from coldframe.client import models
from coldframe.client.replies import JsonObject, read_answer, read_answers, read_object
from coldframe.client.transfers import Content
from coldframe.client.transport import Transport, ask, ask_stream, encode_path, raise_for

VolumeItems: TypeAlias = "list[models.VolumeInfo]"


class Volumes:
    """A sandbox has one by `volumes` of its spec."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, name: str, *, size_mib: int | None = None, label: str | None = None) -> models.VolumeInfo:
        """Make one, empty. *size_mib* is the most that its files may take, *label* that of what is to be in it.

        Raises:
            Conflict: there is one of that name.
        """
        payload = {"name": name, "size_mib": size_mib, "label": label}
        given = {key: value for key, value in payload.items() if value is not None}
        reply = await ask(self._transport, "POST", "/v1/volumes", payload=given)
        return read_answer(models.VolumeInfo, reply.body)

    async def list(self) -> VolumeItems:
        """Those that the caller may see, by name, with who has them."""
        return read_answers(models.VolumeInfo, (await ask(self._transport, "GET", "/v1/volumes")).body)

    async def get(self, name: str) -> models.VolumeInfo:
        """One of them, with how full it is."""
        return read_answer(models.VolumeInfo, (await ask(self._transport, "GET", _path(name))).body)

    async def remove(self, name: str) -> None:
        """Remove it with all its files, for good.

        Raises:
            VolumeBusy: a sandbox has it, or is to have it when it starts again; `facts["holders"]` tells which.
        """
        await ask(self._transport, "DELETE", _path(name))

    async def grant(self, name: str, agent_id: str, mode: Literal["ro", "rw"] = "ro") -> models.VolumeInfo:
        """Let sandboxes of an agent have it, whoever makes them: `background` for temporary ones, `*` for all."""
        payload = {"agent_id": agent_id, "mode": mode}
        reply = await ask(self._transport, "POST", f"{_path(name)}/grants", payload=payload, repeatable=True)
        return read_answer(models.VolumeInfo, reply.body)

    async def revoke(self, name: str, agent_id: str) -> models.VolumeInfo:
        """Take that back. Sandboxes that have the volume keep it until they stop."""
        path = f"{_path(name)}/grants/{encode_path(agent_id)}"
        return read_answer(models.VolumeInfo, (await ask(self._transport, "DELETE", path, repeatable=True)).body)

    async def list_files(self, name: str, path: str = "", *, recursive: bool = False) -> models.VolumeListing:
        """What is in it, whether a sandbox has it or not. Nothing is started."""
        query = {"path": path, "recursive": recursive}
        reply = await ask(self._transport, "GET", f"{_path(name)}/files", query=query)
        return read_answer(models.VolumeListing, reply.body)

    async def download(self, name: str, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file.

        Raises:
            HostUnreachable: the file changed meanwhile or the connection broke; what came so far is not the whole.
        """
        stream = await ask_stream(self._transport, "GET", f"{_path(name)}/files/{encode_path(path)}")
        async with aclosing(stream.parts()) as parts:
            async for part in parts:
                yield part

    async def upload(self, name: str, path: str, content: Content, *, label: str | None = None) -> JsonObject:
        """Replace a file by *content*, streamed, while no sandbox can write to the volume. A broken upload changes nothing.
        The volume is labelled no lower than *label* from then on.

        Raises:
            VolumeBusy: a sandbox can write to it now.
        """
        reply = await self._transport.request(
            "PUT",
            f"{_path(name)}/files/{encode_path(path)}",
            query={"label": label},
            body=content.encode() if isinstance(content, str) else content,
        )
        return read_object(raise_for(reply).body)

    async def remove_file(self, name: str, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link, or a directory with all that is in it."""
        where = f"{_path(name)}/files/{encode_path(path)}"
        await ask(self._transport, "DELETE", where, query={"recursive": recursive})


def _path(name: str) -> str:
    return f"/v1/volumes/{encode_path(name)}"
