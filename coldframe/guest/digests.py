"""Digests of large files that outlive their sandbox: the next one on the workspace need not read them again.

Kept in a file that no box sees, which the host daemon makes for the workspace of an agent and hands to each keeper. A
digest in it is one that a scan trusts (see `manifest.py`): the content cannot have changed as long as inode, size and
both times are the same. Several keepers append to it at the same time, a line each; what is no whole line is passed over.
"""

import os

from coldframe.guest.manifest import Identity

LEAST_BYTES = 256 * 1024
"""What takes less time to read than to remember is not kept."""
MOST_BYTES = 4 * 1024 * 1024
"""Of the file: about 40,000 lines. The daemon empties one that is longer."""
_DIGEST_CHARACTERS = 64


class KeptDigests:
    """Those in `file`, which is open for reading and appending; -1 for none."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._known: dict[Identity, str] | None = None

    def read(self) -> dict[Identity, str]:
        """All of them; read once. What others add later is not seen."""
        if self._known is None:
            self._known = {}
            try:
                text = os.pread(self._file, MOST_BYTES, 0) if self._file >= 0 else b""
            except OSError:
                text = b""
            for line in text.split(b"\n")[:-1]:
                words = line.split(b" ")
                if len(words) == 5 and len(words[4]) == _DIGEST_CHARACTERS:
                    try:
                        inode, size, changed_ns, status_ns = map(int, words[:4])
                    except ValueError:
                        continue
                    self._known[inode, size, changed_ns, status_ns] = words[4].decode("ascii", "replace")
        return self._known

    def add(self, digests: dict[Identity, str]) -> None:
        """Keep those of large files. Where they cannot be, they are made again by the next sandbox."""
        known = self.read()
        new = [(identity, digest) for identity, digest in digests.items() if identity[1] >= LEAST_BYTES]
        new = [(identity, digest) for identity, digest in new if identity not in known]
        if new and self._file >= 0:
            known.update(new)
            lines = b"".join(b"%d %d %d %d %s\n" % (*identity, digest.encode()) for identity, digest in new)
            try:
                if os.fstat(self._file).st_size + len(lines) <= MOST_BYTES:
                    os.write(self._file, lines)
            except OSError:
                pass
