"""The descriptions of stacks and snapshots: small files, each written whole or not at all, that say which layers count.

What no description names is rubbish, and what one names is never touched: so the one change of a name that puts a
description in place is the moment at which anything becomes true. Each holds its own digest, so that one that was
altered is known.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from coldframe.contract.errors import SnapshotCorrupt
from coldframe.host.layers.mapping import Users

Reason = Literal["asked", "automatic", "discarded", "imported"]
StackKind = Literal["home", "system"]


@dataclass(frozen=True)
class Stack:
    """What one sandbox has as its files: sealed layers, and the one that it writes to."""

    id: str
    kind: StackKind
    owner: tuple[int, int]
    """User and group of what is at its top."""
    layers: tuple[str, ...]
    """The lowest first."""
    upper: str
    created_at: datetime
    name: str = ""
    """Of the workspace that it is, `workspace/AGENT` or `background/SESSION`; empty for one that is something else."""
    users: Users | None = None
    """Whom the users inside are in what is written to it; None where nobody but the owner is."""
    template: str = ""
    """Digest of what lies below a system."""


@dataclass(frozen=True)
class SystemPart:
    """The system of its own that a workspace had at a point of time: what was changed in it since it began."""

    stack: str
    owner: tuple[int, int]
    layers: tuple[str, ...]
    """The lowest first, above the template."""
    template: str
    users: Users | None = None


@dataclass(frozen=True)
class Snapshot:
    """A point of time that can be gone back to: layers, none of which changes any more."""

    id: str
    stack: str
    """Whose it was; that one may be gone."""
    kind: StackKind
    owner: tuple[int, int]
    layers: tuple[str, ...]
    """The lowest first."""
    reason: Reason
    name: str
    label: str
    """Of the data in it, as the caller judges; it travels with it."""
    created_at: datetime
    expires_at: datetime | None
    """None: kept until somebody removes it."""
    workspace: str = ""
    """Name of the workspace that it was taken of; empty for one that was imported."""
    was_live: bool = False
    frozen_ms: float | None = None
    files: int | None = None
    """How many there are, with folders and links; None while nobody has counted."""
    bytes: int | None = None
    """Of all files together, as they look; None while nobody has counted."""
    system: SystemPart | None = None
    """Taken in the same moment; None if the workspace had none."""

    @property
    def trees(self) -> tuple[str, ...]:
        """All layers that it needs."""
        return self.layers if self.system is None else (*self.layers, *self.system.layers)


@dataclass(frozen=True)
class Move:
    """Stacks that go on from other layers at the same moment. Once this is in place all of it is so, whatever becomes of
    whoever does it."""

    id: str
    stacks: tuple[Stack, ...]
    snapshot: Snapshot | None


R = TypeVar("R", Stack, Snapshot, Move)


class Shelf(Generic[R]):
    """The descriptions of one kind, one file each. What cannot be read is kept and named, not guessed."""

    def __init__(self, directory: str, read: Callable[[dict[str, object]], R]) -> None:
        self._directory = directory
        self._read: Callable[[dict[str, object]], R] = read

    def path(self, record_id: str) -> str:
        return os.path.join(self._directory, f"{record_id}.json")

    def write(self, record: R) -> None:
        """In place as a whole, on disk before that."""
        text = json.dumps(asdict(record), sort_keys=True, default=datetime.isoformat)
        draft = self.path(record.id) + ".new"
        with open(draft, "w", encoding="utf-8") as target:
            target.write(json.dumps({"sha256": _digest(text), "record": text}))
            target.flush()
            os.fdatasync(target.fileno())
        os.rename(draft, self.path(record.id))
        sync_directory(self._directory)

    def remove(self, record_id: str) -> None:
        os.unlink(self.path(record_id))
        sync_directory(self._directory)

    def read_all(self) -> tuple[dict[str, R], set[str]]:
        """Those that are whole, and the ids of those that are not. What was half written is removed."""
        whole: dict[str, R] = {}
        broken: set[str] = set()
        for name in sorted(os.listdir(self._directory)):
            record_id, dot, rest = name.partition(".")
            if rest == "json.new":
                os.unlink(os.path.join(self._directory, name))
            elif dot and rest == "json":
                try:
                    whole[record_id] = self._read_one(record_id)
                except SnapshotCorrupt:
                    broken.add(record_id)
        return whole, broken

    def _read_one(self, record_id: str) -> R:
        try:
            with open(self.path(record_id), encoding="utf-8") as source:
                outer = json.load(source)
            if _digest(outer["record"]) != outer["sha256"]:
                raise SnapshotCorrupt(f"the description of `{record_id}` was altered", id=record_id)
            record: R = self._read(json.loads(outer["record"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotCorrupt(f"the description of `{record_id}` cannot be read", id=record_id) from error
        if record.id != record_id:
            raise SnapshotCorrupt(f"the description of `{record_id}` is another's", id=record_id)
        return record


def read_stack(fields: dict[str, Any]) -> Stack:
    return Stack(**{**fields, **_common(fields), "created_at": datetime.fromisoformat(fields["created_at"])})


def read_snapshot(fields: dict[str, Any]) -> Snapshot:
    expires, system = fields["expires_at"], fields.get("system")
    typed = {
        "owner": _pair(fields["owner"]),
        "layers": tuple(map(str, fields["layers"])),
        "created_at": datetime.fromisoformat(fields["created_at"]),
        "expires_at": datetime.fromisoformat(expires) if expires else None,
        "system": None if system is None else SystemPart(**{**system, **_common(system)}),
    }
    return Snapshot(**{**fields, **typed})


def read_move(fields: dict[str, Any]) -> Move:
    snapshot = fields["snapshot"]
    stacks = tuple(read_stack(one) for one in fields["stacks"])
    return Move(fields["id"], stacks, None if snapshot is None else read_snapshot(snapshot))


def _common(fields: dict[str, Any]) -> dict[str, Any]:
    users = fields.get("users")
    return {
        "owner": _pair(fields["owner"]),
        "layers": tuple(map(str, fields["layers"])),
        "users": None if users is None else Users(*map(_pair, users)),
    }


def _pair(told: Any) -> tuple[int, int]:
    user, group = told
    return int(user), int(group)


def sync_directory(path: str) -> None:
    """Changes of names in a directory are on disk afterwards."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
