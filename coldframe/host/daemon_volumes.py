"""The verbs of the daemon that are about volumes, and the one that carries a file in pieces."""

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.files import MakeDirectory, RemovePath, WriteFile
from coldframe.guest.frames import encode
from coldframe.host.daemon_snapshots import REQUESTS
from coldframe.host.volumes import MachineVolumes

Answer = dict[str, Any]


class DaemonVolumes:
    """What the daemon asks of those of its machine."""

    def __init__(self, volumes: MachineVolumes) -> None:
        self._volumes = volumes

    def verbs(self) -> dict[str, Callable[[dict[str, Any], bytes], Awaitable[Any]]]:
        return {
            "create_volume": self._create,
            "remove_volume": self._remove,
            "volume_usage": self._usage,
            "ask_volume": self._ask,
            "remove_from_volume": self._remove_file,
            "make_in_volume": self._make_directory,
        }

    async def _create(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._volumes.create(head["volume_id"], int(head["size_mib"]))
        return {}

    async def _remove(self, head: dict[str, Any], _: bytes) -> Answer:
        await self._volumes.remove(head["volume_id"])
        return {}

    async def _usage(self, head: dict[str, Any], _: bytes) -> Answer:
        return (await self._volumes.usage(head["volume_id"], int(head["size_mib"]))).model_dump(mode="json")

    async def _ask(self, head: dict[str, Any], _: bytes) -> bytes:
        fields = head["request"]
        kind = REQUESTS.get(str(fields.get("verb")))
        if kind is None:
            raise InvalidArgument(f"files at rest do not answer `{str(fields.get('verb'))[:40]}`")
        answer = await self._volumes.ask(head["volume_id"], kind.model_validate(fields))
        return encode({"answer": answer.model_dump(mode="json", exclude={"content"})}, getattr(answer, "content", b""))

    async def _remove_file(self, head: dict[str, Any], _: bytes) -> Answer:
        request = RemovePath.model_validate(head["request"])
        return (await self._volumes.remove_path(head["volume_id"], request)).model_dump(mode="json")

    async def _make_directory(self, head: dict[str, Any], _: bytes) -> Answer:
        request = MakeDirectory.model_validate(head["request"])
        size_mib = int(head["size_mib"])
        done = await self._volumes.make_directory(head["volume_id"], request, size_mib=size_mib)
        return done.model_dump(mode="json")

    async def write(self, head: dict[str, Any], pieces: AsyncIterable[bytes]) -> Answer:
        request = WriteFile.model_validate(head["request"])
        size_mib = int(head["size_mib"])
        return (await self._volumes.write(head["volume_id"], request, pieces, size_mib=size_mib)).model_dump(
            mode="json"
        )
