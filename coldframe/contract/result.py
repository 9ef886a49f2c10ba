"""The result of a sandbox that is deleted once it was fetched: what is offered, and what becomes of it."""

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.outputs import FoundOutput


class SandboxResult(Model):
    """What whoever fetches it has to have, all of it, before anything is deleted."""

    sandbox_id: str
    state: Literal["open", "awaiting_fetch", "deleting", "deleted", "expired"]
    """`open` until it is offered. `deleting` goes on by itself, also after a crash. `expired`: the sandbox ended, and nobody had
    confirmed in time; what its commands had written is deleted by `deleted_at`, if a timer has ended it."""
    sha256: str | None = None
    """As `result_digest` works it out. None while it is open."""
    files: tuple[FoundOutput, ...] = ()
    offered_at: datetime | None = None
    kept_until: datetime | None = None
    """When a timer ends the sandbox, and its files with it, if nobody has confirmed until then; None for never."""
    deleted_at: datetime | None = None


def result_digest(files: Iterable[tuple[str, int, str]]) -> str:
    """Of (path, bytes, sha256) of every file: the SHA-256 of their canonical JSON, sorted by path.

    That is a list of objects with these three fields, keys sorted, no white space, everything past ASCII escaped.
    """
    told = [{"path": path, "bytes": size, "sha256": sha256} for path, size, sha256 in sorted(files)]
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class FetchedResult(Model):
    """Somebody has the result."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Worked out from the bytes that were fetched, not taken from the offer."""
