"""Address and token are found in a stated order, and a token never goes to another address than its own."""

import json
from pathlib import Path

import pytest

from coldframe.client.location import DEFAULT_URL, find_location


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("COLDFRAME_URL", "COLDFRAME_TOKEN", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLDFRAME_DATA_DIR", str(tmp_path / "data"))


def leave_file(tmp_path: Path, url: str, token: str) -> None:
    (tmp_path / "data" / "control").mkdir(parents=True)
    (tmp_path / "data" / "control" / "client.json").write_text(json.dumps({"url": url, "token": token}))


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFRAME_URL", "http://other:1")
    monkeypatch.setenv("COLDFRAME_TOKEN", "other")
    assert find_location("http://mine:2/", "mine")[:2] == ("http://mine:2", "mine")


def test_the_local_installation_is_found(tmp_path: Path) -> None:
    leave_file(tmp_path, "http://127.0.0.1:9", "local")
    assert find_location(None, None)[:2] == ("http://127.0.0.1:9", "local")


def test_the_token_of_the_local_installation_is_not_sent_elsewhere(tmp_path: Path) -> None:
    leave_file(tmp_path, "http://127.0.0.1:9", "local")
    assert find_location("http://elsewhere:9", None)[:2] == ("http://elsewhere:9", None)


def test_without_anything_the_default_address_is_taken() -> None:
    assert find_location(None, None)[:2] == (DEFAULT_URL, None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "http://x"}', "no json"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    leave_file(tmp_path, "http://x", "y")
    (tmp_path / "data" / "control" / "client.json").write_text(text)
    assert find_location(None, None)[:2] == (DEFAULT_URL, None)
