"""What the boxes of one broker share: rules, the record, and what there is of descriptors and numbers."""

import asyncio
import itertools
import resource
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from coldframe.host.egress.carry import (
    Pipes,
)
from coldframe.host.egress.contact import Journal
from coldframe.host.egress.passage import Interceptor
from coldframe.host.egress.proxy import Proxies
from coldframe.host.egress.resolver import Resolve, Turns
from coldframe.policy.addresses import Address
from coldframe.policy.network import NetworkVerdict, Origin
from coldframe.policy.network_rules import NetworkRules, Scheme
from coldframe.policy.targets import Target

MOST_CONNECTIONS = 1024
"""Of one box at once, or a quarter of the descriptors there are, of which each takes two; a further one is reset. A
browser opens some hundred."""
MOST_FAULTS = 100
"""That are told; of further ones only the record of the connection says that there was one."""


class Narrow(Protocol):
    """What rules beside the section `network` make of a verdict: the same, or a stricter one."""

    def __call__(
        self,
        verdict: NetworkVerdict,
        origin: Origin,
        destination: str | Address,
        port: int,
        scheme: Scheme,
        request: tuple[str, Target] | None = None,
    ) -> NetworkVerdict: ...


class Shared:
    """Of one broker."""

    def __init__(
        self,
        rules: NetworkRules,
        journal: Journal,
        *,
        resolve: Resolve,
        clock: Callable[[], datetime],
        intercept: Interceptor | None,
        on_name: Callable[[str, str, int, str | None], None],
    ) -> None:
        """*on_name* hears of each name that a box is given an address for, before the box does."""
        self.rules = rules
        self.narrow: Narrow | None = None
        """Where there are rules of NETWORK_EGRESS."""
        self.journal = journal
        self.resolve = resolve
        self.clock = clock
        self.intercept = intercept
        self.on_name = on_name
        self.pipes = Pipes()
        self.questions = Turns()
        self.proxies = Proxies()
        self.most_connections = _most_connections()
        self._faults = 0
        self._run = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def tell_fault(self, what: str, error: BaseException) -> None:
        """Something of ours went wrong for one box. The others must not suffer from it, nor a log without end."""
        self._faults += 1
        if self._faults <= MOST_FAULTS:
            asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})

    def new_id(self) -> str:
        return f"{self._run}-{next(self._numbers)}"


def _most_connections() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, descriptors // 4)
