"""Runs a field-failure case: its steps against a real sandbox through the public SDK, then its check over the answers.

A case is one JSON object a line: `id`, `area`, `kind`, `title`, `repro` (steps), `right` (the behaviour to hold) and
`check`, a Python expression over `r`, the views of the answers in order, with `rb(path)` for the bytes of a file of the
workspace and `procs(text)` for the number of live processes in the sandbox whose command line holds a text. Steps:

- `run_command`: `cmd` or `cmd_expr` (a Python expression for the text), `cwd`, `timeout`, `stdin` or `stdin_expr`, `home`
- `fixture`: a command whose answer is not looked at
- `read`, `write`, `edit`, `list`, `search`: the file tools
- `par`: its `steps` at the same time
- `api`: words for a person; the case then needs a function of its own in `checks.py`, as does one without `check`

Two translations, because the form says what any product should do. This one answers with complete output unless asked for
a window, so a case that looks at `truncated` gets a window of 200,000 bytes asked for. And HOME is the workspace here, so
`home` copies that folder's dot files into it. Files come from the project or its own people: their expressions are
evaluated with the rights of the test.
"""

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from coldframe.contract.errors import ColdframeError

WINDOW_BYTES = 200_000
HANG_S = 60.0
AREAS = frozenset({"shell", "files", "policy", "lifecycle", "network", "packages", "preview", "interpreter"})
NEEDS_HERE = frozenset({"memory limit", "sandbox root", "egress proxy", "network policy", "egress to a mirror"})
"""Prerequisites that this version has, or whose absence the case's own function accounts for."""
STEPS = frozenset({"run_command", "fixture", "read", "write", "edit", "list", "search", "par", "api", "interpreter"})

_PROCESSES = """
import os, sys
text = sys.stdin.buffer.read()
found = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                found += text in file.read().replace(b"\\0", b" ")
        except OSError:
            pass
print(found)
"""

Case = dict[str, Any]
CallTool = Callable[..., Awaitable[dict[str, Any]]]
"""`await call(tool, **arguments)` answers with the tool's value, or raises ColdframeError."""


@dataclass
class View:
    """One answer as checks see it, whatever the tool."""

    out: str = ""
    err: str = ""
    outb: bytes = b""
    code: int | None = None
    sig: int | None = None
    timed_out: bool = False
    dur: float = 0.0
    """Seconds until the answer was here."""
    out_total: int = 0
    err_total: int = 0
    truncated: bool = False
    error: str | None = None
    """Code of the error; `hang` if no answer came."""
    text: str = ""
    content: bytes = b""
    binary: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)
    matches: list[dict[str, Any]] = field(default_factory=list)
    value: dict[str, Any] = field(default_factory=dict)
    """The whole answer, for hand-written checks."""


def load_cases(path: str) -> list[Case]:
    """The cases of a file, one JSON object a line."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def cannot_run(case: Case) -> str | None:
    """Why a case cannot be run by this version, or None."""
    if case.get("area") not in AREAS:
        return f"area {case.get('area')!r} is not there yet"
    missing = [need for need in case.get("needs") or [] if need not in NEEDS_HERE]
    if missing:
        return f"needs {', '.join(missing)}"
    unknown = {step["op"] for step in case["repro"]} - STEPS
    return f"step {', '.join(sorted(unknown))} is not known" if unknown else None


class Bench:
    """One sandbox, and the views of what was asked of it."""

    def __init__(self, call: CallTool, *, window: bool = False) -> None:
        self.call = call
        self.views: list[View] = []
        self._window = window

    async def run(self, cmd: str | list[str], **options: Any) -> View:
        """Run one command and keep no view of it."""
        arguments: dict[str, Any] = {"command": cmd, "encoding": "base64", **options}
        return await self._timed(self._run_command, arguments)

    async def ask(self, tool: str, **arguments: Any) -> View:
        """Call any tool and keep no view of it; an error is a view as well."""
        return await self._timed(self._plain(tool), arguments)

    async def steps(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            if step["op"] == "fixture":
                await self.run(step["cmd"], timeout_s=120)
            elif step["op"] == "par":
                self.views += await asyncio.gather(*(self._step(part) for part in step["steps"]))
            else:
                self.views.append(await self._step(step))

    async def _step(self, step: dict[str, Any]) -> View:
        op = step["op"]
        if op == "run_command":
            return await self._command_step(step)
        path = step.get("path", "")
        if op == "read":
            return await self._timed(self._read, {"path": path})
        if op == "write":
            return await self.ask("write_file", path=path, content=step["text"])
        if op == "edit":
            return await self.ask("edit_file", path=path, old=step["old"], new=step["new"])
        if op == "list":
            return await self._timed(self._list, {"path": path, "recursive": bool(step.get("recursive"))})
        return await self._timed(self._search, {"pattern": step["pattern"], "path": path})

    async def _command_step(self, step: dict[str, Any]) -> View:
        if step.get("home"):
            await self.run(["sh", "-c", f"cp {step['home']}/.[a-z]* ."])
        command = evaluate(step["cmd_expr"]) if "cmd_expr" in step else step["cmd"]
        options: dict[str, Any] = {"timeout_s": float(step.get("timeout", 60))}
        if step.get("cwd"):
            options["cwd"] = step["cwd"]
        if "stdin_expr" in step:
            options["stdin"] = evaluate(step["stdin_expr"])
        elif "stdin" in step:
            options["stdin"] = step["stdin"]
        if self._window:
            options["view"] = {"max_bytes": WINDOW_BYTES}
        return await self.run(command, **options)

    async def _timed(self, ask: Callable[[dict[str, Any]], Awaitable[View]], arguments: dict[str, Any]) -> View:
        begun = time.monotonic()
        limit = HANG_S + float(arguments.get("timeout_s") or 0)
        try:
            view = await asyncio.wait_for(ask(arguments), limit)
        except TimeoutError:
            view = View(error="hang", text="no answer came")
        except ColdframeError as error:
            view = View(
                error=error.wire_code or error.code, text=f"{error.message} ({error.advice})", value=error.to_wire()
            )
        view.dur = time.monotonic() - begun
        return view

    async def _run_command(self, arguments: dict[str, Any]) -> View:
        value = await self.call("run_command", **arguments)
        out, err = (base64.b64decode(value[f"{name}_base64"] or "") for name in ("stdout", "stderr"))
        return View(
            out=out.decode("utf-8", "replace"),
            err=err.decode("utf-8", "replace"),
            outb=out,
            code=value["exit_code"],
            sig=value["signal"],
            timed_out=value["timed_out"],
            out_total=value["stdout_info"]["bytes"],
            err_total=value["stderr_info"]["bytes"],
            truncated=value["truncated"],
            value=value,
        )

    async def _read(self, arguments: dict[str, Any]) -> View:
        value = await self.call("read_file", **arguments)
        content = base64.b64decode(value["content_base64"]) if value["content"] is None else value["content"].encode()
        return View(text=value["content"] or "", content=content, binary=value["binary"], value=value)

    async def _list(self, arguments: dict[str, Any]) -> View:
        value = await self.call("list_directory", **arguments)
        return View(entries=value["entries"], value=value)

    async def _search(self, arguments: dict[str, Any]) -> View:
        value = await self.call("search_files", **arguments)
        return View(matches=value["matches"], value=value)

    def _plain(self, tool: str) -> Callable[[dict[str, Any]], Awaitable[View]]:
        async def ask(arguments: dict[str, Any]) -> View:
            value = await self.call(tool, **arguments)
            return View(text=str(value.get("content") or ""), value=value)

        return ask

    async def bytes_of(self, path: str) -> bytes:
        """Bytes of a file of the workspace; what `rb` answers in a check."""
        value = await self.call("read_file", path=path, encoding="base64")
        return base64.b64decode(value["content_base64"])

    async def processes(self, text: str) -> int:
        """Live processes in the sandbox whose command line holds *text*; what `procs` answers in a check."""
        return int((await self.run(["python3", "-c", _PROCESSES], stdin=text)).out)


def evaluate(expression: str, names: dict[str, Any] | None = None) -> Any:
    """The value of an expression of a case file."""
    return eval(expression, dict(names or {}))  # case files are code of the project, not input


async def judge(case: Case, bench: Bench) -> bool:
    """Evaluate the case's expression over what the bench has seen."""
    loop = asyncio.get_running_loop()

    def bytes_of(path: str) -> bytes:
        return asyncio.run_coroutine_threadsafe(bench.bytes_of(path), loop).result(HANG_S)

    def processes(text: str) -> int:
        return asyncio.run_coroutine_threadsafe(bench.processes(text), loop).result(HANG_S)

    names = {"r": bench.views, "rb": bytes_of, "procs": processes}
    return bool(await asyncio.to_thread(evaluate, case["check"], names))


async def run_case(case: Case, bench: Bench) -> bool:
    """Run the steps of a case that has a check of its own, and say whether it holds."""
    await bench.steps(case["repro"])
    return await judge(case, bench)
