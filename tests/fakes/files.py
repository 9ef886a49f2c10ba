"""Files of the fake: the verbs of `contract/files.py` on a plain directory."""

import fnmatch
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coldframe.contract.errors import (
    Conflict,
    EditNotFound,
    EditNotUnique,
    FileMissing,
    InvalidArgument,
    InvalidPattern,
    IsDirectory,
    NotDirectory,
    NotRegular,
    OutsideWorkspace,
    ReadOnly,
    TooLarge,
    from_wire,
)
from coldframe.contract.files import (
    READ_CAP_BYTES,
    DigestTree,
    Done,
    EditAnswer,
    EditFile,
    FileInfo,
    FileKind,
    FindOutputs,
    FindUnsaved,
    ListAnswer,
    ListDirectory,
    MakeDirectory,
    ReadAnswer,
    ReadFile,
    RemovePath,
    SearchAnswer,
    SearchFiles,
    SearchMatch,
    TreeAnswer,
    UnsavedAnswer,
    WriteAnswer,
    WriteFile,
)
from coldframe.contract.git import ReadRepository, RepositoryAnswer
from coldframe.contract.outputs import FoundOutput, OutputsAnswer
from coldframe.contract.packages import ListPackages, ListSystemPackages, PackagesFound
from coldframe.guest.manifest import digest_tree
from coldframe.guest.packages import list_packages
from coldframe.guest.repository import read_repository
from coldframe.guest.unsaved import find_unsaved
from coldframe.guest.verbs import Failure


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FakeFiles:
    """The file verbs in *workspace*."""

    def __init__(self, workspace: str) -> None:
        self.workspace = workspace

    def _resolve(self, path: str, *, writing: bool = False) -> str:
        root = os.path.realpath(self.workspace)
        found = os.path.realpath(os.path.join(root, path))
        if path.startswith("/") or (found != root and not found.startswith(root + "/")):
            raise OutsideWorkspace(f"`{path}` leaves the workspace", path=path)
        if writing and (found + "/").startswith(root + "/.exec_history/"):
            raise ReadOnly(f"`{path}` is read-only", path=path)
        return found

    def _existing(self, path: str, *, writing: bool = False) -> str:
        found = self._resolve(path, writing=writing)
        if not os.path.lexists(found):
            raise FileMissing(f"no file `{path}`", path=path)
        return found

    def _content(self, path: str, *, writing: bool = False) -> tuple[str, bytes]:
        found = self._existing(path, writing=writing)
        if os.path.isdir(found):
            raise IsDirectory(f"`{path}` is a directory", path=path)
        if not os.path.isfile(found):
            raise NotRegular(f"`{path}` is no regular file", path=path)
        with open(found, "rb") as file:
            return found, file.read()

    def read(self, request: ReadFile) -> ReadAnswer:
        found, data = self._content(request.path)
        _check_version(request.path, request.if_version, _version(found))
        end = len(data) if request.length is None else request.offset + request.length
        part = data[request.offset : end]
        if len(part) > READ_CAP_BYTES:
            raise TooLarge(f"`{request.path}` has {len(data)} bytes", limit=READ_CAP_BYTES)
        return ReadAnswer(
            path=request.path,
            content=part,
            offset=request.offset,
            total_bytes=len(data),
            complete=len(part) == len(data),
            version=_version(found),
            mode=stat.S_IMODE(os.stat(found).st_mode),
        )

    def write_plain(self, request: WriteFile) -> WriteAnswer:
        return self.write(request, request.content)

    def write(self, request: WriteFile, data: bytes) -> WriteAnswer:
        found = self._resolve(request.path, writing=True)
        before: bytes | None = None
        if os.path.lexists(found):
            before = self._content(request.path, writing=True)[1]
            if request.create_only:
                raise Conflict(f"`{request.path}` exists", path=request.path)
        _check_version(request.path, request.if_version, _version(found) if before is not None else None)
        if request.sha256 not in (None, hashlib.sha256(data).hexdigest()):
            raise InvalidArgument("what arrived has another digest", argument="sha256")
        try:
            os.makedirs(os.path.dirname(found), exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise NotDirectory(f"a parent of `{request.path}` is no directory", path=request.path) from None
        mode = request.mode if request.mode is not None else stat.S_IMODE(os.stat(found).st_mode) if before else 0o644
        _replace(found, data, mode)
        return WriteAnswer(
            path=request.path,
            bytes_written=len(data),
            created=before is None,
            version=_version(found),
            sha256=sha256(data),
            sha256_before=None if before is None else sha256(before),
        )

    def edit(self, request: EditFile) -> EditAnswer:
        found, before = self._content(request.path, writing=True)
        _check_version(request.path, request.if_version, _version(found))
        data, replacements = before, 0
        for edit in request.edits:
            old = edit.old.encode()
            count = data.count(old) if old else 0
            if count == 0:
                raise EditNotFound(f"the old text does not occur in `{request.path}`", path=request.path)
            if count > 1 and not edit.replace_all:
                raise EditNotUnique(f"the old text occurs {count} times in `{request.path}`", occurrences=count)
            data = data.replace(old, edit.new.encode())
            replacements += count
        _replace(found, data, stat.S_IMODE(os.stat(found).st_mode))
        return EditAnswer(
            path=request.path,
            content=data,
            replacements=replacements,
            bytes_written=len(data),
            version=_version(found),
            sha256=sha256(data),
            sha256_before=sha256(before),
        )

    def list(self, request: ListDirectory) -> ListAnswer:
        found = self._existing(request.path)
        if not os.path.isdir(found):
            raise NotDirectory(f"`{request.path}` is no directory", path=request.path)
        entries: list[FileInfo] = []
        for path, depth in _tree(found):
            if depth > 1 and (not request.recursive or depth > (request.max_depth or depth)):
                continue
            if len(entries) == request.max_entries:
                return ListAnswer(
                    path=request.path, entries=tuple(entries), complete=False, truncated_because="max_entries"
                )
            entries.append(_info(path, os.path.relpath(path, os.path.realpath(self.workspace))))
        return ListAnswer(path=request.path, entries=tuple(entries), complete=True)

    def search(self, request: SearchFiles) -> SearchAnswer:
        try:
            flags = re.IGNORECASE if request.ignore_case else 0
            pattern = re.compile(request.pattern if request.regex else re.escape(request.pattern), flags)
        except re.error as error:
            raise InvalidPattern(f"`{request.pattern}`: {error}", position=error.pos or 0) from None
        found, root = self._existing(request.path), os.path.realpath(self.workspace)
        matches: list[SearchMatch] = []
        searched = 0
        for path in [found] if os.path.isfile(found) else [path for path, _ in _tree(found)]:
            if not os.path.isfile(path) or os.path.islink(path):
                continue
            if request.glob and not fnmatch.fnmatch(os.path.basename(path), request.glob):
                continue
            searched += 1
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    if pattern.search(line):
                        text = line.rstrip("\n")
                        matches.append(SearchMatch(path=os.path.relpath(path, root), line=number, text=text))
        complete = len(matches) <= request.max_matches
        return SearchAnswer(
            matches=tuple(matches[: request.max_matches]),
            complete=complete,
            truncated_because=None if complete else "max_matches",
            files_searched=searched,
            binary_skipped=0,
        )

    def remove(self, request: RemovePath) -> Done:
        found = self._existing(request.path, writing=True)
        if os.path.isdir(found):
            if not request.recursive and not request.contents_only:
                raise IsDirectory(f"`{request.path}` is a directory", path=request.path)
            if not request.contents_only:
                shutil.rmtree(found)
                return Done()
            for name in os.listdir(found):
                inner = os.path.join(found, name)
                shutil.rmtree(inner) if os.path.isdir(inner) and not os.path.islink(inner) else os.unlink(inner)
            return Done()
        os.unlink(found)
        return Done()

    def make_directory(self, request: MakeDirectory) -> Done:
        os.makedirs(self._resolve(request.path, writing=True), exist_ok=True)
        return Done()

    def find_outputs(self, request: FindOutputs) -> OutputsAnswer:
        found, missing = {}, []
        for pattern in request.patterns:
            files = [one for one in Path(self.workspace).glob(pattern) if one.is_file()]
            missing += [] if files else [pattern]
            for one in files:
                path, data = str(one.relative_to(self.workspace)), one.read_bytes()
                found[path] = FoundOutput(path=path, bytes=len(data), sha256=sha256(data), type="text/plain")
        return OutputsAnswer(found=tuple(found[path] for path in sorted(found)), missing=tuple(missing))


def system_of(workspace: str) -> str:
    """Where a test puts the system of its own of a workspace."""
    return workspace.replace("/workspace/", "/system/")


def _list_packages(files: FakeFiles, request: ListPackages) -> PackagesFound:
    return _packages_below(files.workspace, request)


def _list_system_packages(files: FakeFiles, request: ListSystemPackages) -> PackagesFound:
    return _packages_below(system_of(files.workspace), request)


def _packages_below(place: str, request: ListPackages) -> PackagesFound:
    root = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        return PackagesFound.model_validate(list_packages(root, request.model_dump(), b"")[0])
    finally:
        os.close(root)


def _find_unsaved(files: FakeFiles, request: FindUnsaved) -> UnsavedAnswer:
    root = os.open(files.workspace, os.O_PATH | os.O_DIRECTORY)
    try:
        return UnsavedAnswer.model_validate(find_unsaved(root, request.model_dump(), b"")[0])
    finally:
        os.close(root)


def _read_repository(files: FakeFiles, request: ReadRepository) -> RepositoryAnswer:
    root = os.open(files.workspace, os.O_PATH | os.O_DIRECTORY)
    try:
        return RepositoryAnswer.model_validate(read_repository(root, request.model_dump(), b"")[0])
    except Failure as failure:
        raise from_wire({"code": failure.code, "message": failure.message, "facts": failure.facts}) from failure
    finally:
        os.close(root)


def _digest_tree(files: FakeFiles, request: DigestTree) -> TreeAnswer:
    root = os.open(files.workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return TreeAnswer.model_validate(digest_tree(root, request.model_dump(), b"")[0])
    finally:
        os.close(root)


FILE_VERBS: dict[type[Any], Callable[[FakeFiles, Any], Any]] = {
    ReadFile: FakeFiles.read,
    WriteFile: FakeFiles.write_plain,
    EditFile: FakeFiles.edit,
    ListDirectory: FakeFiles.list,
    SearchFiles: FakeFiles.search,
    RemovePath: FakeFiles.remove,
    MakeDirectory: FakeFiles.make_directory,
    FindOutputs: FakeFiles.find_outputs,
    FindUnsaved: _find_unsaved,
    ReadRepository: _read_repository,
    DigestTree: _digest_tree,
    ListPackages: _list_packages,
    ListSystemPackages: _list_system_packages,
}


def _version(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _check_version(path: str, wanted: str | None, found: str | None) -> None:
    if wanted is not None and wanted != found:
        raise Conflict(f"`{path}` was changed", path=path, version=found)


def _replace(path: str, data: bytes, mode: int) -> None:
    temporary = path + ".new"
    with open(temporary, "wb") as file:
        file.write(data)
    os.chmod(temporary, mode)
    os.replace(temporary, path)


def _tree(root: str) -> Iterator[tuple[str, int]]:
    """Every path below *root* with its depth, sorted, links not followed."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        depth = 1 if folder == root else os.path.relpath(folder, root).count("/") + 2
        for name in sorted([*folders, *files]):
            yield os.path.join(folder, name), depth


def digests(root: str) -> dict[str, str]:
    found = {}
    for path, _ in _tree(root):
        name = os.path.relpath(path, root)
        if os.path.isfile(path) and not os.path.islink(path) and not name.startswith(".exec_history/"):
            with open(path, "rb") as file:
                found[name] = sha256(file.read())
    return found


def _kind(mode: int) -> FileKind:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "file" if stat.S_ISREG(mode) else "device"


def _info(path: str, name: str) -> FileInfo:
    status = os.lstat(path)
    kind = _kind(status.st_mode)
    return FileInfo(
        path=name,
        name=os.path.basename(name),
        kind=kind,
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
        target=os.readlink(path) if kind == "symlink" else None,
        version=_version(path) if kind == "file" else None,
    )
