"""Requests about any path of a box, and their answers. Paths are absolute, as a command in the box would write them.

Each names the user of the box in whose name it is asked: the kernel judges it as it would judge a command of that user.
There is a `root` in a sandbox of the profile `computer` alone.
"""

from datetime import datetime
from typing import Literal

from pydantic import Field

from coldframe.contract.command import BoxUserName
from coldframe.contract.files import Done, FileInfo, FileKind, ReadAnswer, Request, WriteAnswer
from coldframe.contract.model import Model

MOST_WATCH_EVENTS = 10_000
"""Of one watch that nobody has fetched yet; with more, what comes is dropped, and the next answer says so."""
MOST_WATCHED = 4096
"""Directories of one watch."""
MOST_WATCHES = 64
"""Of one box."""
WATCH_KEPT_S = 600.0
"""A watch that nobody asks about for so long is gone."""


class PathInfo(FileInfo):
    """All that is told of one path. Of a link: of itself, and where it leads."""

    uid: int
    gid: int
    owner: str
    """As the box names the user, or the number."""
    group: str
    accessed_at: datetime
    changed_at: datetime
    """When mode, owner or content changed last."""
    metadata: dict[str, str] = Field(default_factory=dict)
    """What was noted of the file when it was written: its extended attributes `user.e2b.*`, which commands can change too."""
    leads_to: str | None = None
    """Of a link: the place behind all links; None if there is nothing, or its user may not look."""
    leads_to_kind: FileKind | None = None


class StatPath(Request[PathInfo]):
    verb: str = "stat_path"
    path: str
    user: BoxUserName = "user"


class PathListing(Model):
    path: str
    entries: tuple[PathInfo, ...]
    complete: bool
    truncated_because: str | None = None
    """`max_entries` or `max_depth`. The first of them also where more was noted of the entries, or is where they lead, than one answer
    holds."""
    next_after: str | None = None
    errors: tuple[tuple[str, str], ...] = ()


class ListPath(Request[PathListing]):
    verb: str = "list_path"
    path: str
    recursive: bool = False
    max_depth: int | None = Field(default=None, ge=1)
    max_entries: int = Field(default=10_000, ge=1, le=100_000)
    after: str | None = None
    user: BoxUserName = "user"


class ReadPath(Request[ReadAnswer]):
    verb: str = "read_path"
    path: str
    offset: int = Field(default=0, ge=0)
    length: int | None = Field(default=None, ge=0)
    if_version: str | None = None
    user: BoxUserName = "user"


class WritePath(Request[WriteAnswer]):
    """As WriteFile."""

    verb: str = "write_path"
    path: str
    content: bytes = b""
    if_version: str | None = None
    create_only: bool = False
    mode: int | None = None
    sha256: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    """Noted of the file, in place of what was noted of one that it replaces."""
    user: BoxUserName = "user"


class MadePath(Model):
    created: bool
    """False if it was there already."""
    info: PathInfo


class MakePath(Request[MadePath]):
    """A directory with its parents."""

    verb: str = "make_path"
    path: str
    user: BoxUserName = "user"


class MovedPath(Model):
    info: PathInfo
    """At the new place."""


class MovePath(Request[MovedPath]):
    """Rename, or move to another directory, whose parents are made. To another file system a file alone is moved."""

    verb: str = "move_path"
    path: str
    target: str
    replace: bool = True
    """False: a Conflict if something is there."""
    user: BoxUserName = "user"


class RemoveBoxPath(Request[Done]):
    verb: str = "remove_box_path"
    path: str
    recursive: bool = False
    user: BoxUserName = "user"


WatchEventKind = Literal["create", "write", "remove", "rename", "chmod"]


class WatchEvent(Model):
    kind: WatchEventKind
    """`rename`: the name is gone, to another place; one that came from another place is `create`."""
    name: str
    """Relative to the directory that is watched; empty for that itself."""
    info: PathInfo | None = None
    """As it was when the events were fetched, if it was asked for and is there."""


class WatchStarted(Model):
    watch_id: str
    path: str


class WatchPath(Request[WatchStarted]):
    """Note what happens in a directory, or in all below it, from now on."""

    verb: str = "watch_path"
    watch_id: str
    """Chosen by control; beginning the same one twice begins it once."""
    path: str
    recursive: bool = False
    with_info: bool = False


class WatchEvents(Model):
    events: tuple[WatchEvent, ...]
    overflowed: bool
    """Some are missing: more came than are kept, or a directory could not be watched."""
    ended: bool = False
    """The directory is gone: nothing comes any more."""


class ReadWatch(Request[WatchEvents]):
    """What happened since the last answer. Without anything yet, it waits."""

    verb: str = "read_watch"
    watch_id: str
    wait_s: float = Field(default=0.0, ge=0, le=60)


class EndWatch(Request[Done]):
    verb: str = "end_watch"
    watch_id: str
