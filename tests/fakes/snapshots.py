"""Snapshots of the fake: whole copies of a plain directory."""

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import AsyncIterable, AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from coldframe.contract.errors import InvalidArgument, LimitReached, NotFound, SnapshotCorrupt, WrongState
from coldframe.contract.files import DigestTree, FindUnsaved, ListDirectory, ReadFile, Request, SearchFiles
from coldframe.contract.git import ReadRepository
from coldframe.contract.model import Model
from coldframe.contract.packages import ListPackages
from coldframe.contract.policy import Label
from coldframe.contract.snapshot import (
    Change,
    ChangesPage,
    Point,
    SnapshotContents,
    SnapshotFacts,
    SnapshotPoint,
    SnapshotWish,
    SystemPoint,
    WorkspacePoint,
)
from tests.fakes.files import FILE_VERBS, FakeFiles, system_of

A = TypeVar("A", bound=Model)
RECORD = ".exec_history"
PARTS = ("scratch", "integrations", "skills", RECORD)
LABEL = "coldframe.label"


class FakeSnapshots:
    """`Snapshots` over `<root>/snapshots/`. *in_use* says whether a box is on a workspace."""

    def __init__(self, root: str, in_use: Callable[[str], bool], check_reachable: Callable[[], None]) -> None:
        self._root = root
        self._in_use = in_use
        self._check_reachable = check_reachable
        self.facts: dict[str, SnapshotFacts] = {}
        self.meanwhile: Callable[[], object] = lambda: None
        """Called while one is taken."""

    def workspace(self, point: WorkspacePoint) -> str:
        if point.agent_id is not None:
            return os.path.join(self._root, "workspace", point.agent_id)
        return os.path.join(self._root, "background", point.session_id or "")

    def path(self, point: Point) -> str:
        self._check_reachable()
        if isinstance(point, SystemPoint):  # one is there if a test has made it
            if isinstance(point.of, SnapshotPoint):
                place = f"{self._kept(point.of.snapshot_id)}.system"
            else:
                assert point.of is not None
                place = system_of(self.workspace(point.of))
            if not os.path.isdir(place):
                raise NotFound("it has no system of its own")
            return place
        found = self.workspace(point) if isinstance(point, WorkspacePoint) else self._kept(point.snapshot_id)
        if not os.path.isdir(found):
            raise NotFound("there is no such workspace or snapshot")
        return found

    def _kept(self, snapshot_id: str) -> str:
        return os.path.join(self._root, "snapshots", snapshot_id)

    async def take(self, workspace: WorkspacePoint, wish: SnapshotWish) -> SnapshotFacts:
        source = self.path(workspace)
        self.meanwhile()
        return self._keep(source, workspace, wish, live=self._in_use(source))

    def _keep(
        self, source: str, workspace: WorkspacePoint | None, wish: SnapshotWish, *, live: bool = False
    ) -> SnapshotFacts:
        snapshot_id = os.urandom(8).hex()
        target = self._kept(snapshot_id)
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(RECORD))
        if os.path.isdir(system_of(source)):
            shutil.copytree(system_of(source), f"{target}.system", symlinks=True)
        sizes = [os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(target) for name in names]
        self.facts[snapshot_id] = SnapshotFacts(
            snapshot_id=snapshot_id,
            workspace=workspace,
            name=wish.name,
            label=wish.label,
            reason=wish.reason,
            created_at=datetime.now(UTC),
            expires_at=wish.expires_at,
            bytes=sum(sizes),
            files=len(sizes),
            own_bytes=sum(sizes),
            was_live=live,
            frozen_ms=0.5 if live else None,
        )
        return self.facts[snapshot_id]

    async def reset(
        self, workspace: WorkspacePoint, snapshot_id: str | None, *, discard: bool = False
    ) -> SnapshotFacts | None:
        target = self.path(workspace)
        source = None if snapshot_id is None else self.path(SnapshotPoint(snapshot_id=snapshot_id))
        if self._in_use(target):
            raise WrongState("a box is on the workspace")
        wish = SnapshotWish(
            label=Label.RESTRICTED, reason="discarded", expires_at=datetime.now(UTC) + timedelta(days=1)
        )
        kept = None if discard else self._keep(target, workspace, wish)
        for name in os.listdir(target):
            path = os.path.join(target, name)
            if name == RECORD:
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        self.fill(target, source)
        return kept

    def fill(self, target: str, source: str | None) -> None:
        if source is not None:
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        for part in PARTS if source is None else (RECORD,):
            os.makedirs(os.path.join(target, part), exist_ok=True)

    async def all(self) -> list[SnapshotFacts]:
        self._check_reachable()
        return list(self.facts.values())

    async def remove(self, snapshot_id: str) -> None:
        self._check_reachable()
        if self.facts.pop(snapshot_id, None) is not None:
            shutil.rmtree(self._kept(snapshot_id))
            shutil.rmtree(f"{self._kept(snapshot_id)}.system", ignore_errors=True)

    async def changes(self, before: Point, after: Point, *, after_path: str | None = None, limit: int) -> ChangesPage:
        old, new = _contents(self.path(before)), _contents(self.path(after))
        found = [
            Change(
                path=path,
                change="deleted" if path not in new else "added" if path not in old else "changed",
                kind=(new.get(path) or old[path])[0],
                bytes_before=old[path][1] if path in old else 0,
                bytes_after=new[path][1] if path in new else 0,
            )
            for path in sorted(old.keys() | new.keys())
            if old.get(path) != new.get(path) and (after_path is None or path > after_path)
        ]
        page = tuple(found[:limit])
        return ChangesPage(changes=page, next_after=page[-1].path if len(found) > limit else None)

    async def ask(self, point: Point, request: Request[A]) -> A:
        if not isinstance(
            request, ListDirectory | ReadFile | SearchFiles | FindUnsaved | ListPackages | DigestTree | ReadRepository
        ):
            raise InvalidArgument("files at rest are only read")
        answer: A = FILE_VERBS[type(request)](FakeFiles(self.path(point)), request)
        return answer

    async def export(self, point: Point) -> AsyncIterator[bytes | SnapshotContents]:
        source = self.path(point)
        label = self.facts[point.snapshot_id].label if isinstance(point, SnapshotPoint) else Label.RESTRICTED
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            told = label.encode()
            member = tarfile.TarInfo(LABEL)
            member.size = len(told)
            tar.addfile(member, io.BytesIO(told))
            tar.add(source, "files")
        yield content.getvalue()
        yield _digest(source)

    async def take_in(
        self,
        content: AsyncIterable[bytes],
        wish: SnapshotWish,
        *,
        most_bytes: int,
        most_files: int,
        expected: str | None = None,
    ) -> tuple[SnapshotFacts, SnapshotContents]:
        data = b"".join([part async for part in content])
        draft = os.path.join(self._root, "draft")
        try:
            try:
                with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                    member = tar.extractfile(LABEL)
                    assert member is not None
                    label = max(Label(member.read().decode()), wish.label, key=lambda one: one.rank)
                    tar.extractall(draft)
            except (tarfile.TarError, KeyError) as error:
                raise SnapshotCorrupt("the archive is not whole") from error
            contents = _digest(os.path.join(draft, "files"))
            if expected not in (None, contents.sha256):
                raise SnapshotCorrupt("the archive is not the one that is expected")
            if contents.bytes > most_bytes or contents.files > most_files:
                raise LimitReached("the archive is too large")
            return self._keep(os.path.join(draft, "files"), None, wish.model_copy(update={"label": label})), contents
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _contents(top: str) -> dict[str, tuple[Any, ...]]:
    """Kind, size and digest of everything but the record."""
    found: dict[str, tuple[Any, ...]] = {}
    for place, folders, names in os.walk(top):
        if place == top and RECORD in folders:
            folders.remove(RECORD)
        for name in [*folders, *names]:
            path = os.path.join(place, name)
            told = os.path.relpath(path, top)
            if os.path.islink(path):
                found[told] = ("symlink", 0, os.readlink(path))
            elif os.path.isdir(path):
                found[told] = ("directory", 0, "")
            else:
                with open(path, "rb") as file:
                    data = file.read()
                found[told] = ("file", len(data), hashlib.sha256(data).hexdigest())
    return found


def _digest(top: str) -> SnapshotContents:
    found = _contents(top)
    files = [one for one in found.values() if one[0] == "file"]
    text = json.dumps(sorted(found.items()))
    return SnapshotContents(
        sha256=hashlib.sha256(text.encode()).hexdigest(), files=len(files), bytes=sum(one[1] for one in files)
    )
