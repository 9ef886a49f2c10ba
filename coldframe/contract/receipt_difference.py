"""What lies between two receipts of a workspace: files by digest from the record, lines where their content is still kept."""

from typing import Literal

from coldframe.contract.model import Model
from coldframe.contract.policy import Label


class FileDifference(Model):
    """A file that is another one after the second receipt than it was after the first."""

    path: str
    change: Literal["added", "changed", "deleted"]
    sha256_before: str | None
    """None: it was not there."""
    sha256_after: str | None
    receipts: tuple[str, ...]
    """Of the calls in between that changed it, in their order; the last twenty."""


class ReceiptDifference(Model):
    """From the moment after *before* to the moment after *after*; backwards if that one is the older."""

    before: str
    after: str
    tree_sha256_before: str | None
    tree_sha256_after: str | None
    files: tuple[FileDifference, ...]
    complete: bool
    """False where `problems` says what is not known."""
    problems: tuple[str, ...] = ()


class Hunk(Model):
    """A run of lines that differ, with those around them."""

    start_before: int
    lines_before: int
    start_after: int
    lines_after: int
    text: str
    """In unified form, without its head."""


class FileHunks(Model):
    """One file after two receipts, line by line."""

    path: str
    sha256_before: str | None
    sha256_after: str | None
    hunks: tuple[Hunk, ...] = ()
    binary: bool = False
    """After one of them it is no text; then there are no hunks."""
    unavailable: tuple[Literal["before", "after"], ...] = ()
    """The content is not kept: neither is the file that one now, nor has a snapshot it. Then there are no hunks."""
    label: Label
    """Of what is told here."""
