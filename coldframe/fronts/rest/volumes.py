"""Volumes: made, looked at, granted and removed, and their files at rest."""

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.volume import VolumeGrant, VolumeInfo, VolumeListing, VolumeRequest
from coldframe.fronts.answers import json_response
from coldframe.fronts.rest.files import CONTENT
from coldframe.fronts.rest.json_routes import JsonRoute, checked_query
from coldframe.fronts.rest.request import caller_of, control_of, path_after
from coldframe.fronts.rest.schema import BYTES, PLAIN_JSON, RawRoute


class Listed(Model):
    """Which files of a volume."""

    path: str = ""
    """A directory, relative to the top."""
    recursive: bool = False


class Written(Model):
    """What a file is written as."""

    label: Literal["PUBLIC", "INTERNAL", "CONFIDENTIAL", "RESTRICTED"] | None = None
    """Of the content; the volume is labelled no lower from then on."""


class Removed(Model):
    recursive: bool = False
    """Also a directory, with all that is in it."""


async def create_volume(request: Request, asked: VolumeRequest) -> VolumeInfo:
    """Make a volume, empty."""
    return await control_of(request).volumes.create(caller_of(request), asked)


async def list_volumes(request: Request) -> list[VolumeInfo]:
    """Volumes that the caller may see, by name, with who has them."""
    return control_of(request).volumes.list(caller_of(request))


async def get_volume(request: Request) -> VolumeInfo:
    """One of them, with how full it is."""
    return await control_of(request).volumes.get(caller_of(request), request.path_params["name"])


async def remove_volume(request: Request) -> dict[str, Any]:
    """Remove it with all its files, for good; only while no sandbox has it, or is to have it when it starts again."""
    await control_of(request).volumes.remove(caller_of(request), request.path_params["name"])
    return {"ok": True}


async def grant_volume(request: Request, wanted: VolumeGrant) -> VolumeInfo:
    """Let sandboxes of an agent have it, whoever makes them."""
    return control_of(request).volumes.grant(caller_of(request), request.path_params["name"], wanted)


async def revoke_volume(request: Request) -> VolumeInfo:
    """Take a grant back. Sandboxes that have the volume keep it until they stop."""
    params = request.path_params
    return control_of(request).volumes.revoke(caller_of(request), params["name"], params["agent_id"])


async def list_volume_files(request: Request, which: Listed) -> VolumeListing:
    """What is in it, whether a sandbox has it or not. Nothing is started."""
    return await control_of(request).volumes.list_files(
        caller_of(request), request.path_params["name"], which.path, recursive=which.recursive
    )


async def download_volume_file(request: Request) -> Response:
    """The bytes of a file in it."""
    first, parts, label = await control_of(request).volumes.read_file(
        caller_of(request), request.path_params["name"], path_after(request, "/files/")
    )
    headers = CONTENT | {"Content-Length": str(first.total_bytes), "Coldframe-Label": label.value}
    return StreamingResponse(parts, headers=headers, media_type="application/octet-stream")


async def upload_volume_file(request: Request) -> Response:
    """Replace a file in it by the body, atomically; only while no sandbox can write to it."""
    label = checked_query(Written, request).label
    written = await control_of(request).volumes.write_file(
        caller_of(request),
        request.path_params["name"],
        path_after(request, "/files/"),
        request.stream(),
        label=None if label is None else Label(label),
    )
    return json_response(written)


async def remove_volume_file(request: Request) -> Response:
    """Remove a file or link in it."""
    path = path_after(request, "/files/")
    await control_of(request).volumes.remove_file(
        caller_of(request), request.path_params["name"], path, recursive=checked_query(Removed, request).recursive
    )
    return json_response({"ok": True, "path": path})


_ALL = "/v1/volumes"
_ONE = _ALL + "/{name}"
_FILE = _ONE + "/files/{path:anything}"
ROUTES = (
    JsonRoute("POST", _ALL, create_volume, VolumeInfo, body=VolumeRequest),
    JsonRoute("GET", _ALL, list_volumes, list[VolumeInfo]),
    JsonRoute("GET", _ONE, get_volume, VolumeInfo),
    JsonRoute("DELETE", _ONE, remove_volume, Any),
    JsonRoute("POST", _ONE + "/grants", grant_volume, VolumeInfo, body=VolumeGrant),
    JsonRoute("DELETE", _ONE + "/grants/{agent_id}", revoke_volume, VolumeInfo),
    JsonRoute("GET", _ONE + "/files", list_volume_files, VolumeListing, query=Listed),
    RawRoute("GET", _FILE, download_volume_file, "Download a file of a volume", BYTES),
    RawRoute(
        "PUT",
        _FILE,
        upload_volume_file,
        "Upload a file to a volume",
        PLAIN_JSON,
        body=BYTES,
        query=(("label", "string", "Of the content; the volume is labelled no lower from then on."),),
    ),
    RawRoute(
        "DELETE",
        _FILE,
        remove_volume_file,
        "Remove a file of a volume",
        PLAIN_JSON,
        query=(("recursive", "boolean", "Also a directory, with all that is in it."),),
    ),
)
