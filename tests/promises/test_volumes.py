"""A volume has a life of its own: shared, limited, labelled, read without a sandbox, and there when every sandbox has ended."""

import json
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    InvalidArgument,
    NotFound,
    ReadOnly,
    VolumeBusy,
)
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import SandboxSpec
from tests.installation import Installation, wait_until
from tests.promises.test_crashes import kill_keeper

READ_ONLY = "Read-only file system"


@pytest.fixture
def volume(client: SyncColdframe, agent_id: str) -> Iterator[str]:
    name = f"of-{agent_id}"
    client.volumes.create(name, size_mib=8)
    yield name
    for holder in client.volumes.get(name).holders:
        client.sandboxes.get(holder.sandbox_id).terminate()
    client.volumes.remove(name)


def having(client: SyncColdframe, agent_id: str | None, name: str, mode: str = "ro", **more: str) -> SyncSandbox:
    wanted = {"name": name, "mode": mode, **more}
    return client.sandboxes.create(agent_id, background=agent_id is None, volumes=[wanted])


@pytest.mark.req("T3.44")
def test_one_writes_others_read_and_it_outlives_them_all(client: SyncColdframe, agent_id: str, volume: str) -> None:
    at = f"/home/user/volumes/{volume}"
    writer, reader = having(client, agent_id, volume, "rw"), having(client, None, volume, at=f"/mnt/{volume}")
    assert writer.run_command(f"echo one > {at}/a && mkdir {at}/b").exit_code == 0
    seen = reader.run_command(f"cat /mnt/{volume}/a; echo two > /mnt/{volume}/a")
    assert (seen.stdout, READ_ONLY in seen.stderr) == ("one\n", True)
    with pytest.raises(VolumeBusy) as busy:
        having(client, f"{agent_id}-b", volume, "rw")
    assert [one["sandbox_id"] for one in busy.value.facts["holders"]] == [writer.id]  # type: ignore[index, call-overload, union-attr]
    with pytest.raises(VolumeBusy) as busy:
        client.volumes.remove(volume)
    assert len(busy.value.facts["holders"]) == 2  # type: ignore[arg-type]
    with pytest.raises(VolumeBusy):
        client.volumes.upload(volume, "a", b"two")
    mounts = {one.target: one for one in reader.report().mounts}
    assert (mounts[f"/mnt/{volume}"].source, mounts[f"/mnt/{volume}"].writable) == ("volume", False)
    limits = {one.kind: one for one in writer.report().limits}
    assert (limits[f"volume:{volume}"].limit, limits[f"volume:{volume}"].unit) == (8, "MiB")
    for sandbox in (writer, reader):
        sandbox.terminate()
    assert b"".join(client.volumes.download(volume, "a")) == b"one\n"
    kept = having(client, f"{agent_id}-b", volume, "rw")
    assert kept.run_command(f"cat {at}/a").stdout == "one\n"
    kept.terminate()


@pytest.mark.req("T3.44")
def test_file_tools_reach_it_below_the_workspace_and_say_that_they_do_not_elsewhere(
    client: SyncColdframe, agent_id: str, volume: str
) -> None:
    sandbox = having(client, agent_id, volume, "rw", at="/home/user/data")
    sandbox.write_file("data/a.txt", "a needle\n")
    assert sandbox.read_file("data/a.txt").content == "a needle\n"
    assert [one.path for one in sandbox.search_files("needle").matches] == ["data/a.txt"]
    assert "data/a.txt" in [one.path for one in sandbox.list_directory(recursive=True).entries]
    done = sandbox.call("run_command", {"command": "echo more >> data/a.txt"})
    assert [one["path"] for one in done.value["files"]["changes"]] == ["data/a.txt"]
    sandbox.terminate()
    reading = having(client, agent_id, volume, at="/home/user/data")
    with pytest.raises(ReadOnly):
        reading.write_file("data/a.txt", "x")
    assert reading.read_file("data/a.txt").content == "a needle\nmore\n"
    reading.terminate()
    beside = having(client, agent_id, volume, at=f"/mnt/{volume}")
    with pytest.raises(ColdframeError) as refused:
        beside.read_file(f"/mnt/{volume}/a.txt")
    assert refused.value.code == "OUTSIDE_WORKSPACE"
    assert not beside.list_directory("data").entries
    beside.terminate()


@pytest.mark.req("T3.44")
def test_no_snapshot_holds_it_a_reset_leaves_it_and_a_fork_has_it_only_if_it_asks(
    client: SyncColdframe, agent_id: str, volume: str
) -> None:
    sandbox = having(client, agent_id, volume, "rw", at="/home/user/data")
    sandbox.run_command("echo here > data/a && echo own > own")
    line = next(one for one in sandbox.contract()["persistence"] if one["id"] == "persistence.volume")
    assert "no snapshot" in line["text"]
    assert set(line["value"]["events"].values()) == {"kept"}
    sandbox.stop()
    taken = sandbox.take_snapshot()
    assert "volumes" in taken.left_out
    assert not sandbox.list_directory("data").entries
    sandbox.start_again()
    sandbox.reset("empty")
    assert sandbox.run_command("cat data/a; ls own").stdout == "here\n"
    sandbox.stop()
    fork = client.sandboxes.create(f"{agent_id}-f", snapshot=taken.snapshot_id)
    assert fork.run_command("ls data; cat own").stdout == "own\n"
    fork.terminate()
    spec = SandboxSpec(agent_id=f"{agent_id}-g", volumes=[{"name": volume}])  # type: ignore[arg-type]
    other = sandbox.fork(spec=spec)
    assert other.info.spec.volumes[0].mode == "ro"
    assert other.run_command(f"cat volumes/{volume}/a").stdout == "here\n"
    other.terminate()
    sandbox.terminate()


@pytest.mark.req("T3.44")
def test_its_limit_is_its_own(client: SyncColdframe, agent_id: str, volume: str) -> None:
    sandbox = having(client, agent_id, volume, "rw", at="/home/user/data")
    done = sandbox.run_command("head -c 100000000 /dev/zero > data/big; sleep 60")
    assert done.limit is not None
    assert (done.limit.kind, done.limit.limit) == ("disk", 8 << 20)
    assert sandbox.run_command("rm data/big").exit_code == 0
    assert sandbox.run_command("echo x > data/small").exit_code == 0
    sandbox.terminate()
    with pytest.raises(ColdframeError) as full:
        client.volumes.upload(volume, "big", b"x" * (9 << 20))
    assert full.value.code == "LIMIT_DISK"
    usage = client.volumes.get(volume).usage
    assert usage is not None
    assert usage.files == 1


@pytest.mark.req("T3.44")
def test_its_label_taints_whoever_has_it(client: SyncColdframe, agent_id: str) -> None:
    name = f"secret-{agent_id}"
    client.volumes.create(name, label="CONFIDENTIAL")
    sandbox = having(client, agent_id, name)
    assert client.sessions.get(sandbox.info.session_id).taint is Label.CONFIDENTIAL
    assert client.sandboxes.get(sandbox.id).info.workspace_label is Label.CONFIDENTIAL
    entries = client.ledger.entries(kinds=["volume.attached"], sandbox_id=sandbox.id)
    assert [(one.body["name"], one.body["mode"], one.body["label"]) for one in entries] == [
        (name, "ro", "CONFIDENTIAL")
    ]
    sandbox.terminate()
    assert len(client.ledger.entries(kinds=["volume.detached"], sandbox_id=sandbox.id)) == 1
    client.volumes.remove(name)


@pytest.mark.req("T3.44", "T3.16", "T3.40")
def test_it_stands_among_inputs_and_items_with_its_place(
    installation: Installation, client: SyncColdframe, agent_id: str, volume: str
) -> None:
    wanted = SandboxSpec(agent_id=agent_id, volumes=[{"name": volume, "at": "/home/user/data", "mode": "rw"}])  # type: ignore[arg-type]
    planned = client.sandboxes.plan(wanted)
    agreed = wanted.model_copy(update={"contract_sha256": planned["sha256"]})
    sandbox = client.sandboxes.create(spec=agreed)
    sandbox.run_command("echo 12345 > data/a")
    entry = next(one for one in sandbox.inputs().inputs if one.type == "volume")
    assert (entry.name, entry.mount, entry.mode, entry.label) == (volume, "/home/user/data", "read-write", Label.PUBLIC)
    assert entry.valid_until is None
    row = next(one for one in sandbox.persistence() if one.item == "volume")
    assert (row.exists, row.owner, row.places, row.count) == (True, "tenant", ("/home/user/data",), 1)
    where = sandbox.where("/home/user/data/a")
    assert (where.item, where.writable, where.mounted_at) == ("volume", True, "/home/user/data")
    told = installation.cli("contract", "where", sandbox.id, "/home/user/data")
    assert told.stdout.startswith(b"/home/user/data: volume, of the tenant")
    sandbox.stop()
    ended = next(one for one in sandbox.inputs().inputs if one.type == "volume")
    assert ended.ended_by == "detached"
    sandbox.terminate()


@pytest.mark.req("T3.44")
def test_places_that_lead_elsewhere_are_refused(client: SyncColdframe, agent_id: str, volume: str) -> None:
    for at in ("/etc", "/home/user", "/home/user/../x", "/home/user/.exec_history", "/mnt/other", "/home/user/skills"):
        with pytest.raises((InvalidArgument, ValueError)):
            having(client, agent_id, volume, at=at)
    with client.sandboxes.create(agent_id) as sandbox:
        sandbox.run_command("ln -s /etc link && mkdir full && echo x > full/x")
    for at in ("/home/user/link", "/home/user/link/a", "/home/user/full"):
        with pytest.raises(Conflict):
            having(client, agent_id, volume, at=at)
    with pytest.raises(NotFound):
        having(client, agent_id, "nothing-here")


def freed(client: SyncColdframe, agent_id: str, name: str) -> SyncSandbox | None:
    """One that can write to it, unless the kernel is still ending whoever could."""
    try:
        return having(client, agent_id, name, "rw")
    except VolumeBusy:
        return None


@pytest.mark.req("T3.44")
def test_a_kill_of_its_keeper_or_of_the_server_leaves_it_free(installation: Installation, agent_id: str) -> None:
    with SyncColdframe(installation.url, installation.token) as client:
        name = f"killed-{agent_id}"
        client.volumes.create(name)
        held = having(client, agent_id, name, "rw")
        kill_keeper(installation, held.id)
        other = wait_until(lambda: freed(client, f"{agent_id}-b", name), "the volume is free")
    installation.kill()
    installation.start()
    with SyncColdframe(installation.url, installation.token) as client:
        with pytest.raises(VolumeBusy):
            having(client, f"{agent_id}-c", name, "rw")
        client.sandboxes.get(other.id).terminate()
        having(client, f"{agent_id}-c", name, "rw").terminate()
        client.volumes.remove(name)


@pytest.mark.req("T3.44")
def test_the_command_line_makes_fills_grants_and_removes_it(installation: Installation, agent_id: str) -> None:
    name = f"cli-{agent_id}"

    def told(*words: str, **more: bytes) -> bytes:
        return installation.cli("volume", *words, **more).stdout

    assert json.loads(told("create", name, "--size-mib", "4", "--json"))["size_mib"] == 4
    assert told("put", name, "-", "a/b", input=b"content").startswith(b"7 bytes to a/b")
    assert told("cat", name, "a/b") == b"content"
    assert b"a/b" in told("ls", name, "-r")
    assert json.loads(told("show", name, "--json"))["usage"]["files"] == 2
    assert json.loads(told("grant", name, agent_id, "--mode", "rw", "--json"))["grants"] == [
        {"agent_id": agent_id, "mode": "rw"}
    ]
    made = installation.cli("sandbox", "create", "--agent", agent_id, "--volume", f"{name}:/home/user/d:rw")
    sandbox_id = made.stdout.decode().strip()
    assert sandbox_id.encode() in told("list")
    installation.cli("sandbox", "terminate", sandbox_id)
    assert json.loads(told("revoke", name, agent_id, "--json"))["grants"] == []
    told("rm", name, "a", "-r")
    told("remove", name)


@pytest.mark.req("T3.42")
def test_a_commit_outlives_the_sandbox_that_made_it(client: SyncColdframe, agent_id: str) -> None:
    commit = (
        "git init -q repo && cd repo && git config user.name a && git config user.email a@b && seq 1000 > numbers && "
        "git add . && git commit -qm first && echo more >> numbers && git commit -qam second && git rev-list HEAD"
    )
    with client.sandboxes.create(agent_id) as sandbox:
        made = sandbox.run_command(commit)
        assert made.exit_code == 0, made.stderr
    with client.sandboxes.create(agent_id) as again:
        found = again.run_command("cd repo && git rev-list HEAD && git fsck --full --strict && git status --porcelain")
    assert (found.exit_code, found.stdout) == (0, made.stdout)
    assert len(made.stdout.split()) == 2
