"""A warm, small Python from which keepers are forked.

Started once per host process with `python -I -S`: the standard library and our own stdlib-only files,
nothing else, so that a keeper costs little memory and starts in a few milliseconds. It knows no
sandbox; each request on its socket is one Order with its descriptors, answered by the fork itself.
End of file on the socket ends the zygote and nothing but the zygote.
"""

import array
import contextlib
import gc
import json
import os
import signal
import socket

from coldframe.host import birth, confine, keeper

MAX_ORDER_BYTES = 65536
MAX_FILES = 16


def main() -> None:
    """Serve the socket that is descriptor 3."""
    channel = socket.socket(fileno=3)
    keeper.prepare()
    confine.set_subreaper()  # what a keeper killed at its work leaves is reaped here, and `strays.py` finds it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Keepers are reaped by the kernel: nobody waits for them here, their end is seen on their sockets.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        message, files = _receive(channel)
        if not message:
            break
        order = keeper.Order(**json.loads(message))
        given = dict(zip(order.files, files, strict=True))
        try:
            # Where it cannot be born in its group, the machine moves it there.
            pid, _ = birth.Births(possible=True).fork(given.get("birthplace", -1), goes_on=True)
        except OSError as error:  # this order fails, and not those that wait behind it
            _refuse(given["answer"], f"no keeper could be forked: {error.strerror}")
            pid = -1
        if pid == 0:
            channel.close()
            _settle()
            keeper.become_keeper(order, given)
        for file in files:
            os.close(file)
    os._exit(0)


def _refuse(answer: int, reason: str) -> None:
    with socket.socket(fileno=os.dup(answer)) as machine, contextlib.suppress(OSError):
        machine.send(json.dumps({"failed": reason}).encode())


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    files = array.array("i")
    message, ancillary, _, _ = channel.recvmsg(MAX_ORDER_BYTES, socket.CMSG_SPACE(MAX_FILES * files.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    for file in files:
        os.set_inheritable(file, False)
    return message, list(files)


def _settle() -> None:
    """In the new keeper: a session of its own and then its name, default signals, no terminal."""
    os.setsid()
    with open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write(birth.KEEPER_NAME)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
