"""The broker as a process of its own: it reads what boxes and servers send, so it has as few rights as can be.

As root it becomes an unprivileged user before it reads anything. Then: no capabilities, none to be gained, the system
call filter of boxes in its own form, no memory for others to look into, no core dump, no descriptor and no
environment but what it was started with. It starts no program and no other process, signals nobody, opens no unix socket,
and of files it opens only code and what the resolver of the host reads (Landlock); where the kernel cannot hold that, it
says so first. It still has the network of its user (`docs/network.md`). It takes commands from the host daemon alone, and ends with it: when the other
end of its socket closes, at once. What it wants on record goes up the same way; what begins waits for an answer, and
without one it is denied.
"""

import asyncio
import gc
import itertools
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, NoReturn

from coldframe.contract.errors import RulesInvalid
from coldframe.host import confine, landlock, seccomp
from coldframe.host.egress import arrivals, messages
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.egress.authority import Authority
from coldframe.host.egress.broker import Broker
from coldframe.host.egress.channel import BATCH, Channel, receive
from coldframe.host.egress.contact import EgressContact, EgressRequest, HandleUse, Journal, JournalLost, SecretAnswer
from coldframe.host.egress.intercept import Interception
from coldframe.host.egress.messages import (
    Acknowledge,
    Answered,
    Arrived,
    Asked,
    Begun,
    Carried,
    Command,
    Done,
    Ended,
    Event,
    Fault,
    Keepsakes,
    LookedUp,
    Named,
    OpenBox,
    Ping,
    RaiseTaint,
    Requested,
    ShutBox,
    Stop,
    UseProxies,
    UseRules,
    WithdrawCredential,
)
from coldframe.host.egress.packages.cache import PackageCache
from coldframe.host.egress.packages.view import PackageView
from coldframe.host.egress.readiness import Readiness
from coldframe.host.egress.shared import Narrow
from coldframe.policy.document import read_document
from coldframe.policy.network_rules import NetworkRules
from coldframe.policy.network_section import load_network

ACKNOWLEDGE_S = 10.0
"""How long a contact that begins waits to be on record."""
KNOWN_S = 1.0
"""How long a denied attempt is held until it is known whose it is."""
GC_THRESHOLDS = (10_000, 20, 20)
"""A connection makes a thousand objects, and leaves few circles: Python's 700 costs 4 % of its time."""
MOST_WAITING = 1024
"""Events that the daemon has not read yet; then everything waits for it."""
CARRIED_S = 3.0
"""How often the daemon is told what was carried, since it cannot ask a broker that was killed."""
STAND_STILL_S = 60.0
"""How long everything waits; then the broker ends, and the daemon tells so."""
_READABLE = (
    *("/etc", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"),
    *("/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/dev/null", "/dev/urandom"),
)


def main(*, channel: int, user: int, packages: int | None = None) -> NoReturn:
    """Serve the daemon at descriptor *channel*. *user*: whom to become, if started as root. *packages*: the directory
    where packages are kept, the only one in which it may change files."""
    gaps = give_up_rights(channel, user, [] if packages is None else [packages])
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()  # what is here now stays, and need not be looked through again and again
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Readiness())) as runner:
        runner.run(_serve(channel, gaps, packages))
    os._exit(0)


def give_up_rights(channel: int, user: int, changeable: Sequence[int] = ()) -> tuple[str, ...]:
    """What the kernel does not hold of it. *changeable*: directories in which it may change files.

    Raises ConfineError and OSError; nothing may be read then.
    """
    os.environ.clear()
    os.umask(0o077)
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    first = 3
    for kept in sorted({channel, *changeable}):
        if kept > first:
            confine.close_range(first, kept - 1)
        first = kept + 1
    confine.close_range(first)
    if os.geteuid() == 0:
        if user <= 0:
            raise confine.ConfineError("become an unprivileged user", "it is not said which one")
        confine.drop_bounding_set()
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if 0 in (*os.getresuid(), *os.getresgid()):
        raise confine.ConfineError("become an unprivileged user", "it is still root")
    confine.set_no_new_privs()
    confine.drop_held_capabilities()
    confine.set_not_dumpable()
    gaps = landlock.restrict(_readable(), changeable)
    seccomp.load_filter(seccomp.build_filter("broker"))
    return gaps


def _readable() -> list[str]:
    """What may be read later. Directories rather than files: those of the resolver are replaced while it runs."""
    known = ssl.get_default_verify_paths()  # of which single roots are read when they are needed
    roots = [os.path.dirname(known.openssl_cafile), os.path.dirname(known.openssl_capath)]
    code = [os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    code += [path for path in sys.path if path.endswith("-packages")]
    resolver = os.path.dirname(os.path.realpath("/etc/resolv.conf"))
    return [*_READABLE, *roots, *code, resolver]


async def _serve(number: int, gaps: Sequence[str], packages: int | None) -> None:
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # for whole sessions; the daemon ends it
        loop.add_signal_handler(one, lambda: None)
    await _Service(socket.socket(fileno=number), packages).serve(gaps)


class _Service:
    """The broker with what the daemon wants of it."""

    def __init__(self, end: socket.socket, packages: int | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_fault)
        self._channel = Channel(end)
        self._interception = Interception()
        journal = Journal(
            self._begin,
            self._request,
            self._ask_secret,
            self._end,
            known=self._await_known,
            looked_up=self._look_up,
            arrived=self._arrive,
        )
        self._broker = Broker(NetworkRules(), journal, on_name=self._on_name, intercept=self._interception)
        if packages is not None:
            self._interception.packages = self._open_packages(packages)
        self._carried: dict[str, tuple[int, int]] = {}
        """Of each contact on record: what the daemon was told last."""
        self._unanswered: dict[str, asyncio.Future[str | None]] = {}
        self._unanswered_secrets: dict[str, asyncio.Future[SecretAnswer]] = {}
        self._requests = itertools.count(1)
        self._opening: tuple[OpenBox, Keepsakes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    async def serve(self, gaps: Sequence[str]) -> None:
        self._channel.listen(self._read)
        for gap in gaps:
            self._say(Fault(f"there is a wall less around it: {gap}"))
        self._tell_carried()
        await self._stopped.wait()
        self._channel.stand_still(STAND_STILL_S)

    # -- what the daemon says ------------------------------------------------------------------

    def _read(self, end: socket.socket) -> None:
        for _ in range(BATCH):
            if self._opening is not None:
                opening, keepsakes = self._opening
                failure: str | None
                try:
                    came = arrivals.receive(end)
                except BlockingIOError:
                    return
                except arrivals.CaptureFailed as error:
                    failure = f"{error}"
                else:
                    failure = self._open(opening, keepsakes, came)
                self._opening = None
                self._say(Done(opening.number, failure))
                continue
            heard = receive(end)
            if heard is None:
                return
            message, files = heard
            if not message:
                os._exit(0)  # nobody is there to tell, so nothing may go on
            self._obey(messages.read_command(message), files)

    def _obey(self, command: Command, files: list[int]) -> None:
        match command:
            case Acknowledge():
                waiting = self._unanswered.pop(command.id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command.refusal)
            case Answered():
                asking = self._unanswered_secrets.pop(command.id, None)
                if asking is not None and not asking.done():
                    asking.set_result(command.answer)
            case UseRules():
                self._use_rules(command, messages.read_rules(messages.read_attached(files)))
            case UseProxies():
                self._broker.proxies = command.proxies
                self._say(Done(command.number))
            case OpenBox():
                self._opening = command, messages.read_keepsakes(messages.read_attached(files))
            case ShutBox():
                self._finish(command.number, self._shut(command.sandbox_id))
            case RaiseTaint():
                self._broker.raise_taint(command.sandbox_id, command.taint)
                self._say(Done(command.number))
            case WithdrawCredential():
                self._broker.withdraw_credential(command.name)
                self._say(Done(command.number))
            case Ping():
                self._say(Done(command.number))
            case Stop():
                self._finish(command.number, self._stop())

    def _use_rules(self, command: UseRules, texts: messages.RuleTexts) -> None:
        """What cannot be read allows nothing: the daemon has read it already, so it is no mistake of an author."""
        failure = None
        try:
            rules = load_network(read_document(texts.section) if texts.section.strip() else None)
            rules = rules.for_registries(command.registries)
            narrow = _load_hooks(texts.hooks) if texts.hooks else None
        except (RulesInvalid, ValueError) as error:
            rules, narrow, failure = NetworkRules(), None, f"{error}"
        if self._interception.packages is not None:
            self._interception.packages.use(command.registries, command.credentials)
        self._broker.use_rules(rules, narrow)
        self._say(Done(command.number, failure))

    def _open_packages(self, directory: int) -> PackageView | None:
        try:
            cache = PackageCache(directory)
        except OSError as error:
            self._say(Fault(f"no packages are handed over, the directory for them cannot be used: {error.strerror}"))
            return None
        return PackageView(
            cache,
            ssl.create_default_context,
            lambda name: self._broker.resolve(name),
            lambda: self._broker.proxies,
        )

    def _open(self, opening: OpenBox, keepsakes: Keepsakes, came: Arrivals) -> str | None:
        """Why it cannot be served: that is the end of this box only."""
        sandbox_id = opening.origin.sandbox_id
        try:
            self._interception.adopt(sandbox_id, Authority(keepsakes.authority))
            self._broker.open(opening.origin, came, names=keepsakes.names, start=keepsakes.start)
        except (OSError, ValueError) as error:
            self._broker.shut(sandbox_id)
            self._interception.forget(sandbox_id)
            came.close()
            return f"{type(error).__name__}: {error}"
        return None

    async def _shut(self, sandbox_id: str) -> None:
        await self._broker.end_box(sandbox_id)
        self._interception.forget(sandbox_id)

    async def _stop(self) -> None:
        await self._broker.close()
        if self._interception.packages is not None:
            self._interception.packages.close()
        self._stopped.set()

    def _finish(self, number: int, work: Awaitable[None]) -> None:
        async def whole() -> None:
            await work
            self._say(Done(number))

        task = self._loop.create_task(whole())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- what is said to the daemon ------------------------------------------------------------

    def _arrive(self, contact: EgressContact) -> None:
        if contact.source is not None:
            self._say(Arrived(contact.id, contact.sandbox_id, contact.source, (contact.address, contact.port)))

    async def _begin(self, contact: EgressContact, request: EgressRequest | None) -> None:
        await self._await_record(contact.id, Begun(contact, request))
        self._carried[contact.id] = (contact.sent_bytes, contact.received_bytes)

    async def _request(self, contact: EgressContact, request: EgressRequest) -> None:
        key = f"{contact.id}/{next(self._requests)}"
        await self._await_record(key, Requested(key, contact.id, request))

    async def _ask_secret(self, contact: EgressContact, request: EgressRequest, use: HandleUse) -> SecretAnswer:
        key = f"{contact.id}/{next(self._requests)}"
        answer: asyncio.Future[SecretAnswer] = self._loop.create_future()
        self._unanswered_secrets[key] = answer
        self._say(Asked(key, contact.id, request, use))
        try:
            async with asyncio.timeout(ACKNOWLEDGE_S):
                return await answer
        except TimeoutError:
            raise JournalLost(f"the host daemon did not answer within {ACKNOWLEDGE_S:.0f} s") from None
        finally:
            self._unanswered_secrets.pop(key, None)

    async def _await_record(self, key: str, event: Event) -> None:
        answer: asyncio.Future[str | None] = self._loop.create_future()
        self._unanswered[key] = answer
        self._say(event)
        try:
            async with asyncio.timeout(ACKNOWLEDGE_S):
                refusal = await answer
        except TimeoutError:
            raise JournalLost(f"the host daemon did not answer within {ACKNOWLEDGE_S:.0f} s") from None
        finally:
            self._unanswered.pop(key, None)
        if refusal is not None:
            raise JournalLost(refusal)

    def _end(self, contact: EgressContact) -> None:
        self._carried.pop(contact.id, None)
        self._say(Ended(contact))

    async def _await_known(self, contact: EgressContact) -> None:
        answer: asyncio.Future[str | None] = self._loop.create_future()
        self._unanswered[contact.id] = answer
        await asyncio.wait((answer,), timeout=KNOWN_S)
        self._unanswered.pop(contact.id, None)

    async def _look_up(self, contact: EgressContact) -> None:
        await self._await_record(contact.id, LookedUp(contact))

    def _tell_carried(self) -> None:
        """Also calls itself again."""
        changed = []
        for contact_id, sent_bytes, received_bytes in self._broker.carried():
            told = self._carried.get(contact_id)
            if told is not None and told != (sent_bytes, received_bytes):
                self._carried[contact_id] = (sent_bytes, received_bytes)
                changed.append((contact_id, sent_bytes, received_bytes))
        for start in range(0, len(changed), messages.MOST_CARRIED):
            self._say(Carried(changed[start : start + messages.MOST_CARRIED]))
        self._loop.call_later(CARRIED_S, self._tell_carried)

    def _on_name(self, sandbox_id: str, name: str, place: int, forgotten: str | None) -> None:
        self._say(Named(sandbox_id, name, place, forgotten))

    def _on_fault(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, messages.MessageInvalid):
            os._exit(1)  # it does not know any more what the daemon wants
        self._say(Fault(f"{context.get('message', '')}: {error!r}"))

    def _say(self, event: Event) -> None:
        self._channel.send(messages.write_event(event))
        if len(self._channel) > MOST_WAITING and not self._channel.stand_still(STAND_STILL_S):
            os._exit(1)


def _load_hooks(text: str) -> Narrow:
    """What rules of NETWORK_EGRESS say. Loaded where there are such rules: 10 MiB that most brokers do without."""
    from coldframe.policy.egress import narrow
    from coldframe.policy.rules import load_rules

    return partial(narrow, load_rules(text))
