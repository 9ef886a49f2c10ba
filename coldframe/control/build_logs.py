"""The log of a build: all that its commands have printed, phase after phase, in the order in which it was read.

Nothing is kept a second time: each phase is introduced by a line of ours, and its bytes are those of the stored output of its
command, which is judged, labelled and kept as that is.
"""

from coldframe.contract.build import BuildLog
from coldframe.contract.caller import Caller
from coldframe.contract.errors import InvalidArgument, NotFound
from coldframe.contract.ledger import CallEnded
from coldframe.contract.pipeline import PipelineStep, StepInfo
from coldframe.contract.policy import Label
from coldframe.control.builds import Builds
from coldframe.control.call_records import ids_of
from coldframe.control.ledger import Ledger
from coldframe.control.outputs import WINDOW_CAP_BYTES, Outputs
from coldframe.policy.labels import join


class BuildLogs:
    """Read in windows: a log is of any length."""

    def __init__(self, builds: Builds, outputs: Outputs, ledger: Ledger) -> None:
        self._builds = builds
        self._outputs = outputs
        self._ledger = ledger

    async def read(
        self,
        caller: Caller,
        build_id: str,
        *,
        phase: str | None = None,
        offset: int = 0,
        length: int = WINDOW_CAP_BYTES,
    ) -> BuildLog:
        """At most *length* bytes from byte *offset* of the log on, or of what one *phase* has printed.

        Raises:
            GrantMissing, NotFound: not the caller's, or no such phase.
            DeniedByRule: a rule withheld the result of a command.
            ResultExpired: what the commands printed is not kept any more.
            WrongState: a rule reads output, and a command has not ended yet.
        """
        if offset < 0 or not 0 < length <= WINDOW_CAP_BYTES:
            raise InvalidArgument(
                f"a window is 1 to {WINDOW_CAP_BYTES} bytes from an offset that is not negative", argument="length"
            )
        row = self._builds.row(caller, build_id)
        specs = {one.name: one for one in row.spec.phases}
        steps = self._builds.phases(row)
        if phase is not None:
            if phase not in specs:
                raise NotFound(f"build `{build_id}` has no phase `{phase[:80]}`", build_id=build_id, phase=phase[:80])
            steps = tuple(one for one in steps if one.name == phase)
        data, seen, label, is_all = bytearray(), 0, Label.PUBLIC, True
        for step in steps:
            head = b"" if phase is not None else _head(specs[step.name], step)
            data += _part(head, offset - seen, offset + length - seen)
            seen += len(head)
            if step.command_id is None:
                continue
            whole = self._bytes_of(step.command_id)
            room = length - len(data)
            if whole is not None and (room <= 0 or offset >= seen + whole):
                seen += whole
                continue
            if room <= 0:
                is_all = False
                break
            window = await self._outputs.output(
                caller, row.sandbox_id, step.command_id, "both", offset=max(offset - seen, 0), length=room
            )
            data += window.data
            seen += window.total_bytes
            label = join(label, window.label)
        is_over = row.outcome is not None
        end = offset + len(data)
        return BuildLog(
            build_id=build_id,
            offset=offset,
            data=bytes(data),
            next_offset=None if is_over and is_all and end >= seen else end,
            total_bytes=seen,
            ended=is_over,
            label=label,
        )

    def _bytes_of(self, command_id: str) -> int | None:
        """Of both streams; None until its end is on record."""
        end = self._ledger.course(ids_of(command_id).call_id).get("call.ended")
        if end is None:
            return None
        ended = CallEnded.model_validate(end.body)
        return sum(one.bytes for one in (ended.stdout, ended.stderr) if one is not None)


def _head(spec: PipelineStep, step: StepInfo) -> bytes:
    """A line that introduces a phase. It is the same from the beginning to the end, so that offsets stay true."""
    line = " ".join(spec.command.split())
    told = f"== {step.name}: {line[:200]}{'…' if len(line) > 200 else ''}\n"
    if step.state == "pending":
        return b""
    if step.command_id is None and step.state != "running":  # what came of it is told when nothing changes that
        told += f"{step.message or step.state}\n"
    return told.encode("utf-8", "backslashreplace")


def _part(data: bytes, start: int, stop: int) -> bytes:
    return data[max(start, 0) : max(stop, 0)]
