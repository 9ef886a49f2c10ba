"""What every box with a network knows of the label of its session: no less than control does, before it matters.

The host judges by it what may go out. So it is told before a command starts that could see more, before anything that
raised the label is handed out, and before the first byte of a destination with a higher one comes in. What lies in
the workspace can be read by whoever runs there, so its label counts like that of the session, for every box on it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GuestLost, NotFound
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import SandboxInfo, SessionInfo
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.store import Store
from coldframe.policy.labels import join


class Taints:
    """Tells the host. Boxes without network cost one look into a table."""

    def __init__(self, store: Store, sandboxes: Sandboxes, sessions: Sessions, host: Host) -> None:
        self._store = store
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._host = host
        self._told: dict[str, Label] = {}
        """By sandbox; of a new one PUBLIC goes without saying."""
        self.sharing: Callable[[], list[str]] = list
        """Those whose label may rise with that of a sandbox elsewhere: they have volumes."""
        self.settled: Callable[[], None] = lambda: None
        """Called before anything may follow that a label has risen for."""
        self._telling: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def settle(self, info: SandboxInfo) -> None:
        """Return once every box on the workspace of *info* is labelled as high as its session and the workspace are.

        Raises:
            HostUnreachable: nobody knows whether it is, so nothing may follow.
        """
        self.settled()
        if self._sandboxes.networked:
            for sandbox_id in self._sandboxes.networked.beside(info):
                await self._tell(sandbox_id)
            await self.settle_sharing()

    async def settle_agent(self, agent_id: str) -> None:
        """The same for the workspace of an agent."""
        self.settled()
        for sandbox_id in self._sandboxes.networked.of_agent(agent_id):
            await self._tell(sandbox_id)
        await self.settle_sharing()

    async def settle_sharing(self) -> None:
        """The same for every box that has a volume."""
        self.settled()
        for sandbox_id in self.sharing():
            if sandbox_id in self._sandboxes.networked:
                await self._tell(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """What it was told: its box is built anew, and knows nothing."""
        self._told.pop(sandbox_id, None)

    async def tell_all(self) -> None:
        """Tell a host that may know nothing, PUBLIC as well: a box that it was told nothing of is not served."""
        self._told.clear()
        for sandbox_id in tuple(self._sandboxes.networked):
            await self._tell(sandbox_id, only_news=False)

    async def rise(self, sandbox_id: str, label: Label) -> None:
        """The session of the box has *label* at least from now on, and what it may write: recorded, and told.

        Raises:
            NotFound: there is no such sandbox.
            LedgerUnavailable: it is not recorded.
            HostUnreachable: it may not be told.
        """
        info = self._sandboxes.find(sandbox_id)
        with self._store.transaction() as connection:
            session = self._sandboxes.session(info)
            taint = self._sessions.raise_taint(session.session_id, label, connection=connection)
            self._sandboxes.raise_workspace_label(info, taint, connection=connection)
        await self.settle(info)

    async def reset(self, session_id: str, *, caller: Caller) -> SessionInfo:
        """Archive a session and go on in a new one at PUBLIC. What the old one had open to the network is ended.

        Raises:
            GrantMissing, WrongState: nothing was done.
            HostUnreachable: there is a new session, but the box may not know: its label is no lower than before.
        """
        sandbox_id = self._sessions.get(session_id).sandbox_id
        async with self._telling[sandbox_id]:
            new = self._sessions.reset(session_id, caller=caller)
            if sandbox_id in self._sandboxes.networked:
                taint = self._label_of(sandbox_id)
                await self._host.renew_session(sandbox_id, taint)
                self._told[sandbox_id] = taint
        return new

    async def _tell(self, sandbox_id: str, *, only_news: bool = True) -> None:
        if only_news and not self._is_news(sandbox_id):
            return
        async with self._telling[sandbox_id]:
            if only_news and not self._is_news(sandbox_id):
                return
            taint = self._label_of(sandbox_id)
            try:
                await self._host.raise_taint(sandbox_id, taint)
            except (GuestLost, NotFound):
                return  # it has ended
            self._told[sandbox_id] = taint

    def _is_news(self, sandbox_id: str) -> bool:
        return self._label_of(sandbox_id).rank > self._told.get(sandbox_id, Label.PUBLIC).rank

    def _label_of(self, sandbox_id: str) -> Label:
        info = self._sandboxes.find(sandbox_id)
        return join(self._sandboxes.session(info).taint, info.workspace_label)
