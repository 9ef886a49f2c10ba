"""What the report and the contract say of the walls is what the kernel says, and a wall that is gone is told and refuses.

Walls are taken away behind the product's back, in an altered copy of it (`altered.py`). Facts are compared with what
somebody else reads: from the host's /proc, and from inside.
"""

import ctypes
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox, ask
from coldframe.contract.errors import ColdframeError, catalogue
from coldframe.contract.isolation import IsolationReport, LimitReport
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.host import confine
from coldframe.host.removal import remove_tree
from tests.host import boxes
from tests.host.disks import missing, unmount_all
from tests.host.forked import in_child
from tests.host.machines import needs_bubblewrap
from tests.installation import CHECKOUT, Installation, wait_until
from tests.promises.altered import LARGE_DISKS, NO_LIMITS, WALLS, Wall, altered_copy, run_altered
from tests.promises.greed import BRIEF, GREEDY, LIMITS, PATIENCE_S
from tests.promises.raw import own_installation

pytestmark = needs_bubblewrap


@contextmanager
def passable_folder(mode: int) -> Iterator[str]:
    """A folder that the sandbox user may pass, as that of an installation must be: pytest's own are private."""
    made = tempfile.mkdtemp(prefix="cf-altered-")
    os.chmod(made, mode)
    try:
        yield made
    finally:
        remove_tree(made)


@pytest.fixture
def folder() -> Iterator[str]:
    with passable_folder(0o711) as made:
        yield made


def limit_of(report: IsolationReport, kind: str) -> LimitReport:
    return next(one for one in report.limits if one.kind == kind)


def line_of(sandbox: SyncSandbox, line_id: str) -> dict[str, Any]:
    """One line of the contract, as it is now."""
    document = sandbox.contract()
    lines = [line for section in document.values() if isinstance(section, list) for line in section]
    found: dict[str, Any] = next(line for line in lines if line["id"] == line_id)
    return found


# -- a wall that is not there ------------------------------------------------------------------------


@pytest.mark.req("T3.22")
@pytest.mark.parametrize("wall", WALLS, ids=[wall.name for wall in WALLS])
def test_a_wall_taken_away_behind_the_products_back_refuses_the_sandbox(wall: Wall, folder: str) -> None:
    # a wall is not the operator's to leave out
    ran = run_altered(
        folder, wall.replaced, "run", "--", "echo", "ran", rules=wall.rules, COLDFRAME_ON_MISSING="degrade"
    )
    assert ran.code == 5 and ran.error["code"] == "ISOLATION_UNAVAILABLE", ran.text
    told = {one["property"]: one for one in ran.error["facts"]["missing"]}
    assert wall.name in told
    assert told[wall.name]["enforced"] is False
    assert told[wall.name]["reason"] and told[wall.name]["remedy"]
    assert "ran\\n" not in ran.text
    assert os.listdir(os.path.join(folder, "data", "boxes")) == []


@pytest.mark.req("T3.22")
def test_doctor_names_what_is_missing_and_the_promise_that_is_broken_by_it(folder: str) -> None:
    wall = next(one for one in WALLS if one.name == "system_read_only")
    ran = run_altered(folder, wall.replaced, "doctor")
    assert ran.code == 5, ran.text
    report = IsolationReport.model_validate(ran.answer)
    weak = {one.name: one for one in report.properties if one.required and one.state != "enforced"}
    assert set(weak) == {"system_read_only"}
    assert weak["system_read_only"].remedy and "/ is rw" in weak["system_read_only"].evidence
    broken = {one.name: one.seen for one in report.trials if not one.held}
    assert set(broken) == {"host_files_unwritable"}
    assert "wrote /" in broken["host_files_unwritable"]


def test_doctor_measures_the_walls_and_tries_the_promises(installation: Installation) -> None:
    done = installation.cli("doctor", timeout_s=200)
    shown = done.stdout.decode()
    assert done.returncode == 0, shown
    assert "BROKEN" not in shown
    assert len(re.findall(r"^  held ", shown, re.MULTILINE)) >= 12
    assert not [name for name in os.listdir(os.path.join(installation.data_dir, "boxes")) if "doctor" in name]


def test_doctor_tells_by_what_boxes_get_a_way_out_and_why_not_by_the_other(folder: str) -> None:
    refuse = "def install(own_ip):\n    raise NotOffered('taken away by a test')\n"
    ran = run_altered(folder, {"host/egress/nftables.py": refuse}, "doctor")
    assert ran.code == 0, ran.text
    report = IsolationReport.model_validate(ran.answer)
    (wall,) = [one for one in report.properties if one.name == "network_access"]
    assert wall.state == "enforced" and "(anyip)" in wall.mechanism
    assert "taken away by a test" in wall.evidence
    assert {one.name: one.held for one in report.trials}["broker_denies"] is True


def test_doctor_tells_where_no_box_can_have_a_way_out(folder: str) -> None:
    fail = "def capture_traffic(ports, *, own_ip):\n    raise CaptureFailed('capture', 'taken away by a test')\n"
    ran = run_altered(folder, {"host/egress/capture.py": fail}, "doctor")
    report = IsolationReport.model_validate(ran.answer)
    (wall,) = [one for one in report.properties if one.name == "network_access"]
    assert wall.state == "absent" and "taken away by a test" in wall.evidence and wall.remedy
    assert {one.name: one.state for one in report.properties}["network"] == "enforced"
    assert os.listdir(os.path.join(folder, "data", "boxes")) == []


def _without_user_namespaces(data: str) -> str:
    """In a child: an installation under a kernel that gives no user namespace, as some distributions set it."""
    import asyncio

    from coldframe.contract.errors import IsolationUnavailable
    from coldframe.host.machine import Machine

    boxes.become_ordinary()
    confine.prctl("let this process write its own maps", 4, 1)
    uid, gid = os.getuid(), os.getgid()
    confine.unshare("user")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    confine.drop_all_capabilities()

    async def steps() -> str:
        machine = Machine(data, embedded=True)
        try:
            await machine.doctor()
        except IsolationUnavailable as error:
            return json.dumps({"facts": error.facts, "hint": error.advice, "boxes": os.listdir(f"{data}/boxes")})
        finally:
            await machine.close()
        return "{}"

    return asyncio.run(steps())


@pytest.mark.req("T3.22")
def test_without_user_namespaces_nothing_is_built_and_the_remedy_is_in_words(folder: str) -> None:
    os.chmod(folder, 0o777)
    told = json.loads(in_child(lambda: _without_user_namespaces(os.path.join(folder, "data"))))
    assert told["facts"]["property"] == "user_namespace"
    assert told["facts"]["missing"][0]["enforced"] is False
    assert "user.max_user_namespaces" in told["facts"]["reason"]
    assert "sysctl" in told["hint"]
    assert told["boxes"] == []


# -- a limit that is not kept ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limitless() -> Iterator[Installation]:
    """An installation that says yes to every limit and tells neither kernel nor keeper."""
    with passable_folder(0o755) as copy:
        with own_installation(PYTHONPATH=altered_copy(copy, NO_LIMITS), PYTHONSAFEPATH="1") as started:
            yield started


@pytest.mark.req("T3.22", "T3.25")
def test_limits_that_nothing_keeps_are_told_and_run_only_where_the_operator_lets_them(limitless: Installation) -> None:
    limits = Limits(memory_mib=256, pids=40, cpus=0.5, io_mib_s=5)
    with SyncColdframe(limitless.url, limitless.token) as client:
        with pytest.raises(ColdframeError) as refused:
            client.sandboxes.create(spec=SandboxSpec(agent_id="strict", limits=limits, on_missing="refuse"))
        assert refused.value.code == "ISOLATION_UNAVAILABLE"
        told = refused.value.facts["missing"]
        assert isinstance(told, list)
        assert {"limit:cpus", "limit:memory", "limit:disk", "limit:io"} <= {one["property"] for one in told}
        assert all(one["reason"] and one["enforced"] is False for one in told)
        with client.sandboxes.create(agent_id="lax", limits=limits) as sandbox:
            at_start = sandbox.report()
            assert limit_of(at_start, "cpus").strength == "unsupported"
            sleeper = sandbox.run_command("sleep 1000", background=True)
            report = sandbox.report()
            unsupported = {"pids", "cpus", "io"} | ({"memory"} if os.geteuid() == 0 else set())
            for kind in unsupported:
                found = limit_of(report, kind)
                assert (found.strength, found.supported) == ("unsupported", False), kind
                assert found.reason and found.verified_at is not None
                value = line_of(sandbox, f"isolation.limit.{kind}")["value"]
                assert (value["enforced"], value["supported"]) == (False, False)
            assert {f"limit:{kind}" for kind in unsupported} | {"limit:disk"} <= set(sandbox.refresh().degraded)
            ran = sandbox.run_command("true")
            assert set(ran.result.degraded) == set(sandbox.info.degraded)
            receipt = client.receipt(str(ran.result.receipt_id))
            assert set(receipt["degraded"]) == set(sandbox.info.degraded)
            sandbox.signal(sleeper.command_id, cancel=True)


@pytest.mark.req("T3.22", "T3.25")
@pytest.mark.parametrize("on_missing", ["refuse", "degrade"])
def test_a_disk_that_holds_more_than_it_should_is_no_limit(folder: str, on_missing: str) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    settings = {"COLDFRAME_WORKSPACE_DISK": "image", "COLDFRAME_ON_MISSING": on_missing}
    try:
        ran = run_altered(folder, LARGE_DISKS, "run", "--", "echo", "ran", **settings)
    finally:
        unmount_all(folder)
    if on_missing == "degrade":
        assert ran.code == 0 and ran.answer["degraded"] == ["limit:disk"], ran.text
        return
    assert ran.code == 5 and ran.error["code"] == "ISOLATION_UNAVAILABLE", ran.text
    (told,) = ran.error["facts"]["missing"]
    assert told["property"] == "limit:disk" and told["enforced"] is False and "a larger one" in told["reason"]


# -- the running probe -------------------------------------------------------------------------------


def test_a_report_that_finds_nothing_new_makes_no_new_contract(sandbox: SyncSandbox) -> None:
    first = sandbox.contract()
    sandbox.run_command("sleep 1000", background=True)
    sandbox.report()
    assert sandbox.contract() == first


# -- the first process, from outside -----------------------------------------------------------------

SPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")


def first_process(sandbox: SyncSandbox, installation: Installation) -> int:
    """Host's number of the box's first process: the one that the keeper's mark names."""
    path = os.path.join(installation.data_dir, "boxes", sandbox.id, "keeper.json")
    return int(json.loads(Path(path).read_text())["init"])


@pytest.mark.req("T3.24")
def test_the_report_says_of_the_first_process_what_an_outside_observer_reads(
    client: SyncColdframe, sandbox: SyncSandbox, installation: Installation
) -> None:
    report = sandbox.report()
    first = report.first_process
    pid = first_process(sandbox, installation)
    assert first is not None
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert report.kernel == "shared" and report.kernel_release == os.uname().release
    assert first.seccomp_mode == int(status["Seccomp"]) == 2
    assert first.seccomp_filters == int(status["Seccomp_filters"])
    assert first.no_new_privileges is (status["NoNewPrivs"] == "1") is True
    assert first.capabilities == {key: value for key, value in status.items() if key.startswith("Cap")}
    for name, told in (("uid_map", first.uid_map), ("gid_map", first.gid_map)):
        rows = Path(f"/proc/{pid}/{name}").read_text().splitlines()
        assert [tuple(int(word) for word in row.split()) for row in rows] == list(told)
    version = ctypes.CDLL(None).syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    assert (report.landlock_abi or -1) == version
    shown = str(sandbox.run_command("for f in /proc/self/ns/*; do readlink $f; done").stdout)
    inside = dict(line.rstrip("]").split(":[") for line in shown.splitlines())
    other = client.sandboxes.create(background=True)
    try:
        theirs = other.report().namespaces
        for kind in SPACES:
            assert report.namespaces[kind] == int(inside[kind])
            assert report.namespaces[kind] != os.stat(f"/proc/self/ns/{kind}").st_ino
            assert report.namespaces[kind] != theirs[kind]
            if os.geteuid() == 0:
                assert report.namespaces[kind] == os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    finally:
        other.terminate()


def _filter_of(pid: int) -> bytes:
    """The filter of a process, read back by the kernel's own means for that; OSError where it has none."""
    attach, detach, get_filter = 16, 17, 0x420C
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.restype = ctypes.c_long
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(attach, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "attach")
    try:
        os.waitpid(pid, 0x40000000)
        count = ptrace(get_filter, pid, 0, None)
        if count <= 0:
            raise OSError(ctypes.get_errno(), "get the filter")
        lines = ctypes.create_string_buffer(count * 8)
        ptrace(get_filter, pid, 0, ctypes.addressof(lines))
        return lines.raw
    finally:
        ptrace(detach, pid, None, None)


@pytest.mark.req("T3.24")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read a filter back")
def test_the_digest_of_the_filter_is_that_of_the_filter_in_the_kernel(
    sandbox: SyncSandbox, installation: Installation
) -> None:
    try:
        program = _filter_of(first_process(sandbox, installation))
    except OSError as error:
        pytest.skip(f"this kernel does not give filters back: {error}")
    report = sandbox.report()
    assert report.first_process is not None
    assert report.first_process.filter_sha256 == hashlib.sha256(program).hexdigest()


# -- mounts, devices, interfaces ---------------------------------------------------------------------

LISTING = r"""
import os, stat
for folder, folders, files in os.walk("/", onerror=lambda _: None):
    if folder == "/":
        folders[:] = [name for name in folders if name not in ("proc", "usr", "sys")]
    for name in files:
        path = os.path.join(folder, name)
        status = os.lstat(path)
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            kind = "character" if stat.S_ISCHR(status.st_mode) else "block"
            print(path, kind, os.major(status.st_rdev), os.minor(status.st_rdev))
"""
SERVER = r"""
import socket, sys, time
held = []
for family, kind, address in (
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 8123)), (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 8124)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("0.0.0.0", 8125)), (socket.AF_UNIX, socket.SOCK_STREAM, "\0hidden"),
    (socket.AF_UNIX, socket.SOCK_STREAM, "/tmp/path.sock"), (socket.AF_UNIX, socket.SOCK_DGRAM, "/tmp/letters.sock"),
):
    one = socket.socket(family, kind)
    one.bind(address)
    if kind == socket.SOCK_STREAM:
        one.listen()
    held.append(one)
print("open", flush=True)
time.sleep(1000)
"""


@pytest.mark.req("T3.27")
def test_mounts_and_devices_of_the_report_are_those_found_inside(sandbox: SyncSandbox) -> None:
    report = sandbox.report()
    rows = [line.split(" ") for line in str(sandbox.run_command("cat /proc/self/mountinfo").stdout).splitlines()]
    inside = []
    for row in rows:
        options, filesystem, above = row[5].split(","), row[row.index("-") + 1], row[row.index("-") + 3].split(",")
        writable = "rw" in options and "rw" in above
        inside.append((row[4], filesystem, writable, *(flag in options for flag in ("nosuid", "nodev", "noexec"))))
    told = [(one.target, one.filesystem, one.writable, one.nosuid, one.nodev, one.noexec) for one in report.mounts]
    assert told == inside
    assert report.boundary_weakened == ()
    assert {one.source for one in report.mounts} <= {
        *("system", "settings", "workspace", "history", "tool", "memory", "kernel", "device", "mask")
    }
    assert [one.target for one in report.mounts if one.source == "workspace"] == ["/home/user"]
    listed = {f"{one.path} {one.kind} {one.major} {one.minor}" for one in report.devices}
    found = set(str(sandbox.run_command(["python3", "-c", LISTING]).stdout).splitlines())
    assert listed == found
    assert not any("block" in one for one in found)
    document = sandbox.contract()
    lines = {line["id"]: line["value"] for line in document["isolation"]}
    assert {name.removeprefix("isolation.mount.") for name in lines if name.startswith("isolation.mount.")} == {
        one.target for one in report.mounts
    }
    assert {one["path"] for one in lines["isolation.devices"]} == {one.path for one in report.devices}


@pytest.mark.req("T3.27")
@pytest.mark.without_way_out
def test_every_socket_that_is_open_inside_is_listed_and_nothing_else(sandbox: SyncSandbox) -> None:
    at_rest = {(one.kind, one.name) for one in sandbox.report().interfaces if one.held_by == "box"}
    assert at_rest == {("network", "lo")}
    running = sandbox.run_command(["python3", "-c", SERVER], background=True)
    wait_until(lambda: b"open" in sandbox.output(running.command_id).data, "the sockets are open")
    report = sandbox.report()
    assert {(one.kind, one.name) for one in report.interfaces if one.held_by == "box"} - at_rest == {
        ("tcp", "127.0.0.1:8123"),
        ("tcp", "[::1]:8124"),
        ("udp", "0.0.0.0:8125"),
        ("unix", "@hidden"),
        ("unix", "/tmp/path.sock"),
        ("unix", "/tmp/letters.sock"),
    }
    assert report.interfaces_left_out == 0
    inside = str(sandbox.run_command("tail -qn +2 /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6").stdout)
    assert len(inside.splitlines()) == 3
    assert len(str(sandbox.run_command("tail -n +2 /proc/net/packet").stdout).splitlines()) == len(
        [one for one in report.interfaces if one.kind == "packet" and one.held_by == "product"]
    )
    sandbox.signal(running.command_id, cancel=True)


@pytest.mark.req("T3.27")
@pytest.mark.parametrize("folder", ["/", "/etc", "/proc", "/run", "/root", "/home/somebody", "/var/run/docker.sock"])
def test_a_request_for_a_folder_of_the_host_is_refused(client: SyncColdframe, agent_id: str, folder: str) -> None:
    for wish in ({"mounts": [folder]}, {"mounts": [{"source": folder, "target": "/mnt"}]}, {"template": folder}):
        with pytest.raises(ColdframeError) as refused:
            ask(client._transport, "POST", "/v1/sandboxes", payload={"agent_id": agent_id, **wish})
        assert refused.value.code == "INVALID_ARGUMENT"
    assert [one for one in client.sandboxes.list() if one.info.agent_id == agent_id] == []


# -- limits ------------------------------------------------------------------------------------------


@pytest.mark.req("T3.25")
def test_every_limit_is_reported_with_value_source_and_time_and_met_where_it_says(
    client: SyncColdframe, agent_id: str
) -> None:
    values = {"wall": 600, "cpu": 300, "memory": 96, "pids": 40, "disk": 64, "output": 1}
    with client.sandboxes.create(agent_id=agent_id, limits=LIMITS) as sandbox:
        check_reported(sandbox, values)
        for kind in ("memory", "output", "disk"):
            check_met(sandbox, kind)
            sandbox.run_command("rm -f fill*")
    with client.sandboxes.create(agent_id=agent_id, limits=BRIEF) as brief:
        check_reported(brief, {**values, "cpu": 1})
        check_met(brief, "cpu")


@pytest.mark.req("T3.25")
def test_a_limit_of_disk_bandwidth_is_reported_where_it_is_asked_for_and_nowhere_else(
    client: SyncColdframe, agent_id: str, sandbox: SyncSandbox, installation: Installation
) -> None:
    assert [one for one in sandbox.report().limits if one.kind == "io"] == []
    assert "limits.io_mib_s" not in str(sandbox.contract())
    made = installation.cli("sandbox", "create", "--agent", agent_id, "--io-mib-s", "7")
    assert made.returncode == 0, made.stderr
    with client.sandboxes.get(made.stdout.decode().split()[0]) as limited:
        assert limited.info.spec.limits.io_mib_s == 7
        check_reported(limited, {"io": 7})
        found = limit_of(limited.report(), "io")
        where = line_of(limited, "execution.limits.io_mib_s")
        assert (where["value"], where["verified_by"]) == (7, "probe:limit:io")
        assert ("limit:io" in limited.refresh().degraded) is (found.strength != "hard")
        ran = limited.run_command("true")
        assert client.receipt(str(ran.result.receipt_id))["inputs"]["limits"]["io_mib_s"] == 7
        if found.strength != "hard":
            with pytest.raises(ColdframeError) as refused:
                wanted = SandboxSpec(agent_id=agent_id, limits=Limits(io_mib_s=7), requires=("limit:io",))
                client.sandboxes.create(spec=wanted)
            assert refused.value.facts["property"] == "limit:io" and refused.value.facts["reason"]


def check_reported(sandbox: SyncSandbox, values: dict[str, int]) -> None:
    report = sandbox.report()
    for kind, value in values.items():
        found = limit_of(report, kind)
        assert found.limit == value and found.enforced_by and found.verified_at == report.measured_at
        assert found.supported is (found.strength == "hard")
        assert (found.reason is None) is found.supported
        written = line_of(sandbox, f"isolation.limit.{kind}")["value"]
        assert (written["limit"], written["enforced_by"]) == (value, found.enforced_by)


def check_met(sandbox: SyncSandbox, kind: str) -> None:
    ended = sandbox.run_command(GREEDY[kind], timeout_s=PATIENCE_S)
    assert ended.limit is not None and ended.limit.kind == kind, (kind, ended)


@pytest.mark.req("T3.25")
def test_the_table_of_controls_and_levels_names_what_a_probe_finds_now(sandbox: SyncSandbox) -> None:
    text = (CHECKOUT / "docs" / "isolation.md").read_text(encoding="utf-8")
    text = text.partition("<!-- written by scripts/isolation_page -->")[2].partition("<!-- end -->")[0]
    rows = dict(re.findall(r"^\| `([a-z_:]+)` \| ([^|]+) \|", text, re.MULTILINE))
    report = sandbox.report()
    named = {one.name for one in report.properties} | {f"limit:{one.kind}" for one in report.limits}
    assert named <= set(rows)
    assert {value.strip() for value in rows.values()} <= {
        "enforced",
        "partial",
        "best effort",
        "not supported",
        "unknown",
    }


# -- never more than there is ------------------------------------------------------------------------

ABSENT = (
    *("kernel:guest", "kernel:user_space", "level:gvisor", "level:microvm", "level:process", "memory_snapshot"),
    *("snapshot", "pause", "resume", "egress_broker", "resolver", "gpu", "display", "limit:disk", "limit:io"),
    *("encrypted_disk", "attestation", "own_host", "nested_virtualization", "selinux", "landlock", "data_residency"),
)


@pytest.mark.req("T3.34")
@pytest.mark.parametrize("wanted", ABSENT)
def test_a_property_that_is_not_here_is_refused_by_name_and_nothing_lower_starts(
    client: SyncColdframe, agent_id: str, wanted: str
) -> None:
    with pytest.raises(ColdframeError) as refused:
        client.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, requires=("seccomp", wanted)))
    assert refused.value.code == "ISOLATION_UNAVAILABLE"
    assert refused.value.facts["property"] == wanted
    assert wanted in str(refused.value) and refused.value.facts["reason"] and refused.value.facts["remedy"]
    assert [one for one in client.sandboxes.list() if one.info.agent_id == agent_id] == []


@pytest.mark.req("T3.34")
@pytest.mark.parametrize("level", ["gvisor", "microvm"])
def test_a_level_that_is_not_here_is_not_replaced_by_another(client: SyncColdframe, agent_id: str, level: Any) -> None:
    with pytest.raises(ColdframeError) as refused:
        client.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, isolation=level))
    assert (refused.value.code, refused.value.facts["property"]) == ("ISOLATION_UNAVAILABLE", f"level:{level}")
    assert [one for one in client.sandboxes.list() if one.info.agent_id == agent_id] == []


@pytest.mark.req("T3.34")
def test_the_command_line_refuses_it_too(installation: Installation, agent_id: str) -> None:
    done = installation.cli("sandbox", "create", "--agent", agent_id, "--require", "seccomp", "--require", "gpu")
    assert done.returncode == 5
    assert b"`gpu`" in done.stderr and done.stdout == b""


def test_properties_that_are_here_can_be_required(client: SyncColdframe, agent_id: str) -> None:
    wanted = ("level:namespaces", "kernel:shared", "seccomp", "net_namespace", "limit:wall", "limit:pids")
    with client.sandboxes.create(spec=SandboxSpec(agent_id=agent_id, requires=wanted)) as sandbox:
        assert line_of(sandbox, "execution.requires")["value"] == list(wanted)


@pytest.mark.req("T3.34")
def test_no_text_for_a_sandbox_that_shares_its_kernel_speaks_of_another(
    sandbox: SyncSandbox, client: SyncColdframe, installation: Installation
) -> None:
    import typer.main

    from coldframe.cli.app import app

    texts = [json.dumps([[repr(part) for part in vars(one).values()] for one in catalogue().values()])]
    texts.append((CHECKOUT / "docs" / "errors.md").read_text(encoding="utf-8"))

    def helps(command: Any, name: str) -> None:
        with command.make_context(name, [], resilient_parsing=True) as context:
            texts.append(command.get_help(context))
        for word, child in getattr(command, "commands", {}).items():
            helps(child, f"{name} {word}")

    helps(typer.main.get_command(app), "coldframe")
    assert len(texts) > 50
    sandbox.run_command("true")
    own = ("show", "report", "allowed", "contacts", "processes", "runtimes")
    for words in (*(("sandbox", word) for word in own), ("contract", "show")):
        done = installation.cli(*words, sandbox.id)
        assert done.returncode == 0
        texts.append(done.stdout.decode())
    texts.append(ask(client._transport, "GET", "/openapi.json").body.decode())
    texts.append(ask(client._transport, "GET", f"/v1/sandboxes/{sandbox.id}").body.decode())
    other = re.compile(r"\bVMs?\b|virtual[ -]machine|dedicated kernel|own kernel|guest kernel", re.IGNORECASE)
    assert [match.group(0) for text in texts for match in other.finditer(text)] == []
    assert "shared" in texts[-1] or "kernel is shared" in "".join(texts)
