"""Whatever the API can do is done from each SDK and the command line as well, or it is said why not; and what is said is so."""

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from coldframe.cli.app import app
from coldframe.client import models, sync
from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.client.sync import SyncColdframe, SyncSandbox, Transport
from coldframe.contract.state import StateObject
from coldframe.fronts.rest import ROUTES
from coldframe.fronts.rest.schema import make_document

ROOT = Path(__file__).resolve().parents[2]
LISTED: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "docs" / "operations.toml").read_text())
PATHS: dict[str, Any] = make_document("Coldframe", "", ROUTES)["paths"]
pytestmark = pytest.mark.req("T4.83")
WORDS: dict[str, Any] = {
    "source": b"", "content": b"", "files": {}, "arguments": {}, "terms": {}, "steps": [{"name": "a", "command": "a"}],
    "spec": models.SandboxSpec(background=True), "which": models.EndMany(state=("stopped",)), "offset": 0,
    "phases": ["true"],
    "recipe": {"name": "a"},
}  # fmt: skip
"""What is given for an argument of that name; for another one, by its kind."""


class Asked(Exception):
    """The request that a method makes, in place of its answer."""


def operations() -> Iterator[str]:
    for path, methods in PATHS.items():
        for method in methods:
            yield f"{method.upper()} {path}"


def test_the_list_is_that_of_the_api_and_says_of_each_how_or_why_not() -> None:
    assert sorted(LISTED) == sorted(operations())
    for key, entry in LISTED.items():
        assert ("sdk" in entry) != ("no_sdk" in entry), key
        assert ("cli" in entry) != ("no_cli" in entry), key
        assert all(len(str(entry[why])) > 20 for why in ("no_sdk", "no_cli") if why in entry), key
    reasons = [key for key, entry in LISTED.items() if "no_sdk" in entry or "no_cli" in entry]
    assert len(reasons) <= 10, reasons


@pytest.mark.parametrize("key", [key for key, entry in LISTED.items() if "sdk" in entry])
def test_the_method_of_both_python_clients_asks_for_that_operation(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group, _, name = str(LISTED[key]["sdk"]).rpartition(".")

    def open_(self: Transport, method: str, path: str, **_: object) -> object:
        if path.endswith("/missing") and not key.endswith("/missing"):
            return SimpleNamespace(status=200, headers={}, read=lambda: b'{"sha256": []}')
        raise Asked(f"{method} {path}")

    monkeypatch.setattr(Transport, "open", open_)
    client = SyncColdframe("http://127.0.0.1:9", "token")
    found = getattr(_holder(client, group), name)
    assert callable(found)
    assert callable(getattr(_holder_of_async(group), name))
    asked = ""
    for wanted in (False, True):  # some ask for one thing or another by what is given
        try:
            given = found(**_given(found, all_of_them=wanted))
            if inspect.isgenerator(given):
                next(given)
        except Asked as request:
            asked = str(request)
            if _fits(key, asked):
                return
    raise AssertionError(f"{LISTED[key]['sdk']} asked for `{asked}`")


def _fits(key: str, asked: str) -> bool:
    pattern = re.escape(key).replace(r"\{", "{").replace(r"\}", "}")
    pattern = re.sub(r"{path}", ".+", pattern)
    return re.fullmatch(re.sub(r"{\w+}", "[^/]+", pattern), asked) is not None


def _holder(client: SyncColdframe, group: str) -> Any:
    sandbox = SyncSandbox(client._transport, _info())
    if group == "sandbox":
        return sandbox
    if group == "git":
        return sandbox.git
    if group == "pipeline":
        return sandbox.pipeline("pip_1")
    if group == "watch":
        return sync.Watch(client._transport, "/v1/sandboxes/sbx_1/watches/wch_1")
    if group == "template_build":
        return client.templates.get_build("bld_1")
    return getattr(client, group) if group else client


def _holder_of_async(group: str) -> Any:
    from coldframe.client import files, git, pipelines, templates

    classes = {
        "sandbox": Sandbox,
        "git": git.Git,
        "pipeline": pipelines.Pipeline,
        "watch": files.Watch,
        "template_build": templates.TemplateBuild,
    }
    client = Coldframe("http://127.0.0.1:9", "token")
    return classes[group] if group in classes else getattr(client, group) if group else client


def _info() -> models.SandboxInfo:
    state = StateObject.model_construct(state="running")
    return models.SandboxInfo.model_construct(sandbox_id="sbx_1", state=state)


def _given(method: Any, *, all_of_them: bool) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is not parameter.empty and not (all_of_them and name in ("sandbox_id", "offset")):
            continue
        kind = str(parameter.annotation)
        number = 1 if kind.startswith(("int", "float")) else None
        given[name] = WORDS.get(name, number or ([] if kind.startswith("Sequence") else "a"))
    return given


def _declared(name: str) -> str:
    return (ROOT / "typescript" / f"{name}.d.ts").read_text()


@pytest.mark.parametrize("key", [key for key, entry in LISTED.items() if "sdk" in entry])
def test_the_sdk_for_typescript_declares_it(key: str) -> None:
    entry = LISTED[key]
    group, _, name = str(entry.get("ts", entry["sdk"])).rpartition(".")
    method = re.sub(r"_(\w)", lambda found: found[1].upper(), name)
    if entry.get("hand"):
        text = _declared(group or "index")
    else:
        made = {"": "ColdframeOperations", "sandbox": "SandboxOperations", "template_build": "TemplateBuild"}
        text = _declared("operations").split(f"class {made.get(group, group.capitalize())} ")[1].split("\nexport ")[0]
    assert re.search(rf"^    {method}(<.*>)?\(", text, re.M), method


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*words, name))
        else:
            yield " ".join((*words, name)), one.callback


OTHERWISE = {
    "run_command": ("run_arguments",), "download": ("download_file",), "upload": ("upload_file",), "output": ("output_parts",),
    "missing_inputs": ("build",), "upload_input": ("build",), "follow": ("job",), "log": ("follow", "log_parts"), "command": ("info", "wait"),
    "info": ("wait", "follow"), "end": ("watch",), "events": ("watch",), "remove_file": ("remove",), "extend_command": ("extend",),
}  # fmt: skip
"""Methods that a command calls in place of one, since they call that."""
COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("key", [key for key, entry in LISTED.items() if "cli" in entry and "sdk" in entry])
def test_the_command_uses_that_method(key: str) -> None:
    entry = LISTED[key]
    name = str(entry["sdk"]).rpartition(".")[2]
    spoken = (name, *OTHERWISE.get(name, ()))
    text = _reached(COMMANDS[str(entry["cli"])])
    assert any(re.search(rf"\.{one}\(", text) for one in spoken), (entry["cli"], spoken)


def _reached(function: Any) -> str:
    """The text of a function, and of those of the command line that it names."""
    texts: dict[str, str] = {}
    waiting = [function]
    while waiting:
        one = waiting.pop()
        key = f"{one.__module__}.{one.__qualname__}"
        if key in texts:
            continue
        texts[key] = inspect.getsource(one)
        module = inspect.getmodule(one)
        for word in set(re.findall(r"\b(\w+)\(", texts[key])):
            called = getattr(module, word, None)
            if inspect.isfunction(called) and called.__module__.startswith("coldframe.cli"):
                waiting.append(called)
    return "\n".join(texts.values())
