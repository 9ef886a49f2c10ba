"""Files attached to a conversation: each lies in the sandbox as `inputs/NAME`, to be read and not written, from its turn on.

A second file of a name that is taken gets another one, and whoever attached it is told. They go with the workspace.
"""

import hashlib
import posixpath
from collections.abc import AsyncIterator

from coldframe.contract.caller import Caller
from coldframe.contract.cell import Attachment
from coldframe.contract.errors import Conflict, InvalidArgument, from_wire
from coldframe.control.gate import Gate
from coldframe.control.rights import require

FOLDER = "inputs"
READ_ONLY = 0o444
MOST_TRIES = 1000
MOST_NAME_BYTES = 200


class Attachments:
    """Of all sandboxes. Each is a write through the gate, under the name that it gets."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def attach(
        self, caller: Caller, sandbox_id: str, name: str, content: bytes, *, source: str | None = None
    ) -> Attachment:
        """Put *content* into the sandbox. The same content under the same name is there once.

        Raises:
            InvalidArgument: that is no name of a file. Refused, WrongState, LimitReached: as writing a file does.
        """
        require(caller, "tool.call")
        _check_name(name)
        digest = hashlib.sha256(content).hexdigest()
        for number in range(1, MOST_TRIES):
            path = f"{FOLDER}/{_numbered(name, number)}"
            result = await self._gate.upload(
                caller,
                sandbox_id,
                path,
                _whole(content),
                source=source,
                sha256=digest,
                mode=READ_ONLY,
                create_only=True,
            )
            if result.error is None:
                note = None if number == 1 else f"`{name}` is taken by another file, so this one is `{path}`"
                return Attachment(path=path, name=name, bytes=len(content), sha256=digest, source=source, note=note)
            if result.error["code"] != Conflict.code:
                raise from_wire(result.error)
            if await self._is_same(caller, sandbox_id, path, len(content), digest):
                note = "it was attached before, with the same content"
                return Attachment(path=path, name=name, bytes=len(content), sha256=digest, source=source, note=note)
        raise Conflict(f"there are {MOST_TRIES} files of the name `{name}`", path=f"{FOLDER}/{name}")

    async def _is_same(self, caller: Caller, sandbox_id: str, path: str, size: int, digest: str) -> bool:
        read = hashlib.sha256()
        offset: int | None = 0
        while offset is not None:
            parts: list[bytes] = []
            arguments = {"path": path, "offset": offset, "length": min(8 << 20, size - offset)}
            result = await self._gate.call(caller, sandbox_id, "read_file", arguments, deliver=parts.append)
            if result.error is not None or result.value["total_bytes"] != size:
                return False
            read.update(b"".join(parts))
            offset = result.value["next_offset"]
        return read.hexdigest() == digest


def _numbered(name: str, number: int) -> str:
    stem, ending = posixpath.splitext(name)
    return name if number == 1 else f"{stem}-{number}{ending}"


def _check_name(name: str) -> None:
    if (
        not name
        or name in (".", "..")
        or "/" in name
        or not name.isprintable()
        or len(name.encode("utf-8", "surrogatepass")) > MOST_NAME_BYTES
    ):
        raise InvalidArgument(
            f"`{name[:80]}` is no name for an attached file",
            hint="give the name of a file, without folders",
            argument="name",
        )


async def _whole(content: bytes) -> AsyncIterator[bytes]:
    yield content
