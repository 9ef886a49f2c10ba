"""Files as raw bytes, of any size, through the gate like every other call.

A download is a sequence of `read_file` calls bound to one version of the file (`fronts/windows.py`).
"""

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.errors import (
    ColdframeError,
    FileMissing,
    Internal,
    InvalidArgument,
    IsDirectory,
    PermissionDenied,
    from_wire,
)
from coldframe.contract.tool import ToolResult
from coldframe.control.partial_uploads import Sent
from coldframe.fronts.answers import NO_SNIFF, encode_json, json_response, result_response
from coldframe.fronts.rest.calls import SNAPSHOT
from coldframe.fronts.rest.request import caller_of, control_of, number_of, path_after, session_of
from coldframe.fronts.rest.schema import BYTES, JSON_RESULT, PLAIN_JSON, RawRoute
from coldframe.fronts.streams import FRAMES, pack_frame, pack_start, pieces_of
from coldframe.fronts.windows import WINDOW_BYTES, windows
from coldframe.tools.registry import relative_path


class AnyPath(Convertor[str]):
    """The rest of the URL, line ends in names included, which Starlette's own `path` stops at."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", AnyPath())
PART_DIGESTS = "digests=parts"
"""With FRAMES in what a client accepts: it is content with a digest of each part of a download."""
CONTENT = NO_SNIFF | {"Content-Security-Policy": "sandbox; default-src 'none'"}


async def download_file(request: Request) -> Response:
    """The bytes of a file, or of a range of it."""
    path = path_after(request, "/files/")
    offset = number_of(request, "offset", 0) or 0
    length = number_of(request, "length", None)
    first_length = WINDOW_BYTES if length is None else min(length, WINDOW_BYTES)
    digests: deque[str] = deque()
    first, data = await _read(request, path, offset, first_length, request.headers.get("if-match"), digests)
    if first.error is not None:
        return result_response(first)
    value = first.value
    total, version = int(value["total_bytes"]), str(value["version"])
    if not version.isascii() or not version.isprintable():
        raise Internal("the version of the file cannot stand in a header")
    wanted = max(0, total - offset) if length is None else min(length, max(0, total - offset))
    framed = FRAMES in request.headers.get("accept", "")
    headers = CONTENT | {
        "ETag": f'"{version}"',
        "Coldframe-Total-Bytes": str(total),
        "Coldframe-Version": version,
        "Coldframe-Label": first.label.value,
        "Coldframe-Call": first.call_id,
    }

    async def read(at: int, length: int, of_version: str | None) -> tuple[ToolResult, bytes]:
        return await _read(request, path, at, length, of_version, digests)

    source = windows(read, path, data, version, offset, wanted)
    if framed:
        digests_of_parts = digests if PART_DIGESTS in request.headers.get("accept", "") else None
        return StreamingResponse(_frames(source, offset, digests_of_parts), headers=headers, media_type=FRAMES)
    headers["Content-Length"] = str(wanted)
    return StreamingResponse(source, headers=headers, media_type="application/octet-stream")


async def _frames(
    windows: AsyncGenerator[bytes, None], offset: int, digests_of_parts: "deque[str] | None"
) -> AsyncIterator[bytes | memoryview]:
    """The same with a digest beside each window, and at the end an event that says so, or why not. It is that of all bytes
    so far; where those of the parts are enough, that of the part, which was made for the record: the rest is a matter of order.
    """
    digest, sent = hashlib.sha256(), 0
    try:
        async with aclosing(windows):
            async for data in windows:
                head: dict[str, object] = {"event": "bytes", "offset": offset + sent}
                if digests_of_parts is not None:
                    head["part_sha256"] = digests_of_parts.popleft()
                else:
                    await asyncio.to_thread(digest.update, data)
                    head["sha256"] = digest.hexdigest()
                sent += len(data)
                yield pack_start(encode_json(head), len(data))
                for piece in pieces_of(data):
                    yield piece
    except ColdframeError as error:
        yield pack_frame(encode_json({"event": "error", "error": error.to_wire()}))
        return
    end: dict[str, object] = {"event": "end", "bytes": sent}
    if digests_of_parts is None:
        end["sha256"] = digest.hexdigest()
    yield pack_frame(encode_json(end))


async def _read(
    request: Request, path: str, offset: int, length: int, version: str | None, digests: "deque[str]"
) -> tuple[ToolResult, bytes]:
    """The result of one recorded read, and the bytes that it let out. Their digest goes to the end of *digests*."""
    arguments: dict[str, object] = {"path": path, "offset": offset, "length": length, "encoding": "base64"}
    if version is not None:
        arguments["if_version"] = version.strip('"')
    delivered: list[bytes] = []
    result = await control_of(request).gate.call(
        caller_of(request),
        request.path_params["sandbox_id"],
        "read_file",
        arguments,
        session_id=session_of(request),
        snapshot_id=request.query_params.get("snapshot"),
        deliver=delivered.append,
        tell_shown=lambda shown: digests.append(shown.sha256),
    )
    return result, b"".join(delivered) if result.error is None else b""


async def upload_file(request: Request) -> Response:
    """Replace a file by the body, atomically: a broken upload changes nothing. With the length of the whole among the
    headers the body is a part of it, and what has come is kept until the rest comes."""
    _refuse_snapshot(request)
    version, source = request.headers.get("if-match"), request.headers.get("coldframe-source")
    session_id, if_version = session_of(request), None if version is None else version.strip('"')
    source = None if source is None else unquote(source)
    sha256, length = request.headers.get("coldframe-sha256"), _header_number(request, "coldframe-upload-length")
    caller, sandbox_id, path = caller_of(request), request.path_params["sandbox_id"], path_after(request, "/files/")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise InvalidArgument("a digest is 64 hexadecimal digits in lower case", argument="Coldframe-Sha256")
    if length is None:
        upload = control_of(request).gate.upload
        return result_response(
            await upload(
                *(caller, sandbox_id, path, request.stream()),
                session_id=session_id,
                if_version=if_version,
                source=source,
                sha256=sha256,
            )
        )
    if sha256 is None:
        raise InvalidArgument("an upload in parts needs the digest of the whole", argument="Coldframe-Sha256")
    sent = Sent(path, _header_number(request, "coldframe-upload-offset") or 0, length, sha256)
    try:
        return result_response(
            await control_of(request).partial_uploads.receive(
                *(caller, sandbox_id, sent, request.stream()),
                session_id=session_id,
                if_version=if_version,
                source=source,
            )
        )
    except ClientDisconnect:
        return Response(status_code=400)  # nobody reads it; what came is kept


_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]{1,17}")


def _header_number(request: Request, name: str) -> int | None:
    text = request.headers.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise InvalidArgument(f"`{name}` is no number of bytes", argument=name)
    return int(text)


async def remove_file(request: Request) -> Response:
    """Remove a file or link; a directory with all that is in it if `recursive=true`.

    As the sandbox's own user, through the gate: two recorded commands, of which the first only looks.
    """
    _refuse_snapshot(request)
    path = relative_path(path_after(request, "/files/"))
    recursive = request.query_params.get("recursive", "false")
    if not path or recursive not in ("true", "false"):
        raise InvalidArgument("name a path below the workspace, and `recursive` as true or false", argument="path")
    name = f"./{path}"
    if await _exit_code(request, ["test", "-e", name, "-o", "-L", name]) != 0:
        raise FileMissing(f"there is no file or directory at `{path}`", path=path)
    if recursive == "false" and await _exit_code(request, ["test", "-d", name, "-a", "!", "-L", name]) == 0:
        raise IsDirectory(f"`{path}` is a directory", hint="repeat with `recursive=true`", path=path)
    if await _exit_code(request, ["rm", *(["-r"] if recursive == "true" else []), "-f", "--", name]) != 0:
        raise PermissionDenied(f"`{path}` could not be removed", path=path)
    return json_response({"ok": True, "path": path})


def _refuse_snapshot(request: Request) -> None:
    if "snapshot" in request.query_params:
        raise InvalidArgument(
            "snapshots never change",
            hint="fork the snapshot, or reset the sandbox to it, and change files there",
            argument="snapshot",
        )


async def _exit_code(request: Request, command: list[str]) -> int | None:
    sandbox_id = request.path_params["sandbox_id"]
    result = await control_of(request).gate.call(
        caller_of(request), sandbox_id, "run_command", {"command": command}, session_id=session_of(request)
    )
    if result.error is not None:
        raise from_wire(result.error)
    code: int | None = result.value["exit_code"]
    return code


_PATH = "/v1/sandboxes/{sandbox_id}/files/{path:anything}"
_SESSION = ("Coldframe-Session", "Session whose label counts; the sandbox's own by default.")
_IF_MATCH = ("If-Match", "Version that the file must still have; CONFLICT otherwise.")
_SHA256_HEADER = ("Coldframe-Sha256", "Digest of the whole content: where another arrives, nothing is changed.")
_LENGTH = (
    "Coldframe-Upload-Length",
    "Bytes of the whole, with its digest: the body is a part, kept for a day. CONFLICT says by `taken` where to go on.",
)
_OFFSET = ("Coldframe-Upload-Offset", "Place of the first byte of a part; 0 by default.")
_SOURCE = ("Coldframe-Source", "Where the content is from, in your words, percent-encoded; kept on record with it.")
ROUTES = (
    RawRoute(
        "GET",
        _PATH,
        download_file,
        "Download a file",
        BYTES,
        query=(("offset", "integer", "First byte wanted."), ("length", "integer", "Bytes wanted."), SNAPSHOT),
        headers=(_SESSION, _IF_MATCH),
    ),
    RawRoute(
        "PUT",
        _PATH,
        upload_file,
        "Upload a file, whole or in parts",
        JSON_RESULT,
        body=BYTES,
        headers=(_SESSION, _IF_MATCH, _SOURCE, _SHA256_HEADER, _LENGTH, _OFFSET),
    ),
    RawRoute(
        "DELETE",
        _PATH,
        remove_file,
        "Remove a file",
        PLAIN_JSON,
        query=(("recursive", "boolean", "Also a directory, with all that is in it."),),
        headers=(_SESSION,),
    ),
)
