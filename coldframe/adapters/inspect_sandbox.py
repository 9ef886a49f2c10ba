"""A sandbox provider of Inspect AI: `sandbox="coldframe"`, or with a configuration `SandboxEnvironmentSpec("coldframe", Configuration(…))`.

Inspect finds it by an entry point when both are installed. Each sample has a sandbox with a temporary workspace of the
installation that the SDK finds (COLDFRAME_URL and COLDFRAME_TOKEN, or the local one), which ends with the sample.
"""

import base64
import secrets
from typing import Any, Literal, Self, Union, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from coldframe.client.answers import CommandAnswer
from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    FileMissing,
    IsDirectory,
    NotDirectory,
    PermissionDenied,
    ReadOnly,
    Refused,
)
from coldframe.contract.sandbox import Limits

MOST_STDIN_BYTES = 16 * 1024 * 1024
"""That a command is given as it is; more goes through a file."""
PIECE_BYTES = 16 * 1024 * 1024
"""Of a file, in one call."""
CONCURRENT = 16
"""Sandboxes at a time, unless Inspect is told another number."""
OF_A_PATH = 126
"""Exit code of a program that is there, and may not be started."""
_FROM_FILE = 'input=$0; exec "$@" < "$input"'
_IN_FOLDER = 'cd "$0" && exec "$@"'
_AS_USER = """
if ! id -u -- "$0" > /dev/null 2>&1; then echo "there is no user $0" >&2; exit 1; fi
exec /usr/sbin/runuser -u "$0" -- "$@"
"""
_WRITABLE = 0o200


class Configuration(BaseModel):
    """What sandboxes of a task are to be. Left out, they are as `client.sandboxes.create(background=True)` makes them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: str | None = None
    """`debian` or another template has a root, so `user="root"` and other users work."""
    network: str | None = None
    limits: Limits | None = None


@sandboxenv(name="coldframe")
class ColdframeSandbox(SandboxEnvironment):
    """One of them."""

    def __init__(self, client: Coldframe, sandbox: Sandbox) -> None:
        super().__init__()
        self._client = client
        self._sandbox = sandbox
        self._has_root = sandbox.info.spec.profile == "computer"

    # -- life ----------------------------------------------------------------------------------------------------------

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        return {"default": await cls.begin(config)}

    @classmethod
    async def begin(cls, config: SandboxEnvironmentConfigType | None = None) -> Self:
        """Make one."""
        if isinstance(config, str):
            raise TypeError(f"Coldframe takes no configuration file ({config}); give a Configuration")
        wanted = (
            config
            if isinstance(config, Configuration)
            else Configuration.model_validate({} if config is None else config.model_dump())
        )
        client = Coldframe()
        try:
            sandbox = await client.sandboxes.create(
                background=True, template=wanted.template, network=wanted.network, limits=wanted.limits
            )
        except BaseException:
            await client.aclose()
            raise
        return cls(client, sandbox)

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(ColdframeSandbox).end()

    async def end(self) -> None:
        """With all that is in it."""
        try:
            await self._sandbox.terminate(discard=True)
        finally:
            await self._client.aclose()

    @classmethod
    def default_concurrency(cls) -> int | None:
        return CONCURRENT

    def default_polling_interval(self) -> float:
        return 0.2

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return Configuration.model_validate(config)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        return SandboxConnection(type="coldframe", command=f"coldframe exec {self._sandbox.id} --pty -- bash")

    # -- commands ------------------------------------------------------------------------------------------------------

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002  the name is Inspect's
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program. One that a rule refuses is a PermissionError, of which Inspect tells the model."""
        given = input.encode() if isinstance(input, str) else input
        argv, box_user = self._as_user(list(cmd), user)
        if cwd is not None and cwd.startswith("/"):  # a command begins in the workspace, from where it may go anywhere
            argv, cwd = ["/bin/sh", "-c", _IN_FOLDER, cwd, *argv], None
        spool = None
        if given is not None and len(given) > MOST_STDIN_BYTES:
            spool = f"/tmp/.input-{secrets.token_hex(8)}"  # noqa: S108  of the sandbox
            await self._write(spool, given)
            argv, given = ["/bin/sh", "-c", _FROM_FILE, spool, *argv], None
        try:
            answer = await self._sandbox.run_command(
                argv,
                cwd=cwd,
                env=env,
                user=box_user,
                stdin=given,
                timeout_s=float(timeout) if timeout is not None else None,
                encoding="base64",
            )
        except Refused as error:
            raise PermissionError(f"{error.code}: {error.message} ({error.advice})") from error
        finally:
            if spool is not None:
                await self._sandbox.files.remove(spool)
        return _result(cmd, answer)

    def _as_user(self, argv: list[str], user: str | None) -> tuple[list[str], Literal["root"] | None]:
        """What to run as whom. Raises SandboxUserUnsupportedError."""
        if user in (None, "user", "1000"):
            return argv, None
        if not self._has_root:
            raise SandboxUserUnsupportedError(
                f"this sandbox has no user {user!r}: only one with a template of its own has others than `user`"
            )
        if user in ("root", "0"):
            return argv, "root"
        return ["/bin/sh", "-c", _AS_USER, str(user), *argv], "root"

    # -- files ---------------------------------------------------------------------------------------------------------

    async def write_file(self, file: str, contents: str | bytes) -> None:
        content = contents.encode() if isinstance(contents, str) else contents
        try:
            await self._write(file, content)
        except ColdframeError as error:
            raise _file_error(error, file) from error

    async def _write(self, path: str, content: bytes) -> None:
        """In one call if it fits; else in pieces that are put together inside."""
        try:
            found = await self._sandbox.files.stat(path)
        except (FileMissing, NotDirectory):
            pass
        else:
            if (
                found.type == "file" and not found.mode & _WRITABLE
            ):  # it would be replaced, which is no question of its mode
                raise PermissionDenied(f"`{path}` may not be written to")
        if len(content) <= PIECE_BYTES:
            await self._sandbox.files.write(path, content)
            return
        names = []
        for start in range(0, len(content), PIECE_BYTES):
            names.append(f"/tmp/.piece-{secrets.token_hex(8)}")  # noqa: S108  of the sandbox
            await self._sandbox.files.write(names[-1], content[start : start + PIECE_BYTES])
        await self._sandbox.files.write(path, b"")
        line = 'target=$0; cat -- "$@" > "$target" && rm -f -- "$@"'
        answer = await self._sandbox.run_command(["/bin/sh", "-c", line, path, *names])
        if answer.exit_code != 0:
            raise Conflict(f"`{path}` could not be put together: {answer.stderr}")

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> Union[str, bytes]:  # noqa: UP007  as Inspect has it
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            size = (await self._sandbox.files.stat(file)).size
            if size > most:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            parts = [(await self._sandbox.files.read(file, length=PIECE_BYTES)).data]
            while len(parts[-1]) == PIECE_BYTES:
                offset = PIECE_BYTES * len(parts)
                parts.append((await self._sandbox.files.read(file, offset=offset, length=PIECE_BYTES)).data)
        except ColdframeError as error:
            raise _file_error(error, file) from error
        content = b"".join(parts)
        return content.decode() if text else content


def _result(cmd: list[str], answer: CommandAnswer) -> ExecResult[str]:
    if answer.timed_out:
        raise TimeoutError("the command took longer than it may, and was ended with all that it had started")
    if answer.ended == "not_started" and answer.exit_code == OF_A_PATH:
        raise PermissionError(f"{cmd[0]}: {answer.start_error}")
    texts = []
    for encoded in (answer.stdout_base64, answer.stderr_base64):
        content = base64.b64decode(encoded or "")
        if len(content) > SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE:
            kept = content[: SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE].decode("utf-8", "replace")
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, kept)
        texts.append(content.decode("utf-8", "replace"))
    stdout, stderr = texts
    if answer.start_error is not None:
        stderr += f"{answer.start_error}\n"
    code = answer.exit_code if answer.exit_code is not None else 1
    return ExecResult(code == 0, code, stdout, stderr)


def _file_error(error: ColdframeError, path: str) -> Exception:
    """As Python has it."""
    match error:
        case FileMissing() | NotDirectory():
            return FileNotFoundError(f"{path}: {error.message}")
        case IsDirectory():
            return IsADirectoryError(f"{path} is a directory")
        case PermissionDenied() | ReadOnly() | Refused():
            return PermissionError(f"{path}: {error.message}")
        case _:
            return error
