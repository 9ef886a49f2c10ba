"""What is whole is begun from, whether or not that can be noted."""

import resource
from pathlib import Path

import pytest

from coldframe.contract.errors import TemplateChanged
from coldframe.host.templates import sealing
from coldframe.host.templates.sealed_layers import check_tree


def test_a_tree_that_is_whole_passes_where_that_cannot_be_noted(tmp_path: Path) -> None:
    """As after a copy, on a full disk or one that is read-only: then it is read whole each time."""
    tree, facts = tmp_path / "files", tmp_path / "facts"
    tree.mkdir()
    (tree / "file").write_text("text")
    facts.write_text("of where it was copied from")
    reads: list[str] = []

    def look(*, is_whole: bool = True, was_touched: bool = False) -> int:
        def verify() -> bool:
            reads.append("whole")
            return is_whole

        check_tree(str(tree), str(facts), verify, was_touched)
        return len(reads)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        looks = [look(), look()]
        with pytest.raises(TemplateChanged, match="not what was built"):
            look(is_whole=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert looks == [1, 2]
    assert facts.read_text() == "of where it was copied from"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["facts", "files"]

    assert look() == 4 and facts.read_text() == sealing.facts_of_tree(str(tree))
    assert look() == 4 and look(was_touched=True) == 5
