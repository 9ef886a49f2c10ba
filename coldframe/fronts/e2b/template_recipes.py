"""Builds of E2B as recipes: what each of its steps is here. Nothing is asked of anybody, and nothing is carried out.

Steps of E2B are run as `user` in its home, unless they say otherwise. Each becomes one step of a recipe, or none; which one is
kept, because errors and logs name steps by E2B's count, which begins with 1.
"""

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.template import (
    EnvStep,
    ReadyCheck,
    RunStep,
    StartCommand,
    Step,
    UnpackStep,
    User,
)
from coldframe.control.template_archives import Archive

BASE_STEP, FINAL_STEP = "base", "finalize"
"""How E2B calls what comes before the first step, and after the last."""
FINALLY = -1
"""Number of the latter."""
READY_TIMEOUT_S = 600.0
DEFAULT_USER = "user"
_FIELDS = frozenset({"fromImage", "fromTemplate", "fromImageRegistry", "force", "steps", "startCmd", "readyCmd"})
_STEP_FIELDS = frozenset({"type", "args", "filesHash", "force", "forceUpload", "resolveSymlinks", "gzip"})
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_OWNER = re.compile(r"[a-z0-9_][a-z0-9_-]{0,31}(:[a-z0-9_][a-z0-9_-]{0,31})?")
_MODE = re.compile(r"[0-7]{3,4}")
_VARIABLE = re.compile(r"\\(.)|\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})|(\$[({]|`)", re.DOTALL)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_AS_USER = """
if ! id -u -- "$0" > /dev/null 2>&1; then
    echo "failed to run command '$1': command failed: unauthenticated: invalid username: '$0'" >&2
    exit 1
fi
exec runuser -u "$0" -- /bin/bash -c "$1"
"""


class Built(NamedTuple):
    """A build as a recipe has it."""

    from_image: str | None
    from_template: str | None
    steps: tuple[Step, ...]
    numbers: tuple[int, ...]
    """For each of them the number of E2B's."""
    start: StartCommand | None
    no_cache: bool


class _State:
    """Where and as whom the next step is run."""

    def __init__(self) -> None:
        self.user = DEFAULT_USER
        self.workdir = ""
        self.variables: dict[str, str] = {"PATH": _PATH}

    @property
    def folder(self) -> str:
        if self.workdir:
            return self.workdir
        return "/root" if self.user == "root" else f"/home/{self.user}"

    def path(self, text: str) -> str:
        return posixpath.normpath(posixpath.join(self.folder, text)) or "/"


def keys_of(body: Mapping[str, Any]) -> list[str]:
    """Of the archives that a build needs."""
    steps = body.get("steps") or []
    found = [step.get("filesHash") for step in steps if isinstance(step, Mapping) and _kind(step) == "COPY"]
    return [key for key in found if isinstance(key, str)]


def read_build(body: Mapping[str, Any], archives: Mapping[str, Archive]) -> Built:
    """Raises InvalidArgument: for what is not understood, and for what cannot be had here."""
    try:
        return _read_build(body, archives)
    except ValidationError as error:
        raise invalid_recipe(error) from None


def invalid_recipe(error: ValidationError) -> InvalidArgument:
    """For a step that is longer than one may be, and the like."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return InvalidArgument(f"no recipe can have such a step: `{place[:80]}`: {first['msg']}", argument="steps")


def _read_build(body: Mapping[str, Any], archives: Mapping[str, Archive]) -> Built:
    _refuse_unknown(body, _FIELDS, "")
    if body.get("fromImageRegistry"):
        raise InvalidArgument(
            "images of registries are not fetched, so no credentials for one are taken",
            hint="leave `fromImageRegistry` out, and begin from a template",
            argument="fromImageRegistry",
        )
    image, template = _text(body, "fromImage"), _text(body, "fromTemplate")
    if (image is None) == (template is None):
        raise InvalidArgument("a build begins from either `fromImage` or `fromTemplate`", argument="fromTemplate")
    listed = body.get("steps") or []
    if not isinstance(listed, list):
        raise InvalidArgument("`steps` is no list", argument="steps")
    state, steps, numbers = _State(), [], []
    no_cache = bool(body.get("force"))
    for number, said in enumerate(listed, 1):
        if not isinstance(said, Mapping):
            raise _wrong(number, "is no object")
        _refuse_unknown(said, _STEP_FIELDS, f"step {number}: ")
        no_cache = no_cache or bool(said.get("force"))
        step = _step_of(number, said, state, archives)
        if step is not None:
            steps.append(step)
            numbers.append(number)
    start_line, ready_line = _text(body, "startCmd"), _text(body, "readyCmd")
    start = None
    if start_line is not None:
        ready = None if ready_line is None else ReadyCheck(command=ready_line, timeout_s=READY_TIMEOUT_S)
        user, command = _as_user(state.user, start_line)
        line = command if isinstance(command, str) else shlex.join(command)
        start = StartCommand(
            command=f"cd / || exit\n{line}" if state.folder == "/" else line,
            user=user,
            cwd=None if state.folder in ("/", "/home/user") else state.folder,
            ready=ready,
            may_end=True,
        )
    elif ready_line is not None:
        line = f"until /bin/bash -c {shlex.quote(ready_line)}; do sleep 1; done"
        user, command = _as_user(state.user, line)
        steps.append(RunStep(command=_words(command), user=user, cwd=state.folder, timeout_s=READY_TIMEOUT_S))
        numbers.append(FINALLY)
    return Built(image, template, tuple(steps), tuple(numbers), start, no_cache)


def step_name(numbers: tuple[int, ...] | None, step: int) -> str:
    """What E2B calls a step of the recipe."""
    if numbers is None or step < 1 or step > len(numbers):
        return BASE_STEP
    number = numbers[step - 1]
    return FINAL_STEP if number == FINALLY else str(number)


def _step_of(number: int, said: Mapping[str, Any], state: _State, archives: Mapping[str, Archive]) -> Step | None:
    args = said.get("args") or []
    if not isinstance(args, list) or not all(map(_is_plain, args)):
        raise _wrong(number, "has arguments that are no texts")
    kind = _kind(said)
    if kind == "RUN":
        if len(args) not in (1, 2) or not args[0]:
            raise _wrong(number, "names no command")
        user, command = _as_user(args[1] if len(args) == 2 and args[1] else state.user, args[0])
        return RunStep(command=_words(command), user=user, cwd=state.folder)
    if kind == "COPY":
        return _copy_of(number, said, args, state, archives)
    if kind == "ENV":
        if not args or len(args) % 2:
            raise _wrong(number, "needs a value for each name")
        variables = {}
        for name, value in zip(args[::2], args[1::2], strict=True):
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise _wrong(number, f"`{name[:80]}` is no name of a variable")
            variables[name] = state.variables[name] = _expanded(number, value, state)
        return EnvStep(variables=variables)
    if kind == "WORKDIR":
        if len(args) != 1 or not args[0]:
            raise _wrong(number, "names no folder")
        state.workdir = state.path(args[0])
        return None
    if kind == "USER":
        if len(args) != 1 or not args[0]:
            raise _wrong(number, "names no user")
        state.user = args[0].partition(":")[0]
        return None
    raise _wrong(number, f"`{_shown(said.get('type'))}` is not known; RUN, COPY, ENV, WORKDIR and USER are")


def _copy_of(
    number: int, said: Mapping[str, Any], args: list[str], state: _State, archives: Mapping[str, Archive]
) -> UnpackStep:
    if len(args) < 2 or len(args) > 4 or not args[0] or not args[1]:
        raise _wrong(number, "names what is copied, and where to")
    source, target, owner, mode = (*args, "", "")[:4]
    source = posixpath.normpath(source)
    if source.startswith(("/", "../")) or source == "..":
        raise _wrong(number, f"`{source[:80]}` leads out of what was sent")
    archive = archives.get(str(said.get("filesHash")))
    if archive is None:
        raise _wrong(
            number, "its files were not sent", hint="send them to the link of `GET /templates/{id}/files/{hash}`"
        )
    if mode and not _MODE.fullmatch(mode):
        raise _wrong(number, f"`{mode[:20]}` is no mode", hint="write it as three or four octal digits")
    owner = owner or state.user
    if not _OWNER.fullmatch(owner):
        raise _wrong(number, f"`{owner[:40]}` is no user")
    to = state.path(target)
    if target.endswith("/") and to != "/":
        to += "/"
    return UnpackStep(
        sha256=archive.sha256,
        bytes=archive.bytes,
        entries=source,
        to=to,
        owner=owner,
        mode=int(mode, 8) if mode else None,
        source=args[0],
    )


def _as_user(name: str, line: str) -> tuple[User, str | tuple[str, ...]]:
    """As whom the box is asked to run a line, and what."""
    if name == "root":
        return "root", line
    if name == "user":
        return "user", line
    if not _USER.fullmatch(name):
        raise InvalidArgument(
            f"failed to run command '{line[:200]}': command failed: unauthenticated: invalid username: '{name[:80]}'",
            hint="name a user that is in the template, or that a step before has made",
            argument="steps",
        )
    return "root", ("/bin/bash", "-c", _AS_USER, name, line)


def _words(command: str | tuple[str, ...]) -> tuple[str, ...]:
    return ("/bin/bash", "-c", command) if isinstance(command, str) else command


def _expanded(number: int, value: str, state: _State) -> str:
    """With variables replaced, as in double quotes of a shell."""

    def of(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1] if found[1] in '$"\\`' else found[0]
        if found[4] is not None:
            raise _wrong(number, f"`{value[:80]}` has more than `$NAME` or `${{NAME}}` in it")
        return state.variables.get(found[2] or found[3], "")

    return _VARIABLE.sub(of, value)


def _kind(said: Mapping[str, Any]) -> str:
    return str(said.get("type") or "").upper()


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None or value == "":
        return None
    if not _is_plain(value):
        raise InvalidArgument(f"`{name}` is no text", argument=name)
    return str(value)


def _is_plain(value: object) -> bool:
    """Whether it is a text that any program can be given."""
    if not isinstance(value, str) or "\x00" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_unknown(body: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    """What says something that nobody here would heed."""
    for name, value in body.items():
        if name not in known and value not in (None, False, "", [], {}):
            raise InvalidArgument(f"{where}`{_shown(name)}` is not supported", argument=_shown(name))


def _shown(value: object) -> str:
    return str(value)[:80].encode("utf-8", "replace").decode()


def _wrong(number: int, message: str, *, hint: str | None = None) -> InvalidArgument:
    return InvalidArgument(f"step {number}: {message}", hint=hint, argument="steps", step=number)
