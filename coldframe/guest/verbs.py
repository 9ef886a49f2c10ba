"""The questions a keeper answers: each verb registers itself in the file that implements it.

A verb gets a descriptor of the workspace root *as the box sees it*, the request without its content,
and the content; it returns the answer without its content, and the content. It says what is wrong by
raising Failure with a code of `contract/errors.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

Answer = tuple[dict[str, Any], bytes]
Function = Callable[[int, dict[str, Any], bytes], Answer]


class Verb(NamedTuple):
    function: Function
    slow: bool
    """Runs in a forked child under a deadline, so that a huge tree or a bad pattern delays nobody else."""
    anywhere: bool
    """Gets the root of the box in place of that of the workspace, as the user of the box that the request names."""


VERBS: dict[str, Verb] = {}


def verb(name: str, *, slow: bool = False, anywhere: bool = False) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        VERBS[name] = Verb(function, slow, anywhere)
        return function

    return register


class Failure(Exception):
    """An expected refusal, sent to the caller by its code."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts = facts
