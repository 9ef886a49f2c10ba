"""Inputs of a sandbox, put together from what is on record: nothing of it is kept twice.

A file is an input from the call that wrote it from outside until something takes its place: another such call, an edit, a
command, a reset. What commands make is no input. Files of an agent's workspace are inputs of all its sandboxes.
"""

import asyncio
import builtins
from datetime import UTC, datetime
from typing import NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import NotFound
from coldframe.contract.inputs import MOST_INPUTS, InputEntry, InputsPage
from coldframe.contract.persistence import HOME
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.agents import Agents
from coldframe.control.credentials import Credentials
from coldframe.control.ledger import MAX_ENTRIES, Ledger, format_time, parse_time
from coldframe.control.network_terms import find_terms
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store
from coldframe.policy.labels import parse

_CHANGES = """SELECT ledger.seq, ledger.at, ledger.kind, json_extract(body, '$.call_id'), json_extract(body, '$.tool'),
json_extract(body, '$.caller'), json_extract(body, '$.label'), json_extract(body, '$.source'),
json_extract(file.value, '$.path'), json_extract(file.value, '$.change'), json_extract(file.value, '$.sha256_after'),
json_extract(file.value, '$.bytes')
FROM ledger LEFT JOIN json_each(json_extract(body, '$.files.changes')) AS file
WHERE ledger.seq = ? AND (ledger.kind = 'sandbox.reset' OR (json_extract(file.value, '$.kind') = 'file'
AND json_extract(file.value, '$.change') != 'metadata'))"""
_ENTRIES = """SELECT seq FROM ledger WHERE {whose} = ? AND at >= ? AND seq > ? AND kind IN ('call.ended', 'sandbox.reset')
ORDER BY seq"""
_CUT = """SELECT seq FROM ledger WHERE {whose} = ? AND at >= ? AND kind = 'call.ended' ORDER BY seq DESC LIMIT 1 OFFSET ?"""
MOST_CALLS = 20_000
"""Of a workspace that are looked through, the newest."""
_ENDS = {"write_file": "replaced", "edit_file": "edited"}


class _Change(NamedTuple):
    seq: int
    at: str
    kind: str
    call_id: str | None
    tool: str | None
    caller: str | None
    label: str | None
    source: str | None
    path: str
    change: str
    sha256: str | None
    bytes: int | None


class Inputs:
    """Of each sandbox. Starts nothing."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        agents: Agents,
        rulebook: Rulebook,
        sandboxes: Sandboxes,
        credentials: Credentials,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._agents = agents
        self._rulebook = rulebook
        self._sandboxes = sandboxes
        self._credentials = credentials

    async def list(self, caller: Caller, sandbox_id: str) -> InputsPage:
        """All of them, those that hold no more too. For people, as all that is read from the ledger.

        Raises:
            GrantMissing, NotFound: not the caller's.
        """
        require(caller, "ledger.read")
        info = self._sandboxes.get(caller, sandbox_id)
        files, complete = await self._files(info)
        fixed = [*self._made_of(info), *self._volumes_of(info), *self._credentials_of(info)]
        return InputsPage(inputs=(*fixed, *files[-MOST_INPUTS:]), complete=complete and len(files) <= MOST_INPUTS)

    def _made_of(self, info: SandboxInfo) -> builtins.list[InputEntry]:
        """What it was made with."""
        made = self._ledger.entries(sandbox_id=info.sandbox_id, kinds=("sandbox.created",), limit=1)
        by = str(made[0].body["caller"]) if made else "server"
        commands = _commands_of(info)
        entries = [
            InputEntry(
                type="template",
                name=info.spec.template,
                source="the system of this machine"
                if info.spec.template == "host"
                else "a template of this installation",
                sha256=info.template_sha256,
                mount="/",
                mode="read-write" if info.spec.profile == "computer" else "read",
                readable_by=commands,
                granted_by=by,
                valid_from=info.created_at,
            ),
            InputEntry(
                type="workspace",
                name=info.agent_id or info.session_id,
                source="a temporary workspace" if info.agent_id is None else f"agent `{info.agent_id}`",
                label=info.workspace_label,
                mount=HOME,
                mode="read-write",
                readable_by=commands,
                granted_by=by,
                valid_from=min(self._began(info), info.created_at),
            ),
        ]
        if info.spec.snapshot is not None:
            entries.append(
                InputEntry(
                    type="snapshot",
                    name=info.spec.snapshot,
                    source="a snapshot of this installation",
                    mount=HOME,
                    mode="read-write",
                    readable_by=commands,
                    granted_by=by,
                    valid_from=info.created_at,
                )
            )
        if self._packages(info):
            entries.append(
                InputEntry(
                    type="packages",
                    name="cache",
                    source="the registries that this machine is set to, and what was fetched from them before",
                    mode="brokered",
                    readable_by=commands,
                    granted_by=f"network profile {', '.join(info.network or ())}",
                    valid_from=info.created_at,
                )
            )
        return entries

    def _volumes_of(self, info: SandboxInfo) -> builtins.list[InputEntry]:
        """One entry for each time that it had one: it may have stopped and started. Of one that was removed what is on
        record is told."""
        kinds = ("volume.attached", "volume.detached", "volume.label_raised")
        found: dict[str, builtins.list[InputEntry]] = {}
        for entry in self._ledger.entries(sandbox_id=info.sandbox_id, kinds=kinds, limit=MAX_ENTRIES):
            body, own = entry.body, found.setdefault(entry.subject, [])
            if entry.kind == "volume.attached":
                own.append(
                    InputEntry(
                        type="volume",
                        name=body["name"],
                        version=len(own) + 1,
                        source=f"volume `{body['volume_id']}`",
                        label=parse(body["label"]),
                        mount=body["at"],
                        mode="read" if body["mode"] == "ro" else "read-write",
                        readable_by=f"{_commands_of(info)}; and whoever has the volume",
                        granted_by=body["caller"],
                        valid_from=entry.at,
                    )
                )
            elif own and entry.kind == "volume.detached":
                own[-1] = own[-1].model_copy(update={"valid_until": entry.at, "ended_by": "detached"})
            elif own:
                own[-1] = own[-1].model_copy(update={"label": parse(body["label_after"])})
        return [one for own in found.values() for one in own]

    def _credentials_of(self, info: SandboxInfo) -> builtins.list[InputEntry]:
        if info.network is None:
            return []
        return [
            InputEntry(
                type="credential",
                name=one.terms.name,
                source=one.terms.base,
                label=one.terms.label,
                mode="brokered",
                readable_by="nobody: commands have a handle in its place",
                granted_by=one.added_by,
                valid_from=one.created_at,
                valid_until=one.terms.expires_at,
            )
            for one in self._credentials.usable_in(info)
        ]

    async def _files(self, info: SandboxInfo) -> tuple[builtins.list[InputEntry], bool]:
        """Their versions, and whether that is all."""
        self._ledger.settle()
        began, whose, name = self._began(info), "sandbox_id", info.sandbox_id
        if info.agent_id is not None and began <= info.created_at:
            whose, name = "agent_id", info.agent_id
        since = format_time(min(began, info.created_at))
        cut = self._store.read(_CUT.format(whose=whose), (name, since, MOST_CALLS))
        entries = self._store.read(_ENTRIES.format(whose=whose), (name, since, cut[0][0] if cut else 0))
        readable = _commands_of(info)
        found: builtins.list[InputEntry] = []
        standing: dict[str, int] = {}
        """Path: where its entry is that still holds."""
        versions: dict[str, int] = {}

        def end(path: str, at: datetime, how: str) -> None:
            place = standing.pop(path, None)
            if place is not None:
                found[place] = found[place].model_copy(update={"valid_until": at, "ended_by": how})

        for entry in entries:
            for change in map(_Change._make, self._store.read(_CHANGES, entry)):
                at = parse_time(change.at)
                if change.kind == "sandbox.reset":
                    for path in [*standing]:
                        end(path, at, "reset")
                    continue
                how = "deleted" if change.change == "deleted" else _ENDS.get(change.tool or "", "changed by a command")
                end(change.path, at, f"{how}, call {change.call_id}")
                if change.tool != "write_file":
                    continue
                versions[change.path] = versions.get(change.path, 0) + 1
                standing[change.path] = len(found)
                found.append(
                    InputEntry(
                        type="file",
                        name=change.path,
                        version=versions[change.path],
                        source=f"written through {(change.caller or '').partition(':')[0]}",
                        said_source=change.source,
                        sha256=change.sha256,
                        bytes=change.bytes,
                        label=parse(change.label),
                        mount=f"{HOME}/{change.path}",
                        mode="read-write",
                        readable_by=readable,
                        granted_by=change.caller or "",
                        call_id=change.call_id,
                        valid_from=at,
                    )
                )
            await asyncio.sleep(0)  # a call may have changed many files, and others want their turn
        return found, not cut

    def _began(self, info: SandboxInfo) -> datetime:
        """When the workspace began; after the sandbox if its agent was deleted, and perhaps made again: that is another."""
        if info.agent_id is None:
            return info.created_at
        try:
            return self._agents.get(info.agent_id).created_at
        except NotFound:
            return datetime.max.replace(tzinfo=UTC)

    def _packages(self, info: SandboxInfo) -> bool:
        rules = self._rulebook.in_force
        return rules is not None and info.network is not None and find_terms(rules.network, info.network).registries


def _commands_of(info: SandboxInfo) -> str:
    whose = "this sandbox" if info.agent_id is None else f"every sandbox of agent `{info.agent_id}`"
    return f"commands of {whose}, and whoever may call tools there"
