"""What a recipe takes from the disk of whoever builds: what lies below its folder, and nothing that a link leads to."""

from pathlib import Path

import pytest

from coldframe.client.recipes import gather, read_dockerfile
from coldframe.contract.errors import NotFound, RecipeInvalid
from coldframe.contract.recipes import parse_recipe


@pytest.mark.parametrize(
    "line", ["archive = 'inner/secret'", "lock = 'inner/secret'", "archive = 'link'", "lock = 'link'"]
)
def test_archives_and_locks_are_not_followed_out_of_the_folder(tmp_path: Path, line: str) -> None:
    folder, elsewhere = tmp_path / "recipe", tmp_path / "home"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("password==1\n")
    (folder / "inner").symlink_to(elsewhere)
    (folder / "link").symlink_to(elsewhere / "secret")
    with pytest.raises(RecipeInvalid, match="link"):
        gather(parse_recipe(f"name = 'app'\n{line}\n"), str(folder))
    with pytest.raises(RecipeInvalid, match="outside"):
        gather(parse_recipe("name = 'app'\nlock = '../home/secret'\n"), str(folder))


def test_a_lock_beside_the_recipe_is_read(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "all").write_text("six==1.0\n")
    found = gather(parse_recipe("name = 'app'\nlock = './locks/all'\n"), str(tmp_path))
    assert found.recipe.locked is not None and [one.name for one in found.recipe.locked] == ["six"]


@pytest.mark.req("T4.68")
def test_a_base_that_is_no_template_is_told_with_the_line_that_names_it(tmp_path: Path) -> None:
    def env_of(base: str) -> dict[str, str]:
        raise NotFound(f"no template `{base}`")

    (tmp_path / "Dockerfile").write_text("# what it stands on\nARG V=3.11\nFROM python:$V\nRUN true\n")
    with pytest.raises(RecipeInvalid) as refused:
        read_dockerfile(str(tmp_path / "Dockerfile"), name="app", env_of=env_of)
    assert (refused.value.facts["line"], refused.value.facts["instruction"]) == (3, "FROM")
    assert "`python:3.11`" in str(refused.value) and "template list" in refused.value.advice
