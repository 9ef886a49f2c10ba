"""Code cells: code in a kernel that keeps its variables, with pictures as pictures."""

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from coldframe.contract.cell import CellRequest, ContextId, ContextInfo, NewContext
from coldframe.contract.errors import CellNotBegun, ColdframeError, NotFound, WrongState
from coldframe.contract.model import Model
from coldframe.contract.tool import ToolResult
from coldframe.control.call_records import ids_of
from coldframe.fronts.mcp.answers import CallAnswer, answered, call_of, of_result
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.gate_tools import LONGEST_WAIT_S, WAIT_S, answer_schema
from coldframe.fronts.mcp.offers import OFFERS, Asked, Offer, checked, offer
from coldframe.fronts.mcp.workspace_tools import WhichSandbox
from coldframe.tools.registry import find_tool

RAISED = "raised"
"""What the code has raised, which is called `error` elsewhere: here that says that the call failed."""
_PICTURES = ("image/png", "image/jpeg")
_RUNNING: dict[str, Any] = {
    "is_running": {"type": "boolean", "description": "It has not ended: `get_cell` waits for it."},
    "sandbox_id": {"type": "string"},
}


class SentCell(CellRequest):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    workspace: Annotated[str | None, Field(max_length=63)] = None
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = WAIT_S
    """How long to wait for its end. A cell that takes longer goes on, and `get_cell` fetches its result."""


class WhichCell(Model):
    cell_id: Annotated[str, Field(max_length=100)]


class AwaitedCell(WhichCell):
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = WAIT_S


async def _run(asked: Asked, given: dict[str, Any]) -> CallAnswer:
    sent = checked("run_code", SentCell, given)
    sandbox_id = choose_sandbox(asked.control, asked.caller, sent.sandbox_id, sent.workspace)
    cell = CellRequest.model_validate(sent.model_dump(exclude={"sandbox_id", "workspace", "wait_s"}))
    cells = asked.control.cells
    begun: list[str] = []

    def note(cell_id: str) -> None:
        begun.append(cell_id)
        asked.call_off = partial(cells.interrupt, asked.caller, sandbox_id, cell_id)

    try:
        async with (
            asyncio.timeout(sent.wait_s),
            aclosing(cells.stream(asked.caller, sandbox_id, cell, on_leave="go_on", admitted=note)) as events,
        ):
            async for event in events:
                if isinstance(event, ToolResult):
                    return _shown(event)
    except TimeoutError:
        if not begun:
            raise CellNotBegun(f"its turn did not come within {sent.wait_s:g} s", sandbox_id=sandbox_id) from None
    asked.call_off = None
    return _goes_on(begun[0], sandbox_id)


async def _get(asked: Asked, given: dict[str, Any]) -> CallAnswer:
    which = checked("get_cell", AwaitedCell, given)
    sandbox_id = _sandbox_of(asked, which.cell_id)
    try:
        return _shown(await asked.control.cells.get(asked.caller, sandbox_id, which.cell_id, wait_s=which.wait_s))
    except WrongState:
        return _goes_on(which.cell_id, sandbox_id)


def _goes_on(cell_id: str, sandbox_id: str) -> CallAnswer:
    return answered({"cell_id": cell_id, "sandbox_id": sandbox_id, "is_running": True})


def _shown(result: ToolResult) -> CallAnswer:
    """Pictures go along as what they are, and in the structure there is none in their place."""
    if result.error is not None:
        return of_result(result)
    value, pictures, texts = dict(result.value), [], []
    for stream in ("stdout", "stderr"):
        if value.get(stream):
            texts.append(value[stream] if stream == "stdout" else f"[stderr]\n{value[stream]}")
    shown = []
    for one in value.get("results") or ():
        data = dict(one["data"])
        found = next((mime for mime in _PICTURES if isinstance(data.get(mime), str)), None)
        if found is not None:
            pictures.append({"type": "image", "data": data[found], "mimeType": found})
            data = {mime: None if mime in _PICTURES else content for mime, content in data.items()}
        elif isinstance(data.get("text/plain"), str):
            texts.append(data["text/plain"])
        shown.append({**one, "data": data})
    value[RAISED] = value.pop("error")
    if value[RAISED]:
        texts.append(str(value[RAISED]["traceback"]))
    elif value.get("message"):
        texts.append(f"[{value['status']}: {value['message']}]")
    value.update(results=shown, is_running=False, sandbox_id=result.sandbox_id, call=call_of(result))
    answer = answered(value, "\n".join(text.rstrip("\n") for text in texts) or "[nothing was shown]")
    return {**answer, "content": [*answer["content"], *pictures]}


def _schema() -> dict[str, Any]:
    schema = answer_schema(find_tool("run_code"), {"error": RAISED})
    runs = {"required": ["cell_id", "is_running"], "properties": {"is_running": {"const": True}}}
    return {**schema, "properties": {**schema["properties"], **_RUNNING}, "anyOf": [*schema["anyOf"], runs]}


def _sandbox_of(asked: Asked, cell_id: str) -> str:
    """The sandbox that a cell ran in. Raises NotFound if there is none, or it is not the caller's."""
    missing = NotFound(f"no cell `{cell_id[:80]}`", cell_id=cell_id[:80])
    started = asked.control.ledger.course(ids_of(cell_id).call_id).get("call.started")
    if started is None or started.body.get("tool") != "run_code" or not cell_id.startswith("cell_"):
        raise missing
    try:
        return asked.control.sandboxes.get(asked.caller, str(started.body["sandbox_id"])).sandbox_id
    except ColdframeError:
        raise missing from None


OFFERS["run_code"] = Offer(
    name="run_code",
    description="Run code in a kernel that keeps its variables from cell to cell: Python, JavaScript, TypeScript or bash. Answers "
    "with its output, its value in every form that there is, and pictures. What is too large is a file of the workspace.",
    make_input_schema=SentCell.model_json_schema,
    make_output_schema=_schema,
    run=_run,
    right="tool.call",
    destroys=True,
    passes_as="run_code",
)
OFFERS["get_cell"] = Offer(
    name="get_cell",
    description="The result of a cell again, by its id; of one that runs, once it has ended, or that it runs still.",
    make_input_schema=AwaitedCell.model_json_schema,
    make_output_schema=_schema,
    run=_get,
    right="command.read",
    reads=True,
)


class CellInterrupted(Model):
    cell_id: str
    sandbox_id: str


@offer(arguments=WhichCell, answer=CellInterrupted, right="command.signal", destroys=True, repeats=True)
async def interrupt_cell(asked: Asked, which: WhichCell) -> CellInterrupted:
    """Stop a cell that runs. Where it does not let itself be stopped its kernel is replaced, and its result says so."""
    sandbox_id = _sandbox_of(asked, which.cell_id)
    await asked.control.cells.interrupt(asked.caller, sandbox_id, which.cell_id)
    return CellInterrupted(cell_id=which.cell_id, sandbox_id=sandbox_id)


class ManyContexts(Model):
    sandbox_id: str
    contexts: tuple[ContextInfo, ...]


@offer(arguments=WhichSandbox, answer=ManyContexts, right="command.read", reads=True)
async def list_contexts(asked: Asked, which: WhichSandbox) -> ManyContexts:
    """Contexts of code cells in a sandbox, each with variables of its own. Those of Python and JavaScript are there without being
    made."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
    return ManyContexts(sandbox_id=sandbox_id, contexts=tuple(asked.control.contexts.list(asked.caller, sandbox_id)))


class WishedContext(NewContext):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    workspace: Annotated[str | None, Field(max_length=63)] = None


@offer(arguments=WishedContext, answer=ContextInfo, right="tool.call")
async def create_context(asked: Asked, wish: WishedContext) -> ContextInfo:
    """Make a context of its own variables for code cells, and begin to start its kernel."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, wish.sandbox_id, wish.workspace)
    return await asked.control.contexts.open(asked.caller, sandbox_id, NewContext(language=wish.language, cwd=wish.cwd))


class WhichContext(Model):
    sandbox_id: Annotated[str, Field(max_length=100)]
    context_id: ContextId


@offer(arguments=WhichContext, answer=ContextInfo, right="tool.call", destroys=True)
async def restart_context(asked: Asked, which: WhichContext) -> ContextInfo:
    """Begin a context anew: all that its cells have defined is gone, and a cell that runs ends."""
    return await asked.control.contexts.restart(asked.caller, which.sandbox_id, which.context_id)
