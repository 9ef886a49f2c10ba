"""Answers questions about files at rest as the keeper of a box does, with its very verbs, where no box is.

A process of its own beside the machine: a hostile tree is walked, and a hostile pattern tried, by a child that is the owner
of the files, without a right, and gone after one answer. Volumes are written to at rest likewise. Started with
`python -I -S` when somebody asks first. Each message on its socket is a question with two descriptors, the top of the files
and where the answer goes, and a third one where bytes are to be written; the end of the socket ends it.
"""

import ctypes
import json
import os
import resource
import signal
import socket
from typing import Any

import coldframe.guest.box_paths
import coldframe.guest.manifest
import coldframe.guest.packages
import coldframe.guest.repository
import coldframe.guest.search
import coldframe.guest.unsaved  # noqa: F401  registers its verb
from coldframe.guest import files
from coldframe.guest.frames import MALFORMED, encode
from coldframe.guest.verbs import VERBS, Failure

ANSWERED = frozenset(
    {
        "list_directory",
        "stat_path",
        "read_file",
        "search_files",
        "find_unsaved",
        "list_packages",
        "digest_tree",
        "read_repository",
    }
)
MOST_QUESTION_BYTES = 1024 * 1024
MOST_MEMORY_BYTES = 2 << 30
LESS_MEMORY_BYTES = {"find_unsaved": 768 << 20, "read_repository": 768 << 20}
"""By question: of those that hostile files can make large, one of which many ask at once, as when many sandboxes end. A repository of
half a million files can be looked at with it."""
GRACE_S = 2
PIECE_BYTES = 1 << 20
_NO_NEW_PRIVILEGES = 38


def main() -> None:
    """Serve the socket that is descriptor 3."""
    channel = socket.socket(fileno=3)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaped by the kernel
    while True:
        message, given, flags, _ = socket.recv_fds(channel, MOST_QUESTION_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
        if not message:
            break
        if len(given) >= 2 and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) and os.fork() == 0:
            channel.close()
            _answer(message, *given)
        for file in given:
            os.close(file)
    os._exit(0)


def _answer(message: bytes, root: int, write: int, content: int = -1) -> None:
    """In a child: one frame, and the end. An answer that is not whole tells that it was ended before."""
    try:
        question = json.loads(message)
        _become(question["owner"], float(question["budget_s"]), str(question["request"].get("verb")))
        os.fchdir(root)
        frame = _served(question["request"], root, content, writes=bool(question.get("writes")))
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(write, rest) :]
    finally:
        os._exit(0)


def _become(owner: list[int] | None, budget_s: float, verb: str) -> None:
    memory_bytes = LESS_MEMORY_BYTES.get(verb, MOST_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CPU, (int(budget_s) + GRACE_S, int(budget_s) + GRACE_S))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.alarm(int(budget_s) + GRACE_S)  # also where it waits and uses no processor
    if owner is not None:
        uid, gid = owner
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        os._exit(1)


def _served(request: dict[str, Any], root: int, content: int, *, writes: bool) -> bytes:
    try:
        name = request.pop("verb")
        answer: dict[str, Any]
        body = b""
        if name in ANSWERED:
            answer, body = VERBS[name].function(root, request, b"")
        elif writes and name == "write_file" and content >= 0:
            answer = _write(root, request, content)
        elif writes and name in ("remove_path", "make_directory"):
            answer, body = VERBS[name].function(root, request, b"")
        else:
            raise Failure("INVALID_ARGUMENT", f"files at rest do not answer `{str(name)[:40]}`")
        return encode({"answer": answer}, body)
    except Failure as failure:
        return encode({"error": {"code": failure.code, "message": failure.message, "facts": failure.facts}})
    except OSError as error:
        return encode({"error": {"code": "INTERNAL", "message": str(error.strerror), "facts": {}}})
    except MemoryError:
        return encode({"error": {"code": "TOO_LARGE", "message": "the answer takes too much memory", "facts": {}}})
    except MALFORMED as error:
        message = f"malformed request: {error!r}"
        return encode({"error": {"code": "INVALID_ARGUMENT", "message": message, "facts": {}}})


def _write(root: int, request: dict[str, Any], content: int) -> dict[str, Any]:
    writer = files.FileWriter(root, request)
    try:
        os.lseek(content, 0, os.SEEK_SET)
        while part := os.read(content, PIECE_BYTES):
            writer.write(part)
        return writer.commit()
    finally:
        writer.abort()
