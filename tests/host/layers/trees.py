"""Trees for the tests of layers: grown at random, looked at in whole, and changed through the kernel's own overlay."""

import hashlib
import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coldframe.host.layers.manifest import file_digest
from coldframe.host.layers.merged import MergedView
from coldframe.host.layers.mounts import OwnPlace, Stacking, mount_stack, unmount_stack
from coldframe.host.layers.offer import overlay_offered
from coldframe.host.layers.store import LayerStore

Seen = dict[str, tuple[object, ...]]


def require_overlay(directory: os.PathLike[str]) -> None:
    offer = overlay_offered(os.fspath(directory))
    if offer.way not in ("mount", "own_place"):
        pytest.skip(f"no overlayfs here: {offer.reasons}")


@contextmanager
def mounted(stacking: Stacking) -> Iterator[str]:
    """The place of a mounted stack, as root or in namespaces of the user's own."""
    if os.geteuid() == 0:
        mount_stack(stacking)
        try:
            yield stacking.target
        finally:
            unmount_stack(stacking.target)
    else:
        with OwnPlace([stacking]) as place:
            yield f"/proc/self/fd/{place.directories[0]}"


@contextmanager
def at_work(store: LayerStore, stack_id: str, target: os.PathLike[str]) -> Iterator[str]:
    """A stack that is held and mounted, as that of a sandbox which runs."""
    os.makedirs(target, exist_ok=True)
    held = store.hold(stack_id)
    try:
        with mounted(store.stacking(stack_id, os.fspath(target))) as place:
            yield place
    finally:
        os.close(held)


def look(top: str) -> Seen:
    """Everything below a directory as the kernel shows it: kind, mode, owner, time, content, attributes."""
    found: Seen = {}
    ahead = [""]
    while ahead:
        path = ahead.pop()
        for name in os.listdir(os.path.join(top, path)):
            below = os.path.join(path, name)
            found[below] = _seen(os.path.join(top, below))
            if found[below][0] == stat.S_IFDIR:
                ahead.append(below)
    return found


def _seen(path: str) -> tuple[object, ...]:
    status = os.lstat(path)
    kind, content, attributes = stat.S_IFMT(status.st_mode), "", {}
    if kind == stat.S_IFREG:
        content = digest_of(os.open(path, os.O_RDONLY))
    elif kind == stat.S_IFLNK:
        content = os.readlink(path)
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        attributes = {
            name: os.getxattr(path, name) for name in os.listxattr(path) if not name.startswith("user.overlay.")
        }
    mtime = 0 if kind == stat.S_IFDIR else status.st_mtime_ns
    return kind, stat.S_IMODE(status.st_mode), status.st_uid, mtime, content, sorted(attributes.items())


def look_through(view: MergedView) -> Seen:
    """The same through a view that mounts nothing."""
    found: Seen = {}
    for place in view.walk():
        status, content = place.status, ""
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            content = digest_of(view.open_file(place))
        elif kind == stat.S_IFLNK:
            content = os.fsdecode(view.link_target(place))
        attributes = sorted((os.fsdecode(name), value) for name, value in view.attributes(place).items())
        mtime = 0 if kind == stat.S_IFDIR else status.st_mtime_ns
        mode = stat.S_IMODE(status.st_mode)
        found[os.fsdecode(place.path)] = kind, mode, status.st_uid, mtime, content, attributes
    return found


def digest_of(file: int) -> str:
    """Of what lies behind a descriptor, which is closed; what is mostly holes is not read as zeros."""
    if os.fstat(file).st_size > 1 << 24:
        return file_digest(file)
    with open(file, "rb") as source:
        return hashlib.sha256(source.read()).hexdigest()


NAMES = ("a", "b", "c", "dir", "sub", "x.txt", "\udcff\udcfe", "new\nline", "Ünïcode", "-rf")


def disturb(top: str, chance: random.Random, *, steps: int = 40) -> None:
    """Change a tree at random, as programs in a box do. What cannot be done there is left out."""
    for _ in range(steps):
        parts = [chance.choice(NAMES) for _ in range(chance.randint(1, 4))]
        path = os.path.join(top, *parts)
        try:
            _step(chance, top, path)
        except (OSError, shutil.Error):
            continue


def _step(chance: random.Random, top: str, path: str) -> None:
    step = chance.randrange(12)
    if step <= 3:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW), "wb") as target:
            target.write(chance.randbytes(chance.randint(0, 3000)))
    elif step == 4:
        os.makedirs(path)
    elif step == 5:
        os.unlink(path)
    elif step == 6:
        shutil.rmtree(path)
        if chance.random() < 0.5:
            os.mkdir(path)
    elif step == 7:
        os.rename(path, os.path.join(os.path.dirname(path), chance.choice(NAMES)))
    elif step == 8:
        os.symlink(chance.choice(("a", "sub/b", "/nowhere/at/all", "/nowhere/else", "x" * 300)), path)
    elif step == 9:
        if not os.path.islink(path):
            os.chmod(path, chance.choice((0o755, 0o700, 0o750, 0o4711)))
    elif step == 10:
        os.link(path, os.path.join(top, chance.choice(NAMES) + ".link"), follow_symlinks=False)
    else:
        os.setxattr(path, f"user.{chance.choice('pqr')}", chance.randbytes(20), follow_symlinks=False)
