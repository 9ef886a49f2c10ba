"""Lists in pages, as E2B has them: what follows is named by an opaque text in the header `X-Next-Token`."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from coldframe.contract.errors import InvalidArgument
from coldframe.fronts.e2b.routes import E2bCall

MOST_LISTED = 100
T = TypeVar("T")


Place = tuple[str, str]
"""Of an entry in its list, which is sorted by it: when it came to be, and its id."""


class Page(NamedTuple):
    limit: int
    after: Place | None


def read_page(call: E2bCall) -> Page:
    token = call.query("nextToken")
    after = None
    if token:
        try:
            moment, _, found = base64.urlsafe_b64decode(token.encode("ascii") + b"==").decode("ascii").partition(" ")
        except (binascii.Error, UnicodeError):
            moment, found = "", ""
        if not moment or not found:
            raise InvalidArgument("`nextToken` is none of ours", argument="nextToken")
        after = moment, found
    return Page(call.number("limit", MOST_LISTED, least=1, most=10_000), after)


def next_page(
    found: Sequence[T], page: Page, place: Callable[[T], Place], *, descending: bool = False
) -> tuple[Sequence[T], dict[str, str]]:
    """The part of a sorted list that is asked for, and the header that tells of the rest. It begins past where the last page
    ended, also if what stood there is gone by then."""
    first, after = 0, page.after
    if after is not None:
        places = (place(one) for one in found)
        past = (number for number, one in enumerate(places) if (one < after if descending else one > after))
        first = next(past, len(found))
    shown = found[first : first + page.limit]
    if first + page.limit >= len(found):
        return shown, {}
    token = base64.urlsafe_b64encode(" ".join(place(shown[-1])).encode()).rstrip(b"=").decode()
    return shown, {"X-Next-Token": token}
