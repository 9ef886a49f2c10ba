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
