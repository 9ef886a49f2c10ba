"""Input that stays open arrives whole and once, in order, whatever is sent again, lost or given up on its way."""

import os
import pty
import tty
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldframe.guest.input import HELD_BYTES, MOST_SENT_BYTES, Input, Sending, Taken
from coldframe.guest.loop import Loop, Timer
from coldframe.guest.verbs import Failure

PIPE_BYTES = 64 * 1024


class Turns:
    """In place of the loop: time passes, and room is found, when the test says so."""

    def __init__(self) -> None:
        self.on_room: Callable[[int], None] | None = None
        self.timers: list[Timer] = []
        self.later: list[Callable[[], None]] = []

    def watch(self, _: int, __: int, handler: Callable[[int], None]) -> None:
        self.on_room = handler

    def forget(self, _: int) -> None:
        self.on_room = None

    def after(self, _: float, action: Callable[[], None], *, while_held: bool = False) -> Timer:
        self.timers.append(Timer(action))
        return self.timers[-1]

    def soon(self, action: Callable[[], None]) -> None:
        self.later.append(action)

    def turn(self) -> None:
        if self.on_room is not None:
            self.on_room(0)
        actions, self.later = self.later, []
        for action in actions:
            action()

    def let_time_pass(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            if timer.action is not None:
                timer.action()


class Fed:
    """An input with the end from which its command reads."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.read_end, write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(write_end, False)
        self.answers: list[Taken | Failure] = []
        self.noted = 0
        self.input = Input(cast(Loop, self.turns), write_end, is_terminal=False, on_taken=self.note)

    def note(self) -> None:
        self.noted += 1

    def send(self, data: bytes, offset: int | None = None, *, end: bool = False) -> Sending:
        sending = Sending(offset, data, end=end, done=self.answers.append)
        self.input.send(sending)
        return sending

    def read(self, length: int = 1 << 22) -> bytes:
        found = bytearray()
        while len(found) < length:
            try:
                data = os.read(self.read_end, length - len(found))
            except BlockingIOError:
                if self.turns.on_room is None:
                    break
                self.turns.turn()
                continue
            if not data:
                break
            found += data
        return bytes(found)

    def close(self) -> None:
        self.input.close()
        os.close(self.read_end)


@pytest.fixture
def fed() -> Iterator[Fed]:
    made = Fed()
    yield made
    made.close()


def codes(answers: list[Taken | Failure]) -> list[str | int]:
    return [one.code if isinstance(one, Failure) else one.bytes for one in answers]


def test_who_sends_more_than_there_is_room_for_waits_until_it_is_read(fed: Fed) -> None:
    part = os.urandom(MOST_SENT_BYTES)
    fed.send(part, 0)
    assert fed.answers == [Taken(len(part), len(part) - PIPE_BYTES, open=True)]
    fed.send(part, len(part), end=True)
    assert len(fed.answers) == 1
    assert fed.input.state().waiting <= HELD_BYTES
    assert fed.read(2 * len(part)) == part + part
    assert codes(fed.answers) == [len(part), 2 * len(part)]
    assert fed.read() == b""
    assert not fed.input.state().open


def test_who_waits_too_long_is_told_how_much_was_taken_and_goes_on_there(fed: Fed) -> None:
    part = os.urandom(MOST_SENT_BYTES)
    fed.send(part, 0)
    fed.send(part, len(part))
    fed.turns.let_time_pass()
    taken = fed.answers[1]
    assert isinstance(taken, Taken)
    assert len(part) < taken.bytes < 2 * len(part)
    fed.send(part[taken.bytes - len(part) :], taken.bytes)
    fed.send(part, len(part))  # the whole once more, as by somebody who did not hear
    assert fed.read(2 * len(part)) == part + part
    assert codes(fed.answers)[2:] == [2 * len(part)] * 2
    assert fed.read() == b""


def test_nothing_more_is_taken_from_who_has_gone(fed: Fed) -> None:
    part = os.urandom(MOST_SENT_BYTES)
    fed.send(part, 0)
    gone = fed.send(part, len(part))
    before = fed.input.state().bytes
    fed.input.withdraw(gone)
    fed.send(b"other", before)
    fed.turns.turn()
    assert fed.read() == (part + part)[:before] + b"other"
    assert codes(fed.answers) == [len(part), before + 5]


def test_what_does_not_fit_what_was_taken_is_refused(fed: Fed) -> None:
    fed.send(b"abcd", 0)
    for data, offset, end in ((b"abX", 0, False), (b"x", 5, False), (b"bc", 1, True)):
        fed.send(data, offset, end=end)
    fed.send(b"bc", 1)
    fed.send(b"cde", 2)
    fed.send(b"", 5, end=True)
    fed.send(b"de", 3, end=True)
    fed.send(b"f", 5)
    fed.send(b"f")
    assert codes(fed.answers) == [4, "CONFLICT", "CONFLICT", "CONFLICT", 4, 5, 5, 5, "WRONG_STATE", "WRONG_STATE"]
    assert fed.read() == b"abcde"
    assert fed.noted == 2
    with pytest.raises(Failure, match="at most"):
        fed.send(b"x" * (MOST_SENT_BYTES + 1))
    with pytest.raises(Failure, match="negative"):
        fed.send(b"x", -1)


def test_input_that_nobody_reads_any_more_is_refused_and_who_waits_is_told() -> None:
    fed = Fed()
    part = os.urandom(MOST_SENT_BYTES)
    fed.send(part, 0)
    fed.send(part, len(part))
    os.close(fed.read_end)
    fed.turns.turn()
    assert codes(fed.answers)[1:] == ["WRONG_STATE"]
    fed.send(b"x")
    assert codes(fed.answers)[2:] == ["WRONG_STATE"]
    fed.input.close()


def test_the_end_of_the_command_answers_everybody(fed: Fed) -> None:
    part = os.urandom(MOST_SENT_BYTES)
    fed.send(part, 0)
    fed.send(part, len(part))
    fed.send(part, 2 * len(part))
    fed.input.close()
    assert codes(fed.answers)[1:] == ["WRONG_STATE", "CONFLICT"]
    taken = fed.input.state().bytes
    fed.send(part[: taken - len(part)], len(part))  # all of which was taken
    assert codes(fed.answers)[3:] == [taken]


def test_a_terminal_gets_its_end_of_input_once_and_goes_on() -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    os.set_blocking(ours, False)
    turns = Turns()
    answers: list[Taken | Failure] = []
    typed = Input(cast(Loop, turns), ours, is_terminal=True, on_taken=lambda: None)
    for _ in range(2):
        typed.send(Sending(0, b"a\n", end=True, done=answers.append))
    typed.send(Sending(3, b"b", end=False, done=answers.append))
    read = b""
    while len(read) < 4:  # the kernel hands it over in its own time
        read += os.read(theirs, 100)
    assert read == b"a\n\x04b"
    assert codes(answers) == [3, 3, 4]
    typed.close()
    os.close(ours)
    os.close(theirs)


@given(
    data=st.binary(min_size=1, max_size=600_000),
    steps=st.lists(st.tuples(st.sampled_from(["send", "again", "read", "wait", "gone"]), st.integers(1, 300_000))),
)
def test_whatever_is_sent_again_lost_or_given_up_the_command_reads_each_byte_once(
    data: bytes, steps: list[tuple[str, int]]
) -> None:
    fed = Fed()
    heard = bytearray()
    waiting: Sending | None = None
    for step, number in [*steps, ("read", 1 << 22)]:
        known = fed.input.state().bytes
        if step == "send":
            waiting = fed.send(data[known : known + min(number, MOST_SENT_BYTES)], known)
        elif step == "again":
            start = max(0, known - min(number, HELD_BYTES))
            fed.send(data[start : start + MOST_SENT_BYTES], start)
        elif step == "read":
            heard += fed.read(number)
        elif step == "wait":
            fed.turns.let_time_pass()
        elif waiting is not None:
            fed.input.withdraw(waiting)
        fed.turns.turn()
    fed.turns.let_time_pass()
    sent = fed.input.state().bytes
    heard += fed.read()
    assert bytes(heard) == data[:sent]
    assert "CONFLICT" not in codes(fed.answers)
    fed.close()
