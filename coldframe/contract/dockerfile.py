"""The common subset of a Dockerfile, read as a draft of a recipe.

FROM a template, RUN, COPY and ADD of local files, ENV, ARG, WORKDIR, USER, and CMD and ENTRYPOINT as the start command. All
else is refused by its name and line: what is left out in silence would make another system than the one that was meant.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from pydantic import ValidationError

from coldframe.contract.errors import RecipeInvalid
from coldframe.contract.recipes import MOST_TEXT_BYTES, Draft, LocalFiles
from coldframe.contract.template import EnvStep, ReadyCheck, RunStep, StartCommand, Step, User

KNOWN = ("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "WORKDIR")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where nobody has said otherwise."""
USERS: Mapping[str, User] = {"root": "root", "0": "root", "user": "user", "1000": "user"}
_ARCHIVE = re.compile(r"\.(tar|tar\.(gz|bz2|xz|zst)|tgz|tbz2?|txz)$")
_HEREDOC = re.compile(r"(?<![<\w])<<(-?)\s*([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2(?=\s|$|[;&|>)])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REF = re.compile(r"[a-z][a-z0-9-]{0,62}(:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?|sha256:[0-9a-f]{64}")


class _Instruction(NamedTuple):
    line: int
    """In which it begins, from 1."""
    word: str
    rest: str
    heredocs: tuple[tuple[str, str, bool], ...]
    """Name, content, and whether what is in it stands as it is."""


class _Stage:
    """What the instructions so far have come to."""

    def __init__(self, build_args: Mapping[str, str], base_env: Mapping[str, str]) -> None:
        self.given = dict(build_args)
        self.base_env = {"PATH": PATH, **base_env}
        self.used: set[str] = set()
        self.base: str | None = None
        self.base_line: int | None = None
        self.env: dict[str, str] = {}
        self.args: dict[str, str] = {}
        self.outer: dict[str, str] = {}
        """Arguments before FROM, which hold for it alone and as defaults of later ones of their name."""
        self.workdir = "/"
        self.user: User = "root"
        self.steps: list[Step | LocalFiles] = []
        self.command: str | tuple[str, ...] | None = None
        self.entry: str | tuple[str, ...] | None = None

    @property
    def variables(self) -> dict[str, str]:
        return {**self.base_env, **self.args, **self.env}


def parse_dockerfile(
    text: str,
    *,
    name: str,
    version: str | None = None,
    build_args: Mapping[str, str] | None = None,
    base_env: Mapping[str, str] | None = None,
    ready: ReadyCheck | None = None,
) -> Draft:
    """Read a Dockerfile as the recipe of a template *name*; *ready* is the check of its start command, *base_env* what the
    template of FROM sets.

    Raises RecipeInvalid: with `line` and `instruction`.
    """
    if len(text) > MOST_TEXT_BYTES:
        raise RecipeInvalid("the Dockerfile is larger than a recipe may be")
    stage = _Stage(build_args or {}, base_env or {})
    for one in _instructions(text):
        try:
            _take(stage, one)
        except ValidationError as error:
            _refuse(one, str(error.errors()[0]["msg"]).removeprefix("Value error, "))
    if stage.base is None:
        raise RecipeInvalid(
            "the Dockerfile has no FROM", hint="begin it with `FROM debian`, or another template", line=1
        )
    if unused := sorted(set(stage.given) - stage.used):
        raise RecipeInvalid(f"the Dockerfile has no ARG `{unused[0]}`", field="build_args")
    fields: dict[str, Any] = {"name": name, "version": version, "base": stage.base}
    if (command := _start_of(stage)) is not None:
        cwd = None if stage.workdir == "/" else stage.workdir
        fields["start"] = StartCommand(command=command, user=stage.user, cwd=cwd, ready=ready)
    elif ready is not None:
        raise RecipeInvalid("there is a ready check, but neither CMD nor ENTRYPOINT to be ready", field="start.ready")
    return Draft(fields, tuple(stage.steps), base_line=stage.base_line)


# -- lines ------------------------------------------------------------------------------------------------------------


def _instructions(text: str) -> Iterator[_Instruction]:
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    is_head = True
    while at < len(lines):
        stripped = lines[at].strip()
        if is_head and (directive := re.match(r"#\s*([A-Za-z]+)\s*=\s*(\S+)", stripped)):
            if directive[1].lower() == "escape" and directive[2] != "\\":
                raise RecipeInvalid(
                    f"line {at + 1}: another escape character than `\\` is not supported",
                    line=at + 1,
                    instruction="escape",
                )
            at += 1
            continue
        if not stripped or stripped.startswith("#"):
            is_head = is_head and not stripped.startswith("#") and bool(stripped)
            at += 1
            continue
        is_head = False
        first = at
        parts: list[str] = []
        while at < len(lines):
            line = lines[at]
            if parts and (not line.strip() or line.lstrip().startswith("#")):  # both go unseen within a continued line
                at += 1
                continue
            at += 1
            goes_on = re.search(r"\\[ \t]*$", line)
            parts.append(line[: goes_on.start()] if goes_on else line)
            if not goes_on:
                break
        whole = "".join(parts).strip()
        word, _, rest = whole.partition(" ") if " " in whole else whole.partition("\t")
        word, rest = word.upper(), rest.strip()
        heredocs: list[tuple[str, str, bool]] = []
        if word in ("RUN", "COPY", "ADD"):
            for found in _HEREDOC.finditer(_outside_quotes(rest)):
                content, at = _read_heredoc(lines, at, found[3], strips=found[1] == "-", line=first + 1, word=word)
                heredocs.append((found[3], content, bool(found[2])))
        yield _Instruction(first + 1, word, rest, tuple(heredocs))


def _outside_quotes(text: str) -> str:
    """*text* of the same length, with what stands in quotes blanked out, but for a quoted delimiter."""
    return re.sub(r"(?<!<<)(?<!<<-)(\"(?:\\.|[^\"\\])*\"|'[^']*')", lambda found: " " * len(found[0]), text)


def _read_heredoc(lines: list[str], at: int, name: str, *, strips: bool, line: int, word: str) -> tuple[str, int]:
    found: list[str] = []
    while at < len(lines):
        text = lines[at].lstrip("\t") if strips else lines[at]
        at += 1
        if text == name:
            return "".join(f"{one}\n" for one in found), at
        found.append(text)
    raise RecipeInvalid(f"line {line}: {word} has a heredoc that `{name}` never ends", line=line, instruction=word)


# -- instructions -----------------------------------------------------------------------------------------------------


def _take(stage: _Stage, one: _Instruction) -> None:
    if one.word not in KNOWN:
        raise RecipeInvalid(
            f"line {one.line}: {one.word[:40]} is not supported",
            hint=f"leave it out; supported are {', '.join(KNOWN)}",
            line=one.line,
            instruction=one.word[:40],
        )
    if one.word != "FROM" and one.word != "ARG" and stage.base is None:
        _refuse(one, "stands before FROM")
    if not one.rest:
        _refuse(one, "says nothing")
    match one.word:
        case "FROM":
            _take_from(stage, one)
        case "ARG":
            _take_arg(stage, one)
        case "ENV":
            variables = dict(_pairs(one, stage.variables))
            stage.steps.append(EnvStep(variables=variables))
            stage.env.update(variables)
        case "RUN":
            stage.steps.append(_run_of(stage, one))
        case "COPY" | "ADD":
            stage.steps.append(_files_of(stage, one))
        case "WORKDIR":
            stage.workdir = _joined(one, stage.workdir, _expand(one, one.rest, stage.variables))
        case "USER":
            stage.user = _user_of(one, _expand(one, one.rest, stage.variables))
        case "CMD":
            stage.command = _command_of(one)
        case "ENTRYPOINT":
            stage.entry = _command_of(one)
            stage.command = None  # one that was said before belonged to the other entry


def _take_from(stage: _Stage, one: _Instruction) -> None:
    if stage.base is not None:
        _refuse(
            one, "stands there twice: one stage is all that there can be", hint="build the other stage as a template"
        )
    words = _expand(one, one.rest, stage.outer).split()
    if not words:
        _refuse(one, "names no template")
    if words[0].startswith("--"):
        _refuse(one, f"has `{words[0]}`, which is not supported")
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        _refuse(one, "names one template")
    if not _REF.fullmatch(words[0]) or words[0] in ("scratch", "host"):
        _refuse(
            one,
            f"`{words[0][:80]}` is no name of a template",
            hint="images of a registry are not fetched: name a template of `coldframe template list`, as `FROM debian`",
        )
    stage.base, stage.base_line = words[0], one.line


def _take_arg(stage: _Stage, one: _Instruction) -> None:
    known = stage.outer if stage.base is None else stage.variables
    for word in _words(one, one.rest):
        name, has_default, default = word.partition("=")
        if not _NAME.fullmatch(name):
            _refuse(one, f"`{name[:80]}` is no name of a variable")
        value = stage.given.get(name)
        if name in stage.given:
            stage.used.add(name)
        if value is None and has_default:
            value = _expand(one, default, known)
        if value is None and stage.base is not None:
            value = stage.outer.get(name)
        if value is not None:
            (stage.outer if stage.base is None else stage.args)[name] = value


def _run_of(stage: _Stage, one: _Instruction) -> RunStep:
    if one.rest.startswith("--"):
        _refuse(one, f"has `{one.rest.split()[0].partition('=')[0]}`, which is not supported")
    variables = {name: value for name, value in stage.args.items() if name not in stage.env}
    command: str | tuple[str, ...]
    if one.heredocs:
        if _HEREDOC.fullmatch(one.rest):
            script = one.heredocs[0][1]
            if script.startswith("#!"):
                _refuse(
                    one, "has a heredoc with an interpreter of its own (`#!`)", hint="COPY it to a file, and run that"
                )
        else:
            script = one.rest + "\n" + "".join(f"{content}{name}\n" for name, content, _ in one.heredocs)
        command = ("/bin/sh", "-c", script)
    else:
        said = _command_of(one)
        command = ("/bin/sh", "-c", said) if isinstance(said, str) else said
    return RunStep(command=command, user=stage.user, cwd=stage.workdir, variables=variables)


def _files_of(stage: _Stage, one: _Instruction) -> LocalFiles:
    mode, owner, rest = None, "root", one.rest
    while flag := re.match(r"--([a-z-]+)(?:=(\S+))?\s+", rest):
        value = _expand(one, flag[2] or "", stage.variables)
        if flag[1] == "chmod" and re.fullmatch(r"0?[0-7]{3}", value):
            mode = int(value, 8)
        elif flag[1] == "chown":
            owner = _user_of(one, value)
        else:
            _refuse(one, f"has `--{flag[1]}{'=' + flag[2] if flag[2] else ''}`, which is not supported")
        rest = rest[flag.end() :]
    listed = _json_list(rest)
    words = [_expand(one, word, stage.variables) for word in (listed if listed is not None else _words(one, rest))]
    if len(words) < 2:
        _refuse(one, "names what is copied and where to")
    to = words.pop()
    is_folder = to.endswith(("/", "/.", "/..")) or to in (".", "..")
    place = _joined(one, stage.workdir, to)
    user: User = "user" if owner == "user" else "root"
    if one.heredocs:
        if len(one.heredocs) != 1 or len(words) != 1:
            _refuse(one, "copies one heredoc at a time, and nothing beside it")
        if is_folder:
            _refuse(one, "has to say the name of the file that a heredoc becomes")
        _, content, is_literal = one.heredocs[0]
        text = content if is_literal else _expand_text(content, stage.variables)
        return LocalFiles((), place, mode, user, text.encode(), one.line)
    for word in words:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|git@", word):
            _refuse(
                one, f"would fetch `{word[:80]}`, which is not supported", hint="fetch it with RUN curl, or beforehand"
            )
        if one.word == "ADD" and _ARCHIVE.search(word):
            _refuse(one, f"would unpack `{word[:80]}`", hint="use COPY, and RUN tar to unpack it")
    return LocalFiles(tuple(words), place + ("/" if is_folder and place != "/" else ""), mode, user, None, one.line)


def _start_of(stage: _Stage) -> str | tuple[str, ...] | None:
    if stage.entry is None:
        return stage.command
    if isinstance(stage.entry, str) or stage.command is None:
        return stage.entry
    rest = ("/bin/sh", "-c", stage.command) if isinstance(stage.command, str) else stage.command
    return (*stage.entry, *rest)


def _command_of(one: _Instruction) -> str | tuple[str, ...]:
    listed = _json_list(one.rest)
    if listed is not None and not listed:
        _refuse(one, "has an empty list")
    return one.rest if listed is None else tuple(listed)


def _user_of(one: _Instruction, value: str) -> User:
    name, _, group = value.strip().partition(":")
    if name not in USERS or (group and group not in USERS):
        _refuse(
            one, f"`{value[:80]}` is neither `root` nor `user`", hint="these two are the users that commands run as"
        )
    return USERS[name]


def _joined(one: _Instruction, workdir: str, path: str) -> str:
    parts: list[str] = [] if path.startswith("/") else [part for part in workdir.split("/") if part]
    for part in path.split("/"):
        if part == "..":
            if not parts:
                _refuse(one, f"`{path[:80]}` leads out of the template")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if "\x00" in path:
        _refuse(one, "has a zero byte in a path")
    return "/" + "/".join(parts)


# -- words ------------------------------------------------------------------------------------------------------------


def _json_list(text: str) -> list[str] | None:
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None  # then it is a line for the shell, as in Docker
    return found if isinstance(found, list) and all(isinstance(word, str) for word in found) else None


def _words(one: _Instruction, text: str) -> list[str]:
    """Words with their quotes and escapes still in them."""
    found = re.findall(r"(?:\\.|\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s\"'\\])+", text)
    if re.sub(r"\s", "", "".join(found)) != re.sub(r"\s", "", text):
        _refuse(one, "has a quote that is not closed")
    return found


def _pairs(one: _Instruction, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    first = re.match(r"([A-Za-z_][A-Za-z0-9_]*)(=|\s+)", one.rest)
    if first is None:
        _refuse(one, "sets no variable")
    if first[2] != "=":  # the old form, of one variable: all the rest is its value
        yield first[1], _expand(one, one.rest[first.end() :], known)
        return
    for word in _words(one, one.rest):
        name, has_value, value = word.partition("=")
        if not has_value or not _NAME.fullmatch(name):
            _refuse(one, f"`{word[:80]}` is no `NAME=value`")
        yield name, _expand(one, value, known)


def _expand(one: _Instruction, text: str, known: Mapping[str, str]) -> str:
    """With quotes and escapes taken away and variables replaced, as Docker does it."""
    found: list[str] = []
    at, quote = 0, ""
    while at < len(text):
        sign = text[at]
        if quote == "'":
            if sign == "'":
                quote = ""
            else:
                found.append(sign)
            at += 1
        elif sign == "\\" and at + 1 < len(text) and (not quote or text[at + 1] in '"$\\'):
            found.append(text[at + 1])
            at += 2
        elif sign in "\"'" and quote in ("", sign):
            quote = "" if quote else sign
            at += 1
        elif sign == "$":
            value, at = _variable(text, at, known, one)
            found.append(value)
        else:
            found.append(sign)
            at += 1
    if quote:
        _refuse(one, "has a quote that is not closed")
    return "".join(found)


def _expand_text(text: str, known: Mapping[str, str]) -> str:
    """The content of a heredoc: variables are replaced, quotes stand for themselves."""
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] in ("$", "\\"):
            found.append(text[at + 1])
            at += 2
        elif text[at] == "$":
            value, at = _variable(text, at, known, None)
            found.append(value)
        else:
            found.append(text[at])
            at += 1
    return "".join(found)


def _variable(text: str, at: int, known: Mapping[str, str], one: _Instruction | None) -> tuple[str, int]:
    """The value of what stands at *at*, a dollar, and where it ends."""
    if plain := _NAME.match(text, at + 1):
        return known.get(plain[0], ""), plain.end()
    braced = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([-+])([^{}$]*))?\}").match(text, at + 1)
    if braced is not None:
        value = known.get(braced[1], "")
        if braced[2] == "-":
            value = value or braced[3]
        elif braced[2] == "+":
            value = braced[3] if value else ""
        return value, braced.end()
    if text.startswith("{", at + 1) and one is not None:
        _refuse(
            one, f"has `{text[at : at + 40]}`, which is not supported", hint="use `$NAME`, `${NAME}`, `${NAME:-other}`"
        )
    return "$", at + 1


def _refuse(one: _Instruction, message: str, *, hint: str | None = None) -> NoReturn:
    raise RecipeInvalid(f"line {one.line}: {one.word} {message}", hint=hint, line=one.line, instruction=one.word)
