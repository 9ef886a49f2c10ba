"""Started by its directory: `python3 DIRECTORY LANGUAGE CWD`."""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from coldframe.kernel.main import main  # noqa: E402  found by the line above

main()
