"""What is on record: contracts, receipts, and whom a sandbox reached."""

from typing import Annotated, Literal

from pydantic import Field

from coldframe.contract.artifact import ArtifactKind, ArtifactPage
from coldframe.contract.document import ContractDocument
from coldframe.contract.model import Model
from coldframe.contract.network import NetworkLog
from coldframe.contract.policy import Outcome
from coldframe.contract.receipt import Receipt
from coldframe.control.contacts import Wanted
from coldframe.control.network import MOST_IN_PAGE
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.offers import Asked, offer
from coldframe.fronts.mcp.workspace_tools import WhichSandbox


class WhichContract(WhichSandbox):
    version: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """An earlier one, as it was issued."""


@offer(arguments=WhichContract, answer=ContractDocument, right="sandbox.read", reads=True)
async def get_contract(asked: Asked, which: WhichContract) -> ContractDocument:
    """Contract of a sandbox: inputs, what is executed and enforced and by what, outputs, and what remains at the end."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
    if which.version is None:
        return await asked.control.sandboxes.contract(asked.caller, sandbox_id)
    return asked.control.contracts.version(asked.control.sandboxes.get(asked.caller, sandbox_id), which.version)


class WhichArtifacts(WhichSandbox):
    kinds: tuple[ArtifactKind, ...] = ()
    """All without."""
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


@offer(arguments=WhichArtifacts, answer=ArtifactPage, right="artifact.read", reads=True)
async def list_artifacts(asked: Asked, which: WhichArtifacts) -> ArtifactPage:
    """What the work in a sandbox has left, also when it has ended: sources, generated outputs, what tests left, logs, screenshots and
    downloaded inputs, each with origin, digest and receipt."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
    return await asked.control.artifacts.list(
        asked.caller, sandbox_id, kinds=which.kinds, after=which.after, limit=which.limit
    )


class WhichReceipt(Model):
    receipt_id: Annotated[str, Field(max_length=100)]


@offer(arguments=WhichReceipt, answer=Receipt, right="receipt.read", reads=True)
async def get_receipt(asked: Asked, which: WhichReceipt) -> Receipt:
    """Evidence of one call: what was asked, decided and done, with digests, as the ledger has it."""
    return asked.control.receipts.get(asked.caller, which.receipt_id)


class WhichContacts(WhichSandbox):
    after: Annotated[int, Field(ge=0, lt=2**63)] = 0
    limit: Annotated[int, Field(ge=1, le=MOST_IN_PAGE)] = 100
    outcome: Literal["allow", "ask", "deny"] | None = None
    host: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    """A name, an address, or `*.NAME`."""
    command_id: str | None = None
    lookups: bool = False
    """Also names that were looked up and answered."""


@offer(arguments=WhichContacts, answer=NetworkLog, right="network.read", reads=True)
async def network_log(asked: Asked, which: WhichContacts) -> NetworkLog:
    """Whom a sandbox reached and tried to reach, allowed and denied, with the rule and the command; also after it has ended."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
    wanted = Wanted(
        outcome=None if which.outcome is None else Outcome(which.outcome),
        host=which.host,
        command_id=which.command_id,
        lookups=which.lookups,
    )
    return await asked.control.network.log(asked.caller, sandbox_id, wanted, after=which.after, limit=which.limit)
