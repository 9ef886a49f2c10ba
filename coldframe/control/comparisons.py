"""What differs between two points: snapshots, and what sandboxes have now. Nothing is started for it.

Each look passes the gate like any other reading: the list as a `list_directory` of the whole workspace, the text of one
file as a `read_file` at each of the points, in the session of a sandbox, which is labelled as what it sees.
"""

import asyncio
import difflib
import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from pydantic import Field, StrictInt, StrictStr

from coldframe.contract.caller import Caller
from coldframe.contract.errors import FileMissing, InvalidArgument, TooLarge, from_wire
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.snapshot import (
    Change,
    ChangesPage,
    Comparison,
    Part,
    Point,
    SnapshotPoint,
    SystemPoint,
    TextChange,
    WorkspacePoint,
)
from coldframe.control.at_rest import AtRest, View
from coldframe.control.gate import Gate
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshots import Snapshots
from coldframe.policy.labels import join
from coldframe.tools.registry import Answer, Arguments, CallFacts, Ran, ToolCall, ToolSpec, shown_path

MOST_CHANGES = 1000
"""Of one page."""
TEXT_BYTES = 1024 * 1024
"""Of one file whose lines are compared."""
MOST_LINES = 2000
"""That may differ on either side: comparing takes the square of it."""
MOST_PAIRS = 100_000
"""Of equal lines, one on each side. With more of them (a line again and again, between others) comparing takes the square of
these, for minutes; what is said then is true, and may be longer than it need be."""
CONTEXT_LINES = 3
TEMPLATE = "template"
"""In place of an id: what a system was when it began."""


class _Place(NamedTuple):
    point: WorkspacePoint | SnapshotPoint | None
    """None: the template that the other one stands on."""
    label: Label
    sandbox_id: str | None
    """Of which the files are now; None for a snapshot."""
    taken_through: str | None


class CompareArguments(Arguments):
    before: StrictStr
    after: StrictStr
    next_after: StrictStr | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=MOST_CHANGES)] = MOST_CHANGES
    part: Part = "workspace"

    def facts(self) -> CallFacts:
        return CallFacts(path="" if self.part == "workspace" else "/")


class CompareAnswer(Answer):
    changes: tuple[Change, ...]
    next_after: str | None


class Comparisons:
    """Asked for by two ids, of sandboxes or snapshots."""

    def __init__(self, snapshots: Snapshots, sandboxes: Sandboxes, gate: Gate, host: Host) -> None:
        self._snapshots = snapshots
        self._sandboxes = sandboxes
        self._gate = gate
        self._host = host

    async def compare(
        self,
        caller: Caller,
        before: str,
        after: str,
        *,
        sandbox_id: str | None = None,
        next_after: str | None = None,
        limit: int = MOST_CHANGES,
        part: Part = "workspace",
    ) -> Comparison:
        """A page of the paths that differ. The look belongs to the session of *sandbox_id*, or of a sandbox that one of
        both is of. With *part* `system` of the systems of their own that both have: a side without one, and `template` in
        place of an id, is the template that the other one stands on.

        Raises:
            NotFound: no such sandbox or snapshot, or not the caller's; or neither has a system of its own.
            InvalidArgument: both are imported snapshots, and no sandbox is named.
            Refused, SnapshotCorrupt: nothing is told.
        """
        arguments: dict[str, Any] = {"before": before, "after": after, "next_after": next_after, "limit": limit}
        if part != "workspace":
            arguments["part"] = part
        while True:
            places = [self._place(caller, one, part) for one in (before, after)]
            label = join(*(one.label for one in places))
            view = View(
                AtRest(self._host.snapshots, "", SystemPoint(of=places[1].point)),  # where nothing is asked
                label,
                tuple(one.point.snapshot_id for one in places if isinstance(one.point, SnapshotPoint)),
                self._spec(places, part),
            )
            result = await self._gate.look(
                caller, self._session_of(places, sandbox_id), "list_directory", arguments, partial(_same, view)
            )
            if result.error is not None:
                raise from_wire(result.error)
            now = join(label, *(self._place(caller, one, part).label for one in (before, after)))
            if now is label:  # else what has raised it may have been seen; that can happen three times
                return Comparison.model_validate({**result.value, "label": result.label})

    def _spec(self, places: Sequence[_Place], part: Part) -> ToolSpec:
        points: list[Point] = [
            SystemPoint(of=one.point) if part == "system" or one.point is None else one.point for one in places
        ]

        async def run(call: ToolCall[CompareArguments]) -> Ran:
            asked = call.arguments
            page = await self._host.snapshots.changes(
                *points,
                after_path=None if asked.next_after is None else _path_of(asked.next_after),
                limit=asked.limit,
            )
            shown = tuple(one.model_copy(update={"path": shown_path(one.path)}) for one in page.changes)
            answer = CompareAnswer(changes=shown, next_after=_cursor_of(page))
            output = "".join(f"{one.path}\n" for one in shown).encode()
            return Ran(answer, output=lambda: output, output_bytes=len(output))

        return ToolSpec("list_directory", "", CompareArguments, CompareAnswer, writes=False, run=run)

    async def text(
        self, caller: Caller, before: str, after: str, path: str, *, sandbox_id: str | None = None
    ) -> TextChange:
        """The lines in which one file differs. Raises what `compare` does, and TooLarge."""
        places = [self._place(caller, before), self._place(caller, after)]
        session_of = self._session_of(places, sandbox_id)
        found = [await self._read(caller, place, session_of, path) for place in places]
        (old, old_label), (new, new_label) = found
        label = join(old_label, new_label)
        if old is None and new is None:
            raise FileMissing(f"there is no file `{path[:200]}` at either point", path=path)
        lines = [None if one is None else lines_of(one) for one in (old, new)]
        is_text = all(one is None or many is not None for one, many in zip((old, new), lines, strict=True))
        return TextChange(
            path=shown_path(path),
            binary=not is_text,
            diff=await asyncio.to_thread(unified, path, lines[0], lines[1]) if is_text else "",
            sha256_before=None if old is None else hashlib.sha256(old).hexdigest(),
            sha256_after=None if new is None else hashlib.sha256(new).hexdigest(),
            label=label,
        )

    async def read(self, caller: Caller, name: str, path: str, *, session_of: str) -> tuple[bytes | None, Label]:
        """A file at one point, with the label of the look; None if it is not there. Raises what `text` does."""
        return await self._read(caller, self._place(caller, name), session_of, path)

    async def _read(self, caller: Caller, place: _Place, session_of: str, path: str) -> tuple[bytes | None, Label]:
        delivered: list[bytes] = []
        arguments = {"path": path, "length": TEXT_BYTES, "encoding": "base64"}
        snapshot_id = place.point.snapshot_id if isinstance(place.point, SnapshotPoint) else None
        result = await self._gate.call(
            caller,
            place.sandbox_id or session_of,
            "read_file",
            arguments,
            snapshot_id=snapshot_id,
            deliver=delivered.append,
        )
        if result.error is not None:
            error = from_wire(result.error)
            if isinstance(error, FileMissing):
                return None, result.label
            raise error
        if int(result.value["total_bytes"]) > TEXT_BYTES:
            raise TooLarge(
                f"`{path[:200]}` is larger than the {TEXT_BYTES} bytes whose lines are compared",
                hint="download it from both points, and compare them where you are",
                limit=TEXT_BYTES,
            )
        return b"".join(delivered), result.label

    def _place(self, caller: Caller, name: str, part: Part = "workspace") -> _Place:
        if name == TEMPLATE and part == "system":
            return _Place(None, Label.PUBLIC, None, None)
        if name.startswith("sbx_"):
            info = self._sandboxes.get(caller, name)
            self._sandboxes.require_readable(info)
            return _Place(self._snapshots.workspace_of(info), info.workspace_label, info.sandbox_id, None)
        found = self._snapshots.ready(caller, name)
        return _Place(SnapshotPoint(snapshot_id=name), found.label, None, found.sandbox_id)

    def _session_of(self, places: Sequence[_Place], named: str | None) -> str:
        known = [named, *(one.sandbox_id for one in reversed(places)), *(one.taken_through for one in reversed(places))]
        for sandbox_id in known:
            if sandbox_id is not None:
                return sandbox_id
        raise InvalidArgument(
            "these snapshots were not taken through a sandbox, so it is not known in whose session they are looked at",
            hint="name a sandbox with `sandbox_id`",
            argument="sandbox_id",
        )


def _same(view: View) -> View:
    return view


def _cursor_of(page: ChangesPage) -> str | None:
    """Names need not be UTF-8, and a cursor has to be text."""
    return None if page.next_after is None else quote(page.next_after.encode("utf-8", "surrogateescape"))


def _path_of(cursor: str) -> str:
    return unquote_to_bytes(cursor).decode("utf-8", "surrogateescape")


def lines_of(content: bytes) -> list[str] | None:
    if b"\0" in content:
        return None
    try:
        return content.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return None


def unified(path: str, old: list[str] | None, new: list[str] | None) -> str:
    """In unified form. What is the same at both ends is not compared: most changes are small, and files are long."""
    before, after = old or [], new or []
    if before == after and (old is None) is (new is None):
        return ""
    most = min(len(before), len(after))
    start = next((n for n in range(most) if before[n] != after[n]), most)
    end = next((n for n in range(most - start) if before[-1 - n] != after[-1 - n]), most - start)
    middles = before[start : len(before) - end], after[start : len(after) - end]
    if all(middles) and max(map(len, middles)) > MOST_LINES:
        raise TooLarge(
            f"`{path[:200]}` differs in more than {MOST_LINES} lines",
            hint="download it from both points, and compare them where you are",
            limit=MOST_LINES,
        )
    many = Counter(middles[0])
    pairs = sum(many[line] * count for line, count in Counter(middles[1]).items())
    inner = difflib.SequenceMatcher(None, *middles, autojunk=pairs > MOST_PAIRS).get_opcodes()
    matcher: difflib.SequenceMatcher[str] = difflib.SequenceMatcher(None, autojunk=False)
    matcher.opcodes = [  # type: ignore[attr-defined]  # what it would have found out itself
        *([("equal", 0, start, 0, start)] if start else []),
        *((kind, a + start, b + start, c + start, d + start) for kind, a, b, c, d in inner),
        *([("equal", len(before) - end, len(before), len(after) - end, len(after))] if end else []),
    ]
    told = [f"--- {'/dev/null' if old is None else path}\n", f"+++ {'/dev/null' if new is None else path}\n"]
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        first, last = group[0], group[-1]
        told.append(f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@\n")
        for kind, a, b, c, d in group:
            if kind == "equal":
                told += _signed(" ", before[a:b])
            else:
                told += [*_signed("-", before[a:b]), *_signed("+", after[c:d])]
    return "".join(told)


def _signed(sign: str, lines: Sequence[str]) -> list[str]:
    return [sign + (one if one.endswith("\n") else f"{one}\n\\ No newline at end of file\n") for one in lines]


def _span(start: int, stop: int) -> str:
    length = stop - start
    return f"{start + 1}" if length == 1 else f"{start + bool(length)},{length}"
