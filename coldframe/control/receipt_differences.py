"""What differs between two receipts of a sandbox. Which files do is on record with digests; lines come from where a file of that
digest still is: the workspace as it is now, or a snapshot that was taken while it was so. Each look passes the gate as a reading
of the file, in the session of the sandbox; what is found is held against the digest on record, so nothing similar is taken.
"""

import asyncio
import builtins
import hashlib
import json
import re
from typing import Any, Literal, NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, FileMissing, InvalidArgument, Refused
from coldframe.contract.policy import Label, Role
from coldframe.contract.receipt import Receipt
from coldframe.contract.receipt_difference import FileDifference, FileHunks, Hunk, ReceiptDifference
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.snapshot import SnapshotInfo
from coldframe.control.call_records import ids_of
from coldframe.control.comparisons import Comparisons, lines_of, unified
from coldframe.control.ledger import Ledger, parse_time
from coldframe.control.receipts import Receipts
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshots import Snapshots
from coldframe.control.store import Store
from coldframe.policy.labels import join

MOST_CALLS = 20_000
"""Between the two."""
MOST_FILES = 10_000
MOST_LOOKS = 6
"""At snapshots, for one side of one file."""
MOST_RECEIPTS = 20
MOST_VERSIONS = 2000
"""Of one file, the newest."""
_ENTRIES = """SELECT seq, kind FROM ledger WHERE {whose} = ? AND seq > ? AND seq <= ?
AND kind IN ('call.ended', 'sandbox.reset', 'call.interrupted') ORDER BY seq LIMIT ?"""
_BODY = "SELECT body FROM ledger WHERE seq = ?"
_DELETED = """SELECT 1 FROM ledger WHERE subject = ? AND subject IS NOT call_id AND kind = 'agent.deleted'
AND seq > ? AND seq < ? LIMIT 1"""
_PAGE = 200
_HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")


class _Between(NamedTuple):
    files: dict[str, FileDifference]
    problems: tuple[str, ...]


class ReceiptDifferences:
    """Between any two of one sandbox, and of sandboxes on the same workspace."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        receipts: Receipts,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        comparisons: Comparisons,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._receipts = receipts
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._comparisons = comparisons

    async def compare(self, caller: Caller, before: str, after: str) -> ReceiptDifference:
        """The files that differ.

        Raises:
            GrantMissing, NotFound: not the caller's to see, or no such receipt.
            DeniedByRule: a rule withheld the result of one of them.
            InvalidArgument: they are of two workspaces.
        """
        old, new = self._pair(caller, before, after)
        found = await self._between(caller, old, new)
        return ReceiptDifference(
            before=before,
            after=after,
            tree_sha256_before=old.tree_sha256_after,
            tree_sha256_after=new.tree_sha256_after,
            files=tuple(found.files[path] for path in sorted(found.files)),
            complete=not found.problems,
            problems=found.problems,
        )

    async def hunks(self, caller: Caller, before: str, after: str, path: str) -> FileHunks:
        """The lines of one file that differ.

        Raises:
            FileMissing: it does not differ, as far as is known.
            Refused: a rule is against reading it.
            TooLarge: it is too long to be compared by lines.
            And what `compare` does.
        """
        old, new = self._pair(caller, before, after)
        known = (await self._between(caller, old, new)).files.get(path)
        if known is None:
            raise FileMissing(f"`{path[:200]}` does not differ between these receipts", path=path[:200])
        info = self._sandboxes.get(caller, new.sandbox_id)
        contents: dict[str, bytes | None] = {}
        label, unavailable = Label.PUBLIC, builtins.list[Literal["before", "after"]]()
        sides: tuple[tuple[Literal["before", "after"], str | None], ...] = (
            ("before", known.sha256_before),
            ("after", known.sha256_after),
        )
        for side, sha256 in sides:
            if sha256 is None:
                contents[side] = None
                continue
            found = await self._content(caller, info, path, sha256)
            if found is None:
                unavailable.append(side)
            else:
                contents[side], label = found[0], join(label, found[1])
        hunks, binary = builtins.list[Hunk](), False
        if not unavailable:
            lines = [None if one is None else lines_of(one) for one in (contents["before"], contents["after"])]
            binary = any(one is not None and many is None for one, many in zip(contents.values(), lines, strict=True))
            if not binary:
                hunks = _hunks_of(await asyncio.to_thread(unified, path, lines[0], lines[1]))
        return FileHunks(
            path=path,
            sha256_before=known.sha256_before,
            sha256_after=known.sha256_after,
            hunks=tuple(hunks),
            binary=binary,
            unavailable=tuple(unavailable),
            label=label,
        )

    # -- the record ----------------------------------------------------------------------------------------------------

    def _pair(self, caller: Caller, before: str, after: str) -> tuple[Receipt, Receipt]:
        old, new = self._receipts.get(caller, before), self._receipts.get(caller, after)
        if old.sandbox_id != new.sandbox_id and (old.agent_id is None or old.agent_id != new.agent_id):
            raise InvalidArgument(
                "these receipts are of two workspaces",
                hint="take two of one sandbox; `snapshot diff` compares what two sandboxes have now",
                argument="after",
            )
        if old.agent_id is not None and old.agent_id == new.agent_id and self._was_deleted_between(old, new):
            raise InvalidArgument(
                "these receipts are of two workspaces: the agent was deleted in between, and made again",
                hint="take two that are both older or both newer than that",
                argument="after",
            )
        return old, new

    def _was_deleted_between(self, old: Receipt, new: Receipt) -> bool:
        """The workspace goes with its agent, and one that is made later under the same id has another."""
        first, last = sorted((old.ledger_seqs[1], new.ledger_seqs[1]))
        return bool(self._store.read(_DELETED, (old.agent_id, first, last)))

    async def _between(self, caller: Caller, old: Receipt, new: Receipt) -> _Between:
        first, last = sorted((old.ledger_seqs[1], new.ledger_seqs[1]))
        self._ledger.settle()
        whose, name = ("agent_id", old.agent_id) if old.agent_id is not None else ("sandbox_id", old.sandbox_id)
        sees_all = caller.role in (Role.OWNER, Role.ADMIN)
        begin: dict[str, str | None] = {}
        end: dict[str, str | None] = {}
        by: dict[str, builtins.list[str]] = {}
        problems: dict[str, None] = {}
        at, looked = first, 0
        while rows := self._store.read(_ENTRIES.format(whose=whose), (name, at, last, _PAGE)):
            for seq, kind in rows:
                await asyncio.sleep(0)  # a call may have changed many files, and others want their turn
                at, looked = seq, looked + 1
                ((text,),) = self._store.read(_BODY, (seq,))
                body = json.loads(text)
                if problem := _problem(kind, body, sees_all=sees_all):
                    problems[problem] = None
                    continue
                for change in (body.get("files") or {}).get("changes") or ():
                    if change["kind"] != "file" or change["change"] == "metadata":
                        continue
                    path = change["path"]
                    if path not in begin and len(begin) >= MOST_FILES:
                        problems[f"more than {MOST_FILES} files were changed in between"] = None
                        continue
                    begin.setdefault(path, change.get("sha256_before"))
                    end[path] = None if change["change"] == "deleted" else change.get("sha256_after")
                    by.setdefault(path, []).append(ids_of(body["call_id"]).receipt_id)
                    del by[path][:-MOST_RECEIPTS]
            if looked >= MOST_CALLS:
                problems[f"more than {MOST_CALLS} calls lie in between"] = None
                break
        if old.ledger_seqs[1] > new.ledger_seqs[1]:
            begin, end = end, begin
        files = {
            path: FileDifference(
                path=path,
                change="added" if begin[path] is None else "deleted" if end[path] is None else "changed",
                sha256_before=begin[path],
                sha256_after=end[path],
                receipts=tuple(by[path]),
            )
            for path in begin
            if begin[path] != end[path]
        }
        return _Between(files, tuple(problems))

    # -- content -------------------------------------------------------------------------------------------------------

    async def _content(self, caller: Caller, info: SandboxInfo, path: str, sha256: str) -> tuple[bytes, Label] | None:
        """A file of that digest, from where it still is; None if it is nowhere."""
        places: builtins.list[str] = [
            info.sandbox_id,
            *(one.snapshot_id for one in await self._likely(caller, info, path, sha256)),
        ]
        for place in places[: MOST_LOOKS + 1]:
            try:
                content, label = await self._comparisons.read(caller, place, path, session_of=info.sandbox_id)
            except Refused:
                raise
            except ColdframeError as error:
                if error.code == "TOO_LARGE":
                    raise
                continue  # the files are not there any more
            if content is not None and hashlib.sha256(content).hexdigest() == sha256:
                return content, label
        return None

    async def _likely(self, caller: Caller, info: SandboxInfo, path: str, sha256: str) -> builtins.list[SnapshotInfo]:
        """Snapshots that were taken while the file was so, by what the record says of it; the newest first."""
        if info.agent_id is None:
            kept = self._snapshots.list(caller, sandbox_id=info.sandbox_id)
        else:
            kept = self._snapshots.list(caller, agent_id=info.agent_id)
        kept = [one for one in kept if one.state == "ready"]
        if not kept:
            return []
        whose, name = ("agent_id", info.agent_id) if info.agent_id is not None else ("sandbox_id", info.sandbox_id)
        held: builtins.list[tuple[Any, Any]] = []
        """From when until when it was that one."""
        since: Any = None
        for at, before, after in reversed(await self._versions(whose, name, path)):
            if since is not None:
                held.append((since, parse_time(at)))
            elif before == sha256 and not held:
                held.append((None, parse_time(at)))  # it was there before anything is on record of it
            since = parse_time(at) if after == sha256 else None
        if since is not None:
            held.append((since, None))
        return [
            one
            for one in kept
            if any((b is None or b <= one.created_at) and (e is None or one.created_at <= e) for b, e in held)
        ]

    async def _versions(self, whose: str, name: str, path: str) -> builtins.list[tuple[Any, ...]]:
        """When a file became another one, newest first, as far back as the newest `MOST_CALLS` calls tell of it."""
        found = builtins.list[tuple[Any, ...]]()
        at, looked = 1 << 62, 0
        while looked < MOST_CALLS and (page := self._store.read(_NEWEST.format(whose=whose), (name, at, _PAGE))):
            for (at,) in page:
                found += self._store.read(_VERSIONS, (at, path))
                if len(found) >= MOST_VERSIONS:
                    return found
                await asyncio.sleep(0)  # a call may have changed many files, and others want their turn
            looked += len(page)
        return found


_NEWEST = """SELECT seq FROM ledger WHERE {whose} = ? AND kind = 'call.ended' AND seq < ? ORDER BY seq DESC LIMIT ?"""
_VERSIONS = """SELECT ledger.at, json_extract(file.value, '$.sha256_before'), json_extract(file.value, '$.sha256_after')
FROM ledger, json_each(json_extract(ledger.body, '$.files.changes')) AS file
WHERE ledger.seq = ? AND json_extract(file.value, '$.path') = ? AND json_extract(file.value, '$.change') != 'metadata'"""


def _problem(kind: str, body: dict[str, Any], *, sees_all: bool) -> str | None:
    """Why it is not known what an entry has changed; None if it is."""
    if kind == "sandbox.reset":
        return "the files were taken back to another point of time in between"
    if kind == "call.interrupted":
        return f"call `{body['call_id']}` was interrupted, and what it changed is not on record"
    if not sees_all and (body.get("decision") or {}).get("outcome") != "allow":
        return "a rule withheld the result of a call in between"
    files = body.get("files")
    if isinstance(files, dict) and not files.get("recorded", True):
        return (
            f"what call `{body['call_id']}` changed is not on record: {files.get('reason') or 'it was not looked at'}"
        )
    return None


def _hunks_of(text: str) -> builtins.list[Hunk]:
    heads = list(_HEAD.finditer(text))
    found = []
    for n, head in enumerate(heads):
        stop = heads[n + 1].start() if n + 1 < len(heads) else len(text)
        start_before, lines_before, start_after, lines_after = (1 if one is None else int(one) for one in head.groups())
        found.append(
            Hunk(
                start_before=start_before,
                lines_before=lines_before,
                start_after=start_after,
                lines_after=lines_after,
                text=text[head.end() : stop],
            )
        )
    return found
