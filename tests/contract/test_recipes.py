"""Recipe files are read strictly, and what is wrong with one is told by line and field."""

import json

import pytest
from pydantic import ValidationError

from coldframe.contract.errors import RecipeInvalid
from coldframe.contract.recipes import LocalFiles, parse_lock, parse_recipe
from coldframe.contract.template import (
    Package,
    Recipe,
    Settings,
    describe_step,
    packages_digest,
    split_ref,
    template_digest,
)

WHOLE = """
name = "app"
version = "1.2"
base = "debian"
apt = ["gcc", "libc6=2.36-9"]
pip = ["numpy==1.26.4", "pandas[excel]>=2"]
npm = ["@scope/thing@^1.2"]
run = ["make -C /opt/app"]
user = "user"
workdir = "/opt/app"
tags = ["ci"]

[env]
LANG = "C.UTF-8"

[[files]]
from = "app"
to = "/opt/app"
mode = "755"
owner = "user"

[start]
command = "python3 -m http.server 8000"
ready = { port = 8000, timeout_s = 5 }
"""


def test_a_recipe_file_becomes_steps_in_their_order() -> None:
    draft = parse_recipe(WHOLE)
    kinds = [one.kind if not isinstance(one, LocalFiles) else "files" for one in draft.steps]
    assert kinds == ["env", "apt", "pip", "npm", "files", "run"]
    files = next(one for one in draft.steps if isinstance(one, LocalFiles))
    assert (files.sources, files.to, files.mode, files.owner) == (("app",), "/opt/app", 0o755, "user")
    recipe = draft.recipe([one for one in draft.steps if not isinstance(one, LocalFiles)])
    assert (recipe.name, recipe.version, recipe.tags) == ("app", "1.2", ("ci",))
    assert recipe.start is not None and recipe.start.cwd == "/opt/app"
    assert recipe.start.ready is not None and recipe.start.ready.port == 8000
    assert recipe.settings.env == {"LANG": "C.UTF-8"}
    assert [describe_step(step) for step in recipe.steps][-1] == "run make -C /opt/app"


def test_a_recipe_that_was_built_can_be_read_again_as_json() -> None:
    draft = parse_recipe(WHOLE)
    recipe = draft.recipe(
        [one for one in draft.steps if not isinstance(one, LocalFiles)],
        [Package(manager="pip", name="numpy", version="1.26.4")],
    )
    again = parse_recipe(recipe.model_dump_json(exclude_none=True))
    assert again.recipe([one for one in again.steps if not isinstance(one, LocalFiles)]) == recipe


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ('name = "app"\nfrom = "debian"\n', 2, "from"),
        ('name = "app"\napt = ["--option"]\n', 2, "apt.0"),
        ('name = "app"\nrun = "make"\n', 2, "run"),
        (
            'name = "app"\n\n[[files]]\nfrom = "a"\nto = "/a"\n\n[[files]]\nfrom = "b"\nto = "relative"\n',
            9,
            "files.1.to",
        ),
        ('name = "app"\n[[files]]\nfrom = "a"\nto = "/a"\nmode = 644\n', 5, "files.0.mode"),
        ('name = "app"\n[start]\ncommand = "x"\nready = { port = 99999 }\n', 4, "start.ready.port"),
        ('name = "App"\n', 1, "name"),
        ('name = "app"\nnetwork = "open"\n', 2, "network"),
        ('name = "app"\n[env]\n"A-B" = "x"\n', 3, "env.A-B"),
    ],
)
@pytest.mark.req("T4.68")
def test_what_is_wrong_is_told_by_line_and_field(text: str, line: int, field: str) -> None:
    with pytest.raises(RecipeInvalid) as refused:
        parse_recipe(text, source="app.toml")
    assert refused.value.facts["line"] == line, refused.value.message
    assert str(refused.value.facts["field"]).startswith(field)
    assert f"line {line}" in refused.value.message


def test_broken_toml_and_json_are_told_by_line() -> None:
    for text, line in (('name = "app"\napt = [\n', 3), ('{"name": "app",\n "apt": }', 2)):
        with pytest.raises(RecipeInvalid) as refused:
            parse_recipe(text)
        assert refused.value.facts["line"] == line


def test_a_recipe_begins_from_one_thing_and_never_from_the_system_of_the_machine() -> None:
    for wrong in (
        {"name": "app", "base": "debian", "snapshot": "0" * 16},
        {"name": "app", "archive": "0" * 64, "snapshot": "0" * 16},
        {"name": "host"},
        {"name": "app", "base": "host"},
    ):
        with pytest.raises(ValidationError):
            Recipe.model_validate(wrong)


@pytest.mark.parametrize("name", ["-e", "a b", "https://x/y", "a;b", "$(x)", "../x", "@/x", "git+ssh://x"])
@pytest.mark.parametrize("kind", ["apt", "pip", "npm"])
def test_no_package_is_an_option_an_address_or_a_command(kind: str, name: str) -> None:
    with pytest.raises(ValidationError):
        Recipe.model_validate({"name": "app", "steps": [{"kind": kind, "packages": [name]}]})


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a//b", "/a/", "/", "/a/./b", "/a\x00b"])
def test_a_file_goes_to_one_absolute_place(path: str) -> None:
    file = {"to": path, "sha256": "0" * 64, "bytes": 1}
    with pytest.raises(ValidationError):
        Recipe.model_validate({"name": "app", "steps": [{"kind": "files", "files": [file]}]})


def test_the_digest_of_a_recipe_is_of_what_is_built_and_not_of_its_name() -> None:
    one = Recipe(name="a", version="1", tags=("x",))
    assert one.sha256 == Recipe(name="b").sha256
    assert one.sha256 != Recipe(name="a", network="none").sha256


@pytest.mark.req("T4.68")
def test_equal_packages_and_parts_have_equal_digests_in_any_order() -> None:
    packages = (Package(manager="apt", name="a", version="1"), Package(manager="pip", name="b", version="2"))
    assert packages_digest(packages) == packages_digest(packages[::-1])
    assert packages_digest(packages) != packages_digest(packages[:1])
    base, settings = "0" * 64, Settings(env={"A": "1"})
    assert template_digest(base, ("1" * 64,), settings) == template_digest(base, ("1" * 64,), settings)
    assert template_digest(base, ("1" * 64,), settings) != template_digest(base, ("1" * 64,), Settings())
    assert template_digest(base, ("1", "2"), settings) != template_digest(base, ("2", "1"), settings)


def test_references_are_taken_apart() -> None:
    assert split_ref("python") == ("python", None, None)
    assert split_ref("python:3.1") == ("python", "3.1", None)
    assert split_ref("sha256:" + "a" * 64) == (None, None, "a" * 64)


@pytest.mark.req("T4.19")
def test_locks_of_pip_npm_and_our_own_are_read_in_exact_versions() -> None:
    pip = parse_lock(
        "# made\nnumpy==1.26.4 \\\n    --hash=sha256:aa\npandas==2.2.0 ; python_version > '3'\n", source="l"
    )
    assert [(one.manager, one.name, one.version) for one in pip] == [
        ("pip", "numpy", "1.26.4"),
        ("pip", "pandas", "2.2.0"),
    ]
    npm = json.dumps({"lockfileVersion": 3, "packages": {"": {"name": "x"}, "node_modules/@a/b": {"version": "1.2.3"}}})
    assert [(one.name, one.version) for one in parse_lock(npm, source="l")] == [("@a/b", "1.2.3")]
    own = json.dumps([{"manager": "apt", "name": "gcc", "version": "12", "architecture": "amd64"}])
    assert parse_lock(own, source="l")[0].architecture == "amd64"


@pytest.mark.parametrize("text", ["numpy>=1\n", "numpy\n", "a==1\nnumpy=1\n", "[1]", "{}", '{"packages": {"a": {}}}'])
@pytest.mark.req("T4.19")
def test_a_lock_that_leaves_a_version_open_is_refused(text: str) -> None:
    with pytest.raises(RecipeInvalid):
        parse_lock(text, source="production.lock")
