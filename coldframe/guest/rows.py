"""Rows of system calls, the last of them exec, made by a child in the memory of the process that starts it.

After a fork each page that either side writes is copied: measured, 460 pages of a keeper for each command and 130 of its
child, together a quarter of what a command costs. A child that shares the memory copies none. But it must not run Python,
whose whole state is that of this process, which goes on meanwhile; and no function of the C library makes more than one
call there. So it runs 72 bytes of machine code, which take one call after the other from a table, write down beside each
what it gave, and jump where the table says if it failed.

Memory is all that is shared. Descriptors, directory, limits, groups and filter are the child's own, and so is what signals
do: that is set back to the default with the clone, so that no handler of ours runs there. A neighbour in the box can stop
or end the child before exec, which is nothing to this process; the table is kept until exec or the end. Nobody can trace
it or read its memory, since ours is not dumpable. Should the kernel choose it when the memory of its group is used up, all
who share its memory end, this process too: it spares none but children of vfork. So whoever starts a row in a group with
such a limit sees first that there is room.

Rejected: vfork, and posix_spawn which is made of it: they hold the caller until exec, so that a neighbour who stops the
child would hold the keeper. Where there is no code for a machine, or nothing may be executed that was written (some
hardened kernels), no row can be started and the caller forks; the same calls are then made one by one.
"""

import ctypes
import errno
import functools
import mmap
import os
import signal
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

UNAVAILABLE = frozenset({errno.ENOSYS, errno.EINVAL, errno.E2BIG, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP})
"""What clone3 answers where it cannot do this: kernels before 5.7, filters around us, a group that is not ours."""
CLONE_INTO_CGROUP = 0x2_0000_0000
CLONE_ARGS = struct.Struct("=11Q")
"""Flags, process descriptor, two addresses, exit signal, stack and its size, three that are of no use here, control group."""
NUMBERS = {
    "x86_64": {
        "write": 1,
        "ioctl": 16,
        "getpid": 39,
        "execve": 59,
        "chdir": 80,
        "fchdir": 81,
        "setsid": 112,
        "setgroups": 116,
        "setresuid": 117,
        "setresgid": 119,
        "capset": 126,
        "prctl": 157,
        "exit_group": 231,
        "dup3": 292,
        "prlimit64": 302,
        "close_range": 436,
    },
    "aarch64": {
        "dup3": 24,
        "ioctl": 29,
        "chdir": 49,
        "fchdir": 50,
        "write": 64,
        "capset": 91,
        "exit_group": 94,
        "setresuid": 147,
        "setresgid": 149,
        "setsid": 157,
        "setgroups": 159,
        "prctl": 167,
        "getpid": 172,
        "execve": 221,
        "prlimit64": 261,
        "close_range": 436,
    },
}
"""Of the calls that rows are made of."""
CODE = {
    # long start(struct clone_args *, size_t, struct entry *)
    "x86_64": bytes.fromhex(
        "f30f1efa"  # endbr64
        "53"  # push rbx
        "4889d3"  # mov rbx, rdx              the table
        "b8b3010000"  # mov eax, 435          clone3
        "0f05"  # syscall
        "4885c0"  # test rax, rax
        "7402"  # jz next                     in the child, on a stack of its own
        "5b"  # pop rbx
        "c3"  # ret
        "488b03"  # next: mov rax, [rbx]
        "488b7b08"  # mov rdi, [rbx+8]
        "488b7310"  # mov rsi, [rbx+16]
        "488b5318"  # mov rdx, [rbx+24]
        "4c8b5320"  # mov r10, [rbx+32]
        "4c8b4328"  # mov r8, [rbx+40]
        "4c8b4b30"  # mov r9, [rbx+48]
        "0f05"  # syscall
        "48894340"  # mov [rbx+64], rax
        "488d4b48"  # lea rcx, [rbx+72]
        "4885c0"  # test rax, rax
        "480f484b38"  # cmovs rcx, [rbx+56]
        "4889cb"  # mov rbx, rcx
        "ebce"  # jmp next
    )
}

_ENTRY = struct.Struct("=9q")
"""Number and six arguments of a call, where to go on if it fails, and what it gave."""
_PENDING = 1 << 62
"""In place of a result as long as there is none."""
_CLONE_VM, _CLONE_PIDFD, _CLONE_CLEAR_SIGHAND = 0x100, 0x1000, 0x1_0000_0000
_POINTER = struct.calcsize("P")
_number = NUMBERS.get(os.uname().machine, {})
_make = ctypes.PyDLL(None, use_errno=True).syscall  # not CDLL: nothing may let go of the interpreter's lock in between
_make.restype = ctypes.c_long
_make.argtypes = (ctypes.c_long,) * 7
_EXIT_STATUS = 127


class Call:
    """One system call, ready to be made here or in a row. *kept*: what its arguments point at."""

    __slots__ = ("_kept", "words")

    def __init__(self, name: str, *arguments: int, kept: object = None) -> None:
        self.words = (_number[name], *arguments, *(0,) * (6 - len(arguments)))
        self._kept = kept

    def __call__(self) -> int:
        """Make it here. Raises OSError."""
        result: int = _make(*self.words)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


class Attempt(NamedTuple):
    """What may be the program."""

    program: bytes
    arguments: list[bytes]
    environment: dict[bytes, bytes]


class Progress(NamedTuple):
    """How far a child has come."""

    pid: int | None
    """Its own number for itself; None if it did not get there."""
    failed: str | None
    """What the calls are called of which one failed; `exec` for all attempts."""
    error: int
    """Why, by its number."""


class Row:
    """What a child does. Whoever starts it keeps it until the child is its program or gone: it is at work in there."""

    def __init__(self, steps: Sequence[tuple[str, Sequence[Call]]], attempts: Sequence[Attempt]) -> None:
        """*attempts*, at least one, have arguments and environment in common. Raises ValueError for a word with a NUL."""
        calls = [(name, call) for name, row in steps for call in row]
        self._names = [name for name, _ in calls]
        self._calls = [call for _, call in calls]  # they keep what they point at
        _, arguments, environment = attempts[0]
        texts = [one.program for one in attempts]
        texts += arguments
        texts += [b"%s=%s" % pair for pair in environment.items()]
        text = b"\0".join(texts) + b"\0"
        if text.count(b"\0") != len(texts):
            raise ValueError("a word with a NUL character")
        entries = len(calls) + 1 + len(attempts) + 1  # these; its own number; where it may be; the end
        pointers = entries * _ENTRY.size
        first_text = pointers + (len(arguments) + len(environment) + 2) * _POINTER
        self._table = ctypes.create_string_buffer(first_text + len(text))
        self._attempts = len(attempts)
        base = self.address = ctypes.addressof(self._table)
        lengths = (len(one) + 1 for one in texts)
        at = list(accumulate(lengths, initial=base + first_text))
        last = base + (entries - 1) * _ENTRY.size
        parts = [_ENTRY.pack(*call.words, last, _PENDING) for _, call in calls]
        parts.append(_ENTRY.pack(_number["getpid"], *(0,) * 6, last, _PENDING))
        words = base + pointers
        variables = words + (len(arguments) + 1) * _POINTER
        for index in range(len(attempts)):
            here = base + (len(parts) + 1) * _ENTRY.size
            parts.append(_ENTRY.pack(_number["execve"], at[index], words, variables, 0, 0, 0, here, _PENDING))
        parts.append(_ENTRY.pack(_number["exit_group"], _EXIT_STATUS, *(0,) * 5, last, _PENDING))
        middle = len(attempts) + len(arguments)
        addresses = (*at[len(attempts) : middle], 0, *at[middle : len(texts)], 0)
        parts.append(struct.pack(f"={len(addresses)}q", *addresses))
        parts.append(text)
        whole = b"".join(parts)
        ctypes.memmove(base, whole, len(whole))

    def start(self, group: int) -> tuple[int, int]:
        """A child that is at it, its number here and its descriptor; born in the version 2 group of that open directory, if
        it is not below 0.

        Raises OSError: there is no child; its errno is in UNAVAILABLE where there can be none.
        """
        code = _code()
        if code is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        process = ctypes.c_int(-1)
        flags = _CLONE_VM | _CLONE_PIDFD | _CLONE_CLEAR_SIGHAND | (CLONE_INTO_CGROUP if group >= 0 else 0)
        address = ctypes.addressof(process)
        given = CLONE_ARGS.pack(flags, address, 0, 0, signal.SIGCHLD, code.stack, mmap.PAGESIZE, 0, 0, 0, max(group, 0))
        pid = code.start(given, len(given), self.address)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid, process.value

    def progress(self) -> Progress:
        """As it is now."""
        entries = memoryview(self._table).cast("B")[: (len(self._names) + 1 + self._attempts) * _ENTRY.size]
        results = [one[-1] for one in _ENTRY.iter_unpack(entries)]
        steps, own, tries = results[: len(self._names)], results[len(self._names)], results[len(self._names) + 1 :]
        pid = None if own == _PENDING else own
        for name, result in zip(self._names, steps, strict=True):
            if result < 0:
                return Progress(pid, name, -result)
        refused = [-result for result in tries if result < 0]
        if len(refused) < self._attempts:  # it is on its way, was ended there, or has become the program
            return Progress(pid, None, 0)
        obstacles = [number for number in refused if number not in (errno.ENOENT, errno.ENOTDIR)]
        return Progress(pid, "exec", obstacles[0] if obstacles else errno.ENOENT)


class _Code(NamedTuple):
    start: Callable[[bytes, int, int], int]
    stack: int
    """Where the one page begins that all children have as their stack: none writes there."""
    kept: tuple[object, ...]
    """Which hold the memory where it is."""


@functools.cache
def _code() -> _Code | None:
    """None where there is none."""
    text = CODE.get(os.uname().machine)
    if text is None or _POINTER != 8:
        return None
    pages = [mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
    held = tuple(ctypes.c_char.from_buffer(page) for page in pages)
    address, stack = map(ctypes.addressof, held)
    pages[0].write(text)
    protect = ctypes.CDLL(None).mprotect
    if protect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        return None
    kind = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    return _Code(kind(address), stack, held)


def can_start() -> bool:
    """Whether a row can be started here at all. To be asked once in the zygote, so that keepers have the code in common."""
    return _code() is not None
