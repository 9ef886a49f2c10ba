"""Control put together: what decides and remembers, over one data directory and one host."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from coldframe.contract.ports import Host
from coldframe.control.agents import Agents
from coldframe.control.attribution import Attribution
from coldframe.control.contacts import Contacts
from coldframe.control.contracts import Contracts
from coldframe.control.credentials import Credentials
from coldframe.control.gate import Gate
from coldframe.control.history import History
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.lineage import Lineage
from coldframe.control.network import Network
from coldframe.control.outputs import Outputs
from coldframe.control.probe import Probe
from coldframe.control.receipts import Receipts
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandbox_specs import ANY_LENGTH, Longest
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.store import Store
from coldframe.control.taints import Taints
from coldframe.control.timers import Timers
from coldframe.control.tokens import Tokens
from coldframe.control.vault import Vault


@dataclass(frozen=True)
class Control:
    """Everything the fronts may call."""

    store: Store
    ledger: Ledger
    agents: Agents
    sessions: Sessions
    tokens: Tokens
    rulebook: Rulebook
    sandboxes: Sandboxes
    lifecycle: Lifecycle
    timers: Timers
    contracts: Contracts
    gate: Gate
    receipts: Receipts
    outputs: Outputs
    history: History
    lineage: Lineage
    taints: Taints
    network: Network
    credentials: Credentials
    host: Host
    probe: Probe
    clock: Callable[[], datetime]

    async def start(self) -> None:
        """Bring rules into force, set what a crash left right, and finish the records of what was under way.

        Raises:
            HostUnreachable: without the host nothing is known; start again.
            LedgerUnavailable: nothing can be recorded, so nothing may run.
        """
        self.rulebook.start()
        await self.sandboxes.reconcile()
        await self.network.start()
        await self.gate.recover()
        await self.history.catch_up()
        self.timers.start()
        self.probe.start()

    async def close(self) -> None:
        """Let go of calls under way, which run on, and close the records. The host is its owner's to close."""
        await self.probe.close()
        await self.timers.close()
        await self.lifecycle.close()
        await self.gate.close()
        await self.network.close()
        await self.rulebook.close()
        await self.history.close()
        self.ledger.close()
        self.store.close()


def build_control(
    *,
    data_dir: str,
    host: Host,
    clock: Callable[[], datetime],
    rules_path: str | None,
    longest: Longest = ANY_LENGTH,
) -> Control:
    """Put control together over `<data_dir>/control/`, which is made private to this user. *longest* timers are the
    operator's.

    Raises:
        WrongState: another process has it open.
        LedgerUnavailable: database or ledger cannot be opened.
    """
    directory = os.path.join(data_dir, "control")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    store = Store(os.path.join(directory, "coldframe.db"))
    try:
        ledger = Ledger(store, os.path.join(directory, "ledger"), clock)
    except BaseException:
        store.close()
        raise
    tokens = Tokens(store, ledger, clock)
    agents = Agents(store, ledger, tokens, host, clock)
    sessions = Sessions(store, ledger, clock)
    rulebook = Rulebook(store, ledger, host, clock, rules_path)
    contracts, contacts = Contracts(store, ledger, rulebook, clock), Contacts(store)
    sandboxes = Sandboxes(
        store, ledger, agents, sessions, rulebook, contacts, host, clock, contracts.issue, longest=longest
    )
    taints = Taints(store, sandboxes, sessions, host)
    attribution = Attribution(ledger, contacts)
    vault = Vault(os.path.join(directory, "credentials.key"))
    credentials = Credentials(
        store,
        ledger,
        rulebook,
        sandboxes,
        vault,
        attribution,
        clock,
        role_of=contacts.role_of,
        withdraw=host.withdraw_credential,
    )
    contracts.usable_credentials = credentials.usable_in
    agents.deleting = credentials.forget_agent
    network = Network(
        *(store, ledger, sandboxes, sessions, rulebook, taints, contacts, attribution, host, clock),
        decide_secret=credentials.answer,
    )
    history = History(store, ledger, host)
    gate = Gate(store, ledger, rulebook, sandboxes, sessions, taints, network, credentials, history, clock)
    timers = Timers(ledger, sandboxes, clock, longest, gate.is_busy)
    lifecycle = Lifecycle(
        *(store, ledger, agents, rulebook, contacts, sandboxes, taints, timers, host, clock), contracts.issue
    )
    return Control(
        store=store,
        ledger=ledger,
        agents=agents,
        sessions=sessions,
        tokens=tokens,
        rulebook=rulebook,
        sandboxes=sandboxes,
        lifecycle=lifecycle,
        timers=timers,
        contracts=contracts,
        gate=gate,
        receipts=Receipts(ledger, sandboxes),
        outputs=Outputs(ledger, rulebook, sandboxes, sessions, taints, host),
        history=history,
        lineage=Lineage(store, ledger),
        taints=taints,
        network=network,
        credentials=credentials,
        host=host,
        probe=Probe(sandboxes),
        clock=clock,
    )
