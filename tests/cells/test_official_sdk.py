"""The official SDK of E2B's code interpreter, unchanged, on a real sandbox: contexts, streams, limits, and leaving."""

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from e2b import InvalidArgumentException, NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

from tests.e2b.real import RealEdge


@pytest.fixture(scope="module")
def sandbox(real: RealEdge) -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=300, envs={"KEPT": "from the sandbox"}, **real.params)
    yield made
    made.kill(**real.params)


@pytest.mark.req("T4.09")
def test_output_results_and_errors_are_streamed_to_callbacks(sandbox: Sandbox) -> None:
    said: list[str] = []
    shown: list[str | None] = []
    failed: list[str] = []
    execution = sandbox.run_code(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay('shown')\n1/0",
        on_stdout=lambda one: said.append(one.line),
        on_stderr=lambda one: said.append(one.line),
        on_result=lambda one: shown.append(one.text),
        on_error=lambda one: failed.append(one.name),
    )
    assert (said, shown, failed) == (["out\n", "err\n"], ["shown"], ["ZeroDivisionError"])
    assert execution.logs.stdout == ["out\n"] and execution.execution_count is not None


@pytest.mark.req("T4.09")
def test_contexts_are_listed_made_restarted_and_removed(sandbox: Sandbox) -> None:
    assert {"python", "javascript"} <= {one.language for one in sandbox.list_code_contexts()}
    context = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.list_code_contexts()[-1].id == context.id
    assert sandbox.run_code("import os; x = 1; os.getcwd()", context=context).text == "/tmp"
    assert sandbox.run_code("x").error is not None
    sandbox.restart_code_context(context.id)
    error = sandbox.run_code("x", context=context).error
    assert error is not None and error.value == "name 'x' is not defined"
    sandbox.remove_code_context(context.id)
    assert context.id not in {one.id for one in sandbox.list_code_contexts()}
    with pytest.raises(NotFoundException):
        sandbox.run_code("1", context=context)


def test_context_and_language_together_and_unknown_languages_are_refused(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context()
    with pytest.raises(InvalidArgumentException):
        sandbox.run_code("1", context=context, language="js")
    with pytest.raises(SandboxException, match="no kernel for `cobol`"):
        sandbox.run_code("1", language="cobol")
    sandbox.remove_code_context(context)


@pytest.mark.req("T4.09")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import os; print(os.environ.get('{name}'))"),
        ("js", "console.log(Deno.env.get('{name}') ?? 'None')"),
        ("bash", "echo ${{{name}:-None}}"),
    ],
)
def test_variables_are_those_of_the_sandbox_but_for_one_cell(sandbox: Sandbox, language: str, code: str) -> None:
    def seen(name: str, envs: dict[str, str] | None = None) -> str:
        return sandbox.run_code(code.format(name=name), language=language, envs=envs).logs.stdout[0].strip()

    assert seen("KEPT") == "from the sandbox"
    assert seen("KEPT", {"KEPT": "other's"}) == "other's"
    assert seen("KEPT") == "from the sandbox"
    assert seen("OWN", {"OWN": "a b"}) == "a b"
    assert seen("OWN") == "None"


@pytest.mark.req("T4.11")
def test_a_client_that_gives_up_interrupts_its_cell(sandbox: Sandbox) -> None:
    sandbox.run_code("kept = 7")
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time; time.sleep(300)", timeout=1)
    execution = sandbox.run_code("kept", timeout=10)
    assert execution.text == "7"


@pytest.mark.req("T4.11")
def test_a_kernel_that_ends_is_an_error_with_its_code(sandbox: Sandbox) -> None:
    error = sandbox.run_code("import os; os._exit(1)").error
    assert error is not None and error.name == "KERNEL_RESTARTED"
    assert sandbox.run_code("1 + 1").text == "2"


@pytest.mark.req("T4.11")
def test_a_sandbox_that_is_killed_under_a_cell_is_told(real: RealEdge) -> None:
    made = Sandbox.create(timeout=120, **real.params)
    made.run_code("1")
    begun = threading.Event()

    def kill() -> None:
        begun.wait(30)
        made.kill(**real.params)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(TimeoutException, match="killed"):
        made.run_code("print('begun', flush=True)\nimport time; time.sleep(300)", on_stdout=lambda _: begun.set())
    killer.join()


@pytest.mark.req("T4.11")
def test_a_sandbox_that_is_killed_before_the_turn_of_a_cell_is_told_so_as_well(real: RealEdge) -> None:
    made = Sandbox.create(timeout=120, **real.params)
    begun = threading.Event()
    told: list[BaseException] = []

    def run(code: str) -> None:
        try:
            made.run_code(code, on_stdout=lambda _: begun.set())
        except TimeoutException as error:
            told.append(error)

    both = [threading.Thread(target=run, args=("print(1, flush=True)\nimport time; time.sleep(300)",))]
    both[0].start()
    assert begun.wait(60)
    both.append(threading.Thread(target=run, args=("2",)))
    both[1].start()
    with real.client() as client:
        waiting = client.sandboxes.get(f"sbx_{made.sandbox_id}")
        while not any(one.queued for one in waiting.contexts()):
            assert both[1].is_alive()
    made.kill(**real.params)
    for one in both:
        one.join(60)
    assert len(told) == 2 and all("killed" in str(one) for one in told)


def test_no_code_runs_without_the_token_of_its_sandbox(sandbox: Sandbox, real: RealEdge) -> None:
    request = urllib.request.Request(
        f"{real.url}/execute",
        b'{"code": "1"}',
        {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49999", "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    assert refused.value.code == 401
    refused.value.close()


def test_contexts_of_a_sandbox_without_public_traffic_take_its_token(real: RealEdge) -> None:
    made = Sandbox.create(timeout=120, network={"allow_public_traffic": False}, **real.params)
    try:
        assert made.create_code_context().id in {one.id for one in made.list_code_contexts()}
        request = urllib.request.Request(
            f"{real.url}/contexts", headers={"E2b-Sandbox-Id": made.sandbox_id, "E2b-Sandbox-Port": "49999"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=20)
        assert refused.value.code == 401
        refused.value.close()
    finally:
        made.kill(**real.params)


@pytest.mark.req("T4.09")
def test_the_asynchronous_sdk_runs_cells_of_several_contexts_at_once(real: RealEdge) -> None:
    async def play() -> None:
        made = await AsyncSandbox.create(timeout=120, **real.params)
        try:
            contexts = [await made.create_code_context() for _ in range(2)]
            for context in contexts:
                await made.run_code("1", context=context)  # both kernels have started
            # Each waits for the other, which no order of one after the other could end.
            wait = "import pathlib, time\npathlib.Path('{own}').touch()\nwhile not pathlib.Path('{other}').exists(): time.sleep(0.02)\n'met'"
            codes = [wait.format(own="a", other="b"), wait.format(own="b", other="a")]
            done = await asyncio.gather(
                *(made.run_code(code, context=context) for code, context in zip(codes, contexts, strict=True))
            )
            assert [one.text for one in done] == ["met", "met"]
        finally:
            await made.kill(**real.params)

    asyncio.run(play())
