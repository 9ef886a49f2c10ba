"""Promise: the end of a box is an end, however often and however late it is asked for."""

import os
from types import SimpleNamespace
from typing import cast

from coldframe.guest.commands import Commands


def test_a_box_that_has_ended_can_be_ended_again() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    init = os.pidfd_open(pid)
    os.waitpid(pid, 0)
    Commands.end_box(cast(Commands, SimpleNamespace(setting=SimpleNamespace(init=init))))
    os.close(init)
