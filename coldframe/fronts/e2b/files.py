"""`/files`: content of files of a sandbox as HTTP, both ways, and joined there; `/envs` and `/metrics` beside it.

An upload is written as it arrives, each file whole or not at all. What is sent compressed is unpacked on the way. A client
that has no token may come with an address that somebody signed who had one (`signatures.py`).
"""

import mimetypes
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.errors import (
    ColdframeError,
    DiskFull,
    FileMissing,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotRegular,
    TooLarge,
    from_wire,
)
from coldframe.contract.tool import ToolResult
from coldframe.fronts.answers import NO_SNIFF
from coldframe.fronts.e2b.box_user import BoxUser, Place, named_user
from coldframe.fronts.e2b.filesystem import call_tool
from coldframe.fronts.e2b.multipart import Parts, boundary_of
from coldframe.fronts.e2b.routes import answer
from coldframe.fronts.streams import SMALL_BODY_CAP_BYTES, read_object
from coldframe.fronts.windows import WINDOW_BYTES, windows
from coldframe.tools.registry import in_box

METADATA = "x-metadata-"
PIECE_BYTES = 1024 * 1024
MOST_SOURCES = 1000
NOT_ENOUGH_DISK = 507
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
CONTENT = NO_SNIFF | {"Content-Security-Policy": "sandbox; default-src 'none'", "Accept-Ranges": "bytes"}


def file_error(error: ColdframeError) -> Response:
    """Code and message, as E2B has it: SDKs compare the whole of it."""
    status = NOT_ENOUGH_DISK if isinstance(error, DiskFull) else error.status
    if isinstance(error, IsDirectory | NotDirectory | NotRegular):
        status = 400
    return answer({"code": status, "message": error.message}, status)


# -- reading ---------------------------------------------------------------------------------------


async def download(place: Place, user: BoxUser, request: Request) -> Response:
    """The content of a file, or a range of it."""
    path = user.place(request.query_params.get("path", ""))

    async def read(offset: int, length: int, version: str | None) -> tuple[ToolResult, bytes]:
        arguments: dict[str, Any] = {"path": path, "user": user.name, "offset": offset, "length": length}
        if version is not None:
            arguments["if_version"] = version
        delivered: list[bytes] = []
        result = await place.control.gate.call(
            place.caller, place.sandbox_id, "read_path", arguments, deliver=delivered.append
        )
        return result, b"".join(delivered) if result.error is None else b""

    asked = request.headers.get("range")
    part = None if asked is None else _RANGE.fullmatch(asked.strip())
    begin = int(part.group(1)) if part is not None and part.group(1) else 0
    first, data = await read(begin, WINDOW_BYTES, None)
    if first.error is not None:
        raise _reading_error(from_wire(first.error), path)
    total, version = int(first.value["total_bytes"]), str(first.value["version"])
    span = (0, total) if part is None else _span(part, total)
    if span is None:
        return Response(b"", 416, CONTENT | {"Content-Range": f"bytes */{total}"})
    start, stop = span
    if start != begin:
        first, data = await read(start, WINDOW_BYTES, version)
        if first.error is not None:
            raise _reading_error(from_wire(first.error), path)
    wanted = stop - start
    name = path.rpartition("/")[2]
    headers = CONTENT | {
        "Content-Length": str(wanted),
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(name, safe='', errors='replace')}",
        "ETag": f'"{version}"',
    }
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(b"", status, headers, media_type)
    source = windows(read, path, data[:wanted], version, start, wanted)
    return StreamingResponse(source, status, headers, media_type)


def _span(part: re.Match[str], total: int) -> tuple[int, int] | None:
    """First byte and the one behind the last; None for a range that nothing is in."""
    first, last = part.group(1), part.group(2)
    if not first:
        length = int(last or 0)
        return (max(0, total - length), total) if length and total else None
    start = int(first)
    stop = min(total, int(last) + 1) if last else total
    return (start, stop) if start < stop else None


def _reading_error(error: ColdframeError, path: str) -> ColdframeError:
    if isinstance(error, FileMissing):
        return FileMissing(f"path '{path}' does not exist", hint=error.hint, path=path)
    if isinstance(error, IsDirectory):
        return IsDirectory(f"path '{path}' is a directory", hint=error.hint, path=path)
    return error


# -- writing ---------------------------------------------------------------------------------------


async def upload(place: Place, user: BoxUser, request: Request) -> Response:
    """One file, or several as parts of a form, whose names say where they go."""
    metadata = _metadata(request)
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    path = request.query_params.get("path")
    body = _unpacked(request)
    try:
        if kind == "multipart/form-data":
            return answer(await _upload_parts(place, user, body, boundary_of(content_type), path, metadata))
        if not path:
            raise InvalidArgument("`path` is missing", hint="say where the file goes", argument="path")
        return answer([await _write(place, user, user.place(path), body, metadata)])
    finally:
        await body.aclose()


async def _upload_parts(
    place: Place, user: BoxUser, body: AsyncIterator[bytes], boundary: bytes, path: str | None, metadata: dict[str, str]
) -> list[dict[str, Any]]:
    parts, written, seen = Parts(body, boundary), [], set()
    while (head := await parts.next()) is not None:
        if head.name != "file":
            continue
        target = user.place(path or head.filename or "")
        if not (path or head.filename):
            raise InvalidArgument("a part has no file name", hint="name it, or send `path`", argument="path")
        if target in seen:
            raise InvalidArgument(f"`{target}` is sent twice", hint="send each file once", argument="path")
        seen.add(target)
        written.append(await _write(place, user, target, parts.content(), metadata))
    return written


async def _write(
    place: Place, user: BoxUser, path: str, content: AsyncIterator[bytes], metadata: dict[str, str]
) -> dict[str, Any]:
    entry = _entry(await _put(place, user, path, content, metadata))
    return {**entry, "metadata": metadata} if metadata else entry


async def _put(
    place: Place, user: BoxUser, path: str, content: AsyncIterator[bytes], metadata: dict[str, str]
) -> dict[str, Any]:
    """The answer of the tool."""
    anywhere: dict[str, Any] = {"user": user.name}
    if metadata:
        anywhere["metadata"] = metadata
    result = await place.control.gate.upload(place.caller, place.sandbox_id, path, content, anywhere=anywhere)
    if result.error is not None:
        raise from_wire(result.error)
    return result.value


def _entry(written: dict[str, Any]) -> dict[str, Any]:
    told = in_box(str(written["path"]))
    return {"path": told, "name": told.rpartition("/")[2], "type": "file"}


def _metadata(request: Request) -> dict[str, str]:
    """What is to be noted of each file. Raises InvalidArgument."""
    found = {}
    for name, value in request.headers.items():
        if name.startswith(METADATA):
            key = name.removeprefix(METADATA)
            if not key or not value.isascii() or not value.isprintable():
                raise InvalidArgument(f"the metadata `{key[:80]}` is no printable ASCII", argument=name[:80])
            found[key] = value
    return found


async def _unpacked(request: Request) -> AsyncGenerator[bytes, None]:
    """The body, unpacked piece by piece if it is compressed."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity", "gzip"):
        raise InvalidArgument(f"the coding `{coding[:40]}` is not known", hint="send it as gzip, or as it is")
    if coding != "gzip":
        async for piece in request.stream():
            if piece:
                yield piece
        return
    unpacker, is_begun = zlib.decompressobj(31), False
    try:
        async for packed in request.stream():
            while packed:
                is_begun = True
                piece = unpacker.decompress(packed, PIECE_BYTES)
                packed = unpacker.unconsumed_tail
                if piece:
                    yield piece
                if unpacker.eof:
                    packed = unpacker.unused_data
                    unpacker, is_begun = zlib.decompressobj(31), bool(packed)
                elif not piece and not packed:
                    break
        if piece := unpacker.flush() if is_begun else b"":
            yield piece
    except zlib.error as error:
        raise InvalidArgument(f"the body is no gzip: {error}", argument="body") from None
    if is_begun and not unpacker.eof:
        raise InvalidArgument("the compressed body broke off", argument="body")


# -- joining ---------------------------------------------------------------------------------------


async def compose(place: Place, request: Request, default: BoxUser) -> Response:
    """Join files into one, in order, and remove them when it is there."""
    body = await read_object(request, SMALL_BODY_CAP_BYTES)
    sources, target, username = body.get("source_paths"), body.get("destination"), body.get("username")
    if not isinstance(target, str) or not target:
        raise InvalidArgument("`destination` is missing", argument="destination")
    if not isinstance(sources, list) or not sources or not all(isinstance(one, str) and one for one in sources):
        raise InvalidArgument(
            "`source_paths` is a list of paths, of which there is at least one", argument="source_paths"
        )
    if len(sources) > MOST_SOURCES:
        raise TooLarge(
            f"at most {MOST_SOURCES} files are joined at once", hint="join some of them first", limit=MOST_SOURCES
        )
    user = named_user(username) if isinstance(username, str) and username else default
    paths = [user.place(one) for one in sources]
    written = await _put(place, user, user.place(target), _joined(place, user, paths), {})
    whole = _entry(written)
    for path in dict.fromkeys(paths):
        if path == whole["path"]:
            continue
        # Through a directory that is a link a source may be what was just written, by another name.
        found = await call_tool(place, "stat_path", {"path": path, "user": user.name})
        if found["version"] != written["version"]:
            await call_tool(place, "remove_path", {"path": path, "user": user.name})
    return answer(whole)


async def _joined(place: Place, user: BoxUser, paths: list[str]) -> AsyncIterator[bytes]:
    for path in paths:
        offset, version = 0, None
        while True:
            arguments: dict[str, Any] = {"path": path, "user": user.name, "offset": offset, "length": WINDOW_BYTES}
            if version is not None:
                arguments["if_version"] = version
            delivered: list[bytes] = []
            result = await place.control.gate.call(
                place.caller, place.sandbox_id, "read_path", arguments, deliver=delivered.append
            )
            if result.error is not None:
                raise _reading_error(from_wire(result.error), path)
            version, data = str(result.value["version"]), b"".join(delivered)
            if data:
                yield data
            offset += len(data)
            if result.value["next_offset"] is None:
                break
