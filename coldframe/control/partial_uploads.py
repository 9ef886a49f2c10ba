"""Uploads that arrive in several requests: what has come so far is kept until the rest comes, out of everybody's sight.

One is known by who sends it, where to and what: target, length and digest are said with each request, so the same
file sent again goes on where it broke off. What has come lies in a file of the server's alone, whose size is how much
that is. Once it is all there it goes through the gate as one write, and the box takes it only with that digest; so the
file of the sandbox is the old one or the new. Nothing is counted on: each part is judged as if it were the write, what is
refused is dropped, and so is what nobody goes on with for a day, at a start of the server and whenever another begins.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import Conflict, HostUnreachable, LimitReached, TooLarge
from coldframe.contract.policy import Outcome
from coldframe.contract.tool import ToolResult
from coldframe.control.gate import Gate
from coldframe.control.judgement import build_context, digest_of, judge_call
from coldframe.control.rights import may, right_to_call
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.tools.registry import find_tool

MOST_OF_ONE_CALLER = 8
"""Beyond that the one whose last part is oldest is dropped."""
MOST_IN_ALL = 64
KEPT_S = 24 * 3600
SPARE_BYTES = 256 * 1024 * 1024
"""What has to stay free on the disk of the installation, whoever sends how much."""
TURN_S = 10.0
"""How long a request waits for one before it that brings the same."""
PIECE_BYTES = 1024 * 1024


class Sent(NamedTuple):
    """One part, and of what."""

    path: str
    offset: int
    """Place of its first byte."""
    length: int
    """Of the whole."""
    sha256: str


class PartialUploads:
    """Those of one installation, in a directory that is made at the first one."""

    def __init__(self, directory: str, sandboxes: Sandboxes, rulebook: Rulebook, gate: Gate) -> None:
        self._directory = directory
        self._sandboxes = sandboxes
        self._rulebook = rulebook
        self._gate = gate
        self._at_work: dict[str, asyncio.Event] = {}
        """Those that a request brings right now, and their ends."""

    async def receive(
        self,
        caller: Caller,
        sandbox_id: str,
        sent: Sent,
        content: AsyncIterable[bytes],
        *,
        session_id: str | None = None,
        if_version: str | None = None,
        source: str | None = None,
    ) -> ToolResult:
        """Take a part in. With the last one the file is written, and the result is that of the write.

        Raises:
            Conflict: more is to come, or this part does not begin where the last one ended: `taken` among the facts says
                where; or another request brings a part of it right now.
            TooLarge: longer than the workspace may hold.
            LimitReached: the disk of the installation has no room for it.
            Refused and others that `Gate.upload` raises: nothing of it is kept.
        """
        arguments: dict[str, Any] = {"path": sent.path, "content": "", "sha256": sent.sha256}
        name = _name_of(caller, sandbox_id, sent)
        if not self._is_allowed(caller, sandbox_id, arguments):
            if name not in self._at_work:
                _drop(os.path.join(self._directory, name))
            return await self._gate.upload(
                caller, sandbox_id, sent.path, _refused(), session_id=session_id, sha256=sent.sha256
            )
        disk_bytes = self._sandboxes.get(caller, sandbox_id).spec.limits.disk_mib * 1024 * 1024
        if sent.length > disk_bytes:
            raise TooLarge(
                f"{sent.length} bytes are more than the workspace may hold",
                hint="have an admin raise its limit on disk",
                limit=disk_bytes,
            )
        await self._await_turn(name, sent.path)
        self._at_work[name] = asyncio.Event()
        try:
            path = await asyncio.to_thread(self._make_room, name)
            await self._append(path, sent, content)
            return await self._write(caller, sandbox_id, sent, path, session_id, if_version, source)
        finally:
            self._at_work.pop(name).set()

    async def _await_turn(self, name: str, path: str) -> None:
        """A request whose connection broke is over soon; one that is alive is not disturbed."""
        waits_until = time.monotonic() + TURN_S
        while (other := self._at_work.get(name)) is not None:
            try:
                await asyncio.wait_for(other.wait(), waits_until - time.monotonic())
            except TimeoutError:
                raise Conflict(
                    f"another request brings `{path}` right now",
                    hint="wait until it has ended, and ask again",
                    retry="later",
                ) from None

    def _is_allowed(self, caller: Caller, sandbox_id: str, arguments: dict[str, Any]) -> bool:
        """Whether the write would be let through now. What is not goes to the gate, which says why and records it."""
        if not may(caller, right_to_call("write_file")):
            return False
        info = self._sandboxes.get(caller, sandbox_id)
        checked = find_tool("write_file").check(arguments)
        checked.fit(info.spec)
        taint = self._sandboxes.session(info).taint
        context = build_context(
            caller, info, info.session_id, taint, "write_file", checked.facts(), digest_of(arguments)
        )
        return judge_call(context, self._rulebook.current).outcome is Outcome.ALLOW

    async def _append(self, path: str, sent: Sent, content: AsyncIterable[bytes]) -> None:
        there = os.path.getsize(path)
        if sent.offset != there:
            raise _more_to_come(sent, there)
        waiting: list[bytes] = []
        waiting_bytes = 0
        with open(path, "ab", buffering=0) as file:
            try:
                async for part in content:
                    if there + waiting_bytes + len(part) > sent.length:
                        raise TooLarge(f"more than the {sent.length} bytes that were announced", limit=sent.length)
                    waiting.append(part)
                    waiting_bytes += len(part)
                    if waiting_bytes >= PIECE_BYTES:
                        _add(file.fileno(), waiting)
                        waiting.clear()
                        there += waiting_bytes
                        waiting_bytes = 0
            finally:
                _add(file.fileno(), waiting)  # also of a request that breaks off: it is that much less to send again
                # Each part but the last ends with an error, whose frames hold what is here until circles are looked for.
                waiting.clear()
                part = b""
        there = os.path.getsize(path)
        if there < sent.length:
            raise _more_to_come(sent, there)

    async def _write(
        self,
        caller: Caller,
        sandbox_id: str,
        sent: Sent,
        path: str,
        session_id: str | None,
        if_version: str | None,
        source: str | None,
    ) -> ToolResult:
        is_to_stay = False
        try:
            result = await self._gate.upload(
                *(caller, sandbox_id, sent.path, _pieces(path)),
                session_id=session_id,
                if_version=if_version,
                source=source,
                sha256=sent.sha256,
            )
            is_to_stay = result.error is not None and result.error.get("code") == "LIMIT_DISK"
        except (HostUnreachable, asyncio.CancelledError):
            is_to_stay = True
            raise
        finally:
            if not is_to_stay:
                _drop(path)
        return result

    def sweep(self) -> None:
        """Drop what nobody has gone on with for a day, and what is too many."""
        now = time.time()
        found = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if entry.name not in self._at_work:
                        found.append((entry.stat().st_mtime, entry.name))
        except FileNotFoundError:
            return
        of_callers: dict[str, int] = {}
        for number, (at, name) in enumerate(sorted(found, reverse=True)):
            of_caller = of_callers[name[:16]] = of_callers.get(name[:16], 0) + 1
            if now - at > KEPT_S or of_caller > MOST_OF_ONE_CALLER or number >= MOST_IN_ALL:
                _drop(os.path.join(self._directory, name))

    def _make_room(self, name: str) -> str:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = os.path.join(self._directory, name)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.utime(path)
        self.sweep()
        return path


def _name_of(caller: Caller, sandbox_id: str, sent: Sent) -> str:
    whose = hashlib.sha256(caller.token_id.encode()).hexdigest()[:16]
    what = json.dumps([sandbox_id, sent.path, sent.length, sent.sha256])
    return f"{whose}-{hashlib.sha256(what.encode()).hexdigest()}"


def _more_to_come(sent: Sent, taken: int) -> Conflict:
    return Conflict(
        f"{taken} of the {sent.length} bytes of `{sent.path}` are here",
        hint="go on at byte `taken`",
        taken=taken,
        length=sent.length,
    )


def _add(file: int, parts: list[bytes]) -> None:
    status = os.fstatvfs(file)
    if status.f_bavail * status.f_frsize < SPARE_BYTES:
        raise LimitReached(
            "the disk of the installation has no room for what has come so far",
            hint="have whoever runs it make room, or send a smaller file",
        )
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(file, rest) :]


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


async def _pieces(path: str) -> AsyncIterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES // 4):
            yield piece


async def _refused() -> AsyncIterator[bytes]:
    """In place of a content, for a write that is not to happen."""
    for _ in range(1):
        raise Conflict("the rules have changed since: send it again")
    yield b""
