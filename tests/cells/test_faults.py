"""A faulty cell takes neither its session nor the queue with it: each ends typed, at its limit, and the next one runs."""

import asyncio
import shutil
from collections.abc import Callable, Iterator

import pytest

from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.cell import ContextInfo
from coldframe.contract.errors import CellNotBegun, KernelUnavailable, NotFound, ResultExpired, WrongState
from coldframe.contract.sandbox import SandboxSpec
from tests.installation import Installation

STUBBORN = "import time\nwhile True:\n    try:\n        time.sleep(0.2)\n    except KeyboardInterrupt:\n        pass"


async def until(sandbox: Sandbox, fits: Callable[[ContextInfo], bool]) -> None:
    """Until some context of it is so."""
    async with asyncio.timeout(20):
        while not any(fits(one) for one in await sandbox.contexts()):  # noqa: ASYNC110  the server tells nobody
            await asyncio.sleep(0.02)


@pytest.fixture
def own(client: SyncColdframe) -> Iterator[SyncSandbox]:
    with client.sandboxes.create(background=True, network="none") as sandbox:
        yield sandbox


def next_cell_works(sandbox: SyncSandbox, language: str = "python") -> None:
    code, text = ("echo 2", "2\n") if language == "bash" else ("1 + 1", "2")
    outcome = sandbox.run_code(code, language=language)
    assert (outcome.stdout if language == "bash" else outcome.text) == text


@pytest.mark.req("T4.11")
@pytest.mark.parametrize(
    ("language", "code"), [("python", "while True: pass"), ("javascript", "while (true) {}"), ("bash", "sleep 60")]
)
def test_an_endless_loop_is_interrupted_at_its_limit_and_loses_nothing(
    box: SyncSandbox, language: str, code: str
) -> None:
    define = {"python": "kept = 5", "javascript": "globalThis.kept = 5", "bash": "kept=5"}[language]
    box.run_code(define, language=language)
    outcome = box.run_code(code, language=language, timeout_s=1)
    assert (outcome.status, outcome.code) == ("timed_out", "TIMED_OUT_WALL")
    assert not outcome.kernel_restarted
    assert outcome.duration_ms >= 900
    kept = box.run_code("echo $kept" if language == "bash" else "kept", language=language)
    assert "5" in (kept.stdout if language == "bash" else kept.text or "")


@pytest.mark.req("T4.11")
def test_a_loop_that_catches_the_interrupt_costs_the_kernel_and_says_what_is_lost(box: SyncSandbox) -> None:
    box.run_code("precious = 1")
    outcome = box.run_code(STUBBORN, timeout_s=1)
    assert (outcome.status, outcome.code) == ("timed_out", "TIMED_OUT_WALL")
    assert outcome.kernel_restarted
    assert "precious" in outcome.lost
    assert outcome.lost_count >= 1
    next_cell_works(box)


@pytest.mark.req("T4.11")
@pytest.mark.parametrize("code", ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_kernel_that_ends_is_told_with_what_is_lost(box: SyncSandbox, code: str) -> None:
    box.run_code("precious = 1")
    outcome = box.run_code(code)
    assert (outcome.status, outcome.code) == ("kernel_died", "KERNEL_RESTARTED")
    assert outcome.kernel_restarted and "precious" in outcome.lost
    next_cell_works(box)


@pytest.mark.req("T4.11")
def test_a_shell_that_exits_is_told(box: SyncSandbox) -> None:
    outcome = box.run_code("exit 3", language="bash")
    assert (outcome.status, outcome.code) == ("kernel_died", "KERNEL_RESTARTED")
    next_cell_works(box, "bash")


@pytest.mark.req("T4.11")
def test_a_memory_bomb_ends_its_kernel_alone(client: SyncColdframe) -> None:
    with client.sandboxes.create(background=True, network="none", limits={"memory_mib": 512}) as sandbox:
        sandbox.run_code("precious = 1")
        outcome = sandbox.run_code("hoard = []\nwhile True: hoard.append(bytearray(8_000_000))", timeout_s=60)
        assert outcome.status in ("kernel_died", "error")
        if outcome.status == "error":  # where the limit is one of address space, Python says so itself
            assert outcome.error is not None and outcome.error.name == "MemoryError"
            return
        assert outcome.code == "KERNEL_RESTARTED" and outcome.kernel_restarted
        next_cell_works(sandbox)


@pytest.mark.req("T4.11")
def test_asking_for_input_ends_at_once(box: SyncSandbox) -> None:
    outcome = box.run_code("name = input('name? ')")
    assert outcome.error is not None and outcome.error.code == "INPUT_NOT_SUPPORTED"
    next_cell_works(box)


@pytest.mark.req("T4.11")
def test_a_shell_escape_that_waits_for_input_ends_at_its_limit(box: SyncSandbox) -> None:
    outcome = box.run_code("!cat", timeout_s=1)
    assert (outcome.status, outcome.code) == ("timed_out", "TIMED_OUT_WALL")
    next_cell_works(box)


@pytest.mark.req("T4.11")
def test_a_child_in_its_own_session_holds_no_cell(box: SyncSandbox) -> None:
    outcome = box.run_code(
        "import subprocess\nchild = subprocess.Popen(['sleep', '60'], start_new_session=True)\nchild.poll()"
    )
    assert outcome.status == "ok"
    next_cell_works(box)
    box.run_code("child.kill()")


@pytest.mark.req("T4.11")
def test_endless_output_is_ended_at_its_limit(box: SyncSandbox) -> None:
    outcome = box.run_code("while True: print('x' * 100_000)", timeout_s=60)
    assert (outcome.status, outcome.code) == ("output_limit", "LIMIT_OUTPUT")
    assert not outcome.complete and outcome.stdout.startswith("xxxx")
    next_cell_works(box)


@pytest.mark.req("T4.11")
def test_what_a_cell_shows_counts_as_its_output(box: SyncSandbox) -> None:
    outcome = box.run_code("while True: display({'text/html': 'x' * 900_000}, raw=True)", timeout_s=60)
    assert (outcome.status, outcome.code) == ("output_limit", "LIMIT_OUTPUT")
    assert not outcome.complete and 30 < len(outcome.results) < 40
    next_cell_works(box)


@pytest.mark.req("T4.11")
def test_an_error_of_any_length_is_told_with_its_beginning_and_end(box: SyncSandbox) -> None:
    outcome = box.run_code("raise ValueError('begin' + 'x' * 20_000_000 + 'end')")
    assert outcome.error is not None and len(outcome.error.value) < 300_000
    assert outcome.error.value.startswith("begin") and outcome.error.value.endswith("end")
    next_cell_works(box)


@pytest.mark.req("T4.11")
def test_nothing_but_cells_reaches_a_kernel(client: SyncColdframe, box: SyncSandbox) -> None:
    """Its input is no way past the judgement of cells."""
    box.run_code("x = 1")
    kernel = next(one for one in box.contexts() if one.language == "python" and one.command_id)
    with pytest.raises(WrongState, match="takes cells alone"):
        box.job(kernel.command_id or "").send_stdin(b'{"op": "run"}\n')
    next_cell_works(box)


@pytest.mark.req("T4.11")
def test_text_that_cannot_be_encoded_is_printed_with_a_replacement(box: SyncSandbox) -> None:
    outcome = box.run_code("print('a\\ud800b'); print('after')")
    assert outcome.stdout == "a\ufffdb\nafter\n"
    next_cell_works(box)


@pytest.mark.req("T4.11")
def test_a_cell_whose_caller_gave_up_in_the_queue_never_runs(installation: Installation, own: SyncSandbox) -> None:
    async def play() -> None:
        async with Coldframe(installation.url, installation.token) as client:
            sandbox = await client.sandboxes.get(own.id)
            first = asyncio.ensure_future(sandbox.run_code("import time; time.sleep(2); 1"))
            await until(sandbox, lambda one: one.state == "busy")
            second = asyncio.ensure_future(sandbox.run_code("open('ran', 'w').close()"))
            await until(sandbox, lambda one: one.queued > 0)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            assert (await first).text == "1"
            assert (await sandbox.run_code("import os; os.path.exists('ran')")).text == "False"

    asyncio.run(play())


@pytest.mark.req("T4.11")
def test_a_cell_whose_turn_does_not_come_in_time_is_told_and_never_runs(
    installation: Installation, own: SyncSandbox
) -> None:
    async def play() -> None:
        async with Coldframe(installation.url, installation.token) as client:
            sandbox = await client.sandboxes.get(own.id)
            first = asyncio.ensure_future(sandbox.run_code("import time; time.sleep(2)"))
            await until(sandbox, lambda one: one.state == "busy")
            with pytest.raises(CellNotBegun):
                await sandbox.run_code("open('late', 'w').close()", queue_s=0.2)
            await first
            assert (await sandbox.run_code("import os; os.path.exists('late')")).text == "False"

    asyncio.run(play())


@pytest.mark.req("T4.11")
def test_contexts_have_queues_of_their_own(installation: Installation, own: SyncSandbox) -> None:
    async def play() -> None:
        async with Coldframe(installation.url, installation.token) as client:
            sandbox = await client.sandboxes.get(own.id)
            other = await sandbox.open_context()
            await sandbox.run_code("1")
            await sandbox.run_code("1", context=other.context_id)
            slow = asyncio.ensure_future(sandbox.run_code("import time; time.sleep(20)"))
            await until(sandbox, lambda one: one.state == "busy")
            assert (await sandbox.run_code("2", context=other.context_id)).text == "2"
            assert not slow.done()
            (busy,) = [one for one in await sandbox.contexts() if one.state == "busy"]
            await sandbox.restart_context(busy.context_id)
            ended = await slow
            assert (ended.status, ended.code) == ("kernel_died", "KERNEL_RESTARTED")
            assert (await sandbox.run_code("3")).text == "3"

    asyncio.run(play())


@pytest.mark.req("T4.11")
def test_a_cell_goes_on_without_its_client_and_is_fetched_by_its_id(
    installation: Installation, own: SyncSandbox
) -> None:
    events = own.code_events("import time\nprint('begun')\ntime.sleep(1)\n'whole'")
    cell_id = next(event.cell_id for event in events if getattr(event, "event", None) == "begun")
    events.close()
    outcome = own.cell(cell_id, wait_s=20)
    assert (outcome.stdout, outcome.text) == ("begun\n", "'whole'")


def test_a_cell_is_fetched_from_its_own_sandbox_and_not_past_the_deletion_of_its_result(
    client: SyncColdframe, box: SyncSandbox
) -> None:
    spec = SandboxSpec(
        background=True, network="none", outputs=("out",), max_age_s=600, on_timeout="terminate", on_result="delete"
    )
    with client.sandboxes.create(spec=spec) as sandbox:
        outcome = sandbox.run_code("open('out', 'w').write('x')\n'secret of mine'")
        assert sandbox.cell(outcome.cell_id).text == "'secret of mine'"
        with pytest.raises(NotFound):
            box.cell(outcome.cell_id, wait_s=0)
        offered = sandbox.offer_result()
        assert offered.sha256 is not None
        sandbox.confirm_result(offered.sha256)
        with pytest.raises(ResultExpired) as refused:
            sandbox.cell(outcome.cell_id)
        assert "removed_at" in refused.value.facts


@pytest.mark.req("T4.11")
def test_a_client_that_is_gone_interrupts_its_cell_if_it_said_so(own: SyncSandbox) -> None:
    events = own.code_events("import time\nprint('begun', flush=True)\ntime.sleep(600)", on_leave="interrupt")
    cell_id = next(event.cell_id for event in events if getattr(event, "event", None) == "begun")
    events.close()
    outcome = own.cell(cell_id, wait_s=20)
    assert (outcome.status, outcome.code) == ("interrupted", "CANCELLED")
    next_cell_works(own)


@pytest.mark.req("T4.11")
def test_a_cell_is_interrupted_by_its_id(own: SyncSandbox) -> None:
    events = own.code_events("import time\ntime.sleep(600)")
    cell_id = next(event.cell_id for event in events if getattr(event, "event", None) == "begun")
    own.interrupt_cell(cell_id)
    ended = [event for event in events if getattr(event, "status", None)]
    assert {one.status for one in ended} == {"interrupted"}


@pytest.mark.req("T4.11")
def test_a_sandbox_that_was_stopped_begins_with_a_new_kernel_and_says_so(client: SyncColdframe) -> None:
    with client.sandboxes.create(background=True, network="none") as sandbox:
        sandbox.run_code("x = 1")
        sandbox.stop()
        sandbox.start_again()
        outcome = sandbox.run_code("'x' in globals()")
        assert outcome.text == "False"
        assert outcome.kernel_restarted and outcome.code == "KERNEL_RESTARTED"


def test_a_context_in_a_directory_that_is_not_there_says_why_nothing_runs(box: SyncSandbox) -> None:
    context = box.open_context(cwd="/root/nowhere")
    with pytest.raises(KernelUnavailable) as refused:
        box.run_code("1", context=context.context_id)
    assert "/root/nowhere" in refused.value.message
    box.close_context(context.context_id)


@pytest.mark.skipif(shutil.which("R") is not None, reason="this machine has R")
def test_a_language_whose_kernel_is_not_installed_is_refused_with_where_to_have_it(box: SyncSandbox) -> None:
    with pytest.raises(KernelUnavailable, match="there is no `R` here") as refused:
        box.run_code("1", language="r")
    assert "r-cran-irkernel" in refused.value.advice
