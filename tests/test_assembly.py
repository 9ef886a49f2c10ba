"""The processes of an installation get a clean environment; the host daemon also what tells where packages and the way out are."""

import pytest

from coldframe.assembly import _child_environment, _daemon_environment

TOLD = {
    "HTTPS_PROXY": "http://proxy.example.com:3128",
    "no_proxy": "example.org",
    "PIP_INDEX_URL": "https://mirror.example.com/simple/",
    "npm_config_//mirror.example.com/:_authToken": "a token",
    "NPM_TOKEN": "another",
    "XDG_CONFIG_HOME": "/srv/settings",
}
KEPT_OUT = {
    "AWS_SECRET_ACCESS_KEY": "a secret",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "LD_PRELOAD": "/tmp/library.so",
    "PYTHONPATH": "/tmp/modules",
    "PATH": "/tmp/programs",
    "MY_HTTPS_PROXY": "http://other",
}


def test_the_daemon_is_told_of_registries_and_proxies_and_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TOLD, **KEPT_OUT}.items():
        monkeypatch.setenv(name, value)
    own, environment = _child_environment(), _daemon_environment()
    assert not own.keys() & TOLD.keys()
    assert TOLD.items() <= environment.items()
    assert not KEPT_OUT.items() & {*own.items(), *environment.items()}
