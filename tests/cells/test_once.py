"""Code that is run once: files in, a chart, a table or files out, and nothing left but what is on record."""

import csv
import hashlib
import io
import json
import os
import subprocess
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import InputChanged, NotFound
from coldframe.host import interpreter
from tests.installation import Installation, wait_until

CATEGORIES = ("billing", "bug", "feature", "login", "other", "praise", "shipping")


def tickets(rows: int = 700) -> bytes:
    """Tickets of seven categories; how many of each follows from its place."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "category", "hours"])
    for number in range(rows):
        place = (number * number) % len(CATEGORIES)
        writer.writerow([number, CATEGORIES[place], number % 24])
    return text.getvalue().encode()


ANALYSIS = """
import pandas as pd
import matplotlib.pyplot as plt

tickets = pd.read_csv("inputs/tickets.csv")
by_category = tickets.groupby("category", as_index=False).agg(tickets=("id", "count"), hours=("hours", "sum"))
by_category.to_csv("by_category.csv", index=False, lineterminator="\\n")
figure, axes = plt.subplots(figsize=(6, 5), dpi=100)
axes.bar(by_category["category"], by_category["tickets"])
axes.set_title("Tickets by category")
plt.savefig("chart.png", metadata={"Software": None})
plt.show()
by_category
"""


def expected_table(content: bytes) -> dict[str, int]:
    counts = dict.fromkeys(CATEGORIES, 0)
    for row in csv.DictReader(io.StringIO(content.decode())):
        counts[row["category"]] += 1
    return {name: count for name, count in counts.items() if count}


@pytest.mark.req("T3.19", "T4.07", "T4.10")
def test_a_table_goes_in_and_a_chart_a_table_and_a_file_come_out(client: SyncColdframe) -> None:
    content = tickets()
    done = client.execute_once(ANALYSIS, {"tickets.csv": content}, outputs=("by_category.csv", "chart.png"))
    assert done.outcome.status == "ok", done.outcome.error
    chart, table = done.outcome.results
    expected = expected_table(content)
    assert dict(zip(table.data["e2b/data"]["category"], table.data["e2b/data"]["tickets"], strict=True)) == expected
    assert [bar["value"] for bar in chart.data["e2b/chart"]["elements"]] == list(expected.values())
    outputs = {one.path: one for one in done.outputs}
    png = outputs["chart.png"].content
    assert png.startswith(b"\x89PNG") and _size_of(png) == (600, 500)
    rows = list(csv.DictReader(io.StringIO(outputs["by_category.csv"].content.decode())))
    assert {row["category"]: int(row["tickets"]) for row in rows} == expected
    assert outputs["by_category.csv"].sha256 == hashlib.sha256(outputs["by_category.csv"].content).hexdigest()
    assert [(one.path, one.sha256) for one in done.inputs] == [
        ("inputs/tickets.csv", hashlib.sha256(content).hexdigest())
    ]


def _size_of(png: bytes) -> tuple[int, int]:
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


@pytest.mark.req("T4.06", "T4.10")
def test_nothing_is_left_of_a_run_but_its_record(client: SyncColdframe, installation: Installation) -> None:
    done = client.execute_once("open('left.txt', 'w').write('x')\n1 + 1")
    assert done.outcome.results[0].text == "2"
    info = client.sandboxes.get(done.sandbox_id).info
    assert info.state.state == "terminated"
    assert not os.path.exists(os.path.join(installation.data_dir, "background", info.session_id))
    assert done.receipt_id is not None
    receipt = client.receipt(done.receipt_id)
    assert receipt["tool"] == "run_code"
    kinds = [entry.kind for entry in client.ledger.entries(sandbox_id=done.sandbox_id)]
    assert not {"snapshot.taken", "preview.opened", "volume.attached"} & set(kinds)


@pytest.mark.req("T4.06")
def test_a_run_has_no_way_out_and_no_secret(client: SyncColdframe) -> None:
    code = (
        "import os, socket\n"
        "try:\n    socket.create_connection(('192.0.2.1', 80), timeout=2); reached = True\n"
        "except OSError:\n    reached = False\n"
        "{'reached': reached, 'listening': sum(' 0A ' in line for line in open('/proc/net/tcp')),\n"
        " 'secrets': [name for name in os.environ if 'TOKEN' in name or 'KEY' in name]}"
    )
    done = client.execute_once(code)
    (result,) = done.outcome.results
    assert result.data["application/json"] == {"reached": False, "listening": 0, "secrets": []}


@pytest.mark.req("T4.10")
def test_every_package_of_the_published_list_can_be_imported(client: SyncColdframe) -> None:
    listed = interpreter.listing()
    assert listed is not None
    assert len(listed["sha256"]) == 64
    code = (
        "import importlib, importlib.metadata, warnings\n"
        "warnings.simplefilter('ignore')\n"
        f"listed = {[(one['name'], one['version']) for one in listed['packages']]!r}\n"
        "found, broken = {}, []\n"
        "for name, version in listed:\n"
        "    one = importlib.metadata.distribution(name)\n"
        "    found[name] = one.version\n"
        "    tops = {str(file).split('/')[0] for file in one.files or ()}\n"
        "    for top in sorted(tops):\n"
        "        module = top.removesuffix('.py')\n"
        "        if module.isidentifier() and not module.startswith('_') and (top.endswith('.py') or module == top):\n"
        "            try:\n                importlib.import_module(module)\n"
        "            except ImportError as error:\n                broken.append((module, str(error)))\n"
        "{'same': found == dict(listed), 'broken': broken}"
    )
    done = client.execute_once(code)
    assert done.outcome.error is None, done.outcome.error
    (result,) = done.outcome.results
    left_out = {name.removesuffix(".py") for name in interpreter.LEFT_OUT}
    broken = [one for one in result.data["application/json"]["broken"] if one[0] not in left_out]
    assert result.data["application/json"]["same"] and not broken


def test_inputs_are_read_only_and_outputs_that_are_missing_are_named(client: SyncColdframe) -> None:
    code = "import os\noct(os.stat('inputs/a.txt').st_mode & 0o777)"
    done = client.execute_once(code, {"a.txt": b"x"}, outputs=("none.csv",))
    assert done.outcome.results[0].text == "'0o444'"
    assert done.missing == ("none.csv",)


@pytest.mark.req("T3.49")
def test_of_a_run_that_is_to_be_kept_inputs_and_outputs_stay_and_it_repeats_on_the_same_alone(
    client: SyncColdframe, installation: Installation
) -> None:
    content = tickets()
    first = client.execute_once(
        ANALYSIS,
        {"tickets.csv": content},
        outputs=("by_category.csv",),
        keep="io",
        source={"tickets.csv": "https://example.invalid/tickets.csv"},
    )
    record = client.once(first.once_id)
    assert [(one.path, one.source) for one in record.inputs] == [
        ("inputs/tickets.csv", "https://example.invalid/tickets.csv")
    ]
    (kept,) = record.outputs
    assert client.once_output(first.once_id, kept.path) == first.outputs[0].content
    folder = Path(installation.data_dir, "control", "once", first.once_id)
    assert sum(file.stat().st_size for file in folder.iterdir()) == kept.bytes
    again = client.execute_once(
        ANALYSIS, {"tickets.csv": content}, outputs=("by_category.csv",), keep="io", again=first.once_id
    )
    assert again.outputs[0].sha256 == kept.sha256
    before = {one.id for one in client.sandboxes.list()}
    with pytest.raises(InputChanged) as refused:
        client.execute_once(ANALYSIS, {"tickets.csv": content + b"700,bug,1\n"}, again=first.once_id)
    assert refused.value.facts["changed"] == ["inputs/tickets.csv"]
    assert {one.id for one in client.sandboxes.list()} == before
    for done in (first, again):
        client.forget_once(done.once_id)
    assert not folder.exists()
    with pytest.raises(NotFound):
        client.once_output(first.once_id, kept.path)


@pytest.mark.req("T4.07")
def test_the_command_line_runs_a_file_on_a_table_and_saves_what_it_makes(
    installation: Installation, tmp_path: Path
) -> None:
    (tmp_path / "tickets.csv").write_bytes(tickets())
    (tmp_path / "analysis.py").write_text(ANALYSIS)
    line = installation.line("run-code", "analysis.py", "--file", "tickets.csv", "-o", "*.csv", "--save", str(tmp_path))
    done = subprocess.run(line, cwd=tmp_path, env=installation.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "by_category.csv").read_text().startswith("category,tickets,hours\n")
    (chart,) = tmp_path.glob("cell_*.png")
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert "billing" in done.stdout
    line = installation.line("--json", "run-code", "-", "--file", "tickets.csv")
    done = subprocess.run(
        line,
        cwd=tmp_path,
        env=installation.environment,
        input="1/0",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"]["error"]["name"] == "ZeroDivisionError"


def test_the_sandbox_of_a_run_whose_caller_leaves_is_gone(client: SyncColdframe, installation: Installation) -> None:
    before = {one.id for one in client.sandboxes.list()}
    (folder := Path(installation.home) / "once").mkdir(exist_ok=True)
    (folder / "slow.py").write_text("import time\ntime.sleep(600)")
    line = installation.line("run-code", "slow.py")
    running = subprocess.Popen(
        line, cwd=folder, env=installation.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def made() -> str | None:
        new = [one for one in client.sandboxes.list() if one.id not in before and one.info.state.state == "running"]
        return new[0].id if new else None

    try:
        sandbox_id = wait_until(made, "the sandbox runs")
    finally:
        running.terminate()
        running.wait()
    wait_until(
        lambda: client.sandboxes.get(sandbox_id).info.state.state == "terminated",
        "the sandbox is gone",
        timeout_s=30,
    )
