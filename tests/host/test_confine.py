"""A process that joins a box is inside it with nothing left, and the box sees nothing of the host through /proc."""

import ctypes
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from coldframe.host import confine, routes
from tests.host import boxes
from tests.host.forked import in_child

needs_bwrap = pytest.mark.skipif(shutil.which(boxes.BWRAP) is None, reason="needs bubblewrap")


def status() -> dict[str, str]:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


def from_inside(first: int, function: Callable[[], object]) -> object:
    """What `function` returns in a child of a process that has joined the box as the keeper does."""

    def privileged() -> None:
        confine.mask_proc()
        routes.capture_everything()

    def keeper() -> object:
        boxes.become_ordinary()
        confine.join_namespaces(first, while_privileged=privileged)
        boxes.give_up_all_rights()
        return in_child(function)

    return in_child(keeper)


def test_dropping_capabilities_empties_every_set() -> None:
    def child() -> list[str]:
        confine.drop_all_capabilities()
        after = status()
        return [after[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]

    if os.geteuid() != 0:
        pytest.skip("an ordinary user may not empty its bounding set")
    assert in_child(child) == ["0" * 16] * 5


def test_a_step_that_fails_names_itself_and_the_reason() -> None:
    with pytest.raises(confine.ConfineError, match="could not enter the net namespace: ") as caught:
        confine.setns(0, "net")
    assert caught.value.step == "enter the net namespace"
    with pytest.raises(confine.ConfineError, match="could not open the namespaces of process"):
        confine.join_namespaces(2**22 + 1, while_privileged=lambda: None)
    with pytest.raises(confine.ConfineError, match="could not mount `/nowhere`: No such file"):
        confine.bind("/dev/null", "/nowhere")


def test_descriptors_are_closed_now_or_at_exec() -> None:
    def child() -> tuple[list[int], bool]:
        first, second = os.pipe()
        os.set_inheritable(first, True)
        confine.close_range(first, first, on_exec=True)
        confine.close_range(second, second)
        alive = [descriptor for descriptor in (first, second) if os.path.exists(f"/proc/self/fd/{descriptor}")]
        return [descriptor - first for descriptor in alive], os.get_inheritable(first)

    assert in_child(child) == ([0], False)


def test_a_process_that_is_not_dumpable_cannot_be_read_by_its_own_uid() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second process without rights")

    def child() -> int | None:
        boxes.become_ordinary()
        confine.set_not_dumpable()
        code = "import os, sys\ntry: os.readlink(sys.argv[1])\nexcept OSError as e: sys.exit(e.errno)"
        return subprocess.run([sys.executable, "-I", "-c", code, f"/proc/{os.getpid()}/exe"], check=False).returncode

    assert in_child(child) == errno.EACCES


@needs_bwrap
def test_a_joined_process_has_no_right_left_and_its_children_are_inside() -> None:
    def look() -> tuple[object, ...]:
        seen = status()
        root = sorted(os.listdir("/"))
        return os.getpid() < 100, os.getppid(), os.getuid(), seen["CapEff"], seen["NoNewPrivs"], seen["Seccomp"], root

    with boxes.bare_box() as first:
        inside, parent, uid, effective, no_new, seccomp, root = from_inside(first, look)  # type: ignore[misc]
    assert inside and parent == 0  # numbered in the box; its parent is outside and not visible
    assert (uid, effective, no_new, seccomp) == (1000, "0" * 16, "1", "2")
    assert "home" not in root and "proc" in root


@needs_bwrap
def test_the_keeper_is_in_no_process_list_of_the_box() -> None:
    def look() -> list[str]:
        commands = []
        for name in os.listdir("/proc"):
            if name.isdecimal() and name != str(os.getpid()):
                with open(f"/proc/{name}/comm") as file:
                    commands.append(file.read().strip())
        return sorted(commands)

    with boxes.bare_box() as first:
        assert from_inside(first, look) == ["sh", "sleep"]


@needs_bwrap
def test_proc_neither_tells_nor_takes_anything_about_the_host() -> None:
    def look() -> tuple[dict[str, int], list[str], list[str]]:
        sizes, listed, written = {}, [], []
        for name in confine.MASKED_PROC_FILES:
            if os.path.exists(f"/proc/{name}"):
                with open(f"/proc/{name}", "rb") as file:
                    sizes[name] = len(file.read(10))
        for name in confine.MASKED_PROC_DIRECTORIES:
            if os.path.isdir(f"/proc/{name}"):
                listed += os.listdir(f"/proc/{name}")
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches"):
            try:
                os.close(os.open(path, os.O_WRONLY))
                written.append(path)
            except OSError:
                continue
        return sizes, listed, written

    with boxes.bare_box() as first:
        sizes, listed, written = from_inside(first, look)  # type: ignore[misc]
    assert "kallsyms" in sizes and set(sizes.values()) == {0}
    assert listed == written == []


@needs_bwrap
def test_what_was_done_while_privileged_cannot_be_undone_or_repeated() -> None:
    def look() -> list[int]:
        libc = ctypes.CDLL(None, use_errno=True)
        codes = []
        for call in (
            lambda: libc.umount2(b"/proc/sys", 2),
            lambda: libc.mount(b"/tmp", b"/tmp", None, 4096, None),
            lambda: libc.unshare(0x10000000),
            lambda: libc.setns(0, 0),
            lambda: libc.chroot(b"/tmp"),
            lambda: libc.ptrace(16, 1, 0, 0) if os.getpid() == 1 else -1,
        ):
            codes.append(call())
        try:
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            codes.append(0)
        except PermissionError:
            codes.append(-1)
        return codes

    with boxes.bare_box() as first:
        assert from_inside(first, look) == [-1] * 7


@needs_bwrap
def test_a_join_that_fails_half_way_raises_and_closes_what_it_opened() -> None:
    def keeper() -> tuple[str, int]:
        boxes.become_ordinary()
        lowest = os.dup(0)
        os.close(lowest)

        def fail() -> None:
            raise confine.ConfineError("finish the mounts", "as a test")

        try:
            confine.join_namespaces(first, while_privileged=fail)
        except confine.ConfineError as error:
            return error.step, os.dup(0) - lowest
        return "none", 0

    with boxes.bare_box() as first:
        assert in_child(keeper) == ("finish the mounts", 0)


def test_a_child_dies_with_its_parent() -> None:
    def parent() -> int:
        reading, writing = os.pipe()
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                confine.set_parent_death_signal(signal.SIGKILL)
                os.write(writing, b"x")
                signal.pause()
            os.read(reading, 1)
            os._exit(0)
        os.close(writing)
        os.waitpid(middle, 0)
        return len(os.read(reading, 10))  # end of file: the grandchild is gone

    assert in_child(parent) == 0
