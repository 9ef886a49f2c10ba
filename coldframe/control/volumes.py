"""Volumes: made, looked at, granted, removed, and their files at rest, which are read and written without a sandbox.

A row is written before the host is asked to make one, and goes after it was asked to remove it, so that a crash leaves
something to clean up by. Who has one is in `volume_attachments.py`.
"""

import builtins
import contextlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, Conflict, InvalidArgument, OutsideWorkspace, WrongState
from coldframe.contract.files import (
    ListDirectory,
    MakeDirectory,
    ReadAnswer,
    ReadFile,
    RemovePath,
    WriteAnswer,
    WriteFile,
)
from coldframe.contract.paths import StatPath
from coldframe.contract.policy import Label, Role
from coldframe.contract.ports import Host
from coldframe.contract.volume import MOST_GRANTS, VolumeEntry, VolumeGrant, VolumeInfo, VolumeListing, VolumeRequest
from coldframe.control.acts import Acts
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store
from coldframe.control.volume_attachments import VolumeAttachments, busy, no_volume, written_now
from coldframe.control.volume_rows import HOLDING, VolumeRow, VolumeRows, new_row
from coldframe.policy.labels import join, parse
from coldframe.tools.registry import relative_path

MOST_VOLUMES = 10_000
MOST_LISTED = 10_000
"""Entries of one listing."""
WINDOW_BYTES = 4 << 20
"""Bytes of one read of a download."""


class Volumes:
    """Those of this installation."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        attachments: VolumeAttachments,
        judged: JudgedActs,
        sandboxes: Sandboxes,
        host: Host,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._attachments = attachments
        self._judged = judged
        self._sandboxes = sandboxes
        self._host = host
        self._clock = clock
        self._rows = VolumeRows(store)
        self._acts = Acts()
        self._worked_on: set[str] = set()
        """Those that the host makes or removes now."""

    async def settle(self) -> None:
        """After a start: what was half made or half removed goes. The host may be away, and is asked again next time."""
        for row in self._rows.all("making", "removing"):
            with contextlib.suppress(ColdframeError):
                await self._finish_removal(row)

    async def close(self) -> None:
        """Wait for what was begun."""
        await self._acts.close()

    # -- life ----------------------------------------------------------------------------------

    async def create(self, caller: Caller, asked: VolumeRequest) -> VolumeInfo:
        """Make one, empty.

        Raises:
            GrantMissing: the caller may not.
            Conflict: there is one of that name.
            IsolationUnavailable: this machine cannot keep it as the operator wants.
        """
        require(caller, "volume.create")
        return await self._acts.whole(self._create(caller, asked))

    async def _create(self, caller: Caller, asked: VolumeRequest) -> VolumeInfo:
        await self._settle_name(asked.name)
        volume_id = f"vol_{secrets.token_hex(10)}"
        row = new_row(volume_id, asked.name, asked.size_mib, asked.label, caller.name, self._clock())
        with self._store.transaction() as connection:
            if self._rows.find(asked.name) is not None:
                raise Conflict(
                    f"there is a volume `{asked.name}` already", hint="choose another name", volume=asked.name
                )
            if len(self._rows.all("making", "ready", "removing")) >= MOST_VOLUMES:
                raise WrongState(f"there are {MOST_VOLUMES} volumes, and no more may be", hint="remove some")
            self._rows.add(row, connection)
        try:
            with self._at_work(volume_id):
                await self._host.volumes.create(volume_id, asked.size_mib)
        except BaseException:
            with contextlib.suppress(ColdframeError):  # else the next start does it
                await self._finish_removal(row)
            raise
        with self._store.transaction(durable=True) as connection:
            self._rows.change(volume_id, connection, state="ready")
            body = {**_told(row), "caller": caller.name}
            self._ledger.append("volume.created", volume_id, body, connection=connection, durable=True)
        return self._info(caller, self._ready(asked.name))

    async def remove(self, caller: Caller, name: str) -> None:
        """Remove it with all its files, for good.

        Raises:
            GrantMissing, NotFound.
            VolumeBusy: a sandbox has it, or is to have it when it starts again; `holders` tells which.
        """
        require(caller, "volume.remove")
        await self._acts.whole(self._remove(caller, name))

    async def _remove(self, caller: Caller, name: str) -> None:
        for use in self._rows.users(self._ready(name).volume_id):
            if use.now in HOLDING:
                await self._sandboxes.check_alive(use.sandbox_id, "its box has ended")
        with self._store.transaction(durable=True) as connection:
            row = self._ready(name)
            if users := self._rows.users(row.volume_id):
                raise busy(name, users)
            if row.volume_id in self._attachments.written_at_rest:
                raise written_now(name)
            self._rows.change(row.volume_id, connection, state="removing")
            body = {**_told(row), "caller": caller.name}
            self._ledger.append("volume.removed", row.volume_id, body, connection=connection, durable=True)
        await self._finish_removal(row)

    async def _settle_name(self, name: str) -> None:
        """What was left half made or half removed under it, because the host was away, goes."""
        row = self._rows.find(name)
        if row is not None and row.state != "ready" and row.volume_id not in self._worked_on:
            with contextlib.suppress(ColdframeError):
                await self._finish_removal(row)

    @contextlib.contextmanager
    def _at_work(self, volume_id: str) -> Iterator[None]:
        self._worked_on.add(volume_id)
        try:
            yield
        finally:
            self._worked_on.discard(volume_id)

    async def _finish_removal(self, row: VolumeRow) -> None:
        with self._at_work(row.volume_id):
            await self._host.volumes.remove(row.volume_id)
        with self._store.transaction() as connection:
            self._rows.remove(row.volume_id, connection)

    # -- looking -------------------------------------------------------------------------------

    def list(self, caller: Caller) -> builtins.list[VolumeInfo]:
        """The caller's, by name. An agent sees those that are granted to it, and of these what is its own. Raises GrantMissing."""
        require(caller, "volume.read")
        return [self._info(caller, row) for row in self._rows.all("ready") if _is_visible(caller, row)]

    async def get(self, caller: Caller, name: str) -> VolumeInfo:
        """One, with how full it is. Raises GrantMissing, NotFound."""
        require(caller, "volume.read")
        row = self._visible(caller, name)
        info = self._info(caller, row)
        with contextlib.suppress(ColdframeError):
            usage = await self._host.volumes.usage(row.volume_id, row.size_mib)
            info = info.model_copy(update={"usage": usage})
        return info

    def _info(self, caller: Caller, row: VolumeRow) -> VolumeInfo:
        """An agent is told of no sandbox and no grant of another one."""
        info = row.info(tuple(one.holder for one in self._rows.users(row.volume_id)))
        if caller.role is not Role.AGENT:
            return info
        holders = tuple(one for one in info.holders if one.agent_id == caller.agent_id)
        grants = tuple(one for one in info.grants if one.agent_id in ("*", caller.agent_id))
        return info.model_copy(update={"holders": holders, "grants": grants})

    def _ready(self, name: str) -> VolumeRow:
        row = self._rows.find(name)
        if row is None or row.state != "ready":
            raise no_volume(name)
        return row

    def _visible(self, caller: Caller, name: str) -> VolumeRow:
        row = self._ready(name)
        if not _is_visible(caller, row):
            raise no_volume(name)
        return row

    # -- who may -------------------------------------------------------------------------------

    def grant(self, caller: Caller, name: str, wanted: VolumeGrant) -> VolumeInfo:
        """Let sandboxes of an agent have it, whoever makes them. One grant for an agent takes the place of another.

        Raises GrantMissing, NotFound.
        """
        require(caller, "volume.grant")
        with self._store.transaction(durable=True) as connection:
            row = self._ready(name)
            kept = [one for one in row.granted if one.agent_id != wanted.agent_id]
            if len(kept) >= MOST_GRANTS:
                raise InvalidArgument(f"a volume is granted to {MOST_GRANTS} agents at most", hint="grant it to `*`")
            self._rows.set_grants(row, (*kept, wanted), connection)
            body = {**_told(row), "granted_to": wanted.agent_id, "mode": wanted.mode, "caller": caller.name}
            self._ledger.append("volume.granted", row.volume_id, body, connection=connection, durable=True)
        return self._info(caller, self._ready(name))

    def revoke(self, caller: Caller, name: str, agent_id: str) -> VolumeInfo:
        """Take a grant back. Sandboxes that have the volume keep it until they stop. Raises GrantMissing, NotFound."""
        require(caller, "volume.grant")
        with self._store.transaction(durable=True) as connection:
            row = self._ready(name)
            kept = tuple(one for one in row.granted if one.agent_id != agent_id)
            if len(kept) != len(row.granted):
                self._rows.set_grants(row, kept, connection)
                body = {**_told(row), "revoked_of": agent_id, "caller": caller.name}
                self._ledger.append("volume.revoked", row.volume_id, body, connection=connection, durable=True)
        return self._info(caller, self._ready(name))

    # -- files at rest -------------------------------------------------------------------------

    async def list_files(self, caller: Caller, name: str, path: str, *, recursive: bool = False) -> VolumeListing:
        """What is in it, whether a sandbox has it or not; nothing is started.

        Raises:
            GrantMissing, NotFound: not the caller's.
            Refused: a rule is against it.
        """
        row, path = self._judge(caller, name, "volume.look", "read_volume", path)
        request = ListDirectory(path=path, recursive=recursive, max_entries=MOST_LISTED)
        answer = await self._host.volumes.ask(row.volume_id, request)
        self._record("volume.read", row, caller, path=path)
        fields = VolumeEntry.model_fields
        entries = tuple(VolumeEntry(**{one: getattr(entry, one) for one in fields}) for entry in answer.entries)
        return VolumeListing(entries=entries, complete=answer.complete and not answer.errors)

    async def stat(self, caller: Caller, name: str, path: str) -> VolumeEntry:
        """One file, directory or link in it. Raises what `list_files` does, and FileMissing."""
        row, path = self._judge(caller, name, "volume.look", "read_volume", path)
        found = await self._host.volumes.ask(row.volume_id, StatPath(path=path))
        self._record("volume.read", row, caller, path=path)
        return VolumeEntry(path=path, **{one: getattr(found, one) for one in VolumeEntry.model_fields if one != "path"})

    async def read_file(self, caller: Caller, name: str, path: str) -> tuple[ReadAnswer, AsyncIterator[bytes], Label]:
        """The first part of a file and its status, all parts of that very version, and the label of the volume.

        Raises what `list_files` does, and FileMissing, IsDirectory. The parts raise Conflict if it changes meanwhile.
        """
        row, path = self._judge(caller, name, "volume.look", "read_volume", path)
        first = await self._host.volumes.ask(row.volume_id, ReadFile(path=path, length=WINDOW_BYTES))
        self._record("volume.read", row, caller, path=path, bytes=first.total_bytes)
        return first, self._rest(row, path, first), parse(self._ready(name).label)

    async def _rest(self, row: VolumeRow, path: str, first: ReadAnswer) -> AsyncIterator[bytes]:
        part, offset = first.content, 0
        while part:
            yield part
            offset += len(part)
            if offset >= first.total_bytes:
                return
            request = ReadFile(path=path, offset=offset, length=WINDOW_BYTES, if_version=first.version)
            part = (await self._host.volumes.ask(row.volume_id, request)).content

    async def write_file(
        self,
        caller: Caller,
        name: str,
        path: str,
        content: AsyncIterable[bytes],
        *,
        label: Label | None = None,
        create_only: bool = False,
    ) -> WriteAnswer:
        """Replace a file by *content*, atomically. The label of the volume rises to *label*, that of the content.

        Raises what `list_files` does, and VolumeBusy: a sandbox may write to it now. DiskFull, IsDirectory. Conflict: with
        *create_only*, something is there.
        """
        return await self._acts.whole(self._write(caller, name, path, content, label, create_only=create_only))

    async def _write(
        self,
        caller: Caller,
        name: str,
        path: str,
        content: AsyncIterable[bytes],
        label: Label | None,
        *,
        create_only: bool,
    ) -> WriteAnswer:
        row, path = self._judge(caller, name, "volume.write", "write_volume", path, label=label)
        with self._writing(row):
            self._raise_label(row, label)
            await self._attachments.settle()
            self._record("volume.change_begun", row, caller, act="write_volume", path=path)
            request = WriteFile(path=path, create_only=create_only)
            answer = await self._host.volumes.write(row.volume_id, request, content, size_mib=row.size_mib)
            told = {"bytes": answer.bytes_written, "sha256": answer.sha256, "sha256_before": answer.sha256_before}
            self._record("volume.written", row, caller, path=path, **told)
        return answer

    async def remove_file(self, caller: Caller, name: str, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link; a directory with all that is in it if *recursive*. Raises what `write_file` does."""
        await self._acts.whole(self._remove_file(caller, name, path, recursive=recursive))

    async def _remove_file(self, caller: Caller, name: str, path: str, *, recursive: bool) -> None:
        row, path = self._judge(caller, name, "volume.write", "write_volume", path)
        with self._writing(row):
            self._record("volume.change_begun", row, caller, act="remove_file", path=path)
            await self._host.volumes.remove_path(row.volume_id, RemovePath(path=path, recursive=recursive))
            self._record("volume.file_removed", row, caller, path=path)

    async def make_directory(self, caller: Caller, name: str, path: str) -> None:
        """Make a directory, and those above it; one that is there stays. Raises what `write_file` does."""
        await self._acts.whole(self._make_directory(caller, name, path))

    async def _make_directory(self, caller: Caller, name: str, path: str) -> None:
        row, path = self._judge(caller, name, "volume.write", "write_volume", path)
        with self._writing(row):
            self._record("volume.change_begun", row, caller, act="make_directory", path=path)
            await self._host.volumes.make_directory(row.volume_id, MakeDirectory(path=path), size_mib=row.size_mib)
            self._record("volume.directory_made", row, caller, path=path)

    def name_of(self, caller: Caller, volume_id: str) -> str:
        """The name of one by its id. Raises GrantMissing, NotFound."""
        for info in self.list(caller):
            if info.volume_id == volume_id:
                return info.name
        raise no_volume(volume_id)

    def _judge(
        self, caller: Caller, name: str, right: str, act: str, path: str, *, label: Label | None = None
    ) -> tuple[VolumeRow, str]:
        """The row, and the path as it is to be asked for. Raises OutsideWorkspace for one that climbs out by its text."""
        require(caller, right)
        if path.startswith("/"):
            raise OutsideWorkspace(f"`{path[:200]}` is not relative to the volume", hint="name a file below its top")
        path = relative_path(path)
        row = self._ready(name)
        above = parse(row.label) if label is None else join(parse(row.label), label)
        self._judged.allow_with_volume(caller, act, name, above, path=path)
        return row, path

    @contextlib.contextmanager
    def _writing(self, row: VolumeRow) -> Iterator[None]:
        """Alone with it, as a sandbox that can write to it is."""
        holding = [one for one in self._rows.users(row.volume_id) if one.mode == "rw" and one.now in HOLDING]
        if holding:
            raise busy(row.name, holding)
        if row.volume_id in self._attachments.written_at_rest:
            raise written_now(row.name)
        self._attachments.written_at_rest.add(row.volume_id)
        try:
            yield
        finally:
            self._attachments.written_at_rest.discard(row.volume_id)

    def _raise_label(self, row: VolumeRow, label: Label | None) -> None:
        """Before anything with it is there, and for whoever reads the volume already."""
        risen = join(parse(row.label), label or Label.PUBLIC)
        if risen is parse(row.label):
            return
        with self._store.transaction(durable=True) as connection:
            self._rows.change(row.volume_id, connection, label=risen.value)
            body = {"volume_id": row.volume_id, "name": row.name, "label_before": row.label, "label_after": risen}
            self._ledger.append("volume.label_raised", row.volume_id, body, connection=connection, durable=True)
            self._attachments.spread(connection)

    def _record(self, kind: str, row: VolumeRow, caller: Caller, **more: Any) -> None:
        durable = kind == "volume.change_begun"
        with self._store.transaction(durable=durable) as connection:
            body = {**_told(row), "caller": caller.name, **more}
            self._ledger.append(kind, row.volume_id, body, connection=connection, durable=durable)


def _is_visible(caller: Caller, row: VolumeRow) -> bool:
    return caller.role is not Role.AGENT or any(one.agent_id in ("*", caller.agent_id) for one in row.granted)


def _told(row: VolumeRow) -> dict[str, Any]:
    return {"volume_id": row.volume_id, "name": row.name, "size_mib": row.size_mib, "label": row.label}
