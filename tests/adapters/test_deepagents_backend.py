"""The backend of deepagents: its own helpers work over a sandbox, agents use it, and what is refused is told to the model."""

from collections.abc import Iterator
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.adapters.packages import framework
from tests.installation import Installation

adapter = framework("coldframe.adapters.deepagents_backend")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.once, pytest.mark.req("T4.83")]


@pytest.fixture(scope="module")
def sandbox(installation: Installation) -> Iterator[SyncSandbox]:
    with SyncColdframe(installation.url, installation.token) as client:
        with client.sandboxes.create(background=True) as sandbox:
            yield sandbox


@pytest.fixture(scope="module")
def backend(sandbox: SyncSandbox) -> Any:
    return adapter.SandboxBackend(sandbox)


def test_commands_answer_with_both_streams_in_order_and_their_exit_code(backend: Any) -> None:
    told = backend.execute("echo one; echo two >&2; echo three; exit 3")
    assert (told.output, told.exit_code, told.truncated) == ("one\ntwo\nthree\n", 3, False)
    late = backend.execute("echo begun; sleep 60", timeout=1)
    assert late.output.startswith("begun\n")
    assert late.exit_code not in (0, None)
    assert "longer than it may" in late.output
    assert backend.id.startswith("sbx_")


def test_what_a_rule_refuses_is_told_to_the_model(backend: Any) -> None:
    told = backend.execute("passwd")
    assert told.exit_code == adapter.REFUSED_EXIT_CODE
    assert told.output.startswith("DENIED_BY_RULE: ")


def test_files_go_up_and_down_whole_and_errors_are_those_of_the_framework(backend: Any) -> None:
    content = bytes(range(256)) * 4096
    up = backend.upload_files(
        [("/home/user/in/a.bin", content), ("/tmp/b", b"b"), ("/home/user/in", b"x"), ("/proc/1/x", b"")]
    )
    assert [one.error for one in up[:3]] == [None, None, "is_directory"]
    assert up[3].error == "invalid_path"
    down = backend.download_files(["/home/user/in/a.bin", "/tmp/b", "/home/user/none", "/home/user/in"])
    assert [one.content for one in down] == [content, b"b", None, None]
    assert [one.error for one in down] == [None, None, "file_not_found", "is_directory"]


def test_the_helpers_of_the_framework_work_over_it(backend: Any) -> None:
    assert backend.write("/home/user/src/app.py", "def one():\n    return 1\n").error is None
    assert backend.edit("/home/user/src/app.py", "return 1", "return 2").occurrences == 1
    read = backend.read("/home/user/src/app.py")
    assert read.file_data["content"].splitlines() == ["def one():", "    return 2"]
    assert [one["path"] for one in backend.ls("/home/user/src").entries] == ["/home/user/src/app.py"]
    assert [(one["path"], one["line"]) for one in backend.grep("return", path="/home/user/src").matches] == [
        ("/home/user/src/app.py", 2)
    ]
    assert [one["path"] for one in backend.glob("*.py", path="/home/user/src").matches] == ["/home/user/src/app.py"]
    assert backend.delete("/home/user/src").error is None
    assert backend.read("/home/user/src/app.py").error is not None


def test_an_agent_of_the_framework_works_in_it(backend: Any, sandbox: SyncSandbox) -> None:
    deepagents = framework("deepagents")
    messages = framework("langchain_core.messages")
    models = framework("langchain_core.language_models.fake_chat_models")

    class Scripted(models.GenericFakeChatModel):  # type: ignore[misc, name-defined]
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    def call(name: str, **arguments: Any) -> Any:
        return messages.AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": name}])

    script = [
        call("write_file", file_path="/home/user/hello.txt", content="hello"),
        call("execute", command="tr a-z A-Z < hello.txt > loud.txt; cat loud.txt"),
        messages.AIMessage("done"),
    ]
    agent = deepagents.create_deep_agent(model=Scripted(messages=iter(script)), backend=backend)
    told = agent.invoke({"messages": [{"role": "user", "content": "make it loud"}]})
    assert any("HELLO" in str(one.content) for one in told["messages"] if one.type == "tool")
    assert sandbox.read_file("loud.txt").content == "HELLO"
