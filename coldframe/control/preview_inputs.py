"""From what a preview was made, by digest: enough to make it again on another sandbox, and to see that it is the same."""

import contextlib
import hashlib
import posixpath
from collections.abc import Sequence

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, InputMissing, WrongState
from coldframe.contract.files import DigestTree, ListDirectory, ReadFile
from coldframe.contract.ports import Host
from coldframe.contract.preview import InputFile, InputPackage, PreviewInputs, ServerStart
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.snapshot import SnapshotPoint, SnapshotRequest
from coldframe.control.credentials import Credentials
from coldframe.control.packages import Packages
from coldframe.control.snapshots import Snapshots

LOCK_NAMES = frozenset(
    {"package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "deno.lock"}
    | {"pyproject.toml", "poetry.lock", "uv.lock", "Pipfile", "Pipfile.lock", "Cargo.lock", "go.mod", "go.sum"}
    | {"Gemfile.lock", "composer.lock", "requirements.txt", "requirements-dev.txt"}
)
MOST_PACKAGES = 5000
_WINDOW_BYTES = 4 << 20


class PreviewInputsTaken:
    """Takes them, and holds them against what there is later."""

    def __init__(self, snapshots: Snapshots, credentials: Credentials, packages: Packages, host: Host) -> None:
        self._snapshots = snapshots
        self._credentials = credentials
        self._packages = packages
        self._host = host

    async def take(self, caller: Caller, info: SandboxInfo, start: ServerStart, setup: Sequence[str]) -> PreviewInputs:
        """A snapshot of the workspace as it is now, with what is to be known beside it. Raises what a snapshot does."""
        taken = await self._snapshots.take(
            caller, info.sandbox_id, SnapshotRequest(name=f"preview of {info.sandbox_id}")
        )
        try:
            return await self._described(info, start, setup, taken.snapshot_id)
        except BaseException:
            await self.forget(caller.name, taken.snapshot_id)
            raise

    async def forget(self, by: str, snapshot_id: str) -> None:
        """Nothing is made from them again."""
        await self._snapshots.discard(by, snapshot_id)

    async def _described(
        self, info: SandboxInfo, start: ServerStart, setup: Sequence[str], snapshot_id: str
    ) -> PreviewInputs:
        tree = await self.tree(snapshot_id)
        if tree is None:
            raise WrongState("the files are too many to take a digest of, so it could not be made again")
        return PreviewInputs(
            snapshot_id=snapshot_id,
            tree_sha256=tree,
            template=info.spec.template,
            template_sha256=info.template_sha256,
            files=await self.files(snapshot_id, start.cwd),
            setup=tuple(setup),
            start=start.model_copy(update={"env": dict.fromkeys(start.env, "")}),
            environment=tuple(sorted(start.env)),
            credentials=tuple(sorted(one.terms.name for one in self._credentials.usable_in(info))),
            network=info.spec.network,
        )

    async def files(self, snapshot_id: str, cwd: str) -> tuple[InputFile, ...]:
        """Lock files and manifests of the directory in which it is started, and of those above."""
        point = SnapshotPoint(snapshot_id=snapshot_id)
        folder = posixpath.normpath(cwd).strip("/") if cwd not in ("", ".") else ""
        found: list[InputFile] = []
        while True:
            with contextlib.suppress(ColdframeError):
                listed = await self._host.snapshots.ask(point, ListDirectory(path=folder))
                for entry in listed.entries:
                    if posixpath.basename(entry.path) in LOCK_NAMES:
                        path = posixpath.join(folder, posixpath.basename(entry.path))
                        found.append(InputFile(path=path, sha256=await self._digest(point, path)))
            if not folder:
                return tuple(sorted(found, key=lambda one: one.path))
            folder = posixpath.dirname(folder)

    async def _digest(self, point: SnapshotPoint, path: str) -> str:
        digest, offset, version = hashlib.sha256(), 0, None
        while True:
            request = ReadFile(path=path, offset=offset, length=_WINDOW_BYTES, if_version=version)
            part = await self._host.snapshots.ask(point, request)
            digest.update(part.content)
            offset, version = offset + len(part.content), part.version
            if not part.content or offset >= part.total_bytes:
                return digest.hexdigest()

    async def packages(self, caller: Caller, info: SandboxInfo) -> tuple[InputPackage, ...]:
        """What registries have handed over to it so far, as they said what it is."""
        found = await self._packages.handed_over(caller, info.sandbox_id)
        rows = [
            InputPackage(manager=manager, name=name, version=version, sha256=digest)
            for (manager, name, version), digest in sorted(found.items())
        ]
        return tuple(rows[:MOST_PACKAGES])

    async def require(self, inputs: PreviewInputs) -> None:
        """Raise InputMissing, or what a snapshot that was altered raises."""
        await self.require_there(inputs.snapshot_id, inputs.tree_sha256, inputs.template_sha256)

    async def require_there(self, snapshot_id: str, tree_sha256: str, template_sha256: str | None) -> None:
        """The same of what was taken in by something else."""
        if snapshot_id not in {one.snapshot_id for one in await self._host.snapshots.all()}:
            raise InputMissing("the snapshot that it was made from is gone", input="snapshot", id=snapshot_id)
        digest = await self.tree(snapshot_id)
        if digest != tree_sha256:
            raise InputMissing(
                "the snapshot holds other files than those that it was made from", input="snapshot", id=snapshot_id
            )
        if template_sha256 is not None:
            wanted = template_sha256.removeprefix("sha256:")
            if wanted not in {one.removeprefix("sha256:") for one in await self._host.templates.digests()}:
                raise InputMissing("the template that it was made from is gone", input="template", id=wanted)

    async def tree(self, snapshot_id: str) -> str | None:
        """Digest of all files of a snapshot; None if they are too many."""
        return (await self._host.snapshots.ask(SnapshotPoint(snapshot_id=snapshot_id), DigestTree())).sha256
