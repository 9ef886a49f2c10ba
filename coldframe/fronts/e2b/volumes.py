"""Volumes of E2B: volumes of ours, and their files for whoever has the token of one.

Files at rest belong to the user of sandboxes. What would give them another owner or mode is refused.
"""

import posixpath
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.caller import Caller
from coldframe.contract.errors import Conflict, FileMissing, InvalidArgument, NotFound, Unauthenticated
from coldframe.contract.volume import VolumeEntry, VolumeInfo, VolumeRequest
from coldframe.control.control import Control
from coldframe.fronts.answers import NO_SNIFF
from coldframe.fronts.e2b.routes import E2bCall, E2bRoute, OpenRoute, answer, no_content, refuse_field

USER_ID = 1000
"""Of `user` in a sandbox, whose files they all are."""
_KINDS = {"file": "file", "directory": "directory", "symlink": "symlink"}


async def create_volume(call: E2bCall) -> Response:
    """POST /volumes {name}"""
    name = (await call.body()).get("name")
    try:
        request = VolumeRequest.model_validate({"name": name})
    except ValidationError:
        raise InvalidArgument(
            f"`{str(name)[:80].encode('utf-8', 'replace').decode()}` is no name for a volume",
            hint="names are small letters, digits and hyphens, and begin with a letter",
            argument="name",
        ) from None
    return answer(_with_token(call, await call.control.volumes.create(call.caller, request)), 201)


async def list_volumes(call: E2bCall) -> Response:
    """GET /volumes"""
    return answer([_body(one) for one in call.control.volumes.list(call.caller)])


async def get_volume(call: E2bCall) -> Response:
    """GET /volumes/{id}"""
    name = call.control.volumes.name_of(call.caller, _id(call.values["volume"]))
    return answer(_with_token(call, await call.control.volumes.get(call.caller, name)))


async def remove_volume(call: E2bCall) -> Response:
    """DELETE /volumes/{id}"""
    name = call.control.volumes.name_of(call.caller, _id(call.values["volume"]))
    await call.control.volumes.remove(call.caller, name)
    return no_content()


# -- files ----------------------------------------------------------------------------------------------------------------


async def get_entry(control: Control, request: Request, values: dict[str, str]) -> Response:
    """GET /volumecontent/{id}/path"""
    caller, name = _opened(control, request, values)
    return answer(await _entry(control, caller, name, _path(request)))


async def change_entry(control: Control, request: Request, values: dict[str, str]) -> Response:
    """PATCH /volumecontent/{id}/path"""
    _opened(control, request, values)
    raise refuse_field(
        "mode", "files of a volume at rest keep owner and mode", "change them in a sandbox that has the volume `rw`"
    )


async def remove_entry(control: Control, request: Request, values: dict[str, str]) -> Response:
    """DELETE /volumecontent/{id}/path"""
    caller, name = _opened(control, request, values)
    await control.volumes.remove_file(caller, name, _path(request), recursive=True)
    return no_content()


async def list_directory(control: Control, request: Request, values: dict[str, str]) -> Response:
    """GET /volumecontent/{id}/dir, as deep as `depth` says"""
    caller, name = _opened(control, request, values)
    path = _path(request)
    text = request.query_params.get("depth", "1")
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise InvalidArgument("`depth` is a whole number from 1 to 1000", argument="depth")
    depth = int(text)
    listed = await control.volumes.list_files(caller, name, path, recursive=depth > 1)
    above = path.count("/") + 1 if path else 0
    if not listed.complete:
        raise InvalidArgument("there are more entries than one answer holds", hint="list its directories one by one")
    return answer([_told(one) for one in listed.entries if one.path.count("/") - above < depth])


async def make_directory(control: Control, request: Request, values: dict[str, str]) -> Response:
    """POST /volumecontent/{id}/dir; those above it are made with `force`"""
    caller, name = _opened(control, request, values)
    _refuse_owner(request)
    path = _path(request)
    if not _is_forced(request):
        await _entry(control, caller, name, posixpath.dirname(path))
    await control.volumes.make_directory(caller, name, path)
    return answer(await _entry(control, caller, name, path), 201)


async def read_file(control: Control, request: Request, values: dict[str, str]) -> Response:
    """GET /volumecontent/{id}/file"""
    caller, name = _opened(control, request, values)
    first, parts, label = await control.volumes.read_file(caller, name, _path(request))
    headers = NO_SNIFF | {"Content-Length": str(first.total_bytes), "Coldframe-Label": label.value}
    return StreamingResponse(parts, headers=headers, media_type="application/octet-stream")


async def write_file(control: Control, request: Request, values: dict[str, str]) -> Response:
    """PUT /volumecontent/{id}/file; over one that is there with `force`, or unless that says not to"""
    caller, name = _opened(control, request, values)
    _refuse_owner(request)
    path = _path(request)
    create_only = request.query_params.get("force") == "false"
    try:
        await control.volumes.write_file(caller, name, path, request.stream(), create_only=create_only)
    except Conflict:
        if not create_only:
            raise
        raise Conflict(f"`{path[:200]}` is there already", hint="give `force` to replace it") from None
    return answer(await _entry(control, caller, name, path), 201)


def _opened(control: Control, request: Request, values: dict[str, str]) -> tuple[Caller, str]:
    """Who holds the token of the volume in the path, and how that is called. Raises Unauthenticated, NotFound."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("files of a volume need its token", hint="`GET /volumes/{id}` gives it")
    found = control.volume_tokens.open(token.strip())
    if found.volume_id != _id(values["volume"]):
        raise Unauthenticated("the token is of another volume")
    return found.caller, control.volumes.name_of(found.caller, found.volume_id)


async def _entry(control: Control, caller: Caller, name: str, path: str) -> dict[str, Any]:
    """Raises FileMissing."""
    if not path:
        info = await control.volumes.get(caller, name)
        return _stat("/", "directory", 0, 0o755, info.created_at)
    try:
        return _told(await control.volumes.stat(caller, name, path))
    except NotFound:
        raise FileMissing(f"the volume has no `{path[:200]}`", path=path[:200]) from None


def _told(one: VolumeEntry) -> dict[str, Any]:
    told = _stat(f"/{one.path}", _KINDS.get(one.kind, "unknown"), one.size, one.mode, one.modified_at)
    return told if one.target is None else told | {"target": one.target}


def _stat(path: str, kind: str, size: int, mode: int, at: datetime) -> dict[str, Any]:
    moment = at.isoformat().replace("+00:00", "Z")
    told: dict[str, Any] = {"name": posixpath.basename(path) or "/", "type": kind, "path": path, "size": size}
    return told | {"mode": mode, "uid": USER_ID, "gid": USER_ID, "atime": moment, "mtime": moment, "ctime": moment}


def _refuse_owner(request: Request) -> None:
    for field in ("uid", "gid", "mode"):
        value = request.query_params.get(field)
        if value not in (None, str(USER_ID) if field != "mode" else None):
            raise refuse_field(
                field,
                "what is written to a volume at rest is `user`'s, and has the mode of new files",
                f"leave it out, or give it {USER_ID}"
                if field != "mode"
                else "leave it out, and change it in a sandbox",
            )


def _is_forced(request: Request) -> bool:
    return request.query_params.get("force") == "true"


def _path(request: Request) -> str:
    path = posixpath.normpath("/" + request.query_params.get("path", "")).lstrip("/")
    return "" if path == "." else path


def _id(text: str) -> str:
    return f"vol_{text}"


def _body(info: VolumeInfo) -> dict[str, Any]:
    return {"volumeID": info.volume_id.removeprefix("vol_"), "name": info.name}


def _with_token(call: E2bCall, info: VolumeInfo) -> dict[str, Any]:
    token = call.control.volume_tokens.give(call.caller, info.volume_id)
    return _body(info) | {"token": token, "domain": call.domain}


_ONE = "/volumes/{volume}"
_CONTENT = "/volumecontent/{volume}"
ROUTES: tuple[E2bRoute, ...] = (
    E2bRoute("POST", "/volumes", create_volume),
    E2bRoute("GET", "/volumes", list_volumes),
    E2bRoute("GET", _ONE, get_volume),
    E2bRoute("DELETE", _ONE, remove_volume),
)
OPEN_ROUTES: tuple[OpenRoute, ...] = (
    OpenRoute("GET", _CONTENT + "/path", get_entry),
    OpenRoute("PATCH", _CONTENT + "/path", change_entry),
    OpenRoute("DELETE", _CONTENT + "/path", remove_entry),
    OpenRoute("GET", _CONTENT + "/dir", list_directory),
    OpenRoute("POST", _CONTENT + "/dir", make_directory),
    OpenRoute("GET", _CONTENT + "/file", read_file),
    OpenRoute("PUT", _CONTENT + "/file", write_file),
)
"""With the token of the volume in place of a key."""
