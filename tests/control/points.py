"""Acts on snapshots, as tests of them do them."""

from collections.abc import AsyncIterator
from typing import Any

from coldframe.contract.errors import (
    FileMissing,
)
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.snapshot import ResetRequest, SnapshotInfo, SnapshotRequest
from tests.control.bench import OWNER, Bench

MEMBER = OWNER.model_copy(update={"token_id": "tok_member", "role": Role.MEMBER})


async def take(bench: Bench, info: SandboxInfo, name: str = "", **more: Any) -> SnapshotInfo:
    caller = more.pop("caller", OWNER)
    return await bench.control.snapshots.take(
        caller, info.sandbox_id, SnapshotRequest(name=name, **more), idempotency_key=None
    )


async def write(bench: Bench, info: SandboxInfo, path: str, content: str) -> None:
    assert (await bench.call(info, "write_file", path=path, content=content)).error is None


async def read(bench: Bench, info: SandboxInfo, path: str, **more: Any) -> str:
    result = await bench.control.gate.call(OWNER, info.sandbox_id, "read_file", {"path": path}, **more)
    if result.error is not None:
        raise FileMissing(result.error["message"])
    return str(result.value["content"])


async def reset(bench: Bench, info: SandboxInfo, to: str, **more: Any) -> Any:
    key = more.pop("key", None)
    asked = ResetRequest(to=to, **more)
    return await bench.control.resets.reset(OWNER, info.sandbox_id, asked, idempotency_key=key)


def last(bench: Bench, kind: str) -> dict[str, Any]:
    return bench.entries(kinds=(kind,))[-1].body


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data
