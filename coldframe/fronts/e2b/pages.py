"""Lists in pages, as E2B has them: what follows is named by an opaque text in the header `X-Next-Token`."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from coldframe.contract.errors import InvalidArgument
from coldframe.fronts.e2b.routes import E2bCall

MOST_LISTED = 100
T = TypeVar("T")


class Page(NamedTuple):
    limit: int
    after: str | None


def read_page(call: E2bCall) -> Page:
    token = call.query("nextToken")
    after = None
    if token:
        try:
            after = base64.urlsafe_b64decode(token.encode("ascii") + b"==").decode("ascii")
        except (binascii.Error, UnicodeError):
            raise InvalidArgument("`nextToken` is none of ours", argument="nextToken") from None
    return Page(call.number("limit", MOST_LISTED, least=1, most=10_000), after)


def next_page(found: Sequence[T], page: Page, key: Callable[[T], str]) -> tuple[Sequence[T], dict[str, str]]:
    """The part that is asked for, and the header that tells of the rest. What a page began after may be gone by then: then
    there is nothing to go on from, which is said.

    Raises InvalidArgument."""
    first = 0
    if page.after is not None:
        first = next((number for number, one in enumerate(found, 1) if key(one) == page.after), -1)
        if first < 0:
            raise InvalidArgument("what the last page ended with is gone; list again", argument="nextToken")
    shown = found[first : first + page.limit]
    if first + page.limit >= len(found):
        return shown, {}
    token = base64.urlsafe_b64encode(key(shown[-1]).encode()).rstrip(b"=").decode()
    return shown, {"X-Next-Token": token}
