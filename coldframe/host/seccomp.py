"""The system call filter of every process of a box, assembled as classic BPF without libseccomp.

Every call of ``syscalls.py`` is allowed but those refused here (EPERM); calls that nobody has looked
at do not exist (ENOSYS); a call through another ABI (32 bit, x32) ends the process. What cannot be
told from a number is told from the arguments: no namespace flags in clone and unshare, no clone3 (its
flags lie in memory, so it answers ENOSYS and libraries fall back to clone), sockets only of families
that end in the box's own network namespace, no typing into a terminal.

The kernel reads an `int` argument from the low 32 bits of its register and drops the rest, so those
are compared on the low half alone; `unshare` takes an unsigned long and is compared whole.

``ptrace`` and ``process_vm_*`` stay allowed in ``default``: debuggers and LeakSanitizer need them, the
pid namespace holds only the box's own, equally filtered processes, and the keeper is not dumpable.
``strict`` refuses them. ``no-native`` is for a box with few programs: it makes no files that live in memory alone.
``broker`` is ``strict`` for a process that is to stay alone: no program, no other process, nobody to signal, no way to a
service of this machine by a unix socket, no change to what files allow.
``keeper`` is ``default`` with clone3, for a keeper whose commands are born in their groups; these load ``newborn``
beside it, which is nothing but the refusal of that call, and short because every command loads it.

Rejected: judging ``execve`` arguments through a user notification, since another thread can change them
after the look. The kernel keeps a bitmap of calls that are always allowed, so only calls with argument
checks run this program at all.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Callable
from functools import cache

from coldframe.guest.rows import Call
from coldframe.host.confine import ConfineError
from coldframe.host.syscalls import SYSCALLS

PROFILES = ("default", "strict", "no-native", "keeper", "broker")
"""Whole filters; `newborn` is none by itself."""

_REFUSED_NAMES = (
    # host-wide state and clocks
    "acct adjtimex clock_adjtime clock_settime settimeofday reboot sethostname setdomainname swapon swapoff syslog "
    "vhangup quotactl quotactl_fd iopl ioperm "
    # mounts and roots, old and new interface
    "mount umount2 mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick pivot_root chroot setns "
    # kernel code, tracing and other wide surfaces with a history of holes
    "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register init_module finit_module "
    "create_module delete_module get_kernel_syms query_module kexec_load kexec_file_load fanotify_init fanotify_mark "
    # keys are not namespaced
    "add_key keyctl request_key "
    # files by handle reach past the mount namespace
    "open_by_handle_at name_to_handle_at lookup_dcookie "
    # memory placement and other processes' insides
    "mbind set_mempolicy get_mempolicy set_mempolicy_home_node move_pages migrate_pages kcmp pidfd_getfd "
    "process_madvise memfd_secret "
    # obsolete
    "_sysctl sysfs uselib ustat nfsservctl afs_syscall getpmsg putpmsg security tuxcall vserver"
)
REFUSED = frozenset(_REFUSED_NAMES.split())
"""Answered with EPERM in every profile."""

REFUSED_STRICT = frozenset({"ptrace", "process_vm_readv", "process_vm_writev"})
"""Answered with EPERM in `strict` as well."""

REFUSED_NO_NATIVE = frozenset({"memfd_create"})
"""Answered with EPERM in `no-native` as well: a file in memory is on no mount that could be noexec."""

_REFUSED_BROKER_NAMES = (
    # programs and processes; a thread is made by clone
    "execve execveat fork vfork "
    # other processes of its user
    "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal pidfd_open process_mrelease setpriority "
    "sched_setparam sched_setscheduler sched_setattr sched_setaffinity ioprio_set "
    # what a file allows, and to whom: Landlock does not ask about these
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr removexattr "
    "lremovexattr fremovexattr utime utimes utimensat futimesat "
    # doors to and for others of its user
    "listen shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink"
)
REFUSED_BROKER = REFUSED_STRICT | frozenset(_REFUSED_BROKER_NAMES.split())
"""Answered with EPERM in `broker`."""

NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME does not fit into clone."""
CLONE_THREAD = 0x00010000
UNSHARE_ALLOWED = 0x00050F00
"""CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: all that unshare does without namespaces."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
PROTOCOLS = (0, 1, 6, 17, 58)
"""default, ICMP, TCP, UDP, ICMPv6. SCTP, DCCP, MPTCP and the like are refused as not supported."""
PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""PER_LINUX, PER_LINUX32, UNAME26 with each, and the query."""
TERMINAL_IOCTLS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI and TIOCLINUX type into a terminal, TIOCSETD loads line disciplines."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _JEQ, _JGE, _JSET, _JUMP, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x05, 0x54, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_NUMBER, _ARCH = 0, 4
"""Offsets in struct seccomp_data; argument i has its low half at 16 + 8 i on little-endian machines."""

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


class _Program:
    """Instructions with named targets, resolved when all are there."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str | None, str | None, int]] = []
        self.labels: dict[str, int] = {}

    def emit(self, code: int, value: int, *, true: str | None = None, false: str | None = None) -> None:
        """None as a target is the next instruction."""
        self.lines.append((code, true, false, value))

    def label(self, name: str) -> None:
        self.labels[name] = len(self.lines)

    def jump(self, target: str) -> None:
        self.emit(_JUMP, 0, true=target)

    def assemble(self) -> bytes:
        out = []
        for index, (code, true, false, value) in enumerate(self.lines):
            # a jump can only go forward, so the distance is never negative
            to_true, to_false = (0 if name is None else self.labels[name] - index - 1 for name in (true, false))
            if code == _JUMP:
                out.append(struct.pack("HBBI", code, 0, 0, to_true))
            else:
                out.append(struct.pack("HBBI", code, to_true, to_false, value))
        return b"".join(out)


@cache
def build_filter(profile: str = "default", machine: str = "") -> bytes:
    """The program of `profile` for `machine` (default: this one), as the kernel and ``bwrap --seccomp`` take it.

    Raises ConfineError for a machine without a table and ValueError for an unknown profile.
    """
    machine = machine or platform.machine()
    if profile not in (*PROFILES, "newborn"):
        raise ValueError(f"unknown seccomp profile `{profile}`")
    if machine not in SYSCALLS:
        raise ConfineError("seccomp", f"no system call table for `{machine}`")
    if profile == "newborn":
        return _without_clone3(SYSCALLS[machine]["clone3"])
    refused = REFUSED | _REFUSED_BY_PROFILE.get(profile, frozenset())
    checks = _BROKER_CHECKS if profile == "broker" else _CHECKS
    actions: dict[int, str] = {}
    for name, number in SYSCALLS[machine].items():
        if name in checks:
            actions[number] = f"check {name}"
        elif name == "clone3":
            actions[number] = "allow" if profile == "keeper" else "absent"
        else:
            actions[number] = "refuse" if name in refused else "allow"

    program = _Program()
    program.emit(_LOAD, _ARCH)
    program.emit(_JEQ, _AUDIT_ARCH[machine], true="native")
    program.emit(_RET, _KILL)  # here, because a conditional jump reaches 255 instructions at most
    program.label("native")
    program.emit(_LOAD, _NUMBER)
    if machine == "x86_64":
        # -1 is what a tracer sets to skip a call; it is unknown, not foreign
        program.emit(_JEQ, 0xFFFFFFFF, true="search")
        program.emit(_JGE, _X32_BIT, false="search")
        program.emit(_RET, _KILL)
        program.label("search")
    _emit_tree(program, _ranges(actions))
    for name, emit_check in checks.items():
        if name in SYSCALLS[machine]:
            program.label(f"check {name}")
            emit_check(program)
    for name, value in _ANSWERS.items():
        program.label(name)
        program.emit(_RET, value)
    return program.assemble()


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class ReadyFilter:
    """A program as the kernel wants it, so that loading it costs a child nothing but the call."""

    def __init__(self, program: bytes) -> None:
        self._lines = ctypes.create_string_buffer(program, len(program))
        self._header = _SockFprog(len(program) // 8, ctypes.addressof(self._lines))
        address = ctypes.addressof(self._header)
        self.call = Call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address, kept=(self._lines, self._header))
        """Puts it on this thread and all it will ever start. Needs no_new_privs; cannot be undone."""

    def load(self) -> None:
        """The same, here. Raises ConfineError."""
        try:
            self.call()
        except OSError as error:
            raise ConfineError("load the seccomp filter", error.strerror or "") from error


def load_filter(program: bytes) -> None:
    """The same for one that is loaded once."""
    ReadyFilter(program).load()


def _without_clone3(number: int) -> bytes:
    """The filter before it has looked at the interface already, and ended who comes by another."""
    program = _Program()
    program.emit(_LOAD, _NUMBER)
    program.emit(_JEQ, number, true="absent")
    program.emit(_RET, _ALLOW)
    program.label("absent")
    program.emit(_RET, _ANSWERS["absent"])
    return program.assemble()


_ANSWERS = {
    "absent": _ERRNO | errno.ENOSYS,
    "refuse": _ERRNO | errno.EPERM,
    "unsupported": _ERRNO | errno.EPROTONOSUPPORT,
    "allow": _ALLOW,
}


def _ranges(actions: dict[int, str]) -> list[tuple[int, str]]:
    """First number of each stretch with one action; what is between and beyond is absent."""
    ranges = [(0, actions.get(0, "absent"))]
    for number in range(1, max(actions) + 2):
        action = actions.get(number, "absent")
        if action != ranges[-1][1]:
            ranges.append((number, action))
    return ranges


def _emit_tree(program: _Program, ranges: list[tuple[int, str]], path: str = "node") -> None:
    """A balanced search: about seven comparisons for any call."""
    if len(ranges) == 1:
        action = ranges[0][1]
        if action in _ANSWERS:
            program.emit(_RET, _ANSWERS[action])
        else:
            program.jump(action)
        return
    middle = len(ranges) // 2
    program.emit(_JGE, ranges[middle][0], true=f"{path} high")
    _emit_tree(program, ranges[:middle], f"{path} low")
    program.label(f"{path} high")
    _emit_tree(program, ranges[middle:], f"{path} high")


def _load_argument(program: _Program, index: int, *, high: bool = False) -> None:
    program.emit(_LOAD, 16 + 8 * index + (4 if high else 0))


def _check_clone(program: _Program) -> None:
    _load_argument(program, 0)  # the kernel itself takes the low half only
    program.emit(_JSET, NAMESPACE_FLAGS, true="refuse")
    program.jump("allow")


def _check_clone_of_thread(program: _Program) -> None:
    _load_argument(program, 0)
    program.emit(_JSET, NAMESPACE_FLAGS, true="refuse")
    program.emit(_JSET, CLONE_THREAD, true="allow", false="refuse")


def _check_unshare(program: _Program) -> None:
    _load_argument(program, 0, high=True)
    program.emit(_JEQ, 0, false="refuse")
    _load_argument(program, 0)
    program.emit(_JSET, ~UNSHARE_ALLOWED & 0xFFFFFFFF, true="refuse")
    program.jump("allow")


def _check_socket(program: _Program) -> None:
    _load_argument(program, 0)
    program.emit(_JEQ, AF_UNIX, true="allow")
    _check_family(program)


def _check_socket_outward(program: _Program) -> None:
    """None that leads to a service of this machine by the name of a file."""
    _load_argument(program, 0)
    _check_family(program)


def _check_family(program: _Program) -> None:
    program.emit(_JEQ, AF_INET, true="internet type")
    program.emit(_JEQ, AF_INET6, true="internet type")
    program.emit(_JEQ, AF_NETLINK, false="refuse")
    _load_argument(program, 2)
    # Beside NETLINK_ROUTE as if the kernel had none: useradd and su go on without NETLINK_AUDIT then, and fail on EPERM.
    program.emit(_JEQ, 0, true="allow", false="unsupported")
    program.label("internet type")
    _load_argument(program, 1)
    program.emit(_AND, 0xF)  # the rest are SOCK_NONBLOCK and SOCK_CLOEXEC
    program.emit(_JEQ, 1, true="internet protocol")
    program.emit(_JEQ, 2, false="refuse")
    program.label("internet protocol")
    _load_argument(program, 2)
    for protocol in PROTOCOLS:
        program.emit(_JEQ, protocol, true="allow")
    program.jump("unsupported")


def _check_socketpair(program: _Program) -> None:
    _load_argument(program, 0)
    program.emit(_JEQ, AF_UNIX, true="allow", false="refuse")


def _check_own_limits(program: _Program) -> None:
    _load_argument(program, 0)
    program.emit(_JEQ, 0, true="allow", false="refuse")


def _check_personality(program: _Program) -> None:
    _load_argument(program, 0)
    for value in PERSONALITIES:
        program.emit(_JEQ, value, true="allow")
    program.jump("refuse")


def _check_ioctl(program: _Program) -> None:
    _load_argument(program, 1)
    for command in TERMINAL_IOCTLS:
        program.emit(_JEQ, command, true="refuse")
    program.jump("allow")


_CHECKS: dict[str, Callable[[_Program], None]] = {
    "clone": _check_clone,
    "unshare": _check_unshare,
    "socket": _check_socket,
    "socketpair": _check_socketpair,
    "personality": _check_personality,
    "ioctl": _check_ioctl,
}

_BROKER_CHECKS = {
    **_CHECKS,
    "clone": _check_clone_of_thread,
    "socket": _check_socket_outward,
    "prlimit64": _check_own_limits,
}
_REFUSED_BY_PROFILE: dict[str, frozenset[str]] = {
    "strict": REFUSED_STRICT,
    "no-native": REFUSED_NO_NATIVE,
    "broker": REFUSED_BROKER,
}
