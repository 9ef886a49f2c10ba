"""Contracts of sandboxes that run are made anew when the rules have changed, so that each change is a version of its own and
receipts name the one that held. At a start as well: the rules may be others by then, or a change not carried to its end."""

import asyncio
import logging

from coldframe.contract.errors import ColdframeError
from coldframe.contract.sandbox import WITH_BOX
from coldframe.control.contracts import Contracts
from coldframe.control.sandboxes import Sandboxes

_log = logging.getLogger(__name__)


class ContractRenewal:
    """Over all sandboxes of this installation."""

    def __init__(self, contracts: Contracts, sandboxes: Sandboxes) -> None:
        self._contracts = contracts
        self._sandboxes = sandboxes

    async def renew(self) -> None:
        """One after another, and others get their turn between. What fails is made good when the contract is read."""
        for info in self._sandboxes.with_box():
            now = self._sandboxes.find(info.sandbox_id)
            if now.state.state not in WITH_BOX:  # it has ended meanwhile, under the contract that it had
                continue
            if self._contracts.is_of_the_rules_in_force(now):
                continue
            try:
                self._contracts.issue(now, self._sandboxes.measured(info.sandbox_id))
            except ColdframeError as error:
                _log.warning("the contract of `%s` was not made anew: %s", info.sandbox_id, error.message)
            await asyncio.sleep(0)
