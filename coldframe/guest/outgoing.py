"""What waits to be sent on a connection: bytes, and pieces of files that the kernel takes from there.

What is long is not copied together with what is before it, and a piece of a file never comes into this process.
"""

import fcntl
import os
import socket
from collections import deque

from coldframe.guest.frames import LONG_BYTES


class _Piece:
    """A part of a file, through a descriptor of its own: whoever gave it may close his."""

    def __init__(self, file: int, offset: int, length: int) -> None:
        self.file: int = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 0)
        self.offset = offset
        self.length = length

    def close(self) -> None:
        os.close(self.file)


class Outgoing:
    """In the order in which it was added. Its length is how many bytes wait."""

    def __init__(self) -> None:
        self._parts: deque[bytearray | memoryview | _Piece] = deque()
        self._waiting_bytes = 0

    def __len__(self) -> int:
        return self._waiting_bytes

    def add(self, data: bytes) -> None:
        if not data:
            return
        self._waiting_bytes += len(data)
        last = self._parts[-1] if self._parts else None
        if len(data) >= LONG_BYTES:
            self._parts.append(memoryview(data))
        elif isinstance(last, bytearray):
            last += data
        else:
            self._parts.append(bytearray(data))

    def add_piece(self, head: bytes, file: int, offset: int, length: int) -> bool:
        """*head*, and behind it a part of a file that nobody cuts or changes. False: no descriptor is left for it, and neither was
        added."""
        try:
            piece = _Piece(file, offset, length)
        except OSError:
            return False
        self.add(head)
        self._parts.append(piece)
        self._waiting_bytes += length
        return True

    def send(self, peer: socket.socket) -> None:
        """Send as much as *peer* takes now; what is left waits. Raises OSError: the connection is of no use any more."""
        while self._parts:
            try:
                sent = self._send_once(peer, self._parts[0])
            except BlockingIOError:
                return
            self._waiting_bytes -= sent
            while sent:
                sent = self._take_off(sent)

    def _send_once(self, peer: socket.socket, first: bytearray | memoryview | _Piece) -> int:
        if isinstance(first, _Piece):
            sent = os.sendfile(peer.fileno(), first.file, first.offset, first.length)
            if not sent:
                raise OSError("the file is shorter than it was")
            return sent
        second = self._parts[1] if len(self._parts) > 1 else None
        if second is None or isinstance(second, _Piece):
            return peer.send(first)
        return peer.sendmsg((first, second))

    def _take_off(self, sent: int) -> int:
        """From the first part; returns what is left of *sent* for the next."""
        first = self._parts[0]
        length = first.length if isinstance(first, _Piece) else len(first)
        if sent >= length:
            self._parts.popleft()
            if isinstance(first, _Piece):
                first.close()
            return sent - length
        if isinstance(first, _Piece):
            first.offset += sent
            first.length -= sent
        elif isinstance(first, bytearray):
            del first[:sent]
        else:
            self._parts[0] = first[sent:]
        return 0

    def clear(self) -> None:
        """Nothing of it is to be sent."""
        for part in self._parts:
            if isinstance(part, _Piece):
                part.close()
        self._parts.clear()
        self._waiting_bytes = 0
