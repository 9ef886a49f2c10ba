"""`filesystem.Filesystem`: looking at paths of a sandbox, making, moving and removing them, and watching directories."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from coldframe.contract.errors import Conflict, FileMissing, NotDirectory, from_wire
from coldframe.contract.paths import WatchEvent, WatchEvents
from coldframe.fronts.e2b.box_user import BoxUser, Place
from coldframe.fronts.e2b.connect_protocol import ConnectError, Message

_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY"}
_LETTERS = {"directory": "d", "symlink": "L", "fifo": "p", "socket": "S", "device": "D"}
"""As Go writes kinds, by which E2B tells permissions."""
MOST_LISTED = 100_000
MOST_PAGES, MOST_ON_PAGE = 10, 10_000
"""Of one directory; with all below it there is one page."""


async def call_tool(place: Place, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Its answer. Raises what the gate and the tool do."""
    result = await place.control.gate.call(place.caller, place.sandbox_id, tool, dict(arguments))
    if result.error is not None:
        raise from_wire(result.error)
    return result.value


def entry_of(found: Mapping[str, Any]) -> Message:
    """A PathEntry as E2B has it. A link is told as what it leads to."""
    is_link = found["type"] == "symlink"
    kind = (found["leads_to_type"] or "symlink") if is_link else found["type"]
    told: Message = {
        "name": found["name"],
        "type": _TYPES.get(kind, "FILE_TYPE_UNSPECIFIED"),
        "path": found["path"],
        "size": str(found["size"]),
        "mode": found["mode"],
        "permissions": _LETTERS.get(found["type"], "-") + _permissions(found["mode"]),
        "owner": found["owner"],
        "group": found["group"],
        "modifiedTime": _time(found["modified_at"]),
    }
    if is_link:
        told["symlinkTarget"] = found["leads_to"] or found["target"]
    if found["metadata"]:
        told["metadata"] = found["metadata"]
    return told


def _permissions(mode: int) -> str:
    return "".join(letter if mode >> (8 - bit) & 1 else "-" for bit, letter in enumerate("rwxrwxrwx"))


def _time(text: str) -> str:
    return text.replace("+00:00", "Z")


def _text(message: Message, name: str, default: str = "") -> str:
    value = message.get(name, default)
    if not isinstance(value, str) or "\0" in value:
        raise ConnectError("invalid_argument", f"`{name}` is no text")
    return value


async def stat(place: Place, user: BoxUser, message: Message) -> Message:
    path = user.place(_text(message, "path"))
    return {"entry": entry_of(await call_tool(place, "stat_path", {"path": path, "user": user.name}))}


async def make_directory(place: Place, user: BoxUser, message: Message) -> Message:
    path = user.place(_text(message, "path"))
    try:
        made = await call_tool(place, "make_directory", {"path": path, "user": user.name})
    except NotDirectory as error:
        raise ConnectError(
            "invalid_argument", f"path already exists but it is not a directory: {error.message}"
        ) from error
    except Conflict as error:
        raise ConnectError("invalid_argument", error.message) from error
    if not made["created"]:
        raise ConnectError("already_exists", f"directory already exists: {path}")
    return {"entry": entry_of(made["entry"])}


async def move(place: Place, user: BoxUser, message: Message) -> Message:
    source, target = user.place(_text(message, "source")), user.place(_text(message, "destination"))
    moved = await call_tool(place, "move_path", {"path": source, "target": target, "user": user.name})
    return {"entry": entry_of(moved["entry"])}


async def remove(place: Place, user: BoxUser, message: Message) -> Message:
    """With all that is in it; what is not there is no error."""
    path = user.place(_text(message, "path"))
    try:
        await call_tool(place, "remove_path", {"path": path, "recursive": True, "user": user.name})
    except FileMissing:
        pass
    return {}


async def list_directory(place: Place, user: BoxUser, message: Message) -> Message:
    path, depth = user.place(_text(message, "path")), message.get("depth", 1)
    if isinstance(depth, bool) or not isinstance(depth, int):
        raise ConnectError("invalid_argument", "`depth` is no number")
    depth = depth or 1
    if depth < 0:
        raise ConnectError("invalid_argument", "depth should be at least 1")
    arguments: dict[str, Any] = {"path": path, "user": user.name, "max_entries": MOST_ON_PAGE}
    if depth > 1:
        arguments.update(recursive=True, max_depth=depth, max_entries=MOST_LISTED)
    entries: list[Message] = []
    try:
        for _ in range(MOST_PAGES):
            found = await call_tool(place, "list_path", arguments)
            entries += [entry_of(one) for one in found["entries"]]
            if found["truncated_because"] != "max_entries":
                return {"entries": entries}
            if found["next_after"] is None:
                break
            arguments["after"] = found["next_after"]
    except NotDirectory as error:
        raise ConnectError("invalid_argument", f"path is not a directory: {path}") from error
    raise ConnectError("resource_exhausted", f"there is more below {path} than one answer holds")


# -- watching --------------------------------------------------------------------------------------

_EVENTS = {
    "create": "EVENT_TYPE_CREATE",
    "write": "EVENT_TYPE_WRITE",
    "remove": "EVENT_TYPE_REMOVE",
    "rename": "EVENT_TYPE_RENAME",
    "chmod": "EVENT_TYPE_CHMOD",
}


async def begin_watch(place: Place, user: BoxUser, message: Message) -> str:
    path = user.place(_text(message, "path"))
    arguments = {
        "path": path,
        "recursive": message.get("recursive") is True,
        "with_info": message.get("includeEntry") is True,
    }
    try:
        return str((await call_tool(place, "watch_path", arguments))["watch_id"])
    except NotDirectory as error:
        raise ConnectError("invalid_argument", f"path is not a directory: {path}") from error


async def create_watcher(place: Place, user: BoxUser, message: Message) -> Message:
    return {"watcherId": await begin_watch(place, user, message)}


async def get_watcher_events(place: Place, user: BoxUser, message: Message) -> Message:
    found = await place.control.watches.read(place.caller, place.sandbox_id, _text(message, "watcherId"))
    _require_whole(found)
    return {"events": [_event(one) for one in found.events]}


async def remove_watcher(place: Place, user: BoxUser, message: Message) -> Message:
    await place.control.watches.end(place.caller, place.sandbox_id, _text(message, "watcherId"))
    return {}


async def watch(place: Place, user: BoxUser, message: Message) -> AsyncGenerator[Message, None]:
    watch_id = await begin_watch(place, user, message)
    try:
        yield {"start": {}}
        follow = place.control.watches.follow(place.caller, place.sandbox_id, watch_id)
        async with aclosing(follow) as answers:  # type: ignore[type-var]  # a generator
            async for found in answers:
                _require_whole(found)
                for one in found.events:
                    yield {"filesystem": _event(one)}
    finally:
        await _let_go(place, watch_id)


async def _let_go(place: Place, watch_id: str) -> None:
    try:
        await place.control.watches.end(place.caller, place.sandbox_id, watch_id)
    except Exception:  # noqa: BLE001, S110  # it ends by itself soon; whoever watched has left
        pass


def _require_whole(found: WatchEvents) -> None:
    if found.overflowed:
        raise ConnectError("resource_exhausted", "more happened than is kept: list the directory, and watch it again")


def _event(event: WatchEvent) -> Message:
    told: Message = {"name": event.name, "type": _EVENTS[event.kind]}
    if event.info is not None:
        info = event.info.model_dump(mode="json")
        info.update(type=info["kind"], leads_to_type=info["leads_to_kind"])
        told["entry"] = entry_of(info)
    return told


QUESTIONS = {
    "Stat": stat,
    "MakeDir": make_directory,
    "Move": move,
    "ListDir": list_directory,
    "Remove": remove,
    "CreateWatcher": create_watcher,
    "GetWatcherEvents": get_watcher_events,
    "RemoveWatcher": remove_watcher,
}
