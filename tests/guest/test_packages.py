"""Held here: what managers have on record is read as data, whoever wrote it, and nothing outside of the top is."""

import os
from pathlib import Path

from coldframe.contract.packages import ListPackages
from tests.control.test_package_views import install
from tests.guest.workspace import Workspace

STATUS = """Package: libc6
Status: install ok installed
Installed-Size: 10
Version: 2.36-9

Package: gone
Status: deinstall ok config-files
Version: 1.0

Package: sly
Status: install ok installed
Description: one
 Version: 9
Version: 3.0
"""


def test_records_of_pip_npm_and_apt_are_read(workspace: Workspace) -> None:
    install(workspace.path, "pip", "Left_Box", "1.0")
    install(workspace.path, "npm", "@scope/name", "2.0")
    (workspace.path / "var/lib/dpkg").mkdir(parents=True)
    (workspace.path / "var/lib/dpkg/status").write_text(STATUS)
    folder = workspace.path / "lib/dist-packages"
    (folder / "setuptools-66.egg-info").mkdir(parents=True)
    (folder / "setuptools-66.egg-info/PKG-INFO").write_text(
        "Metadata-Version: 2.1\r\nName: setuptools\r\nVersion: 66.1\r\n\r\n"
    )
    (folder / "one_file.egg-info").write_text("name: one_file\nVersion: 4.0\n\nVersion: 5.0\n")
    found = workspace.ask(ListPackages())
    assert found.complete
    assert {(one.manager, one.name, one.version) for one in found.packages} == {
        ("pip", "left-box", "1.0"),
        ("pip", "setuptools", "66.1"),
        ("pip", "one-file", "4.0"),
        ("npm", "@scope/name", "2.0"),
        ("apt", "libc6", "2.36-9"),
        ("apt", "sly", "3.0"),
    }
    assert {one.name: one.bytes for one in found.packages}["libc6"] == 10 * 1024


def test_hostile_records_are_left_out_or_shown_as_plain_text(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    install(outside, "npm", "secret", "1.0")
    os.symlink(outside / "node_modules", workspace.path / "node_modules")
    for name, text in (
        ("deep", "[" * 100_000),
        ("number", '{"name": 1, "version": 2}'),
        ("list", "[]"),
        ("binary", "\x00\xff"),
        ("long", '{"name": "' + "x" * 5000 + '", "version": "1"}'),
        ("escape", '{"name": "a\\u001b[31m", "version": "1"}'),
    ):
        folder = workspace.path / "app/node_modules" / name
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(text, encoding="latin-1")
    pipe = workspace.path / "app/node_modules/pipe"
    pipe.mkdir()
    os.mkfifo(pipe / "package.json")
    found = workspace.ask(ListPackages())
    assert [(one.name, one.version) for one in found.packages] == [("a\ufffd[31m", "1")]
    install(workspace.path / "b", "npm", "one", "1")
    cut = workspace.ask(ListPackages(most=1))
    assert (len(cut.packages), cut.complete) == (1, False)
    assert not workspace.ask(ListPackages(budget_s=1e-9)).complete


def test_a_digit_that_is_no_number_hides_nothing(workspace: Workspace) -> None:
    folder = install(workspace.path, "pip", "sly", "1.0")
    (folder / "RECORD").write_text("sly.py,,\u00b2\nmore.py,,30\n", encoding="utf-8")
    (workspace.path / "var/lib/dpkg").mkdir(parents=True)
    status = STATUS.replace("Installed-Size: 10", "Installed-Size: \u00b2")
    (workspace.path / "var/lib/dpkg/status").write_text(status, encoding="utf-8")
    found = {(one.manager, one.name): one.bytes for one in workspace.ask(ListPackages()).packages}
    assert found == {("pip", "sly"): 30, ("apt", "libc6"): None, ("apt", "sly"): None}
