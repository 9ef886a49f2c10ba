"""The report says what the kernel says, of every process, and a missing wall refuses the box."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.sandbox import Limits
from coldframe.host import cgroups, confine, landlock, report, routes
from coldframe.host.ways_out import Captured
from tests.host import boxes
from tests.host.forked import in_child

pytestmark = pytest.mark.skipif(shutil.which(boxes.BWRAP) is None, reason="needs bubblewrap")


def finish() -> None:
    confine.mask_proc()
    routes.capture_everything()


@contextmanager
def joined_keeper(first: int, *, whole: bool = True) -> Iterator[int]:
    """A process that has joined as the keeper does, with or without giving up its rights, and one command of it."""
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            mine.close()
            boxes.become_ordinary()
            confine.join_namespaces(first, while_privileged=finish)
            if whole:
                boxes.give_up_all_rights()
            command = os.fork()
            if command == 0:
                os.execv("/usr/bin/sleep", ["sleep", "1000000"])
            theirs.send(b"x")
            theirs.recv(1)
            os.kill(command, signal.SIGKILL)
            os.waitpid(command, 0)
        finally:
            os._exit(0)
    theirs.close()
    try:
        assert mine.recv(1) == b"x"
        yield pid
    finally:
        mine.close()
        os.waitpid(pid, 0)


def states(measured: IsolationReport) -> dict[str, str]:
    return {one.name: one.state for one in measured.properties}


def weak(measured: IsolationReport) -> set[str]:
    return {one.name for one in measured.properties if one.required and one.state != "enforced"}


def test_a_whole_box_has_every_wall_and_is_not_refused() -> None:
    with boxes.bare_box() as first, joined_keeper(first) as keeper:
        measured = report.measure(first, keeper, {})
    assert weak(measured) == set()
    report.refuse_unless_enforced(measured)
    assert {f"{name}_namespace" for name in ("user", "pid", "mount", "net", "ipc", "uts", "cgroup")} <= {
        one.name for one in measured.properties if one.required
    }
    assert all(measured.namespaces[name] != os.stat(f"/proc/self/ns/{name}").st_ino for name in confine.NAMESPACES)
    assert any(mount.target == "/proc/sys" and not mount.writable for mount in measured.mounts)


def test_an_ordinary_user_gets_the_same_report() -> None:
    with boxes.bare_box() as first, joined_keeper(first) as keeper:

        def child() -> str:
            boxes.become_ordinary()
            return report.measure(first, keeper, {}).model_dump_json()

        measured = IsolationReport.model_validate_json(in_child(child))
    assert weak(measured) == set()


def test_without_the_right_to_look_the_keepers_word_is_taken_and_named() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    with boxes.bare_box() as first, joined_keeper(first) as keeper:
        with open(f"/proc/{first}/status") as file:
            text = file.read()
        spaces = {name: os.stat(f"/proc/{first}/ns/{name}").st_ino for name in confine.NAMESPACES}

        def child(evidence: dict[str, object]) -> str:
            os.setresgid(65533, 65533, 65533)
            os.setresuid(65533, 65533, 65533)
            return report.measure(first, keeper, evidence).model_dump_json()

        told = in_child(lambda: child({"processes": {"1": text}, "namespaces": spaces}))
        blind = in_child(lambda: child({}))
    measured = IsolationReport.model_validate_json(told)
    assert "told by the keeper" in next(one for one in measured.properties if one.name == "seccomp").evidence
    assert not {"seccomp", "capabilities", "user_namespace", "pid_namespace"} & weak(measured)
    unseen = weak(IsolationReport.model_validate_json(blind))
    assert {"seccomp", "capabilities", "host_uid", "user_namespace"} <= unseen


def test_one_unfiltered_process_is_enough_to_refuse() -> None:
    with boxes.bare_box(filtered=False) as first, joined_keeper(first) as keeper:
        measured = report.measure(first, keeper, {})
    assert weak(measured) == {"seccomp"}
    with pytest.raises(IsolationUnavailable) as caught:
        report.refuse_unless_enforced(measured)
    assert caught.value.facts["property"] == "seccomp"
    assert "Seccomp: 0 of 1 of the box" in str(caught.value.facts["reason"])
    assert caught.value.facts["remedy"] == caught.value.advice


def test_a_keeper_that_kept_its_rights_is_found() -> None:
    with boxes.bare_box() as first, joined_keeper(first, whole=False) as keeper:
        measured = report.measure(first, keeper, {})
    assert {"seccomp", "no_new_privileges", "capabilities"} <= weak(measured)


def test_a_writable_root_is_found() -> None:
    with boxes.bare_box("--tmpfs", "/mnt") as first, joined_keeper(first) as keeper:
        assert weak(report.measure(first, keeper, {})) == {"system_read_only"}


def test_a_shared_network_and_what_it_shows_are_found() -> None:
    with boxes.bare_box("--share-net", "--remount-ro", "/") as first:
        measured = report.measure(first, os.getpid(), {})
    assert "net_namespace" in weak(measured)
    assert next(one for one in measured.properties if one.name == "net_namespace").remedy


def test_a_process_of_this_host_is_no_box() -> None:
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        found = weak(report.measure(sleeper.pid, os.getpid(), {}))
    finally:
        sleeper.kill()
        sleeper.wait(10)
    assert {"user_namespace", "pid_namespace", "mount_namespace", "net_namespace", "seccomp"} <= found


def test_a_box_that_is_gone_has_no_wall() -> None:
    measured = report.measure(2**22 + 1, 2**22 + 1, {})
    assert {state for name, state in states(measured).items() if name != "mount_flags"} == {"absent"}


@pytest.mark.parametrize(
    ("abi", "told"),
    [(0, "the kernel has no Landlock"), (2, "older than 6.2"), (6, None)],
)
def test_what_the_kernel_does_not_hold_of_the_broker_is_told_of_a_box_with_a_way_out(
    abi: int, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: abi)
    captured = Captured("nftables", "", frozenset(), frozenset(), ("open",), is_served=True)
    measured = report.measure(2**22 + 1, 2**22 + 1, {}, captured=captured)
    caveat = next(one for one in measured.properties if one.name == "network").caveat
    assert (caveat is None) if told is None else (told in str(caveat))
    alone = report.measure(2**22 + 1, 2**22 + 1, {})
    assert next(one for one in alone.properties if one.name == "network").caveat is None


def test_limits_are_hard_where_the_kernel_gives_them_back_and_best_effort_elsewhere() -> None:
    limits = Limits(memory_mib=256, pids=40, cpus=0.5)
    installation = f"report{os.getpid()}"
    with boxes.bare_box() as first, joined_keeper(first) as keeper:
        bare = {one.kind: one for one in report.measure(first, keeper, {}, limits=limits).limits}
        assert bare["memory"].strength == "best_effort" and bare["memory"].bound
        assert bare["cpus"].strength == "unsupported"
        assert bare["pids"].strength == "hard" and "RLIMIT_NPROC" in bare["pids"].enforced_by
        controllers = cgroups.detect_controllers(installation)
        if "memory" not in controllers.controls:
            pytest.skip("no memory controller here")
        groups = cgroups.BoxGroups(controllers, installation, "sb")
        groups.create(cgroups.GroupLimits(256 << 20, 40, 0.5), owner_uid=boxes.NOBODY)
        try:
            outside = {one.kind: one.strength for one in _measured(first, keeper, limits, groups).limits}
            assert outside["memory"] == "best_effort"  # the groups are there, but the box is not in them
            groups.settle(first)
            measured = _measured(first, keeper, limits, groups)
            assert {one.kind: one.strength for one in measured.limits if one.kind in ("memory", "cpus", "cpu")} == {
                "memory": "hard", "cpus": "hard", "cpu": "hard"
            }  # fmt: skip
            assert any("ending one command is exact" in sentence for sentence in measured.sentences)
        finally:
            os.kill(first, signal.SIGKILL)
            groups.kill()
            groups.remove()
            cgroups.remove_groups(controllers, installation, keep=frozenset())


def _measured(first: int, keeper: int, limits: Limits, groups: cgroups.BoxGroups) -> IsolationReport:
    return report.measure(first, keeper, {}, limits=limits, groups=groups)


def test_the_sentences_say_what_this_level_cannot_promise() -> None:
    text = " ".join(report.measure(2**22 + 1, 1, {}, limits=Limits(file_mib=7)).sentences)
    for words in ("kernel is shared", "kernel version, processor, memory size", "host paths", "best effort", "7 MiB"):
        assert words in text
