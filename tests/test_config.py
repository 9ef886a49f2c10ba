"""Settings are typed, come from file, environment and command line in that order, and a misspelt key is an error."""

from pathlib import Path

import pytest

from coldframe.config import DEFAULT_PORT, load_settings
from coldframe.contract.errors import InvalidArgument


@pytest.fixture(autouse=True)
def data_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in (
        "COLDFRAME_CONFIG",
        "COLDFRAME_PORT",
        "COLDFRAME_BIND",
        "COLDFRAME_SERVER_USER",
        "COLDFRAME_WORKSPACE_DISK",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLDFRAME_DATA_DIR", str(tmp_path))
    return tmp_path


def test_the_defaults_listen_on_loopback_only() -> None:
    settings = load_settings()
    assert (settings.bind, settings.port, settings.on_missing) == ("127.0.0.1", DEFAULT_PORT, "degrade")


def test_disks_are_asked_for_by_setting_and_a_word_for_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not load_settings().own_disks
    monkeypatch.setenv("COLDFRAME_WORKSPACE_DISK", "image")
    assert load_settings().own_disks
    with pytest.raises(InvalidArgument, match="workspace_disk"):
        load_settings(workspace_disk="quota")


def test_command_line_wins_over_environment_and_that_over_the_file(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data_dir / "coldframe.toml").write_text('port = 1\nbind = "127.0.0.2"\nlog_level = "info"\n')
    monkeypatch.setenv("COLDFRAME_PORT", "2")
    monkeypatch.setenv("COLDFRAME_BIND", "127.0.0.3")
    settings = load_settings(port=3, bind=None)
    assert (settings.port, settings.bind, settings.log_level) == (3, "127.0.0.3", "info")


@pytest.mark.parametrize("text", ["prot = 1\n", "port = 70000\n", 'on_missing = "ignore"\n', "port = \n", "[server]\n"])
def test_a_wrong_file_is_refused(data_dir: Path, text: str) -> None:
    (data_dir / "coldframe.toml").write_text(text)
    with pytest.raises(InvalidArgument) as found:
        load_settings()
    assert found.value.advice


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFRAME_PROT", "1")
    with pytest.raises(InvalidArgument, match="prot"):
        load_settings()


def test_a_file_named_but_missing_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFRAME_CONFIG", str(data_dir / "none.toml"))
    with pytest.raises(InvalidArgument):
        load_settings()


@pytest.mark.parametrize("user", ["root", "0"])
def test_the_server_may_not_be_configured_to_run_as_root(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    monkeypatch.setenv("COLDFRAME_SERVER_USER", user)
    with pytest.raises(InvalidArgument, match="root"):
        load_settings()


def test_settings_in_the_current_directory_are_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hostile = tmp_path / "elsewhere"
    hostile.mkdir()
    (hostile / "coldframe.toml").write_text("port = 1\n")
    monkeypatch.chdir(hostile)
    assert load_settings().port == DEFAULT_PORT
