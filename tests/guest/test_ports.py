"""A box decides how many sockets it has, and not how long its keeper looks at them."""

import os
import socket

import pytest

from coldframe.guest import ports
from coldframe.guest.ports import find_ports


def test_ports_are_told_of_the_first_sockets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_PLACE", "/proc/self/net")  # here the first process may have another network
    with socket.create_server(("127.0.0.1", 0)) as server:
        wanted = {"protocol": "tcp", "address": "127.0.0.1", "port": server.getsockname()[1]}
        assert wanted in find_ports([os.getpid()])[os.getpid()]
        monkeypatch.setattr(ports, "MOST_LINES", 0)
        assert find_ports([os.getpid()]) == {}
