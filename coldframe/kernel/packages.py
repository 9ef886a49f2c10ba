"""Where Python packages are found in a box: those of the user first, and then what its system has, or what the host lends.

In a system of its own, what that has comes first. That of the machine has what the machine needs, in versions of its own, so
there what is lent comes first, of which each package fits the others.
"""

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
    if not os.path.isdir(LENT):
        return
    if os.statvfs("/usr").f_flag & os.ST_RDONLY:  # the machine's own system: its packages are not made for cells
        systems = [number for number, place in enumerate(sys.path) if place.endswith("dist-packages")]
        sys.path.insert(min(systems, default=len(sys.path)), LENT)
        sys.path.remove(own)
        sys.path.insert(sys.path.index(LENT), own)
    else:
        sys.path.append(LENT)


def hide_own() -> None:
    """Leave cells nothing of the driver to import."""
    sys.path[:] = [place for place in sys.path if place != CODE]
