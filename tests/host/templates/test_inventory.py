"""What is installed is read from the files of a system; and what differs from a lock is named with what there is instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import DependencyMissing
from coldframe.contract.template import NpmStep, Package
from coldframe.contract.versions import nearest
from coldframe.host.templates import inventory
from coldframe.host.templates.inventory import installed_in, refuse_differences
from coldframe.host.templates.recipe_steps import Question, acts_of, reason_in


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_packages_of_every_manager_are_found_and_no_link_is_followed(tmp_path: Path) -> None:
    low, high, elsewhere = (tmp_path / name for name in ("low", "high", "elsewhere"))
    status = "Package: {}\nStatus: install ok installed\nVersion: {}\nArchitecture: amd64\n\n"
    removed = "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
    write(low, "var/lib/dpkg/status", status.format("bash", "5.1"))
    write(high, "var/lib/dpkg/status", status.format("bash", "5.2") + removed)
    write(low, "usr/lib/python3/dist-packages/six-1.0.dist-info/METADATA", "Name: six\nVersion: 1.0\n\nName: other\n")
    write(high, "usr/local/lib/python3.11/dist-packages/six-1.1.dist-info/METADATA", "Name: Six\nVersion: 1.1\n")
    write(high, "usr/local/lib/python3.11/dist-packages/old_one.egg-info", "Name: old_one\nVersion: 2\n")
    write(
        high, "usr/local/lib/node_modules/@scope/a/package.json", json.dumps({"name": "@scope/a", "version": "1.0.0"})
    )
    inner = "usr/local/lib/node_modules/@scope/a/node_modules/b/package.json"
    write(high, inner, json.dumps({"name": "b", "version": "2.0.0"}))
    write(high, "usr/local/lib/node_modules/broken/package.json", "[" * 100_000)
    for name, value in (("\ud800", "1"), ("a", "\udfff")):  # no text that can be told, and none of ours to fail at
        write(
            high, f"usr/local/lib/node_modules/odd{value!a}/package.json", json.dumps({"name": name, "version": value})
        )
    write(elsewhere, "package.json", json.dumps({"name": "stolen", "version": "1"}))
    (high / "usr/local/lib/node_modules/link").symlink_to(elsewhere)
    found = [(one.manager, one.name, one.version) for one in installed_in([str(high), str(low)])]
    assert found == [
        ("apt", "bash", "5.2"),
        ("npm", "@scope/a", "1.0.0"),
        ("npm", "b", "2.0.0"),
        ("pip", "old-one", "2"),
        ("pip", "six", "1.1"),
    ]


def test_no_more_packages_are_read_than_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "MOST_PACKAGES", 5)
    for number in range(50):
        told = json.dumps({"name": f"a{number}", "version": "1"})
        write(tmp_path, f"usr/local/lib/node_modules/a{number}/package.json", told if number % 2 else "no json")
    reads = []
    read = inventory._read

    def counted(*arguments: Any) -> str:
        reads.append(arguments[1])
        return read(*arguments)

    monkeypatch.setattr(inventory, "_read", counted)
    assert len(installed_in([str(tmp_path)])) <= 5
    assert len(reads) < 20


def test_what_npm_says_of_versions_may_be_nested_without_an_end() -> None:
    said = "npm error notarget No matching version found for left-pad@9.9.9."
    step = NpmStep(packages=("left-pad@9.9.9",))
    question = reason_in(step, said, acts_of(step, None)[0])
    assert isinstance(question, Question)
    for answer, nearest_ones in (("[" * 100_000, []), ('["1", "\\ud800"]', ["?", "1"])):
        found = question.understood(answer)
        assert found is not None and found.facts["nearest"] == nearest_ones


def test_the_nearest_versions_stand_on_both_sides() -> None:
    there_are = ["1.2", "1.10", "1.9", "2.0", "1.11", "0.1", "1.10rc1"]
    assert nearest("1.10.1", there_are) == ["1.9", "1.10rc1", "1.10", "1.11", "2.0"]
    assert nearest("9", there_are) == ["1.9", "1.10rc1", "1.10", "1.11", "2.0"]
    assert nearest("1", []) == []


def test_what_is_not_as_locked_is_named() -> None:
    def apt(name: str, version: str) -> Package:
        return Package(manager="apt", name=name, version=version, architecture="amd64")

    locked = (apt("a", "1"), apt("b", "2"))
    refuse_differences((apt("b", "2"), apt("a", "1")), locked, ())
    pip = (Package(manager="pip", name="Old.One", version="1"),)
    refuse_differences(
        (*locked, Package(manager="pip", name="old-one", version="1")), pip, ()
    )  # it says nothing of apt's
    refuse_differences((*locked, apt("c", "1")), locked, (apt("c", "1"),))
    for found, said in (
        ((apt("a", "1"), apt("b", "3")), "`b` 2 of apt is not to be had, 3 would be installed"),
        ((apt("a", "1"),), "`b` 2 of apt is not to be had"),
        ((*locked, apt("c", "1")), "`c` 1 of apt was installed, and the lock does not name it"),
        ((apt("b", "2"), apt("a", "1"), apt("a", "2")), "`a` 2 of apt was installed"),
    ):
        with pytest.raises(DependencyMissing) as refused:
            refuse_differences(found, locked, (apt("b", "3"), apt("c", "0")))
        assert said in str(refused.value)
