"""How a client of the storm asks: again and again under the same key, until it has an answer that says how things stand."""

import time
from collections.abc import Callable
from typing import TypeVar

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import (
    ColdframeError,
    HostUnreachable,
    IsolationUnavailable,
    TooManySandboxes,
    Unavailable,
)
from tests.installation import Installation

PATIENCE_S = 180.0
"""For one act, through any number of restarts."""
T = TypeVar("T")


def connected(installation: Installation) -> SyncColdframe:
    return SyncColdframe(installation.url, installation.token, timeout_s=30)


def ask_until_told(installation: Installation, what: str, act: Callable[[SyncColdframe], T]) -> T:
    """What *act* returns, once nothing was in its way but a server that starts again or a full house.

    Raises ColdframeError that is an answer: repeating the question would change nothing. Raises AssertionError for an
    INTERNAL, and where it is never told.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with connected(installation) as client:
                return act(client)
        except ColdframeError as error:
            if error.code == "INTERNAL":
                raise AssertionError(f"{what} ended with {error.code}: {error.message}") from error
            again = isinstance(error, HostUnreachable | IsolationUnavailable | TooManySandboxes)
            if not again and type(error) is not Unavailable:
                raise
            last = f"{error.code}: {error.message}"
        except (OSError, ValueError, KeyError) as error:  # the file for clients is being written anew
            last = repr(error)
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} was never told: {last}")
        time.sleep(0.05)
