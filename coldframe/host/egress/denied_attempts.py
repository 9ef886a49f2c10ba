"""Denied attempts of one box on their way to the record, and how much may be said of a box.

A box can try without end, and what is said of an attempt costs the host daemon more than the attempt costs the box. So
equal attempts are added up, and whatever is said has a budget. When it is spent nothing is taken from the box for a
moment: what it sends waits in the kernel. Nothing is left out of the sums.
"""

from collections.abc import Callable

from coldframe.host.egress.contact import EgressContact

TOLD_EACH = 10
"""Of equal attempts, one by one; further ones are added up."""
SUM_S = 1.0
"""How long they are added up before they are told."""
MOST_KINDS = 1000
"""That are told apart; then counting begins anew."""
BUDGET, BUDGET_PER_S = 1000.0, 100.0
"""Messages about one box: at once, and as it goes on. A program that sets up a project asks for some hundred names."""

_Kind = tuple[str, str, int, str]


class DeniedAttempts:
    """Of one box. Whoever owns it calls `tell_sums` about every SUM_S, and stops listening to the box while `is_spent`."""

    def __init__(self, tell: Callable[[EgressContact], None], clock: Callable[[], float]) -> None:
        """*clock* in seconds, from anywhere."""
        self._tell = tell
        self._clock = clock
        self._times: dict[_Kind, int] = {}
        self._sums: dict[_Kind, EgressContact] = {}
        self._budget = BUDGET
        self._counted_at = clock()

    @property
    def has_sums(self) -> bool:
        return bool(self._sums)

    @property
    def is_spent(self) -> bool:
        self._count()
        return self._budget < 1

    def spend(self) -> None:
        """Something else was said of the box."""
        self._count()
        self._budget -= 1

    def add(self, contact: EgressContact) -> bool:
        """An attempt that was denied and has ended. It may be changed here. Whether it was told by itself."""
        kind = contact.protocol, contact.name or contact.address, contact.port, contact.rule_id
        self._times[kind] = self._times.get(kind, 0) + 1
        held = self._sums.get(kind)
        is_told = self._times[kind] <= TOLD_EACH
        if is_told:
            self.spend()
            self._tell(contact)
        elif held is None:
            self._sums[kind] = contact
        else:
            held.times += 1
            held.ended_at = contact.ended_at
        if len(self._times) > MOST_KINDS:
            self.tell_sums()
            self._times.clear()
        return is_told

    def tell_sums(self) -> None:
        sums, self._sums = self._sums, {}
        for one in sums.values():
            self.spend()
            self._tell(one)

    def _count(self) -> None:
        now = self._clock()
        self._budget = min(BUDGET, self._budget + (now - self._counted_at) * BUDGET_PER_S)
        self._counted_at = now
