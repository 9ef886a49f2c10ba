"""Reads the command corpora of this directory. They are data for the reader: nothing here or elsewhere runs them."""

from collections.abc import Iterator
from importlib.resources import files

_MARK = "\n%%\n"


def _blocks(name: str) -> list[str]:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").rstrip("\n").split(_MARK)


def benign() -> list[str]:
    """One command a line in the first block; every further block is one command of several lines."""
    first, *rest = _blocks("benign.txt")
    return [*first.splitlines(), *rest]


def denied() -> Iterator[tuple[str, str]]:
    """Entry id and command. A block starts with the id; with ` |` behind it the block is one command."""
    for block in _blocks("denied.txt"):
        head, _, body = block.partition("\n")
        entry, whole, _ = head.partition(" |")
        for command in [body] if whole else body.splitlines():
            yield entry, command
