"""Recipes as people write them: a file in TOML or JSON, in which files are named by where they are on the writer's disk.

What is read here is a draft: once the files that it names have been gathered, and their digests are known, it is a recipe.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator

from coldframe.contract.errors import RecipeInvalid
from coldframe.contract.model import Model
from coldframe.contract.template import (
    MOST_FILES,
    AptPackage,
    AptStep,
    Environment,
    EnvStep,
    NpmPackage,
    NpmStep,
    Package,
    PipPackage,
    PipStep,
    ReadyCheck,
    Recipe,
    RunStep,
    StartCommand,
    Step,
    SystemPath,
    Tag,
    TemplateName,
    TemplateRef,
    TemplateVersion,
    User,
)

MOST_TEXT_BYTES = 4 * 1024 * 1024
MOST_LOCK_LINE = 300
"""Characters."""
_LOCK_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!_-]*)")


READY_MADE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ready_made")
"""Recipes that come with the product, `NAME.toml`."""


def ready_made_names() -> list[str]:
    return sorted(name.removesuffix(".toml") for name in os.listdir(READY_MADE) if name.endswith(".toml"))


def ready_made(name: str) -> str | None:
    """The text of a recipe that comes with the product; None if there is none of that name."""
    if name not in ready_made_names():
        return None
    with open(os.path.join(READY_MADE, f"{name}.toml"), encoding="utf-8") as file:
        return file.read()


class LocalFiles(NamedTuple):
    """Files on the writer's disk, or with what stands in the recipe itself, that a step puts into the template."""

    sources: tuple[str, ...]
    """Relative to the folder of the recipe; a folder stands for what is in it."""
    to: str
    """Absolute. A folder if it ends with `/`, if there are several sources, or if the source is a folder."""
    mode: int | None = None
    """None for 755 of what can be started, 644 of the rest."""
    owner: User = "root"
    content: bytes | None = None
    """Instead of sources."""
    line: int | None = None


class Draft(NamedTuple):
    """A recipe whose files are not gathered yet."""

    fields: dict[str, Any]
    """Of a Recipe, but for its steps."""
    steps: tuple[Step | LocalFiles, ...]
    locks: tuple[str, ...] = ()
    """Files with the packages that are to be installed."""
    base_line: int | None = None
    """Of a Dockerfile: where it names its base."""

    def recipe(self, steps: Sequence[Step], locked: Sequence[Package] | None = None) -> Recipe:
        """With its files gathered. Raises RecipeInvalid."""
        fields = {**self.fields, "steps": tuple(steps)}
        if locked is not None:
            fields["locked"] = tuple(locked)
        try:
            return Recipe.model_validate(fields)
        except ValidationError as error:
            raise _invalid(error, None) from None


class _Files(Model):
    source: str | tuple[str, ...] = Field(alias="from", min_length=1, max_length=MOST_FILES)
    to: str = Field(min_length=2, max_length=4096, pattern=r"^/[^\x00]*$")
    mode: int | None = Field(default=None, ge=0, le=0o777)
    owner: User = "root"

    @field_validator("mode", mode="before")
    @classmethod
    def _octal(cls, value: object) -> object:
        if isinstance(value, str):
            if not re.fullmatch(r"0?[0-7]{3}", value):
                raise ValueError("write it as three octal digits, as `644`")
            return int(value, 8)
        if isinstance(value, int):
            raise ValueError("write it as text, as `'644'`: a bare number would be a decimal one")
        return value


class _Start(Model):
    command: str | tuple[str, ...] = Field(min_length=1)
    user: User | None = None
    cwd: SystemPath | None = None
    ready: ReadyCheck | None = None
    may_end: bool = False


class _Text(Model):
    """What a file may say."""

    name: TemplateName
    version: TemplateVersion | None = None
    base: TemplateRef | None = None
    archive: str | None = None
    snapshot: str | None = None
    tags: tuple[Tag, ...] = ()
    home: bool = False
    network: Literal["none", "packages"] = "packages"
    env: Environment = Field(default_factory=dict)
    apt: tuple[AptPackage, ...] = ()
    pip: tuple[PipPackage, ...] = ()
    npm: tuple[NpmPackage, ...] = ()
    files: tuple[_Files, ...] = ()
    run: tuple[str, ...] = ()
    user: User = "root"
    """As whom `run` is run."""
    workdir: SystemPath | None = None
    """Where `run` is run, and what is started."""
    step_timeout_s: float = Field(default=1800.0, gt=0, le=86_400)
    start: _Start | None = None
    lock: str | tuple[str, ...] = ()
    locked: tuple[Package, ...] | None = None
    steps: tuple[Step, ...] | None = None
    """In an order of its own, as a template that was built tells its own; instead of the six lists above."""

    @model_validator(mode="after")
    def _has_one_kind_of_steps(self) -> "_Text":
        if self.steps is not None and any((self.env, self.apt, self.pip, self.npm, self.files, self.run)):
            raise ValueError("`steps` stands in place of `env`, `apt`, `pip`, `npm`, `files` and `run`")
        if self.lock and self.locked is not None:
            raise ValueError("`lock` names a file with what `locked` says itself: give one of them")
        return self


def parse_recipe(text: str, *, source: str = "the recipe") -> Draft:
    """Read a recipe file. Steps are carried out in the order env, apt, pip, npm, files, run.

    Raises RecipeInvalid: with `line`, `field` or both, as far as they are known.
    """
    if len(text) > MOST_TEXT_BYTES:
        raise RecipeInvalid(f"`{source}` is larger than a recipe may be")
    is_json = text.lstrip()[:1] == "{"
    try:
        content = json.loads(text) if is_json else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise RecipeInvalid(f"`{source}`, line {error.lineno}: {error.msg.lower()}", line=error.lineno) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        message = re.sub(r" \(at .*\)$", "", str(error))
        raise RecipeInvalid(f"`{source}`, line {line}: {message[:1].lower()}{message[1:]}", line=line) from None
    except RecursionError:
        raise RecipeInvalid(f"`{source}` is nested too deeply") from None
    except ValueError as error:  # a number longer than Python reads
        raise RecipeInvalid(f"`{source}` cannot be read: {str(error)[:200]}") from None
    try:
        said = _Text.model_validate(content)
    except ValidationError as error:
        raise _invalid(error, None if is_json else text, source) from None
    return _draft(said)


def _draft(said: _Text) -> Draft:
    steps: list[Step | LocalFiles] = []
    if said.env:
        steps.append(EnvStep(variables=said.env))
    if said.apt:
        steps.append(AptStep(packages=said.apt))
    if said.pip:
        steps.append(PipStep(packages=said.pip))
    if said.npm:
        steps.append(NpmStep(packages=said.npm))
    for files in said.files:
        sources = (files.source,) if isinstance(files.source, str) else files.source
        steps.append(LocalFiles(sources, files.to, files.mode, files.owner))
    for command in said.run:
        where = said.workdir or "/"
        steps.append(RunStep(command=command, user=said.user, cwd=where, timeout_s=said.step_timeout_s))
    if said.steps is not None:
        steps += said.steps
    fields: dict[str, Any] = {
        name: getattr(said, name)
        for name in ("name", "version", "base", "archive", "snapshot", "tags", "home", "network", "locked")
    }
    if said.start is not None:
        fields["start"] = StartCommand(
            command=said.start.command,
            user=said.start.user or "user",
            cwd=said.start.cwd or said.workdir,
            ready=said.start.ready,
            may_end=said.start.may_end,
        )
    return Draft(fields, tuple(steps), (said.lock,) if isinstance(said.lock, str) else said.lock)


def parse_lock(text: str, *, source: str) -> tuple[Package, ...]:
    """Packages of a lock file: a list as `coldframe template show --json` has it, `name==version` lines as pip writes them,
    or `package-lock.json` of npm. Raises RecipeInvalid, with the line."""
    start = text.lstrip()[:1]
    if start in ("[", "{"):
        try:
            content = json.loads(text)
            if isinstance(content, Mapping):
                return _npm_lock(content)
            return tuple(Package.model_validate(one) for one in content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecipeInvalid(f"`{source}` is no list of packages: {str(error)[:200]}", field="lock") from None
    found = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip().removesuffix("\\").strip()
        if not line or line.startswith("--hash="):
            continue
        match = _LOCK_LINE.match(line)
        if match is None or len(line) > MOST_LOCK_LINE or line[match.end() :].lstrip()[:1] not in ("", ";", "-"):
            raise RecipeInvalid(
                f"`{source}`, line {number}: `{line[:80]}` is no `name==version`",
                hint="a lock names each package in one exact version",
                line=number,
                field="lock",
            )
        found.append(Package(manager="pip", name=match[1], version=match[2]))
    return tuple(found)


def _npm_lock(content: Mapping[str, Any]) -> tuple[Package, ...]:
    found = {}
    for place, one in content["packages"].items():
        if place and not one.get("link"):
            name = str(one.get("name") or place.rpartition("node_modules/")[2])
            found[name, str(one["version"])] = Package(manager="npm", name=name, version=str(one["version"]))
    return tuple(found.values())


def _invalid(error: ValidationError, text: str | None, source: str = "the recipe") -> RecipeInvalid:
    first = error.errors(include_url=False, include_context=False)[0]
    place = tuple(str(part) for part in first["loc"])
    line = None if text is None else line_of(text, place)
    where = f"`{source}`" + (f", line {line}" if line else "") + (f", `{'.'.join(place)}`" if place else "")
    message = str(first["msg"]).removeprefix("Value error, ")
    facts: dict[str, Any] = {"field": ".".join(place)[:200]}
    if line:
        facts["line"] = line
    return RecipeInvalid(f"{where}: {message[:1].lower()}{message[1:]}", **facts)


def line_of(text: str, place: Sequence[str]) -> int | None:
    """In which line of a TOML text something stands, as far as a look can tell; None if it cannot."""
    if not place:
        return None
    lines = text.split("\n")
    start, end, names = 0, len(lines), list(place)
    key = re.escape(names[0])
    tables = [i for i, line in enumerate(lines) if re.match(rf"\s*\[\[?\s*{key}\s*\]\]?", line)]
    if tables:
        names.pop(0)
        number = int(names.pop(0)) if names and names[0].isdigit() else 0
        if number >= len(tables):
            return tables[0] + 1
        start = tables[number]
        end = next((i for i in range(start + 1, len(lines)) if re.match(r"\s*\[", lines[i])), len(lines))
        if not names:
            return start + 1
        key = re.escape(names[0])
    for index in range(start, end):
        if re.match(rf"\s*[\"']?{key}[\"']?\s*[=.]", lines[index]):
            return index + 1
    return start + 1 if tables else None
