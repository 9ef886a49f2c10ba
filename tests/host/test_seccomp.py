"""The filter refuses what it says and lets ordinary programs work; a change of its bytes is noticed."""

import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from coldframe.host import confine, seccomp
from coldframe.host.syscalls import SYSCALLS
from tests.host.forked import in_child

pytestmark = pytest.mark.skipif(platform.machine() not in SYSCALLS, reason="no table for this machine")

DIGESTS = {
    ("x86_64", "default"): "c932b1f94b0b78b9a5c5c1ad26554c24c727aec4580932a991fc363185fb612a",
    ("x86_64", "strict"): "9d012df08ff06359becfa4f1cca442c0e69db85c33b192484e7bcbf9bc3c7acc",
    ("aarch64", "default"): "d680156d43e49ebb5f65dfc5a26a9f2cd809c27ef3b79e420e011260b0d07846",
    ("aarch64", "strict"): "d4f05e75d01fdebb62601dbd9180c367be9c3b3e9c799d510089a1b20f48457a",
    ("x86_64", "keeper"): "677ff8d7586079114175795459116bf9a3b45fd8e7f75fd7d2c00d66a4631885",
    ("x86_64", "newborn"): "b0564a1fca49f0d634ac8cc5688d350ffab097362c994be387ad5929c804e39f",
    ("aarch64", "keeper"): "1d387fcea6ef775657b5825dc3e7551e81fb534c44d5d3b63c263fb96e12953c",
    ("aarch64", "newborn"): "b0564a1fca49f0d634ac8cc5688d350ffab097362c994be387ad5929c804e39f",
    ("x86_64", "broker"): "742185ca7c8920a264ba6452b20641cd2bdd661a0a1ad78a005a36156241f797",
    ("aarch64", "broker"): "f9dfac073651fad9e917c2d38a1198d935f0434fba8e748357e93e7053c752ec",
}
"""Change one only together with a look at what the change allows."""

NUMBERS = SYSCALLS.get(platform.machine(), {})
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


def call(name: str | int, *arguments: int) -> int:
    """0 or above, or minus the errno, of one raw system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = NUMBERS[name] if isinstance(name, str) else name
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(value & (2**64 - 1)) for value in arguments))
    return -ctypes.get_errno() if result < 0 else result


def filtered(function: Callable[[], object], profile: str = "default") -> object:
    """Runs with every capability this test has, so a refusal comes from the filter and from nothing else."""

    def child() -> object:
        confine.set_no_new_privs()
        seccomp.load_filter(seccomp.build_filter(profile))
        return function()

    return in_child(child)


@pytest.mark.parametrize(("machine", "profile"), sorted(DIGESTS))
def test_a_filter_is_byte_for_byte_the_reviewed_one(machine: str, profile: str) -> None:
    assert hashlib.sha256(seccomp.build_filter(profile, machine)).hexdigest() == DIGESTS[machine, profile]


def test_every_refused_name_is_a_call_of_some_machine() -> None:
    known = {name for table in SYSCALLS.values() for name in table}
    assert known >= seccomp.REFUSED | seccomp.REFUSED_STRICT | seccomp.REFUSED_BROKER


def test_a_machine_without_a_table_is_refused() -> None:
    with pytest.raises(confine.ConfineError, match="no system call table for `riscv64`"):
        seccomp.build_filter(machine="riscv64")


@pytest.mark.parametrize("profile", seccomp.PROFILES)
def test_every_call_of_the_block_list_answers_eperm(profile: str) -> None:
    names = sorted(seccomp.REFUSED & NUMBERS.keys())
    answers = filtered(lambda: {name: call(name, 0, 0, 0, 0, 0, 0) for name in names}, profile)
    assert answers == dict.fromkeys(names, -errno.EPERM)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("unshare", (CLONE_NEWUSER,), errno.EPERM),
        ("unshare", (0x80,), errno.EPERM),
        ("unshare", (1 << 40,), errno.EPERM),
        ("clone", (CLONE_NEWNS | signal.SIGCHLD, 0, 0, 0, 0), errno.EPERM),
        ("clone", (CLONE_NEWUSER | 1 << 32 | signal.SIGCHLD, 0, 0, 0, 0), errno.EPERM),
        ("clone3", (0, 0), errno.ENOSYS),
        ("socket", (17, 3, 0), errno.EPERM),
        ("socket", (40, 1, 0), errno.EPERM),
        ("socket", (38, 5, 0), errno.EPERM),
        ("socket", (17 | 1 << 32, 3, 0), errno.EPERM),
        ("socket", (16, 3, 9), errno.EPROTONOSUPPORT),
        ("socket", (2, 3, 1), errno.EPERM),
        ("socket", (2, 10, 0x300), errno.EPERM),
        ("socket", (2, 1, 132), errno.EPROTONOSUPPORT),
        ("socket", (10, 1, 262), errno.EPROTONOSUPPORT),
        ("socketpair", (2, 1, 0, 0), errno.EPERM),
        ("personality", (0x40000,), errno.EPERM),
        ("ioctl", (0, 0x5412, 0), errno.EPERM),
        ("ioctl", (0, 0x5412 | 1 << 32, 0), errno.EPERM),
        ("ioctl", (0, 0x541C | 0xFFFFFFFF << 32, 0), errno.EPERM),
        ("ioctl", (0, 0x5423, 0), errno.EPERM),
    ],
)
def test_arguments_that_reach_outward_are_refused(name: str, arguments: tuple[int, ...], expected: int) -> None:
    assert filtered(lambda: call(name, *arguments)) == -expected


def test_a_keeper_and_its_commands_differ_by_one_call() -> None:
    """What the keeper may do beyond the box is clone3, and nothing that it forks may."""
    names = sorted(seccomp.REFUSED & NUMBERS.keys())

    def answers() -> dict[str, int]:
        return {name: call(name, 0, 0, 0, 0, 0, 0) for name in (*names, "clone3")}

    def newborn() -> object:
        seccomp.load_filter(seccomp.build_filter("newborn"))
        return answers()

    refused = dict.fromkeys(names, -errno.EPERM)
    assert filtered(answers, "keeper") == {**refused, "clone3": -errno.EINVAL}
    assert filtered(newborn, "keeper") == {**refused, "clone3": -errno.ENOSYS} == filtered(answers)


def test_calls_that_nobody_has_looked_at_do_not_exist() -> None:
    assert filtered(lambda: [call(number, 0, 0, 0) for number in (457, 463, 1000, 0x3FFFFFFF)]) == [-errno.ENOSYS] * 4


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 belongs to x86_64")
def test_a_call_through_the_x32_interface_ends_the_process() -> None:
    def watch() -> int:
        pid = os.fork()
        if pid == 0:
            call(0x40000000 + NUMBERS["getpid"])
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    assert os.WTERMSIG(filtered(watch)) == signal.SIGSYS


def test_tracing_own_processes_is_allowed_by_default_and_refused_when_strict() -> None:
    assert filtered(lambda: call("ptrace", 0, 0, 0, 0)) == 0  # PTRACE_TRACEME
    assert filtered(lambda: call("ptrace", 0, 0, 0, 0), "strict") == -errno.EPERM
    assert filtered(lambda: call("process_vm_readv", os.getpid(), 0, 0, 0, 0, 0), "strict") == -errno.EPERM


def test_a_broker_starts_nothing_but_threads_and_reaches_no_other_process() -> None:
    names = sorted(seccomp.REFUSED_BROKER & NUMBERS.keys())
    assert filtered(lambda: {name: call(name, 0, 0, 0, 0, 0, 0) for name in names}, "broker") == dict.fromkeys(
        names, -errno.EPERM
    )
    refused = [
        ("clone", signal.SIGCHLD),
        ("clone", CLONE_NEWUSER | 0x10000),
        ("prlimit64", 1, 7, 0, 0),
        ("socket", 1, 1, 0),
    ]

    def work() -> list[object]:
        done: list[object] = []
        thread = threading.Thread(target=lambda: done.append("thread"))
        thread.start()
        thread.join()
        for family in (socket.AF_INET, socket.AF_INET6):
            socket.socket(family, socket.SOCK_STREAM).close()
        for end in socket.socketpair():  # of an event loop, to wake itself
            end.close()
        done.append(call("prlimit64", 0, 7, 0, 0))
        return [*done, *(call(name, *arguments) for name, *arguments in refused)]

    assert filtered(work, "broker") == ["thread", 0, *[-errno.EPERM] * 4]


def test_ordinary_work_goes_on() -> None:
    def work() -> list[object]:
        done: list[object] = []
        thread = threading.Thread(target=lambda: done.append("thread"))
        thread.start()
        thread.join()
        shown = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, check=True)
        done.append(shown.stdout)
        for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC).close()
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP).close()
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
        for end in socket.socketpair():
            end.close()
        reading, writing = os.pipe()
        done.append(fcntl.ioctl(writing, 0x541B, b"\0\0\0\0"))  # FIONREAD
        os.close(reading)
        os.close(writing)
        done.append(call("personality", 0xFFFFFFFF))
        done.append(call("unshare", 0x400))  # CLONE_FILES
        done.append(call("memfd_create", ctypes.addressof(ctypes.create_string_buffer(b"x")), 0) > 0)
        return done

    assert filtered(work) == ["thread", b"42\n", b"\0\0\0\0", 0, 0, True]


def test_the_filter_is_inherited_and_cannot_be_taken_off() -> None:
    def look() -> list[str]:
        text = subprocess.run(["cat", "/proc/self/status"], capture_output=True, check=True, text=True).stdout
        return [line for line in text.splitlines() if line.startswith(("Seccomp:", "NoNewPrivs:"))]

    assert filtered(look) == ["NoNewPrivs:\t1", "Seccomp:\t2"]
