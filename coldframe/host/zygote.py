"""A warm, small Python from which keepers are forked.

Started once per host process with `python -I -S`: the standard library and our own stdlib-only files,
nothing else, so that a keeper costs little memory and starts in a few milliseconds. It knows no
sandbox; each request on its socket is one Order with its descriptors, answered by the fork itself; or descriptors alone,
for a keeper that is forked ahead of need and gets its order later, on the first of them; or what keepers write, without any.
End of file on the socket ends the zygote and nothing but the zygote.
"""

import contextlib
import gc
import json
import os
import signal
import socket

from coldframe.guest import spawn
from coldframe.host import birth, confine, keeper, written_pages
from coldframe.host.conversation import receive, require_whole


def main() -> None:
    """Serve the socket that is descriptor 3."""
    channel = socket.socket(fileno=3)
    keeper.prepare()
    spawn.settle_calls()
    confine.set_subreaper()  # what a keeper killed at its work leaves is reaped here, and `strays.py` finds it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Keepers are reaped by the kernel: nobody waits for them here, their end is seen on their sockets.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    written: written_pages.Ranges = []
    while True:
        message, flags, files = receive(channel)
        if not message:
            break
        pid = -1
        try:
            if not files:
                written = json.loads(message)["written"]
                continue
            order, given = _read(message, flags, files)
            # Where it cannot be born in its group, the machine moves it there.
            pid, _ = birth.Births(possible=True).fork(given.get("birthplace", -1), goes_on=True)
        except OSError as error:  # this order fails, and not those that wait behind it
            _refuse(files, f"no keeper could be forked: {error.strerror}")
        except (ValueError, TypeError, KeyError) as error:
            _refuse(files, f"the order of a keeper could not be read: {error}")
        if pid == 0:
            channel.close()
            _settle()
            if isinstance(order, keeper.Order):
                written_pages.copy_ahead(written)
                keeper.become_keeper(order, given)
            else:
                _wait_for_order(order, given, written)
        for file in files:
            os.close(file)
    os._exit(0)


def _wait_for_order(likely: keeper.Likely | None, given: dict[str, int], written: written_pages.Ranges) -> None:
    """In a keeper that was forked ahead: build what is ordered, once something is. It ends here if the machine is gone."""
    answer = given.pop("answer")
    machine = socket.socket(fileno=answer)
    begun = None
    message = b""
    with contextlib.suppress(OSError):
        keeper.greet(machine)
        written_pages.copy_ahead(written)
        begun = None if likely is None else keeper.begin(likely, given)
        for file in given.values():
            os.close(file)
        message, flags, files = receive(machine)
    if not message:
        os._exit(0)
    try:
        order, more = _read(message, flags, files)
        if not isinstance(order, keeper.Order):
            raise ValueError("it is none")
    except (ValueError, TypeError) as error:
        _refuse([answer], f"the order of a keeper could not be read: {error}")
        os._exit(1)
    machine.detach()
    keeper.become_keeper(order, {"answer": answer, **more}, is_known=True, begun=begun)


def _read(message: bytes, flags: int, files: list[int]) -> tuple[keeper.Order | keeper.Likely | None, dict[str, int]]:
    """An order, or for one that comes later whose it is likely to be, if that is known; and its descriptors by what they are.

    Raises:
        ValueError, TypeError: it is none, or did not come whole.
    """
    require_whole(flags)
    given = json.loads(message)
    if not isinstance(given, dict):
        raise ValueError("it is no object")
    named = dict(zip(given["files"], files, strict=True))
    if given.keys() == {"files", "likely"}:
        return None if given["likely"] is None else keeper.Likely(**given["likely"]), named
    return keeper.Order(**given), named


def _refuse(files: list[int], reason: str) -> None:
    """Tell the machine through the first descriptor, which is the one to answer on."""
    with (
        contextlib.suppress(OSError, IndexError),
        socket.fromfd(files[0], socket.AF_UNIX, socket.SOCK_SEQPACKET) as machine,
    ):
        machine.send(json.dumps({"failed": reason}).encode())


def _settle() -> None:
    """In the new keeper: a session of its own and then its name, default signals, no terminal."""
    os.setsid()
    name = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)  # not `open`, which loads an encoding in each keeper
    os.write(name, birth.KEEPER_NAME.encode())
    os.close(name)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
