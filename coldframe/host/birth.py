"""A fork whose child is born in its control group, instead of moving there.

To move, a process must wait until nobody in the whole machine is being forked or ends, and the kernel makes sure of
that with a grace period if nobody has moved for a while: measured 6 to 18 ms, longer than all else that starting a
command takes. In version 2 only being born in the group avoids it; in version 1 a process that moves its one thread
through ``tasks`` does as well (see `groups.py`).

The keeper is filtered like the box, but for clone3, whose arguments lie in memory where no filter sees them. Whatever
it forks forbids itself that call before anything else (`seccomp.build_filter("newborn")`). Beside the filter it is
the box's user namespace, which allows no other below it, that keeps the keeper from making namespaces.
"""

import ctypes
import os
import signal

from coldframe.guest.rows import CLONE_ARGS, CLONE_INTO_CGROUP, UNAVAILABLE

_SYS_CLONE3 = 435
"""On every architecture."""
KEEPER_NAME = "cf-keeper"
"""What the kernel calls a keeper from when it has a session of its own, and its forks until they exec. `strays.py` asks."""
MAX_ORDER_BYTES = 65536
"""Of the message with which the machine orders a keeper from the zygote."""


_python = ctypes.pythonapi
_call = ctypes.PyDLL(None, use_errno=True).syscall  # not CDLL: nothing may let go of the interpreter's lock in between
_call.restype = ctypes.c_long
_call.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t)


def fork_into(group: int, *, goes_on: bool = False) -> int:
    """As os.fork by a process with one thread, but for what the C library does after a fork, and Python too unless the
    child `goes_on` as Python: it may run a few lines then, and must exec or end.

    `group` is the open directory of a version 2 group. Raises OSError; its errno is in `UNAVAILABLE` where there is
    no such fork.
    """
    arguments = CLONE_ARGS.pack(CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
    if goes_on:
        _python.PyOS_BeforeFork()
    pid: int = _call(_SYS_CLONE3, arguments, CLONE_ARGS.size)
    if goes_on:
        (_python.PyOS_AfterFork_Parent if pid else _python.PyOS_AfterFork_Child)()
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


class Births:
    """Forks for one box, into groups as long as that is found possible."""

    def __init__(self, *, possible: bool) -> None:
        self.possible = possible

    def fork(self, birthplace: int, *, goes_on: bool = False) -> tuple[int, bool]:
        """As os.fork, and whether the child was born in the group behind `birthplace` (-1 for none). Raises OSError.

        A child that is not said to go on as Python must exec or end soon.
        """
        if birthplace >= 0 and self.possible:
            try:
                return fork_into(birthplace, goes_on=goes_on), True
            except OSError as error:
                if error.errno not in UNAVAILABLE:
                    raise
                self.possible = False
        return os.fork(), False
