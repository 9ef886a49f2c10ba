"""Summaries of workspaces: what whoever goes on needs first, from live data, in a few kilobytes.

What is read of files goes through the gate as calls of their tools, so that rules, labels and the record are those of these calls; the
rest is on record, or is asked of the box.
"""

import posixpath
from collections.abc import Callable
from datetime import datetime
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.command import CommandInfo
from coldframe.contract.errors import ColdframeError, FileMissing, from_wire
from coldframe.contract.files import ProcessInfo
from coldframe.contract.packages import PackageDrift
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import WITH_BOX, SandboxInfo
from coldframe.contract.summary import (
    MOST_BYTES,
    NOTES,
    FailedCommand,
    Notes,
    OpenPort,
    RecentChange,
    RunningCommand,
    TreeEntry,
    WorkspaceSummary,
)
from coldframe.control.call_records import ids_of
from coldframe.control.gate import Gate
from coldframe.control.ledger import Ledger
from coldframe.control.outputs import Outputs
from coldframe.control.packages import Packages
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.policy.labels import join

MOST_FILES = 5000
"""Of the workspace that are looked at."""
MOST_LISTED = 60
MOST_DEPTH = 3
"""Below it directories are told by how many files they have."""
MOST_SANDBOXES = 5
"""Of the same agent, the newest, whose record is looked at."""
MOST_CALLS = 60
"""Of each, the newest."""
MOST_CHANGES = 12
MOST_FAILED = 3
MOST_RUNNING = 8
MOST_DRIFT = 20
OUTPUT_BYTES = 700
NOTES_BYTES = 1500
COMMAND_CHARACTERS = 240
_CLOSED = frozenset({".git", "node_modules", ".venv", "venv", "site-packages", "__pycache__", ".cache", ".npm"})
"""Directories that nobody goes through for an overview."""
_LINES = {
    "execution.profile": "profile",
    "execution.template": "system",
    "execution.limits.wall_ms": "longest_command_ms",
    "execution.limits.memory_mib": "memory_mib",
    "effective_reach.network": "reaches",
}


class Summaries:
    """Starts nothing but what reads files."""

    def __init__(
        self,
        ledger: Ledger,
        sandboxes: Sandboxes,
        gate: Gate,
        outputs: Outputs,
        packages: Packages,
        clock: Callable[[], datetime],
    ) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._gate = gate
        self._outputs = outputs
        self._packages = packages
        self._clock = clock

    async def summarize(self, caller: Caller, sandbox_id: str) -> WorkspaceSummary:
        """As it is now. A part that the caller may not have is left out, and said so.

        Raises:
            GrantMissing, NotFound: not the caller's.
        """
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        beside = self._beside(caller, info)
        left_out: list[str] = []
        tree, files = await self._tree(caller, info, left_out)
        notes = await self._notes(caller, info, files, left_out)
        processes = await self._processes(caller, info, left_out)
        drift, label = await self._drift(caller, info, left_out)
        commands: list[tuple[str, CommandInfo]] = []
        for one in beside:
            found = await self._outputs.commands(caller, one.sandbox_id, newest=MOST_CALLS)
            commands += [(one.sandbox_id, command) for command in found]
        failed = await self._failed(caller, commands)
        now = self._sandboxes.get(caller, sandbox_id)
        session = self._sandboxes.session(now)
        return fitted(
            WorkspaceSummary(
                sandbox_id=sandbox_id,
                agent_id=now.agent_id,
                profile=now.spec.profile,
                state=now.state.state,
                at=self._clock(),
                label=join(label, now.workspace_label, session.taint),
                tree=tree,
                recent_changes=self._changes(beside),
                running=_running(commands, processes),
                failed=failed,
                ports=_ports(processes),
                drift=drift,
                notes=notes,
                contract=await self._contract(caller, now),
                left_out=tuple(left_out),
            )
        )

    def _beside(self, caller: Caller, info: SandboxInfo) -> list[SandboxInfo]:
        """It, and the newest of those that are or were on the same workspace."""
        if info.agent_id is None:
            return [info]
        others = self._sandboxes.list(caller, agent_id=info.agent_id, limit=MOST_SANDBOXES)
        mine = [one for one in others if one.sandbox_id != info.sandbox_id and self._sandboxes.has_its_agent(one)]
        return [*mine[: MOST_SANDBOXES - 1], info]

    async def _tree(
        self, caller: Caller, info: SandboxInfo, left_out: list[str]
    ) -> tuple[tuple[TreeEntry, ...], frozenset[str]]:
        """What is told of it, and all files by name."""
        asked = {"path": "", "recursive": True, "max_entries": MOST_FILES}
        value = await self._read(caller, info, "list_directory", asked, "tree", left_out)
        if value is None:
            return (), frozenset()
        if not value["complete"]:
            left_out.append(f"tree: more than {MOST_FILES} files")
        entries = [(one["path"], one["type"], one["size"]) for one in value["entries"]]
        return overview(entries, left_out), frozenset(path for path, kind, _ in entries if kind == "file")

    async def _notes(
        self, caller: Caller, info: SandboxInfo, files: frozenset[str], left_out: list[str]
    ) -> Notes | None:
        path = next((one for one in NOTES if one in files), None)
        if path is None:
            return None
        value = await self._read(caller, info, "read_file", {"path": path, "length": NOTES_BYTES}, "notes", left_out)
        if value is None or value["content"] is None:
            return None
        return Notes(path=path, text=value["content"], complete=value["complete"])

    async def _read(
        self, caller: Caller, info: SandboxInfo, tool: str, arguments: dict[str, Any], part: str, left_out: list[str]
    ) -> dict[str, Any] | None:
        try:
            result = await self._gate.call(caller, info.sandbox_id, tool, arguments)
            if result.error is not None:
                raise from_wire(result.error)
            return result.value
        except FileMissing:
            return None
        except ColdframeError as error:
            left_out.append(f"{part}: {error.code}")
            return None

    async def _processes(self, caller: Caller, info: SandboxInfo, left_out: list[str]) -> list[ProcessInfo]:
        if info.state.state not in WITH_BOX:
            return []
        try:
            return await self._sandboxes.processes(caller, info.sandbox_id)
        except ColdframeError as error:
            left_out.append(f"ports: {error.code}")
            return []

    async def _drift(
        self, caller: Caller, info: SandboxInfo, left_out: list[str]
    ) -> tuple[tuple[PackageDrift, ...], Label]:
        try:
            found = await self._packages.drift(caller, info.sandbox_id)
        except ColdframeError as error:
            left_out.append(f"drift: {error.code}")
            found = None
        lines, label = found or ((), Label.PUBLIC)
        if len(lines) > MOST_DRIFT:
            left_out.append(f"drift: {len(lines) - MOST_DRIFT} packages")
        return lines[:MOST_DRIFT], label

    async def _failed(self, caller: Caller, commands: list[tuple[str, CommandInfo]]) -> tuple[FailedCommand, ...]:
        """Those that failed last. One that was repeated is told once."""
        ended = [(sandbox_id, one) for sandbox_id, one in commands if one.result is not None]
        ended.sort(key=lambda pair: pair[1].result.ended_at if pair[1].result else self._clock(), reverse=True)
        found: list[FailedCommand] = []
        passed: set[str] = set()
        seen: set[str] = set()
        for sandbox_id, one in ended:
            result = one.result
            assert result is not None
            if result.exit_code == 0:
                passed.add(one.command_line)
                continue
            if one.command_line not in seen and len(found) < MOST_FAILED:
                found.append(
                    FailedCommand(
                        sandbox_id=sandbox_id,
                        command_id=one.command_id,
                        command=_short(one.command_line),
                        exit_code=result.exit_code,
                        ended=result.ended,
                        ended_at=result.ended_at,
                        last_output=await self._last_output(caller, sandbox_id, one),
                        passed_since=one.command_line in passed,
                    )
                )
            seen.add(one.command_line)
        return tuple(found)

    async def _last_output(self, caller: Caller, sandbox_id: str, command: CommandInfo) -> str:
        assert command.result is not None
        sizes = {"stderr": command.result.stderr.bytes, "stdout": command.result.stdout.bytes}
        for stream in ("stderr", "stdout"):
            if not sizes[stream]:
                continue
            offset = max(sizes[stream] - OUTPUT_BYTES, 0)
            try:
                window = await self._outputs.output(
                    caller, sandbox_id, command.command_id, "stderr" if stream == "stderr" else "stdout", offset
                )
            except ColdframeError as error:
                return f"[{error.code}]"
            return window.data.decode("utf-8", "replace")
        return ""

    def _changes(self, beside: list[SandboxInfo]) -> tuple[RecentChange, ...]:
        """The newest of each file, whoever changed it."""
        self._ledger.settle()
        entries = [
            entry
            for info in beside
            for entry in self._ledger.newest(info.sandbox_id, "call.ended", limit=MOST_CALLS)
            if entry.body.get("files")
        ]
        found: dict[str, RecentChange] = {}
        for entry in sorted(entries, key=lambda one: one.seq, reverse=True):
            for change in entry.body["files"]["changes"]:
                path = str(change["path"])
                if path in found or change["kind"] != "file" or _is_closed(path):
                    continue
                found[path] = RecentChange(
                    path=path,
                    change=change["change"],
                    at=entry.at,
                    receipt_id=ids_of(entry.subject).receipt_id,
                    session_id=entry.body["session_id"],
                )
        return tuple(found.values())[:MOST_CHANGES]

    async def _contract(self, caller: Caller, info: SandboxInfo) -> dict[str, Any]:
        """Of the newest version, as it was issued."""
        document = await self._sandboxes.contract(caller, info.sandbox_id)
        lines = {one.id: one for section in (document.execution, document.effective_reach) for one in section}
        found: dict[str, Any] = {short: lines[name].value for name, short in _LINES.items() if name in lines}
        return {"version": document.version, **found}


def overview(entries: list[tuple[str, str, int]], left_out: list[str]) -> tuple[TreeEntry, ...]:
    """Files near the top by name, and what lies deeper, or is nobody's own, by how many there are."""
    counted: dict[str, int] = {}
    shown: list[TreeEntry] = []
    for path, kind, size in entries:
        if path.split("/")[0] == ".exec_history":
            continue
        if (folder := _closed_at(path, is_directory=kind == "directory")) is not None:
            counted[folder] = counted.get(folder, 0) + (kind != "directory")
        elif kind != "directory":
            shown.append(TreeEntry(path=path, bytes=size))
    shown += [TreeEntry(path=f"{folder}/", files=count) for folder, count in counted.items()]
    shown.sort(key=lambda one: (one.path.count("/"), one.path))
    if len(shown) > MOST_LISTED:
        left_out.append(f"tree: {len(shown) - MOST_LISTED} entries")
    return tuple(sorted(shown[:MOST_LISTED], key=lambda one: one.path))


def _closed_at(path: str, *, is_directory: bool) -> str | None:
    """The directory on the way to it that is told as a whole."""
    parts = path.split("/")
    folders = parts if is_directory else parts[:-1]
    for depth, part in enumerate(folders, 1):
        if part in _CLOSED or depth > MOST_DEPTH:
            return posixpath.join(*parts[:depth])
    return None


def _is_closed(path: str) -> bool:
    return any(part in _CLOSED for part in path.split("/"))


def _running(commands: list[tuple[str, CommandInfo]], processes: list[ProcessInfo]) -> tuple[RunningCommand, ...]:
    ports: dict[str, set[int]] = {}
    for one in processes:
        if one.command_id is not None:
            ports.setdefault(one.command_id, set()).update(port.port for port in one.ports)
    found = [
        RunningCommand(
            sandbox_id=sandbox_id,
            command_id=one.command_id,
            command=_short(one.command_line),
            started_at=one.started_at,
            ports=tuple(sorted(ports.get(one.command_id, ()))),
        )
        for sandbox_id, one in commands
        if one.state == "running" and one.started_at is not None
    ]
    return tuple(found[-MOST_RUNNING:])


def _ports(processes: list[ProcessInfo]) -> tuple[OpenPort, ...]:
    found = {
        (port.port, port.address): OpenPort(port=port.port, address=port.address, command_id=one.command_id)
        for one in processes
        for port in one.ports
    }
    return tuple(found[key] for key in sorted(found))


def _short(text: str) -> str:
    return text if len(text) <= COMMAND_CHARACTERS else f"{text[:COMMAND_CHARACTERS]}…"


def fitted(summary: WorkspaceSummary) -> WorkspaceSummary:
    """*summary* in at most MOST_BYTES, shortened where it is longest: the tree, then what changed, output, notes."""
    steps: tuple[tuple[str, Callable[[WorkspaceSummary], Any]], ...] = (
        ("tree", lambda one: one.tree[: len(one.tree) // 2]),
        ("recent_changes", lambda one: one.recent_changes[: len(one.recent_changes) // 2]),
        ("failed", lambda one: tuple(_with_less(failed) for failed in one.failed)),
        ("drift", lambda one: one.drift[: len(one.drift) // 2]),
        ("notes", lambda one: None if one.notes is None else _less_notes(one.notes)),
        ("running", lambda one: one.running[: len(one.running) // 2]),
        ("ports", lambda one: one.ports[: len(one.ports) // 2]),
        ("contract", lambda _: {}),
    )
    for _ in range(8):
        for name, shorter in steps:
            if len(summary.model_dump_json().encode()) <= MOST_BYTES:
                return summary
            less = shorter(summary)
            if less == getattr(summary, name):
                continue
            said = (
                summary.left_out
                if f"{name}: shortened" in summary.left_out
                else (*summary.left_out, f"{name}: shortened")
            )
            summary = summary.model_copy(update={name: less, "left_out": said})
    return summary.model_copy(update={"tree": (), "recent_changes": (), "failed": (), "notes": None, "running": ()})


def _with_less(failed: FailedCommand) -> FailedCommand:
    kept = len(failed.last_output) // 2
    return failed.model_copy(update={"last_output": failed.last_output[-kept:] if kept else ""})


def _less_notes(notes: Notes) -> Notes:
    return notes.model_copy(update={"text": notes.text[: len(notes.text) // 2], "complete": False})
