"""A small real machine for tests of control: a temporary directory, plain subprocesses, no walls.

It keeps the contract of `contract/ports.py` (attach by command id, events by sequence, typed errors, the
workspace layout), so a test of control that passes here fails for the same reasons as on a real host. What
it does not do: isolate, limit, record contacts, or list leftovers.
"""

import asyncio
import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
import signal as signals
import stat
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

from coldframe.contract.command import (
    CommandEvent,
    CommandInfo,
    CommandResult,
    CommandSpec,
    Contact,
    Ended,
    FileChange,
    FileChanges,
    OutputChunk,
    Started,
    StreamInfo,
)
from coldframe.contract.errors import (
    Conflict,
    EditNotFound,
    EditNotUnique,
    FileMissing,
    GuestLost,
    InvalidPattern,
    IsDirectory,
    NotDirectory,
    NotFound,
    NotRegular,
    OutsideWorkspace,
    ReadOnly,
    TooLarge,
)
from coldframe.contract.files import (
    READ_CAP_BYTES,
    CommandsAnswer,
    Done,
    EditAnswer,
    EditFile,
    FileInfo,
    FileKind,
    ListAnswer,
    ListCommands,
    ListDirectory,
    ListProcesses,
    ListRuntimes,
    MakeDirectory,
    ProcessesAnswer,
    ProcessInfo,
    ReadAnswer,
    ReadFile,
    RemovePath,
    Request,
    ResizeTerminal,
    Runtime,
    RuntimesAnswer,
    SearchAnswer,
    SearchFiles,
    SearchMatch,
    SignalCommand,
    TightenLimits,
    WriteAnswer,
    WriteFile,
)
from coldframe.contract.isolation import IsolationReport, LimitReport, Property
from coldframe.contract.model import Model
from coldframe.contract.ports import BoxStatus
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host.history_tail import unseen

A = TypeVar("A", bound=Model)
PARTS = ("scratch", "integrations", "skills", ".exec_history")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fake_report() -> IsolationReport:
    """A report that says what is true of the fake: nothing is enforced."""
    return IsolationReport(
        level="namespaces",
        kernel="shared",
        kernel_release=os.uname().release,
        measured_at=datetime.now(UTC),
        properties=(Property(name="filesystem", state="absent", mechanism="none", evidence="this is a fake"),),
        limits=(LimitReport(kind="wall", limit=600, unit="s", strength="hard", enforced_by="the fake"),),
        mounts=(),
        namespaces={},
        sentences=("a fake promises nothing",),
    )


class FakeCommand:
    """One command with all its events; runs to its end whoever watches."""

    def __init__(self, spec: CommandSpec, workspace: str) -> None:
        self.spec = spec
        self.workspace = workspace
        self.events: list[CommandEvent] = []
        self.result: CommandResult | None = None
        self.lost = False
        self.pid: int | None = None
        self.cancelled = False
        self._timed_out = False
        self._changed = asyncio.Condition()
        self._task = asyncio.ensure_future(self._run())

    async def _emit(self, event: CommandEvent) -> None:
        async with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    async def watch(self, after_seq: int, *, attached: bool) -> AsyncIterator[CommandEvent]:
        position = 0
        while True:
            async with self._changed:
                while position == len(self.events) and not self.lost:
                    await self._changed.wait()
            if position == len(self.events):
                raise GuestLost("the keeper of the sandbox ended")
            event = self.events[position]
            position += 1
            if isinstance(event, OutputChunk) and event.seq <= after_seq:
                continue
            if isinstance(event, Started) and attached:
                event = event.model_copy(update={"attached": True})
            yield event
            if isinstance(event, Ended):
                return

    def end_tree(self, number: int) -> None:
        if self.pid is not None and self.result is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def lose(self) -> None:
        """What a killed keeper leaves: processes gone, no result."""
        self.end_tree(signals.SIGKILL)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        async with self._changed:
            self.lost = self.result is None
            self._changed.notify_all()

    async def _run(self) -> None:
        spec, started_at = self.spec, datetime.now(UTC)
        before = _digests(self.workspace) if spec.track_files else {}
        argv = list(spec.argv) if spec.argv is not None else ["bash", "-c", spec.shell or ""]
        cwd = os.path.join(self.workspace, spec.cwd)
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": self.workspace, "LANG": "C.UTF-8", **spec.env}
        buffers = {"stdout": b"", "stderr": b""}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            await self._emit(Started(command_id=spec.command_id, pid=None, at=started_at))
            unstarted = 127 if isinstance(error, FileNotFoundError) else 126
            await self._end("not_started", unstarted, None, started_at, buffers, before, start_error=str(error))
            return
        self.pid = process.pid
        await self._emit(Started(command_id=spec.command_id, pid=process.pid, at=started_at))
        seq = 0

        async def pump(name: str, reader: asyncio.StreamReader) -> None:
            nonlocal seq
            while data := await reader.read(65536):
                buffers[name] += data
                number, seq = seq, seq + 1
                await self._emit(OutputChunk(seq=number, stream="stdout" if name == "stdout" else "stderr", data=data))

        async def feed(writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                writer.write(spec.stdin)
                await writer.drain()
                writer.close()
                await writer.wait_closed()

        def time_out() -> None:
            self._timed_out = True
            self.end_tree(signals.SIGKILL)

        timer = asyncio.get_running_loop().call_later(spec.timeout_s, time_out)
        try:
            if process.stdin is None or process.stdout is None or process.stderr is None:
                raise AssertionError("all three streams were asked for")
            await asyncio.gather(
                pump("stdout", process.stdout), pump("stderr", process.stderr), feed(process.stdin), process.wait()
            )
        finally:
            timer.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signals.SIGKILL)
                await process.wait()
        code = await process.wait()
        ended_by = -code if code < 0 else None
        kind = (
            "timed_out" if self._timed_out else "cancelled" if self.cancelled else "signalled" if ended_by else "exited"
        )
        await self._end(kind, 128 + ended_by if ended_by else code, ended_by, started_at, buffers, before)

    async def _end(
        self,
        kind: Any,
        exit_code: int,
        number: int | None,
        started_at: datetime,
        buffers: dict[str, bytes],
        before: dict[str, str],
        *,
        start_error: str | None = None,
    ) -> None:
        now = datetime.now(UTC)
        self.result = CommandResult(
            command_id=self.spec.command_id,
            ended=kind,
            exit_code=exit_code,
            signal=number,
            timed_out=kind == "timed_out",
            cancelled=kind == "cancelled",
            start_error=start_error,
            started_at=started_at,
            ended_at=now,
            duration_ms=(now - started_at).total_seconds() * 1000,
            stdout=_stream(buffers["stdout"]),
            stderr=_stream(buffers["stderr"]),
            order="approximate",
            files=self._changes(before),
            artifact_id=self.spec.command_id,
        )
        await self._emit(Ended(result=self.result))

    def _changes(self, before: dict[str, str]) -> FileChanges:
        if not self.spec.track_files:
            return FileChanges(recorded=False, reason="switched off")
        after = _digests(self.workspace)
        changes = [
            FileChange(
                path=path,
                change="created" if path not in before else "deleted" if path not in after else "changed",
                kind="file",
                sha256_before=before.get(path),
                sha256_after=after.get(path),
            )
            for path in sorted(before.keys() | after.keys())
            if before.get(path) != after.get(path)
        ]
        return FileChanges(recorded=True, changes=tuple(changes))

    def info(self) -> CommandInfo:
        state: Any = "ended" if self.result else "lost" if self.lost else "running"
        line = self.spec.shell if self.spec.shell is not None else " ".join(self.spec.argv or ())
        return CommandInfo(
            command_id=self.spec.command_id, state=state, pid=self.pid, command_line=line, result=self.result
        )


class FakeBox:
    """`Box` and `BoxLife` in one."""

    def __init__(self, host: "FakeHost", sandbox_id: str, spec: SandboxSpec, workspace: str) -> None:
        self.sandbox_id = sandbox_id
        self.spec = spec
        self.workspace = workspace
        self.created_at = datetime.now(UTC)
        self.commands: dict[str, FakeCommand] = {}
        self.state: Any = "running"
        self._host = host

    def _check_alive(self) -> None:
        if self.state != "running":
            raise GuestLost(f"the keeper of sandbox `{self.sandbox_id}` ended")

    async def run(self, spec: CommandSpec) -> AsyncIterator[CommandEvent]:
        self._check_alive()
        command = self.commands.get(spec.command_id)
        attached = command is not None
        if command is None:
            self._host.ran.append(spec)
            command = self.commands[spec.command_id] = FakeCommand(spec, self.workspace)
        async for event in command.watch(-1, attached=attached):
            yield event

    async def follow(self, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        self._check_alive()
        async for event in self._command(command_id).watch(after_seq, attached=True):
            yield event

    def _command(self, command_id: str) -> FakeCommand:
        if command_id not in self.commands:
            raise NotFound(f"no command `{command_id}`", command_id=command_id)
        return self.commands[command_id]

    async def ask(self, request: Request[A]) -> A:
        self._check_alive()
        self._host.asked.append(request)
        serve: Callable[[FakeBox, Any], Any] = _VERBS[type(request)]
        answer: A = serve(self, request)
        return answer

    async def write(self, request: WriteFile, content: AsyncIterable[bytes]) -> WriteAnswer:
        self._check_alive()
        self._host.asked.append(request)
        data = b"".join([part async for part in content])
        return self._write(request, data)

    async def report(self) -> IsolationReport:
        return fake_report()

    async def contacts(self) -> list[Contact]:
        return []

    async def end(self) -> None:
        for command in self.commands.values():
            await command.lose()
        self.state = "ended"
        self._host.forget(self.sandbox_id)

    # Files.

    def _resolve(self, path: str, *, writing: bool = False) -> str:
        root = os.path.realpath(self.workspace)
        found = os.path.realpath(os.path.join(root, path))
        if path.startswith("/") or (found != root and not found.startswith(root + "/")):
            raise OutsideWorkspace(f"`{path}` leaves the workspace", path=path)
        if writing and (found + "/").startswith(root + "/.exec_history/"):
            raise ReadOnly(f"`{path}` is read-only", path=path)
        return found

    def _existing(self, path: str, *, writing: bool = False) -> str:
        found = self._resolve(path, writing=writing)
        if not os.path.lexists(found):
            raise FileMissing(f"no file `{path}`", path=path)
        return found

    def _content(self, path: str, *, writing: bool = False) -> tuple[str, bytes]:
        found = self._existing(path, writing=writing)
        if os.path.isdir(found):
            raise IsDirectory(f"`{path}` is a directory", path=path)
        if not os.path.isfile(found):
            raise NotRegular(f"`{path}` is no regular file", path=path)
        with open(found, "rb") as file:
            return found, file.read()

    def _read(self, request: ReadFile) -> ReadAnswer:
        found, data = self._content(request.path)
        _check_version(request.path, request.if_version, _version(found))
        end = len(data) if request.length is None else request.offset + request.length
        part = data[request.offset : end]
        if len(part) > READ_CAP_BYTES:
            raise TooLarge(f"`{request.path}` has {len(data)} bytes", limit=READ_CAP_BYTES)
        return ReadAnswer(
            path=request.path,
            content=part,
            offset=request.offset,
            total_bytes=len(data),
            complete=len(part) == len(data),
            version=_version(found),
            mode=stat.S_IMODE(os.stat(found).st_mode),
        )

    def _write_plain(self, request: WriteFile) -> WriteAnswer:
        return self._write(request, request.content)

    def _write(self, request: WriteFile, data: bytes) -> WriteAnswer:
        found = self._resolve(request.path, writing=True)
        before: bytes | None = None
        if os.path.lexists(found):
            before = self._content(request.path, writing=True)[1]
            if request.create_only:
                raise Conflict(f"`{request.path}` exists", path=request.path)
        _check_version(request.path, request.if_version, _version(found) if before is not None else None)
        try:
            os.makedirs(os.path.dirname(found), exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise NotDirectory(f"a parent of `{request.path}` is no directory", path=request.path) from None
        mode = request.mode if request.mode is not None else stat.S_IMODE(os.stat(found).st_mode) if before else 0o644
        _replace(found, data, mode)
        return WriteAnswer(
            path=request.path,
            bytes_written=len(data),
            created=before is None,
            version=_version(found),
            sha256=sha256(data),
            sha256_before=None if before is None else sha256(before),
        )

    def _edit(self, request: EditFile) -> EditAnswer:
        found, before = self._content(request.path, writing=True)
        _check_version(request.path, request.if_version, _version(found))
        data, replacements = before, 0
        for edit in request.edits:
            old = edit.old.encode()
            count = data.count(old) if old else 0
            if count == 0:
                raise EditNotFound(f"the old text does not occur in `{request.path}`", path=request.path)
            if count > 1 and not edit.replace_all:
                raise EditNotUnique(f"the old text occurs {count} times in `{request.path}`", occurrences=count)
            data = data.replace(old, edit.new.encode())
            replacements += count
        _replace(found, data, stat.S_IMODE(os.stat(found).st_mode))
        return EditAnswer(
            path=request.path,
            content=data,
            replacements=replacements,
            bytes_written=len(data),
            version=_version(found),
            sha256=sha256(data),
            sha256_before=sha256(before),
        )

    def _list(self, request: ListDirectory) -> ListAnswer:
        found = self._existing(request.path)
        if not os.path.isdir(found):
            raise NotDirectory(f"`{request.path}` is no directory", path=request.path)
        entries: list[FileInfo] = []
        for path, depth in _tree(found):
            if depth > 1 and (not request.recursive or depth > (request.max_depth or depth)):
                continue
            if len(entries) == request.max_entries:
                return ListAnswer(
                    path=request.path, entries=tuple(entries), complete=False, truncated_because="max_entries"
                )
            entries.append(_info(path, os.path.relpath(path, os.path.realpath(self.workspace))))
        return ListAnswer(path=request.path, entries=tuple(entries), complete=True)

    def _search(self, request: SearchFiles) -> SearchAnswer:
        try:
            flags = re.IGNORECASE if request.ignore_case else 0
            pattern = re.compile(request.pattern if request.regex else re.escape(request.pattern), flags)
        except re.error as error:
            raise InvalidPattern(f"`{request.pattern}`: {error}", position=error.pos or 0) from None
        found, root = self._existing(request.path), os.path.realpath(self.workspace)
        matches: list[SearchMatch] = []
        searched = 0
        for path in [found] if os.path.isfile(found) else [path for path, _ in _tree(found)]:
            if not os.path.isfile(path) or os.path.islink(path):
                continue
            if request.glob and not fnmatch.fnmatch(os.path.basename(path), request.glob):
                continue
            searched += 1
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    if pattern.search(line):
                        text = line.rstrip("\n")
                        matches.append(SearchMatch(path=os.path.relpath(path, root), line=number, text=text))
        complete = len(matches) <= request.max_matches
        return SearchAnswer(
            matches=tuple(matches[: request.max_matches]),
            complete=complete,
            truncated_because=None if complete else "max_matches",
            files_searched=searched,
            binary_skipped=0,
        )

    def _remove(self, request: RemovePath) -> Done:
        found = self._existing(request.path, writing=True)
        if os.path.isdir(found):
            if not request.recursive and not request.contents_only:
                raise IsDirectory(f"`{request.path}` is a directory", path=request.path)
            if not request.contents_only:
                shutil.rmtree(found)
                return Done()
            for name in os.listdir(found):
                inner = os.path.join(found, name)
                shutil.rmtree(inner) if os.path.isdir(inner) and not os.path.islink(inner) else os.unlink(inner)
            return Done()
        os.unlink(found)
        return Done()

    def _make_directory(self, request: MakeDirectory) -> Done:
        os.makedirs(self._resolve(request.path, writing=True), exist_ok=True)
        return Done()

    def _signal(self, request: SignalCommand) -> Done:
        command = self._command(request.command_id)
        command.cancelled = command.cancelled or request.cancel
        command.end_tree(request.signal)
        return Done()

    def _resize(self, request: ResizeTerminal) -> Done:
        self._command(request.command_id)
        return Done()

    def _commands(self, request: ListCommands) -> CommandsAnswer:
        wanted = [c for c in self.commands.values() if request.command_id in (None, c.spec.command_id)]
        return CommandsAnswer(commands=tuple(command.info() for command in wanted))

    def _processes(self, request: ListProcesses) -> ProcessesAnswer:
        running = [c for c in self.commands.values() if c.pid is not None and c.result is None]
        return ProcessesAnswer(
            processes=tuple(
                ProcessInfo(
                    pid=command.pid or 0,
                    parent=1,
                    command_line=command.info().command_line,
                    started_at=self.created_at,
                    command_id=command.spec.command_id,
                )
                for command in running
            )
        )

    def _runtimes(self, request: ListRuntimes) -> RuntimesAnswer:
        names = ("bash", "python3", "node", "deno")
        return RuntimesAnswer(
            runtimes=tuple(
                Runtime(name=name, present=shutil.which(name) is not None, path=shutil.which(name)) for name in names
            )
        )


_VERBS: dict[type[Any], Any] = {
    ReadFile: FakeBox._read,
    WriteFile: FakeBox._write_plain,
    EditFile: FakeBox._edit,
    ListDirectory: FakeBox._list,
    SearchFiles: FakeBox._search,
    RemovePath: FakeBox._remove,
    MakeDirectory: FakeBox._make_directory,
    SignalCommand: FakeBox._signal,
    ResizeTerminal: FakeBox._resize,
    ListCommands: FakeBox._commands,
    ListProcesses: FakeBox._processes,
    ListRuntimes: FakeBox._runtimes,
    TightenLimits: lambda _box, _request: Done(),
}


class FakeHost:
    """`Host` over one directory. Keep the object and build control anew to play a restart of the server."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.ran: list[CommandSpec] = []
        """Every command that was really started, in order."""
        self.asked: list[Request[Any]] = []
        """Every question and write that reached a box, in order."""
        self.unreachable: Exception | None = None
        """If set, raised instead of serving the life of boxes and workspaces."""
        self._boxes: dict[str, FakeBox] = {}
        self._past: dict[str, FakeBox] = {}

    def _check_reachable(self) -> None:
        if self.unreachable is not None:
            raise self.unreachable

    def workspace(self, agent_id: str) -> str:
        return os.path.join(self.root, "workspace", agent_id)

    async def create(self, sandbox_id: str, spec: SandboxSpec, *, session_id: str) -> IsolationReport:
        self._check_reachable()
        if spec.agent_id is not None and not spec.background:
            await self.create_workspace(spec.agent_id)
            workspace = self.workspace(spec.agent_id)
        else:
            workspace = os.path.join(self.root, "background", session_id)
            for part in PARTS:
                os.makedirs(os.path.join(workspace, part), exist_ok=True)
        self._boxes[sandbox_id] = FakeBox(self, sandbox_id, spec, workspace)
        return fake_report()

    def _find(self, sandbox_id: str) -> FakeBox:
        if sandbox_id in self._boxes:
            return self._boxes[sandbox_id]
        if sandbox_id in self._past:
            raise GuestLost(f"sandbox `{sandbox_id}` ended", sandbox_id=sandbox_id)
        raise NotFound(f"no sandbox `{sandbox_id}`", sandbox_id=sandbox_id)

    async def box(self, sandbox_id: str) -> FakeBox:
        self._check_reachable()
        box = self._find(sandbox_id)
        if box.state != "running":
            raise GuestLost(f"sandbox `{sandbox_id}` ended", sandbox_id=sandbox_id)
        return box

    async def life(self, sandbox_id: str) -> FakeBox:
        self._check_reachable()
        return self._find(sandbox_id)

    async def boxes(self) -> list[BoxStatus]:
        self._check_reachable()
        return [
            BoxStatus(sandbox_id=box.sandbox_id, state=box.state, created_at=box.created_at, owner=box.spec.agent_id)
            for box in self._boxes.values()
        ]

    async def stored(self, sandbox_id: str, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        box = self._boxes.get(sandbox_id) or self._past.get(sandbox_id)
        if box is None or command_id not in box.commands:
            raise NotFound(f"no command `{command_id}` of sandbox `{sandbox_id}`", command_id=command_id)
        events = list(box.commands[command_id].events)

        async def replay() -> AsyncIterator[CommandEvent]:
            for event in events:
                if not isinstance(event, OutputChunk) or event.seq > after_seq:
                    yield event

        return replay()

    async def create_workspace(self, agent_id: str) -> None:
        self._check_reachable()
        for part in PARTS:
            os.makedirs(os.path.join(self.workspace(agent_id), part), exist_ok=True)

    async def delete_workspace(self, agent_id: str) -> None:
        self._check_reachable()
        shutil.rmtree(self.workspace(agent_id), ignore_errors=True)

    async def append_history(self, owner: str, session_id: str | None, lines: bytes) -> None:
        self._check_reachable()
        home = (
            self.workspace(owner) if owner != "background" else os.path.join(self.root, "background", session_id or "")
        )
        os.makedirs(os.path.join(home, ".exec_history"), exist_ok=True)
        with open(os.path.join(home, ".exec_history", "history.jsonl"), "a+b") as file:
            file.write(unseen(file.fileno(), lines))

    async def sweep(self, *, keep_boxes: set[str], keep_sessions: set[str]) -> list[str]:
        self._check_reachable()
        removed = []
        for sandbox_id in [one for one in self._boxes if one not in keep_boxes]:
            await self._boxes[sandbox_id].end()
            removed.append(sandbox_id)
        background = os.path.join(self.root, "background")
        for session_id in os.listdir(background) if os.path.isdir(background) else []:
            if session_id not in keep_sessions:
                shutil.rmtree(os.path.join(background, session_id))
                removed.append(session_id)
        return removed

    async def doctor(self) -> IsolationReport:
        return fake_report()

    async def lose(self, sandbox_id: str) -> None:
        """End a box as if its keeper had been killed."""
        box = self._boxes[sandbox_id]
        for command in box.commands.values():
            await command.lose()
        box.state = "lost"

    def forget(self, sandbox_id: str) -> None:
        if sandbox_id in self._boxes:
            self._past[sandbox_id] = self._boxes.pop(sandbox_id)

    async def close(self) -> None:
        for box in [*self._boxes.values(), *self._past.values()]:
            for command in box.commands.values():
                await command.lose()


def _stream(data: bytes) -> StreamInfo:
    try:
        data.decode()
        broken = False
    except UnicodeDecodeError:
        broken = True
    return StreamInfo(bytes=len(data), sha256=sha256(data), invalid_utf8=broken)


def _version(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _check_version(path: str, wanted: str | None, found: str | None) -> None:
    if wanted is not None and wanted != found:
        raise Conflict(f"`{path}` was changed", path=path, version=found)


def _replace(path: str, data: bytes, mode: int) -> None:
    temporary = path + ".new"
    with open(temporary, "wb") as file:
        file.write(data)
    os.chmod(temporary, mode)
    os.replace(temporary, path)


def _tree(root: str) -> Iterator[tuple[str, int]]:
    """Every path below *root* with its depth, sorted, links not followed."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        depth = 1 if folder == root else os.path.relpath(folder, root).count("/") + 2
        for name in sorted([*folders, *files]):
            yield os.path.join(folder, name), depth


def _digests(root: str) -> dict[str, str]:
    found = {}
    for path, _ in _tree(root):
        name = os.path.relpath(path, root)
        if os.path.isfile(path) and not os.path.islink(path) and not name.startswith(".exec_history/"):
            with open(path, "rb") as file:
                found[name] = sha256(file.read())
    return found


def _kind(mode: int) -> FileKind:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "file" if stat.S_ISREG(mode) else "device"


def _info(path: str, name: str) -> FileInfo:
    status = os.lstat(path)
    kind = _kind(status.st_mode)
    return FileInfo(
        path=name,
        name=os.path.basename(name),
        kind=kind,
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
        target=os.readlink(path) if kind == "symlink" else None,
        version=_version(path) if kind == "file" else None,
    )
