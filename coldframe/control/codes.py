"""The catalogue of codes, put together from the errors and from the states of commands."""

from coldframe.contract.code import CodeInfo
from coldframe.contract.errors import ColdframeError, Retry, catalogue
from coldframe.control.command_states import COMMAND_CODES

_AGAIN = "run_command"
_OF_COMMANDS: dict[str, tuple[str, Retry, str, str]] = {
    "TIMED_OUT_WALL": ("It ran longer than it may.", "later", "run it again with more time, or as a job", _AGAIN),
    "TIMED_OUT_IDLE": ("It was silent longer than it may.", "later", "send it input, or run it again", _AGAIN),
    "LIMIT_CPU": (
        "Its processes used all the CPU time that they have.",
        "after_change",
        "give it more `cpu_s`",
        _AGAIN,
    ),
    "LIMIT_MEMORY": (
        "It needed more memory than the sandbox has.",
        "after_change",
        "use less, or create a sandbox with a higher `limits.memory_mib`",
        "sandbox.create",
    ),
    "LIMIT_PIDS": (
        "It wanted more processes than the sandbox may have.",
        "after_change",
        "end what is left running, or create a sandbox with higher `limits.pids`",
        "sandbox.create",
    ),
    "LIMIT_DISK": ("The disk of the workspace is full.", "after_change", "remove files, and run it again", _AGAIN),
    "LIMIT_OUTPUT": (
        "It wrote more output than is kept.",
        "after_change",
        "write it to a file, and run it again",
        _AGAIN,
    ),
    "CANCELLED": ("A caller ended it, or its sandbox was ended.", "later", "run it again", _AGAIN),
    "NOT_STARTED": (
        "Its program could not be started.",
        "after_change",
        "look which programs there are",
        "sandbox.runtimes",
    ),
    "PROCESS_LOST": (
        "Something below it ended, and nobody knows how it did.",
        "later",
        "look at what it wrote and changed, then run it again",
        "command.output",
    ),
    "EXPIRED": ("What it wrote was kept for its time, and is removed.", "never", "run it again", _AGAIN),
    "OUTPUT_MISSING": (
        "Something that it declared to make is not there, whatever it returned.",
        "after_change",
        "look at what it wrote, correct it, and run it again",
        "command.output",
    ),
    "REGISTRY_UNREACHABLE": (
        "It failed, and a package registry that it asked could not be reached.",
        "later",
        "run it again later; the log of its contacts says which registry",
        _AGAIN,
    ),
    "DEPENDENCY_MISSING": (
        "It failed, and its output says that something is not installed.",
        "after_change",
        "look at `diagnosis`: it names what is missing and suggests what may help",
        _AGAIN,
    ),
}
"""Meaning, retry, fix and operation."""


def codes() -> list[CodeInfo]:
    """All of them, in alphabetical order."""
    found = [_of_call(code, cls) for code, cls in catalogue().items()]
    for code, family in COMMAND_CODES.items():
        meaning, retry, fix, op = _OF_COMMANDS[code]
        found.append(
            CodeInfo(code=code, of="command", meaning=meaning, family=family, retry=retry, status=None, fix=fix, op=op)
        )
    return sorted(found, key=lambda one: (one.code, one.of))


def _of_call(code: str, cls: type[ColdframeError]) -> CodeInfo:
    meaning = " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())
    return CodeInfo(
        code=code,
        of="call",
        meaning=meaning,
        family=cls.family,
        retry=cls.retry,
        status=cls.status,
        fix=cls.hint,
        op=cls.offer[0],
    )
