"""Recipes from the disk of whoever builds: read, and the files that they name gathered and digested.

A file is put into the template as it is when it is gathered; one that changes until it has been uploaded is refused by its
digest, and never built in silently. Links are refused: what they point at may be another thing there.
"""

import fnmatch
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from coldframe.client.gathered import Gathered
from coldframe.contract.dockerfile import parse_dockerfile
from coldframe.contract.errors import NotFound, RecipeInvalid
from coldframe.contract.recipes import Draft, LocalFiles, parse_lock, parse_recipe
from coldframe.contract.template import (
    MOST_FILES,
    FilesStep,
    Package,
    ReadyCheck,
    Recipe,
    RecipeFile,
    Step,
)

PART_BYTES = 1024 * 1024
IGNORED = ".dockerignore"


def read_recipe(path: str) -> Gathered:
    """A recipe file with all that it names, which is looked for beside it. Raises RecipeInvalid, OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        draft = parse_recipe(file.read(), source=os.path.basename(path))
    return gather(draft, os.path.dirname(os.path.abspath(path)))


def read_dockerfile(
    path: str,
    *,
    name: str,
    version: str | None = None,
    context: str | None = None,
    build_args: Mapping[str, str] | None = None,
    env_of: Callable[[str], Mapping[str, str]] = lambda _: {},
    ready: ReadyCheck | None = None,
) -> Gathered:
    """A Dockerfile with what it copies from the folder *context*, by default its own. *env_of* tells the variables that a
    template sets; NotFound of it is told as RecipeInvalid, with the line. Raises RecipeInvalid, OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    draft = parse_dockerfile(text, name=name, version=version, build_args=build_args, ready=ready)
    try:
        base_env = env_of(draft.fields["base"])
    except NotFound as error:
        raise RecipeInvalid(
            f"line {draft.base_line}: FROM names `{draft.fields['base'][:80]}`, and there is no such template",
            hint="images of a registry are not fetched: name a template of `coldframe template list`, as `FROM debian`",
            line=draft.base_line,
            instruction="FROM",
        ) from error
    if base_env:
        draft = parse_dockerfile(
            text, name=name, version=version, build_args=build_args, base_env=base_env, ready=ready
        )
    return gather(draft, context or os.path.dirname(os.path.abspath(path)))


def gather(draft: Draft, folder: str) -> Gathered:
    """Files are looked for below *folder* alone. Raises RecipeInvalid, OSError."""
    sources: dict[str, str | bytes] = {}
    steps: list[Step] = []
    ignored = _ignored(folder)
    for step in draft.steps:
        if not isinstance(step, LocalFiles):
            steps.append(step)
            continue
        files = []
        for place, to, mode in _spread(step, folder, ignored):
            digest, size = _digest(place)
            sources[digest] = place
            files.append(
                RecipeFile(
                    to=to,
                    sha256=digest,
                    bytes=size,
                    mode=mode,
                    owner=step.owner,
                    source="" if isinstance(place, bytes) else os.path.relpath(place, folder),
                )
            )
            if len(files) > MOST_FILES:
                raise _wrong(step, f"names more than {MOST_FILES} files")
        if files:
            steps.append(FilesStep(files=tuple(files)))
    locked: list[Package] = []
    for name in draft.locks:
        with open(_inside(folder, name), encoding="utf-8", errors="replace") as file:
            locked += parse_lock(file.read(), source=name)
    if (archive := draft.fields.get("archive")) is not None:
        path = _inside(folder, archive)
        digest, _ = _digest(path)
        sources[digest] = path
        draft = draft._replace(fields={**draft.fields, "archive": digest})
    return Gathered(draft.recipe(steps, locked or None), sources)


def of_archive(path: str, *, name: str, version: str | None = None) -> Gathered:
    """A template of what a tar of a root file system holds. Raises OSError."""
    digest, _ = _digest(path)
    return Gathered(Recipe(name=name, version=version, archive=digest), {digest: os.path.abspath(path)})


def read_parts(source: str | bytes) -> Iterator[bytes]:
    """The bytes of one of `Gathered.sources`, in parts. Raises OSError."""
    if isinstance(source, bytes):
        if source:
            yield source
        return
    with open(source, "rb") as file:
        while part := file.read(PART_BYTES):
            yield part


def _spread(step: LocalFiles, folder: str, ignored: "_Ignored") -> Iterator[tuple[str | bytes, str, int]]:
    """Each file with where it goes and its mode."""
    if step.content is not None:
        yield step.content, step.to, step.mode if step.mode is not None else 0o644
        return
    found: list[str] = []
    for pattern in step.sources:
        matched = _matching(step, folder, pattern, ignored)
        if not matched:
            raise _wrong(step, f"names `{pattern[:200]}`, which is not there")
        found += matched
    is_folder = step.to.endswith("/") or len(found) > 1
    to = step.to.rstrip("/")
    for path in found:
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            for inner in _files_below(step, path, folder, ignored):
                yield inner, f"{to}/{os.path.relpath(inner, path)}", _mode(step, inner)
        else:
            _require_regular(step, path, status)
            yield path, f"{to}/{os.path.basename(path)}" if is_folder else to, _mode(step, path)


def _matching(step: LocalFiles, folder: str, pattern: str, ignored: "_Ignored") -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _wrong(step, f"names `{pattern[:200]}`, which is outside the folder of the recipe")
    found = [folder]
    for part in parts:
        if any(sign in part for sign in "*?["):
            found = [
                os.path.join(one, name)
                for one in found
                if os.path.isdir(one) and not os.path.islink(one)
                for name in sorted(os.listdir(one))
                if fnmatch.fnmatchcase(name, part)
            ]
        else:
            found = [path for one in found if os.path.lexists(path := os.path.join(one, part))]
        for one in found:
            if os.path.islink(one):
                raise _wrong(step, f"names the link `{os.path.relpath(one, folder)}`, and links are not copied")
    return [one for one in found if not ignored.has(os.path.relpath(one, folder))]


def _files_below(step: LocalFiles, top: str, folder: str, ignored: "_Ignored") -> Iterator[str]:
    for name in sorted(os.listdir(top)):
        path = os.path.join(top, name)
        if ignored.has(os.path.relpath(path, folder)):
            continue
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            yield from _files_below(step, path, folder, ignored)
        else:
            _require_regular(step, path, status)
            yield path


def _require_regular(step: LocalFiles, path: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _wrong(step, f"would copy the link `{path}`, and links are not copied")
    if not stat.S_ISREG(status.st_mode):
        raise _wrong(step, f"would copy `{path}`, which is no regular file")


def _mode(step: LocalFiles, path: str) -> int:
    if step.mode is not None:
        return step.mode
    return 0o755 if os.stat(path).st_mode & 0o111 else 0o644


def _digest(place: str | bytes) -> tuple[str, int]:
    found, size = hashlib.sha256(), 0
    for part in read_parts(place):
        found.update(part)
        size += len(part)
    return found.hexdigest(), size


def _inside(folder: str, name: str) -> str:
    path = os.path.normpath(os.path.join(folder, name))
    if os.path.commonpath((folder, path)) != os.path.normpath(folder):
        raise RecipeInvalid(f"`{name[:200]}` is outside the folder of the recipe")
    above = folder
    for part in os.path.relpath(path, folder).split(os.sep):
        above = os.path.join(above, part)
        if os.path.islink(above):
            raise RecipeInvalid(f"`{name[:200]}` is a link, or below one, and links are not followed")
    return path


class _Ignored(NamedTuple):
    """What a `.dockerignore` leaves out: names and patterns of paths, and what is below them."""

    patterns: tuple[str, ...]

    def has(self, path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        return any(fnmatch.fnmatchcase(one, pattern) for one in above for pattern in self.patterns)


def _ignored(folder: str) -> _Ignored:
    try:
        with open(os.path.join(folder, IGNORED), encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return _Ignored(())
    patterns: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("!"):
            raise RecipeInvalid(
                f"`{IGNORED}`, line {number}: exceptions (`!`) are not supported",
                hint="name what is left out",
                line=number,
            )
        pattern = os.path.normpath(line.lstrip("/"))
        patterns += [pattern, pattern.removeprefix("**/")] if pattern.startswith("**/") else [pattern]
    return _Ignored((*patterns, IGNORED))


def _wrong(step: LocalFiles, message: str) -> RecipeInvalid:
    where = f"line {step.line}: " if step.line else ""
    return RecipeInvalid(f"{where}the step to `{step.to[:200]}` {message}", line=step.line)
