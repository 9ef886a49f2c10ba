"""What was derived from what, as an index made from the ledger alone: it can be thrown away and made again, with equal ids.

A *step* is a call, a contact, or input that was sent to a running command. It takes in and gives *items*. Which item a step
took in is seldom on record, so it is assumed from where both were. A step may have taken in

* all that calls of its session gave which started before it,
* all that was left where it ran (workspace, box, printed output, contacts) by steps that started before it ended,
* the same of the volumes that its sandbox had, and of a snapshot that the place was made of: steps of several places share those,

and of these inputs only those that the record names are `known`. No edge is written for what is assumed: it follows from
the numbers `started` and `ended`, which are numbers of ledger entries (`closure.py`).

A label is the join of what the gate said and of everything that session and place held. An item may come on record with a
higher label than a step has that may have taken it in meanwhile; then that step is raised, and whatever it may have given
from then on. So no item is ever labelled lower than an input. A person who lowers the label of a workspace changes what the gate does
and not where things came from: here they keep the label of their origin.

It is brought up to date when somebody asks, so that a call costs nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from coldframe.contract.errors import LedgerUnavailable
from coldframe.contract.ledger import LedgerEntry
from coldframe.control.call_records import ids_of
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.lineage_items import (
    Given,
    by_inputs,
    changes,
    given_by,
    ids_of_given,
    item_id,
    label_of,
    of_contact,
    rank_of,
    runs,
    writes,
)
from coldframe.control.lineage_rows import NEVER, LineageRows, Step
from coldframe.control.store import Store

AT_ONCE = 100
"""Entries and changed files in one transaction, in which nobody else is served: some milliseconds."""
_ATTACHMENTS = ("volume.attached", "volume.detached")
LOOKED_THROUGH_AT_ONCE = 10_000
"""Entries, of which most may be of no interest."""


class Derivation:
    """Keeps the index. One per store."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._rows = LineageRows(store)
        self._ledger = ledger
        self._lock = asyncio.Lock()
        self._generations: dict[str, int] = {}
        self._attached: dict[str, dict[str, bool]] | None = None
        """Volumes of each sandbox, and whether it writes there; None before that was looked up."""
        self._under_way: Iterator[None] | None = None
        self._take: dict[str, Callable[[LedgerEntry], Iterable[None] | None]] = {
            "agent.created": self._take_agent,
            "agent.deleted": self._take_deletion,
            "call.started": self._take_start,
            "call.ended": self._take_end,
            "call.interrupted": self._take_interruption,
            "call.input": self._take_input,
            "network.contact": self._take_contact,
            "network.denied": self._take_contact,
            "sandbox.lost": self._take_sandbox_end,
            "sandbox.reset": self._take_reset,
            "sandbox.stopped": self._take_sandbox_end,
            "sandbox.terminated": self._take_sandbox_end,
            "snapshot.forked": self._take_fork,
            "snapshot.taken": self._take_snapshot,
            "volume.attached": self._take_attachment,
            "volume.detached": self._take_attachment,
        }

    async def catch_up(self) -> int:
        """Bring the index up to the end of the ledger; the number of the last entry in it.

        Raises:
            LedgerUnavailable: it cannot be read, or the index not be written.
        """
        async with self._lock:
            while True:
                self._ledger.settle()
                if self._under_way is None:
                    seq = self._begun_at()
                    last = self._ledger.committed_seq
                    if seq >= last:
                        return seq
                    self._under_way = self._take_on(seq, min(last, seq + LOOKED_THROUGH_AT_ONCE))
                try:
                    with self._store.transaction():
                        is_over = next(self._under_way, self) is self
                except BaseException:
                    self._under_way = None
                    self._forget()
                    raise
                if is_over:
                    self._under_way = None
                await asyncio.sleep(0)  # whoever gives up here leaves the rest to the next one

    def _take_on(self, after: int, upto: int) -> Iterator[None]:
        """Take the entries past *after* up to *upto*. Comes up where a transaction may end, in the midst of an entry too."""
        marks = ", ".join("?" * len(self._take))
        self._attached_until(after)
        query = f"SELECT seq FROM ledger WHERE seq > ? AND seq <= ? AND kind IN ({marks}) ORDER BY seq"  # noqa: S608
        taken = 0
        for (seq,) in self._store.read(query, (after, upto, *self._take)):
            entry = self._ledger.entry(seq)  # one by one: each may be megabytes
            if entry is None:
                raise LedgerUnavailable(f"entry {seq} of the ledger is missing", hint="run `coldframe ledger verify`")
            for _ in self._take[entry.kind](entry) or ():
                self._rows.leave_unfinished()
                yield
            self._rows.reach(seq)
            taken += 1 + len(changes(entry.body))
            if taken >= AT_ONCE:
                taken = 0
                yield
        self._rows.reach(upto)

    def _begun_at(self) -> int:
        seq = self._rows.position()
        if seq is not None:
            return seq
        self._forget()
        self._rows.begin_anew()
        return 0

    def _forget(self) -> None:
        """What was looked up."""
        self._generations.clear()
        self._attached = None

    # -- entries ---------------------------------------------------------------------------------------------------

    def _take_agent(self, entry: LedgerEntry) -> None:
        self._generations[entry.subject] = entry.seq

    def _take_deletion(self, entry: LedgerEntry) -> None:
        self._rows.empty(self._place(entry.subject, "", entry.seq))

    def _take_sandbox_end(self, entry: LedgerEntry) -> None:
        self._rows.end_left_running(entry.subject)
        if entry.kind != "sandbox.stopped":
            self._rows.empty(entry.subject)  # if its workspace was its own

    def _take_start(self, entry: LedgerEntry) -> None:
        body = entry.body
        step = self._add_step(
            Step(
                number=entry.seq,
                kind="call",
                step_id=entry.subject,
                started=entry.seq,
                ended=NEVER,
                ended_at=None,
                place=self._place(body["agent_id"], body["sandbox_id"], entry.seq),
                sandbox_id=body["sandbox_id"],
                session_id=body["session_id"],
                leaves=writes(body["tool"]),
                left_running=False,
                rank=self._rows.height(body["session_id"]),
            ),
            reads=body.get("snapshot_ids") or (),
        )
        if step.leaves:
            self._rows.raise_height(step.place, step.rank)
        if self._rows.shared_by(step.number):  # from now on what is here may be there too, and the other way
            self._rows.raise_derived(entry, step._replace(rank=self._rows.height_around(step)))

    def _take_end(self, entry: LedgerEntry) -> Iterator[None]:
        """May be broken off after each of AT_ONCE files."""
        body, step = entry.body, self._rows.find_step(entry.subject)
        if step is None:
            return
        step = self._rows.end_step(
            entry, step, rank_of(body["label"], body["taint_after"]), bool(body.get("leftovers"))
        )
        step = self._name_inputs(entry, step)
        yield from self._replace_files(step, body)
        reason = body["label_reason"] if rank_of(body["label"]) >= step.rank else by_inputs(step.rank)
        # What a command changed is found by comparing, and others may have written meanwhile.
        has_company = runs(body) and self._rows.had_company(step)
        given = given_by(body)
        for number, (one, name) in enumerate(zip(given, ids_of_given(entry.subject, given), strict=True), 1):
            is_assumed = has_company and one.kind == "file"
            self._rows.give(entry, step, one._replace(certainty="assumed") if is_assumed else one, reason, name)
            if number % AT_ONCE == 0:
                yield
        self._rows.raise_derived(entry, step)

    def _take_interruption(self, entry: LedgerEntry) -> None:
        step = self._rows.find_step(entry.subject)
        if step is None:
            return
        if not entry.body.get("began", True):
            self._rows.remove_step(step)
            return
        step = self._rows.end_step(
            entry, step, rank_of(entry.body["taint_after"]), entry.body["command_id"] is not None
        )
        unknown = [Given("result", heard=True, left=step.leaves, certainty="assumed")]
        if step.leaves:
            unknown.append(Given("changes", left=True, certainty="assumed"))
        for one, name in zip(unknown, ids_of_given(entry.subject, unknown), strict=True):
            self._rows.give(entry, step, one, f"{label_of(step.rank).value} by session", name)
        self._rows.raise_derived(entry, step)

    def _take_input(self, entry: LedgerEntry) -> None:
        body, command = entry.body, self._rows.find_step(entry.body["call_id"])
        place = self._place(body["agent_id"], body["sandbox_id"], entry.seq)
        step = self._add_step(
            Step(
                number=entry.seq,
                kind="input",
                step_id=f"{body['call_id']}/{entry.seq}",
                started=entry.seq,
                ended=entry.seq,
                ended_at=None,
                place=place,
                sandbox_id=body["sandbox_id"],
                session_id=body["session_id"],
                leaves=True,
                left_running=False,
                rank=max(
                    rank_of(body["taint_before"]), self._rows.height(body["session_id"]), self._rows.height(place)
                ),
            )
        )
        given = Given("input", sha256=body["sha256"], bytes=body["bytes"], left=True)
        reason = f"{label_of(step.rank).value} by session"
        item = self._rows.give(entry, step, given, reason, item_id(body["call_id"], "input", str(entry.seq)))
        if command is not None:
            self._rows.add_edge(command, item, "known")
        self._rows.raise_derived(entry, step)

    def _take_contact(self, entry: LedgerEntry) -> None:
        body = entry.body
        if body.get("lookup") is not None:
            return  # it went nowhere, and nothing came of it
        is_allowed = body["outcome"] == "allow"
        key = f"{body['sandbox_id']}/{body['contact_id']}"
        requests = [one for one in body.get("requests") or () if one["outcome"] == "allow"]
        rank = rank_of(body["label"], *(one["label"] for one in requests)) if is_allowed else 0
        step = self._rows.find_step(key)
        if step is None:
            place = self._place(body["agent_id"], body["sandbox_id"], entry.seq)
            step = self._add_step(
                Step(
                    number=entry.seq,
                    kind="contact",
                    step_id=key,
                    started=self._entry_before(place, body["began_at"], entry.seq),
                    ended=entry.seq,
                    ended_at=None,
                    place=place,
                    sandbox_id=body["sandbox_id"],
                    session_id=body["session_id"],
                    leaves=is_allowed,
                    left_running=False,
                    rank=max(rank, self._rows.height(body["session_id"]), self._rows.height(place)),
                )
            )
            given = Given(
                "contact",
                host=(body.get("name") or body["address"]).lower(),
                port=body["port"],
                left=is_allowed,
                outcome=body["outcome"],
            )
            reason = of_contact(body, rank, step.rank)
            item = self._rows.give(
                entry, step, given, reason, item_id(body["sandbox_id"], "contact", body["contact_id"])
            )
            command = self._rows.find_step(ids_of(body["command_id"]).call_id) if body.get("command_id") else None
            if command is not None:
                self._rows.belongs_to(item, command)
                if is_allowed and step.started < command.ended:  # otherwise of what has outlived the command
                    self._rows.add_edge(command, item, "known")
            self._rows.raise_derived(entry, step)
        else:
            risen = max(step.rank, rank, self._rows.height_around(step))
            later = step._replace(rank=risen, ended=entry.seq)
            if risen > step.rank:
                self._rows.raise_items(entry, later, of_contact(body, rank, risen))
            self._rows.move_end(later)
            if risen > step.rank:
                self._rows.raise_derived(entry, later)
            else:  # it may have been raised by what it took in late, which none has that saw it earlier
                self._rows.raise_derived(entry, later._replace(rank=rank))
        self._rows.note_contact(entry, step, (one["method"] for one in requests))

    # -- what a call took in and gave ------------------------------------------------------------------------------

    def _name_inputs(self, entry: LedgerEntry, step: Step) -> Step:
        """The one file that a tool was asked about, in the version that was there; the step, labelled no lower than that."""
        body = entry.body
        call = (body.get("context") or {}).get("call") or {}
        shown, changes = body.get("shown"), list((body.get("files") or {}).get("changes") or [])
        if body.get("error_code") is not None:
            return step
        if body["tool"] == "read_file" and shown is not None and call.get("path"):
            began = self._ledger.entry(step.number)
            if began is not None and began.body.get("snapshot_ids"):
                return step  # it is no file of this place, whatever lies there under that name
            path, sha256, size = call["path"], shown["sha256"] if shown["whole"] else None, shown["bytes"]
        elif body["tool"] == "edit_file" and len(changes) == 1:
            path, sha256, size = changes[0]["path"], changes[0]["sha256_before"], None
        else:
            return step
        there = self._rows.file_in_force(step.place, path)
        if there and sha256 in (None, there[1]):
            self._rows.add_edge(step, there[0], "known" if sha256 is not None else "assumed")
            return step
        self._rows.replace_file(step.place, path, "superseded")
        started = self._ledger.entry(step.number)
        labels = [one["decision"]["label"] for one in (body, started.body if started else {}) if one.get("decision")]
        found = self._add_step(
            step._replace(
                number=entry.seq,
                kind="found",
                step_id=f"{entry.subject}/found",
                ended=step.started,
                ended_at=None,
                session_id=None,
                leaves=True,
                left_running=False,
                rank=max(rank_of(*labels), self._rows.height(step.place)),
            )
        )
        given = Given("file", sha256, size if sha256 else None, path, left=True, certainty="assumed", retention="kept")
        reason = f"{label_of(found.rank).value} by workspace and rules"
        item = self._rows.give(entry, found, given, reason, item_id(entry.subject, "found"))
        self._rows.add_edge(step, item, "known")
        self._rows.raise_derived(entry, found)
        return step._replace(rank=max(step.rank, found.rank))

    def _replace_files(self, step: Step, body: Mapping[str, Any]) -> Iterator[None]:
        """What was there in place of what is there now."""
        for number, one in enumerate(changes(body), 1):
            retention = "removed" if one["change"] == "deleted" else "superseded"
            self._rows.replace_file(step.place, one["path"], retention)
            if number % AT_ONCE == 0:
                yield

    # -- what several places share ---------------------------------------------------------------------------------

    def _add_step(self, step: Step, *, reads: Iterable[str] = ()) -> Step:
        """With the volumes of its sandbox and the snapshots that it *reads*, labelled no lower than those."""
        shared = dict(self._volumes_of(step.sandbox_id)) | {f"snapshot:{one}": False for one in reads}
        step = self._rows.add_step(step._replace(rank=max([step.rank, *map(self._rows.height, shared)])))
        for name, is_writable in shared.items():
            self._rows.share(step, name, writes=is_writable and step.leaves)
        return step

    def _take_snapshot(self, entry: LedgerEntry) -> None:
        self._take_copy(entry, f"snapshot:{entry.subject}", is_made=True)

    def _take_fork(self, entry: LedgerEntry) -> None:
        self._take_copy(entry, f"snapshot:{entry.subject}", is_made=False)

    def _take_reset(self, entry: LedgerEntry) -> None:
        snapshot = f"snapshot:{entry.body['to']}"
        if self._rows.is_shared(snapshot):
            self._take_copy(entry, snapshot, is_made=False)

    def _take_copy(self, entry: LedgerEntry, snapshot: str, *, is_made: bool) -> None:
        """Between a place and a snapshot, which *is made* of the place or the place of it."""
        body = entry.body
        place = self._place(body["agent_id"], body["sandbox_id"], entry.seq)
        step = self._rows.add_step(
            Step(
                number=entry.seq,
                kind="copy",
                step_id=f"{entry.kind}/{entry.seq}",
                started=entry.seq,
                ended=entry.seq,
                ended_at=format_time(entry.at),
                place=place,
                sandbox_id=body["sandbox_id"] or "",
                session_id=None,
                leaves=not is_made,
                left_running=False,
                rank=max(rank_of(body["label"]), self._rows.height(place), self._rows.height(snapshot)),
            )
        )
        self._rows.share(step, snapshot, writes=is_made)
        self._rows.raise_derived(entry, step)

    def _take_attachment(self, entry: LedgerEntry) -> None:
        self._note_attachment(entry, self._attached_until(entry.seq - 1))

    def _volumes_of(self, sandbox_id: str) -> Mapping[str, bool]:
        return (self._attached or {}).get(sandbox_id, {})

    def _attached_until(self, seq: int) -> dict[str, dict[str, bool]]:
        """The volumes that sandboxes had then."""
        if self._attached is None:
            self._attached, after = {}, 0
            while found := self._ledger.entries(kinds=_ATTACHMENTS, after=after, limit=AT_ONCE):
                for one in found:
                    if one.seq <= seq:
                        self._note_attachment(one, self._attached)
                after = found[-1].seq
        return self._attached

    @staticmethod
    def _note_attachment(entry: LedgerEntry, attached: dict[str, dict[str, bool]]) -> None:
        body, shared = entry.body, f"volume:{entry.subject}"
        if entry.kind == "volume.attached":
            attached.setdefault(body["sandbox_id"], {})[shared] = body["mode"] == "rw"
        elif volumes := attached.get(body["sandbox_id"]):
            volumes.pop(shared, None)
            if not volumes:
                del attached[body["sandbox_id"]]

    # -- places ----------------------------------------------------------------------------------------------------

    def _place(self, agent_id: str | None, sandbox_id: str, seq: int) -> str:
        if agent_id is None:
            return sandbox_id
        if agent_id not in self._generations:
            made = self._ledger.entries(kinds=("agent.created",), subject=agent_id, limit=10_000)
            self._generations[agent_id] = max((one.seq for one in made if one.seq < seq), default=0)
        return f"{agent_id}@{self._generations[agent_id]}"

    def _entry_before(self, place: str, began_at: str, seq: int) -> int:
        """The last entry that is surely older than what began then: whatever ended later may have seen it."""
        ended = self._rows.first_end_since(place, parse_time(began_at))
        return seq if ended is None else min(seq, ended - 1)
