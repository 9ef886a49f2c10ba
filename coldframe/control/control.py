"""Control put together: what decides and remembers, over one data directory and one host."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from coldframe.contract.caller import Caller
from coldframe.contract.ports import Host
from coldframe.control.access_tokens import AccessTokens
from coldframe.control.agents import Agents
from coldframe.control.announced_builds import AnnouncedBuilds
from coldframe.control.artifacts import Artifacts
from coldframe.control.attachments import Attachments
from coldframe.control.attribution import Attribution
from coldframe.control.build_contacts import BuildContacts
from coldframe.control.build_logs import BuildLogs
from coldframe.control.builds import Builds
from coldframe.control.cells import Cells
from coldframe.control.comparisons import Comparisons
from coldframe.control.contacts import Contacts
from coldframe.control.contexts import Contexts
from coldframe.control.contract_plans import ContractPlans
from coldframe.control.contract_renewal import ContractRenewal
from coldframe.control.contracts import Contracts
from coldframe.control.creation import Creation
from coldframe.control.credentials import Credentials
from coldframe.control.declared_outputs import DeclaredFiles
from coldframe.control.descriptions import Descriptions
from coldframe.control.endings import Endings
from coldframe.control.forks import Forks
from coldframe.control.gate import Gate
from coldframe.control.history import History
from coldframe.control.inputs import Inputs
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.judged_outputs import JudgedOutputs
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.lease_networks import LeaseNetworks
from coldframe.control.leases import Leases
from coldframe.control.ledger import Ledger
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.lineage import Lineage
from coldframe.control.losses import Losses
from coldframe.control.makers import NO_MAXIMA, Makers, Maxima
from coldframe.control.network import Network
from coldframe.control.once import Once
from coldframe.control.outputs import Outputs
from coldframe.control.overviews import Overviews
from coldframe.control.packages import Packages
from coldframe.control.partial_uploads import PartialUploads
from coldframe.control.persistence import Persistence
from coldframe.control.pipelines import Pipelines
from coldframe.control.preview_access import PreviewAccess
from coldframe.control.preview_commands import PreviewCommands
from coldframe.control.preview_inputs import PreviewInputsTaken
from coldframe.control.preview_rebuilds import PreviewRebuilds
from coldframe.control.preview_rows import PreviewRows
from coldframe.control.preview_states import PreviewStates
from coldframe.control.previews import Previews
from coldframe.control.probe import Probe
from coldframe.control.promotions import Promotions
from coldframe.control.receipt_differences import ReceiptDifferences
from coldframe.control.receipts import Receipts
from coldframe.control.reconciliation import Reconciliation
from coldframe.control.replays import Replays
from coldframe.control.repositories import Repositories
from coldframe.control.resets import Resets
from coldframe.control.results import Results
from coldframe.control.retention import FOR_EVER, ResultRetention, Retention
from coldframe.control.roster import Roster
from coldframe.control.rulebook import Rulebook
from coldframe.control.runtimes import Runtimes
from coldframe.control.sandbox_specs import ANY_LENGTH, Longest
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.slots import Slots
from coldframe.control.snapshot_archives import SnapshotArchives
from coldframe.control.snapshot_upkeep import SnapshotUpkeep
from coldframe.control.snapshots import DEFAULT_LIMITS, SnapshotLimits, Snapshots
from coldframe.control.start_commands import StartCommands
from coldframe.control.store import Store
from coldframe.control.summaries import Summaries
from coldframe.control.taints import Taints
from coldframe.control.template_archives import TemplateArchives
from coldframe.control.template_builds import TemplateBuilds
from coldframe.control.template_checks import TemplateChecks
from coldframe.control.template_tags import TemplateTags
from coldframe.control.templates import Templates
from coldframe.control.timers import Timers
from coldframe.control.tokens import Tokens
from coldframe.control.usage import Usage
from coldframe.control.vault import Vault
from coldframe.control.volume_attachments import VolumeAttachments
from coldframe.control.volume_tokens import VolumeTokens
from coldframe.control.volumes import Volumes
from coldframe.control.waking import Waking
from coldframe.control.watches import Watches
from coldframe.control.webhooks import Webhooks


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
    creation: Creation
    reconciliation: Reconciliation
    lifecycle: Lifecycle
    endings: Endings
    timers: Timers
    leases: Leases
    lease_networks: LeaseNetworks
    waking: Waking
    access_tokens: AccessTokens
    volume_tokens: VolumeTokens
    contracts: Contracts
    plans: ContractPlans
    inputs: Inputs
    declared: DeclaredFiles
    results: Results
    persistence: Persistence
    gate: Gate
    receipts: Receipts
    receipt_differences: ReceiptDifferences
    replays: Replays
    outputs: Outputs
    watches: Watches
    kept_results: ResultRetention
    roster: Roster
    runtimes: Runtimes
    packages: Packages
    partial_uploads: PartialUploads
    previews: Previews
    preview_rebuilds: PreviewRebuilds
    pipelines: Pipelines
    repositories: Repositories
    overviews: Overviews
    artifacts: Artifacts
    builds: Builds
    build_logs: BuildLogs
    snapshots: Snapshots
    snapshot_upkeep: SnapshotUpkeep
    resets: Resets
    forks: Forks
    promotions: Promotions
    descriptions: Descriptions
    summaries: Summaries
    archives: SnapshotArchives
    templates: Templates
    template_builds: TemplateBuilds
    template_checks: TemplateChecks
    template_tags: TemplateTags
    template_archives: TemplateArchives
    announced_builds: AnnouncedBuilds
    comparisons: Comparisons
    history: History
    lineage: Lineage
    taints: Taints
    network: Network
    credentials: Credentials
    volumes: Volumes
    host: Host
    probe: Probe
    losses: Losses
    contexts: Contexts
    cells: Cells
    once: Once
    attachments: Attachments
    webhooks: Webhooks
    clock: Callable[[], datetime]

    async def start(self) -> None:
        """Bring rules into force, set what a crash left right, and finish the records of what was under way.

        Raises:
            HostUnreachable: without the host nothing is known; start again.
            LedgerUnavailable: nothing can be recorded, so nothing may run.
        """
        self.rulebook.start()
        self.lease_networks.start()
        await self.reconciliation.run()
        await self.volumes.settle()
        await self.rulebook.changed()
        await self.snapshot_upkeep.start()
        await self.network.start()
        await self.gate.recover()
        await self.history.catch_up()
        self.partial_uploads.sweep()
        self.once.sweep()
        self.timers.start()
        self.kept_results.start()
        self.results.take_up()
        self.pipelines.take_up()
        self.template_builds.start()
        self.probe.start()
        self.losses.start()
        self.webhooks.start()

    async def close(self) -> None:
        """Let go of calls under way, which run on, and close the records. The host is its owner's to close."""
        await self.webhooks.close()
        await self.losses.close()
        await self.probe.close()
        await self.preview_rebuilds.close()
        await self.previews.close()
        await self.cells.close()
        await self.contexts.close()
        await self.builds.close()
        await self.pipelines.close()
        await self.replays.close()
        await self.template_builds.close()
        await self.kept_results.close()
        await self.timers.close()
        await self.results.close()
        await self.creation.close()
        await self.snapshot_upkeep.close()
        await self.promotions.close()
        await self.lifecycle.close()
        await self.volumes.close()
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
    snapshot_limits: SnapshotLimits = DEFAULT_LIMITS,
    most_running: int | None = None,
    retention: Retention = FOR_EVER,
    maxima: Maxima = NO_MAXIMA,
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
    keyed = KeyedCalls(store)
    sandboxes = Sandboxes(store, ledger, agents, sessions, rulebook, Slots(most_running), host, clock, contracts.issue)
    plans = ContractPlans(store, agents, rulebook, contracts, clock, longest=longest)
    judged = JudgedActs(ledger, rulebook, sandboxes)
    snapshots = Snapshots(store, ledger, agents, sandboxes, keyed, judged, host, clock, snapshot_limits)
    templates = Templates(store, ledger, sandboxes, judged, host, clock)
    attachments = VolumeAttachments(store, ledger, agents, sessions, sandboxes, judged, clock)
    creation = Creation(
        *(store, ledger, agents, sessions, rulebook, contacts, sandboxes, keyed, host, plans, snapshots, templates),
        contracts.issue,
        volumes=attachments,
        longest=longest,
        is_valid=tokens.is_valid,
    )
    taints = Taints(store, sandboxes, sessions, host)
    taints.sharing, attachments.settle = attachments.holders, taints.settle_sharing
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
    rulebook.changed = ContractRenewal(contracts, sandboxes).renew

    def forget_agent(agent_id: str, caller: Caller, connection: Connection) -> None:
        credentials.forget_agent(agent_id, caller, connection)
        snapshots.forget_agent(agent_id, caller, connection)
        attachments.forget_agent(agent_id, caller, connection)

    agents.deleting = forget_agent
    network = Network(
        *(store, ledger, sandboxes, sessions, rulebook, taints, contacts, attribution, host, clock),
        decide_secret=credentials.answer,
    )
    history = History(store, ledger, host)
    gate = Gate(store, ledger, rulebook, sandboxes, sessions, taints, network, credentials, snapshots, history, clock)
    timers = Timers(ledger, sandboxes, clock, longest, retention.stopped_s, gate.is_busy)
    leases = Leases(store, ledger, clock)
    timers.lease_end = leases.end_of
    sandboxes.ended = leases.forget_variables
    leases.moved = lambda sandbox_id: timers.watch(sandboxes.find(sandbox_id))
    lease_networks = LeaseNetworks(leases, sandboxes, rulebook, contacts, ledger)

    def renew_contract(sandbox_id: str) -> None:
        contracts.issue(sandboxes.find(sandbox_id), sandboxes.measured(sandbox_id))

    lease_networks.renew = renew_contract
    lifecycle = Lifecycle(
        *(store, ledger, rulebook, contacts, sandboxes, creation, taints, timers, host, clock), contracts.issue
    )
    usage = Usage(store, ledger, snapshots, host, clock)
    creation.makers = makers = Makers(ledger, sandboxes, usage, maxima)
    timers.used = lambda info: usage.so_far(info, clock())

    async def keep_files(sandbox_id: str) -> str:
        return (await snapshots.take_by_timer(sandbox_id, retention.stopped_s)).snapshot_id

    lifecycle.keep_files, lifecycle.forget_files = keep_files, snapshots.remove_by_timer
    kept_results = ResultRetention(ledger, JudgedOutputs(store), host, clock, retention.results_s)
    outputs = Outputs(ledger, rulebook, sandboxes, sessions, taints, kept_results, contacts, host)
    start_commands = StartCommands(templates, gate, outputs)
    creation.begin_start, creation.take_home = start_commands.begin, start_commands.take_home
    creation.put_inputs = start_commands.put_inputs
    gate.lease_environment = leases.environment
    gate.template_environment, timers.warnings = templates.environment, templates.warnings
    template_tags = TemplateTags(store, ledger, templates, judged, clock)
    build_contacts = BuildContacts(store, ledger, host)
    template_builds = TemplateBuilds(
        store, ledger, templates, template_tags, snapshots, judged, host, clock, sandboxes.sweep, build_contacts
    )
    comparisons = Comparisons(snapshots, sandboxes, gate, host)
    snapshot_upkeep = SnapshotUpkeep(store, ledger, agents, sandboxes, keyed, snapshots, host, clock)
    snapshots.settle = snapshot_upkeep.settle_one
    resets = Resets(
        *(store, ledger, sandboxes, sessions, keyed, snapshots, lifecycle, judged, gate, comparisons, templates), host
    )
    contexts = Contexts(ledger, sandboxes, gate, outputs, clock)
    cells = Cells(ledger, sandboxes, sessions, taints, contexts, gate, kept_results)
    declared = DeclaredFiles(store, ledger, sandboxes)
    results = Results(ledger, sandboxes, declared, lifecycle, timers, JudgedOutputs(store), host, store)
    results.forget_cells = cells.forget
    once = Once(ledger, creation, lifecycle, gate, cells, declared, os.path.join(directory, "once"))
    kept_results.also.append(once.expire)
    receipts = Receipts(ledger, sandboxes)
    endings = Endings(ledger, sandboxes, snapshots, lifecycle, gate, host)
    packages = Packages(ledger, sandboxes, snapshots, templates, gate, host, network, contacts)
    access_tokens = AccessTokens(store, tokens, sandboxes, os.path.join(directory, "access.key"))
    preview_rows = PreviewRows(store)
    preview_access = PreviewAccess(preview_rows, ledger, tokens, access_tokens, leases, sandboxes, host, clock)
    waking = Waking(leases, tokens, sandboxes, lifecycle, clock)
    preview_access.can_wake, preview_access.wake = waking.can, waking.wake
    preview_states = PreviewStates(preview_access, sandboxes, outputs, clock)
    preview_access.why = preview_states.why
    preview_inputs = PreviewInputsTaken(snapshots, credentials, packages, host)
    previews = Previews(
        *(
            store,
            ledger,
            preview_rows,
            preview_access,
            preview_states,
            preview_inputs,
            PreviewCommands(ledger, preview_states, clock),
            sandboxes,
            judged,
            gate,
            outputs,
        ),
        *(lifecycle, clock),
    )
    taints.settled = preview_access.check_labels
    tokens.revoked = preview_access.check_all
    pipelines = Pipelines(ledger, sandboxes, gate, outputs, tokens, clock)
    builds = Builds(
        *(store, ledger, sandboxes, snapshots, preview_inputs, pipelines, packages, outputs, comparisons, creation),
        *(lifecycle, tokens, clock),
    )
    persistence = Persistence(store, ledger, sandboxes, credentials, host)
    promotions = Promotions(
        *(store, ledger, agents, sandboxes, sessions, snapshots, templates, lifecycle, judged, longest)
    )
    promotions.moved = history.move
    promotions.kernels = contexts.alive
    repositories = Repositories(gate, sandboxes, makers, tokens)
    return Control(
        store=store,
        ledger=ledger,
        agents=agents,
        sessions=sessions,
        tokens=tokens,
        rulebook=rulebook,
        sandboxes=sandboxes,
        creation=creation,
        reconciliation=Reconciliation(store, ledger, sandboxes, keyed, host),
        lifecycle=lifecycle,
        endings=endings,
        timers=timers,
        leases=leases,
        lease_networks=lease_networks,
        waking=waking,
        access_tokens=access_tokens,
        volume_tokens=VolumeTokens(access_tokens, tokens),
        contracts=contracts,
        plans=plans,
        inputs=Inputs(store, ledger, agents, rulebook, sandboxes, credentials),
        declared=declared,
        results=results,
        persistence=persistence,
        snapshots=snapshots,
        snapshot_upkeep=snapshot_upkeep,
        resets=resets,
        forks=Forks(snapshots, sandboxes, creation, judged),
        promotions=promotions,
        descriptions=Descriptions(store, ledger, sandboxes, gate, persistence, clock),
        summaries=Summaries(ledger, sandboxes, gate, outputs, packages, clock),
        archives=SnapshotArchives(store, ledger, rulebook, snapshots, judged, host, clock),
        templates=templates,
        template_builds=template_builds,
        template_tags=template_tags,
        template_archives=TemplateArchives(os.path.join(directory, "archives"), store, tokens, template_builds, clock),
        announced_builds=AnnouncedBuilds(store, template_builds, template_tags, clock),
        template_checks=TemplateChecks(templates, creation, lifecycle, gate, clock),
        comparisons=comparisons,
        gate=gate,
        receipts=receipts,
        receipt_differences=ReceiptDifferences(store, ledger, receipts, sandboxes, snapshots, comparisons),
        replays=Replays(
            *(ledger, receipts, sandboxes, snapshots, creation, lifecycle, gate, outputs, judged, host, longest)
        ),
        outputs=outputs,
        watches=Watches(ledger, rulebook, sandboxes, sessions, taints),
        kept_results=kept_results,
        runtimes=Runtimes(sandboxes, gate),
        packages=packages,
        previews=previews,
        preview_rebuilds=PreviewRebuilds(
            *(ledger, previews, preview_states, preview_inputs, sandboxes, creation, lifecycle, credentials, judged)
        ),
        partial_uploads=PartialUploads(os.path.join(directory, "uploads"), sandboxes, rulebook, gate),
        roster=Roster(sandboxes, timers, lifecycle, endings, makers, usage, clock),
        pipelines=pipelines,
        artifacts=Artifacts(store, ledger, agents, sandboxes),
        builds=builds,
        build_logs=BuildLogs(builds, outputs, ledger),
        repositories=repositories,
        overviews=Overviews(
            *(ledger, sandboxes, gate, outputs, repositories, builds, previews, snapshots, clock),
        ),
        history=history,
        lineage=Lineage(store, ledger),
        taints=taints,
        network=network,
        credentials=credentials,
        volumes=Volumes(store, ledger, attachments, judged, sandboxes, host, clock),
        host=host,
        probe=Probe(sandboxes),
        losses=Losses(store, sandboxes, host),
        contexts=contexts,
        cells=cells,
        attachments=Attachments(gate),
        once=once,
        webhooks=Webhooks(store, ledger, Vault(os.path.join(directory, "webhooks.key")), clock),
        clock=clock,
    )
