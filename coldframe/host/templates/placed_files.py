"""The step `files` of a recipe: puts files into a layer to be, above what is there already. No box is needed for it."""

import hashlib
import os
import stat
from collections.abc import Callable, Sequence

from coldframe.contract.errors import InvalidArgument, SnapshotCorrupt
from coldframe.contract.template import RecipeFile
from coldframe.host.layers.branch import split
from coldframe.host.layers.draft import Draft, Facts, facts_of
from coldframe.host.layers.merged import MergedView
from coldframe.host.templates.debian import EPOCH_S, USER_ID
from coldframe.host.templates.id_range import IdRange
from coldframe.host.templates.inventory import at
from coldframe.host.templates.sealing import paths_above

NOT_KEPT = ("/home/user", "/tmp", "/var/tmp", "/run", "/dev", "/proc", "/sys", "/opt/coldframe")
"""What boxes have of their own, so that a template's would not be seen."""
_TIMES = (EPOCH_S * 1_000_000_000,) * 2
_PIECE_BYTES = 1024 * 1024


def place_files(
    files: Sequence[RecipeFile],
    directories: Sequence[str],
    ids: IdRange,
    open_input: Callable[[str], int],
    target: str,
) -> None:
    """Into *target*, an empty directory, as a layer above *directories*, the highest first.

    Raises:
        InvalidArgument: a name that cannot be had, or an input that was not put here.
    """
    last = {os.fsencode(file.to.lstrip("/")): file for file in files}
    for path, file in last.items():
        _refuse_unkept(file)
        if any(other.startswith(path + b"/") for other in last):
            raise InvalidArgument(f"`{file.to}` is to be a file, and a folder for another one", argument="files")
    root = (ids.first_uid, ids.first_gid)
    user = (ids.first_uid + USER_ID, ids.first_gid + USER_ID)
    with MergedView(directories) as view, Draft(target) as draft:
        top = view.top()
        draft.directory(b"", facts_of(top.status, view.attributes(top)))
        for above in paths_above(list(last)):
            place = at(view, above)
            if place is None:
                draft.directory(above, Facts(0o755, root, _TIMES, {}))
            elif place.is_directory:
                draft.directory(above, facts_of(place.status, view.attributes(place)))
            else:
                raise InvalidArgument(
                    f"`/{os.fsdecode(above)}` is {_kind(place.status)}, and no folder",
                    hint="name the folder itself: links are not followed",
                    argument="files",
                )
        for path, file in sorted(last.items(), key=lambda one: split(one[0])):
            facts = Facts(file.mode, root if file.owner == "root" else user, _TIMES, {})
            _copy(draft, path, facts, file, open_input(file.sha256))
        draft.finish()


def _copy(draft: Draft, path: bytes, facts: Facts, file: RecipeFile, source: int) -> None:
    found = hashlib.sha256()
    with open(source, "rb") as reading:
        writing = draft.open_file(path)
        try:
            while piece := reading.read(_PIECE_BYTES):
                found.update(piece)
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(writing, rest) :]
            draft.finish_file(writing, facts)
        finally:
            os.close(writing)
    if found.hexdigest() != file.sha256:
        raise SnapshotCorrupt(f"the input for `{file.to}` is not what was put here", sha256=found.hexdigest())


def _refuse_unkept(file: RecipeFile) -> None:
    for folder in NOT_KEPT:
        if file.to == folder or file.to.startswith(f"{folder}/"):
            raise InvalidArgument(
                f"`{file.to}` is no place of a template: each sandbox has a `{folder}` of its own",
                hint="put it elsewhere, and have the start command copy it",
                argument="files",
            )


def _kind(status: os.stat_result) -> str:
    return "a link" if stat.S_ISLNK(status.st_mode) else "a file"
