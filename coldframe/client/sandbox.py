"""One sandbox of the SDK: its tools, its files as bytes of any size, its commands, its state."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

from coldframe.client import models
from coldframe.client.cells import Cells
from coldframe.client.commands import Commands, Job, command_events
from coldframe.client.facts import Facts
from coldframe.client.files import Files
from coldframe.client.git import Git
from coldframe.client.pipelines import Pipelines
from coldframe.client.profiles import Profiled
from coldframe.client.replies import (
    JsonObject,
    answer_from,
    read_answer,
    read_object,
    read_part,
)
from coldframe.client.transfers import Transfers
from coldframe.client.transport import Reply, Transport, ask, encode_path, error_of
from coldframe.contract.errors import Unavailable, from_wire

LONGEST_LOOK_S = 30
"""A request that waits is asked again after so long."""
READING = frozenset(
    {"list_directory", "list_path", "read_file", "read_path", "read_repository", "search_files", "stat_path"}
)
"""Tools that change nothing: a call repeated over a broken connection needs no key."""


class Sandbox(Cells, Commands, Facts, Pipelines, Profiled, Transfers):
    """One sandbox. As a context manager it is terminated at the end of the block; the agent's workspace stays, and a temporary
    one goes with all that is in it, work that no commit has included."""

    def __init__(self, transport: Transport, info: models.SandboxInfo) -> None:
        super().__init__(transport, f"/v1/sandboxes/{encode_path(info.sandbox_id)}")
        self.info = info
        self.id = info.sandbox_id
        self.files = Files(self, transport, self._path)
        self.git = Git(transport, self._path)

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.terminate(discard=True)

    # Tools.

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        session_id: str | None = None,
        idempotency_key: str | None = None,
        snapshot: str | None = None,
    ) -> models.ToolResult:
        """Call any tool by name. Returns its result also where that is an error of the tool (`result.error`). With
        *snapshot* it reads the files of that in place of those of the sandbox.

        Raises:
            ColdframeError: the call did not come as far as a result.
        """
        reply = await self._transport.request(
            "POST",
            f"{self._path}/tools/{encode_path(tool)}",
            query={"snapshot": snapshot} if snapshot is not None else None,
            payload=arguments,
            headers=_call_headers(session_id, idempotency_key or (None if tool in READING else make_key())),
            repeatable=tool in READING,
        )
        return _result_of(reply)

    async def _value(self, tool: str, snapshot: str | None = None, **arguments: object) -> models.ToolResult:
        given = {name: value for name, value in arguments.items() if value is not None}
        result = await self.call(tool, given, snapshot=snapshot)
        if result.error is not None:
            raise from_wire(result.error)
        return result

    async def write_file(
        self,
        path: str,
        content: str | bytes,
        *,
        if_version: str | None = None,
        create_only: bool = False,
        mode: int | None = None,
    ) -> models.Written:
        """Write or replace a file atomically. For content of any size see `upload`."""
        result = await self._value(
            "write_file",
            path=path,
            content=content if isinstance(content, str) else None,
            content_base64=base64.b64encode(content).decode() if isinstance(content, bytes) else None,
            if_version=if_version,
            create_only=create_only,
            mode=mode,
        )
        return answer_from(result, models.Written)

    async def read_file(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        encoding: Literal["auto", "utf-8", "base64"] = "auto",
        snapshot: str | None = None,
    ) -> models.FileContent:
        """Read a file, or *length* bytes of it from *offset*; with *snapshot* as it is in that. `data` of the answer gives
        bytes in any case. So can be read where nothing runs any more.
        """
        result = await self._value("read_file", snapshot, path=path, offset=offset, length=length, encoding=encoding)
        return answer_from(result, models.FileContent)

    async def edit_file(
        self, path: str, old: str, new: str, *, replace_all: bool = False, if_version: str | None = None
    ) -> models.Edited:
        """Replace *old*, which must occur exactly once unless *replace_all*, by *new*."""
        result = await self._value(
            "edit_file", path=path, old=old, new=new, replace_all=replace_all, if_version=if_version
        )
        return answer_from(result, models.Edited)

    async def edit_file_many(
        self, path: str, edits: Sequence[tuple[str, str]], *, if_version: str | None = None
    ) -> models.Edited:
        """Apply (old, new) replacements in order, all or none."""
        result = await self._value(
            "edit_file", path=path, edits=[{"old": old, "new": new} for old, new in edits], if_version=if_version
        )
        return answer_from(result, models.Edited)

    async def list_directory(
        self,
        path: str = "",
        *,
        recursive: bool = False,
        max_depth: int | None = None,
        max_entries: int | None = None,
        after: str | None = None,
        snapshot: str | None = None,
    ) -> models.Listing:
        """At most *max_entries* (10,000, and no more than 100,000) of what lies there. A directory is read on by `next_after`
        of the answer, given as *after*.
        """
        result = await self._value(
            "list_directory",
            snapshot,
            path=path,
            recursive=recursive,
            max_depth=max_depth,
            max_entries=max_entries,
            after=after,
        )
        return answer_from(result, models.Listing)

    async def search_files(
        self,
        pattern: str,
        path: str = "",
        *,
        regex: bool = True,
        ignore_case: bool = False,
        glob: str | None = None,
        include_hidden_stores: bool = False,
        max_matches: int | None = None,
        snapshot: str | None = None,
    ) -> models.Found:
        result = await self._value(
            "search_files",
            snapshot,
            pattern=pattern,
            path=path,
            regex=regex,
            ignore_case=ignore_case,
            glob=glob,
            include_hidden_stores=include_hidden_stores,
            max_matches=max_matches,
        )
        return answer_from(result, models.Found)

    async def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        cpu_s: float | None = None,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        runtime: str | None = None,
        user: str | None = None,
        shell_session: str | None = None,
        outputs: Sequence[str] = (),
        pty: bool = False,
        background: bool = False,
        encoding: Literal["utf-8", "base64"] = "utf-8",
        view_bytes: int | None = None,
        idempotency_key: str | None = None,
    ) -> models.CommandAnswer:
        """Run a shell line (text) or a program with arguments (list) and return how it went, output complete.

        A failing program is an answer, not an error. *user* `root` is there in a sandbox with a system of its own. Commands of one *shell_session* go on with the directory, variables
        and functions that the one before left; `shell_session` of the answer says whether this one left its own. *outputs* are
        files that it shall make, as `report/*.html`: `outputs` of the answer tells each, and what is missing. *view_bytes* asks for only so much of each stream.
        """
        arguments = _command_arguments(
            command,
            cwd=cwd,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            cpu_s=cpu_s,
            stdin=stdin,
            env=env,
            runtime=runtime,
            user=user,
            shell_session=shell_session,
            outputs=list(outputs) or None,
            pty=pty,
            background=background,
            encoding=encoding,
            view_bytes=view_bytes,
        )
        result = await self.call("run_command", arguments, idempotency_key=idempotency_key)
        if result.error is not None:
            raise from_wire(result.error)
        return answer_from(result, models.CommandAnswer)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        cpu_s: float | None = None,
        stdin: str | bytes | None = None,
        stdin_open: bool = False,
        env: Mapping[str, str] | None = None,
        runtime: str | None = None,
        user: str | None = None,
        shell_session: str | None = None,
        outputs: Sequence[str] = (),
        pty: bool = False,
        columns: int | None = None,
        rows: int | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Start a command and return as soon as it runs. It goes on whoever leaves, and its record stays.

        With *stdin_open* more input can be sent behind *stdin*; on a terminal that is so in any case.
        """
        arguments = _command_arguments(
            command,
            cwd=cwd,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            cpu_s=cpu_s,
            stdin=stdin,
            stdin_open=stdin_open or None,
            env=env,
            runtime=runtime,
            user=user,
            shell_session=shell_session,
            outputs=list(outputs) or None,
            pty=pty,
            columns=columns,
            rows=rows,
            background=True,
        )
        result = await self.call("run_command", arguments, idempotency_key=idempotency_key)
        if result.error is not None:
            raise from_wire(result.error)
        return self.job(str(result.value["command_id"]))

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        timeout_s: float | None = None,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        runtime: str | None = None,
        pty: bool = False,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[models.CommandEvent | models.ToolResult, None]:
        """Run a command and yield its events while it runs, then the ToolResult. Memory stays flat.

        Leaving early does not end the command; `follow` takes it up again. Without *idempotency_key* a call over
        a broken connection is not repeated; with one the server keeps the output until the end as well.
        """
        arguments = _command_arguments(
            command, cwd=cwd, timeout_s=timeout_s, stdin=stdin, env=env, runtime=runtime, pty=pty
        )
        async with aclosing(self.run_arguments(arguments, idempotency_key=idempotency_key)) as events:
            async for event in events:
                yield event

    async def run_arguments(
        self, arguments: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> AsyncGenerator[models.CommandEvent | models.ToolResult, None]:
        """Like `run`, with the arguments of the tool as they are."""
        headers = _call_headers(None, idempotency_key)
        path = f"{self._path}/tools/run_command"
        async with aclosing(
            command_events(self._transport, "POST", path, payload=arguments, headers=headers)
        ) as events:
            async for event in events:
                yield event

    async def remove_file(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link, or a directory with all that is in it.

        Raises:
            FileMissing, IsDirectory, PermissionDenied: nothing, or not all, was removed.
        """
        query = {"recursive": recursive}
        await ask(self._transport, "DELETE", f"{self._path}/files/{encode_path(path)}", query=query)

    # The sandbox itself.

    async def wait_for_turn(self) -> models.SandboxInfo:
        """Return once it is not `queued` any more: it runs, it `failed` because its time was over, or it was terminated."""
        while True:
            reply = await ask(self._transport, "GET", self._path, query={"wait_s": LONGEST_LOOK_S})
            self.info = read_answer(models.SandboxInfo, reply.body)
            if self.info.state.state != "queued":
                return self.info

    async def refresh(self) -> models.SandboxInfo:
        """Ask for the state now, and keep it as `info`."""
        self.info = read_answer(models.SandboxInfo, (await ask(self._transport, "GET", self._path)).body)
        return self.info

    async def result(self) -> models.SandboxResult:
        """How it stands with the result of a sandbox made with `on_result: delete`."""
        return read_answer(models.SandboxResult, (await ask(self._transport, "GET", f"{self._path}/result")).body)

    async def offer_result(self) -> models.SandboxResult:
        """Take down what the result is: the declared outputs as they are now. Fetch its `files`, then confirm."""
        return read_answer(models.SandboxResult, (await ask(self._transport, "POST", f"{self._path}/result")).body)

    async def confirm_result(self, sha256: str) -> models.SandboxResult:
        """Have all that is left of the sandbox deleted. *sha256*: what `contract.result.result_digest` makes of the files that
        were fetched.

        Raises:
            Conflict: that is another digest, or the files are others now; nothing is deleted.
        """
        payload = {"sha256": sha256}
        reply = await ask(self._transport, "POST", f"{self._path}/result/confirm", payload=payload)
        return read_answer(models.SandboxResult, reply.body)

    async def pause(self, kind: Literal["memory", "files"] = "memory") -> models.SandboxEnd:
        """Hold its processes still, with their memory and connections, until `resume`; its files can be read meanwhile.
        With kind `files` they end, as with `stop`, and the answer says what was lost. One that is paused stays so.

        Raises:
            PauseKindUnsupported: the server's machine cannot hold them.
            WrongState: it does not run.
        """
        payload: JsonObject = {"kind": kind}
        reply = await ask(self._transport, "POST", f"{self._path}/pause", payload=payload, repeatable=True)
        return self._ended(reply.body)

    async def resume(self) -> models.SandboxInfo:
        """Let it go on where it was, or start it again if it is stopped. One that runs goes on."""
        return await self._act("resume")

    async def start_again(self) -> models.SandboxInfo:
        """Build a stopped one anew: the same id, workspace, session and network. One that runs goes on.

        Raises:
            SandboxExpired: it has reached its maximum age; `extend_life` first.
        """
        return await self._act("start")

    async def extend_life(self, for_s: float) -> models.SandboxInfo:
        """Have no timer act on it for *for_s* seconds from now. What time it has already it keeps."""
        return await self._act("extend", {"for_s": for_s})

    async def take_snapshot(
        self, name: str = "", *, expires_in_s: float | None = None, idempotency_key: str | None = None
    ) -> models.SnapshotInfo:
        """Take a snapshot of its files as they are now. Its processes stand still meanwhile and go on.

        Raises:
            WrongState: it neither runs nor is it paused or stopped.
            LimitReached: there are too many, or there is no room.
        """
        payload = {"name": name} | ({} if expires_in_s is None else {"expires_in_s": expires_in_s})
        reply = await ask(
            self._transport,
            "POST",
            f"{self._path}/snapshots",
            payload=payload,
            headers={"Idempotency-Key": idempotency_key or make_key()},
        )
        return read_answer(models.SnapshotInfo, reply.body)

    async def plan_snapshot(self) -> models.SnapshotPlan:
        """What one taken now would have and leave out, path by path. Nothing is done."""
        return read_answer(
            models.SnapshotPlan, (await ask(self._transport, "GET", f"{self._path}/snapshots/plan")).body
        )

    async def reset(
        self, to: str, *, discard: bool = False, dry_run: bool = False, idempotency_key: str | None = None
    ) -> models.SandboxReset:
        """Take its files back to a snapshot, or to nothing with `empty`. If it runs it is stopped for that and started
        again. What was before is kept for a day (`kept` of the answer) unless *discard*; with *dry_run* nothing is done, and
        the answer says what would be lost and what would change.

        Raises:
            WrongState: it has ended, or another sandbox runs on its workspace.
            SnapshotCorrupt: nothing has changed.
        """
        reply = await ask(
            self._transport,
            "POST",
            f"{self._path}/reset",
            payload={"to": to, "discard": discard, "dry_run": dry_run},
            headers={"Idempotency-Key": idempotency_key or make_key()},
        )
        self.info = done = read_answer(models.SandboxReset, reply.body)
        return done

    async def fork(
        self,
        agent_id: str | None = None,
        *,
        background: bool = False,
        spec: models.SandboxSpec | None = None,
        idempotency_key: str | None = None,
    ) -> Sandbox:
        """Make another sandbox with the files of this one as they are now: for a new agent, on a temporary workspace with
        *background*, or by a whole *spec*. Nothing but the files and their label goes along.

        Raises:
            Conflict: that agent is there already.
        """
        spec = spec or models.SandboxSpec(agent_id=agent_id, background=background)
        reply = await ask(
            self._transport,
            "POST",
            f"{self._path}/fork",
            payload=spec.model_dump(mode="json", exclude_unset=True),
            headers={"Idempotency-Key": idempotency_key or make_key()},
        )
        return Sandbox(self._transport, read_answer(models.SandboxInfo, reply.body))

    async def _act(self, act: str, payload: JsonObject | None = None) -> models.SandboxInfo:
        reply = await ask(self._transport, "POST", f"{self._path}/{act}", payload=payload, repeatable=True)
        self.info = read_answer(models.SandboxInfo, reply.body)
        return self.info

    async def stop(self, *, dry_run: bool = False) -> models.SandboxEnd:
        """End its processes and keep its files, for `start`. The answer says what was lost, or with *dry_run* would be: then
        also what stays, and `paths` by name."""
        query = {"dry_run": "true"} if dry_run else None
        reply = await ask(self._transport, "POST", f"{self._path}/stop", query=query, repeatable=True)
        return self._ended(reply.body)

    async def terminate(
        self, *, dry_run: bool = False, snapshot: bool = False, discard: bool = False
    ) -> models.SandboxEnd:
        """End the sandbox and everything in it. Idempotent. The answer says what was lost, or with *dry_run* would be: then
        also what stays, and `paths` by name. With *snapshot* one is taken of its files before, which a temporary workspace
        would lose: `snapshot_id` of the answer.

        Raises:
            UnsavedWork: a temporary workspace has work that no commit has (`facts["files"]`), and it was said neither to take
                a snapshot nor to *discard* it. Nothing was done.
        """
        query = {"dry_run": dry_run or None, "snapshot": snapshot or None, "discard": discard or None}
        return self._ended((await ask(self._transport, "DELETE", self._path, query=query)).body)

    def _ended(self, body: bytes) -> models.SandboxEnd:
        end = read_answer(models.SandboxEnd, body)
        self.info = end
        return end


def _result_of(reply: Reply) -> models.ToolResult:
    if reply.status < 400:
        return read_answer(models.ToolResult, reply.body)
    error = error_of(reply)
    with suppress(Unavailable):  # it is no object
        if result := read_object(reply.body).get("result"):
            return read_part(models.ToolResult, result)
    raise error


def make_key() -> str:
    """An idempotency key that no other call has."""
    return os.urandom(16).hex()


def _call_headers(session_id: str | None, idempotency_key: str | None) -> dict[str, str]:
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    if session_id is not None:
        headers["Coldframe-Session"] = session_id
    return headers


def _command_arguments(
    command: str | Sequence[str],
    *,
    stdin: str | bytes | None,
    env: Mapping[str, str] | None,
    view_bytes: int | None = None,
    **others: object,
) -> dict[str, object]:
    arguments: dict[str, object] = {"command": command if isinstance(command, str) else list(command)}
    if isinstance(stdin, bytes):
        arguments["stdin_base64"] = base64.b64encode(stdin).decode()
    elif stdin is not None:
        arguments["stdin"] = stdin
    if env:
        arguments["env"] = dict(env)
    if view_bytes is not None:
        arguments["view"] = {"max_bytes": view_bytes}
    arguments.update({name: value for name, value in others.items() if value is not None})
    return arguments
