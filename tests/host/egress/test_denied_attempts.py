"""What a box was denied is told in few messages, and none of it is left out."""

from datetime import UTC, datetime

from coldframe.host.egress.contact import EgressContact
from coldframe.host.egress.denied_attempts import BUDGET, BUDGET_PER_S, MOST_KINDS, TOLD_EACH, DeniedAttempts

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Bench:
    def __init__(self) -> None:
        self.time = 0.0
        self.told: list[EgressContact] = []
        self.denials = DeniedAttempts(self.told.append, lambda: self.time)
        self._numbers = iter(range(1_000_000))

    def is_spent(self) -> bool:
        return self.denials.is_spent

    def deny(self, name: str, *, port: int = 443) -> None:
        contact = EgressContact(f"c-{next(self._numbers)}", "sb-1", "tcp", "198.18.1.0", port, NOW, name=name)
        self.denials.add(contact)


def test_equal_attempts_are_told_one_by_one_at_first_and_then_as_one() -> None:
    bench = Bench()
    for _ in range(1000):
        bench.deny("a.example.com")
    assert [one.times for one in bench.told] == [1] * TOLD_EACH and bench.denials.has_sums
    bench.denials.tell_sums()
    assert [one.times for one in bench.told] == [*([1] * TOLD_EACH), 1000 - TOLD_EACH]
    bench.denials.tell_sums()  # nothing is told twice
    bench.deny("a.example.com")
    bench.deny("a.example.com", port=80)
    assert [(one.port, one.times) for one in bench.told[TOLD_EACH + 1 :]] == [(80, 1)]


def test_no_attempt_is_left_out_when_there_are_too_many_kinds_to_tell_apart() -> None:
    bench = Bench()
    for number in range(2 * MOST_KINDS + 10):
        for _ in range(TOLD_EACH + 2):
            bench.deny(f"n{number}.example.com")
    bench.denials.tell_sums()
    assert sum(one.times for one in bench.told) == (2 * MOST_KINDS + 10) * (TOLD_EACH + 2)


def test_the_budget_is_spent_by_what_is_told_and_comes_back_with_time() -> None:
    bench = Bench()
    for number in range(int(BUDGET)):
        assert not bench.is_spent()
        bench.deny(f"n{number}.example.com")
    assert bench.is_spent()
    for _ in range(100_000):  # said already
        bench.deny("n1.example.com")
    bench.time += (TOLD_EACH + 1) / BUDGET_PER_S
    assert not bench.is_spent()
    bench.time += 1e6
    for _ in range(int(BUDGET)):
        assert not bench.is_spent()
        bench.denials.spend()
    assert bench.is_spent()
