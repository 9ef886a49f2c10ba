"""Take programs that rules deny by name out of a box's view: what is not there is started by no spelling and no language.

On each file that such a name leads to in the program directories, and on every other name of that file, an empty one is
mounted that may be neither read nor executed. So it cannot be copied, linked, loaded or read as a script either.

What this does not hold: another program that does the same, and what an agent brings along or writes. Nor a name by which
a program that is not denied acts as another (`git-receive-pack` is `git`, `rbash` is `bash`, `ls` may be `busybox`): the
file is both, and is left alone. The report says so. Whether a name means its file is what `_is_meant` decides.

Both sides use this file: the keeper inside the box's view, and the host to know what should be covered there.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import filter as names_like
from fnmatch import fnmatchcase
from typing import NamedTuple

from coldframe.host import confine
from coldframe.host.isolation.namespaces import FIRST, HOME, MASKED_SIZES, PATH, TOOLS
from coldframe.host.isolation.programs import STAGE

OWN = os.path.dirname(FIRST)
"""What boxes have and the machine has not."""
FOLDERS = (*(place for place in PATH.split(":") if not place.startswith(HOME)), "/usr/local/sbin", "/usr/games", OWN)
"""Where programs are looked for: the search path of boxes without the workspace, and what else is for programs."""
SYSTEM = "/usr"
"""Below it other names of a file are looked for."""
ALTERNATIVES = "/etc/alternatives"
"""Links by which the machine has chosen the program for a name: `awk` is `mawk` here, and nothing else."""
MULTI_CALL = frozenset({"busybox", "toybox", "coreutils"})
"""Programs that are many, even where these are names of the very file and no links to it."""
DEVICE = "denied"
"""What the covers are mounted from, as the table of mounts has it."""
COVERED = "covered"
GONE = "gone"
"""A file that was covered and was removed from the machine since, and its cover with it."""
NOWHERE = ""
"""What a name leads to that leads to no file of the system."""
_WRITABLE = (HOME, *MASKED_SIZES, "/dev", "/proc")
_SHOWN = ("/usr/", "/bin/", "/sbin/", "/lib", f"{OWN}/")
"""Beginnings of the paths at which a box may show a program that is not the agent's."""
_SETTLED_NS = 1_000_000_000
"""A folder that changed within this time may change again without a new time of its own."""
_MOST_LINKS = 40
"""That the kernel follows."""
_SEALED = confine.MS_RDONLY | confine.MS_NOSUID | confine.MS_NODEV | confine.MS_NOEXEC

_listings: dict[str, tuple[tuple[int, int, int], frozenset[str]]] = {}
_links: dict[tuple[int, int, int, int], tuple[str, ...]] = {}


class Covers(NamedTuple):
    """What of a box is covered."""

    files: tuple[str, ...] = ()
    spared: tuple[tuple[str, str], ...] = ()
    """Denied names, each with the program that it leads to and that is left alone."""


class Unlisted(OSError):
    """A program directory that this user may not list, so that nobody knows what is in it."""


def find_named(patterns: Sequence[str]) -> list[str]:
    """Paths in the program directories, as seen by this process, that one of the patterns names.

    A pattern is a name, or an absolute path, with `*`, `?` and `[…]`. Raises OSError for a directory that cannot be listed.
    A path is a system call, and a pattern is held against the names of the directories that it can be about.
    """
    literal = frozenset(one for one in patterns if "/" not in one and not _is_glob(one))
    globs = [one for one in patterns if "/" not in one and _is_glob(one)]
    paths = [one for one in patterns if one.startswith("/")]
    path_globs = [one for one in paths if _is_glob(one)]
    found: dict[str, None] = {}
    listed = set()
    for folder in FOLDERS if literal or globs or path_globs else ():
        names = _names_in(folder)
        real = os.path.realpath(folder)
        fitting = set[str]()
        if real not in listed:
            listed.add(real)
            fitting.update(literal & names, *(names_like(names, glob) for glob in globs))
        fitting.update(*(_below(folder, names, glob) for glob in path_globs))
        found.update(dict.fromkeys(f"{folder}/{name}" for name in sorted(fitting)))
    found.update(dict.fromkeys(path for path in paths if path.startswith(_SHOWN) and os.path.lexists(path)))
    return list(found)


def _below(folder: str, names: Iterable[str], glob: str) -> list[str]:
    """Those that it fits with the folder before them."""
    fixed, place = re.split(r"[*?[]", glob, maxsplit=1)[0], f"{folder}/"
    if not (fixed.startswith(place) or place.startswith(fixed)):
        return []
    return [name for name in names if fnmatchcase(f"{place}{name}", glob)]


def in_use(patterns: Sequence[str], tools: Iterable[str]) -> list[str]:
    """Those that name something on this machine, or one of the programs that only boxes have (`tools` among them)."""
    inside = (FIRST, f"{TOOLS}/python", *(f"{TOOLS}/{name}" for name in tools))
    names = {os.path.basename(path) for path in inside}.union(*(_names_in(folder) for folder in FOLDERS))
    return [
        one
        for one in patterns
        if one in names
        or (_is_glob(one) and "/" not in one and names_like(names, one))
        or ("/" in one and (any(fnmatchcase(path, one) for path in inside) or find_named([one])))
    ]


def other_names(patterns: Sequence[str]) -> list[str]:
    """Names below /usr, outside the program directories, of files that a pattern names. On the host, where it is kept.

    To look through /usr takes 0.2 s; that is done once for a file, and only if names of it are missing.
    """
    found: list[str] = []
    for real in {one for path in find_named(patterns) if (one := real_file(path))}:
        status, near = os.stat(real), _same_file(real)
        if len(near) < status.st_nlink:
            key = (status.st_dev, status.st_ino, status.st_nlink, status.st_ctime_ns)
            if key not in _links:
                _links[key] = tuple(_look_through(SYSTEM, status))
            found += [one for one in _links[key] if one not in near]
    return sorted(set(found))


def real_file(path: str) -> str:
    """The file behind all links; NOWHERE if there is none that belongs to the system."""
    real = os.path.realpath(path)
    if any(real.startswith(f"{place}/") for place in _WRITABLE) or not os.path.isfile(real):
        return NOWHERE
    return real


def cover(patterns: Sequence[str], others: Sequence[str]) -> Covers:
    """Cover them, and `others`, more names of the same files. In the box's view, privileged, before any command.

    Raises ConfineError, and OSError, for what does not take; the box must end then.
    """
    named = {path: real for path in find_named(patterns) if (real := real_file(path))}
    denied, folders = {_place(path) for path in named}, _folders()
    files: dict[str, None] = {}
    for path, real in named.items():
        same = _same_file(real)
        if _is_meant(path, real, [one for one in same if os.path.dirname(one) in folders], denied):
            files.update(dict.fromkeys(same))
    spared = [(path, real) for path, real in named.items() if real not in files]
    known = [os.stat(path) for path in files] if others else []
    files.update(dict.fromkeys(path for path in others if any(_is_named(path, one) for one in known)))
    if files:
        _cover(files)
    return Covers(tuple(files), tuple(spared))


def _is_meant(path: str, real: str, own: Sequence[str], denied: Collection[str]) -> bool:
    """Whether a denied name means the file that it leads to, and not what a program that is not denied does under it.

    It does if the file has this name or a form of it (`python3` leads to `python3.11`). A file with more names of its own
    is all of them (`unzip`, `zipinfo`), unless this one is a form of one that is not denied (`git-receive-pack` of `git`).
    A file that is no program by its own place is what the links to it are. `own`: its names in the program directories.
    """
    name = _name_meant(path)
    names = {os.path.basename(one): one for one in [one for one in own if _is_multi_call(one)] or own or [real]}
    if own and name in names:
        return not any(_is_form(name, one) for one, place in names.items() if one != name and place not in denied)
    if any(_is_form(one, name) for one in names):
        return True
    return not own and all(_is_form(os.path.basename(one), name) for one in _leading_to(real) if one not in denied)


def _name_meant(path: str) -> str:
    """Its own, or that of the program which the machine has chosen for it."""
    name, place = os.path.basename(path), _place(path)
    for _ in range(_MOST_LINKS):
        try:
            target = _place(os.path.join(os.path.dirname(place), os.readlink(place)))
        except OSError:
            break
        if os.path.dirname(place) == ALTERNATIVES:
            name = os.path.basename(target)
        place = target
    return name


def _is_form(name: str, of: str) -> bool:
    """`gcc-12` and `x86_64-linux-gnu-gcc` are forms of `gcc`, `pgcc` and `gccgo` are not."""
    return re.search(rf"(?<![^\W_]){re.escape(of)}(?![^\W\d_])", name) is not None


def _cover(files: Iterable[str]) -> None:
    os.mkdir(STAGE, 0o700)
    loose = confine.MS_NOSUID | confine.MS_NODEV | confine.MS_NOEXEC
    confine.mount(DEVICE, STAGE, "tmpfs", loose, "mode=0755,size=4k,nr_inodes=4")
    blank = f"{STAGE}/denied"
    os.close(os.open(blank, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0))
    confine.mount(None, STAGE, None, confine.MS_REMOUNT | _SEALED)  # the file system itself: its file stays as it is
    for file in files:
        confine.bind(blank, file)
        confine.remount(file, _SEALED)
    confine.detach(STAGE)
    os.rmdir(STAGE)


def look(patterns: Sequence[str], covers: Covers) -> dict[str, Mapping[str, str]]:
    """What somebody inside without any right finds now. Texts only.

    `names`: what each denied name leads to. `files`: COVERED or GONE for each covered file, or what can be done with it.
    `spared`: what each spared name leads to, as long as that is what was spared.
    """
    return {
        "names": {shown(path): shown(real_file(path)) for path in find_named(patterns)},
        "files": {shown(path): _try_file(path) for path in covers.files},
        "spared": {shown(path): shown(real) for path, real in covers.spared if os.path.realpath(path) == real},
    }


def _try_file(path: str) -> str:
    try:
        status = os.stat(path)
        if stat.S_IMODE(status.st_mode) or status.st_size:
            return f"mode {stat.S_IMODE(status.st_mode):04o}, {status.st_size} bytes"
        if os.access(path, os.X_OK):
            return "may be executed"
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except PermissionError:
        return COVERED
    except FileNotFoundError:
        return GONE
    except OSError as error:
        return str(error.strerror)
    return "may be read"


def _names_in(folder: str) -> frozenset[str]:
    try:
        status = os.stat(folder)
        key = (status.st_dev, status.st_ino, status.st_mtime_ns)
        kept = _listings.get(folder)
        if kept is not None and kept[0] == key:
            return kept[1]
        names = frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError as error:
        raise Unlisted(f"the program directory `{folder}` cannot be listed: {error.strerror}") from error
    if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
        _listings[folder] = (key, names)
    return names


def _same_file(real: str) -> list[str]:
    """It, and each other name of it in the program directories."""
    status = os.stat(real)
    found = {real: None}
    if status.st_nlink > 1:
        found.update(dict.fromkeys(path for path in _programs() if _is_named(path, status)))
    return list(found)


def _leading_to(real: str) -> list[str]:
    """What in the program directories is this file, by links."""
    status = os.stat(real)
    found = []
    for path in _programs():
        with contextlib.suppress(OSError):  # a link that leads nowhere
            if os.path.samestat(os.stat(path), status):
                found.append(path)
    return found


def _programs() -> Iterator[str]:
    return (f"{folder}/{name}" for folder in _folders() for name in _names_in(folder))


def _folders() -> list[str]:
    """The program directories, each once, with no link in its path."""
    return list(dict.fromkeys(os.path.realpath(one) for one in FOLDERS))


def _place(path: str) -> str:
    """The same, with no link in its path but itself."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _is_named(path: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), file)
    except FileNotFoundError:
        return False


def _look_through(top: str, wanted: os.stat_result) -> Iterator[str]:
    """Names of the file. What this user may not read, no box of this user may either."""
    folders = [top]
    for folder in folders:
        try:
            entries = list(os.scandir(folder))
        except (PermissionError, FileNotFoundError):
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.inode() == wanted.st_ino and _is_named(entry.path, wanted):
                yield entry.path


def _is_multi_call(path: str) -> bool:
    return os.path.basename(path).partition(".")[0].partition("-")[0] in MULTI_CALL


def _is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def shown(path: str) -> str:
    """As text, whatever bytes it is made of."""
    return path.encode("utf-8", "replace").decode()
