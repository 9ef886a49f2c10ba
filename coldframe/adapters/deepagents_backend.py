"""A backend of LangChain deepagents whose files and commands are those of a sandbox.

    with SyncColdframe() as client, client.sandboxes.create(background=True) as sandbox:
        agent = create_deep_agent(model=…, backend=SandboxBackend(sandbox))

What rules refuse is told to the model as the output of the command, with what to do next; a machine that cannot be reached is an
exception.
"""

import base64

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from coldframe.client.answers import CommandAnswer, Segment
from coldframe.client.sync import SyncSandbox
from coldframe.contract.errors import (
    ColdframeError,
    FileMissing,
    InvalidArgument,
    IsDirectory,
    LimitReached,
    NotDirectory,
    NotRegular,
    Refused,
    TooLarge,
)

REFUSED_EXIT_CODE = 126
"""As of a program that may not be started."""
_OF_A_FILE = (Refused, FileMissing, IsDirectory, NotDirectory, NotRegular, TooLarge, LimitReached, InvalidArgument)
"""What is wrong with one file, of which the model is told; everything else is raised."""


class SandboxBackend(BaseSandbox):
    """One sandbox, which stays its owner's to end."""

    def __init__(self, sandbox: SyncSandbox, *, timeout_s: float | None = None) -> None:
        """*timeout_s*: of commands that name none; None for what the sandbox allows."""
        self._sandbox = sandbox
        self._timeout_s = timeout_s

    @property
    def id(self) -> str:
        return self._sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a line for bash. A *timeout* of 0 is none."""
        timeout_s = self._timeout_s if timeout is None else float(timeout) or None
        try:
            answer = self._sandbox.run_command(command, timeout_s=timeout_s)
        except Refused as error:
            return ExecuteResponse(f"{error.code}: {error.message} ({error.advice})", REFUSED_EXIT_CODE)
        return ExecuteResponse(_output(answer), answer.exit_code, truncated=not answer.complete)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            self._sandbox.files.write(path, content)
        except _OF_A_FILE as error:
            return _told(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            return FileDownloadResponse(path, self._sandbox.files.read(path).data)
        except _OF_A_FILE as error:
            return FileDownloadResponse(path, error=_told(error))


def _output(answer: CommandAnswer) -> str:
    """Both streams in the order of their writes, and why it ended if not by itself."""
    if answer.transcript is not None:
        text = "".join(map(_text, answer.transcript))
    else:
        text = (answer.stdout or "") + (answer.stderr or "")
    if answer.timed_out:
        text += "\n(it took longer than it may, and was ended)"
    elif answer.start_error is not None:
        text += f"{answer.start_error}\n"
    return text


def _text(segment: Segment) -> str:
    if segment.text is not None:
        return segment.text
    return base64.b64decode(segment.base64 or "").decode("utf-8", "replace")


def _told(error: ColdframeError) -> str:
    code: str
    match error:
        case FileMissing():
            code = FILE_NOT_FOUND
        case IsDirectory():
            code = IS_DIRECTORY
        case NotDirectory() | NotRegular():
            code = INVALID_PATH
        case Refused():
            code = PERMISSION_DENIED
        case _:
            code = f"{error.code}: {error.message} ({error.advice})"
    return code
