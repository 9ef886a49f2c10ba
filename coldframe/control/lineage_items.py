"""What calls gave, and how it is labelled, by the words of the ledger alone: the items of the lineage, before they have rows."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coldframe.contract.errors import UnknownTool
from coldframe.contract.policy import Label
from coldframe.policy.labels import join, parse
from coldframe.tools.registry import find_tool

_LABELS = tuple(Label)


class Given(NamedTuple):
    """An item, beside what it shares with its step."""

    kind: str
    sha256: str | None = None
    bytes: int | None = None
    path: str | None = None
    heard: bool = False
    """Whether the session takes it in."""
    left: bool = False
    """Whether it is at the place from then on."""
    certainty: str = "known"
    retention: str = "not_kept"
    host: str | None = None
    port: int | None = None
    methods: str | None = None
    outcome: str = "allow"


def given_by(body: Mapping[str, Any]) -> list[Given]:
    """What a call gave, by the body of `call.ended`."""
    files = body.get("files") or {}
    given = _streams(body) if runs(body) else _result(body)
    if files.get("recorded"):
        given += [
            Given("file", one["sha256_after"], None, one["path"], left=True, retention="kept")
            for one in changes(body)
            if one["change"] != "deleted"
        ]
    elif body["ended"] == "lost" or (runs(body) and body["ended"] != "not_started"):
        given.append(Given("changes", sha256=files.get("tree_sha256_after"), left=True, certainty="assumed"))
    return given


def ids_of_given(call_id: str, given: Sequence[Given]) -> list[str]:
    """Two paths may read alike here, where their bytes are no text: then they are counted."""
    times = Counter[tuple[str, str]]()
    found = []
    for one in given:
        name = (one.kind, one.path or "")
        found.append(item_id(call_id, *name, *([str(times[name])] if times[name] else [])))
        times[name] += 1
    return found


def item_id(*parts: str) -> str:
    return "lin_" + hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def rank_of(*labels: object) -> int:
    return join(*(parse(label) for label in labels)).rank


def label_of(rank: int) -> Label:
    return _LABELS[rank]


def writes(tool: str) -> bool:
    try:
        return find_tool(tool).writes
    except UnknownTool:  # of another version
        return True


def runs(body: Mapping[str, Any]) -> bool:
    return body.get("stdout") is not None


def changes(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of content. That of a directory is in its files."""
    changes = (body.get("files") or {}).get("changes") or ()
    return [one for one in changes if one["change"] != "metadata" and one["kind"] != "directory"]


def _streams(body: Mapping[str, Any]) -> list[Given]:
    """What was printed is kept, and every session of the agent may read it there."""
    found = [(name, body.get(name) or {}) for name in ("stdout", "stderr")]
    return [
        Given(name, one["sha256"], one["bytes"], heard=True, left=True, retention="with_sandbox")
        for name, one in found
        if one.get("bytes")
    ]


def _result(body: Mapping[str, Any]) -> list[Given]:
    shown = body.get("shown") or {}
    if not shown and body.get("files") is not None:
        return []  # it says what it has written, and no more
    return [Given("result", shown.get("sha256"), shown.get("bytes"), heard=True)]


def by_inputs(rank: int) -> str:
    return f"{label_of(rank).value} by what it may be derived from"


def of_contact(body: Mapping[str, Any], rank: int, risen: int) -> str:
    return f"{label_of(risen).value} by rule {body['rule_id']}" if rank == risen else by_inputs(risen)
