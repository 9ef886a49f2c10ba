"""The templates of one machine: `<data>/templates/DIGEST/` with the system in `root/` and `manifest.json` beside it.

One is made whole in a draft and then named, or it is not there; after that nothing in it is changed. Its name is the
digest of all that is in it: names, modes, owners by the numbers inside, links, attributes and content, without times.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from coldframe.contract.errors import NotFound, Unavailable
from coldframe.host.removal import remove_in_range
from coldframe.host.templates import debian
from coldframe.host.templates.id_range import IdRange, hand_over, own_range, start_in_range, take_users_files

_DRAFT = ".new-"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TAR = (
    *("tar", "--create", "--sort=name", "--format=posix", "--numeric-owner", "--xattrs", "--mtime=@0"),
    "--pax-option=exthdr.name=%d/%f,delete=atime,delete=ctime",
)
"""Every byte of what it writes follows from the tree."""


class Template(NamedTuple):
    """One that is there whole."""

    digest: str
    name: str
    created_at: datetime
    release: str
    packages: tuple[debian.Package, ...]
    root: str
    """Directory of the system. Its files are those of `ids`."""
    ids: IdRange


class Templates:
    """Everything below `templates/` of a data directory. Methods block, and may be called in any thread or process."""

    def __init__(self, data_dir: str) -> None:
        self._folder = os.path.join(os.path.abspath(data_dir), "templates")
        os.makedirs(self._folder, mode=0o711, exist_ok=True)
        os.chmod(self._folder, 0o711)

    def build_debian(
        self,
        *,
        log: Callable[[str], None],
        extra: tuple[str, ...] = (),
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Template:
        """Make the base system from the package sources of this host. One of the same content is used as it is.

        Raises:
            IsolationUnavailable, Unavailable: see `debian.build`; nothing is left of the attempt.
        """
        ids = own_range()
        with self._draft(ids) as draft:
            root = os.path.join(draft, "root")
            os.mkdir(root, 0o755)
            hand_over(root, ids)
            debian.build(root, ids, log=log, extra=extra, is_wanted=is_wanted)
            if os.getuid() != 0:
                take_users_files(root, ids)
            digest = _digest(root, ids)
            manifest = {
                "digest": digest,
                "name": "debian",
                "created_at": datetime.now(UTC).isoformat(),
                "release": debian.sources()[0],
                "packages": debian.packages(root),
                "ids": ids,
            }
            with open(os.path.join(draft, "manifest.json"), "x", encoding="utf-8") as target:
                json.dump(manifest, target)
                target.flush()
                os.fsync(target.fileno())
            place = os.path.join(self._folder, digest)
            if not os.path.isdir(place):
                os.rename(draft, place)
        return self.get(digest)

    def list(self) -> list[Template]:
        """Newest first."""
        found = []
        for name in os.listdir(self._folder):
            if _DIGEST.fullmatch(name):
                try:
                    found.append(self.get(name))
                except NotFound:  # removed meanwhile
                    continue
        return sorted(found, key=lambda one: one.created_at, reverse=True)

    def get(self, digest: str) -> Template:
        place = os.path.join(self._folder, digest)
        try:
            if not _DIGEST.fullmatch(digest):
                raise FileNotFoundError
            with open(os.path.join(place, "manifest.json"), encoding="utf-8") as source:
                told: dict[str, Any] = json.load(source)
        except FileNotFoundError:
            raise NotFound(f"no template `{digest[:80]}` on this machine") from None
        return Template(
            digest=digest,
            name=told["name"],
            created_at=datetime.fromisoformat(told["created_at"]),
            release=told["release"],
            packages=tuple(debian.Package(*one) for one in told["packages"]),
            root=os.path.join(place, "root"),
            ids=IdRange(*told["ids"]),
        )

    def verify(self, digest: str) -> bool:
        """Whether it is, to the byte, what was built. Reads all of it."""
        template = self.get(digest)
        return _digest(template.root, template.ids) == digest

    def remove(self, digest: str) -> None:
        """No box may use it. It has no name from the first moment on."""
        template = self.get(digest)
        grave = os.path.join(self._folder, _DRAFT + secrets.token_hex(8))
        os.rename(os.path.dirname(template.root), grave)
        _clear(grave, template.ids)

    def sweep(self) -> None:
        """Remove what builds and removals that were killed have left."""
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(_DRAFT):
                with _held(path) as is_ours:
                    if is_ours:
                        _clear(path, own_range())

    @contextmanager
    def _draft(self, ids: IdRange) -> Iterator[str]:
        path = os.path.join(self._folder, _DRAFT + secrets.token_hex(8))
        os.mkdir(path, 0o711)
        if os.getuid() == 0:  # set-uid programs of a template are for nobody on the host
            os.chown(path, -1, ids.first_gid)
            os.chmod(path, 0o710)
        with _held(path):
            try:
                yield path
            finally:
                _clear(path, ids)


@contextmanager
def _held(path: str) -> Iterator[bool]:
    """While somebody is at work in a directory; False if another one is, or if it is gone."""
    try:
        place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(place)


def _clear(path: str, ids: IdRange) -> None:
    if not os.path.isdir(path):  # it was finished, or removed, just before
        return
    remove_in_range(os.path.join(path, "root"), ids)
    for name in os.listdir(path):
        os.unlink(os.path.join(path, name))
    os.rmdir(path)


def _digest(root: str, ids: IdRange) -> str:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    found = hashlib.sha256()
    with open(reading, "rb", buffering=0) as stream, tempfile.TemporaryFile() as complaint:
        try:
            process = start_in_range(
                ids, [*_TAR, "."], output=writing, errors=complaint.fileno(), shown=root, as_box=True
            )
        finally:
            os.close(writing)
        while part := stream.read(1 << 20):
            found.update(part)
        if process.wait() != 0:
            complaint.seek(0)
            said = complaint.read(2000).decode("utf-8", "replace").strip()
            raise Unavailable(f"the template at `{root}` could not be read: {said}", hint="build it again")
    return found.hexdigest()
