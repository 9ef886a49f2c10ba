"""Snapshots as E2B tells of them: a kind of template, named `ID:default`, or `NAME:default` if they were given a name.

They hold files and no memory. A name that is given to several means the newest of them. Templates come first where names are the
same; and since an agent may give names, those of its snapshots mean them to itself alone.
"""

import re
from typing import Any, NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import NotFound
from coldframe.contract.snapshot import SnapshotInfo
from coldframe.contract.template import HOST
from coldframe.control.control import Control

_ID = re.compile(r"([0-9a-f]{16})(?::default)?")
TAG = "default"


class Source(NamedTuple):
    """What a sandbox is to begin as."""

    snapshot_id: str
    template: str
    """On which its system stands."""


def source_of(found: SnapshotInfo) -> Source:
    return Source(found.snapshot_id, HOST if found.system is None else f"sha256:{found.system.template_sha256}")


def find_by_id(control: Control, caller: Caller, text: str) -> SnapshotInfo | None:
    """The snapshot whose id that is, with a tag or without."""
    by_id = _ID.fullmatch(text)
    if by_id is None:
        return None
    try:
        found = control.snapshots.get(caller, by_id[1])
    except NotFound:
        return None
    return found if found.state == "ready" else None


def find_by_name(control: Control, caller: Caller, text: str) -> SnapshotInfo | None:
    """The newest that was given this name, with a tag or without."""
    name = full_name(text)
    for one in control.snapshots.list(caller, reason="asked"):
        if one.name == name and one.state == "ready" and one.agent_id in (None, caller.agent_id):
            return one
    return None


def names_snapshot(text: str) -> bool:
    """Whether it is the id of one, as it is told."""
    return text.endswith(f":{TAG}") and _ID.fullmatch(text) is not None


def full_name(name: str) -> str:
    """With its tag."""
    return name if ":" in name else f"{name}:{TAG}"


def shown_snapshot(one: SnapshotInfo) -> dict[str, Any]:
    return {"snapshotID": f"{one.snapshot_id}:{TAG}", "names": [one.name] if ":" in one.name else []}
