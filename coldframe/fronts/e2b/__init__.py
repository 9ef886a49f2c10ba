"""The E2B protocol: with the address and a key of ours, its SDKs work unchanged.

`control.py` is the control API, one file for each of its nouns beside it; the data plane of a sandbox is `envd`, its
code interpreter `cells`. What each of them needs of the host name and headers was read by the edge.
"""

from typing import Literal

from coldframe.control.control import Control
from coldframe.fronts.edge import Apps


def make_apps(control: Control, *, on_missing: Literal["refuse", "degrade"] = "degrade") -> Apps:
    """Who answers what at the edge. *on_missing* is the operator's word for all sandboxes. Loaded at the first request there: most starts of a server see none."""
    from coldframe.fronts.e2b.cells import CellsApi
    from coldframe.fronts.e2b.control import ControlApi
    from coldframe.fronts.e2b.data_plane import DataPlane
    from coldframe.fronts.e2b.gateway import Gateway
    from coldframe.fronts.previews.enter import make_door

    return {
        "preview": make_door(control.previews.access),
        "control": ControlApi(control, on_missing=on_missing),
        "envd": Gateway(control, DataPlane(control)),
        "cells": Gateway(control, CellsApi(control)),
    }
