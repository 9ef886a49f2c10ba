"""The objects and names of a Git repository, read as data: loose ones and packs, whatever their author made of them.

Everything has a bound, since everything may be made to hurt: how large an object may get, how long a chain of deltas, how
deep a tree. What goes beyond is told as not readable.
"""

import hashlib
import mmap
import os
import re
import stat
import zlib
from collections.abc import Callable

from coldframe.guest.git_index import MOST_LISTED_BYTES, TREE, Entry, Unreadable
from coldframe.guest.paths import open_unlinked
from coldframe.guest.trees import READ_DIRECTORY, entry_names

MOST_OBJECT_BYTES = 64 * 1024 * 1024
MOST_DELTAS, MOST_HOPS, MOST_DEPTH = 4096, 5, 512
MOST_NAME_BYTES = 16 * 1024 * 1024
"""Of the file with all names of commits."""
MOST_TREES = 200_000
MOST_DELTA_BYTES = 128 * 1024 * 1024
"""Of one chain."""
MOST_LISTED = 2_000_000
"""Files of one commit: a few trees that hold one another have more of them than there is memory."""
MOST_PACKS = 64
"""That an object goes through, where its deltas stand on those of other packs."""
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_OFFSET_DELTA, _ID_DELTA = 6, 7
_MODE = re.compile(rb"[0-7]{1,7}")
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def read_regular(root: int, path: bytes, most_bytes: int) -> bytes | None:
    """A small file of which no part of the way is a link; None if there is none.

    Raises:
        Unreadable: it is no file, too large, or not for this user.
    """
    try:
        held = open_unlinked(root, path, READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(str(error.strerror).lower()) from error
    try:
        status = os.fstat(held)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise Unreadable("a part of it is no file, or too large")
        found = bytearray()
        while piece := os.read(held, min(1 << 20, most_bytes + 1 - len(found))):
            found += piece
        if len(found) > most_bytes:
            raise Unreadable("a part of it is too large")
        return bytes(found)
    except OSError as error:
        raise Unreadable(str(error.strerror).lower()) from error
    finally:
        os.close(held)


class Objects:
    """Those below *common*, a place in the workspace. To be closed. *check_time* raises what ends the look."""

    def __init__(self, root: int, common: bytes, algorithm: str, check_time: Callable[[], None]) -> None:
        self._root = root
        self._check_time = check_time
        self._common = common
        self._width = hashlib.new(algorithm).digest_size
        self._packs: list[_Pack] | None = None

    def close(self) -> None:
        for pack in self._packs or ():
            pack.close()

    def tree_of(self, commit: bytes) -> bytes:
        """Id of the tree of a commit. Raises Unreadable."""
        kind, content = self.read(commit)
        line = content.partition(b"\n")[0]
        if kind != b"commit" or not line.startswith(b"tree ") or len(line) != 5 + 2 * self._width:
            raise Unreadable("its last commit is none")
        return _bytes_of(line[5:])

    def files_of(self, tree: bytes) -> dict[bytes, tuple[int, bytes]]:
        """Mode and id of each path below. Raises Unreadable."""
        found: dict[bytes, tuple[int, bytes]] = {}
        left, seen, size = [(b"", tree, 0)], 0, 0
        while left:
            self._check_time()
            above, at, depth = left.pop()
            seen += 1
            if depth > MOST_DEPTH or seen > MOST_TREES:
                raise Unreadable("its trees are too many or too deep")
            kind, content = self.read(at)
            if kind != b"tree":
                raise Unreadable("a tree of it is none")
            for mode, name, object_id in self._entries(content):
                if mode == TREE:
                    left.append((above + name + b"/", object_id, depth + 1))
                else:
                    found[above + name] = (mode, object_id)
                size += len(above) + len(name)
            if size > MOST_LISTED_BYTES or len(found) + len(left) > MOST_LISTED:
                raise Unreadable("its files are too many")
        return found

    def entry_at(self, tree: bytes, path: bytes) -> tuple[int, bytes] | None:
        """Mode and id of what stands at a path, a folder too; None if nothing does. Raises Unreadable."""
        found: tuple[int, bytes] | None = (TREE, tree)
        for name in path.split(b"/") if path else ():
            self._check_time()
            if found is None or found[0] != TREE:
                return None
            entries = self.tree(found[1])
            found = entries.get(name)
        return found

    def tree(self, tree: bytes) -> dict[bytes, tuple[int, bytes]]:
        """Mode and id by name, of one tree alone. Raises Unreadable."""
        kind, content = self.read(tree)
        if kind != b"tree":
            raise Unreadable("a tree of it is none")
        return {name: (mode, object_id) for mode, name, object_id in self._entries(content)}

    def changed(
        self, before: bytes | None, after: bytes | None
    ) -> dict[bytes, tuple[tuple[int, bytes] | None, tuple[int, bytes] | None]]:
        """What two trees have at each path at which they differ. Folders that are the same are not looked into. Raises
        Unreadable."""
        found: dict[bytes, tuple[tuple[int, bytes] | None, tuple[int, bytes] | None]] = {}
        left: list[tuple[bytes, bytes | None, bytes | None, int]] = [(b"", before, after, 0)]
        seen = size = 0
        while left:
            self._check_time()
            above, old_tree, new_tree, depth = left.pop()
            seen += 1
            if depth > MOST_DEPTH or seen > MOST_TREES:
                raise Unreadable("its trees are too many or too deep")
            old = {} if old_tree is None else self.tree(old_tree)
            new = {} if new_tree is None else self.tree(new_tree)
            for name in sorted(old.keys() | new.keys()):
                one, other = old.get(name), new.get(name)
                if one == other:
                    continue
                path = above + name
                folders = [None if it is None or it[0] != TREE else it[1] for it in (one, other)]
                if folders[0] is not None or folders[1] is not None:
                    left.append((path + b"/", folders[0], folders[1], depth + 1))
                plain = [None if it is None or it[0] == TREE else it for it in (one, other)]
                if plain[0] is not None or plain[1] is not None:
                    found[path] = (plain[0], plain[1])
                size += len(path)
            if size > MOST_LISTED_BYTES or len(found) + len(left) > MOST_LISTED:
                raise Unreadable("its files are too many")
        return found

    def _entries(self, content: bytes) -> list[tuple[int, bytes, bytes]]:
        found, at = [], 0
        while at < len(content):
            close = content.find(b"\0", at)
            mode, _, name = content[at:close].partition(b" ")
            if close < 0 or not name or not _MODE.fullmatch(mode) or close + 1 + self._width > len(content):
                raise Unreadable("a tree of it is damaged")
            found.append((int(mode, 8), name, content[close + 1 : close + 1 + self._width]))
            at = close + 1 + self._width
        return found

    def read(self, object_id: bytes, *, through: int = 0) -> tuple[bytes, bytes]:
        """Kind and content, for one that stands on others *through* so many packs before. Raises Unreadable."""
        if through > MOST_PACKS:
            raise Unreadable("an object of it is in too many pieces")
        name = object_id.hex().encode()
        path = self._common + b"/objects/" + name[:2] + b"/" + name[2:]
        packed = read_regular(self._root, path, MOST_OBJECT_BYTES)
        if packed is not None:
            content = _inflated(packed, MOST_OBJECT_BYTES + 64)[0]
            head, zero, body = content.partition(b"\0")
            if not zero:
                raise Unreadable("an object of it is damaged")
            return head.partition(b" ")[0], body
        for pack in self._opened():
            if (offset := pack.find(object_id)) is not None:
                return self._packed(pack, offset, through)
        raise Unreadable("an object of it is missing")

    def size_of(self, object_id: bytes) -> int | None:
        """Bytes of an object, also of one that is too large to be read; None if only reading it would tell."""
        name = object_id.hex().encode()
        try:
            held = open_unlinked(self._root, self._common + b"/objects/" + name[:2] + b"/" + name[2:], READ)
        except OSError:
            found = ((pack, pack.find(object_id)) for pack in self._opened())
            return next((pack.size_at(offset) for pack, offset in found if offset is not None), None)
        try:
            begun = zlib.decompressobj().decompress(os.read(held, 4096), 64)
        except (OSError, zlib.error):
            return None
        finally:
            os.close(held)
        size = begun.partition(b"\0")[0].partition(b" ")[2]
        return int(size) if size.isdigit() else None

    def beginning_with(self, digits: bytes) -> set[bytes]:
        """Ids of the objects whose hexadecimal form begins so, up to two."""
        found: set[bytes] = set()
        try:
            held = open_unlinked(self._root, self._common + b"/objects/" + digits[:2], READ_DIRECTORY)
        except OSError:
            held = -1
        if held >= 0:
            try:
                for name in entry_names(held):
                    self._check_time()
                    if name.startswith(digits[2:]) and _ID.fullmatch(digits[:2] + name):
                        found.add(bytes.fromhex((digits[:2] + name).decode()))
            finally:
                os.close(held)
        for pack in self._opened():
            found |= pack.beginning_with(digits)
        return set(sorted(found)[:2])

    def _packed(self, pack: "_Pack", offset: int, through: int) -> tuple[bytes, bytes]:
        deltas, size = [], 0
        while True:
            self._check_time()
            kind, base, content = pack.read(offset, self._width)
            if kind in _KINDS:
                found_kind, whole = _KINDS[kind], content
                break
            deltas.append(content)
            size += len(content)
            if len(deltas) > MOST_DELTAS or size > MOST_DELTA_BYTES:
                raise Unreadable("an object of it is in too many pieces")
            if isinstance(base, bytes):
                below = pack.find(base)
                if below is None:
                    found_kind, whole = self.read(base, through=through + 1)
                    break
                offset = below
            else:
                offset -= base
        while deltas:
            self._check_time()
            whole = _applied(whole, deltas.pop())
        return found_kind, whole

    def _opened(self) -> "list[_Pack]":
        if self._packs is None:
            self._packs = []
            folder = self._common + b"/objects/pack"
            try:
                held = open_unlinked(self._root, folder, READ_DIRECTORY)
            except OSError:
                return self._packs
            try:
                names = [name for name in entry_names(held) if name.endswith(b".idx")]
            finally:
                os.close(held)
            for name in names:
                self._packs.append(_Pack(self._root, folder + b"/" + name[:-4], self._width))
        return self._packs


class _Pack:
    def __init__(self, root: int, path: bytes, width: int) -> None:
        self._index = _mapped(root, path + b".idx")
        self._content = _mapped(root, path + b".pack")
        self._width = width
        index = self._index
        if index[:8] != b"\xfftOc\0\0\0\x02" or self._content[:4] != b"PACK":
            raise Unreadable("a pack of it is of a form that is not read")
        self._count = int.from_bytes(index[8 + 255 * 4 : 8 + 256 * 4], "big")
        if 8 + 1024 + self._count * (width + 8) + 2 * width > len(index):
            raise Unreadable("a pack of it is damaged")

    def close(self) -> None:
        self._index.close()
        self._content.close()

    def find(self, object_id: bytes) -> int | None:
        index, width = self._index, self._width
        first = object_id[0]
        low = int.from_bytes(index[8 + (first - 1) * 4 : 8 + first * 4], "big") if first else 0
        high = min(int.from_bytes(index[8 + first * 4 : 12 + first * 4], "big"), self._count)
        names = 8 + 1024
        while low < high:
            middle = (low + high) // 2
            there = index[names + middle * width : names + (middle + 1) * width]
            if there == object_id:
                return self._offset(middle)
            if there < object_id:
                low = middle + 1
            else:
                high = middle
        return None

    def beginning_with(self, digits: bytes) -> set[bytes]:
        """Up to two ids."""
        index, width, names = self._index, self._width, 8 + 1024
        least = bytes.fromhex((digits + b"0" * (2 * width - len(digits))).decode())
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if index[names + middle * width : names + (middle + 1) * width] < least:
                low = middle + 1
            else:
                high = middle
        near = (index[names + n * width : names + (n + 1) * width] for n in range(low, min(low + 2, self._count)))
        return {one for one in near if one.hex().encode().startswith(digits)}

    def size_at(self, offset: int) -> int | None:
        """Of what is there as a whole; None for a delta."""
        if not 0 < offset < len(self._content) - self._width:
            return None
        byte, at = self._content[offset], offset + 1
        kind, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 0x80 and shift < 64:
            byte, at = self._byte(at)
            size |= (byte & 0x7F) << shift
            shift += 7
        return size if kind in _KINDS else None

    def _offset(self, number: int) -> int:
        at = 8 + 1024 + self._count * (self._width + 4) + number * 4
        offset = int.from_bytes(self._index[at : at + 4], "big")
        if offset & 0x80000000:
            at = 8 + 1024 + self._count * (self._width + 8) + (offset & 0x7FFFFFFF) * 8
            offset = int.from_bytes(self._index[at : at + 8], "big")
        return offset

    def read(self, offset: int, width: int) -> tuple[int, int | bytes, bytes]:
        """Kind, what it is based on (a distance or an id), and its content or its delta."""
        content = self._content
        if not 0 < offset < len(content) - width:
            raise Unreadable("a pack of it is damaged")
        byte, at = content[offset], offset + 1
        kind, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 0x80:
            byte, at = self._byte(at)
            size |= (byte & 0x7F) << shift
            shift += 7
            if shift > 64:
                raise Unreadable("a pack of it is damaged")
        base: int | bytes = 0
        if kind == _OFFSET_DELTA:
            byte, at = self._byte(at)
            distance = byte & 0x7F
            while byte & 0x80:
                byte, at = self._byte(at)
                distance = (distance + 1) << 7 | byte & 0x7F
            if not 0 < distance < offset:
                raise Unreadable("a pack of it is damaged")
            base = distance
        elif kind == _ID_DELTA:
            base, at = content[at : at + width], at + width
        elif kind not in _KINDS:
            raise Unreadable("a pack of it is damaged")
        if size > MOST_OBJECT_BYTES:
            raise Unreadable("an object of it is too large")
        found, _ = _inflated(memoryview(content)[at:], size)
        if len(found) != size:
            raise Unreadable("a pack of it is damaged")
        return kind, base, found

    def _byte(self, at: int) -> tuple[int, int]:
        if at >= len(self._content):
            raise Unreadable("a pack of it is damaged")
        return self._content[at], at + 1


def _mapped(root: int, path: bytes) -> mmap.mmap:
    try:
        held = open_unlinked(root, path, READ)
    except OSError as error:
        raise Unreadable("a pack of it cannot be read") from error
    try:
        status = os.fstat(held)
        if not stat.S_ISREG(status.st_mode) or status.st_size < 32:
            raise Unreadable("a pack of it is damaged")
        return mmap.mmap(held, status.st_size, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise Unreadable("a pack of it cannot be read") from error
    finally:
        os.close(held)


def _inflated(packed: "bytes | memoryview", most_bytes: int) -> tuple[bytes, bytes]:
    work = zlib.decompressobj()
    found = bytearray()
    try:
        for at in range(0, len(packed), 1 << 16):
            piece = work.decompress(packed[at : at + (1 << 16)], most_bytes + 1 - len(found))
            while True:
                found += piece
                if len(found) > most_bytes:
                    raise Unreadable("an object of it is too large")
                if not work.unconsumed_tail:
                    break
                piece = work.decompress(work.unconsumed_tail, most_bytes + 1 - len(found))
            if work.eof:
                break
    except zlib.error as error:
        raise Unreadable("an object of it is damaged") from error
    finally:
        if isinstance(packed, memoryview):
            packed.release()
    return bytes(found), work.unused_data


def _applied(base: bytes, delta: bytes) -> bytes:
    """What a delta makes of its base."""
    before, at = _length(delta, 0)
    after, at = _length(delta, at)
    if before != len(base) or after > MOST_OBJECT_BYTES:
        raise Unreadable("an object of it is damaged")
    found = bytearray()
    while at < len(delta):
        order, at = delta[at], at + 1
        if order & 0x80:
            offset = size = 0
            for bit in range(7):
                if order & 1 << bit:
                    if at >= len(delta):
                        raise Unreadable("an object of it is damaged")
                    if bit < 4:
                        offset |= delta[at] << 8 * bit
                    else:
                        size |= delta[at] << 8 * (bit - 4)
                    at += 1
            found += base[offset : offset + (size or 0x10000)]
        elif order:
            found += delta[at : at + order]
            at += order
        else:
            raise Unreadable("an object of it is damaged")
        if len(found) > after:
            raise Unreadable("an object of it is damaged")
    if len(found) != after:
        raise Unreadable("an object of it is damaged")
    return bytes(found)


def _length(delta: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(delta) and shift < 64:
        byte, at = delta[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at
    raise Unreadable("an object of it is damaged")


def _bytes_of(text: bytes) -> bytes:
    if not _ID.fullmatch(text):
        raise Unreadable("a name of it leads to no commit")
    return bytes.fromhex(text.decode("ascii"))


def head_of(root: int, folder: bytes, common: bytes) -> bytes | None:
    """Id of the commit that is checked out; None if there is none yet. *folder* is that of this working tree.

    Raises:
        Unreadable: its names are kept in a way that is not read.
    """
    name = b"HEAD"
    for _ in range(MOST_HOPS):
        text = read_regular(root, (folder if name == b"HEAD" else common) + b"/" + name, 4096)
        if text is None:
            if name == b"HEAD":
                raise Unreadable("it has no HEAD")
            return _packed_name(root, common, name)
        text = text.strip()
        if not text.startswith(b"ref:"):
            return _bytes_of(text)
        name = text[4:].strip()
        if not name.startswith(b"refs/") or b".." in name.split(b"/") or b"\0" in name:
            raise Unreadable("its HEAD names a place that is none")
        if name == b"refs/heads/.invalid":
            raise Unreadable("its names are kept in tables, which are not read")
    raise Unreadable("its HEAD goes round in a circle")


def _packed_name(root: int, common: bytes, name: bytes) -> bytes | None:
    text = read_regular(root, common + b"/packed-refs", MOST_NAME_BYTES)
    for line in (text or b"").splitlines():
        object_id, _, named = line.partition(b" ")
        if named == name:
            return _bytes_of(object_id)
    return None


def tree_of_index(entries: list[Entry], algorithm: str) -> bytes:
    """Id of the tree that these would be committed as."""
    folders: dict[bytes, dict[bytes, tuple[int, bytes]]] = {b"": {}}
    for entry in entries:
        above, _, name = entry.path.rpartition(b"/")
        folders.setdefault(above, {})[name] = (entry.mode, entry.id)
        while above and (above := above.rpartition(b"/")[0]) not in folders:
            folders[above] = {}
    for folder in sorted(folders, key=lambda path: path.count(b"/") if path else -1, reverse=True):
        children = folders[folder]
        ordered = sorted(children.items(), key=lambda one: one[0] + (b"/" if one[1][0] == TREE else b""))
        content = b"".join(b"%o %s\0%s" % (mode, name, object_id) for name, (mode, object_id) in ordered)
        found = hashlib.new(algorithm, b"tree %d\0%s" % (len(content), content)).digest()
        if not folder:
            return found
        above, _, name = folder.rpartition(b"/")
        folders[above][name] = (TREE, found)
    raise AssertionError("the top comes last")
