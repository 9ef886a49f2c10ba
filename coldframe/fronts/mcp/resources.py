"""Resources: files, logs, contracts and evidence, each under an address of its own and read with the rights of the caller."""

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal, cast

from coldframe.contract.errors import ColdframeError, NotFound, TooLarge, from_wire
from coldframe.contract.model import Model
from coldframe.control.contacts import Wanted
from coldframe.fronts.mcp.choice import sandbox_of_command
from coldframe.fronts.mcp.offers import Asked
from coldframe.fronts.mcp.uris import (
    SCHEME,
    TEMPLATES,
    Place,
    command_uri,
    contract_uri,
    files_uri,
    read_uri,
)
from coldframe.fronts.mcp.workspace_tools import shown

MOST_READ_BYTES = 16 * 1024 * 1024
PAGE = 100
Contents = list[dict[str, Any]]
JSON = "application/json"


def list_templates() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "uriTemplate": SCHEME + address,
            "description": description,
            **({} if mime is None else {"mimeType": mime}),
        }
        for name, address, description, mime in TEMPLATES
    ]


def list_resources(asked: Asked, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """Contract and files of each sandbox that runs, a page at a time, and where the next page begins."""
    found = asked.control.sandboxes.list(asked.caller, states=("running", "paused"), after=cursor, limit=PAGE + 1)
    listed = (
        [_listed("sandboxes", SCHEME + "sandboxes", "Sandboxes of this token, newest first.")] if not cursor else []
    )
    for info in found[:PAGE]:
        name = info.agent_id or info.sandbox_id
        listed.append(
            _listed(f"{name}: contract", contract_uri(info.sandbox_id), "What it may do, and what is enforced.")
        )
        listed.append(_listed(f"{name}: files", files_uri(info.sandbox_id, ""), "The top of the workspace."))
    return listed, found[PAGE - 1].sandbox_id if len(found) > PAGE else None


def _listed(name: str, uri: str, description: str) -> dict[str, Any]:
    return {"name": name, "uri": uri, "description": description, "mimeType": JSON}


async def read_resource(asked: Asked, uri: str) -> Contents:
    """What is there now. Raises NotFound for what is not there or not the caller's, and what the call behind it raises."""
    place = read_uri(uri)
    if place is None:
        raise NotFound(
            f"there is no resource `{uri[:200]}`", hint="`resources/templates/list` has the addresses", uri=uri[:200]
        )
    return await _READERS[place.kind](asked, place, uri)


async def _sandboxes(asked: Asked, place: Place, uri: str) -> Contents:
    found = asked.control.sandboxes.list(asked.caller, limit=PAGE)
    return _json(uri, [shown(asked, one).model_dump(mode="json") for one in found])


async def _sandbox(asked: Asked, place: Place, uri: str) -> Contents:
    return _model(uri, shown(asked, asked.control.sandboxes.get(asked.caller, place.of)))


async def _contract(asked: Asked, place: Place, uri: str) -> Contents:
    return _model(uri, await asked.control.sandboxes.contract(asked.caller, place.of))


async def _network(asked: Asked, place: Place, uri: str) -> Contents:
    return _model(uri, await asked.control.network.log(asked.caller, place.of, Wanted(lookups=True)))


async def _receipt(asked: Asked, place: Place, uri: str) -> Contents:
    return _model(uri, asked.control.receipts.get(asked.caller, place.of))


async def _commands(asked: Asked, place: Place, uri: str) -> Contents:
    found = await asked.control.outputs.commands(asked.caller, place.of)
    return _json(uri, [one.model_dump(mode="json") for one in found])


async def _command(asked: Asked, place: Place, uri: str) -> Contents:
    return _model(uri, await asked.control.outputs.command(asked.caller, place.of, place.name))


async def _output(asked: Asked, place: Place, uri: str) -> Contents:
    stream = cast("Literal['stdout', 'stderr']", place.kind)
    parts: list[bytes] = []
    offset: int | None = 0
    while offset is not None:
        left = MOST_READ_BYTES - offset
        if left <= 0:
            raise TooLarge(
                f"`{stream}` is longer than {MOST_READ_BYTES} bytes", hint="read it by parts with the tool `read_logs`"
            )
        window = await asked.control.outputs.output(asked.caller, place.of, place.name, stream, offset, left)
        parts.append(window.data)
        if not window.data:
            break
        offset = window.next_offset
    return [_content(uri, b"".join(parts), "text/plain")]


async def _file(asked: Asked, place: Place, uri: str) -> Contents:
    gate = asked.control.gate
    arguments: dict[str, Any] = {"path": place.name}
    result = await gate.call(asked.caller, place.of, "read_file", {**arguments, "length": MOST_READ_BYTES})
    if result.error is not None and result.error["code"] == "IS_A_DIRECTORY":
        result = await gate.call(asked.caller, place.of, "list_directory", arguments)
        if result.error is None:
            return _json(uri, {**result.value, "label": result.label.value})
    if result.error is not None:
        raise from_wire(result.error)
    if not result.value["complete"]:
        raise TooLarge(
            f"`{place.name[:200]}` is larger than {MOST_READ_BYTES} bytes", hint="read it by ranges with `read_file`"
        )
    meta = {"_meta": {"coldframe/label": result.label.value, "coldframe/receipt": result.receipt_id}}
    if result.value["content"] is not None:
        return [{"uri": uri, "mimeType": "text/plain", "text": result.value["content"], **meta}]
    return [{"uri": uri, "mimeType": "application/octet-stream", "blob": result.value["content_base64"], **meta}]


_READERS: dict[str, Callable[[Asked, Place, str], Awaitable[Contents]]] = {
    "sandboxes": _sandboxes,
    "sandbox": _sandbox,
    "contract": _contract,
    "network": _network,
    "receipt": _receipt,
    "commands": _commands,
    "command": _command,
    "stdout": _output,
    "stderr": _output,
    "file": _file,
}


def command_of(asked: Asked, uri: str) -> str | None:
    """The command that *uri* is about, if it is about one that the caller may see: the only thing that is told of as it ends."""
    place = read_uri(uri)
    if place is None or place.kind not in ("command", "stdout", "stderr"):
        return None
    try:
        sandbox_of_command(asked.control, asked.caller, place.name)
        info = sandbox_of_command(asked.control, asked.caller, place.name, place.of)
    except ColdframeError:
        return None
    return place.name if uri.startswith(command_uri(info.sandbox_id, place.name)) else None


def _model(uri: str, model: Model) -> Contents:
    return [{"uri": uri, "mimeType": JSON, "text": model.model_dump_json()}]


def _json(uri: str, content: object) -> Contents:
    return [{"uri": uri, "mimeType": JSON, "text": json.dumps(content, separators=(",", ":"), ensure_ascii=False)}]


def _content(uri: str, data: bytes, mime: str) -> dict[str, Any]:
    try:
        return {"uri": uri, "mimeType": mime, "text": data.decode()}
    except UnicodeDecodeError:
        return {"uri": uri, "mimeType": "application/octet-stream", "blob": base64.b64encode(data).decode()}
