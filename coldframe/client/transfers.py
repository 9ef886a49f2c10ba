"""Files as bytes of any size, and local files and folders up and down: taken up again where a connection broke, compared by digest."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from coldframe.client import models
from coldframe.client.commands import FRAMES
from coldframe.client.replies import answer_from, read_answer, read_object
from coldframe.client.transport import Reply, Stream, Transport, ask_stream, encode_path, error_of
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    FileMissing,
    HostUnreachable,
    Unavailable,
    Unfit,
    from_wire,
)

Content = str | bytes | AsyncIterable[bytes]
Progress = Callable[[int, int], object]
"""Called with the bytes that are there and with all that there will be."""
PIECE_BYTES = 1024 * 1024
UPLOAD_PART_BYTES = 32 * 1024 * 1024
"""Of an upload in parts: what is sent at once, so that the other end can answer between two."""
MOST_ATTEMPTS = 4
"""How often one transfer takes up again what broke, without anything more having come through."""
_PACK = """set -eu
[ -d "$1" ] || { echo "no directory" >&2; exit 20; }
exec tar --create --sparse --format=posix --file "$2" --directory "$1" ."""
_PLACE = """set -eu
archive=$1 target=$3
above=$(dirname -- "$target")
stage=$above/$2
trap 'rm -rf -- "$archive" "$stage"' EXIT
mkdir -p -- "$above"
case "$(realpath -- "$above")/" in "$(pwd -P)"/*) ;; *) echo "it leads out of the workspace" >&2; exit 21;; esac
if [ -L "$target" ] || { [ -e "$target" ] && { [ ! -d "$target" ] || [ -n "$(ls -A -- "$target")" ]; }; }; then exit 22; fi
mkdir -- "$stage"
tar --extract --same-permissions --no-same-owner --file "$archive" --directory "$stage"
mv -T -- "$stage" "$target"
"""


class Transfers:
    """Those of one sandbox."""

    _transport: Transport
    _path: str
    id: str

    async def upload(
        self,
        path: str,
        content: Content,
        *,
        if_version: str | None = None,
        source: str | None = None,
        sha256: str | None = None,
    ) -> models.Written:
        """Replace a file by *content*, streamed. A broken upload changes nothing. *source* says where it is from.

        What is written is compared with what was sent by digest: with *sha256*, or where *content* is no stream, in the
        box before the file is replaced, else afterwards.

        Raises:
            InvalidArgument: what arrived has another digest than *sha256*; nothing was changed.
            HostUnreachable: what was written is not what was sent, or the connection broke.
        """
        if isinstance(content, str):
            content = content.encode()
        digest = hashlib.sha256()
        if isinstance(content, bytes):
            digest.update(content)
            sha256 = sha256 or digest.hexdigest()
            body: bytes | AsyncIterable[bytes] = content
        else:
            body = _counted(content, digest)
        headers = _upload_headers(if_version, source)
        if sha256 is not None:
            headers["Coldframe-Sha256"] = sha256
        reply = await self._transport.request("PUT", self._file(path), body=body, headers=headers)
        written = _written(reply)
        if written.sha256 != digest.hexdigest():
            raise HostUnreachable(f"what is at `{written.path}` now is not what was sent")
        return written

    async def upload_file(
        self,
        local: str | os.PathLike[str],
        path: str,
        *,
        if_version: str | None = None,
        source: str | None = None,
        progress: Progress | None = None,
    ) -> models.Written:
        """Replace a file by a local one of any size. What breaks off is taken up again, now or when the same file is sent
        to the same place within a day; until all of it has come, with the right digest, nothing is changed.

        Raises:
            Conflict: the file is of another version, or something else is sent here right now.
            Unfit: the local file changes meanwhile.
            HostUnreachable, Unavailable: it broke off; ask again and it goes on from there.
        """
        with open(local, "rb") as file:
            digest = hashlib.sha256()
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
            length, sha256 = file.tell(), digest.hexdigest()
            headers = {"Coldframe-Sha256": sha256, "Coldframe-Upload-Length": str(length)}
            headers |= _upload_headers(if_version, source)
            offset, furthest, attempts = length, -1, 0
            while True:  # first it is asked what is there already, by a part without content at the end
                file.seek(offset)
                part_bytes = min(UPLOAD_PART_BYTES, length - offset)
                headers["Coldframe-Upload-Offset"] = str(offset)
                try:
                    reply = await self._transport.request(
                        "PUT", self._file(path), body=_pieces_of(file, part_bytes), headers=headers
                    )
                    return _written(reply)
                except Conflict as error:
                    taken = error.facts.get("taken")
                    if not isinstance(taken, int) or not 0 <= taken < length:
                        raise
                    attempts = 0 if taken > furthest else attempts + 1
                    offset, furthest = taken, max(taken, furthest)
                except HostUnreachable:
                    attempts += 1
                    offset = length
                if attempts >= MOST_ATTEMPTS:
                    raise Unavailable(f"`{path}` could not be sent: {offset} of {length} bytes are there")
                if progress is not None and offset < length:
                    progress(offset, length)

    async def download(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        snapshot: str | None = None,
        if_version: str | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file, or of a range; with *snapshot* as they are in that. All are of one version, and
        compared by digest before they are given; a connection that breaks is taken up again.

        Raises:
            Conflict: the file has another version than *if_version*, or changed meanwhile.
            HostUnreachable: the connection broke again and again; what came so far is not the whole.
            Refused and others: the rest may not, or cannot, be read.
        """
        async with aclosing(self._ranges(path, offset, length, snapshot, if_version)) as parts:
            async for part, _, _ in parts:
                yield part

    async def _ranges(
        self, path: str, offset: int, length: int | None, snapshot: str | None, if_version: str | None
    ) -> AsyncGenerator[tuple[bytes, str, int], None]:
        """Bytes, the version that they are of, and how many the whole file has."""
        attempts = 0
        while True:
            query = {"offset": offset or None, "length": length, "snapshot": snapshot}
            headers = {"Accept": f"{FRAMES};digests=parts, */*"}
            if if_version is not None:
                headers["If-Match"] = f'"{if_version}"'
            try:
                stream = await ask_stream(self._transport, "GET", self._file(path), query=query, headers=headers)
                version, total = stream.headers.get("coldframe-version", ""), _total_of(stream)
                if_version = version or if_version
                async with aclosing(_checked(stream, offset)) as parts:
                    async for part in parts:
                        offset += len(part)
                        length = None if length is None else length - len(part)
                        attempts = 0
                        yield part, version, total
                return
            except HostUnreachable:
                attempts += 1
                if if_version is None or attempts >= MOST_ATTEMPTS:
                    raise

    async def download_file(
        self,
        path: str,
        local: str | os.PathLike[str],
        *,
        resume: bool = False,
        snapshot: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Put a file of any size into a local one as a whole; how many bytes that is.

        What breaks off leaves nothing behind. With *resume* what has come stays beside *local* as `….part`, and the next
        call with *resume* goes on from there if the file has not changed since, else from the start.
        """
        target = os.fspath(local)
        key = hashlib.sha256(json.dumps([self.id, path, snapshot]).encode()).hexdigest()[:16]
        draft = f"{target}.{key if resume else secrets.token_hex(8)}.part"
        noted = f"{draft}.version"
        if_version = _read_text(noted) if resume and os.path.exists(draft) else None
        if if_version is None:
            _forget(draft, noted)
        size = 0 if if_version is None else os.path.getsize(draft)
        is_kept = False
        try:
            with open(draft, "ab", buffering=0) as file:
                try:
                    size = await self._fill(file, path, size, snapshot, if_version, noted if resume else None, progress)
                except Conflict:
                    if if_version is None:
                        raise
                    file.truncate(0)
                    os.unlink(noted)
                    size = await self._fill(file, path, 0, snapshot, None, noted, progress)
            os.replace(draft, target)
            is_kept = True
        except (HostUnreachable, Unavailable, OSError, KeyboardInterrupt):
            is_kept = resume
            raise
        finally:
            if not is_kept:
                _forget(draft, noted)
        _forget(noted)
        return size

    async def _fill(
        self,
        file: Any,
        path: str,
        size: int,
        snapshot: str | None,
        if_version: str | None,
        noted: str | None,
        progress: Progress | None,
    ) -> int:
        async with aclosing(self._ranges(path, size, None, snapshot, if_version)) as parts:
            async for part, version, total in parts:
                if noted is not None and if_version is None:
                    _write_text(noted, version)
                    if_version = version
                rest = memoryview(part)
                while rest:
                    rest = rest[file.write(rest) :]
                size += len(part)
                if progress is not None:
                    progress(size, total)
        return size

    async def upload_folder(
        self, local: str | os.PathLike[str], path: str, *, progress: Progress | None = None
    ) -> models.Written:
        """Make the folder *path* with all that is in a local one: modes, links, times and holes are kept, and links are
        not followed. It goes up as one archive, which is unpacked inside, by the sandbox's own user, beside the target,
        and renamed: the folder is there whole, or not at all. Two recorded calls, `write_file` and `run_command`, and
        for a moment it takes twice the room. The answer is that of the archive.

        Raises:
            Conflict: there is something at *path* already, other than an empty folder.
            OutsideWorkspace: *path* leads out of the workspace.
            Unfit: the local folder holds what has no place in an archive, or the archive could not be unpacked.
        """
        from coldframe.client.folders import check_folder_name, pack_folder  # only here: `tarfile` is slow to import

        target, key = check_folder_name(path), secrets.token_hex(8)
        archive, stage = f".coldframe-archive-{key}", f".coldframe-folder-{key}"
        with pack_folder(os.fspath(local)) as packed:
            written = await self.upload_file(packed, archive, progress=progress)
        try:
            await self._script(_PLACE, [f"./{archive}", stage, f"./{target}"], path)
        except ColdframeError:
            await self._remove_left(archive)
            raise
        return written

    async def download_folder(
        self,
        path: str,
        local: str | os.PathLike[str],
        *,
        skip_foreign_links: bool = False,
        progress: Progress | None = None,
    ) -> list[str]:
        """Make the local folder *local*, which must not be there, with all that is in a folder of the sandbox: modes,
        links, times and holes are kept, owners are not. What comes out of a sandbox is not trusted: names that climb out,
        devices, and links that point out of the folder are refused before anything is at *local*; with
        *skip_foreign_links* such links are left out, and the answer names them. For a moment the archive takes room in the sandbox.

        Raises:
            Conflict: there is something at *local*.
            FileMissing: *path* is no folder.
            Unfit: something in it is refused, or it could not be packed.
        """
        from coldframe.client.folders import check_folder_name, unpack_folder

        source, target = check_folder_name(path), os.fspath(local)
        if os.path.lexists(target):
            raise Conflict(f"`{target}` exists", hint="name another place, or remove it first")
        archive = f".coldframe-archive-{secrets.token_hex(8)}"
        packed = f"{target}.{secrets.token_hex(8)}.part"
        try:
            try:
                await self._script(_PACK, [f"./{source}", f"./{archive}"], path)
                await self.download_file(archive, packed, progress=progress)
            finally:
                await self._remove_left(archive)
            return unpack_folder(packed, target, skip_foreign_links=skip_foreign_links)
        finally:
            _forget(packed)

    async def _script(self, script: str, words: list[str], path: str) -> None:
        payload = {"command": ["sh", "-c", script, "sh", *words]}
        reply = await self._transport.request(
            "POST",
            f"{self._path}/tools/run_command",
            payload=payload,
            headers={"Idempotency-Key": secrets.token_hex(16)},
        )
        value = _value_of(reply).value
        code, told = value["exit_code"], str(value.get("stderr") or "").strip()
        if code == 0:
            return
        if code == 20:
            raise FileMissing(f"there is no folder at `{path}`", path=path)
        if code == 21:
            raise from_wire({"code": "OUTSIDE_WORKSPACE", "message": f"`{path}` leaves the workspace"})
        if code == 22:
            raise Conflict(
                f"there is something at `{path}` already", hint="name another place, or remove it first", path=path
            )
        raise Unfit(
            f"the archive of `{path}` could not be handled in the sandbox: {told[-300:] or f'exit code {code}'}",
            hint="nothing was changed; look at the message of tar, which has to be there",
            path=path,
        )

    async def _remove_left(self, archive: str) -> None:
        """Remove the archive, if it is there and the sandbox still answers."""
        try:
            await self._transport.request("DELETE", self._file(archive))
        except ColdframeError:
            pass  # what went wrong before is told

    def _file(self, path: str) -> str:
        return f"{self._path}/files/{encode_path(path)}"


async def _counted(content: AsyncIterable[bytes], digest: Any) -> AsyncGenerator[bytes, None]:
    async for part in content:
        digest.update(part)
        yield part


async def _pieces_of(file: Any, length: int) -> AsyncGenerator[bytes, None]:
    while length > 0:
        piece = file.read(min(PIECE_BYTES, length))
        if not piece:
            raise Unfit(
                "the local file became shorter while it was sent", hint="send it again when nothing writes to it"
            )
        length -= len(piece)
        yield piece


async def _checked(stream: Stream, offset: int) -> AsyncGenerator[bytes, None]:
    """The content of a download from *offset* on, each part only if it belongs there and its digest is as the server says."""
    if stream.headers.get("content-type") != FRAMES:  # a server that knows no frames
        async with aclosing(stream.parts()) as parts:
            async for part in parts:
                yield part
        return
    digest, begun, is_whole = hashlib.sha256(), offset, False
    async with aclosing(stream.frames_in_pieces()) as frames:
        async for head, pieces in frames:
            event = read_object(head)
            if event.get("event") == "error":
                raise from_wire(event["error"])
            is_whole = event.get("event") == "end"
            if "part_sha256" in event:
                digest = hashlib.sha256()
            for piece in pieces:
                digest.update(piece)
            told = event.get("part_sha256", event.get("sha256"))
            is_there = event.get("bytes") == offset - begun if is_whole else event.get("offset") == offset
            # Where a server tells digests of parts, the end has none: it tells how many bytes there were.
            if not is_there or (told != digest.hexdigest() and not (is_whole and told is None)):
                raise HostUnreachable("what arrived is not what was sent")
            for piece in pieces:
                yield piece
                offset += len(piece)
    if not is_whole:
        raise HostUnreachable("the download stopped before its end")


def _upload_headers(if_version: str | None, source: str | None) -> dict[str, str]:
    headers = {"If-Match": f'"{if_version}"'} if if_version else {}
    if source is not None:
        headers["Coldframe-Source"] = quote(source)
    return headers


def _value_of(reply: Reply) -> models.ToolResult:
    if reply.status >= 400:
        raise error_of(reply)
    result = read_answer(models.ToolResult, reply.body)
    if result.error is not None:
        raise from_wire(result.error)
    return result


def _written(reply: Reply) -> models.Written:
    return answer_from(_value_of(reply), models.Written)


def _total_of(stream: Stream) -> int:
    text = stream.headers.get("coldframe-total-bytes", "")
    return int(text) if text.isdigit() else 0


def _read_text(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read() or None
    except FileNotFoundError:
        return None


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _forget(*paths: str) -> None:
    for path in paths:
        if os.path.lexists(path):
            os.unlink(path)
