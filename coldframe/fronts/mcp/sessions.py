"""Sessions of clients that shook hands: what they may cancel, what they listen for, and the stream that tells them.

A session holds nothing that is worth anything: no right, no sandbox, no history. So one that this process does not know, after
a restart, begins anew under its old name instead of being refused. It is the token's alone: the name of another's leads nowhere.
"""

import asyncio
import re
import secrets
from collections import OrderedDict
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.fronts.mcp.protocol import RequestId

MOST_SESSIONS = 1000
MOST_SUBSCRIPTIONS = 100
MOST_WAITING = 1000
"""Messages kept for a client that does not listen; the oldest go first, since each says that something is to be read anew."""
_NAME = re.compile(r"[0-9a-f]{32}")


class Session:
    def __init__(self) -> None:
        self.running: dict[RequestId, asyncio.Task[Any]] = {}
        self.subscriptions: dict[str, asyncio.Task[None]] = {}
        self._waiting: list[dict[str, Any]] = []
        self._wake = asyncio.Event()
        self._listener = 0

    async def tell(self, message: dict[str, Any]) -> None:
        self._waiting.append(message)
        del self._waiting[:-MOST_WAITING]
        self._wake.set()

    def listen(self) -> int:
        """Begin to take messages. Whoever took them before gets no more."""
        self._listener += 1
        self._wake.set()
        return self._listener

    async def take(self, listener: int) -> list[dict[str, Any]] | None:
        """The messages there are, once there are some; None for one who is not the listener any more."""
        while listener == self._listener:
            if self._waiting:
                taken, self._waiting = self._waiting, []
                return taken
            self._wake.clear()
            await self._wake.wait()
        return None

    def close(self) -> None:
        for task in self.subscriptions.values():
            task.cancel()
        self.subscriptions.clear()
        self._listener += 1
        self._wake.set()


class Sessions:
    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()

    def new_name(self) -> str:
        return secrets.token_hex(16)

    def find(self, caller: Caller, name: str) -> Session | None:
        """The session of that name; None for one that was ended, and for what is no name."""
        key = caller.token_id, name
        if not _NAME.fullmatch(name) or key in self._ended:
            return None
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Session()
            if len(self._known) > MOST_SESSIONS:
                self._known.popitem(last=False)[1].close()
        self._known.move_to_end(key)
        return found

    def end(self, caller: Caller, name: str) -> None:
        key = caller.token_id, name
        if (found := self._known.pop(key, None)) is not None:
            found.close()
        self._ended[key] = None
        if len(self._ended) > MOST_SESSIONS:
            self._ended.popitem(last=False)
