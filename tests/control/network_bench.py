"""Rules with a network, and what is asked and told about it."""

from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.network import LoggedContact, NetworkQuestion
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.contacts import Wanted
from tests.control.bench import OWNER, Bench, until
from tests.fakes.network import contact

MEMBER = Caller(token_id="tok_member", role=Role.MEMBER, surface="rest")

RULES = """version: 1
rules:
  - id: secrets-are-confidential
    hook: PRE_TOOL_CALL
    when: {tool: [read_file, write_file], path: {glob: "secrets/*"}}
    label: CONFIDENTIAL
network:
  profiles:
    crm:
      rules:
        - {id: crm, to: api.example.com, label: CONFIDENTIAL}
  use:
    "agent:ada": crm
    "agent:bob": open
"""


def question(info: SandboxInfo, label: Label = Label.CONFIDENTIAL, **facts: Any) -> NetworkQuestion:
    usual: dict[str, Any] = {"question_id": "q1", "kind": "reach", "label": label, "contact": contact(label=label)}
    return NetworkQuestion(sandbox_id=info.sandbox_id, **{**usual, **facts})


async def logged(bench: Bench, info: SandboxInfo, **wanted: Any) -> list[LoggedContact]:
    return list((await bench.control.network.log(OWNER, info.sandbox_id, Wanted(**wanted))).contacts)


async def listened(bench: Bench) -> None:
    """Until the host is listened to, and was told all that it has to know because of that."""
    starts = bench.starts
    await until(lambda: bench.host.has_reader and len(bench.host.rules) >= 2 * starts)
