"""Artifacts of a sandbox, put together from what is on record: nothing of it is kept twice, and nothing is started for it.

What each call has changed in the workspace stands in the ledger, with digests that were taken outside; so this can be told when
the sandbox has ended, too. Files of an agent's workspace are artifacts of all its sandboxes; what commands have printed is one
of the sandbox that they ran in. A correction by a person is an entry of the ledger, and holds for the path in that workspace.
"""

import asyncio
import builtins
import json
import mimetypes
from collections import Counter
from typing import Any, NamedTuple

from coldframe.contract.artifact import (
    Artifact,
    ArtifactCorrection,
    ArtifactCount,
    ArtifactKind,
    ArtifactOrigin,
    ArtifactPage,
)
from coldframe.contract.caller import Caller
from coldframe.contract.errors import NotFound
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.agents import Agents
from coldframe.control.artifact_kinds import Facts, Judged, judge, judge_stream
from coldframe.control.call_records import ids_of
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store
from coldframe.policy.labels import parse

MOST_CALLS = 20_000
"""Of a workspace that are looked through, the newest."""
MOST_FILES = 50_000
MOST_LISTED = 1000
MOST_ENDPOINTS = 10
_PAGE = 1000
_CUT = """SELECT seq FROM ledger WHERE {whose} = ? AND at >= ? AND kind = 'call.ended' ORDER BY seq DESC LIMIT 1 OFFSET ?"""
_ENTRIES = """SELECT seq FROM ledger WHERE {whose} = ? AND at >= ? AND seq > ? AND kind IN ('call.ended', 'sandbox.reset')
ORDER BY seq"""
_ENTRY = "SELECT kind, body FROM ledger WHERE seq = ?"
_START = "SELECT json_extract(body, '$.role'), json_extract(body, '$.command'), json_extract(body, '$.argv') FROM ledger WHERE seq = ?"
_REACHED = """SELECT DISTINCT host FROM network_contacts WHERE command_id = ? AND outcome = 'allow' AND NOT looked_up
ORDER BY host LIMIT ?"""
_NO_WORK = frozenset({".git", ".hg", ".svn", ".exec_history"})
"""Folders in which programs keep what is theirs."""


class _Call(NamedTuple):
    """What all that a call has left has in common."""

    body: dict[str, Any]
    origin: ArtifactOrigin
    command: str
    endpoints: tuple[str, ...]


class _Left(NamedTuple):
    call: _Call
    sha256: str | None
    bytes: int | None
    type: str | None
    judged: Judged


class Artifacts:
    """Of each sandbox."""

    def __init__(self, store: Store, ledger: Ledger, agents: Agents, sandboxes: Sandboxes) -> None:
        self._store = store
        self._ledger = ledger
        self._agents = agents
        self._sandboxes = sandboxes

    async def list(
        self,
        caller: Caller,
        sandbox_id: str,
        *,
        kinds: tuple[ArtifactKind, ...] = (),
        after: str | None = None,
        limit: int = MOST_LISTED,
    ) -> ArtifactPage:
        """Those of *kinds*, or all, in order of their names; also of a sandbox that has ended.

        Raises:
            GrantMissing, NotFound: not the caller's.
        """
        require(caller, "artifact.read")
        info = self._sandboxes.get(caller, sandbox_id)
        found, complete, withheld = await self._found(caller, info)
        counts = Counter(one.kind for one in found)
        wanted = [one for one in found if not kinds or one.kind in kinds]
        begin = 0 if after is None else _behind(wanted, after)
        page = wanted[begin : begin + min(limit, MOST_LISTED)]
        return ArtifactPage(
            artifacts=tuple(page),
            counts=tuple(ArtifactCount(kind=kind, number=number) for kind, number in sorted(counts.items())),
            next_after=page[-1].name if page and begin + len(page) < len(wanted) else None,
            complete=complete,
            withheld=withheld,
        )

    async def correct(self, caller: Caller, sandbox_id: str, asked: ArtifactCorrection) -> Artifact:
        """Have it be of the kind that a person says, or again of the one by the rules. It is recorded.

        Raises:
            GrantMissing, NotFound: not the caller's, or there is no such artifact.
        """
        require(caller, "artifact.correct")
        info = self._sandboxes.get(caller, sandbox_id)
        before = await self._named(caller, info, asked.name)
        body = {
            "sandbox_id": info.sandbox_id,
            "agent_id": info.agent_id,
            "name": asked.name,
            "kind": asked.kind,
            "kind_before": before.kind,
            "sha256": before.sha256,
            "caller": caller.name,
        }
        self._ledger.append("artifact.corrected", info.sandbox_id, body, durable=True)
        return await self._named(caller, info, asked.name)

    async def _named(self, caller: Caller, info: SandboxInfo, name: str) -> Artifact:
        found, _, _ = await self._found(caller, info)
        known = next((one for one in found if one.name == name), None)
        if known is None:
            raise NotFound(f"no artifact `{name[:200]}`", hint="list those that there are", sandbox_id=info.sandbox_id)
        return known

    # -- the record ----------------------------------------------------------------------------------------------------

    async def _found(self, caller: Caller, info: SandboxInfo) -> tuple[builtins.list[Artifact], bool, int]:
        """All of them, whether that is all there is, and how many calls were left out."""
        self._ledger.settle()
        whose, name, since = self._whose(info)
        cut = self._store.read(_CUT.format(whose=whose), (name, since, MOST_CALLS))
        entries = self._store.read(_ENTRIES.format(whose=whose), (name, since, cut[0][0] if cut else 0))
        sees_all = caller.role in (Role.OWNER, Role.ADMIN)
        files: dict[str, _Left] = {}
        streams: dict[str, _Left] = {}
        complete, withheld = not cut, 0
        for (seq,) in entries:
            ((kind, text),) = self._store.read(_ENTRY, (seq,))
            body = json.loads(text)
            if kind == "sandbox.reset":
                files.clear()
                continue
            changes = (body.get("files") or {}).get("changes") or ()
            mine = body["sandbox_id"] == info.sandbox_id
            if not changes and not (mine and body.get("command_id")):
                continue
            call = self._call_of(body)
            if not sees_all and (body.get("decision") or {}).get("outcome") != "allow":
                withheld += 1
                for change in changes:  # what is there now is not to be told of, and what was there is gone
                    files.pop(change["path"], None)
                continue
            if mine:
                streams |= _streams_of(call)
            complete = _note_files(files, call, changes) and complete
            await asyncio.sleep(0)  # a call may have changed many files, and others want their turn
        corrected = self._corrected(whose, name, since)
        told = [_artifact(path, files[path], corrected) for path in sorted(files)]
        told += [_artifact(path, left, corrected) for path, left in streams.items()]
        return told, complete, withheld

    def _whose(self, info: SandboxInfo) -> tuple[str, str, str]:
        """Which workspace it is: the column, its value, and since when it is this one."""
        if info.agent_id is None:
            return "sandbox_id", info.sandbox_id, format_time(info.created_at)
        try:
            began = self._agents.get(info.agent_id).created_at
        except NotFound:
            began = None
        if began is None or began > info.created_at:  # it was deleted since, and perhaps made again: that is another
            return "sandbox_id", info.sandbox_id, format_time(info.created_at)
        return "agent_id", info.agent_id, format_time(began)

    def _call_of(self, body: dict[str, Any]) -> _Call:
        started = self._store.read(_START, (body["started_seq"],))
        role, command, argv = started[0] if started else (None, None, None)
        reached: tuple[str, ...] = ()
        origin: ArtifactOrigin = "made"
        if body.get("command_id") is None:
            is_person = role not in (None, Role.AGENT.value) and body["tool"] in ("write_file", "write_path")
            origin = "uploaded" if is_person else "written"
        else:
            rows = self._store.read(_REACHED, (body["command_id"], MOST_ENDPOINTS))
            reached = tuple(host for (host,) in rows)
            if not reached:  # by its result: what the broker says of it may not be on record yet
                allowed = [one.rpartition(":")[0] for one in body.get("endpoints") or () if one.endswith(":allowed")]
                reached = tuple(dict.fromkeys(allowed))[:MOST_ENDPOINTS]
            origin = "downloaded" if reached else "made"
        line = command if command is not None else " ".join(json.loads(argv)) if argv else ""
        return _Call(body, origin, line, reached)

    def _corrected(self, whose: str, name: str, since: str) -> dict[str, tuple[ArtifactKind | None, str]]:
        """What people have said, by name: the last word holds."""
        found: dict[str, tuple[ArtifactKind | None, str]] = {}
        began, after = parse_time(since), 0
        about: dict[str, Any] = {whose: name}
        while page := self._ledger.entries(after=after, limit=_PAGE, kinds=("artifact.corrected",), **about):
            after = page[-1].seq
            for entry in page:
                if entry.at >= began:
                    found[entry.body["name"]] = (entry.body["kind"], entry.body["caller"])
        return found


def _behind(artifacts: builtins.list[Artifact], name: str) -> int:
    """Where those begin that follow; one that is gone since is followed by those with later names."""
    at = next((n for n, one in enumerate(artifacts, 1) if one.name == name), None)
    return sum(one.origin != "printed" and one.name < name for one in artifacts) if at is None else at


def _note_files(files: dict[str, _Left], call: _Call, changes: Any) -> bool:
    """What a call has made of them. False where there is no room for all."""
    outputs = {one["path"]: one for one in (call.body.get("outputs") or {}).get("found") or ()}
    for change in changes:
        path = change["path"]
        if change["change"] == "deleted":
            files.pop(path, None)
            continue
        if change["kind"] != "file" or change["change"] == "metadata" or _NO_WORK.intersection(path.split("/")):
            continue
        before = files.get(path)
        if before is None and len(files) >= MOST_FILES:
            return False
        declared = outputs.get(path)
        facts = Facts(
            path=path,
            origin=call.origin,
            command=call.command,
            said_source=call.body.get("source"),
            was_source=before is not None and before.judged.kind == "source",
            declared=None if declared is None else declared.get("kind", "file"),
        )
        files[path] = _Left(
            call,
            change.get("sha256_after"),
            change.get("bytes") if declared is None else declared["bytes"],
            None if declared is None else declared["type"],
            judge(facts),
        )
    return True


def _streams_of(call: _Call) -> dict[str, _Left]:
    return {
        f"{call.body['command_id']}/{name}": _Left(
            call._replace(origin="printed"), stream["sha256"], stream["bytes"], "text/plain", judge_stream()
        )
        for name in ("stdout", "stderr")
        if (stream := call.body.get(name)) and stream["bytes"]
    }


def _artifact(name: str, left: _Left, corrected: dict[str, tuple[ArtifactKind | None, str]]) -> Artifact:
    body = left.call.body
    kind, who = corrected.get(name, (None, None))
    return Artifact(
        name=name,
        kind=left.judged.kind if kind is None else kind,
        rule=left.judged.rule if kind is None else f"person: said by `{who}`",
        corrected_by=None if kind is None else who,
        origin=left.call.origin,
        sha256=left.sha256,
        bytes=left.bytes,
        type=left.type or mimetypes.guess_type(name.rpartition("/")[2], strict=False)[0],
        sandbox_id=body["sandbox_id"],
        call_id=body["call_id"],
        receipt_id=ids_of(body["call_id"]).receipt_id,
        command_id=body.get("command_id"),
        tool=body["tool"],
        by=body["caller"],
        at=parse_time(body["ended_at"]) if isinstance(body["ended_at"], str) else body["ended_at"],
        said_source=body.get("source"),
        endpoints=left.call.endpoints if left.call.origin == "downloaded" else (),
        label=parse(body["label"]),
    )
