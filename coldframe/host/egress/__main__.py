"""Starts the broker's process; `process.py` says what it is. The host daemon does this, and nobody else."""

import os
import sys

if __name__ == "__main__":
    home = os.path.abspath(__file__)
    for _ in ("egress", "host", "coldframe", "."):
        home = os.path.dirname(home)
    # This copy of the package and no other one that is installed; all else comes from where it always does.
    sys.path.insert(0, home)
    import coldframe  # noqa: F401

    sys.path.remove(home)
    from coldframe.host.egress.process import main

    main(channel=int(sys.argv[1]), user=int(sys.argv[2]), packages=int(sys.argv[3]) if sys.argv[3:] else None)
