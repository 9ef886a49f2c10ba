"""The command line. Exit codes: 0 done, 1 a fault of ours, 2 the call is wrong, 3 refused, 4 not found,
5 not available, 6 not possible now (conflict, state, limit). `run` and `exec` end with the command's own code,
128 + N if signal N ended it.

Everything heavy is imported where it is used: `coldframe --help` imports nothing but typer.
"""

from coldframe.cli.app import main

__all__ = ["main"]
