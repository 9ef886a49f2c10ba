"""Promise: the manual of the policy lists every field, every entry and a rule file that loads."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from coldframe.policy.denylist import DENYLIST
from coldframe.policy.fields import SCHEMA
from coldframe.policy.rules import load_rules

_MANUAL = Path(str(files(__package__))).parents[1] / "docs" / "policy.md"


def _text() -> str:
    return _MANUAL.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted({name for fields in SCHEMA.values() for name in fields}))
def test_every_field_of_the_context_is_in_the_manual(name: str) -> None:
    assert f"`{name}`" in _text()


@pytest.mark.req("T1.94")
def test_every_entry_of_the_default_list_is_in_the_manual() -> None:
    rows = set(re.findall(r"^\| `(denylist:[a-z-]+)`", _text(), re.MULTILINE))
    assert rows == {entry.id for entry in DENYLIST} | {"denylist:fork-bomb"}


def test_the_example_of_the_manual_loads() -> None:
    example = re.search(r"```yaml\n(.*?)```", _text(), re.DOTALL)
    assert example is not None
    assert len(load_rules(example.group(1)).rules) == 4
