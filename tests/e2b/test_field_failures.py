"""Failures that people reported of other sandboxes do not happen through the SDK of E2B either: the cases about commands and
files, as far as it has words for what they do."""

import asyncio
import base64
from typing import Any

import pytest
from e2b import AsyncSandbox, CommandExitException, FileNotFoundException, SandboxException, TimeoutException

from coldframe.contract.errors import FileMissing, Refused
from tests.cases.runner import Bench, Case, load_cases, run_case
from tests.conftest import OWN_CASES
from tests.e2b.real import RealEdge

pytestmark = pytest.mark.req("T4.83")
STEPS = {"run_command", "fixture", "read", "write", "list", "par"}
NO_WORDS = ("timed_out", "truncated", ".sig", ".binary", ".matches", "_total", ".value", ".error", ".outb")
"""What a check may look at that the SDK does not tell, or tells by an exception."""

OTHERWISE = {"B039"}
"""The SDK asks for a login shell, which reads the start files of its user."""


def has_words(case: Case) -> bool:
    steps = [*case["repro"], *(part for step in case["repro"] for part in step.get("steps", ()))]
    return (
        case["area"] in ("shell", "files")
        and case["check"] is not None
        and {step["op"] for step in steps} <= STEPS
        and not any(word in case["check"] for word in NO_WORDS)
    )


CASES = [case for case in load_cases(str(OWN_CASES)) if has_words(case) and case["id"] not in OTHERWISE]


class Sdk:
    """Calls of our tools as calls of that SDK."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        try:
            return await getattr(self, f"_{tool}")(**arguments)  # type: ignore[no-any-return]
        except FileNotFoundException as error:
            raise FileMissing(str(error)) from error
        except CommandExitException:
            raise
        except SandboxException as error:
            raise Refused(str(error)) from error

    async def _run_command(
        self,
        command: str | list[str],
        timeout_s: float = 60.0,
        cwd: str | None = None,
        stdin: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        line = command if isinstance(command, str) else _line(command)
        handle = await self._box.commands.run(
            line, background=True, timeout=timeout_s, cwd=cwd, stdin=stdin is not None
        )
        if stdin is not None:
            await handle.send_stdin(stdin)
            await handle.close_stdin()
        timed_out = False
        done: Any
        try:
            done = await handle.wait()
        except CommandExitException as ended:
            done = ended
        except TimeoutException:
            done, timed_out = None, True
        out, err = ("", "") if done is None else (done.stdout, done.stderr)
        return {
            "stdout_base64": base64.b64encode(out.encode()).decode(),
            "stderr_base64": base64.b64encode(err.encode()).decode(),
            "exit_code": None if done is None else done.exit_code,
            "signal": None,
            "timed_out": timed_out,
            "stdout_info": {"bytes": len(out)},
            "stderr_info": {"bytes": len(err)},
            "truncated": False,
        }

    async def _write_file(self, path: str, content: str) -> dict[str, Any]:
        return {"path": (await self._box.files.write(path, content)).path}

    async def _read_file(self, path: str, **_: Any) -> dict[str, Any]:
        data = bytes(await self._box.files.read(path, format="bytes"))
        return {"content": None, "content_base64": base64.b64encode(data).decode(), "binary": False}

    async def _list_directory(self, path: str = "", *, recursive: bool = False) -> dict[str, Any]:
        found = await self._box.files.list(path or ".", depth=20 if recursive else 1)
        entries = [{"path": one.path.removeprefix("/home/user/"), "name": one.name, "size": one.size} for one in found]
        return {"entries": entries}


def _line(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_field_failure_does_not_happen_through_e2b(real: RealEdge, case: Case) -> None:
    async def whole() -> None:
        box = await AsyncSandbox.create(timeout=300, **real.params)
        try:
            bench = Bench(Sdk(box).call)
            held = await run_case(case, bench)
            assert held, f"{case['right']}\nchecked: {case['check']}\nseen: {bench.views}"
        finally:
            await box.kill(**real.params)

    asyncio.run(whole())


def test_there_are_cases_of_both_areas() -> None:
    assert {case["area"] for case in CASES} == {"shell", "files"}
