"""Whatever calls, contacts and input follow each other: a trace has all that could be derived, and nothing is labelled lower
than what it may come from. Compared with a model that looks at every pair of steps."""

import asyncio
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coldframe.contract.caller import Caller
from coldframe.contract.lineage import LineageItem
from coldframe.contract.policy import Label, Role
from coldframe.control.ledger import format_time
from coldframe.control.lineage import Lineage, WantedItems
from coldframe.control.lineage_rows import NEVER
from coldframe.policy.labels import join
from tests.control.keeping import Keeping

VIEWER = Caller(token_id="tok_viewer", role=Role.VIEWER)
SANDBOXES = (("ada", "one"), ("ada", "two"), ("bob", "three"), (None, "four"))
LABELS = st.sampled_from(list(Label))
TOOLS = ("run_command", "write_file", "read_file", "list_directory")
WHERE = st.integers(0, len(SANDBOXES) - 1)
PLACE = st.integers(0, 9)
OPERATIONS = st.one_of(
    st.tuples(st.just("start"), WHERE, st.sampled_from(TOOLS)),
    st.tuples(st.just("end"), PLACE, LABELS, st.sets(st.sampled_from(["a", "b"])), st.booleans()),
    st.tuples(st.just("interrupt"), PLACE, st.booleans()),
    st.tuples(st.just("contact"), WHERE, LABELS, st.booleans(), st.integers(0, 40), PLACE),
    st.tuples(st.just("request"), PLACE, LABELS),
    st.tuples(st.just("input"), PLACE, WHERE),
    st.tuples(st.just("reset"), WHERE),
    st.tuples(st.just("attach"), WHERE, st.integers(0, 1), st.booleans()),
    st.tuples(st.just("detach"), WHERE),
    st.tuples(st.just("snapshot"), WHERE, LABELS),
    st.tuples(st.just("fork"), PLACE, WHERE),
    st.tuples(st.just("look")),
)


class Step(NamedTuple):
    """Of the model."""

    kind: str
    started: int
    ended: int
    session: str | None
    places: dict[str, bool]
    """Its own and what it shares with others, and whether what it gives is there."""
    leaves: bool

    def gives_to(self, other: "Step") -> bool:
        return any(is_left and place in other.places for place, is_left in self.places.items())


class Story:
    """A sequence of operations as entries of a ledger."""

    def __init__(self, keeping: Keeping, number: int) -> None:
        self.keeping = keeping
        self.ids = itertools.count()
        self.name = f"x{number}"
        self.sessions = [f"ses_{self.name}_{sandbox}" for _, sandbox in SANDBOXES]
        self.open: list[dict[str, Any]] = []
        self.first = self.append("agent.created", self.agent(0), agent_id=self.agent(0))
        self.append("agent.created", self.agent(2), agent_id=self.agent(2))
        self.ended: list[tuple[str, str, str]] = []
        """Place, when, and call id."""
        self.attached: list[dict[str, Any]] = []
        self.snapshots: list[str] = []
        self.contacts: list[tuple[str, dict[str, Any]]] = []
        """Place, and first record, of those that were allowed."""

    def agent(self, where: int) -> str:
        return f"{SANDBOXES[where][0]}-{self.name}"

    def whose(self, where: int) -> dict[str, Any]:
        agent, sandbox = SANDBOXES[where]
        return {
            "sandbox_id": f"sbx_{self.name}_{sandbox}",
            "agent_id": None if agent is None else self.agent(where),
            "session_id": self.sessions[where],
        }

    def append(self, kind: str, subject: str, **body: Any) -> int:
        return self.keeping.ledger.append(kind, subject, body).seq

    def tell(self, operation: tuple[Any, ...]) -> None:
        what, *how = operation
        getattr(self, f"_{what}")(*how)

    def _start(self, where: int, tool: str) -> None:
        word = f"{next(self.ids):012x}{int(self.name[1:]):012x}"
        body = {
            **self.whose(where),
            "call_id": f"call_{word}",
            "caller": "rest:tok",
            "tool": tool,
            "taint_before": "PUBLIC",
            "command_id": f"cmd_{word}" if tool == "run_command" else None,
        }
        seq = self.append("call.started", body["call_id"], **body)
        self.open.append({**body, "started_seq": seq, "where": where})

    def _closed(self, number: int) -> dict[str, Any] | None:
        return self.open.pop(number % len(self.open)) if self.open else None

    def _end(self, number: int, label: Label, paths: set[str], leftovers: bool) -> None:
        if (call := self._closed(number)) is None:
            return
        where, runs = call.pop("where"), call["tool"] == "run_command"
        ended_at = format_time(self.keeping.clock())
        stream = {"bytes": 3, "sha256": "ab"}
        changes = [
            {"path": one, "kind": "file", "change": "changed", "sha256_before": None, "sha256_after": one}
            for one in sorted(paths)
        ]
        writes = call["tool"] in ("run_command", "write_file")
        self.append(
            "call.ended",
            call["call_id"],
            **call,
            ended="exited" if runs else "answered",
            ended_at=ended_at,
            label=label.value,
            taint_after=label.value,
            label_reason="as told",
            leftovers=int(leftovers and runs),
            stdout=stream if runs else None,
            stderr={**stream, "bytes": 0} if runs else None,
            shown=None if writes else {"bytes": 3, "sha256": "cd", "whole": True},
            files={"recorded": True, "changes": changes} if writes else None,
            context={"call": {"path": "a"}},
            decision={"label": "PUBLIC" if writes else label.value},
        )
        self.ended.append((self.place(where), ended_at, call["call_id"]))

    def _interrupt(self, number: int, began: bool) -> None:
        if (call := self._closed(number)) is not None:
            call.pop("where")
            self.append("call.interrupted", call["call_id"], **call, began=began, reason="", taint_after="INTERNAL")

    def _contact(self, where: int, label: Label, allowed: bool, back: int, command: int) -> None:
        began_at = format_time(self.keeping.clock() - timedelta(milliseconds=back))
        mine = [one for one in self.open if one["where"] == where and one["command_id"] is not None]
        body = {
            **self.whose(where),
            "event": "begun" if allowed else "denied",
            "contact_id": f"con_{next(self.ids)}",
            "command_id": mine[command % len(mine)]["command_id"] if mine else None,
            "protocol": "tcp",
            "name": "api.example.com",
            "address": "198.18.0.1",
            "port": 443,
            "outcome": "allow" if allowed else "deny",
            "rule_id": "api",
            "label": label.value,
            "began_at": began_at,
            "received_bytes": 1,
            "requests": [],
        }
        self.append("network.contact" if allowed else "network.denied", body["contact_id"], **body)
        if allowed:
            self.contacts.append((self.place(where), body))

    def _request(self, number: int, label: Label) -> None:
        """More becomes known of a contact."""
        if self.contacts:
            _, body = self.contacts[number % len(self.contacts)]
            request = {"method": "GET", "outcome": "allow", "label": label.value}
            self.append("network.contact", body["contact_id"], **{**body, "event": "request", "requests": [request]})

    def _input(self, number: int, where: int) -> None:
        commands = [one for one in self.open if one["command_id"] is not None]
        mine = [one for one in commands if SANDBOXES[one["where"]][0] == SANDBOXES[where][0]]
        if mine:
            call = {**mine[number % len(mine)], **self.whose(where)}
            call.pop("where")
            self.append("call.input", str(call["command_id"]), **call, bytes=1, sha256="ef", offset=0)

    def _reset(self, where: int) -> None:
        self.sessions[where] += "r"

    def _attach(self, where: int, volume: int, writes: bool) -> None:
        body = {**self.whose(where), "volume_id": f"vol_{self.name}_{volume}", "mode": "rw" if writes else "ro"}
        if not any(one["sandbox_id"] == body["sandbox_id"] for one in self.attached):
            self.append("volume.attached", body["volume_id"], **body)
            self.attached.append(body)

    def _detach(self, where: int) -> None:
        for one in [one for one in self.attached if one["sandbox_id"] == self.whose(where)["sandbox_id"]]:
            self.append("volume.detached", one["volume_id"], **one)
            self.attached.remove(one)

    def _snapshot(self, where: int, label: Label) -> None:
        snapshot_id = f"{next(self.ids):08x}{int(self.name[1:]):08x}"
        self.append("snapshot.taken", snapshot_id, **self.whose(where), label=label.value)
        self.snapshots.append(snapshot_id)

    def _fork(self, number: int, where: int) -> None:
        if self.snapshots:
            snapshot_id = self.snapshots[number % len(self.snapshots)]
            self.append("snapshot.forked", snapshot_id, **self.whose(where), label="PUBLIC")

    def _look(self) -> None:
        asyncio.run(Lineage(self.keeping.store, self.keeping.ledger).items(VIEWER, WantedItems(), limit=1))

    def place(self, where: int) -> str:
        whose = self.whose(where)
        return str(whose["agent_id"] or whose["sandbox_id"])


class Model:
    """All pairs."""

    def __init__(self, keeping: Keeping, first: int) -> None:
        read = keeping.store.read
        self.steps = {
            number: Step(kind, started, ended, session, {place: bool(leaves)}, bool(leaves))
            for number, kind, started, ended, session, place, leaves in read(
                "SELECT number, kind, started, ended, session_id, place, leaves FROM lineage_steps WHERE number >= ?",
                (first,),
            )
        }
        for number, shared, writes in read("SELECT step, shared, writes FROM lineage_shared WHERE step >= ?", (first,)):
            self.steps[number].places[shared] = bool(writes)
        self.items = read("SELECT item_id, step, heard, left FROM lineage_items WHERE seq >= ?", (first,))
        self.maker = {item: step for item, step, *_ in self.items}
        began = dict[str, int]()
        self.said = dict.fromkeys(self.steps, Label.PUBLIC)
        """What the gate or the network rules said of a step, whatever it was derived from."""
        for entry in keeping.ledger.entries(after=first, limit=10_000):
            label = entry.body.get("taint_after" if entry.kind.startswith("call.") else "label")
            if label is not None and entry.body.get("outcome") != "deny":
                number = began.setdefault(entry.subject, int(entry.body.get("started_seq", entry.seq)))
                labels = [Label(one["label"]) for one in entry.body.get("requests", ())]
                if number in self.said:  # it did something
                    self.said[number] = join(self.said[number], Label(label), *labels)
            if entry.seq in self.steps and entry.kind == "call.ended":  # a file was found by it
                self.said[entry.seq] = Label(entry.body["decision"]["label"])

    def back(self, root: int) -> dict[str, int]:
        """By when the way goes on from a step: what it took in later did not come this way."""
        found = dict[str, int]()
        self.passed = dict[str, int]()
        """By when an item was copied at the latest: a snapshot has what there was before it."""
        level, seen, generation = {(root, NEVER, NEVER)}, set[tuple[int, int, int]](), 1
        while level:
            before = set[tuple[int, int, int]]()
            for number, by, copied in level:
                taker = self.steps[number]
                ended = min(taker.ended, by)
                copied = min(copied, ended) if taker.kind == "copy" else copied
                for item, step, heard, left in self.items:
                    giver = self.steps[step]
                    in_session = heard and giver.session == taker.session is not None
                    at_place = left and giver.gives_to(taker)
                    if (in_session and giver.started < taker.started) or (at_place and giver.started < ended):
                        found.setdefault(item, generation)
                        self.passed[item] = max(copied, self.passed.get(item, 0))
                for step, giver in self.steps.items():
                    in_session = giver.kind == "call" and giver.session == taker.session is not None
                    if in_session and giver.started < taker.started:
                        before.add((step, taker.started, copied))
                    if giver.gives_to(taker) and giver.started < ended:
                        before.add((step, ended, copied))
            seen |= level
            level, generation = before - seen, generation + 1
        return {item: generation for item, generation in found.items() if self.maker[item] != root}

    def forward(self, root: int, *, heard: bool, left: bool) -> dict[str, int]:
        """From when on a step may give what came this way."""
        reached = dict[int, int]()
        level, seen, generation = {(root, self.steps[root].started)}, set[tuple[int, int]](), 1
        while level:
            after = set[tuple[int, int]]()
            for number, since in level:
                giver = self.steps[number]
                is_heard, is_left = (heard, left) if generation == 1 else (giver.kind == "call", True)
                for step, taker in self.steps.items():
                    in_session = is_heard and giver.session == taker.session is not None
                    if in_session and taker.started > since:
                        after.add((step, taker.started))
                    if is_left and giver.gives_to(taker) and taker.ended > since:
                        after.add((step, max(taker.started, since)))
            for step, _ in after:
                reached.setdefault(step, generation)
            seen |= level
            level, generation = after - seen, generation + 1
        return {item: reached[step] for item, step, *_ in self.items if step in reached and step != root}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeping]:
    kept = Keeping(tmp_path_factory.mktemp("kept"))
    yield kept
    kept.close()


_numbers = itertools.count()


async def traced(lineage: Lineage, item_id: str, direction: Any) -> dict[str, tuple[int, LineageItem]]:
    found, after = dict[str, tuple[int, LineageItem]](), None
    while True:
        page = await lineage.trace(VIEWER, item_id, direction, after=after, limit=7)
        found |= {one.item.item_id: (one.generation, one.item) for one in page.items}
        if page.next_after is None:
            return found
        after = page.next_after


@pytest.mark.req("TP.14")
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@example(
    # what a call heard is known to be labelled only after it was written down, and that was read by another session
    operations=[
        ("start", 0, "list_directory"),
        ("start", 0, "run_command"),
        ("start", 1, "run_command"),
        ("end", 1, Label.PUBLIC, set(), False),
        ("end", 1, Label.PUBLIC, set(), False),
        ("end", 0, Label.CONFIDENTIAL, set(), False),
    ]
)
@example(
    # what runs has heard of it, and is seen before it ends
    operations=[
        ("start", 0, "list_directory"),
        ("end", 0, Label.CONFIDENTIAL, set(), False),
        ("start", 0, "write_file"),
        ("start", 1, "list_directory"),
        ("end", 1, Label.PUBLIC, set(), False),
    ]
)
@example(
    # a file that lay there is found to be secret after another call could have read it
    operations=[
        ("start", 1, "list_directory"),
        ("start", 0, "read_file"),
        ("end", 0, Label.PUBLIC, set(), False),
        ("end", 0, Label.CONFIDENTIAL, set(), False),
    ]
)
@example(
    # what one wrote to a volume while another read there, who then went on from a snapshot of it
    operations=[
        ("attach", 0, 0, True),
        ("attach", 2, 0, False),
        ("start", 0, "run_command"),
        ("contact", 0, Label.CONFIDENTIAL, True, 0, 0),
        ("start", 2, "run_command"),
        ("end", 1, Label.PUBLIC, {"a"}, False),
        ("snapshot", 2, Label.PUBLIC),
        ("end", 0, Label.CONFIDENTIAL, {"b"}, False),
        ("detach", 2),
        ("fork", 0, 3),
        ("start", 3, "run_command"),
        ("end", 0, Label.PUBLIC, {"a"}, False),
    ]
)
@example(
    # what lay in a workspace is in a volume as soon as anything runs that could have put it there
    operations=[
        ("start", 1, "run_command"),
        ("end", 0, Label.CONFIDENTIAL, set(), False),
        ("attach", 0, 0, True),
        ("attach", 2, 0, False),
        ("start", 0, "run_command"),
        ("contact", 2, Label.PUBLIC, True, 0, 0),
    ]
)
@example(
    # a contact is labelled by itself as high as what it took in before had it labelled, and that from its begin on
    operations=[
        ("contact", 3, Label.PUBLIC, True, 0, 0),
        ("contact", 3, Label.PUBLIC, False, 0, 0),
        ("start", 3, "run_command"),
        ("request", 0, Label.INTERNAL),
        ("end", 0, Label.CONFIDENTIAL, set(), False),
        ("request", 0, Label.CONFIDENTIAL),
    ]
)
@given(operations=st.lists(OPERATIONS, min_size=20, max_size=40))
def test_a_trace_has_all_that_a_model_finds_and_no_label_is_lower_than_an_input(
    kept: Keeping, operations: list[tuple[Any, ...]]
) -> None:
    story = Story(kept, next(_numbers))
    for operation in operations:
        story.tell(operation)

    async def scenario() -> None:
        lineage = Lineage(kept.store, kept.ledger)
        await lineage.items(VIEWER, WantedItems(), limit=1)
        model = Model(kept, story.first)
        inputs, outputs = dict[str, set[str]](), dict[str, set[str]]()
        for item_id, step, heard, left in model.items:
            item = await lineage.item(VIEWER, item_id)
            back = await traced(lineage, item_id, "back")
            assert {one: generation for one, (generation, _) in back.items()} == model.back(step)
            for one, (_, origin) in back.items():
                made = model.steps[model.maker[one]]
                if made.ended < model.passed[one]:
                    assert model.said[model.maker[one]].rank <= item.label.rank
                if made.ended < min(model.steps[step].started, model.passed[one]):  # so it was taken in whole
                    assert origin.label.rank <= item.label.rank
            assert {one.item_id for one in item.inputs if one.certainty == "known"} <= back.keys()
            forward = await traced(lineage, item_id, "forward")
            assert {one: generation for one, (generation, _) in forward.items()} == model.forward(
                step, heard=heard, left=left
            )
            inputs[item_id], outputs[item_id] = set(back), set(forward)
        for one, other in itertools.permutations(inputs, 2):
            assert (other in inputs[one]) == (one in outputs[other])
        # what began while a call ran, at its place, is among what that may come from
        for place, ended_at, call_id in story.ended:
            before = set(await traced(lineage, call_id, "back"))
            for contact_place, contact in story.contacts:
                if contact_place == place and contact["began_at"] <= ended_at:
                    step_id = f"{contact['sandbox_id']}/{contact['contact_id']}"
                    query = "SELECT item_id FROM lineage_items WHERE step = (SELECT number FROM lineage_steps WHERE step_id = ?)"
                    ((item_id,),) = kept.store.read(query, (step_id,))
                    assert item_id in before

    asyncio.run(scenario())
