"""The host daemon's side of the broker: starts its process, tells it rules and boxes, and starts it again.

Here is what should be so: the rules, the boxes with copies of their sockets, the names they know, the authorities that
their programs trust. A broker that dies is started again and told all of it; nobody else has to be asked. Until then
connections wait in the kernel's queue, and nothing leaves. What had begun is ended on record, so that there is no gap.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.policy import Label
from coldframe.host.egress import messages
from coldframe.host.egress.arrivals import Arrivals, CaptureFailed
from coldframe.host.egress.authority import Authority
from coldframe.host.egress.holders import Holders
from coldframe.host.egress.life import Box, Life, Reach, Secrets
from coldframe.host.egress.lineage import Lineage
from coldframe.host.egress.messages import Keepsakes
from coldframe.host.egress.packages.cache import open_cache
from coldframe.host.egress.proxy import Proxies
from coldframe.host.registries import RegistryCredential
from coldframe.policy import labels
from coldframe.policy.document import read_document
from coldframe.policy.network import Origin
from coldframe.policy.network_rules import Registry
from coldframe.policy.network_section import load_network

FLUSH_S = 5.0
"""How often sums of denied attempts are written, and the broker is asked whether it lives."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 10.0
"""Between the end of a broker and the start of the next. Doubled each time, until one has lived for STEADY_S."""
STEADY_S = 30.0
SERVED_S = 30.0
"""How long a new box may wait for a broker."""
_STEP = "serve the box"

_log = logging.getLogger(__name__)


class BrokerLink:
    """The broker of one machine: one process of it after the other.

    *user* is whom it becomes if this process is root; *proxies* are asked for what boxes reach. Without *reach* nothing above PUBLIC is reached, and without
    *secrets* none is put anywhere.
    """

    def __init__(
        self,
        lineage: Lineage,
        *,
        user: int | None = None,
        proxies: Proxies | None = None,
        reach: Reach | None = None,
        secrets: Secrets | None = None,
        packages: str | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if os.geteuid() == 0 and not user:
            raise InvalidArgument("the broker of root needs a user to become")
        self._lineage = lineage
        self._user = user or 0
        self._proxies = proxies or Proxies()
        self._reach = reach
        self._secrets = secrets
        self._packages = packages
        self._pause = pause
        self._texts = messages.write_rules(messages.RuleTexts(""))
        self._registries: tuple[Registry, ...] = ()
        self._credentials: tuple[RegistryCredential, ...] = ()
        self._boxes: dict[str, Box] = {}
        self._opening: dict[str, Box] = {}
        """What is not served yet. Taken away from here, it will not be."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._authorities: dict[str, Authority] = {}
        self._life: Life | None = None
        self._task: asyncio.Task[None] | None = None
        self._rest: asyncio.Future[None] | None = None
        self._reason = "none has been started"
        """Why the last one ended."""
        self._closing = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Of the broker's process; None while there is none."""
        return None if self._life is None else self._life.process.pid

    def start(self) -> None:
        """Start the broker, and start it again whenever it is gone, until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._keep_alive())

    async def close(self) -> None:
        """Break everything off and record it; the broker is gone then."""
        self._closing.set()
        self._opening.clear()
        life = self._life
        if life is not None and not life.is_over.is_set():
            await life.tell(messages.Stop)
            life.give_up("")
        if self._rest is not None:
            self._rest.cancel()
        if self._task is not None:
            await self._task
        for sandbox_id, box in list(self._boxes.items()):
            box.is_settled.set()
            box.arrivals.close()
            self._lineage.close(sandbox_id)
        self._boxes.clear()
        self._authorities.clear()

    # -- what should be so ---------------------------------------------------------------------

    async def use_rules(
        self,
        text: str,
        registries: Sequence[Registry] = (),
        credentials: Sequence[RegistryCredential] = (),
        *,
        hooks: str = "",
    ) -> None:
        """Judge by the section `network` in *text* from now on, and by a rule file with rules of NETWORK_EGRESS alone.

        Returns when the broker does, or there is none.

        Raises RulesInvalid, InvalidArgument, NameInvalid and TargetInvalid: nothing has changed then.
        """
        load_network(read_document(text) if text.strip() else None).for_registries(registries)
        texts = messages.write_rules(messages.RuleTexts(text, hooks))
        if len(texts) > messages.MAX_ATTACHED_BYTES:
            raise InvalidArgument("the rules are too long")
        self._texts, self._registries, self._credentials = texts, tuple(registries), tuple(credentials)
        if self._life is not None:
            await self._tell_rules(self._life)

    def certificate_of(self, sandbox_id: str) -> bytes:
        """Of the sandbox's own authority, as PEM, for its programs to trust. The same from now on, until it is shut."""
        return self.authority_of(sandbox_id).certificate

    def authority_of(self, sandbox_id: str) -> Authority:
        """The sandbox's own authority: the same from now on, until it is shut."""
        if sandbox_id not in self._authorities:
            self._authorities[sandbox_id] = Authority()
        return self._authorities[sandbox_id]

    async def open(
        self,
        origin: Origin,
        arrivals: Arrivals,
        *,
        authority: str = "",
        start: int = 0,
        on_place: Callable[[int], None] = lambda place: None,
        holders: Holders | None = None,
    ) -> None:
        """Serve a box. Copies of its sockets are kept; the caller closes its own. Returns when it is served.

        If it is shut meanwhile, or opened once more, it is not served. Of a box that another process has served: its
        *authority*, as `Authority.saved`, and *start*, the first place for a name that was not given yet. *on_place* hears
        of each that is given. *holders* tell whose a connection of the box is.

        Raises:
            OSError: its record cannot be written, or there are no descriptors. It has no way out then.
            ValueError: *authority* is none.
            CaptureFailed: the broker does not take its sockets. The same.
        """
        sandbox_id = origin.sandbox_id
        if authority:
            self._authorities[sandbox_id] = Authority(authority)
        box = self._opening[sandbox_id] = Box(origin, messages.duplicate(arrivals), start, on_place, holders)
        told: Awaitable[str | None] | None = None
        try:
            async with self._turn_of(sandbox_id):
                earlier = await self._end(sandbox_id)
                if earlier is not None:  # its programs remember addresses
                    box.names, box.places = earlier.names, earlier.places
                if not await asyncio.to_thread(self._lineage.open, sandbox_id):  # it may have much to read
                    _log.warning("the last line of the lineage of sandbox %s was torn, and is dropped", sandbox_id)
                if self._opening.get(sandbox_id) is box:
                    self._boxes[sandbox_id] = box
                    if self._life is not None:
                        told = self._tell_box(self._life, box)
        finally:
            if self._opening.get(sandbox_id) is box:
                del self._opening[sandbox_id]
            if self._boxes.get(sandbox_id) is not box:
                box.arrivals.close()
                self._let_go(sandbox_id)
        failure = None if told is None else await told
        if failure is not None:
            raise CaptureFailed(_STEP, failure)

    async def shut(self, sandbox_id: str) -> None:
        """The box has no way out any more. Returns when all of it is broken off and on record."""
        self._opening.pop(sandbox_id, None)
        self._authorities.pop(sandbox_id, None)
        async with self._turn_of(sandbox_id):
            await self._end(sandbox_id)

    async def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        """The session of the box is labelled *taint* at least. What may not go on is ended when this returns.

        A new session, which starts lower, is told by `renew`.
        """
        opening, box = self._opening.get(sandbox_id), self._boxes.get(sandbox_id)
        for one in (opening, box):
            if one is not None:
                one.origin = one.origin._replace(taint=labels.join(one.origin.taint, taint))
        if self._life is not None and box is not None:
            await self._life.tell(messages.RaiseTaint, sandbox_id=sandbox_id, taint=box.origin.taint)

    async def withdraw_credential(self, name: str) -> None:
        """It was taken back: what was sent with it, and is not answered whole, is broken off when this returns."""
        if self._life is not None:
            await self._life.tell(messages.WithdrawCredential, name=name)

    def serves(self, sandbox_id: str) -> bool:
        """Whether a broker that lives has said that it serves the box."""
        box = self._boxes.get(sandbox_id)
        return (
            box is not None and box.server is not None and box.server is self._life and not box.server.is_over.is_set()
        )

    async def until_served(self, sandbox_id: str) -> None:
        """Wait until a broker has said that it serves an open box: the first one to be started may have to come.

        Raises CaptureFailed: none does within SERVED_S, one refused it, or it was shut.
        """
        box = self._boxes.get(sandbox_id)
        try:
            if box is not None:
                async with asyncio.timeout(SERVED_S):
                    await box.is_settled.wait()
        except TimeoutError:
            raise CaptureFailed(_STEP, f"no egress broker took it within {SERVED_S:g} s: {self._reason}") from None
        if box is None or self._boxes.get(sandbox_id) is not box:
            raise CaptureFailed(_STEP, (box and box.failure) or "it was shut meanwhile")

    async def renew(self, sandbox_id: str, taint: Label) -> None:
        """The box has a new session: what was open is ended, and it is served anew. Raises as `open` does."""
        box = self._opening.get(sandbox_id) or self._boxes.get(sandbox_id)
        if box is not None:
            origin = box.origin._replace(taint=taint)
            await self.open(origin, box.arrivals, start=box.start, on_place=box.on_place, holders=box.holders)

    def _turn_of(self, sandbox_id: str) -> asyncio.Lock:
        """One at a time opens or ends a box, and reads its record."""
        return self._turns.setdefault(sandbox_id, asyncio.Lock())

    async def _end(self, sandbox_id: str) -> Box | None:
        """Break off what is served, and return it."""
        box = self._boxes.pop(sandbox_id, None)
        if box is None:
            return None
        life = self._life
        try:
            if life is not None:
                life.leaving[sandbox_id] = box
                await life.tell(messages.ShutBox, sandbox_id=sandbox_id)
                life.leaving.pop(sandbox_id, None)
        finally:
            box.is_settled.set()
            box.arrivals.close()
            self._let_go(sandbox_id)
        return box

    def _let_go(self, sandbox_id: str) -> None:
        """Close the record, unless it is needed still."""
        if sandbox_id not in self._boxes and sandbox_id not in self._opening:
            self._lineage.close(sandbox_id)

    # -- one broker after the other ------------------------------------------------------------

    async def _keep_alive(self) -> None:
        pause_s = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while not self._closing.is_set():
            began = loop.time()
            try:
                reason = await self._live()
            except OSError as error:
                reason = f"it could not be started: {error.strerror}"
            if self._closing.is_set():
                return
            if loop.time() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._reason = f"it ended: {reason}"
            _log.error("the egress broker ended, another one starts in %.2f s: %s", pause_s, reason)
            self._rest = asyncio.ensure_future(self._pause(pause_s))
            await asyncio.wait({self._rest})
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _live(self) -> str:
        """From the start of a broker to its end; why it ended."""
        life = self._life = self._start()
        try:
            told = [] if self._proxies == Proxies() else [life.tell(messages.UseProxies, proxies=self._proxies)]
            told += [self._tell_rules(life), *(self._tell_box(life, box) for box in self._boxes.values())]
            heard: asyncio.Future[Any] = asyncio.gather(*told)
            while not life.is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_S):
                        await life.is_over.wait()
                self._lineage.flush()
                if heard.done():
                    heard = asyncio.ensure_future(life.tell(messages.Ping))
            await heard
        finally:
            self._life = None
            await life.end()
        return life.reason or f"it ended with code {life.process.returncode}"

    def _start(self) -> Life:
        """Raises OSError."""
        packages = None
        if self._packages is not None:
            try:
                packages = open_cache(self._packages, self._user or None)
            except OSError as error:
                _log.error("no packages are handed over, `%s` cannot be used: %s", self._packages, error.strerror)
        try:
            return Life(self._user, self._boxes, self._lineage, self._reach, self._secrets, packages)
        finally:
            if packages is not None:
                os.close(packages)

    def _tell_rules(self, life: Life) -> Awaitable[str | None]:
        registries, credentials = self._registries, self._credentials
        return life.tell(messages.UseRules, attached=self._texts, registries=registries, credentials=credentials)

    def _tell_box(self, life: Life, box: Box) -> Awaitable[str | None]:
        """Say it now; what is returned ends when it is served, or shut since it cannot be, with the reason."""
        keepsakes = Keepsakes(dict(box.names), box.start, self.authority_of(box.origin.sandbox_id).saved)
        attached = messages.write_keepsakes(keepsakes)
        arrivals = box.arrivals._replace(diagnosis=())  # that is for whom is believed
        told = life.tell(messages.OpenBox, attached=attached, arrivals=arrivals, may_fail=True, origin=box.origin)
        return asyncio.ensure_future(self._see_served(life, box, told))

    async def _see_served(self, life: Life, box: Box, told: Awaitable[str | None]) -> str | None:
        failure = await told
        if failure is None and not life.is_over.is_set():
            box.server = life
            box.is_settled.set()
        if failure is not None:
            box.failure = failure
            sandbox_id = box.origin.sandbox_id
            _log.error("sandbox %s has no way out, the egress broker does not take it: %r", sandbox_id, failure[:1000])
            async with self._turn_of(sandbox_id):
                if self._boxes.get(sandbox_id) is box:
                    await self._end(sandbox_id)
        return failure
