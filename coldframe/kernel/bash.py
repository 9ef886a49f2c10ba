"""A shell that lives on: each cell is evaluated in it, so directory, variables, functions and jobs stay."""

import codecs
import os
import select
import signal
import subprocess

from coldframe.kernel.listener import Listener
from coldframe.kernel.nursery import how_it_ended

READ_BYTES = 65_536
_LOOP = """
shopt -s expand_aliases
trap : INT
while IFS= read -r -d '' -u %(cells)d _cell; do
  eval "$_cell" %(cells)d<&- %(codes)d>&-
  printf '%%s\\0' "$?" >&%(codes)d
done
"""
"""Cells come with a NUL at their end, and exit codes go so."""


class BashKernel:
    """One shell, and the next if it ends."""

    def __init__(self, driver: Listener) -> None:
        self._driver = driver
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = self._cells = self._codes = -1
        self._streams: dict[int, tuple[str, codecs.IncrementalDecoder]] = {}
        self._said = b""
        self._count = 0
        self._begun = False

    def start(self) -> None:
        self._close()
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(4)]
        (cells, self._cells), (self._codes, codes), (out, out_end), (err, err_end) = ends
        self._process = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile", "-c", _LOOP % {"cells": cells, "codes": codes}],
            stdin=subprocess.DEVNULL,
            stdout=out_end,
            stderr=err_end,
            pass_fds=(cells, codes),
            start_new_session=True,
        )
        for file in (cells, codes, out_end, err_end):
            os.close(file)
        for file in (out, err, self._codes):
            os.set_blocking(file, False)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._streams = {out: ("stdout", decoder("replace")), err: ("stderr", decoder("replace"))}
        self._pidfd = os.pidfd_open(self._process.pid)
        self._said, self._begun = b"", False

    def files(self) -> list[int]:
        return [self._pidfd, self._codes, *self._streams]

    def step(self) -> None:
        if not self._begun and self._process is not None:
            self._begun = True
            self._driver.on_ready("bash")
            self._driver.take_up()
        codes = self._read_codes()
        for file in list(self._streams):
            self._read_stream(file)
        if codes:
            self._driver.on_idle(exit_code=int(codes[-1]))
        if self._process is not None and (code := self._process.poll()) is not None:
            self._close()
            self._driver.on_death(how_it_ended(code))

    def execute(self, code: str, *, silent: bool) -> None:
        if not silent:
            self._count += 1
            self._driver.on_count(self._count)
        text = code.replace("\0", "").encode("utf-8", "replace") + b"\0"
        while text:
            try:
                text = text[os.write(self._cells, text) :]
            except BrokenPipeError:
                return  # its end is seen at the next step

    def interrupt(self) -> None:
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._close()

    def wait_s(self) -> float | None:
        return None if self._begun else 0.0

    def set_environment(self, values: dict[str, str | None]) -> str:
        lines = []
        for name, value in values.items():
            if not name.isidentifier():
                continue  # bash has no such variables
            quoted = None if value is None else value.replace("'", "'\\''")
            lines.append(f"unset {name}" if quoted is None else f"export {name}='{quoted}'")
        return "\n".join(lines)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _read_codes(self) -> list[bytes]:
        if self._codes < 0 or not select.select([self._codes], [], [], 0)[0]:
            return []
        try:
            part = os.read(self._codes, READ_BYTES)
        except BlockingIOError:
            return []
        *codes, self._said = (self._said + part).split(b"\0")
        return codes

    def _read_stream(self, file: int) -> None:
        name, decoder = self._streams[file]
        for _ in range(16):
            try:
                part = os.read(file, READ_BYTES)
            except BlockingIOError:
                return
            if not part:
                os.close(file)
                del self._streams[file]
                return
            if text := decoder.decode(part):
                self._driver.on_stream(name, text)

    def _close(self) -> None:
        for file in (*self._streams, self._pidfd, self._cells, self._codes):
            if file >= 0:
                os.close(file)
        self._streams = {}
        self._pidfd = self._cells = self._codes = -1
        self._process = None
