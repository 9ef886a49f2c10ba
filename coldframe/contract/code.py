"""The catalogue of codes: everything that can be the matter, for programs that act on it."""

from typing import Literal

from coldframe.contract.model import Model


class CodeInfo(Model):
    """One code: what it means, whether the same can succeed later, and what to do."""

    code: str
    of: Literal["call", "command"]
    """An error of a call, or the `code` in the `status` of a command."""
    meaning: str
    family: str
    retry: Literal["never", "later", "after_approval", "after_change"]
    status: int | None
    """Of HTTP; None for the state of a command, which is part of an answer."""
    fix: str
    op: str
    """The operation that is offered first where nothing better is known."""
