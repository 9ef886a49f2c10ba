"""Descriptions of sandboxes: what can be done, what remains, and how reliably the result can be looked at or taken back, put together
from the gate's answers, the table of what remains, and what this installation has on record."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from coldframe.contract.caller import Caller
from coldframe.contract.description import Description, Statement
from coldframe.contract.errors import catalogue
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.persistence import ItemNow
from coldframe.contract.profile import CAPABILITIES, Capability, has
from coldframe.contract.sandbox import ENDED, SandboxInfo
from coldframe.contract.tool import AllowedOperation
from coldframe.control.gate import Gate
from coldframe.control.ledger import Ledger
from coldframe.control.persistence import Persistence
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store
from coldframe.policy.labels import join

MOST_CALLS = 2000
"""The newest of the installation, of which those that read are counted."""
_READS = """SELECT count(*), sum(json_extract(body, '$.error_code') IS NOT NULL AND json_extract(body, '$.error_code') IN ({codes}))
FROM (SELECT body FROM ledger WHERE kind = 'call.ended' ORDER BY seq DESC LIMIT ?)
WHERE json_extract(body, '$.tool') IN ('list_directory', 'read_file', 'search_files')"""
_ACTS = """SELECT kind, count(*) FROM ledger WHERE call_id IS NULL AND kind NOT LIKE 'network.%'
AND kind IN ('sandbox.reset', 'sandbox.reset_failed', 'snapshot.taken') AND (? IS NULL OR sandbox_id = ?) GROUP BY kind"""
_OWN_FAULTS = tuple(sorted(code for code, cls in catalogue().items() if cls.family == "infrastructure"))
INSPECT_TEST = "test:tests/promises/test_descriptions.py::test_a_hundred_looks_at_an_application_that_runs_all_succeed"
RESET_TEST = "test:tests/promises/test_descriptions.py::test_resets_of_an_application_that_runs_all_succeed"


class Descriptions:
    """Starts nothing."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        sandboxes: Sandboxes,
        gate: Gate,
        persistence: Persistence,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._gate = gate
        self._persistence = persistence
        self._clock = clock

    async def describe(self, caller: Caller, sandbox_id: str) -> Description:
        """As it is now. Raises GrantMissing, NotFound."""
        info = self._sandboxes.get(caller, sandbox_id)
        items = await self._persistence.table(caller, sandbox_id)
        allowed = self._gate.allowed(caller, sandbox_id)
        report = self._sandboxes.measured(sandbox_id) if info.state.state not in ("queued", "starting") else None
        session = self._sandboxes.session(info)
        return Description(
            sandbox_id=sandbox_id,
            profile=info.spec.profile,
            state=info.state.state,
            at=self._clock(),
            label=join(info.workspace_label, session.taint),
            can=(*_capabilities(info, allowed), *_reach(info), *_walls(report)),
            remains=tuple(_item(one) for one in items),
            inspect=tuple(self._inspect(info, items)),
            reset=tuple(self._reset(info, allowed)),
        )

    def _inspect(self, info: SandboxInfo, items: list[ItemNow]) -> Iterator[Statement]:
        self._ledger.settle()
        marks = ", ".join("?" * len(_OWN_FAULTS))
        ((reads, failed),) = self._store.read(_READS.format(codes=marks), (*_OWN_FAULTS, MOST_CALLS))
        reads, failed = reads or 0, failed or 0
        yield Statement(
            id="inspect.reads",
            text=f"Of the last {reads} looks at files in this installation {reads - failed} were answered; the others failed by a fault"
            " of ours.",
            value={"looks": reads, "answered": reads - failed},
            verified_by="record:call.ended",
        )
        gone = info.state.state in ENDED and info.agent_id is None
        yield Statement(
            id="inspect.files",
            text="Its files are gone with it."
            if gone
            else "Its files can be read in this state, and nothing is started for that.",
            value=not gone,
            verified_by=INSPECT_TEST,
        )
        kept = next(one for one in items if one.item == "records")
        yield Statement(
            id="inspect.records",
            text=f"{kept.count or 0} calls have a receipt, with {kept.bytes or 0} bytes of output.",
            value={"receipts": kept.count, "bytes": kept.bytes},
            verified_by="record:call.ended",
        )

    def _reset(self, info: SandboxInfo, allowed: list[AllowedOperation]) -> Iterator[Statement]:
        answer = next((one for one in allowed if one.operation == "sandbox.reset"), None)
        possible = has(info.spec.profile, "reset") and not info.spec.ephemeral and info.state.state not in ENDED
        yield Statement(
            id="reset.possible",
            text="It can be taken back to a snapshot or to nothing."
            if possible
            else "It cannot be taken back: a new one takes its place.",
            value={"possible": possible, "answer": "deny" if answer is None else answer.answer},
            verified_by="gate",
        )
        for name, of, where in (
            ("here", info.sandbox_id, "Of this sandbox"),
            ("installation", None, "In this installation"),
        ):
            counts = {str(kind): int(count) for kind, count in self._store.read(_ACTS, (of, of))}
            done, failed = counts.get("sandbox.reset", 0), counts.get("sandbox.reset_failed", 0)
            yield Statement(
                id=f"reset.{name}",
                text=f"{where} {done} of {done + failed} resets were carried out.",
                value={"resets": done + failed, "done": done, "snapshots": counts.get("snapshot.taken", 0)},
                verified_by="record:sandbox.reset",
            )
        yield Statement(
            id="reset.tested",
            text="Resets of an application that serves meanwhile are tried again and again before each release.",
            value=None,
            verified_by=RESET_TEST,
        )


def _capabilities(info: SandboxInfo, allowed: list[AllowedOperation]) -> Iterator[Statement]:
    answers = {one.operation: one.answer for one in allowed}
    for name, capability in CAPABILITIES.items():
        mine = has(info.spec.profile, name) and capability.exists
        answer = _answer(capability, answers) if mine else None
        text = f"{capability.what}: {'yes' if mine else 'no'}"
        if not capability.exists:
            text += ", in no profile of this version"
        elif not mine:
            text += f"; in {', '.join(f'`{one}`' for one in capability.profiles)}"
        elif answer is not None:
            text += f"; the gate answers {answer}"
        verified_by = "gate" if answer is not None else "table:profiles"
        yield Statement(
            id=f"can.{name}",
            text=f"{text}.",
            value={"has": mine, "answer": answer, "profiles": list(capability.profiles)},
            verified_by=verified_by,
        )


def _answer(capability: Capability, answers: Mapping[str, str]) -> str | None:
    """What the gate says to the first of its tools or acts that it is asked about, if there is one."""
    operations = [f"tool.{tool}" for tool in capability.tools]
    return next((answers[one] for one in operations if one in answers), None)


def _reach(info: SandboxInfo) -> Iterator[Statement]:
    profiles = [] if info.network is None else list(info.network)
    reach = f"by the network profiles {', '.join(profiles)}" if profiles else "nothing outside"
    yield Statement(id="can.reach", text=f"It reaches {reach}.", value=profiles, verified_by="record:policy.changed")


def _walls(report: IsolationReport | None) -> Iterator[Statement]:
    if report is None:
        return
    for one in report.properties:
        if one.required:
            yield Statement(
                id=f"can.not.{one.name}",
                text=f"It is held by {one.name}: {one.state}.",
                value=one.state,
                verified_by=f"probe:{one.name}",
            )


def _item(item: ItemNow) -> Statement:
    if not item.exists:
        return Statement(
            id=f"remains.{item.item}", text=f"{item.what}: it has none.", value=None, verified_by="table:persistence"
        )
    many = "" if item.count is None else f", {item.count} now"
    size = "" if not item.bytes else f" of {item.bytes} bytes"
    lost = [event for event, fate in item.events.items() if fate != "kept"]
    when = f"; gone when {', '.join(one.replace('_', ' ') for one in lost)}" if lost else "; kept over everything"
    return Statement(
        id=f"remains.{item.item}",
        text=f"{item.what}{many}{size}: {item.lifetime}{when}.",
        value={"count": item.count, "bytes": item.bytes, "owner": item.owner, "events": dict(item.events)},
        verified_by="test:tests/promises/test_persistence.py",
    )
