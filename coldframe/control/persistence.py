"""What a sandbox has of each item of the persistence table now, and which item a place inside belongs to.

How much there is, is counted when somebody asks, and stands in no contract: that says what holds, not how it is at the moment.
"""

import posixpath

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, InvalidArgument
from coldframe.contract.files import ListDirectory
from coldframe.contract.persistence import (
    EVENTS,
    HOME,
    ITEMS,
    MOST_PATH_CHARACTERS,
    Fate,
    ItemNow,
    Whereabouts,
    fate,
    is_there,
    item_of,
    items_of,
    lifetime_of,
    owner_of,
)
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import ENDED, WITH_BOX, SandboxInfo
from coldframe.control.credentials import Credentials
from coldframe.control.ledger import Ledger
from coldframe.control.preview_rows import PreviewRows
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store
from coldframe.control.volume_rows import VolumeRows

MOST_FILES = 20_000
"""Of a workspace that are counted."""
_WORKSPACE = frozenset(name for name, item in ITEMS.items() if item.is_workspace)
_RECORDS = """SELECT count(*), coalesce(sum(coalesce(json_extract(body, '$.stdout.bytes'), 0)
+ coalesce(json_extract(body, '$.stderr.bytes'), 0)), 0)
FROM (SELECT body FROM ledger WHERE sandbox_id = ? AND kind = 'call.ended' LIMIT ?)"""
_AUDIT = "SELECT count(*), coalesce(sum(length(body)), 0) FROM (SELECT body FROM ledger WHERE sandbox_id = ? LIMIT ?)"
MOST_ENTRIES = 20_000
"""Of the ledger that are counted."""
_ITEM_BEHIND = {
    "history": "records",
    "volume": "volume",
    "memory": "temporary",
    "device": "system",
    "kernel": "processes",
}
"""By what stands behind a mount; everything else but the workspace is the system's."""
_Size = tuple[int | None, int | None]
"""Count and bytes."""


class Persistence:
    """The table of each sandbox. Starts nothing."""

    def __init__(
        self, store: Store, ledger: Ledger, sandboxes: Sandboxes, credentials: Credentials, host: Host
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._credentials = credentials
        self._host = host
        self._volumes = VolumeRows(store)
        self._previews = PreviewRows(store)

    async def table(self, caller: Caller, sandbox_id: str) -> list[ItemNow]:
        """All items, also those that are not there. Raises GrantMissing, NotFound."""
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        sizes, complete = await self._in_workspace(info)
        sizes |= await self._in_memory(info)
        sizes |= self._outside(info)
        sizes |= await self._in_volumes(info)
        rows = []
        profile = info.spec.profile
        for name, item in items_of(profile).items():
            exists = is_there(
                name, profile=profile, has_network=info.network is not None, has_volumes=bool(info.spec.volumes)
            )
            count, size = sizes.get(name, (None, None))
            rows.append(
                ItemNow(
                    item=name,
                    what=item.what,
                    exists=exists,
                    owner=owner_of(name, background=info.spec.background, profile=profile),
                    places=tuple(one.at for one in info.spec.volumes) if name == "volume" else item.places,
                    lifetime=lifetime_of(name, background=info.spec.background, profile=profile),
                    count=count if exists else None,
                    bytes=size if exists else None,
                    complete=complete if name in _WORKSPACE else count != MOST_ENTRIES,
                    events=_fates(name, info) if exists else {},
                )
            )
        return rows

    def where(self, caller: Caller, sandbox_id: str, path: str) -> Whereabouts:
        """Which item a place belongs to, by what is mounted there; relative ones are of the workspace.

        Raises:
            GrantMissing, NotFound: not the caller's.
            InvalidArgument: it is no path.
        """
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        if not path or "\0" in path or len(path) > MOST_PATH_CHARACTERS:
            raise InvalidArgument("`path` is no path", hint="give one as commands see it", argument="path")
        place = posixpath.normpath(posixpath.join(HOME, path))
        place = "/" + place.lstrip("/")
        report = self._sandboxes.measured(sandbox_id)
        mounts = [one for one in report.mounts if _is_below(place, one.target)]
        mount = max(mounts, key=lambda one: len(one.target), default=None)
        if mount is not None and mount.source == "volume":
            name = "volume"
        elif _is_below(place, HOME):
            name = item_of(posixpath.relpath(place, HOME))
        else:
            name = "system" if mount is None else _ITEM_BEHIND.get(mount.source, "system")
            if name == "temporary" and mount is not None and not mount.writable:
                name = "system"  # the frame that the other places are mounted on
        profile = info.spec.profile
        return Whereabouts(
            path=place,
            item=name,
            what=items_of(profile)[name].what,
            owner=owner_of(name, background=info.spec.background, profile=profile),
            lifetime=lifetime_of(name, background=info.spec.background, profile=profile),
            writable=mount is not None and mount.writable,
            mounted_at="/" if mount is None else mount.target,
            events=_fates(name, info),
        )

    async def _in_workspace(self, info: SandboxInfo) -> tuple[dict[str, _Size], bool]:
        """By item, and whether that is all. Nothing while no box is there to be asked."""
        if info.state.state not in WITH_BOX:
            return {}, True
        try:
            box = await self._host.box(info.sandbox_id)
            listing = await box.ask(ListDirectory(recursive=True, max_entries=MOST_FILES))
        except ColdframeError:
            return {}, False
        found: dict[str, list[int]] = {name: [0, 0] for name in _WORKSPACE}
        volumes = [f"{posixpath.relpath(one.at, HOME)}/" for one in info.spec.volumes]
        for entry in listing.entries:
            if any(entry.path.startswith(place) for place in volumes):
                continue
            counted = found.get(item_of(entry.path))
            if counted is not None and entry.kind != "directory":
                counted[0] += 1
                counted[1] += entry.size if entry.kind == "file" else 0
        return {name: (count, size) for name, (count, size) in found.items()}, listing.complete and not listing.errors

    async def _in_memory(self, info: SandboxInfo) -> dict[str, _Size]:
        if info.state.state not in WITH_BOX:
            return {"processes": (0, 0), "temporary": (0, 0)}
        try:
            stake = await (await self._host.life(info.sandbox_id)).at_stake()
        except ColdframeError:
            return {}
        return {"processes": (stake.processes, None), "temporary": (stake.temporary.files, stake.temporary.bytes)}

    async def _in_volumes(self, info: SandboxInfo) -> dict[str, _Size]:
        """All together; not known if one of them cannot be counted, or is gone: another one may have its name by now."""
        count, size = 0, 0
        had = {use.volume_id for use in self._volumes.of_sandbox(info.sandbox_id)}
        if not had and info.spec.volumes:  # it has ended, and the ledger alone knows
            attached = self._ledger.entries(kinds=("volume.attached",), sandbox_id=info.sandbox_id)
            had = {entry.subject for entry in attached}
        if len(had) != len(info.spec.volumes):
            return {}
        for volume_id in sorted(had):
            row = self._volumes.by_id(volume_id)
            if row is None:
                return {}
            try:
                usage = await self._host.volumes.usage(row.volume_id, row.size_mib)
            except ColdframeError:
                return {}
            if not usage.complete:
                return {}
            count, size = count + usage.files, size + usage.bytes
        return {"volume": (count, size)} if info.spec.volumes else {}

    def _outside(self, info: SandboxInfo) -> dict[str, _Size]:
        self._ledger.settle()
        ((calls, output),) = self._store.read(_RECORDS, (info.sandbox_id, MOST_ENTRIES))
        ((entries, size),) = self._store.read(_AUDIT, (info.sandbox_id, MOST_ENTRIES))
        handles = 0 if info.state.state in ENDED else len(self._credentials.handles(info))
        previews = [one for one in self._previews.of_sandbox(info.sandbox_id) if one.revoked_at is None]
        return {
            "records": (calls, output),
            "audit": (entries, size),
            "grants": (handles, None),
            "preview": (len(previews), None),
        }


def _fates(item: str, info: SandboxInfo) -> dict[str, Fate]:
    spec = info.spec
    return {
        event: fate(item, event, background=spec.background, ephemeral=spec.ephemeral, profile=spec.profile)
        for event in EVENTS
    }


def _is_below(path: str, place: str) -> bool:
    return path == place or place == "/" or path.startswith(f"{place}/")
