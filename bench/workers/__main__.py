"""`python -m bench.workers NAME FOLDER [KEY=VALUE...]`: one worker, in whatever environment its system needs."""

import importlib
import json
import sys

from bench.workers.wire import serve

HOMES = {
    "plain": ("processes", "open_plain"),
    "bwrap": ("processes", "open_bwrap"),
    "runc": ("processes", "open_runc"),
    "swe-rex": ("swe_rex", "open_swe_rex"),
    "inspect-ai": ("inspect_local", "open_inspect"),
    "srt-python": ("srt_python", "open_srt_python"),
    "coldframe": ("product", "open_product"),
    "alone": ("alone", "open_alone"),
}
"""Imported only when asked for: each needs packages that only its own environment has."""


def main() -> None:
    name, path, *given = sys.argv[1:]
    module, function = HOMES[name]
    options = dict(pair.split("=", 1) for pair in given)
    try:
        opened = getattr(importlib.import_module(f"bench.workers.{module}"), function)
    except ImportError as error:
        sys.stdout.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        sys.exit(1)
    serve(lambda: opened(path=path, **options))


if __name__ == "__main__":
    main()
