"""The file tools under random names: `..`, links of every kind, odd bytes and unicode, beside a tree nobody may reach.

Runs the verbs as a keeper does, on a workspace in a directory of its own. Run it as a user who may write nowhere else.
"""

import hashlib
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import coldframe.guest.files
import coldframe.guest.search  # noqa: F401  both register their verbs
from coldframe.contract import files as contract
from coldframe.guest.verbs import VERBS, Failure
from tests.fuzz.target import Fault, odd_character, odd_value, within_processor_time

SECRET = "SECRET-of-another"
PIECES = (
    "a", "b", "dir", "dir/sub", "dir/file", "file", "loop", "up", "out", "abs", "outfile", "proc", "fifo", "dangling",
    "..", "../..", ".", "", "...", "~", "../other", "../other/secret", "/", "//", "/etc", "/proc/self/root", "/dev/null",
    "/proc/self/cwd", "home", "/home/user", "/home/user/file", "./", "a" * 255, "a" * 256, "a/" * 60, "é", "é",
    "\udcff", "\udcc3\udca9", ".exec_history", ".coldframe-write-x", "-rf", "*", "a\nb", " ", "con",
)  # fmt: skip
LINKS = {"up": "..", "out": "../other", "abs": "/etc", "outfile": "../other/secret", "loop": "loop", "dangling": "no"}
REQUESTS: dict[str, type[contract.Request[Any]]] = {
    "read_file": contract.ReadFile,
    "write_file": contract.WriteFile,
    "edit_file": contract.EditFile,
    "list_directory": contract.ListDirectory,
    "search_files": contract.SearchFiles,
    "remove_path": contract.RemovePath,
    "make_directory": contract.MakeDirectory,
}


class Paths:
    """Nothing beside the workspace is read, changed or listed, and every refusal is one of the table."""

    name = "paths"

    def make(self, random: random.Random) -> list[list[Any]]:
        return [self._step(random) for _ in range(random.randint(1, 12))]

    def _step(self, random: random.Random) -> list[Any]:
        path = _path(random)
        kind = random.choice([*REQUESTS, "link"])
        if kind == "link":
            return ["link", {"path": path, "to": _path(random) if random.random() < 0.5 else "../other"}]
        more: dict[str, Any] = {"path": path}
        if kind == "edit_file":
            more["edits"] = [{"old": random.choice(["x", SECRET, "", "a\n"]), "new": random.choice(["", "y" * 50])}]
        elif kind == "search_files":
            more["pattern"] = random.choice(["SECRET", ".*", "(", "x{1,999}", "a|b", odd_character(random)])
        elif kind in ("list_directory", "remove_path"):
            more["recursive"] = random.random() < 0.5
        fields = [name for name in REQUESTS[kind].model_fields if name not in more and name != "verb"]
        if fields and random.random() < 0.3:
            more[random.choice(fields)] = odd_value(random, ("x", "0", "a/b"))
        return [kind, more]

    def check(self, value: Any) -> None:
        base = tempfile.mkdtemp(prefix="cf-fuzz-", dir="/tmp")
        try:
            self._play(Path(base), value)
        finally:
            _unlock(base)
            shutil.rmtree(base)

    def _play(self, base: Path, steps: Any) -> None:
        workspace, other = base / "workspace", base / "other"
        (workspace / "dir" / "sub").mkdir(parents=True)
        other.mkdir()
        (other / "secret").write_text(SECRET)
        (workspace / "file").write_text("a\nx\n")
        (workspace / "dir" / "file").write_bytes(b"\xff\0x")
        os.mkfifo(workspace / "fifo")
        for name, to in LINKS.items():
            os.symlink(to, workspace / name)
        before = _tree(base)
        root = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        descriptors = len(os.listdir("/proc/self/fd"))
        try:
            for kind, request in steps:
                self._do(root, workspace, kind, request)
            if len(os.listdir("/proc/self/fd")) != descriptors:
                raise Fault("a descriptor was left open")
        finally:
            os.close(root)
        if _tree(base) != before:
            raise Fault("something beside the workspace changed")

    def _do(self, root: int, workspace: Path, kind: str, request: dict[str, Any]) -> None:
        if kind == "link":
            _link(workspace, request["path"], request["to"])
            return
        try:
            sent = REQUESTS[kind].model_validate(request).model_dump(mode="python")
        except ValidationError:
            return
        content = sent.pop("content", b"") or b""
        verb = sent.pop("verb")
        try:
            with within_processor_time():
                answer, body = VERBS[verb].function(root, sent, content)
        except Failure as failure:
            if SECRET in failure.message or SECRET in repr(failure.facts):
                raise Fault(f"a refusal tells the secret: {failure.message}") from failure
            return
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{verb} {request!r}: {type(error).__name__}: {error}") from error
        if SECRET.encode() in body or (SECRET in repr(answer) and kind != "edit_file"):
            raise Fault(f"{verb} gave out what lies beside the workspace")


def _link(workspace: Path, name: str, to: str) -> None:
    """What a command in the box may do meanwhile: a link anywhere in the workspace, to anywhere."""
    target = workspace / os.path.normpath("/" + name).lstrip("/")
    try:
        if f"{os.path.realpath(target.parent)}/".startswith(f"{workspace}/"):
            os.symlink(to, target)
    except (OSError, ValueError):
        pass


def _path(random: random.Random) -> str:
    parts = [random.choice(PIECES) for _ in range(random.choice([1, 1, 2, 3, 8]))]
    text = random.choice(["/", "/", "//", ""]).join(parts)
    if random.random() < 0.2:
        at = random.randint(0, len(text))
        text = text[:at] + odd_character(random) + text[at:]
    return text


def _tree(base: Path) -> dict[str, str]:
    """Everything below *base* but not in the workspace, with what it is."""
    found = {"": ",".join(sorted(os.listdir(base)))}
    for path in (base / "other").rglob("*"):
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = f"{status.st_mode} {status.st_nlink} {status.st_mtime_ns} {digest}"
    return found


def _unlock(base: str) -> None:
    for path, names, _ in os.walk(base):
        for name in names:
            full = os.path.join(path, name)
            if not os.path.islink(full):
                os.chmod(full, 0o700)
