"""Callers that leave before they were answered: whoever answers is told, and can let go of what it does for them.

A server that sends nothing does not notice by itself. The body of the request has to have been read.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what *work* does. It is cancelled when the caller has gone.

    Raises:
        ClientDisconnect: there is nobody to answer.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        await _cancel(task, gone)


async def while_there(
    request: Request, events: AsyncGenerator[T, None], *, idle_s: float | None = None
) -> AsyncIterator[T | None]:
    """Yield what *events* do, and None whenever there was nothing for *idle_s*. They are closed when the caller has gone."""
    gone = asyncio.ensure_future(_gone(request))
    following: asyncio.Future[T] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(events))
            waited: set[asyncio.Future[Any]] = {following, gone}
            await asyncio.wait(waited, timeout=idle_s, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                try:
                    event = following.result()
                except StopAsyncIteration:
                    return
                following = None
                yield event
            elif gone.done():
                return
            else:
                yield None
    finally:
        await _cancel(gone, *([] if following is None else [following]))
        await events.aclose()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
