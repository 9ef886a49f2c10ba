"""Checks of the interpreter cases: cells that ask, loop, swallow interrupts, wait, print too much, or lose their client."""

import asyncio
from contextlib import aclosing

from coldframe.client.sandbox import Sandbox
from coldframe.contract.errors import CellNotBegun
from coldframe.host import interpreter
from tests.cases.checks import Lab, NotThereYet, check


async def sandbox_of(lab: Lab) -> Sandbox:
    if interpreter.listing() is None:
        raise NotThereYet("no packages for code cells are installed")
    return lab.sandbox_of(await lab.bench())


async def next_cell_works(sandbox: Sandbox) -> None:
    assert (await sandbox.run_code("1+1")).text == "2"


@check("B145")
async def a_cell_that_asks_for_input_ends_at_once(lab: Lab) -> None:
    sandbox = await sandbox_of(lab)
    outcome = await sandbox.run_code('x=input("name? ")', timeout_s=30)
    assert outcome.status == "error" and outcome.error is not None
    assert outcome.error.code == "INPUT_NOT_SUPPORTED"
    await next_cell_works(sandbox)


@check("B147")
async def a_queued_cell_that_was_given_up_never_runs(lab: Lab) -> None:
    sandbox = await sandbox_of(lab)
    first = asyncio.ensure_future(sandbox.run_code("import time; time.sleep(2)"))
    while not any(one.state == "busy" for one in await sandbox.contexts()):  # noqa: ASYNC110  the server tells nobody
        await asyncio.sleep(0.02)
    try:
        await sandbox.run_code("open('late', 'w').close()", queue_s=0.3)
        raise AssertionError("a cell ran that had been given up")
    except CellNotBegun:
        pass
    await first
    assert (await sandbox.run_code("import os; os.path.exists('late')")).text == "False"


@check("B149")
async def code_that_swallows_the_interrupt_costs_its_kernel_alone(lab: Lab) -> None:
    sandbox = await sandbox_of(lab)
    await sandbox.run_code("kept = 1")
    code = "import time\nwhile True:\n    try: time.sleep(0.2)\n    except KeyboardInterrupt: pass"
    outcome = await sandbox.run_code(code, timeout_s=1)
    assert outcome.status == "timed_out" and outcome.kernel_restarted
    assert "kept" in outcome.lost
    await next_cell_works(sandbox)


@check("B151")
async def a_result_is_whole_and_can_be_fetched_after_the_connection_broke(lab: Lab) -> None:
    sandbox = await sandbox_of(lab)
    cell_id = None
    async with aclosing(sandbox.code_events("import time\nprint('a')\ntime.sleep(1)\nprint('b')\n'end'")) as events:
        async for event in events:
            cell_id = getattr(event, "cell_id", None)
            break  # the stream is cut in the middle of the cell
    assert cell_id is not None
    for _ in range(2):
        outcome = await sandbox.cell(cell_id, wait_s=30)
        assert (outcome.stdout, outcome.text) == ("a\nb\n", "'end'")


@check("B153")
async def big_results_are_files_and_endless_output_ends(lab: Lab) -> None:
    sandbox = await sandbox_of(lab)
    (text,) = (await sandbox.run_code('"x"*3_000_000')).results
    assert text.clipped["text/plain"] == 3_000_002 and len(text.text or "") < 100_000
    code = (
        "from IPython.display import display; import base64; "
        'display({"image/png": base64.b64encode(b"0"*5_000_000).decode()}, raw=True)'
    )
    (image,) = (await sandbox.run_code(code)).results
    assert "image/png" not in image.data and image.artifacts["image/png"].bytes == 5_000_000
    outcome = await sandbox.run_code("i=0\nwhile True: print('line',i); i+=1", timeout_s=2)
    assert outcome.status in ("timed_out", "output_limit"), outcome.status
    await next_cell_works(sandbox)


@check("B155")
async def text_that_cannot_be_encoded_is_printed_with_a_replacement(lab: Lab) -> None:
    sandbox = await sandbox_of(lab)
    outcome = await sandbox.run_code('print("a\\ud800b"); print("after")')
    assert outcome.stdout == "a\ufffdb\nafter\n"
    await next_cell_works(sandbox)
