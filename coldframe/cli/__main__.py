"""`python -m coldframe.cli`."""

from coldframe.cli.app import main

main()
