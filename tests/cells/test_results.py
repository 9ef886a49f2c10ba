"""Results keep their type: twelve cells by three ways, with the same types and bytes."""

import base64
import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from e2b_code_interpreter import Sandbox as OfficialSandbox

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.e2b.real import RealEdge
from tests.installation import Installation

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff" + bytes(range(256))).decode()
PDF = base64.b64encode(b"%PDF-1.7\n" + bytes(range(256))).decode()
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("6 * 7", {"text/plain": "42"}),
    "html": ("display({'text/html': '<b>ä</b>'}, raw=True)", {"text/html": "<b>ä</b>"}),
    "markdown": ("display({'text/markdown': '# a'}, raw=True)", {"text/markdown": "# a"}),
    "png": (f"display({{'image/png': '{PNG}'}}, raw=True)", {"image/png": PNG}),
    "jpeg": (f"display({{'image/jpeg': '{JPEG}'}}, raw=True)", {"image/jpeg": JPEG}),
    "svg": ("display({'image/svg+xml': '<svg/>'}, raw=True)", {"image/svg+xml": "<svg/>"}),
    "pdf": (f"display({{'application/pdf': '{PDF}'}}, raw=True)", {"application/pdf": PDF}),
    "latex": (r"display({'text/latex': r'$\frac{1}{2}$'}, raw=True)", {"text/latex": r"$\frac{1}{2}$"}),
    "json": (
        "{'a': [1, 2.5, None, 'x']}",
        {"text/plain": "{'a': [1, 2.5, None, 'x']}", "application/json": {"a": [1, 2.5, None, "x"]}},
    ),
    "data": (
        "import pandas as pd\npd.DataFrame({'n': [1, 2], 's': ['a', 'b']})",
        {"e2b/data": {"n": [1, 2], "s": ["a", "b"]}},
    ),
    "chart": (
        "import matplotlib.pyplot as plt\nplt.bar(['x', 'y'], [3, 4])\nplt.title('two')\nplt.show()",
        {"e2b/chart": None, "image/png": None},
    ),
}
BROKEN = "def inner():\n    return 1 / 0\n\ninner()"
OFFICIAL_NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "e2b/data": "data",
}


class Seen(NamedTuple):
    """One cell by one way."""

    data: dict[str, Any]
    chart: tuple[str, str | None, list[Any]] | None
    """Type, title, and the values of its bars."""
    error: tuple[str, str, str] | None


def by_rest(installation: Installation, sandbox: SyncSandbox, code: str) -> Seen:
    request = urllib.request.Request(
        f"{installation.url}/v1/sandboxes/{sandbox.id}/cells",
        json.dumps({"code": code}).encode(),
        {"Authorization": f"Bearer {installation.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        value = json.load(answer)["value"]
    data = value["results"][0]["data"] if value["results"] else {}
    error = value["error"] and tuple(value["error"][name] for name in ("name", "value", "traceback"))
    return Seen(data, _chart(data.get("e2b/chart")), error)


def by_sdk(sandbox: SyncSandbox, code: str) -> Seen:
    outcome = sandbox.run_code(code)
    data = outcome.results[0].data if outcome.results else {}
    error = outcome.error and (outcome.error.name, outcome.error.value, outcome.error.traceback)
    return Seen(data, _chart(data.get("e2b/chart")), error)


def by_official_sdk(sandbox: OfficialSandbox, code: str) -> Seen:
    execution = sandbox.run_code(code)
    data: dict[str, Any] = {}
    chart = None
    for result in execution.results[:1]:
        data = {kind: result[name] for kind, name in OFFICIAL_NAMES.items() if result[name] is not None}
        if result.chart is not None:
            elements = [element.value for element in result.chart.elements]
            chart = (result.chart.type.value, result.chart.title, elements)
            data["e2b/chart"] = None
    error = execution.error and (execution.error.name, execution.error.value, execution.error.traceback)
    return Seen(data, chart, error)


def _chart(told: dict[str, Any] | None) -> tuple[str, str | None, list[Any]] | None:
    if told is None:
        return None
    return told["type"], told["title"], [element["value"] for element in told["elements"]]


@pytest.fixture(scope="module")
def official(real: RealEdge) -> Iterator[OfficialSandbox]:
    made = OfficialSandbox.create(timeout=300, **real.params)
    yield made
    made.kill(**real.params)


@pytest.fixture(scope="module", params=["rest", "sdk", "official"])
def see(
    request: pytest.FixtureRequest, installation: Installation, box: SyncSandbox, official: OfficialSandbox
) -> Callable[[str], Seen]:
    ways: dict[str, Callable[[str], Seen]] = {
        "rest": lambda code: by_rest(installation, box, code),
        "sdk": lambda code: by_sdk(box, code),
        "official": lambda code: by_official_sdk(official, code),
    }
    return ways[request.param]


@pytest.mark.req("T4.09")
@pytest.mark.parametrize("kind", CELLS)
def test_a_result_has_the_same_types_and_bytes_by_every_way(see: Callable[[str], Seen], kind: str) -> None:
    code, expected = CELLS[kind]
    seen = see(code)
    assert seen.error is None
    for form, value in expected.items():
        assert form in seen.data
        if value is not None:
            assert seen.data[form] == value
    if kind == "chart":
        assert seen.chart == ("bar", "two", [3, 4])
        assert base64.b64decode(seen.data["image/png"]).startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.req("T4.09")
def test_an_error_has_its_whole_traceback_by_every_way(see: Callable[[str], Seen]) -> None:
    name, value, traceback = see(BROKEN).error or ("", "", "")
    assert (name, value) == ("ZeroDivisionError", "division by zero")
    assert "inner()" in traceback and "return 1 / 0" in traceback
    assert "\x1b" not in traceback


@pytest.mark.req("T4.09")
def test_what_is_printed_and_what_is_shown_come_in_their_order(box: SyncSandbox) -> None:
    code = "for n in range(3):\n    print('line', n)\n    display({'text/plain': f'shown {n}'}, raw=True)\n'value'"
    told = []
    for event in box.code_events(code):
        if getattr(event, "event", None) == "stdout":
            told.append(event.text.strip())
        elif getattr(event, "event", None) == "result":
            told.append(event.data["text/plain"])
    assert told == ["line 0", "shown 0", "line 1", "shown 1", "line 2", "shown 2", "'value'"]


@pytest.mark.req("T4.09")
def test_a_result_of_a_hundred_megabytes_is_a_file_with_a_notice(box: SyncSandbox) -> None:
    code = (
        "import base64\n"
        "display({'image/png': base64.b64encode(b'0' * 75_000_000).decode(), 'text/plain': 'large'}, raw=True)"
    )
    outcome = box.run_code(code)
    (result,) = outcome.results
    assert result.data == {"text/plain": "large"}
    artifact = result.artifacts["image/png"]
    assert artifact.bytes == 75_000_000 and artifact.path is not None
    assert box.read_file(artifact.path, length=10).data == b"0" * 10
    assert box.read_file(artifact.path, length=0).total_bytes == artifact.bytes


@pytest.mark.req("T4.09")
def test_a_long_text_is_cut_and_says_how_long_it_is(box: SyncSandbox) -> None:
    (result,) = box.run_code("'x' * 3_000_000").results
    assert result.clipped["text/plain"] == 3_000_002
    assert len(result.text or "") == 20_000
    assert result.artifacts["text/plain"].bytes == 3_000_002


@pytest.mark.req("T4.09")
@pytest.mark.parametrize(
    ("language", "code", "text"),
    [("javascript", "[1, 2].map((n) => n * 2)", "[ 2, 4 ]"), ("typescript", "const n: number = 3; n", "3")],
)
def test_other_languages_show_values_too(
    client: SyncColdframe, box: SyncSandbox, language: str, code: str, text: str
) -> None:
    outcome = box.run_code(code, language=language)
    assert outcome.error is None
    assert outcome.text == text


@pytest.mark.req("T4.09")
def test_bash_tells_output_by_stream_and_the_exit_code(box: SyncSandbox) -> None:
    outcome = box.run_code("echo out; echo err >&2; (exit 3)", language="bash")
    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == ("out\n", "err\n", 3)
