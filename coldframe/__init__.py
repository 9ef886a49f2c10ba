"""Coldframe: a self-hosted computer for AI agents.

`Coldframe` (asyncio) and `SyncColdframe` are the clients of an installation; `errors` holds what they raise.
They are imported when they are first asked for, so that the parts of the product that need neither stay light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coldframe.client.api import Coldframe
    from coldframe.client.sync import SyncColdframe
    from coldframe.contract import errors

__version__ = "0.1.0"
__all__ = ["Coldframe", "SyncColdframe", "__version__", "errors"]
_HOMES = {"Coldframe": "coldframe.client.api", "SyncColdframe": "coldframe.client.sync"}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("coldframe.contract.errors")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module `coldframe` has no attribute `{name}`")
