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

MOST_SESSIONS = 50
"""Of one token, and as many that were ended."""
MOST_TOKENS = 1000
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

    @property
    def is_used(self) -> bool:
        """Whether something goes on in it that would be lost with it."""
        return bool(self.running or self.subscriptions)

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


class _OfToken:
    def __init__(self) -> None:
        self.known: OrderedDict[str, Session] = OrderedDict()
        self.ended: OrderedDict[str, None] = OrderedDict()


class Sessions:
    """Bounded for each token by itself, so that none takes those of another away."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, _OfToken] = OrderedDict()

    def new_name(self) -> str:
        return secrets.token_hex(16)

    def find(self, caller: Caller, name: str) -> Session | None:
        """The session of that name; None for one that was ended, and for what is no name."""
        if not _NAME.fullmatch(name):
            return None
        own = self._own(caller)
        if name in own.ended:
            return None
        found = own.known.get(name)
        if found is None:
            found = own.known[name] = Session()
            if len(own.known) > MOST_SESSIONS:
                idle = (one for one, session in own.known.items() if session is not found and not session.is_used)
                oldest = next(idle, next(iter(own.known)))
                own.known.pop(oldest).close()
        own.known.move_to_end(name)
        return found

    def _own(self, caller: Caller) -> _OfToken:
        own = self._of.setdefault(caller.token_id, _OfToken())
        self._of.move_to_end(caller.token_id)
        if len(self._of) > MOST_TOKENS:
            unused = (one for one, of in self._of.items() if not any(session.is_used for session in of.known.values()))
            oldest = next(unused, None)
            if oldest not in (None, caller.token_id):
                for session in self._of.pop(oldest).known.values():
                    session.close()
        return own

    def end(self, caller: Caller, name: str) -> None:
        if not _NAME.fullmatch(name):
            return
        own = self._own(caller)
        if (found := own.known.pop(name, None)) is not None:
            found.close()
        own.ended[name] = None
        if len(own.ended) > MOST_SESSIONS:
            own.ended.popitem(last=False)
