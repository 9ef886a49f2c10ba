"""All targets by name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.fuzz.archives import Archives
from tests.fuzz.diagnoses import Diagnoses
from tests.fuzz.e2b_bodies import E2bBodies
from tests.fuzz.e2b_builds import E2bBuilds
from tests.fuzz.mcp import Mcp
from tests.fuzz.paths import Paths
from tests.fuzz.recipes import Recipes
from tests.fuzz.relays import Relays
from tests.fuzz.tampering import Tampering
from tests.fuzz.target import Target
from tests.fuzz.texts import Frames, Rules, Shell
from tests.fuzz.wires import HostDaemon, Keeper

TARGETS: dict[str, Callable[[], Target]] = {
    "rules": Rules,
    "shell": Shell,
    "frames": Frames,
    "paths": Paths,
    "keeper": Keeper,
    "daemon": HostDaemon,
    "tampering": Tampering,
    "recipes": Recipes,
    "e2b-builds": E2bBuilds,
    "archives": Archives,
    "diagnoses": Diagnoses,
    "mcp": Mcp,
    "e2b-bodies": E2bBodies,
    "relays": Relays,
}
HARMLESS_ONLY = ("paths", "keeper", "daemon")
"""Run as an ordinary user: what is looked for there is a way to what lies outside."""


@contextmanager
def opened(name: str) -> Iterator[Target]:
    target = TARGETS[name]()
    try:
        yield target
    finally:
        close = getattr(target, "close", None)
        if close is not None:
            close()
