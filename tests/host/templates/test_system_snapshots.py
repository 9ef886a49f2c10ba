"""Snapshots of a sandbox with a system of its own hold both, and so do resets and forks; who it was known by stays behind."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coldframe.contract.errors import ColdframeError, NotFound, WrongState
from coldframe.contract.files import ListDirectory, ReadFile, SearchFiles
from coldframe.contract.ports import BoxLife
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.snapshot import SnapshotPoint, SnapshotWish, SystemPoint, WorkspacePoint
from coldframe.host.machine import Machine
from coldframe.host.sandbox_users import range_of
from coldframe.host.templates.store import Template
from tests.host.machines import Outcome, on_a_machine, run

pytestmark = [
    pytest.mark.timeout(900),  # whoever comes first waits for the template to be built
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the users of a layer have to be mapped"),
]
HOME, FORK = WorkspacePoint(agent_id="agent"), WorkspacePoint(agent_id="fork")
PLAIN = SnapshotWish(name="taken")
LIMITS = Limits()


def at(snapshot_id: str) -> SnapshotPoint:
    return SnapshotPoint(snapshot_id=snapshot_id)


SPOIL = """
set -e
printf '#!/bin/sh\\necho changed\\n' > /usr/bin/mine; chmod 4755 /usr/bin/mine
ln /usr/bin/mine /usr/bin/also-mine
rm /usr/bin/less; rm -r /etc/skel; mkdir /etc/skel; echo only > /etc/skel/this
useradd -m worker; install -o worker -g worker -m 640 /dev/null /var/of-worker
python3 -c 'import os; os.setxattr("/usr/bin/mine", "user.note", b"kept")'
mkfifo /var/pipe; ln -s mine /usr/bin/linked
mkdir -p /etc/ssh /var/lib/systemd /root/.config/chromium/Default /home/worker/.mozilla/firefox/p
echo canary-key > /etc/ssh/ssh_host_rsa_key; touch /etc/ssh/sshd_config; echo canary-seed > /var/lib/systemd/random-seed
echo canary-cookie > /root/.config/chromium/Default/Cookies
echo canary-login > /home/worker/.mozilla/firefox/p/logins.json
echo state-one > /var/state; install -o user -g user -m 600 /dev/null /home/user/private; echo root > /home/user/of-root
"""
FACTS = """
stat -c '%n %U %G %a %h %F' /usr/bin/mine /usr/bin/also-mine /var/of-worker /var/pipe /usr/bin/linked /etc/skel/this \
  /home/user/private /home/user/of-root
ls /etc/skel; ls /usr/bin/less 2>&1; python3 -c 'import os; print(os.getxattr("/usr/bin/mine", "user.note"))'
cat /var/state; id worker
"""
HOST_KEY = "stat -c '%a %U' /etc/ssh/ssh_host_ed25519_key; cat /etc/ssh/ssh_host_*.pub"
CANARIES = "grep -rsl canary- /etc /var /root /home || true"


def with_the_template(template: Template, steps: Callable[[Machine], Awaitable[None]]) -> None:
    async def prepared(machine: Machine) -> None:
        place = Path(machine.workspaces.of_agent("agent")).parents[1] / "templates"
        place.mkdir(mode=0o711, exist_ok=True)
        link = ["cp", "-al", os.path.dirname(template.root), str(place)]
        await asyncio.to_thread(subprocess.run, link, check=True)
        try:
            await steps(machine)
        finally:
            await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(place / template.digest)], check=True)

    on_a_machine(prepared)


async def computer(
    machine: Machine, name: str, agent: str, snapshot_id: str | None = None, *, limits: Limits = LIMITS
) -> BoxLife:
    spec = SandboxSpec(agent_id=agent, template="debian", snapshot=snapshot_id, limits=limits)
    await machine.create(name, spec, session_id=f"session-{name}")
    return await machine.life(name)


async def said(machine: Machine, name: str, line: str) -> str:
    done: Outcome = await run(await machine.box(name), line, user="root", timeout_s=120, patience_s=200)
    assert done.result.exit_code == 0, (done.stdout, done.stderr)
    return done.stdout


@pytest.mark.req("T4.65", "T4.67", "T4.69")
def test_a_system_goes_back_and_forks_keep_its_owners_and_none_of_its_identity(template: Template) -> None:
    async def steps(machine: Machine) -> None:
        life = await computer(machine, "one", "agent")
        identity = await said(machine, "one", "cat /etc/machine-id")
        await said(machine, "one", SPOIL)
        facts = await said(machine, "one", FACTS)
        assert len((await said(machine, "one", CANARIES)).split()) == 4
        live = await machine.snapshots.take(HOME, PLAIN)  # its files are copied
        assert live.was_live and live.system is not None and live.system.template_sha256 == template.digest
        assert {"identity", "system_logins"} <= set(live.left_out)
        await said(machine, "one", "echo state-two > /var/state; rm /usr/bin/mine; touch /usr/bin/less; chown 0:0 ~")
        await life.end()
        at_rest = await machine.snapshots.take(HOME, PLAIN)  # its layer is sealed

        again = await computer(machine, "one-again", "agent")
        assert await said(machine, "one-again", "cat /etc/machine-id") == identity  # itself keeps it
        assert (await said(machine, "one-again", "cat /var/state; ls /usr/bin/less")).split() == [
            "state-two",
            "/usr/bin/less",
        ]
        with pytest.raises(WrongState):
            await machine.snapshots.reset(HOME, live.snapshot_id)
        await again.end()
        kept = await machine.snapshots.reset(HOME, live.snapshot_id)
        assert kept is not None and kept.system is not None
        back = await computer(machine, "back", "agent")
        assert await said(machine, "back", FACTS) == facts
        assert await said(machine, "back", CANARIES) == ""
        first = await said(machine, "back", "cat /etc/machine-id")
        host_keys = {await said(machine, "back", HOST_KEY)}
        await back.end()

        for number, snapshot in enumerate((live, at_rest)):
            fork = await computer(machine, f"fork-{number}", f"fork-{number}", snapshot.snapshot_id)
            seen = await said(machine, f"fork-{number}", FACTS if snapshot is live else "cat /var/state; id worker")
            assert seen == facts if snapshot is live else seen.startswith("state-two\n")
            assert await said(machine, f"fork-{number}", CANARIES) == ""
            its_own = await said(machine, f"fork-{number}", "cat /etc/machine-id")
            assert its_own not in (identity, first) and len(its_own) == 33
            host_keys.add(await said(machine, f"fork-{number}", HOST_KEY))
            await said(machine, f"fork-{number}", "echo forked > /var/state; chown worker /var/pipe; touch ~/mine")
            if snapshot is live:
                report = await fork.report()
                assert report.boundary_weakened == ()
            await fork.end()
        assert len(host_keys) == 3 and all(key.startswith("600 root\nssh-ed25519 ") for key in host_keys)
        user, _ = machine.systems.user_of("workspace/agent") or (0, 0)
        written = Path(machine.layers.stacking(machine.systems.stack_of("workspace/fork-0") or "", "").upper)
        for path in written.rglob("*"):  # none of it is the first one's
            assert path.lstat().st_uid not in (user, *range(range_of(user), range_of(user + 1)))
        emptied = await machine.snapshots.reset(HOME, None)
        assert emptied is not None and emptied.system is not None
        fresh = await computer(machine, "fresh", "agent")
        changed = "for one in /usr/bin/mine /var/state /etc/skel/this; do test ! -e $one || echo $one; done"
        assert await said(machine, "fresh", f"ls /usr/bin/less; {changed}") == "/usr/bin/less\n"
        assert (await run(await machine.box("fresh"), "test -e /var/state")).result.exit_code == 1
        assert await said(machine, "fresh", "cat /etc/machine-id") != first
        await fresh.end()
        await machine.snapshots.reset(HOME, emptied.snapshot_id, discard=True)
        taken_back = await computer(machine, "taken-back", "agent")
        assert await said(machine, "taken-back", FACTS) == facts
        await taken_back.end()

    with_the_template(template, steps)


def of(point: SnapshotPoint | WorkspacePoint | None) -> SystemPoint:
    return SystemPoint(of=point)


@pytest.mark.req("T4.65", "T4.69")
def test_a_system_is_compared_and_read_where_nothing_runs_and_long_ones_are_flattened(template: Template) -> None:
    async def steps(machine: Machine) -> None:
        snapshots, points = machine.snapshots, []
        with pytest.raises(NotFound):
            await snapshots.changes(of(None), of(None), limit=10)
        life = await computer(machine, "one", "agent")
        await said(machine, "one", "rm /usr/bin/less; echo one > /var/one; install -m 600 /dev/null /var/hidden")
        points.append(SnapshotPoint(snapshot_id=(await snapshots.take(HOME, PLAIN)).snapshot_id))
        await said(machine, "one", "rm -r /etc/skel; mkdir /etc/skel; echo two > /var/one; chown 1:1 /usr/bin/env")
        with pytest.raises(WrongState):
            await snapshots.ask(of(HOME), ReadFile(path="var/one"))
        await life.end()
        page = await snapshots.changes(of(None), of(points[0]), limit=1000)
        told = {one.path: one.change for one in page.changes}
        assert (told["usr/bin/less"], told["var/one"]) == ("deleted", "added") and "etc/machine-id" not in told
        now = await snapshots.changes(of(points[0]), of(HOME), limit=1000)
        told = {one.path: one.change for one in now.changes if not one.path.startswith(("etc/machine-id", "var/lib"))}
        assert (
            told["var/one"] == "changed" and told["usr/bin/env"] == "metadata" and told["etc/skel/.bashrc"] == "deleted"
        )
        assert "usr/bin/less" not in told
        for point, text in ((of(points[0]), b"one\n"), (of(HOME), b"two\n")):
            assert (await snapshots.ask(point, ReadFile(path="var/one"))).content == text
            names = {one.path for one in (await snapshots.ask(point, ListDirectory(path="usr/bin"))).entries}
            assert "usr/bin/env" in names and "usr/bin/less" not in names
        found = await snapshots.ask(of(points[0]), SearchFiles(path="var", pattern="^one$", budget_s=20))
        assert [one.path for one in found.matches] == ["var/one"]
        with pytest.raises(ColdframeError):  # it is read as `user` reads it
            await snapshots.ask(of(points[0]), ReadFile(path="var/hidden"))

        fork = await computer(machine, "fork", "fork", points[0].snapshot_id)
        await said(machine, "fork", "cat /var/one")
        await fork.end()
        made = await snapshots.take(FORK, PLAIN)
        told = {
            one.path for one in (await snapshots.changes(of(points[0]), of(at(made.snapshot_id)), limit=1000)).changes
        }
        assert not told & {"var/one", "usr/bin/env", "usr/bin/less", ""}  # other users outside, and the same inside

        stack_id = machine.systems.stack_of("workspace/agent")
        assert stack_id is not None
        for number in range(3):
            upper = Path(machine.layers.stacking(stack_id, "").upper)
            (upper / f"made-{number}").mkdir()
            await snapshots.take(HOME, PLAIN)
        below = machine.systems.below(template.digest)
        assert machine.layers.flatten(stack_id, at=2, below=below) and len(machine.layers.stack(stack_id).layers) == 2
        again = await computer(machine, "again", "agent")
        assert await said(
            machine, "again", "cat /var/one; ls -A /etc/skel; ls -d /made-*; stat -c %u /usr/bin/env"
        ) == ("two\n/made-0\n/made-1\n/made-2\n1\n")
        assert await said(machine, "again", "test ! -e /usr/bin/less; ls /usr/bin | grep -c ^less$ || true") == "0\n"
        await again.end()
        await snapshots.remove(points[0].snapshot_id)
        for agent_id in ("agent", "fork"):
            await machine.delete_workspace(agent_id)
        with pytest.raises(WrongState, match="snapshot "):  # what is left of them needs it
            await machine.templates.remove(template.digest)

    with_the_template(template, steps)


def test_a_system_is_waited_for_until_what_is_left_of_the_sandbox_that_ended_lets_go_of_it(template: Template) -> None:
    async def steps(machine: Machine) -> None:
        life = await computer(machine, "one", "agent")
        await said(machine, "one", "echo kept > /var/state")
        (occupant,) = machine.occupants(HOME)
        keeper = occupant.box.mark.pid
        os.kill(keeper, signal.SIGSTOP)  # it goes a little later than all that ran in the box
        try:
            await life.end()
            reading = asyncio.ensure_future(machine.snapshots.ask(of(HOME), ReadFile(path="var/state")))
            await asyncio.wait({reading}, timeout=0.3)
            assert not reading.done()
        finally:
            os.kill(keeper, signal.SIGCONT)
        assert (await reading).content == b"kept\n"

    with_the_template(template, steps)


@pytest.mark.req("T4.69")
def test_the_disk_limit_counts_what_was_written_before_a_snapshot_and_not_what_is_hidden_since(
    template: Template,
) -> None:
    async def steps(machine: Machine) -> None:
        life = await computer(machine, "one", "agent", limits=Limits(disk_mib=24))
        await said(
            machine, "one", "mkdir -m 700 /var/mine; head -c 9000000 /dev/urandom > /var/mine/a; cp -r /var/mine /opt"
        )
        await life.end()
        await machine.snapshots.take(HOME, PLAIN)
        life = await computer(machine, "two", "agent", limits=Limits(disk_mib=24))
        ended = await run(await machine.box("two"), "head -c 9000000 /dev/urandom > ~/b; sleep 60", timeout_s=120)
        assert ended.result.limit is not None and ended.result.limit.kind == "disk"
        await said(machine, "two", "rm -r ~/b /var/mine; head -c 9000000 /dev/urandom > /opt/mine/a; ls /opt")
        await life.end()
        taken = await machine.snapshots.take(HOME, PLAIN)
        life = await computer(machine, "three", "fork", taken.snapshot_id, limits=Limits(disk_mib=24))
        written = "head -c 9000000 /dev/urandom > ~/c; ls ~; head -c 9000000 /dev/urandom > ~/d; sleep 60"
        ended = await run(await machine.box("three"), written, timeout_s=120)
        assert "c" in ended.stdout.split() and ended.result.limit is not None and ended.result.limit.kind == "disk"
        await life.end()

    with_the_template(template, steps)


def test_after_a_restart_a_system_is_there_and_what_a_kill_left_of_one_is_not(template: Template) -> None:
    """A workspace of layers has no directory while it is not mounted, which is no sign that it is gone."""

    async def steps(other: Machine) -> None:
        data = str(Path(other.workspaces.of_agent("x")).parents[2] / "data-again")
        machine = Machine(data, embedded=True)
        place = Path(data, "templates")
        place.mkdir(mode=0o711, exist_ok=True)
        await asyncio.to_thread(subprocess.run, ["cp", "-al", os.path.dirname(template.root), str(place)], check=True)
        try:
            life = await computer(machine, "one", "agent")
            await said(machine, "one", "echo one > /var/state; : > /etc/machine-id")  # as a kill while it is made
            await life.end()
            taken = await machine.snapshots.take(HOME, PLAIN)
            machine.layers.create("system", mode=0o755)  # whoever made it was killed before it was on record
            machine.systems.fork("workspace/never", taken.snapshot_id, (2_059_999, 2_059_999))
        finally:
            await machine.close()
        assert not Path(data, "workspace", "agent").exists()
        again = Machine(data, embedded=True)
        try:
            await again.sweep(keep_boxes=set(), keep_sessions=set())
            assert again.systems.names() == ["workspace/agent"]
            kinds = [one.kind for one in again.layers.stacks()]
            assert sorted(kinds) == ["home", "system"]
            life = await computer(again, "one-again", "agent")
            assert await said(again, "one-again", "test -s /etc/machine-id; cat /var/state") == "one\n"
            await life.end()
            record = Path(data, "host", "systems", "workspace+agent.json")
            left = record.read_text()
            await again.delete_workspace("agent")
            record.write_text(left)  # its removal was broken off, and somebody has that name again
            await again.create_workspace("agent")
            assert again.systems.names() == []
            await again.delete_workspace("agent")
            await again.snapshots.remove(taken.snapshot_id)
            again.layers.collect()
            assert os.listdir(f"{data}/layers/trees") == []
            await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(place / template.digest)], check=True)
        finally:
            await again.close()

    on_a_machine(steps)
