"""Packages of the system that a box has of its own, read from inside: while it is in use nobody else sees what it is like.

Only a keeper answers this. Elsewhere the root would be that of the host.
"""

import os
from typing import Any

from coldframe.guest.packages import found_below
from coldframe.guest.trees import READ_DIRECTORY
from coldframe.guest.verbs import Answer, verb


@verb("list_system_packages", slow=True)
def list_system_packages(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ListSystemPackages."""
    system = os.open("/", READ_DIRECTORY)
    try:
        return found_below(system, request, device=os.fstat(system).st_dev), b""
    finally:
        os.close(system)
