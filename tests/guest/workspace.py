"""A workspace in a temporary directory, asked through the verbs exactly as a keeper asks them."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import coldframe.guest.outputs
import coldframe.guest.packages
import coldframe.guest.repository
import coldframe.guest.runtimes
import coldframe.guest.search
import coldframe.guest.unsaved  # noqa: F401  registers its verb
from coldframe.contract import files as contract
from coldframe.contract.git import RepositoryAnswer
from coldframe.contract.model import Model
from coldframe.contract.outputs import OutputsAnswer
from coldframe.contract.packages import PackagesFound
from coldframe.guest.files import FileWriter
from coldframe.guest.verbs import VERBS, Failure

T = TypeVar("T")
NOBODY = 65534
ANSWERS: dict[str, type[Model]] = {
    "read_file": contract.ReadAnswer,
    "write_file": contract.WriteAnswer,
    "edit_file": contract.EditAnswer,
    "list_directory": contract.ListAnswer,
    "search_files": contract.SearchAnswer,
    "remove_path": contract.Done,
    "make_directory": contract.Done,
    "list_runtimes": contract.RuntimesAnswer,
    "find_outputs": OutputsAnswer,
    "find_unsaved": contract.UnsavedAnswer,
    "list_packages": PackagesFound,
    "read_repository": RepositoryAnswer,
}


class Workspace:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = os.open(path, os.O_PATH | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self.root)

    def ask(self, request: contract.Request[Any], content: bytes = b"") -> Any:
        """Send a request of the contract; the answer is checked against the contract too."""
        sent = request.model_dump(mode="python")
        verb = sent.pop("verb")
        carried = sent.pop("content", b"") or content
        answer, body = VERBS[verb].function(self.root, sent, carried)
        answer_type = ANSWERS[verb]
        if "content" in answer_type.model_fields:
            answer = {**answer, "content": body}
        return answer_type.model_validate(answer)

    def refusal(self, request: contract.Request[Any]) -> Failure:
        return failure_of(lambda: self.ask(request))

    def code_of(self, request: contract.Request[Any]) -> str:
        return self.refusal(request).code

    def read(self, path: str, **rest: Any) -> contract.ReadAnswer:
        answer = self.ask(contract.ReadFile(path=path, **rest))
        assert isinstance(answer, contract.ReadAnswer)
        return answer

    def write(self, path: str, content: bytes, **rest: Any) -> contract.WriteAnswer:
        answer = self.ask(contract.WriteFile(path=path, content=content, **rest))
        assert isinstance(answer, contract.WriteAnswer)
        return answer

    def edit(self, path: str, *edits: tuple[str, str], **rest: Any) -> contract.EditAnswer:
        pairs = tuple(contract.Edit(old=old, new=new) for old, new in edits)
        answer = self.ask(contract.EditFile(path=path, edits=pairs, **rest))
        assert isinstance(answer, contract.EditAnswer)
        return answer

    def list(self, path: str = "", **rest: Any) -> contract.ListAnswer:
        answer = self.ask(contract.ListDirectory(path=path, **rest))
        assert isinstance(answer, contract.ListAnswer)
        return answer

    def search(self, pattern: str, **rest: Any) -> contract.SearchAnswer:
        answer = self.ask(contract.SearchFiles(pattern=pattern, **rest))
        assert isinstance(answer, contract.SearchAnswer)
        return answer

    def remove(self, path: str, **rest: Any) -> None:
        self.ask(contract.RemovePath(path=path, **rest))

    def writer(self, path: str, **rest: Any) -> FileWriter:
        sent = contract.WriteFile(path=path, **rest).model_dump(mode="python")
        return FileWriter(self.root, sent)

    def names(self) -> set[str]:
        """Everything in the workspace, as `find` has it."""
        return {str(found.relative_to(self.path)) for found in self.path.rglob("*")}


def failure_of(action: Callable[[], object]) -> Failure:
    """The refusal of *action*, which has to be refused."""
    try:
        answer = action()
    except Failure as failure:
        return failure
    raise AssertionError(f"not refused but answered: {answer!r}")


def unprivileged(path: Path, action: Callable[[], T]) -> T:
    """Run *action* in a process without root's right to ignore modes, on a *path* that is then its own."""
    root = os.getuid() == 0
    for directory, _, names in os.walk(path) if root else ():
        for name in (".", *names):
            os.chown(os.path.join(directory, name), NOBODY, NOBODY, follow_symlinks=False)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if root:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                told: tuple[bool, object] = (True, action())
            except BaseException as error:
                told = (False, repr(error))
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(told, pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        done, value = pickle.load(pipe)
    os.waitpid(pid, 0)
    assert done, value
    answer: T = value
    return answer


def noted_or_skip(path: Path, notes: dict[str, bytes]) -> None:
    """As a command notes them of a file."""
    for name, value in notes.items():
        try:
            os.setxattr(path, b"user.e2b." + name.encode(), value)
        except OSError as error:
            pytest.skip(f"this file system keeps no notes: {error}")
