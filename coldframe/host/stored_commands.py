"""Records of commands, read without their box.

They belong to the sandbox user, so they are opened without following links and parsed as hostile.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from pydantic import ValidationError

from coldframe.contract.command import CommandEvent, CommandResult, Ended, OutputChunk, Started
from coldframe.contract.errors import GuestLost, InvalidArgument, NotFound
from coldframe.guest.records import Record, is_id, read_record
from coldframe.guest.transcript import STREAMS, StoredTranscript


async def read_stored(records: str, command_id: str, *, after_seq: int) -> AsyncIterator[CommandEvent]:
    """The events of one command, as its box would tell them.

    Raises:
        InvalidArgument: it is no id.
        NotFound: there is no record of it.
        GuestLost: its record is damaged.
    """
    if not is_id(command_id):
        raise InvalidArgument("malformed command id")
    record = _read_record(records, command_id)
    if record is None or record.start is None:
        raise NotFound(f"no record of command `{command_id}`")
    try:
        at = datetime.fromisoformat(str(record.start.get("at")))
    except ValueError:
        raise GuestLost(f"the record of command `{command_id}` is damaged") from None
    yield Started(command_id=command_id, pid=None, at=at, attached=True)
    file = _open_record(records, f"{command_id}.out")
    if file is not None:
        transcript = StoredTranscript(file)
        try:
            number = 0
            while number <= after_seq and transcript.skip():
                number += 1
            while (chunk := transcript.next()) is not None:
                read_at = None if chunk.at_us is None else chunk.at_us / 1_000_000
                yield OutputChunk.model_validate(
                    {"seq": number, "stream": STREAMS[chunk.stream], "data": b"", "at": read_at}
                ).model_copy(update={"data": chunk.data})
                number += 1
        finally:
            transcript.close()
    record = _read_record(records, command_id)
    if record is not None and record.end is not None:
        try:
            result = CommandResult.model_validate(record.end.get("result"))
        except ValidationError:
            raise GuestLost(f"the record of command `{command_id}` is damaged") from None
        yield Ended(result=result)


def remove_stored(records: str, command_ids: Sequence[str]) -> None:
    """Remove what is kept of these commands. What is not there is let be.

    Raises:
        InvalidArgument: one is no id; nothing was removed.
    """
    if not all(is_id(one) for one in command_ids):
        raise InvalidArgument("malformed command id")
    try:
        folder = os.open(records, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for name in (f"{one}.{kind}" for one in command_ids for kind in ("out", "late", "record")):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)


def _open_record(records: str, name: str) -> int | None:
    if "/" in name:
        raise InvalidArgument("malformed command id")
    try:
        return os.open(os.path.join(records, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _read_record(records: str, command_id: str) -> Record | None:
    if "/" in command_id:
        raise InvalidArgument("malformed command id")
    return read_record(records, command_id)
