"""Every model that the SDK gives or takes, each imported when it is first needed.

pydantic and the models of the contract take longer to import than everything else of the SDK, and most programs
need few of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coldframe.client.answers import (
        CommandAnswer,
        Edited,
        FileContent,
        Found,
        Listing,
        LiveRules,
        Written,
    )
    from coldframe.contract.caller import TokenInfo
    from coldframe.contract.command import CommandEvent, CommandInfo, Contact, Ended, OutputChunk, Started
    from coldframe.contract.credential import CredentialInfo, CredentialUse, HandleInfo
    from coldframe.contract.files import ProcessInfo, Runtime
    from coldframe.contract.isolation import IsolationReport
    from coldframe.contract.ledger import LedgerEntry, LedgerVerdict
    from coldframe.contract.network import LoggedContact, NetworkContact, NetworkLog, ReachedBy
    from coldframe.contract.policy import Label
    from coldframe.contract.sandbox import AgentInfo, Limits, SandboxInfo, SandboxSpec, SessionInfo
    from coldframe.contract.tool import AllowedOperation, OutputWindow, ToolInfo, ToolResult

_HOMES = {
    "client.answers": ("CommandAnswer", "Edited", "FileContent", "Found", "Listing", "LiveRules", "Written"),
    "contract.caller": ("TokenInfo",),
    "contract.command": ("CommandEvent", "CommandInfo", "Contact", "Ended", "OutputChunk", "Started"),
    "contract.credential": ("CredentialInfo", "CredentialUse", "HandleInfo"),
    "contract.files": ("ProcessInfo", "Runtime"),
    "contract.isolation": ("IsolationReport",),
    "contract.ledger": ("LedgerEntry", "LedgerVerdict"),
    "contract.network": ("LoggedContact", "NetworkContact", "NetworkLog", "ReachedBy"),
    "contract.policy": ("Label",),
    "contract.sandbox": ("AgentInfo", "Limits", "SandboxInfo", "SandboxSpec", "SessionInfo"),
    "contract.tool": ("AllowedOperation", "OutputWindow", "ToolInfo", "ToolResult"),
}
__all__ = [
    "AgentInfo",
    "AllowedOperation",
    "CommandAnswer",
    "CommandEvent",
    "CommandInfo",
    "Contact",
    "CredentialInfo",
    "CredentialUse",
    "Edited",
    "Ended",
    "FileContent",
    "Found",
    "HandleInfo",
    "IsolationReport",
    "Label",
    "LedgerEntry",
    "LedgerVerdict",
    "Limits",
    "Listing",
    "LiveRules",
    "LoggedContact",
    "NetworkContact",
    "NetworkLog",
    "OutputChunk",
    "OutputWindow",
    "ProcessInfo",
    "ReachedBy",
    "Runtime",
    "SandboxInfo",
    "SandboxSpec",
    "SessionInfo",
    "Started",
    "TokenInfo",
    "ToolInfo",
    "ToolResult",
    "Written",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = getattr(importlib.import_module(f"coldframe.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
