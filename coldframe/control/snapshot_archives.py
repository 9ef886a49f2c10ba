"""Snapshots as files: carried away as one tar, and brought in from one.

An archive leaves whole, so no rule can be asked about each file in it: whoever may take it along is an owner or admin, who
could lift the rule, and where a rule looks at what files hold it is refused. What is brought in is labelled by whoever
brings it, and no lower than the archive says.
"""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, cast

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, DeniedByRule, InvalidArgument, WrongState
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.snapshot import SnapshotContents, SnapshotInfo, SnapshotPoint, SnapshotWish
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.judgement import digest_of, judges_output
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.snapshots import MIB, Key, Snapshots, new_act
from coldframe.control.store import Store


class SnapshotArchives:
    """Export and import. Their rights are `snapshot.export` and `snapshot.import`."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        rulebook: Rulebook,
        snapshots: Snapshots,
        judged: JudgedActs,
        host: Host,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._rulebook = rulebook
        self._snapshots = snapshots
        self._judged = judged
        self._host = host
        self._clock = clock

    async def export(self, caller: Caller, snapshot_id: str) -> AsyncGenerator[bytes, None]:
        """The archive in parts; its digest is on record at the end, and in what `Snapshots.get` tells. That it leaves is
        recorded before.

        Raises:
            GrantMissing, NotFound: not by this caller.
            Refused: a rule is against it, or looks at what files hold.
            WrongState: it is lost, or labelled higher here than the archive would say.
        """
        require(caller, "snapshot.export")
        found = self._snapshots.ready(caller, snapshot_id)
        told_label = {one.snapshot_id: one.label for one in await self._host.snapshots.all()}.get(snapshot_id)
        if told_label is None or told_label.rank < found.label.rank:  # of what a crash has left
            raise WrongState(
                f"snapshot `{snapshot_id}` is {found.label.value}, which its archive would not say",
                hint="fork it, and export a snapshot of the fork",
                snapshot_id=snapshot_id,
            )
        body: dict[str, Any] = {
            "snapshot_id": snapshot_id,
            "sandbox_id": found.sandbox_id,
            "agent_id": found.agent_id,
            "label": found.label.value,
            "caller": caller.name,
        }
        _, told = self._judged.allow_with(caller, found, "export_snapshot")
        if judges_output(self._rulebook.current, "read_file"):
            error = DeniedByRule(
                "a rule looks at what files hold, which cannot be done for a whole archive",
                hint="download the files one by one, or have an owner lift the rule meanwhile",
                rule="floor:output-too-large-to-judge",
            )
            self._ledger.append("act.refused", snapshot_id, {**body, "act": "export_snapshot", "code": error.code})
            raise error
        self._ledger.append("snapshot.exported", snapshot_id, {**body, **told}, durable=True)
        return self._parts(found, body)

    async def _parts(self, found: SnapshotInfo, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        point = SnapshotPoint(snapshot_id=found.snapshot_id)
        source = cast("AsyncGenerator[bytes | SnapshotContents, None]", self._host.snapshots.export(point))
        async with aclosing(source) as parts:
            async for part in parts:
                if isinstance(part, bytes):
                    yield part
                else:
                    self._note_end(found, part, body)

    def _note_end(self, found: SnapshotInfo, contents: SnapshotContents, body: dict[str, Any]) -> None:
        with self._store.transaction() as connection:
            self._snapshots.note_digest(found.snapshot_id, contents.sha256)
            told = {**body, **contents.model_dump(mode="json")}
            self._ledger.append("snapshot.export_ended", found.snapshot_id, told, connection=connection)

    async def take_in(
        self,
        caller: Caller,
        content: AsyncIterable[bytes],
        *,
        name: str = "",
        label: Label = Label.PUBLIC,
        expires_in_s: float | None = None,
        expected: str | None = None,
        idempotency_key: str | None = None,
    ) -> SnapshotInfo:
        """A snapshot of an archive, or nothing at all; with a key that was used already, what was made then. A stream that
        breaks off, or a caller that leaves, leaves nothing. *expected* is the digest that the export told.

        Raises:
            GrantMissing: not by this caller.
            Conflict: the key was used for something else.
            SnapshotCorrupt: it is cut off, was altered, or is another one than expected.
            LimitReached: it is too large, or there are too many.
        """
        require(caller, "snapshot.import")
        request: dict[str, Any] = {"operation": "snapshot.import", "name": name, "label": label.value}
        request |= {"expected": expected, "expires_in_s": expires_in_s}
        key = None if idempotency_key is None else Key(caller, idempotency_key, digest_of(request))
        await self._snapshots.measure()
        if (made := await self._snapshots.made_before(key)) is not None:
            return made
        self._snapshots.check_room(None)
        expires_at = None if expires_in_s is None else self._clock() + timedelta(seconds=expires_in_s)
        wish = SnapshotWish(name=name, label=label, reason="imported", expires_at=expires_at)
        act_id = new_act()
        with self._store.transaction() as connection:
            self._snapshots.begin(act_id, None, wish, caller.name, key, connection)
        limits = self._snapshots.limits
        with self._snapshots.making(act_id):
            try:
                facts, contents = await self._host.snapshots.take_in(
                    _unbroken(content),
                    wish,
                    most_bytes=limits.import_mib * MIB,
                    most_files=limits.import_files,
                    expected=expected,
                )
            except BaseException:
                self._snapshots.forget(act_id)
                raise
            more = {"files": contents.files, "bytes": contents.bytes, "label_asked": label.value}
            return self._snapshots.finish(act_id, facts, "snapshot.imported", sha256=contents.sha256, more=more)


async def _unbroken(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Pass *content* on; a failure of whoever sends it is the caller's fault, typed."""
    try:
        async for part in content:
            yield part
    except ColdframeError:
        raise
    except Exception as error:
        raise InvalidArgument(f"the archive broke off: {type(error).__name__}", argument="body") from error
