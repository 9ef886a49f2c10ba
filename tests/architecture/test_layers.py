"""The code still stands as docs/architecture.md draws it, and this test is known to notice when it does not."""

from pathlib import Path

import pytest

from tests.architecture.layers import BOX_HOLDERS, STARTS_PROGRAMS, offences, read_tree, starters

ROOT = Path(__file__).resolve().parents[2]

SKELETON = {
    "__init__": "from coldframe.client.api import Coldframe",
    "assembly": "from coldframe.control import gate\nfrom coldframe.host import box",
    "contract/__init__": "",
    "contract/ports": "class Box: ...",
    "contract/errors": "from typing import Any",
    "policy/__init__": "",
    "policy/rules": "import re2\nfrom coldframe.contract import errors",
    "tools/__init__": "",
    "tools/registry": "import importlib",
    "tools/read_file": "from coldframe.contract.ports import Box\nfrom coldframe.tools.registry import tool",
    "guest/__init__": "",
    "guest/connection": "import json\nimport os\nfrom coldframe.guest.verbs import VERBS\nos.fork()",
    "guest/main": "import json",
    "guest/verbs": "",
    "host/__init__": "",
    "host/box": "from coldframe.contract.ports import Box\nfrom coldframe.guest import verbs",
    "control/__init__": "",
    "control/gate": "from coldframe.contract.ports import Box\nfrom coldframe.tools.registry import tool\nhost.box('x')",
    "control/receipts": "from coldframe.contract import errors",
    "fronts/__init__": "",
    "fronts/rest": "import starlette\nfrom coldframe.control.gate import Gate\nfrom coldframe.tools.registry import tool",
    "client/__init__": "",
    "client/api": "from coldframe.contract.errors import ColdframeError",
}

FAULTS = [
    ("contract/errors", "from coldframe.policy import rules", "contract may not know policy"),
    ("contract/__init__", "import coldframe.host.box", "contract may not know host"),
    ("policy/rules", "import time", "policy judges its arguments"),
    ("policy/rules", "def read():\n    from os import path", "policy judges its arguments"),
    ("policy/rules", "open('rules.yaml')", "policy reads no file"),
    ("guest/main", "import msgpack", "the guest has the standard library"),
    ("guest/verbs", "from coldframe.contract.errors import Missing", "guest may not know contract"),
    (
        "control/receipts",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from coldframe.host import box",
        "may not know host",
    ),
    ("control/receipts", "def late():\n    from ..fronts import rest", "control may not know fronts"),
    ("fronts/rest", "from coldframe.host.box import x", "fronts may not know host"),
    ("fronts/rest", "from coldframe.tools.read_file import x", "through tools.registry alone"),
    ("fronts/rest", "import coldframe.assembly", "fronts may not know root files"),
    ("host/box", "from coldframe.control import gate", "host may not know control"),
    ("client/api", "from coldframe.control.gate import Gate", "client may not know control"),
    ("__init__", "from coldframe.control.gate import Gate", "the public face may not know control"),
    ("control/receipts", "async def read(self):\n    await self.host.box('sb')", "only the gate holds one"),
    ("fronts/rest", "from coldframe.contract.ports import Box", "only the gate holds one"),
    ("control/receipts", "import subprocess", "not on the list of files that start programs"),
    ("host/box", "import os\nos.posix_spawn('/bin/true', [], {})", "not on the list of files that start programs"),
    ("host/box", "from os import execve", "not on the list of files that start programs"),
    ("host/box", "from coldframe.guest.rows import Call, Row", "not on the list of files that start programs"),
    ("host/box", "from coldframe.guest import rows\nrows.Row((), ())", "not on the list of files that start programs"),
    (
        "fronts/rest",
        "import asyncio\nasyncio.create_subprocess_exec('ls')",
        "not on the list of files that start programs",
    ),
    ("contract/errors", "def late():\n    from coldframe.contract.ports import Box", "circle: "),
    ("host/path_utils", "x = 1", "is named after no noun"),
    ("cluster/ray", "x = 1", "is no house"),
]


def planted(folder: Path, faults: dict[str, str]) -> Path:
    """A small package that keeps every rule, with *faults* added to its files."""
    root = folder / "coldframe"
    for name in {**SKELETON, **faults}:
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ['"""What this file is for."""', SKELETON.get(name, ""), faults.get(name, "")]
        path.write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.req("T1.79")
def test_the_houses_import_only_downwards_and_through_their_doors() -> None:
    assert offences(read_tree(ROOT / "coldframe")) == []


def test_the_whole_package_was_looked_at() -> None:
    files = read_tree(ROOT / "coldframe")
    assert {"contract", "policy", "guest", "host", "control", "tools", "fronts", "client"} <= {
        f.house for f in files.values()
    }
    assert "coldframe.contract.errors" in files


def test_no_exception_outlives_its_reason() -> None:
    files = read_tree(ROOT / "coldframe")
    assert [name for name in STARTS_PROGRAMS if name not in files or not starters(files[name])] == []
    assert BOX_HOLDERS - files.keys() == set()


def test_a_clean_skeleton_has_no_offence(tmp_path: Path) -> None:
    assert offences(read_tree(planted(tmp_path, {}))) == []


@pytest.mark.parametrize(("file", "line", "complaint"), FAULTS, ids=[f"{f}: {c}" for f, _, c in FAULTS])
def test_a_planted_fault_is_named(tmp_path: Path, file: str, line: str, complaint: str) -> None:
    faults = {file: line}
    if complaint == "circle: ":
        faults["contract/ports"] = "from coldframe.contract.errors import ColdframeError"
    found = offences(read_tree(planted(tmp_path, faults)))
    dotted = "coldframe." + file.replace("/", ".").removesuffix(".__init__")
    assert any(complaint in sentence for sentence in found), found
    assert all(dotted.removesuffix(".__init__") in sentence for sentence in found), found


def test_a_file_without_a_first_sentence_is_named(tmp_path: Path) -> None:
    root = planted(tmp_path, {})
    (root / "host" / "limits.py").write_text("LIMIT = 1\n")
    assert offences(read_tree(root)) == ["coldframe.host.limits does not say in its first line what it is for"]
