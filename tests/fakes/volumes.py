"""Volumes of the fake: plain directories."""

import os
import shutil
from collections.abc import AsyncIterable, Callable
from typing import TypeVar

from coldframe.contract.errors import NotFound
from coldframe.contract.files import Done, MakeDirectory, RemovePath, Request, WriteAnswer, WriteFile
from coldframe.contract.model import Model
from coldframe.contract.paths import StatPath
from coldframe.contract.volume import VolumeUsage
from tests.fakes.files import FILE_VERBS, FakeFiles
from tests.fakes.paths import HOME, ask_path

A = TypeVar("A", bound=Model)


class FakeVolumes:
    """`Volumes` over `<root>/volumes/`."""

    def __init__(self, root: str, check_reachable: Callable[[], None]) -> None:
        self._root = root
        self._check_reachable = check_reachable

    def path(self, volume_id: str) -> str:
        self._check_reachable()
        return os.path.join(self._root, "volumes", volume_id)

    def _there(self, volume_id: str) -> str:
        path = self.path(volume_id)
        if not os.path.isdir(path):
            raise NotFound("there is no such volume")
        return path

    async def create(self, volume_id: str, size_mib: int) -> None:
        os.makedirs(self.path(volume_id), exist_ok=True)

    async def remove(self, volume_id: str) -> None:
        shutil.rmtree(self.path(volume_id), ignore_errors=True)

    async def usage(self, volume_id: str, size_mib: int) -> VolumeUsage:
        files = [os.path.join(place, name) for place, _, names in os.walk(self._there(volume_id)) for name in names]
        return VolumeUsage(bytes=sum(map(os.path.getsize, files)), files=len(files), hard=False)

    async def ask(self, volume_id: str, request: Request[A]) -> A:
        if isinstance(request, StatPath):
            found: A = ask_path(self._there(volume_id), request.model_copy(update={"path": f"{HOME}/{request.path}"}))
            return found
        answer: A = FILE_VERBS[type(request)](FakeFiles(self._there(volume_id)), request)
        return answer

    async def write(
        self, volume_id: str, request: WriteFile, content: AsyncIterable[bytes], *, size_mib: int
    ) -> WriteAnswer:
        return FakeFiles(self._there(volume_id)).write(request, b"".join([part async for part in content]))

    async def remove_path(self, volume_id: str, request: RemovePath) -> Done:
        return FakeFiles(self._there(volume_id)).remove(request)

    async def make_directory(self, volume_id: str, request: MakeDirectory, *, size_mib: int) -> Done:
        os.makedirs(os.path.join(self._there(volume_id), request.path), exist_ok=True)
        return Done()
