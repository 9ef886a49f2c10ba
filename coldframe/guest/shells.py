"""Named shell sessions: what one command leaves in its shell, the next one of the session finds.

Each command still is a bash of its own, with its own tree, limits, streams and exit code, so nothing that a command does
can take the session along or be mistaken for its end. Bash writes down what it holds when it exits, and the next one
reads that before its own text, which stays as it was given. Rejected: one bash that is told line after line, whose end,
exit codes and output somebody has to tell apart from within.

What was written down is the box's own word and goes back to nobody but a bash of the same box.
"""

import contextlib
import os
import re
import shlex
import stat
from typing import Any, NamedTuple

from coldframe.guest.verbs import Failure

MOST_SESSIONS = 16
MOST_BYTES = 4 * 1024 * 1024
"""Of what one session holds. It is in the keeper's memory and gone with the box."""
MOST_NAME_CHARACTERS = 64
WHOLE = b"# whole\n"
BODY = b"# body\n"
PLACE = "/tmp"  # noqa: S108 - the box's own
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

# All that is ours has a name that begins with __coldframe, and is not written down. Options come last when they are put
# back, since a shell that stops at errors, or shows what it runs, would do so here; they are written down first. Those that
# a new bash has are not. Nothing here may take a process of its own: five of them cost more than all else that a line needs.
_HEAD = r"""unset BASH_ENV
__coldframe_set=$SHELLOPTS __coldframe_shopt=$BASHOPTS
__coldframe_keep() {
    __coldframe_now=$BASHOPTS
    builtin shopt -s extglob
    builtin compgen -v -X '@(__coldframe*|BASH*|COLDFRAME_COMMAND_ID|COLUMNS|COMP_*|DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|LINES|NO_COLOR|OPTIND|PIPESTATUS|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|TERM|UID|_)' >|"$__coldframe_file"
    [[ :$__coldframe_now: == *:extglob:* ]] || builtin shopt -u extglob
    builtin mapfile -t __coldframe_names <"$__coldframe_file"
    [[ -n ${__coldframe_names-} ]] || builtin return
    {
        [[ $SHELLOPTS == "$__coldframe_set" ]] || builtin set +o
        builtin printf '# body\n[[ -n ${__coldframe_stay-} ]] || builtin cd -- %q 2>/dev/null || __coldframe_lost %q\n' "$PWD" "$PWD"
        builtin umask -p
        [[ $BASHOPTS == "$__coldframe_shopt" ]] || builtin shopt -p
        builtin alias -p
        builtin declare -p -- "${__coldframe_names[@]}"
        builtin unset -f __coldframe_keep __coldframe_lost
        builtin declare -f
        builtin declare -Fx
        builtin printf '# whole\n'
    } >|"$__coldframe_file"
}
__coldframe_lost() {
    trap - EXIT
    builtin printf 'shell session: its directory %q is gone; give `cwd`, or end the session\n' "$1" >&2
    builtin exit 126
}
"""
_TRAP = "trap '{ __coldframe_keep || :; } 2>/dev/null' EXIT\n"  # after || nothing ends it early


class Entered(NamedTuple):
    """A command of a session that runs."""

    name: str
    directory: str
    """In the box: `in` is read by its shell, `out` written."""
    opened: int
    """The same, open: what the box puts in its place leads us nowhere."""

    @property
    def environment(self) -> tuple[bytes, bytes]:
        """The variable that has bash read it first."""
        return b"BASH_ENV", f"{self.directory}/in".encode()


class Shells:
    """The sessions of one box."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, bytes]] = {}
        """What is to be run again, and the options."""
        self._running: dict[str, str] = {}
        """The command of each session that has one."""

    def enter(self, request: dict[str, Any], command_id: str) -> Entered:
        """Make ready what the shell of a command reads first.

        Raises:
            Failure: CONFLICT, the session has a command, or there are too many.
            OSError: it cannot be written.
        """
        name = checked_name(request["shell_session"])
        if request.get("shell") is None:
            raise Failure("INVALID_ARGUMENT", "a shell session runs lines, not an argument list")
        if name in self._running:
            message = f"shell session `{name}` runs command `{self._running[name]}`, and one at a time"
            raise Failure("CONFLICT", message, command_id=self._running[name])
        if len(self._held.keys() | self._running.keys() | {name}) > MOST_SESSIONS:
            raise Failure("CONFLICT", f"there are {MOST_SESSIONS} shell sessions already; end one", limit=MOST_SESSIONS)
        directory = f"{PLACE}/.coldframe-{command_id}"
        body, options = self._held.get(name, (b"", b""))
        head = f"{_HEAD}__coldframe_file={directory}/out\n{_TRAP}"
        if request.get("cwd"):
            head += "__coldframe_stay=1\n"
        given = "".join(
            f"export {one}={shlex.quote(value)}\n"
            for one, value in (request.get("env") or {}).items()
            if _NAME.fullmatch(one)
        )
        parts = {"out": b"", "in": head.encode() + body + given.encode("utf-8", "surrogateescape") + options}
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            raise Failure("INTERNAL", f"somebody has made `{directory}`") from None
        entered = Entered(name, directory, _open_directory(directory))
        try:
            for part, content in parts.items():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                file = os.open(part, flags, 0o600, dir_fd=entered.opened)
                with os.fdopen(file, "wb") as target:
                    target.write(content)
        except OSError:
            _remove(entered)
            raise
        self._running[name] = command_id
        return entered

    def leave(self, entered: Entered) -> dict[str, Any]:
        """The command has ended. Fields of ShellSession: whether what it left is there for the next one."""
        del self._running[entered.name]
        written = _read(entered.opened)
        _remove(entered)
        if written is None or not written.endswith(WHOLE) or BODY not in written:
            reason = "its shell was ended, became another program, did not begin, or has an EXIT trap of its own"
            if written is not None and len(written) > MOST_BYTES:
                reason = f"it holds more than {MOST_BYTES} bytes"
            return {"name": entered.name, "kept": False, "reason": reason}
        options, _, body = written.partition(BODY)
        self._held[entered.name] = body, options
        return {"name": entered.name, "kept": True, "reason": None}

    def abandon(self, entered: Entered) -> None:
        """The command was never begun."""
        del self._running[entered.name]
        _remove(entered)

    def listing(self) -> list[dict[str, Any]]:
        """Fields of ShellInfo."""
        names = sorted(self._held.keys() | self._running.keys())
        return [{"name": name, "command_id": self._running.get(name)} for name in names]

    def end(self, name: object) -> None:
        """Forget a session. Raises Failure: NOT_FOUND, or CONFLICT while it runs a command."""
        checked = checked_name(name)
        if checked in self._running:
            raise Failure("CONFLICT", f"shell session `{checked}` runs command `{self._running[checked]}`")
        if self._held.pop(checked, None) is None:
            raise Failure("NOT_FOUND", f"there is no shell session `{checked}`")


def checked_name(value: object) -> str:
    """Raises Failure for what is no name."""
    if isinstance(value, str) and len(value) <= MOST_NAME_CHARACTERS and re.fullmatch(r"[a-z0-9][a-z0-9_-]*", value):
        return value
    raise Failure("INVALID_ARGUMENT", "the name of a shell session is lower-case letters, digits, `_` and `-`")


def _open_directory(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(path)
        raise


def _read(directory: int) -> bytes | None:
    """At most one byte more than a session may hold; None if there is no such file, whatever else is there."""
    try:
        file = os.open("out", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        with os.fdopen(file, "rb", closefd=False) as source:
            return source.read(MOST_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(file)


def _remove(entered: Entered) -> None:
    for name in ("in", "out"):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=entered.opened)
    os.close(entered.opened)
    with contextlib.suppress(OSError):  # somebody has put more there; it goes with the box
        os.rmdir(entered.directory)
