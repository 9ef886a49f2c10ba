"""Where Python packages are found in a box: the system's first, then those of the user, then what the host lends."""

import os
import site
import sys

LENT = f"/opt/coldframe/interpreter/python{sys.version_info.major}.{sys.version_info.minor}"
"""For a system that has no kernel of its own."""
CODE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""What the driver was loaded from; nothing for cells to find."""


def find_packages() -> None:
    """Let them be found by this process."""
    own = site.getusersitepackages()
    if own not in sys.path:
        sys.path.append(own)  # also before anything is there: what a cell installs is found at once
    if os.path.isdir(LENT):
        sys.path.append(LENT)


def hide_own() -> None:
    """Leave cells nothing of the driver to import."""
    sys.path[:] = [place for place in sys.path if place != CODE]
