"""`coldframe bench`: the benchmark suite of the source tree. A package does not carry it, nor the peers it measures."""

import os
import runpy
import sys
from typing import Annotated

import typer

from coldframe.cli.output import Chosen
from coldframe.contract.errors import Unavailable

PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""Options are the suite's own, `--help` included."""


def bench(options: Annotated[list[str] | None, typer.Argument(metavar="[OPTION]...")] = None) -> None:
    """Measure Coldframe beside what this machine can do at best, and beside its peers. Takes minutes; see --quick."""
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.isfile(os.path.join(checkout, "bench", "__main__.py")):
        raise Unavailable(
            "the benchmark suite is part of the source tree, and this is an installed package",
            hint="take a checkout of this version and run `python -m bench` in it",
        )
    sys.argv = ["coldframe bench", *(["--json"] if Chosen.as_json else []), *(options or [])]
    # In front, since it is the suite of this very package that is meant; workers get the same by their environment.
    sys.path.insert(0, checkout)
    runpy.run_module("bench", run_name="__main__")
