"""The machine's end of its reader of files at rest: started when it is first wanted, and again when it has died."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from typing import TypeVar

from coldframe.contract.errors import GuestLost, Internal, InvalidArgument, PatternTooSlow, TooLarge, from_wire
from coldframe.contract.files import FindUnsaved, Request, SearchFiles
from coldframe.contract.git import ReadRepository
from coldframe.contract.model import Model
from coldframe.contract.packages import ListPackages
from coldframe.guest.frames import MAX_BODY_BYTES, MAX_HEAD_BYTES, PREFIX, decode_head, is_whole, lengths
from coldframe.host.box import answer_model, parse_answer

A = TypeVar("A", bound=Model)
BUDGET_S = 30.0
"""Of a question that names none."""
MOST_QUESTION_BYTES = 160 * 1024
"""The kernel takes little more at once."""
SLOWEST_BYTES_PER_S = 5_000_000
"""Of a disk that is written to."""
GRACE_S = 3.0
"""For an answer to be sent."""
END_S = 2.0


class Reader:
    """Of one machine. May be called from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._closed = False

    def ask(
        self,
        root: int,
        owner: tuple[int, int] | None,
        request: Request[A],
        *,
        writes: bool = False,
        content: int | None = None,
    ) -> A:
        """Of the files below the descriptor *root*, as *owner*, if this process may become somebody else. Blocking.

        With *writes* also a WriteFile, whose bytes are those of the file *content* from its begin, and a RemoveFile.

        Raises what a box raises for the request.
        """
        budget_s = (
            request.budget_s
            if isinstance(request, SearchFiles | FindUnsaved | ListPackages | ReadRepository)
            else BUDGET_S
        )
        if content is not None:
            budget_s += os.fstat(content).st_size / SLOWEST_BYTES_PER_S
        fields = request.model_dump(mode="json")
        fields.pop("content", None)
        asked = {"request": fields, "owner": owner, "budget_s": budget_s, "writes": writes}
        question = json.dumps(asked).encode("ascii")
        if len(question) > MOST_QUESTION_BYTES:
            raise InvalidArgument(
                f"the request takes {len(question)} bytes of {MOST_QUESTION_BYTES}",
                hint="use shorter patterns and paths",
            )
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._send(question, [root, write] if content is None else [root, write, content])
            finally:
                os.close(write)
            frame = _read_all(read, time.monotonic() + budget_s + GRACE_S)
        finally:
            os.close(read)
        if not is_whole(frame):
            if isinstance(request, SearchFiles):
                raise PatternTooSlow("the pattern exceeded its time budget and was stopped")
            raise TooLarge(f"the request did not end within {budget_s:g} s and was stopped")
        head_bytes, _ = lengths(bytes(frame[: PREFIX.size]))
        head = decode_head(bytes(frame[PREFIX.size : PREFIX.size + head_bytes]))
        if isinstance(failure := head.get("error"), dict):
            raise from_wire(failure)
        try:
            return parse_answer(
                answer_model(type(request)), head.get("answer"), bytes(frame[PREFIX.size + head_bytes :])
            )
        except GuestLost as error:
            raise Internal("the reader of files at rest gave a malformed answer") from error

    def _send(self, question: bytes, files: list[int]) -> None:
        with self._guard:
            for again in (True, False):
                try:
                    socket.send_fds(self._started(), [question], files)
                    return
                except OSError as error:
                    self._end()
                    if not again:
                        raise Internal(f"the reader of files at rest does not start: {error.strerror}") from error

    def _started(self) -> socket.socket:
        if self._channel is not None and self._process is not None and self._process.poll() is None:
            return self._channel
        if self._closed:
            raise Internal("this machine is closed")
        self._end()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        given = theirs.fileno()
        program = (
            f"import os, sys; given = {given}; given == 3 or (os.dup2(given, 3), os.close(given)); "
            f"sys.path.append({home!r}); from coldframe.host.reader import main; main()"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program],
                pass_fds=[given],
                stdin=subprocess.DEVNULL,
                env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
                start_new_session=True,
            )
        self._channel = mine
        return mine

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _read_all(read: int, deadline: float) -> bytearray:
    """Up to the end, the deadline, or what no answer may exceed."""
    found = bytearray()
    waiting = select.poll()
    waiting.register(read, select.POLLIN)
    while len(found) <= MAX_HEAD_BYTES + MAX_BODY_BYTES:
        left = deadline - time.monotonic()
        if left <= 0 or not waiting.poll(left * 1000):
            break
        piece = os.read(read, 1 << 20)
        if not piece:
            break
        found += piece
    return found
