"""Held here: a lock file is read strictly, and what differs from it is told line by line."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coldframe.cli.environments import differences, read_lock
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.packages import PackageManager, PackageRow, PackageView
from coldframe.contract.policy import Label

NPM = {
    "lockfileVersion": 3,
    "packages": {
        "": {"version": "1.0.0"},
        "node_modules/a": {"version": "1.0.0"},
        "node_modules/a/node_modules/b": {"version": "2.0.0"},
        "node_modules/b": {"version": "3.0.0"},
        "node_modules/@s/c": {"version": "4.0.0", "optional": True},
        "node_modules/linked": {"link": True, "version": "1"},
    },
}


def view(manager: PackageManager, *installed: tuple[str, str]) -> PackageView:
    rows = tuple(
        PackageRow(manager=manager, name=name, installed=version, installed_at=datetime.now(UTC))
        for name, version in installed
    )
    return PackageView(packages=rows, complete=True, label=Label.PUBLIC)


@pytest.mark.req("T4.19")
def test_what_differs_from_a_lock_is_exactly_these_lines(tmp_path: Path) -> None:
    lock = tmp_path / "package-lock.json"
    lock.write_text(json.dumps(NPM))
    wanted = read_lock(str(lock))
    same = [("a", "1.0.0"), ("b", "2.0.0"), ("b", "3.0.0")]
    assert differences(wanted, view("npm", *same)) == []
    changed = differences(wanted, view("npm", *same[:2], ("b", "3.0.1"), ("d", "9")))
    assert changed == [
        {"manager": "npm", "name": "b", "locked": "2.0.0, 3.0.0", "installed": "2.0.0, 3.0.1"},
        {"manager": "npm", "name": "d", "locked": "", "installed": "9"},
    ]
    lock.write_text(
        "Left_Box[extra]==1.0 ; python_version > '3'\n\n# remark\n--index-url https://x\nother==2.0 \\\n    --hash=x\n"
    )
    pinned = read_lock(str(lock))
    assert differences(pinned, view("pip", ("left-box", "1.0"), ("other", "2.0"), ("pip", "23"))) == []
    assert [one["name"] for one in differences(pinned, view("pip", ("left-box", "1.0")))] == ["other"]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "a>=1\n", "-e .\n", "{", "{}", '{"packages": []}', '{"packages": {"": 1}}', "\udcff"]
)
def test_a_file_that_pins_not_everything_is_refused(tmp_path: Path, text: str) -> None:
    lock = tmp_path / "lock"
    lock.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidArgument):
        read_lock(str(lock))
