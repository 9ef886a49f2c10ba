"""A sandbox with a system of its own: root inside who is nobody outside, changes that stay with the workspace, and every wall."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import (
    ColdframeError,
    DeniedByRule,
    IsolationUnavailable,
    NotInProfile,
    PermissionDenied,
    WrongState,
)
from coldframe.contract.isolation import FirstProcess
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.guest.rows import NUMBERS
from coldframe.host import confine
from coldframe.host.box_view import Seen, View
from coldframe.host.isolation.own_system import (
    CAPABILITIES,
    COUNT,
    HELD,
    HELD_BY_KEEPER,
    make_users,
    trust_no_modules,
    users_inside,
)
from coldframe.host.limits import SPARE_PROCESSES
from coldframe.host.machine import Machine
from coldframe.host.registries import read_registry_settings
from coldframe.host.sandbox_users import FIRST_UID as FIRST_USER
from coldframe.host.system_report import OwnSystem
from coldframe.host.templates import systems
from coldframe.host.templates.id_range import FIRST_UID, IdRange, own_range
from coldframe.host.templates.store import Template
from coldframe.host.templates.systems import judge_ability
from coldframe.policy.network_rules import PackageKind
from tests import ordinary
from tests.host.forked import in_child
from tests.host.machines import on_a_machine, run
from tests.host.test_real_registries import reason_not_to
from tests.installation import Installation
from tests.promises.raw import all_entries

pytestmark = pytest.mark.timeout(900)  # whoever comes first waits for the template to be built
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
PATIENCE_S = 200
PR_SET_DUMPABLE = 4
STRANGER = 65533
"""Who has nothing to do with any installation."""
FIRST = FirstProcess(
    seccomp_mode=2,
    seccomp_filters=1,
    filter_sha256=None,
    no_new_privileges=True,
    capabilities={},
    uid_map=(),
    gid_map=(),
)


class Ids(NamedTuple):
    """Users of the host."""

    of_root: range
    of_user: range


NO_RULES = "version: 1\n"


@pytest.fixture
def host_ids(installed: Installation) -> Ids:
    """Whose the files are that root of a box and `user` make."""
    owner = os.stat(installed.data_dir).st_uid
    if owner == 0:
        return Ids(range(FIRST_UID, 1 << 32), range(FIRST_USER, FIRST_UID))
    first = own_range().first_uid if os.geteuid() != 0 else ordinary.FIRST
    return Ids(range(first, first + COUNT), range(owner, owner + 1))


@pytest.fixture
def client(installed: Installation) -> Iterator[SyncColdframe]:
    with SyncColdframe(installed.url, installed.token) as client:
        yield client
        client.policy.load(NO_RULES)


def said(sandbox: SyncSandbox, line: str, *, user: str = "root") -> str:
    answer = sandbox.run_command(line, user=user, timeout_s=PATIENCE_S)
    assert answer.exit_code == 0, answer
    return str(answer.stdout)


def test_root_changes_the_system_and_that_stays_with_the_agent(client: SyncColdframe, installed: Installation) -> None:
    with client.sandboxes.create("durable", template="debian") as first:
        assert said(first, "id -un; id -u; pwd; echo $HOME").split() == ["root", "0", "/home/user", "/root"]
        assert said(first, "id -un; id -u; echo $HOME", user="user").split() == ["user", "1000", "/home/user"]
        assert first.run_command("touch /usr/bin/mine").exit_code != 0
        said(first, "printf '#!/bin/sh\\necho changed\\n' > /usr/bin/mine; chmod 755 /usr/bin/mine; rm /usr/bin/less")
        said(first, "useradd -m worker; echo text > /home/user/of-root.txt; chown user: /home/user/of-root.txt")
        assert said(first, "su worker -c 'id -un; mine'").split() == ["worker", "changed"]
        assert first.read_file("of-root.txt").content == "text\n"
        said(first, "python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 80))'")
        first.stop()
        first.start_again()
        assert said(first, "mine; id -un worker; test ! -e /usr/bin/less; ls /tmp", user="user").split() == [
            "changed",
            "worker",
        ]
        with pytest.raises(WrongState, match="another sandbox of the agent uses its system"):
            client.sandboxes.create("durable", template="debian")
    with client.sandboxes.create("durable", template="debian") as second:
        assert said(second, "mine", user="user") == "changed\n"
    with client.sandboxes.create("durable") as plain:  # the same files, and the system of the host
        assert plain.run_command("mine").exit_code == 127 and plain.read_file("of-root.txt").content == "text\n"
    with client.sandboxes.create("other", template="debian") as other:
        assert other.run_command("mine").exit_code == 127 and said(other, "ls /usr/bin/less")
    own = {"workspace+durable.json", "workspace+other.json"}  # agents of other tests have theirs beside these
    assert own <= set(os.listdir(f"{installed.data_dir}/host/systems"))
    client.agents.delete("durable")
    assert own & set(os.listdir(f"{installed.data_dir}/host/systems")) == {"workspace+other.json"}
    with client.sandboxes.create("durable", template="debian") as anew:
        assert anew.run_command("mine").exit_code == 127


def test_whom_a_command_runs_as_is_judged_recorded_and_offered_only_here(client: SyncColdframe) -> None:
    rule = "{id: no-root, hook: PRE_TOOL_CALL, when: {user: root, program: rm}, then: deny, reason: not as root}"
    with client.sandboxes.create("judged", template="debian") as sandbox:
        assert sandbox.info.spec.profile == "computer"
        said(sandbox, "true")
        started = [one for one in all_entries(client, kinds=["call.started"]) if one.body["sandbox_id"] == sandbox.id]
        assert [one.body["inputs"]["user"] for one in started] == ["root"]
        assert started[0].body["context"]["user"] == "root"
        told = sandbox.contract()
        contract = {one["id"]: one["value"] for part in ("execution", "persistence") for one in told[part]}
        assert contract["execution.users"] == ["user", "root"] and len(contract["execution.template_digest"]) == 64
        assert contract["persistence.system"]["owner"] == "workspace"
        assert contract["persistence.system"]["events"]["stopped_and_started"] == "kept"
        client.policy.load(f"version: 1\nrules:\n  - {rule}\n")
        with pytest.raises(DeniedByRule):
            sandbox.run_command("rm /tmp/nothing", user="root")
        assert sandbox.run_command("rm -f /tmp/nothing").exit_code == 0
    with client.sandboxes.create("plain") as plain, pytest.raises(NotInProfile) as refused:
        plain.run_command("id", user="root")
    assert "template: debian" in refused.value.advice


def test_the_report_says_who_root_is_and_every_wall_stands(client: SyncColdframe, host_ids: Ids) -> None:
    with client.sandboxes.create("reported", template="debian") as sandbox:
        job = sandbox.start("sleep 1000", user="root")
        report = sandbox.report()
        walls = {one.name: one for one in report.properties}
        assert {name for name, one in walls.items() if one.required and one.state != "enforced"} == set()
        assert {"system_users", "system_private", "capabilities", "host_uid", "seccomp"} <= walls.keys()
        assert walls["system_read_only"].state == "absent"
        assert ", ".join(CAPABILITIES) in walls["capabilities"].mechanism
        assert report.template_sha256 and report.boundary_weakened == ()
        assert [one.source for one in report.mounts if one.target == "/"] == ["layer"]
        assert report.first_process is not None
        (zero, first, _), (inside, user, count), _ = report.first_process.uid_map
        assert (zero, inside, count) == (0, 1000, 1) and first in host_ids.of_root and user in host_ids.of_user
        shared = [one for one in report.sentences if "have the same users on the host" in one]
        assert bool(shared) == bool(walls["system_users"].caveat) == (len(host_ids.of_user) == 1)
        seen = said(sandbox, "cat /proc/self/status; cat /proc/self/uid_map")
        sets = {line.split()[0]: int(line.split()[1], 16) for line in seen.splitlines() if line.startswith("Cap")}
        assert sets == {"CapInh:": 0, "CapPrm:": HELD, "CapEff:": HELD, "CapBnd:": HELD, "CapAmb:": 0}
        of_user = said(sandbox, "grep -E 'Cap(Prm|Eff|Inh|Amb)' /proc/self/status", user="user")
        assert {line.split()[1] for line in of_user.splitlines()} == {"0" * 16}
        job.signal(9)


def test_who_is_not_its_program_yet_is_no_process_with_too_many_rights() -> None:
    """It has those of the keeper until then, and anybody inside can stop it there: that must not pass for a wall that is down."""
    rights = {"PPid": "0", "CapInh": "0", "CapPrm": f"{HELD_BY_KEEPER:x}", "CapEff": "0", "CapBnd": "0", "CapAmb": "0"}
    keeper = Seen("the keeper", {**rights, "Pid": str(os.getpid())}, None, True)
    other = subprocess.Popen(["sleep", "1000"])
    waits, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(waits, 1)
        os._exit(0)
    try:

        def wrong(pid: int, **more: str) -> list[str]:
            one = Seen(f"{pid} of the box", {**rights, **more}, None, True)
            view = View((one,), True, keeper, False, {}, {}, FIRST, {}, (), "")
            return OwnSystem(os.getpid(), "", view).capabilities()[0]

        assert wrong(child) == []
        assert wrong(other.pid) != []  # the same said by another program
        assert wrong(child, PPid="1") != [] and wrong(child, CapPrm="1fffffffff") != []
    finally:
        os.close(go)
        os.waitpid(child, 0)
        other.kill()
        other.wait()


REFUSED = {
    "a device": "mknod /var/device b 8 0",
    "a device in memory": "mknod /tmp/device c 1 1",
    "a mount": "python3 -c 'import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
    'os._exit(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0)\' && false',
    "another root": "chroot / true",
    "a user namespace": "unshare -U true",
    "a mount namespace": "unshare -m true",
    "the namespaces of the first process": "nsenter -t 1 -m true",
    "a key": "python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall(250, 0, -3, 0, 0, 0) < 0)'",
    "a kernel setting": "sh -c 'echo 1 > /proc/sys/kernel/sysrq'",
    "a setting of its network": "sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'",
    "an address": "ip link add one type dummy",
    "another host name": "hostname other",
    "the end of the first process": "kill -9 1 && sleep 0.2 && ! kill -0 1",
    "the history": "sh -c 'echo x >> /home/user/.exec_history'",
    "the name of the history": "mv /home/user/.exec_history /home/user/other",
    "what stands for it": "rm -f /opt/coldframe/sleep",
    "a way around a wall": "umount /proc/sys",
    "memory of the first process": "head -c 1 /proc/1/mem",
    "raw sockets": "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    "a right by set-uid": "cp /usr/bin/id /var/setuid && chmod 4755 /var/setuid && su user -c /var/setuid | grep -q euid=0",
    "a right by a file": "setcap cap_net_admin+ep /usr/bin/env",
}


def test_root_inside_gets_past_no_wall(client: SyncColdframe) -> None:
    with client.sandboxes.create("walls", template="debian") as sandbox:
        done = []
        for name, line in REFUSED.items():
            sandbox.write_file("probe", line)  # by its text the gate would deny some of them before
            if sandbox.run_command(["bash", "probe"], user="root").exit_code == 0:
                done.append(name)
        assert done == []
        assert said(sandbox, "cat /proc/sys/kernel/ostype") == "Linux\n"


def test_what_root_makes_is_reached_by_nobody_on_the_host(
    client: SyncColdframe, installed: Installation, host_ids: Ids
) -> None:
    with client.sandboxes.create("made", template="debian") as sandbox:
        said(sandbox, "cp /bin/sh /usr/bin/canary-of-root; chmod 4755 /usr/bin/canary-of-root; touch /home/user/f")
        found = list(Path(installed.data_dir, "layers").rglob("canary-of-root"))
        assert len(found) == 1 and found[0].stat().st_uid in host_ids.of_root
        assert os.stat(os.path.join(installed.data_dir, "layers")).st_mode & 0o077 == 0
        assert os.stat(os.path.join(installed.data_dir, "workspace", "made")).st_mode & 0o077 == 0
        if os.geteuid() != 0:
            return
        stranger = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
        for path in (str(found[0]), os.path.join(installed.data_dir, "workspace", "made", "f")):
            assert subprocess.run(["test", "-e", path], **stranger).returncode == 1  # type: ignore[call-overload]
        assert str(installed.data_dir) not in said(sandbox, "grep ' / / ' /proc/self/mountinfo | grep overlay")


def test_a_workspace_whose_directory_root_gave_away_is_its_users_again(client: SyncColdframe, host_ids: Ids) -> None:
    with client.sandboxes.create("giver", template="debian") as sandbox:
        said(sandbox, "chown 0:0 /home/user; chmod 0 /home/user")
        with client.sandboxes.create("taker") as taker:
            assert sandbox.report().first_process is not None and taker.report().first_process is not None
            mine, others = sandbox.report().first_process, taker.report().first_process
            assert mine is not None and others is not None
            apart = others.uid_map[0][1] not in [row[1] for row in mine.uid_map]
            assert apart == (len(host_ids.of_user) > 1)
        sandbox.stop()
        sandbox.start_again()
        assert said(sandbox, "stat -c %U /home/user; touch /home/user/mine", user="user") == "user\n"


def test_root_of_one_box_reaches_nothing_of_another_that_may_have_the_same_users(client: SyncColdframe) -> None:
    with client.sandboxes.create("left", template="debian") as left:
        job = left.start("echo begun; sleep 1000", user="root")
        next(iter(job.follow()))
        with client.sandboxes.create("right", template="debian") as right:
            assert "sleep 1000" not in said(right, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            right.run_command("kill -9 -1", user="root")
            assert said(right, "id -u") == "0\n"
        assert "sleep 1000" in said(left, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        job.signal(9)


def test_what_root_has_made_goes_with_the_agent(client: SyncColdframe, installed: Installation) -> None:
    layers = Path(installed.data_dir, "layers")
    before = {name: os.listdir(layers / name) for name in ("trees", "drafts", "gone")}
    with client.sandboxes.create("leaver", template="debian") as sandbox:
        said(
            sandbox,
            "mkdir -m 700 /var/closed ~user/closed; touch /var/closed/f ~user/closed/f; chown 12:34 ~user/closed",
        )
        said(sandbox, "chmod 0 ~user/closed; chown 0:0 ~user; chmod 0 ~user")
    client.agents.delete("leaver")
    assert {name: os.listdir(layers / name) for name in before} == before
    assert not [name for name in os.listdir(Path(installed.data_dir, "workspace")) if "leaver" in name]


def test_a_snapshot_has_what_root_made_in_the_workspace_or_says_what_keeps_it_from_that(
    client: SyncColdframe, host_ids: Ids
) -> None:
    with client.sandboxes.create("recorded", template="debian") as sandbox:
        said(sandbox, "umask 077; echo text > ~user/closed")
        sandbox.stop()
        if len(host_ids.of_user) == 1:
            with pytest.raises(PermissionDenied, match="`closed`") as refused:
                sandbox.take_snapshot()
            assert "chown -R user:" in refused.value.advice
            sandbox.start_again()
            said(sandbox, "chown user: ~user/closed")
            sandbox.stop()
        taken = sandbox.take_snapshot()
        assert (taken.system is None) == (len(host_ids.of_user) == 1)
        if taken.system is None:
            with pytest.raises(IsolationUnavailable, match="no part in snapshots"):
                sandbox.reset(to=taken.snapshot_id)


FORKS = """
import os
waits, go = os.pipe()
begun = 0
try:
    for user in range(3000, 3100):
        os.setresuid(user, user, 0)
        for _ in range(20):
            if os.fork() == 0:
                os.close(go)
                os.read(waits, 1)
                os._exit(0)
            begun += 1
        os.setresuid(0, 0, 0)
except OSError:
    pass
print(begun)
"""


def test_limits_hold_for_all_users_together_that_root_becomes(client: SyncColdframe) -> None:
    with client.sandboxes.create(
        spec=SandboxSpec(agent_id="many", template="debian", limits=Limits(memory_mib=256, pids=48))
    ) as sandbox:
        sandbox.write_file("forks.py", FORKS)
        assert 10 < int(said(sandbox, "python3 forks.py")) <= 48 + SPARE_PROCESSES
        greedy = "python3 -c 'held = bytearray(512 << 20); import time; time.sleep(60)'"
        ended = sandbox.run_command(f"setpriv --reuid 1234 --clear-groups {greedy}", user="root", timeout_s=60)
        assert ended.limit is not None and ended.limit.kind == "memory"


def test_the_disk_limit_holds_for_system_and_workspace_together(client: SyncColdframe) -> None:
    spec = SandboxSpec(agent_id="filler", template="debian", limits=Limits(disk_mib=24))
    with client.sandboxes.create(spec=spec) as sandbox:
        said(sandbox, "mkdir -m 700 /var/hidden; head -c 15000000 /dev/zero > /var/hidden/a", user="root")
        ended = sandbox.run_command("head -c 15000000 /dev/zero > /home/user/b; sleep 60", user="root")
        assert ended.limit is not None and ended.limit.kind == "disk"
        said(sandbox, "rm -rf /var/hidden /home/user/b")
        ended = sandbox.run_command(
            "exec 3>/var/a 4>/var/b; rm /var/a /var/b; head -c 15000000 /dev/zero >&3; head -c 15000000 /dev/zero >&4; "
            "sleep 60",
            user="root",
        )
        assert ended.limit is not None and ended.limit.kind == "disk"


@pytest.mark.req("T4.18")
def test_a_package_is_installed_by_apt_through_the_broker_and_stays(client: SyncColdframe) -> None:
    if reason := reason_not_to(PackageKind.DEBIAN):
        pytest.skip(reason)
    client.policy.load("version: 1\nnetwork:\n  use: {'*': packages}\n")
    with client.sandboxes.create("installer", template="debian") as sandbox:
        said(sandbox, "apt-get update && apt-get install -y --no-install-recommends hello")
        assert said(sandbox, "hello", user="user") == "Hello, world!\n"
        archive = next(one for one in read_registry_settings(os.environ, "/root").all if one.kind is PackageKind.DEBIAN)
        line = f"curl -sS -o /dev/null -w '%{{http_code}}' {archive.address}"
        assert [said(sandbox, line + path) for path in ("../other/", "pool/none")] == ["403", "404"]
        asked = [one for found in sandbox.network_log(limit=1000).contacts for one in found.contact.requests]
        told = {(one.package.kind, one.package.name) for one in asked if one.package is not None}
        assert ("debian", "hello") in told
    with client.sandboxes.create("installer", template="debian") as later:
        assert said(later, "hello", user="user") == "Hello, world!\n"


@as_root
def test_what_cannot_be_had_is_refused_with_what_to_do(template: Template) -> None:
    async def steps(machine: Machine) -> None:
        async def refusal(**more: object) -> ColdframeError:
            spec = SandboxSpec.model_validate({"agent_id": "agent", "template": "debian", **more})
            with pytest.raises(ColdframeError) as refused:
                await machine.create("box", spec, session_id="session")
            return refused.value

        missing = await refusal()
        assert isinstance(missing, IsolationUnavailable) and "coldframe setup" in missing.advice
        assert missing.facts["property"] == "template"
        assert (await refusal(denied_programs=["nc"])).facts["property"] == "denied_programs"
        await machine.create("box", SandboxSpec(agent_id="agent"), session_id="session")
        assert (await run(await machine.box("box"), "id -un")).stdout == "user\n"

    on_a_machine(steps)
    for wrong in ({"template": "host", "profile": "computer"}, {"template": "debian", "profile": "exec"}):
        with pytest.raises(ValueError, match="there is no profile"):
            SandboxSpec.model_validate({"agent_id": "agent", **wrong})
    with pytest.raises(ValueError, match="runtimes"):
        SandboxSpec.model_validate({"agent_id": "agent", "template": "debian", "runtimes": ["deno"]})


def test_a_keeper_of_such_a_box_imports_nothing_more() -> None:
    def steps() -> None:
        trust_no_modules()
        with pytest.raises((ImportError, ImportWarning)):
            importlib.import_module("wave")
        assert "é".encode("latin-1").decode("latin-1") == "é" and b"a".decode("ascii") == "a"

    in_child(steps)


def test_who_becomes_root_hides_the_memory_that_it_shares_with_the_keeper_before_it_gives_rights_away() -> None:
    """To become another user shows it on machines whose `fs.suid_dumpable` says so; until then nobody inside may trace it."""
    numbers, made = NUMBERS[os.uname().machine], [call.words[:3] for call in users_inside()["root"].become]  # type: ignore[attr-defined]
    assert made[-3:-1] == [(numbers["setresuid"], 0, 0), (numbers["prctl"], PR_SET_DUMPABLE, 0)]
    assert made[-1][0] == numbers["capset"]


@as_root
def test_without_control_groups_the_limit_of_processes_is_of_all_users_inside_together() -> None:
    """Each process has a limit that counts one user's, and root inside can be any."""
    first, own, most = (FIRST_UID + 65_536 * 50_000,) * 2, (FIRST_USER + 49_999,) * 2, 10

    def steps() -> None:
        users = make_users(first, own, most_processes=most)
        os.setgroups([])
        for space in users:
            confine.setns(space, "user")
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        waits, go = os.pipe()
        begun: list[int] = []
        with pytest.raises(BlockingIOError):
            for uid in range(2000, 2000 + 2 * most):
                os.setresuid(uid, uid, 0)
                pid = os.fork()
                if pid == 0:
                    os.close(go)
                    os.read(waits, 1)
                    os._exit(0)
                begun.append(pid)
                os.setresuid(0, 0, 0)
        os.close(go)
        for pid in begun:
            os.waitpid(pid, 0)
        assert most // 2 <= len(begun) <= most

    in_child(steps)


POISON = "import os\nos.open('/var/poisoned', os.O_CREAT | os.O_WRONLY)\nraise ImportError\n"


def test_nothing_outside_of_commands_runs_what_root_has_put_in_the_system(client: SyncColdframe) -> None:
    with client.sandboxes.create("poisoner", template="debian") as sandbox:
        sandbox.write_file("poison.py", POISON)
        said(
            sandbox,
            "for file in /usr/lib/python3.*/*.py /usr/lib/python3.*/encodings/*.py; do cp poison.py $file; done; "
            "printf '#!/bin/sh\\ntouch /var/poisoned\\n' > /usr/bin/git; cp /usr/bin/git /usr/bin/perl; touch /var/begun",
        )
        for _ in range(2):
            assert {one.name: one.version for one in sandbox.runtimes()}["git"] is None
            sandbox.edit_file("poison.py", "import os", "import sys")
            sandbox.edit_file("poison.py", "import sys", "import os")
            sandbox.search_files("ImportError")
            sandbox.list_directory("", recursive=True)
            assert sandbox.processes() == [] and sandbox.report().boundary_weakened == ()
            job = sandbox.start(
                "read line; echo got $line; ls /nowhere", stdin_open=True, user="root", shell_session=None
            )
            job.send_stdin("one\n")
            assert job.wait().result is not None
            assert sandbox.run_command("cd scratch; echo here", shell_session="mine").stdout == "here\n"
            assert sandbox.run_command("tty", pty=True, user="root").exit_code == 0
            assert said(sandbox, "ls /var", user="root").split().count("begun") == 1
            assert "poisoned" not in said(sandbox, "ls /var")
            sandbox.stop()
            sandbox.start_again()


def test_links_that_root_leaves_lead_nowhere_when_the_box_is_built_again(client: SyncColdframe, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with client.sandboxes.create("linker", template="debian") as sandbox:
        said(
            sandbox,
            "cp -a /opt /opt2 2>/dev/null; mv /etc /etc2 && mkdir /etc && cp -a /etc2/. /etc/ 2>/dev/null; rm -rf /etc/pip.conf; "
            f"mkdir -p /made; mv /opt /made/opt; ln -s /oldroot{tmp_path} /opt; ln -s /oldroot{tmp_path}/pip /etc/pip.conf; true",
        )
        sandbox.stop()
        sandbox.start_again()
        assert os.listdir(tmp_path) == []
        assert said(sandbox, "test -d /opt/coldframe/bin && test ! -L /opt && cat /proc/1/comm") == "sleep\n"
        report = sandbox.report()
        assert report.boundary_weakened == () and all(
            one.state == "enforced" for one in report.properties if one.required
        )


def test_doctor_tells_whether_such_a_system_can_be_had_and_if_not_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    is_able = os.geteuid() == 0 or ordinary.why_not() is None
    assert (judge_ability().state, judge_ability().remedy is None) == ("enforced" if is_able else "absent", is_able)

    def refuse() -> IdRange:
        raise IsolationUnavailable("none", hint="add a line")

    monkeypatch.setattr(systems, "own_range", refuse)
    told = judge_ability()
    assert (told.name, told.state, told.remedy, told.required) == ("own_system", "absent", "add a line", False)


def test_setup_builds_once_and_says_what_it_takes(installed: Installation, template: Template) -> None:
    done = installed.cli("--json", "setup", "--data-dir", installed.data_dir)
    told = json.loads(done.stdout)
    assert (told["digest"], told["release"], told["packages"]) == (
        template.digest,
        template.release,
        len(template.packages),
    )


@as_root
def test_without_subordinate_ids_setup_is_refused_with_the_line_that_gives_some(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "coldframe.cli", "--json", "setup", "--data-dir", "/tmp/nobody-has-this"]
    stranger = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
    refused = subprocess.run(line, capture_output=True, text=True, check=False, **stranger)  # type: ignore[call-overload]
    told = refused.stdout + refused.stderr
    assert refused.returncode == 5 and "ISOLATION_UNAVAILABLE" in told
    assert re.search(rf"`{STRANGER}:\d+:{COUNT}` to /etc/subuid and to /etc/subgid", told), told
    assert not os.path.exists("/tmp/nobody-has-this")


def test_the_command_line_makes_one_and_runs_as_root(installed: Installation, client: SyncColdframe) -> None:
    def coldframe(*words: str) -> str:
        line = [sys.executable, "-m", "coldframe.cli", "--data-dir", installed.data_dir, *words]
        return subprocess.run(
            line, capture_output=True, text=True, check=True, env=installed.environment
        ).stdout.strip()

    sandbox = coldframe("sandbox", "create", "--agent", "typist", "--template", "debian")
    try:
        assert coldframe("exec", sandbox, "--user", "root", "--", "id", "-un") == "root"
        assert coldframe("exec", sandbox, "--", "id", "-un") == "user"
    finally:
        client.sandboxes.get(sandbox).terminate()
