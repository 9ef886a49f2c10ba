"""Each program starts with what it uses: the SDK without models, `coldframe up` without the server, the server without
what only one request in a while needs.
"""

import json
import os
import subprocess
import sys
import typing
from types import FunctionType

import pytest

SERVERS = frozenset(
    {
        "alembic",
        "anyio",
        "asyncio",
        "bashkit",
        "coldframe.control",
        "coldframe.fronts",
        "coldframe.host",
        "cryptography",
        "re2",
        "sqlalchemy",
        "starlette",
        "uvicorn",
        "uvloop",
        "yaml",
    }
)
"""What only server, daemon or the asynchronous SDK need."""
UNIONS = ("CellEvent", "CommandEvent")
"""Models of the SDK that are one of several."""
MODELS = frozenset({"pydantic", "pydantic_core", "coldframe.client.answers", "coldframe.contract.command"})
CALL = """
from coldframe.client import models
from coldframe.client.replies import read_answer
for kind in (models.SandboxInfo, models.ToolResult, models.CommandAnswer):
    try:
        read_answer(kind, b"{}")
    except coldframe.errors.Unavailable:
        pass
"""


def imported_by(program: str) -> set[str]:
    """What *program* loads of the names above."""
    return loaded_by(program) & (SERVERS | MODELS)


def loaded_by(program: str) -> set[str]:
    """Modules of a new interpreter after *program*."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"],
        env={**os.environ, "COLDFRAME_DATA_DIR": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", ["coldframe", "coldframe.client.sync"])
def test_importing_the_sdk_imports_neither_models_nor_anything_of_the_server(name: str) -> None:
    assert imported_by(f"import {name}") == set()


def test_the_asynchronous_sdk_adds_asyncio_alone() -> None:
    assert imported_by("import coldframe.client.api") == {"asyncio"}


def test_a_call_imports_the_models_of_its_answer_and_nothing_of_the_server() -> None:
    assert imported_by(f"import coldframe\ncoldframe.SyncColdframe\n{CALL}") == MODELS


def test_a_client_that_gives_plain_objects_needs_no_model() -> None:
    program = """
import coldframe
try:
    coldframe.SyncColdframe("http://127.0.0.1:9", "cf_none").health()
except coldframe.errors.Unavailable:
    pass
"""
    assert imported_by(program) == set()


def test_every_model_that_the_sdk_names_is_found() -> None:
    from coldframe.client import models

    assert all(getattr(models, name).__name__ == name for name in models.__all__ if name not in UNIONS)
    assert models.CommandEvent
    with pytest.raises(AttributeError):
        models.Nothing  # noqa: B018


def test_the_types_that_the_sdk_announces_can_be_read_by_programs() -> None:
    from coldframe.client import api, models, sandbox, sync

    for module in (api, sandbox, sync):
        for kind in [found for found in vars(module).values() if getattr(found, "__module__", "") == module.__name__]:
            for name, function in vars(kind).items():
                if isinstance(function, FunctionType):
                    assert typing.get_type_hints(function) is not None, name
    assert typing.get_type_hints(sync.SyncSandbox.run_command)["return"] is models.CommandAnswer
    assert typing.get_type_hints(sync.Agents.list)["return"] == list[models.AgentInfo]


def test_what_starts_the_processes_needs_none_of_their_code() -> None:
    assert imported_by("import coldframe.assembly") == {"pydantic", "pydantic_core"}


def test_the_server_starts_without_what_a_running_one_seldom_needs() -> None:
    seldom = {"alembic", "coldframe.host.machine", "pydantic.v1", "schemathesis"}
    assert loaded_by("from coldframe import assembly\nassembly._load_server()") & seldom == set()


def test_the_daemon_starts_without_anything_of_the_server() -> None:
    of_the_server = SERVERS - {"asyncio", "bashkit", "coldframe.host", "re2", "yaml"}
    assert imported_by("import coldframe.host.daemon") & of_the_server == set()
