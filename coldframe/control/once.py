"""Code that is run once: a sandbox is made for it, gets its files, runs one cell, gives its outputs, and is gone.

No network, no workspace that stays, no port. With `keep: io` digests of what went in and the files that came out stay under the id
of the run, for whoever made it; so it can be repeated, and is not if its inputs are others.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.cell import (
    CellAnswer,
    CellRequest,
    OnceAnswer,
    OnceFile,
    OnceOutput,
    OnceRecord,
    OnceRequest,
)
from coldframe.contract.errors import ColdframeError, InputChanged, NotFound, TooLarge, from_wire
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.template import HOST
from coldframe.contract.tool import ToolResult
from coldframe.control.cells import Cells
from coldframe.control.creation import Creation
from coldframe.control.declared_outputs import DeclaredFiles
from coldframe.control.gate import Gate
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.rights import require

MOST_OUTPUT_BYTES = 64 * 1024 * 1024
"""Of all outputs together; larger ones are for a sandbox that stays until they are fetched."""
PART_BYTES = 8 * 1024 * 1024
LONGEST_S = 3600.0
"""After which such a sandbox ends whatever happens."""
READ_ONLY = 0o444
KIND, FORGOTTEN = "once.ended", "once.forgotten"


class Once:
    """See the module. *directory* is made when something is to be kept."""

    def __init__(
        self,
        ledger: Ledger,
        creation: Creation,
        lifecycle: Lifecycle,
        gate: Gate,
        cells: Cells,
        declared: DeclaredFiles,
        directory: str,
    ) -> None:
        self._ledger = ledger
        self._creation = creation
        self._lifecycle = lifecycle
        self._gate = gate
        self._cells = cells
        self._declared = declared
        self._directory = directory

    async def run(self, caller: Caller, request: OnceRequest) -> OnceAnswer:
        """Raises what creating a sandbox and running a cell do; nothing of it is left then either.

        InputChanged: it repeats a run that had other inputs. TooLarge: its outputs are.
        """
        require(caller, "tool.call")
        inputs = tuple(
            OnceFile(
                path=f"inputs/{name}",
                bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                source=request.source.get(name),
            )
            for name, content in sorted(request.files.items())
        )
        if request.again is not None:
            self._check_same(self.get(caller, request.again), inputs)
        spec = SandboxSpec(
            background=True,
            ephemeral=True,
            network="none",
            template=request.template,
            profile="interpreter" if request.template == HOST else "computer",
            outputs=request.outputs,
            max_age_s=LONGEST_S,
            on_timeout="terminate",
        )
        info = await self._creation.create(caller, spec)
        try:
            result = await self._work(caller, info, request)
            found = await self._outputs(caller, info) if request.outputs else ((), ())
        finally:
            with contextlib.suppress(ColdframeError):
                await self._lifecycle.terminate(caller, info.sandbox_id)
        outputs, missing = found
        once_id = "once_" + secrets.token_hex(12)
        if request.keep == "io":
            self._keep(once_id, outputs)
        self._record(caller, info, once_id, request, result, inputs, outputs)
        return OnceAnswer(
            once_id=once_id,
            sandbox_id=info.sandbox_id,
            outcome=CellAnswer.model_validate(result.value),
            inputs=inputs,
            outputs=outputs,
            missing=missing,
            receipt_id=result.receipt_id,
            label=result.label,
        )

    def get(self, caller: Caller, once_id: str) -> OnceRecord:
        """What is kept of a run. Raises NotFound, also for one of somebody else's."""
        entry = self._entry(once_id)
        if entry is None or (entry.body["token_id"] != caller.token_id and caller.role not in (Role.OWNER, Role.ADMIN)):
            raise NotFound(f"there is no run `{once_id[:80]}`", once_id=once_id[:80])
        body = entry.body
        return OnceRecord(
            once_id=once_id,
            sandbox_id=body["sandbox_id"],
            at=entry.at,
            code_sha256=body["code_sha256"],
            language=body["language"],
            inputs=tuple(OnceFile.model_validate(one) for one in body["inputs"]),
            outputs=tuple(OnceFile.model_validate(one) for one in body["outputs"]) if self._is_kept(entry) else (),
            receipt_id=body["receipt_id"],
        )

    def output(self, caller: Caller, once_id: str, path: str) -> bytes:
        """The content of one output that was kept. Raises NotFound."""
        for number, one in enumerate(self.get(caller, once_id).outputs):
            if one.path == path:
                with contextlib.suppress(FileNotFoundError):
                    with open(os.path.join(self._directory, once_id, str(number)), "rb") as file:
                        return file.read()
        raise NotFound(f"no output `{path[:200]}` of run `{once_id[:80]}` is kept", once_id=once_id[:80])

    def forget(self, caller: Caller, once_id: str) -> None:
        """Remove the outputs that were kept. What is on record stays."""
        require(caller, "tool.call")
        self.get(caller, once_id)
        self._ledger.append(FORGOTTEN, once_id, {"caller": caller.name})
        shutil.rmtree(os.path.join(self._directory, once_id), ignore_errors=True)

    def sweep(self) -> None:
        """After a start: remove the outputs of runs that did not come to their record, and of those that are forgotten."""
        for once_id in self._folders():
            if self._entry(once_id) is None or self._is_forgotten(once_id):
                shutil.rmtree(os.path.join(self._directory, once_id), ignore_errors=True)

    def expire(self, until: datetime) -> None:
        """Remove the outputs of runs that ended before. What is on record stays."""
        for once_id in self._folders():
            entry = self._entry(once_id)
            if entry is not None and entry.at <= until:
                if not self._is_forgotten(once_id):
                    self._ledger.append(FORGOTTEN, once_id, {"caller": "timer"})
                shutil.rmtree(os.path.join(self._directory, once_id), ignore_errors=True)

    def _folders(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(self._directory)
        return []

    def _is_kept(self, entry: LedgerEntry) -> bool:
        return bool(entry.body["kept"]) and not self._is_forgotten(entry.subject)

    def _is_forgotten(self, once_id: str) -> bool:
        return bool(self._ledger.entries(subject=once_id, kinds=(FORGOTTEN,), limit=1))

    async def _work(self, caller: Caller, info: SandboxInfo, request: OnceRequest) -> ToolResult:
        for name, content in sorted(request.files.items()):
            wrote = await self._gate.upload(
                caller,
                info.sandbox_id,
                f"inputs/{name}",
                _whole(content),
                source=request.source.get(name),
                mode=READ_ONLY,
            )
            _raise_of(wrote)
        cell = CellRequest(
            code=request.code,
            language=request.language,
            timeout_s=request.timeout_s,
            env=request.env,
        )
        result = await self._cells.run(caller, info.sandbox_id, cell, on_leave="interrupt")
        _raise_of(result)
        return result

    async def _outputs(self, caller: Caller, info: SandboxInfo) -> tuple[tuple[OnceOutput, ...], tuple[str, ...]]:
        there = await self._declared.find(caller, info.sandbox_id, with_undeclared=False)
        if sum(one.bytes for one in there.found) > MOST_OUTPUT_BYTES:
            raise _too_large()
        outputs: list[OnceOutput] = []
        for one in there.found:
            room = MOST_OUTPUT_BYTES - sum(len(before.content) for before in outputs)
            content = await self._read(caller, info, one.path, room)
            digest = hashlib.sha256(content).hexdigest()
            outputs.append(OnceOutput(path=one.path, bytes=len(content), sha256=digest, content=content))
        return tuple(outputs), tuple(there.missing)

    async def _read(self, caller: Caller, info: SandboxInfo, path: str, room: int) -> bytes:
        """A file, also one that something goes on to write at. Raises TooLarge if it has more than *room* bytes."""
        parts: list[bytes] = []
        offset: int | None = 0
        while offset is not None:
            arguments: dict[str, Any] = {"path": path, "offset": offset, "length": PART_BYTES}
            result = await self._gate.call(caller, info.sandbox_id, "read_file", arguments, deliver=parts.append)
            _raise_of(result)
            if sum(map(len, parts)) > room:
                raise _too_large()
            offset = result.value["next_offset"]
        return b"".join(parts)

    def _check_same(self, before: OnceRecord, inputs: tuple[OnceFile, ...]) -> None:
        now, then = ({one.path: one.sha256 for one in files} for files in (inputs, before.inputs))
        if now != then:
            changed = sorted(path for path in now.keys() | then.keys() if now.get(path) != then.get(path))
            raise InputChanged(
                f"`{changed[0]}` is not what run `{before.once_id}` had", once_id=before.once_id, changed=list(changed)
            )

    def _keep(self, once_id: str, outputs: tuple[OnceOutput, ...]) -> None:
        folder = os.path.join(self._directory, once_id)
        os.makedirs(folder, mode=0o700)
        for number, one in enumerate(outputs):
            with open(os.path.join(folder, str(number)), "xb") as file:
                file.write(one.content)

    def _record(
        self,
        caller: Caller,
        info: SandboxInfo,
        once_id: str,
        request: OnceRequest,
        result: ToolResult,
        inputs: tuple[OnceFile, ...],
        outputs: tuple[OnceOutput, ...],
    ) -> None:
        body: dict[str, Any] = {
            "sandbox_id": info.sandbox_id,
            "agent_id": None,
            "session_id": info.session_id,
            "caller": caller.name,
            "token_id": caller.token_id,
            "call_id": result.call_id,
            "receipt_id": result.receipt_id,
            "language": request.language,
            "code_sha256": hashlib.sha256(request.code.encode()).hexdigest(),
            "inputs": [one.model_dump(mode="json") for one in inputs],
            "outputs": [one.model_dump(mode="json", exclude={"content"}) for one in outputs],
            "kept": request.keep == "io",
            "again": request.again,
        }
        self._ledger.append(KIND, once_id, body)

    def _entry(self, once_id: str) -> LedgerEntry | None:
        found = self._ledger.entries(subject=once_id, kinds=(KIND,), limit=1)
        return found[0] if found else None


async def _whole(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _too_large() -> TooLarge:
    return TooLarge(
        f"the outputs are larger than {MOST_OUTPUT_BYTES} bytes together",
        hint="make a sandbox for it, and download them from there",
        limit=MOST_OUTPUT_BYTES,
    )


def _raise_of(result: ToolResult) -> None:
    if result.error is not None:
        raise from_wire(result.error)
