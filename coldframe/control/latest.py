"""What is kept in memory of the latest alone, since of sandboxes there get ever more: who needs another looks it up again."""

from typing import TypeVar

T = TypeVar("T")


def keep_latest(kept: dict[str, T], key: str, value: T, most: int) -> T:
    """Put *value* in as the latest, and let go of the oldest beyond *most*. Returns it."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
    return value
