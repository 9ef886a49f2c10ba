"""Landlock: a process gives up files for good that it does not need, without any privilege.

What is not named here is refused, wherever it lies and whatever its mode says. The kernel asks about opening, making and
removing, in no version so far about looking (stat), about changing modes, owners and times, and about connecting to a
unix socket by its path: who needs those refused as well does it by the system call filter (`seccomp.py`, ``broker``).

Descriptors that are open already stay as they are, but what is opened beneath a directory by way of one is asked about.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from coldframe.host.confine import ConfineError

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The same on every machine."""
_PATH_BENEATH = 1
_GET_VERSION = 1

_EXECUTE, _WRITE, _READ, _LIST, _REMOVE_DIRECTORY, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIRECTORY, _MAKE_FILE, _REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 7, 1 << 8, 1 << 13, 1 << 14, 1 << 15
_FILES_OF_ABI = {1: (1 << 13) - 1, 2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEVICE}
_ONLY_OF_DIRECTORIES = ~(_EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL_DEVICE)
_BIND_TCP, _ABI_OF_NETWORK = 1, 4
_ABSTRACT_SOCKETS, _SIGNALS, _ABI_OF_SCOPES = 1, 2, 6

READ = _READ | _LIST
CHANGE = READ | _WRITE | _TRUNCATE | _MAKE_FILE | _MAKE_DIRECTORY | _REMOVE_FILE | _REMOVE_DIRECTORY | _REFER
"""Of regular files and directories; nothing else is made."""

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Of the kernel's interface; 0 if it has none, or was started without."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _GET_VERSION)))


def describe_gaps(abi: int) -> tuple[str, ...]:
    """What the kernel does not hold of what `restrict` wants, for people."""
    if abi < 1:
        return ("the kernel has no Landlock, so every file of its user is open to it",)
    return ("the kernel's Landlock is older than 6.2, so it can empty the files of its user",) if abi < 3 else ()


def restrict(readable: Iterable[str], changeable: Iterable[int] = ()) -> tuple[str, ...]:
    """Give up all files but these, for this thread and what it starts. What this kernel does not hold of it.

    Also given up are waiting for TCP connections at an address, and abstract sockets and processes that are not beneath
    this one, where the kernel knows that. Needs no_new_privs.

    *readable*: directories with all that is in them, or files; one that does not exist is left out. *changeable*:
    descriptors of directories. Raises ConfineError: it has to end then.
    """
    abi = version()
    if abi < 1:
        return describe_gaps(abi)
    handled = 0
    for since, rights in _FILES_OF_ABI.items():
        handled |= rights if abi >= since else 0
    network = _BIND_TCP if abi >= _ABI_OF_NETWORK else 0
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if abi >= _ABI_OF_SCOPES else 0
    wanted = struct.pack("=QQQ", handled, network, scoped)[: 24 if scoped else 16 if network else 8]
    rules = _call("make a Landlock rule set", _CREATE_RULESET, wanted, ctypes.c_size_t(len(wanted)), 0)
    try:
        for path in readable:
            try:
                file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                _allow(rules, file, READ & handled)
            finally:
                os.close(file)
        for directory in changeable:
            _allow(rules, directory, CHANGE & handled)
        _call("restrict itself by Landlock", _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    return describe_gaps(abi)


def _allow(rules: int, file: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(file).st_mode):
        rights &= ~_ONLY_OF_DIRECTORIES
    _call("add a Landlock rule", _ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, file), 0)


def _call(step: str, number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise ConfineError(step, os.strerror(ctypes.get_errno()))
    return result
