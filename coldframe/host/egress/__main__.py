"""Starts the broker's process; `process.py` says what it is. The host daemon does this, and nobody else."""

import os
import sys

if __name__ == "__main__":
    home = os.path.abspath(__file__)
    for _ in ("egress", "host", "coldframe", "."):
        home = os.path.dirname(home)
    sys.path.append(home)
    from coldframe.host.egress.process import main

    main(channel=int(sys.argv[1]), user=int(sys.argv[2]), packages=int(sys.argv[3]) if sys.argv[3:] else None)
