"""Names of a Git repository, and which object a revision means: read as data, with no setting of the repository followed but
the addresses and the pairs of branches that its settings list, which are told and never used."""

import os
import re
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from coldframe.guest.facts import text_of
from coldframe.guest.git_index import Unreadable
from coldframe.guest.git_objects import MOST_HOPS, MOST_NAME_BYTES, Objects, read_regular
from coldframe.guest.paths import open_unlinked
from coldframe.guest.trees import READ_DIRECTORY, entry_names

MOST_REFS = 20_000
MOST_DEPTH = 32
MOST_SETTINGS_BYTES = 1 << 20
MOST_STEPS = 100_000
"""That `~` may go back."""
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SHORT = re.compile(rb"[0-9a-f]{4,39}")
_STEPS = re.compile(rb"[~^][0-9]*")
_SECTION = re.compile(rb'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\]|\\.)*)")?\]')
_HIDDEN = re.compile(rb"([a-z][a-z0-9+.-]*://)[^/]*@", re.IGNORECASE)


class UnknownRevision(Exception):
    """The name means no object here, or more than one."""


class Settings(NamedTuple):
    remotes: dict[bytes, bytes]
    """Address by name."""
    upstreams: dict[bytes, tuple[bytes, bytes]]
    """Remote, and the branch there, by branch."""


class Refs:
    """Those of the repository that keeps its own in *folder*, and what it has in common with others in *common*."""

    def __init__(self, root: int, folder: bytes, common: bytes, check_time: Callable[[], None]) -> None:
        self._root = root
        self._folder = folder
        self._common = common
        self._check_time = check_time

    def all(self) -> dict[bytes, bytes]:
        """Id by full name, of whatever is below `refs`. Raises Unreadable."""
        found: dict[bytes, bytes] = {}
        text = read_regular(self._root, self._common + b"/packed-refs", MOST_NAME_BYTES) or b""
        for line in text.splitlines():
            object_id, _, name = line.partition(b" ")
            if name.startswith(b"refs/") and _ID.fullmatch(object_id):
                found[name] = bytes.fromhex(object_id.decode())
                self._check_many(found)
        left = [(b"refs", 0)]
        while left:
            path, depth = left.pop()
            for name, is_folder in self._listed(path):
                self._check_time()
                whole = path + b"/" + name
                if is_folder and depth < MOST_DEPTH:
                    left.append((whole, depth + 1))
                elif not is_folder and (at := self._read(whole)) is not None:
                    found[whole] = at
                self._check_many(found)
        return found

    def _check_many(self, found: dict[bytes, bytes]) -> None:
        self._check_time()
        if len(found) > MOST_REFS:
            raise Unreadable("its names are too many")

    def _listed(self, path: bytes) -> list[tuple[bytes, bool]]:
        try:
            held = open_unlinked(self._root, self._common + b"/" + path, READ_DIRECTORY)
        except OSError:
            return []
        found = []
        try:
            for name in entry_names(held):
                mode = os.stat(name, dir_fd=held, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                    found.append((name, stat.S_ISDIR(mode)))
        except OSError:
            pass  # gone meanwhile
        finally:
            os.close(held)
        return found

    def _read(self, name: bytes) -> bytes | None:
        """Id that a name stands for by a file of its own."""
        for _ in range(MOST_HOPS):
            above = self._folder if not name.startswith(b"refs/") else self._common
            text = (read_regular(self._root, above + b"/" + name, 4096) or b"").strip()
            if _ID.fullmatch(text):
                return bytes.fromhex(text.decode())
            if not text.startswith(b"ref:"):
                return None
            name = text[4:].strip()
            if not is_name(name):
                return None
        return None

    def find(self, name: bytes) -> bytes | None:
        """Id of a full name, or of one like `MERGE_HEAD`."""
        return self._read(name) or (self.all().get(name) if name.startswith(b"refs/") else None)

    def head(self) -> tuple[bytes | None, bytes | None]:
        """Branch and commit; no branch if HEAD is a commit itself, no commit if the branch has none yet. Raises Unreadable."""
        text = (read_regular(self._root, self._folder + b"/HEAD", 4096) or b"").strip()
        if _ID.fullmatch(text):
            return None, bytes.fromhex(text.decode())
        name = text[4:].strip() if text.startswith(b"ref:") else b""
        if not is_name(name):
            raise Unreadable("its HEAD names a place that is none")
        if name == b"refs/heads/.invalid":
            raise Unreadable("its names are kept in tables, which are not read")
        return name, self.find(name)

    def resolve(self, revision: bytes, objects: Objects) -> bytes:
        """Id of the object that a revision means: a name, an id or its begin, with `~N`, `^N` behind it.

        Raises:
            UnknownRevision: it means nothing, or several.
            Unreadable: what it leads through cannot be read.
        """
        cut = min((at for at in (revision.find(b"~"), revision.find(b"^")) if at >= 0), default=len(revision))
        base, steps = revision[:cut], revision[cut:]
        found = self._base(base or b"HEAD", objects)
        parts = _STEPS.findall(steps)
        if b"".join(parts) != steps:
            raise UnknownRevision("it has a form that is not read")
        left = MOST_STEPS
        for part in parts:
            number = int(part[1:10] or b"1")
            for _ in range(number if part[:1] == b"~" else 1):
                self._check_time()
                left -= 1
                which = 1 if part[:1] == b"~" else number
                parents = commit_of(objects, found).parents
                if left < 0 or which > len(parents):
                    raise UnknownRevision("there is no such ancestor")
                found = parents[which - 1] if which else peeled(objects, found)
        return found

    def _base(self, name: bytes, objects: Objects) -> bytes:
        if name in (b"HEAD", b"@"):
            commit = self.head()[1]
            if commit is None:
                raise UnknownRevision("nothing is committed yet")
            return commit
        if _ID.fullmatch(name):
            return bytes.fromhex(name.decode())
        if is_name(b"refs/" + name):
            known = self.all()
            for form in (
                b"%s",
                b"refs/%s",
                b"refs/tags/%s",
                b"refs/heads/%s",
                b"refs/remotes/%s",
                b"refs/remotes/%s/HEAD",
            ):
                if (found := known.get(form % name)) is not None:
                    return found
            if re.fullmatch(rb"[A-Z_]+", name) and (found := self._read(name)) is not None:
                return found
        if _SHORT.fullmatch(name):
            many = objects.beginning_with(name)
            if len(many) == 1:
                return many.pop()
            if many:
                raise UnknownRevision("several objects begin so")
        raise UnknownRevision("there is no branch, tag or commit of that name")

    def settings(self) -> Settings:
        """Addresses without the user and password that may stand in them."""
        remotes: dict[bytes, bytes] = {}
        upstreams: dict[bytes, dict[bytes, bytes]] = {}
        kind = named = b""
        text = read_regular(self._root, self._common + b"/config", MOST_SETTINGS_BYTES) or b""
        for line in text.splitlines():
            self._check_time()
            line = line.strip()
            if section := _SECTION.match(line):
                kind, named = section[1].lower(), re.sub(rb"\\(.)", rb"\1", section[2] or b"")
                continue
            key, equals, value = line.partition(b"=")
            key, value = key.strip().lower(), value.strip().strip(b'"')
            if equals and kind == b"remote" and key == b"url":
                remotes.setdefault(named, _HIDDEN.sub(rb"\1", value))
            elif equals and kind == b"branch" and key in (b"remote", b"merge"):
                upstreams.setdefault(named, {})[key] = value
        pairs = {
            name: (pair[b"remote"], pair[b"merge"])
            for name, pair in upstreams.items()
            if len(pair) == 2 and pair[b"merge"].startswith(b"refs/heads/")
        }
        return Settings(remotes, pairs)


def is_name(name: bytes) -> bool:
    """Whether it is one below `refs`, and leads nowhere else."""
    parts = name.split(b"/")
    return parts[0] == b"refs" and len(parts) > 1 and not {b"", b".", b".."} & set(parts) and b"\0" not in name


class Commit(NamedTuple):
    id: bytes
    tree: bytes
    parents: tuple[bytes, ...]
    author: bytes
    committer: bytes
    message: bytes

    def told(self, *, most_bytes: int = 64 * 1024) -> dict[str, Any]:
        name, email, at, zone = _person(self.author)
        committer, committer_email, committed_at, _ = _person(self.committer)
        message = self.message[:most_bytes]
        return {
            "id": self.id.hex(),
            "parents": [one.hex() for one in self.parents],
            "author": name,
            "author_email": email,
            "authored_at": at,
            "zone": zone,
            "committer": committer,
            "committer_email": committer_email,
            "committed_at": committed_at,
            "message": text_of(message),
            "message_complete": len(message) == len(self.message),
            "trailers": _trailers(self.message),
        }

    @property
    def time(self) -> int:
        return _person(self.committer)[2]


def commit_of(objects: Objects, object_id: bytes) -> Commit:
    """The commit, or that of the tag. Raises Unreadable."""
    object_id = peeled(objects, object_id)
    kind, content = objects.read(object_id)
    if kind != b"commit":
        raise Unreadable("what it names is no commit")
    head, _, message = content.partition(b"\n\n")
    tree = author = committer = b""
    parents = []
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"tree":
            tree = tree or value
        elif key == b"parent" and _ID.fullmatch(value):
            parents.append(bytes.fromhex(value.decode()))
        elif key == b"author":
            author = author or value
        elif key == b"committer":
            committer = committer or value
    if not _ID.fullmatch(tree) or len(parents) > 1000:
        raise Unreadable("a commit of it is damaged")
    return Commit(object_id, bytes.fromhex(tree.decode()), tuple(parents), author, committer, message)


def peeled(objects: Objects, object_id: bytes) -> bytes:
    """What a tag is of, if it is one."""
    for _ in range(MOST_HOPS):
        kind, content = objects.read(object_id)
        line = content.partition(b"\n")[0]
        if kind != b"tag" or not line.startswith(b"object ") or not _ID.fullmatch(line[7:]):
            return object_id
        object_id = bytes.fromhex(line[7:].decode())
    raise Unreadable("a tag of it is of tags without end")


def _person(line: bytes) -> tuple[str, str, int, str]:
    """Name, address, seconds since 1970, zone."""
    found = re.match(rb"(.*?) ?<([^>]*)> (-?\d{1,18})(?: ([+-]\d{4}))?", line, re.DOTALL)
    if found is None:
        return text_of(line[:1000]), "", 0, "+0000"
    return text_of(found[1][:1000]), text_of(found[2][:1000]), int(found[3]), (found[4] or b"+0000").decode()


def _trailers(message: bytes) -> list[str]:
    last = message.rstrip().split(b"\n\n")[-1] if b"\n\n" in message.strip() else b""
    lines = last.split(b"\n")[:50]
    return [text_of(one[:1000]) for one in lines if re.match(rb"[A-Za-z0-9-]{1,80}: \S", one)]
