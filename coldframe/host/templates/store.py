"""The templates of one machine: `<data>/templates/DIGEST/` with a `manifest.json`, and what they are made of.

One that `coldframe setup` has built has its system in `root/` beside that, and its name is the digest of all that is in it:
names, modes, owners by the numbers inside, links, attributes and content, without times. Others are sealed layers (see
`sealed_layers.py`) upon another template or upon nothing, and their name is the digest of the names of these.

One is made whole in a draft and then named, or it is not there; after that nothing in it is changed.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from coldframe.contract.errors import NotFound, TemplateChanged, Unavailable, WrongState, next_action
from coldframe.contract.template import Manager, Package, Settings, TemplateFacts, template_digest
from coldframe.host.layers.writeback import sync_all
from coldframe.host.removal import remove_in_range
from coldframe.host.templates import debian
from coldframe.host.templates.id_range import (
    IdRange,
    hand_over,
    own_range,
    size_in_range,
    start_in_range,
    take_users_files,
)
from coldframe.host.templates.inventory import installed_in
from coldframe.host.templates.sealed_layers import SealedLayers, check_tree, write_whole
from coldframe.host.templates.sealing import facts_of_tree, size_of_tree
from coldframe.host.templates.watched_trees import WatchedTrees

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
    """Directory of the system, or of the lowest part of it. Its files are those of `ids`."""
    ids: IdRange
    layers: tuple[str, ...] = ()
    """Directories of what it has above the root, the highest first."""
    made: "Made | None" = None
    """None for one that `coldframe setup` has built."""

    @property
    def settings(self) -> Settings:
        return self.made.settings if self.made is not None else Settings()

    @property
    def installed(self) -> tuple[Package, ...]:
        """All that is, of every manager."""
        if self.made is None:
            return installed_in([self.root])
        return tuple(Package(manager=a, name=b, version=c, architecture=d) for a, b, c, d in self.made.installed)


class Made(NamedTuple):
    """What is on record of a template that is made of layers."""

    version: str | None
    origin: Literal["recipe", "archive", "snapshot"]
    base: str | None
    layers: tuple[str, ...]
    """Digests of its own ones, from the lowest up."""
    settings: Settings
    installed: tuple[tuple[Manager, str, str, str], ...]
    """Manager, name, version and architecture of all packages: plain, as every start of a sandbox reads them."""
    recipe_sha256: str | None = None
    build_id: str | None = None


class Templates:
    """Everything below `templates/` of a data directory. Methods block, and may be called in any thread or process."""

    def __init__(self, data_dir: str) -> None:
        self._folder = os.path.join(os.path.abspath(data_dir), "templates")
        os.makedirs(self._folder, mode=0o711, exist_ok=True)
        os.chmod(self._folder, 0o711)
        self._watched = WatchedTrees()
        self._bases: dict[str, str | None] = {}
        """By digest, which never comes to stand on another."""
        self.layers = SealedLayers(os.path.join(self._folder, "layers"), self._watched)

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
            write_whole(os.path.join(draft, "facts"), facts_of_tree(root))
            write_whole(os.path.join(draft, "bytes"), str(_size(root, ids)))
            manifest = {
                "digest": digest,
                "name": "debian",
                "created_at": datetime.now(UTC).isoformat(),
                "release": debian.sources()[0],
                "packages": debian.packages(root),
                "ids": ids,
            }
            self._name(draft, digest, manifest)
        return self.get(digest)

    def make(self, name: str, made: Made) -> Template:
        """Of layers that are sealed. One of the same layers, upon the same, with the same settings, is used as it is.

        Raises NotFound: the base is gone.
        """
        digest = template_digest(made.base, made.layers, made.settings)
        ids = own_range() if made.base is None else self.get(made.base).ids
        with self._draft(ids) as draft:
            manifest = {
                "digest": digest,
                "name": name,
                "created_at": datetime.now(UTC).isoformat(),
                "release": "",
                "ids": ids,
                "made": {
                    **made._asdict(),
                    "settings": made.settings.model_dump(mode="json"),
                },
            }
            self._name(draft, digest, manifest)
        return self.get(digest)

    def _name(self, draft: str, digest: str, manifest: dict[str, Any]) -> None:
        with open(os.path.join(draft, "manifest.json"), "x", encoding="utf-8") as target:
            json.dump(manifest, target)
        sync_all(draft)
        place = os.path.join(self._folder, digest)
        if not os.path.isdir(place):
            os.rename(draft, place)

    def digests(self) -> set[str]:
        """Of those that are there, with all that they stand on; without a look at what was read of one before."""
        there = {name for name in os.listdir(self._folder) if _DIGEST.fullmatch(name)}
        for name in there - self._bases.keys():
            with suppress(NotFound):  # removed meanwhile
                self._bases[name] = self._told(name).get("made", {}).get("base")
        return {name for name in there if self._stands(name, there)}

    def _stands(self, name: str | None, there: set[str]) -> bool:
        while name is not None:
            if name not in there or name not in self._bases:
                return False
            name = self._bases[name]
        return True

    def list(self) -> list[Template]:
        """Newest first."""
        found = []
        for name in os.listdir(self._folder):
            if _DIGEST.fullmatch(name):
                try:
                    found.append(self.get(name))
                except (NotFound, TemplateChanged):  # removed meanwhile, or no use any more
                    continue
        return sorted(found, key=lambda one: one.created_at, reverse=True)

    def get(self, digest: str) -> Template:
        """Raises NotFound; TemplateChanged: what is on record of it is not what was written."""
        told = self._told(digest)
        if "made" in told:
            return self._made(digest, told)
        return Template(
            digest=digest,
            name=told["name"],
            created_at=datetime.fromisoformat(told["created_at"]),
            release=told["release"],
            packages=tuple(debian.Package(*one) for one in told["packages"]),
            root=os.path.join(self._folder, digest, "root"),
            ids=IdRange(*told["ids"]),
        )

    def _told(self, digest: str) -> dict[str, Any]:
        try:
            if not _DIGEST.fullmatch(digest):
                raise FileNotFoundError
            with open(os.path.join(self._folder, digest, "manifest.json"), encoding="utf-8") as source:
                told: dict[str, Any] = json.load(source)
                return told
        except FileNotFoundError:
            raise NotFound(f"no template `{digest[:80]}` on this machine") from None

    def _made(self, digest: str, told: dict[str, Any]) -> Template:
        fields = told["made"]
        made = Made(
            **{
                **fields,
                "layers": tuple(fields["layers"]),
                "settings": Settings.model_validate(fields["settings"]),
                "installed": tuple(tuple(one) for one in fields["installed"]),
            }
        )
        if template_digest(made.base, made.layers, made.settings) != digest:
            raise TemplateChanged(f"what is on record of the template `{digest[:12]}…` was changed", digest=digest)
        own = [self.layers.files(one) for one in reversed(made.layers)]
        base = None
        if made.base is not None:
            try:
                base = self.get(made.base)
            except NotFound:
                raise TemplateChanged(
                    f"the template `{made.base[:12]}…` on which this one stands is gone", digest=digest
                ) from None
        parts = distinct(own if base is None else [*own, *base.layers, base.root])
        packages = tuple(debian.Package(*rest) for manager, *rest in made.installed if manager == "apt")
        return Template(
            digest=digest,
            name=told["name"],
            created_at=datetime.fromisoformat(told["created_at"]),
            release="" if base is None else base.release,
            packages=packages,
            root=parts[-1],
            ids=IdRange(*told["ids"]),
            layers=tuple(parts[:-1]),
            made=made,
        )

    def close(self) -> None:
        """Let go of what was watched. It can be used again."""
        self._watched.close()

    def facts(self, template: Template) -> TemplateFacts:
        """As others are told of it."""
        made = template.made
        return TemplateFacts(
            digest=template.digest,
            name=template.name,
            version=None if made is None else made.version,
            origin="setup" if made is None else made.origin,
            base=None if made is None else made.base,
            created_at=template.created_at,
            recipe_sha256=None if made is None else made.recipe_sha256,
            settings=template.settings,
            packages=template.installed,
            bytes=self._bytes(template),
            build_id=None if made is None else made.build_id,
        )

    def _bytes(self, template: Template) -> int:
        if template.made is not None:
            return sum(self.layers.bytes(one) for one in template.made.layers)
        path = os.path.join(self._folder, template.digest, "bytes")
        try:
            with open(path, encoding="ascii") as source:
                return int(source.read())
        except (FileNotFoundError, ValueError):
            size = _size(template.root, template.ids)
            write_whole(path, str(size))
            return size

    def check(self, template: Template) -> None:
        """At the price of a listing. Raises TemplateChanged: it is not what was built. Nothing may be started from it."""
        made = template.made
        if made is None:
            facts = os.path.join(self._folder, template.digest, "facts")
            whole = partial(self.verify, template.digest)
            self._watched.look(template.root, partial(check_tree, template.root, facts, whole))
            return
        for layer in made.layers:
            self.layers.check(layer, template.ids)
        if made.base is not None:
            self.check(self.get(made.base))

    def verify(self, digest: str) -> bool:
        """Whether it is, to the byte, what was built. Reads all of it."""
        template = self.get(digest)
        made = template.made
        if made is None:
            return _digest(template.root, template.ids) == digest
        if not all(self.layers.verify(one, template.ids) for one in made.layers):
            return False
        return made.base is None or self.verify(made.base)

    def standing_on(self, digest: str) -> tuple[str, ...]:
        """Names of other templates that need it, whether they are whole or not."""
        found = []
        for told in self._all_told():
            if told.get("made", {}).get("base") == digest:
                found.append(f"{told['name']}:{told['made']['version']}")
        return tuple(found)

    def _all_told(self) -> Iterator[dict[str, Any]]:
        for name in os.listdir(self._folder):
            if _DIGEST.fullmatch(name):
                with suppress(NotFound):  # removed meanwhile
                    yield self._told(name)

    def bury(self, digest: str) -> Callable[[], None]:
        """Take its name away; what is returned removes the rest, which takes long for one that `coldframe setup` has built. No
        box may use it. Layers that nobody has any more are for `collect`.

        Raises NotFound; WrongState: another one stands on it.
        """
        if others := self.standing_on(digest):
            raise WrongState(
                f"other templates stand on it: {', '.join(others[:5])}",
                hint="remove these first, or withdraw this one, so that nothing new begins from it",
                next_actions=[
                    next_action("template.withdraw", "has nothing new begin from it, and leaves what stands"),
                    next_action("template.remove", "removes one that stands on it", template=others[0]),
                ],
                used_by=[f"template {one}" for one in others],
            )
        grave = os.path.join(self._folder, _DRAFT + secrets.token_hex(8))
        ids = IdRange(*self._told(digest)["ids"])
        os.rename(os.path.join(self._folder, digest), grave)
        return partial(_clear, grave, ids)

    def collect(self, keep: Callable[[], set[str]]) -> Sequence[str]:
        """Remove the layers that no template has, but for these; what was removed."""
        return self.layers.collect(
            lambda: keep() | {layer for told in self._all_told() for layer in told.get("made", {}).get("layers", ())}
        )

    def sweep(self) -> None:
        """Remove what builds and removals that were killed have left."""
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(_DRAFT):
                with _held(path) as is_ours:
                    if is_ours:
                        _clear(path, own_range())
        self.layers.sweep()

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


def _size(root: str, ids: IdRange) -> int:
    """Bytes on disk."""
    return size_of_tree(root) if os.getuid() == 0 else size_in_range(root, ids)


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


def distinct(layers: Sequence[str]) -> list[str]:
    """Layers, the highest first, each once, since the kernel mounts none twice. Two steps may have left the same. Where one lies
    twice, the lower one shows nothing: the higher one says all that it says."""
    return list(dict.fromkeys(layers))
