"""Runs command lines of the client, each in a process of its own that is forked from this one: what it is made of is read once."""

import base64
import json
import os
import sys
import tempfile
from typing import Any

import coldframe.client.sync  # noqa: F401  so that no line has to read it
from coldframe.cli.app import main
from coldframe.client import models


def run(asked: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(base64.b64decode(asked["input"]))
        given.seek(0)
        pid = os.fork()
        if pid == 0:
            _become([given.fileno(), out.fileno(), err.fileno()], asked["words"])
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        err.seek(0)
        streams = [base64.b64encode(one.read()).decode() for one in (out, err)]
    return {"code": os.waitstatus_to_exitcode(status), "streams": streams}


def _become(streams: list[int], words: list[str]) -> None:
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  this process is about to end
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["coldframe", *words]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for model in (models.SandboxInfo, models.SandboxEnd, models.SandboxReset, models.ToolResult, models.CommandInfo):
        model.model_rebuild()  # what reads an answer is made when it is first used, which takes longer than the call
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
