"""Promise: the keeper goes on watching whatever its box uses up."""

import errno
import os

import pytest

from coldframe.guest.loop import IN, Loop


def test_a_watch_that_cannot_be_had_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    tries = 0
    watch = loop.watch

    def scarce(*arguments: object) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(errno.ENOSPC, "no space")
        watch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "watch", scarce)
    seen, tell = os.pipe()
    os.write(tell, b"x")
    loop.watch_later(0.001, seen, IN, lambda _: loop.stop())
    loop.run()
    assert tries == 3
    loop._epoll.close()
    os.close(seen)
    os.close(tell)


def test_a_timer_in_the_far_future_keeps_nothing_from_running() -> None:
    loop = Loop()
    loop.after(1e308, loop.stop)
    seen, tell = os.pipe()
    loop.watch(seen, IN, lambda _: loop.stop())
    os.write(tell, b"x")
    loop.run()
    loop._epoll.close()
    os.close(seen)
    os.close(tell)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("coldframe.guest.loop.time.monotonic", lambda: self.now_s)


def test_timers_stand_still_while_time_is_held_and_go_on_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, loop, came = Clock(monkeypatch), Loop(), list[str]()
    loop.after(10, lambda: came.append("before"))
    loop.after(10, lambda: came.append("in any case"), while_held=True)
    cancelled = loop.after(10, lambda: came.append("never"))
    clock.now_s += 4
    began = loop.time()
    loop.hold()
    loop.hold()
    loop.after(3, lambda: came.append("meanwhile"))
    clock.now_s += 100
    loop._run_timers()
    assert came == ["in any case"]
    assert loop.time() == began
    cancelled.cancel()
    loop.release()
    loop.release()
    for passes_s, expected in ((2.5, []), (1, ["meanwhile"]), (2, []), (1, ["before"])):
        came.clear()
        clock.now_s += passes_s
        loop._run_timers()
        assert came == expected
    assert loop.time() - began == 6.5
    loop._epoll.close()
