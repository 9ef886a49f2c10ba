"""The ways out of the boxes of one machine: how they are opened and shut, and what is on record of them.

The broker (`egress/`) is started with the first box that has a way out. Where there is none, nothing of it is loaded, so
that a start need not wait for it: hence the imports within functions.

A host daemon that is started again finds boxes with their programs at work. Their keepers give their sockets once more,
and the mark of each box says whom it is for. What the daemon does not know is what the control side decided meanwhile: so
such a box is served only when it has told both the rules and the label of the session. Until then its connections wait
in the kernel, and nothing leaves.

On disk, below `<data>/host/`: `lineage/`, the record of each sandbox (see `egress/lineage.py`), also after its end, and
`packages/`, what was fetched of them (see `egress/packages/cache.py`).
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from coldframe.contract.errors import InvalidArgument, IsolationUnavailable
from coldframe.contract.isolation import SERVICES
from coldframe.contract.model import Model
from coldframe.contract.network import (
    NetworkAccess,
    NetworkPage,
)
from coldframe.contract.policy import Hook, Label
from coldframe.host.confine import ConfineError
from coldframe.host.egress import arrivals as arriving
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.egress.packages.cache import FOLDER as PACKAGES
from coldframe.host.marks import HANDOVER_NAME, RECORDS, KeeperMark, Marks
from coldframe.host.network_records import page_of
from coldframe.host.outfit import Outfit, make_outfit
from coldframe.host.package_clients import dress
from coldframe.host.questions import Questions
from coldframe.host.registries import RegistrySettings, read_registry_settings
from coldframe.host.sandbox_users import FIRST_UID, UID_COUNT
from coldframe.policy import labels
from coldframe.policy.network import Origin
from coldframe.policy.network_rules import NetworkRules, Registry

if TYPE_CHECKING:
    from coldframe.host.egress.holders import Holders
    from coldframe.host.egress.lineage import Lineage
    from coldframe.host.egress.link import BrokerLink
    from coldframe.host.egress.proxy import Proxies
    from coldframe.policy.document import Tree

BROKER_UID = FIRST_UID - 1
"""Whom the broker becomes as root, unless the operator names another: a user that owns nothing and is no sandbox's."""
USUAL_PORTS = (80, 443)
MOST_PORTS = 64
"""That can be captured without nftables."""
HANDOVER_S = 10.0
"""How long a keeper may take to give the sockets of its box once more."""
PLACES = 1024
_AUTHORITY_BYTES = 16 * 1024

_log = logging.getLogger(__name__)


class NetworkMark(Model):
    """What of a box is kept in its mark, to serve it again."""

    access: NetworkAccess
    """With the label of the session as it was told last: never a lower one after a restart."""
    mechanism: str
    reason: str
    sockets: tuple[int, ...]
    """Inodes of the sockets that are ours in its network namespace."""
    look_ups: tuple[int, ...] = ()
    """Those of the resolver among them."""
    authority_sha256: str
    """Of the sandbox's authority, which its keeper keeps: what comes back from there has to be the same."""
    start: int = 0
    """Place in the pool of addresses before which, going round, all that were given lie: programs remember them, so they
    get no other name soon. Counted in blocks of PLACES, so that it is rarely written."""


class Captured(NamedTuple):
    """The way out of a box, for its isolation report."""

    mechanism: str
    reason: str
    """Why it is not nftables; empty if it is."""
    sockets: frozenset[int]
    look_ups: frozenset[int]
    """Those of the resolver among them."""
    profiles: tuple[str, ...]
    """All of these have to agree."""
    is_served: bool
    """Whether a broker that lives has said that it serves it."""


def check_broker_uid(uid: int, others: Sequence[int]) -> None:
    """Raises InvalidArgument: as root, whom the broker is to become is root or one of *others* or of the sandbox users."""
    if os.getuid() == 0 and (uid <= 0 or uid in others or 0 <= uid - FIRST_UID < UID_COUNT):
        raise InvalidArgument(
            f"the egress broker cannot run as uid {uid}, which is root or in use by coldframe itself",
            hint="choose a uid that owns nothing with the setting `broker_uid`",
            argument="broker_uid",
        )


class WaysOut:
    """Those of one machine. Everything here runs in its event loop."""

    def __init__(
        self,
        directory: str,
        marks: Marks,
        *,
        broker_uid: int = BROKER_UID,
        others: Sequence[int] = (),
        packages: RegistrySettings | None = None,
    ) -> None:
        """*others*: users that the broker must not be; *packages*: what clients of this machine are set to, unless it is
        to be read from their own settings whenever rules are told. Raises InvalidArgument for *broker_uid*."""
        self._root = os.getuid() == 0
        check_broker_uid(broker_uid, others)
        self._broker_uid = broker_uid
        self._marks = marks
        self._directory = directory
        self._packages = packages
        self._left_out: tuple[str, ...] = ()
        self._kept_lineage: Lineage | None = None
        self.rules = NetworkRules()
        self._section: str | None = None
        """The rules in force, as text; None until somebody has told some."""
        self._hooks = ""
        """Those of NETWORK_EGRESS."""
        self._link: BrokerLink | None = None
        self._starting = asyncio.Lock()
        self._telling = asyncio.Lock()
        self._raised: dict[str, Label] = {}
        """Of each box that is being built: the label of its session, as it was raised meanwhile."""
        self._told: set[str] = set()
        """Boxes of which this process was told the label of the session."""
        self._served: set[str] = set()
        """Boxes that the broker was given, or is being given."""
        self._settling = asyncio.Lock()
        self._settled: set[str] = set()
        """Boxes that are no more, whose records have an end of everything."""
        self._starts: dict[str, int] = {}
        """What the mark of each box says of its places."""
        self._unwritten: set[str] = set()
        """Boxes of which that could not be written down, which is logged once until it can be again."""
        self._shutting: set[asyncio.Task[None]] = set()
        self.questions = Questions()

    # -- boxes ---------------------------------------------------------------------------------

    def ports(self) -> list[int]:
        """What is captured where nftables cannot be had: the usual ports, and those that rules name."""
        named = sorted(self.rules.named_ports() - set(USUAL_PORTS))
        return [*USUAL_PORTS, *named][:MOST_PORTS]

    @contextlib.asynccontextmanager
    async def outfit(self, sandbox_id: str, access: NetworkAccess) -> AsyncIterator[Outfit]:
        """What a new box is to be built with. Without `open` before the end nothing of it is left.

        Raises IsolationUnavailable: the broker cannot be started.
        """
        self._raised[sandbox_id] = access.taint
        try:
            link = await self._started()
            authority = link.authority_of(sandbox_id)
            packages = await asyncio.to_thread(self._registries)
            yield dress(
                make_outfit(authority.saved, authority.certificate.decode()),
                packages,
                install_scripts=self.rules.packages.install_scripts,
            )
        finally:
            del self._raised[sandbox_id]
            if sandbox_id not in self._served:
                await self.shut(sandbox_id)

    def mark_of(self, sandbox_id: str, access: NetworkAccess, arrivals: Arrivals) -> NetworkMark:
        """For the mark of a box that was built with `outfit`, whose sockets are *arrivals*."""
        assert self._link is not None
        taint = labels.join(access.taint, self._raised.get(sandbox_id, Label.PUBLIC))
        return NetworkMark(
            access=access.model_copy(update={"taint": taint}),
            mechanism=arrivals.mechanism,
            reason=arrivals.reason,
            sockets=_inodes(arrivals._replace(diagnosis=()).sockets()),
            look_ups=_inodes((*arrivals.look_ups, *arrivals.long_look_ups)),
            authority_sha256=_digest(self._link.authority_of(sandbox_id).saved),
        )

    async def open(self, sandbox_id: str, agent_id: str | None, network: NetworkMark, arrivals: Arrivals) -> None:
        """Serve a new box; its sockets are closed here. Raises IsolationUnavailable."""
        self._told.add(sandbox_id)
        self._served.add(sandbox_id)
        self._settled.discard(sandbox_id)  # where there was another of that id before
        try:
            link = await self._started()
            network = read_mark(self._marks.read(sandbox_id)) or network  # its session may have been labelled meanwhile
            await link.open(
                _origin(sandbox_id, agent_id, network),
                arrivals,
                on_place=partial(self._note_place, sandbox_id),
                holders=self._holders(sandbox_id),
            )
            await link.until_served(sandbox_id)
        except (OSError, ConfineError) as error:
            self._served.discard(sandbox_id)
            raise _not_served(error, SERVICES[0]) from error
        except BaseException:
            self._served.discard(sandbox_id)
            raise
        finally:
            arrivals.close()

    def _holders(self, sandbox_id: str) -> "Holders | None":
        from coldframe.host.egress.holders import Holders

        mark = self._marks.read(sandbox_id)
        if mark is None:
            return None
        records = os.path.join(self._marks.directory(sandbox_id), RECORDS)
        return Holders(mark.pid, mark.init, mark.groups, records)

    async def shut(self, sandbox_id: str) -> None:
        """The box has no way out any more; all of it is on record when this returns."""
        is_served = sandbox_id in self._served
        self._told.discard(sandbox_id)
        self._served.discard(sandbox_id)
        self._starts.pop(sandbox_id, None)
        self._unwritten.discard(sandbox_id)
        if self._link is not None:
            await self._link.shut(sandbox_id)
            if is_served:
                self._settled.add(sandbox_id)

    def shut_later(self, sandbox_id: str) -> None:
        """The same, once this task has its turn; of a box that was found to have ended."""
        if sandbox_id in self._served:
            task = asyncio.get_running_loop().create_task(self.shut(sandbox_id))
            self._shutting.add(task)
            task.add_done_callback(self._shutting.discard)

    def captured(self, sandbox_id: str, mark: KeeperMark) -> Captured | None:
        """None for a box without a way out."""
        network = read_mark(mark)
        if network is None:
            return None
        access = network.access
        profiles = self.rules.applying(access.asked, sandbox_id=sandbox_id, agent_id=mark.owner, role=access.role)
        return Captured(
            network.mechanism,
            network.reason,
            frozenset(network.sockets),
            frozenset(network.look_ups),
            tuple(profiles),
            self._link is not None and self._link.serves(sandbox_id),
        )

    async def _started(self) -> "BrokerLink":
        """The broker, and its libraries, are there from the first box with a way out on. Raises IsolationUnavailable."""
        async with self._starting:
            if self._link is None:
                try:
                    link_type, proxies = await asyncio.to_thread(_load_link)
                    link = link_type(
                        self._lineage,
                        user=self._broker_uid if self._root else None,
                        proxies=proxies,
                        packages=os.path.join(os.path.dirname(self._directory), PACKAGES),
                        reach=self.questions.reach,
                        secrets=self.questions.secret,
                    )
                except (ImportError, OSError, InvalidArgument) as error:
                    raise _not_served(error) from error
                found = await asyncio.to_thread(self._registries)
                await link.use_rules(self._section or "", found.all, found.credentials, hooks=self._hooks)
                link.start()
                self._link = link
            return self._link

    def _registries(self) -> RegistrySettings:
        """Blocking."""
        if self._packages is not None:
            return self._packages
        return read_registry_settings(os.environ, os.path.expanduser("~"))

    # -- after a restart of the daemon ---------------------------------------------------------

    async def _serve_again(self, *sandbox_ids: str) -> None:
        """Those that everything is known of; of all, if none are named."""
        if self._section is None:
            return
        for sandbox_id in sandbox_ids or self._marks.names():
            if sandbox_id not in self._told or sandbox_id in self._served | self._raised.keys():
                continue
            mark = self._marks.read(sandbox_id)
            network = read_mark(mark)
            if mark is not None and network is not None and mark.serves():
                await self._serve_one_again(sandbox_id, mark.owner, network)

    async def _serve_one_again(self, sandbox_id: str, agent_id: str | None, network: NetworkMark) -> None:
        self._served.add(sandbox_id)
        try:
            directory = self._marks.directory(sandbox_id)
            came, authority = await asyncio.to_thread(_ask_keeper, directory)
        except (OSError, ConfineError) as error:
            self._served.discard(sandbox_id)
            _log.error("sandbox `%s` has no way out, its keeper does not give its sockets: %s", sandbox_id, error)
            return
        try:
            if _digest(authority) != network.authority_sha256:
                raise ConfineError("serve the box again", "its keeper gives another authority than it was given")
            link = await self._started()
            kept = read_mark(self._marks.read(sandbox_id))
            if kept is None or sandbox_id not in self._served:
                return
            await link.open(
                _origin(sandbox_id, agent_id, kept),
                came,
                authority=authority,
                start=kept.start,
                on_place=partial(self._note_place, sandbox_id),
                holders=self._holders(sandbox_id),
            )
        except (OSError, ConfineError, ValueError, IsolationUnavailable) as error:
            self._served.discard(sandbox_id)
            _log.error("sandbox `%s` has no way out: %s", sandbox_id, error)
        finally:
            came.close()

    # -- what the control side decides ---------------------------------------------------------

    async def use_rules(self, text: str) -> None:
        """Raises RulesInvalid: nothing has changed then."""
        async with self._telling:
            found = await asyncio.to_thread(self._registries)
            for setting in found.left_out:
                if setting not in self._left_out:
                    _log.info("a package registry of this machine cannot be given to boxes: %s", setting)
            self._left_out = found.left_out
            rules, section, hooks = await asyncio.to_thread(_read_rules, text, found.all)
            if self._link is not None:
                await self._link.use_rules(section, found.all, found.credentials, hooks=hooks)
            self.rules, self._section, self._hooks = rules, section, hooks
        await self._serve_again()

    async def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        """Raises OSError: it holds, but could not be written down, so it may not be relied on."""
        if sandbox_id in self._raised:
            self._raised[sandbox_id] = labels.join(self._raised[sandbox_id], taint)
        network = read_mark(self._marks.read(sandbox_id))
        if network is None:
            return
        try:
            self._remember(sandbox_id, labels.join(network.access.taint, taint))
            self._told.add(sandbox_id)
        finally:
            if self._link is not None:
                await self._link.raise_taint(sandbox_id, taint)
        await self._serve_again(sandbox_id)

    async def renew_session(self, sandbox_id: str, taint: Label) -> None:
        """Raises OSError: nothing has changed then."""
        if read_mark(self._marks.read(sandbox_id)) is None:
            return
        self._remember(sandbox_id, taint)
        self._told.add(sandbox_id)
        if self._link is not None:
            try:
                await self._link.renew(sandbox_id, taint)
            except (OSError, ConfineError) as error:  # it has no way out now, and is given one again from the start
                _log.error("sandbox `%s` could not be served in its new session: %s", sandbox_id, error)
                self._served.discard(sandbox_id)
        await self._serve_again(sandbox_id)

    async def withdraw_credential(self, name: str) -> None:
        if self._link is not None:
            await self._link.withdraw_credential(name)

    def _remember(self, sandbox_id: str, taint: Label) -> None:
        mark = self._marks.read(sandbox_id)
        network = read_mark(mark)
        if mark is not None and network is not None and network.access.taint is not taint:
            access = network.access.model_copy(update={"taint": taint})
            self._write(sandbox_id, mark, network.model_copy(update={"access": access}))

    def _note_place(self, sandbox_id: str, place: int) -> None:
        start = (place // PLACES + 1) * PLACES
        if self._starts.get(sandbox_id) == start:
            return
        mark = self._marks.read(sandbox_id)
        network = read_mark(mark)
        if mark is not None and network is not None:
            try:
                self._write(sandbox_id, mark, network.model_copy(update={"start": start}))
            except OSError as error:  # as on a full disk; the next one tries again
                if sandbox_id not in self._unwritten:
                    _log.warning("which addresses sandbox `%s` knows is not written down: %s", sandbox_id, error)
                self._unwritten.add(sandbox_id)
            else:
                self._unwritten.discard(sandbox_id)
                self._starts[sandbox_id] = start

    def _write(self, sandbox_id: str, mark: KeeperMark, network: NetworkMark) -> None:
        """In the mark that was read just now: nothing else goes on in this thread, so the box has not ended meanwhile."""
        self._marks.write(sandbox_id, replace(mark, network=network.model_dump(mode="json")))

    # -- records -------------------------------------------------------------------------------

    @property
    def _lineage(self) -> "Lineage":
        if self._kept_lineage is None:
            from coldframe.host.egress.lineage import Lineage

            self._kept_lineage = Lineage(self._directory, on_change=self.questions.tell_news)
        return self._kept_lineage

    async def records(self, sandbox_id: str, *, after_seq: int, limit: int) -> NetworkPage:
        """Raises OSError."""
        lineage = self._lineage
        lineage.flush()
        if self._may_be_open(sandbox_id):
            async with self._settling:
                if self._may_be_open(sandbox_id):
                    await asyncio.to_thread(lineage.settle, sandbox_id)
                    self._settled.add(sandbox_id)
        return page_of(await asyncio.to_thread(lineage.read_file, sandbox_id, after_seq, limit=limit))

    def recorded(self, beginning: str) -> tuple[str, ...]:
        """Names that begin so, of which there is a record."""
        with contextlib.suppress(FileNotFoundError):
            names = (os.path.splitext(name) for name in os.listdir(self._directory))
            return tuple(sorted(name for name, end in names if end == ".jsonl" and name.startswith(beginning)))
        return ()

    def _may_be_open(self, sandbox_id: str) -> bool:
        """Whether it is a box that ended while there was no daemon: nobody else ends what had begun."""
        if sandbox_id in self._settled or sandbox_id in self._raised:
            return False
        mark = self._marks.read(sandbox_id)
        return mark is None or not mark.alive()

    async def forget(self, sandbox_id: str) -> None:
        """Raises OSError."""
        await self.shut(sandbox_id)
        self._settled.discard(sandbox_id)
        self._lineage.forget(sandbox_id)

    async def close(self) -> None:
        """Nothing is served any more. Boxes that live keep their sockets, and wait for another process."""
        self.questions.close()
        if self._shutting:
            await asyncio.wait(self._shutting)
        if self._link is not None:
            await self._link.close()
            self._link = None
        if self._kept_lineage is not None:
            self._kept_lineage.close_all()


def _load_link() -> "tuple[type[BrokerLink], Proxies]":
    from coldframe.host.egress.link import BrokerLink
    from coldframe.host.egress.proxy import read_proxies

    return BrokerLink, read_proxies(os.environ)


def read_mark(mark: KeeperMark | None) -> NetworkMark | None:
    """None for a box without a way out, and for one whose mark says nothing that can be understood."""
    if mark is None or mark.network is None:
        return None
    try:
        return NetworkMark.model_validate(mark.network)
    except ValidationError:
        return None


def _origin(sandbox_id: str, agent_id: str | None, network: NetworkMark) -> Origin:
    access = network.access
    return Origin(sandbox_id, agent_id, access.role, access.asked, access.taint, access.ceiling)


def _digest(authority: str) -> str:
    return hashlib.sha256(authority.encode()).hexdigest()


def _read_rules(text: str, registries: Sequence[Registry]) -> tuple[NetworkRules, str, str]:
    """The section `network` of a rule file: what it means, and as text of its own; then the rules of NETWORK_EGRESS as a
    rule file of their own, empty if there are none. Raises RulesInvalid."""
    from coldframe.policy.document import read_document
    from coldframe.policy.network_section import load_network

    root = read_document(text)
    section = None if root.is_empty else root.child("network")
    rules = load_network(section)
    alone = "" if section is None or section.is_empty else json.dumps(section.plain(), ensure_ascii=False)
    load_network(read_document(alone) if alone else None)
    return rules.for_registries(registries), alone, "" if root.is_empty else _read_hooks(root.child("rules"))


def _read_hooks(listed: "Tree | None") -> str:
    items = [] if listed is None else listed.items("`rules`")
    own = [item.plain() for item in items if item.text("hook") == Hook.NETWORK_EGRESS]
    if not own:
        return ""
    from coldframe.policy.rules import load_rules

    text = json.dumps({"version": 1, "rules": own}, ensure_ascii=False)
    load_rules(text)
    return text


def _ask_keeper(directory: str) -> tuple[Arrivals, str]:
    """The sockets of a box and its authority, once more from its keeper. Blocking.

    Raises:
        OSError: nobody is there, or does not answer.
        CaptureFailed: what is said is not what it should be.
    """
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
            keeper.settimeout(HANDOVER_S)
            keeper.connect(f"/proc/self/fd/{folder}/{HANDOVER_NAME}")
            came = arriving.receive(keeper)
            try:
                return came, keeper.recv(_AUTHORITY_BYTES).decode("ascii", "replace")
            except BaseException:
                came.close()
                raise
    finally:
        os.close(folder)


def _inodes(sockets: Sequence[socket.socket]) -> tuple[int, ...]:
    return tuple(os.fstat(one.fileno()).st_ino for one in sockets)


def _not_served(error: Exception, name: str = "network") -> IsolationUnavailable:
    reason = str(error)
    remedy = "look at the log of the host daemon; create the sandbox without network meanwhile"
    return IsolationUnavailable(
        f"the sandbox cannot be given a way out: {reason}",
        hint=remedy,
        property=name,
        reason=reason,
        remedy=remedy,
        missing=[{"property": name, "enforced": False, "reason": reason, "remedy": remedy}],
    )
