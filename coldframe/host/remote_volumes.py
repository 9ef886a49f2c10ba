"""Volumes as the unprivileged server has them: through the daemon, files in pieces, none of them held whole."""

from collections.abc import AsyncIterable
from typing import Any, TypeVar

from coldframe.contract.files import Done, MakeDirectory, RemovePath, Request, WriteAnswer, WriteFile
from coldframe.contract.model import Model
from coldframe.contract.volume import VolumeUsage
from coldframe.host.box import answer_model, parse_answer
from coldframe.host.link import Link, LinkLost
from coldframe.host.remote_snapshots import answered, unreachable

A = TypeVar("A", bound=Model)


class RemoteVolumes:
    """Implements Volumes over the link to the daemon."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def _ask(self, verb: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
        try:
            return await self._link.request({"verb": verb, **fields})
        except LinkLost as error:
            raise unreachable() from error

    async def create(self, volume_id: str, size_mib: int) -> None:
        await self._ask("create_volume", volume_id=volume_id, size_mib=size_mib)

    async def remove(self, volume_id: str) -> None:
        await self._ask("remove_volume", volume_id=volume_id)

    async def usage(self, volume_id: str, size_mib: int) -> VolumeUsage:
        answer, _ = await self._ask("volume_usage", volume_id=volume_id, size_mib=size_mib)
        return VolumeUsage.model_validate(answer)

    async def ask(self, volume_id: str, request: Request[A]) -> A:
        fields = request.model_dump(mode="json", exclude={"content"})
        answer, body = await self._ask("ask_volume", volume_id=volume_id, request=fields)
        return parse_answer(answer_model(type(request)), answer, body)

    async def write(
        self, volume_id: str, request: WriteFile, content: AsyncIterable[bytes], *, size_mib: int
    ) -> WriteAnswer:
        fields = request.model_dump(mode="json", exclude={"content"})
        asked = {"verb": "write_volume", "volume_id": volume_id, "request": fields, "size_mib": size_mib}
        try:
            async with self._link.connection() as connection:
                await connection.send(asked)
                answer = await answered(connection, content)
        except LinkLost as error:
            raise unreachable() from error
        return WriteAnswer.model_validate(answer)

    async def remove_path(self, volume_id: str, request: RemovePath) -> Done:
        answer, _ = await self._ask("remove_from_volume", volume_id=volume_id, request=request.model_dump(mode="json"))
        return Done.model_validate(answer)

    async def make_directory(self, volume_id: str, request: MakeDirectory, *, size_mib: int) -> Done:
        fields = request.model_dump(mode="json")
        answer, _ = await self._ask("make_in_volume", volume_id=volume_id, request=fields, size_mib=size_mib)
        return Done.model_validate(answer)
