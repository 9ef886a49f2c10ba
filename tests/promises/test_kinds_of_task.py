"""Three kinds of task are served by three profiles: a programming assistant, an application that is shown, a result from data."""

import csv
import io

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import InstallNotInProfile, NotInProfile
from coldframe.host import interpreter
from tests.installation import Installation
from tests.previews.visiting import Visitor
from tests.promises.test_profiles import taken

needs_kernels = pytest.mark.skipif(
    interpreter.listing() is None, reason="no packages for code cells: run `coldframe code install`"
)
CATEGORIES = ("billing", "login", "déménagement", "delivery", "returns", "other", "praise")
ANALYSIS = """
import matplotlib.pyplot as plt
import pandas as pd
tickets = pd.read_csv('tickets.csv')
grouped = tickets.groupby('category').minutes.sum().sort_index()
grouped.to_csv('by_category.csv')
grouped.plot.bar()
plt.show()
grouped.to_frame()
"""


def tickets() -> tuple[bytes, dict[str, int]]:
    text, sums = io.StringIO(), dict.fromkeys(CATEGORIES, 0)
    writer = csv.writer(text)
    writer.writerow(("ticket", "category", "minutes"))
    for number in range(700):
        category = CATEGORIES[number % len(CATEGORIES)]
        writer.writerow((number, category, number % 60))
        sums[category] += number % 60
    return text.getvalue().encode(), sums


@needs_kernels
@pytest.mark.req("T3.57")
def test_a_data_agent_gets_chart_table_and_file_and_no_shell(client: SyncColdframe) -> None:
    content, sums = tickets()
    with client.sandboxes.create(profile="interpreter") as sandbox:
        sandbox.upload("tickets.csv", content)
        outcome = sandbox.run_code(ANALYSIS)
        assert outcome.error is None, outcome.error
        kinds = {kind for one in outcome.results for kind in one.data}
        assert {"image/png", "text/html"} <= kinds
        rows = list(csv.reader(io.StringIO(sandbox.read_file("by_category.csv").data.decode())))
        assert {name: int(total) for name, total in rows[1:]} == sums
        for command in ("true", ["true"]):
            with pytest.raises(NotInProfile):
                sandbox.run_command(command)
        with pytest.raises(NotInProfile):
            sandbox.run_code("echo x", language="bash")
        assert sandbox.promote("sandbox").lost == ()
        assert sandbox.run_code("print(len(tickets))").stdout == "700\n", "variables are kept on the way"
        done = sandbox.promote("workspace", agent_id="data-work")
        assert "`python`" in next(one.what for one in done.lost if one.item == "variables")
        assert sandbox.run_command("wc -l < by_category.csv").stdout == f"{len(CATEGORIES) + 1}\n"


@needs_kernels
@pytest.mark.req("T4.10")
def test_installing_in_a_one_off_run_is_refused_with_the_way_to_more(client: SyncColdframe) -> None:
    before = {one.id for one in client.sandboxes.list(state=["running"])}
    for code in ("!pip install tinychart", "%pip install tinychart", "import os; os.system('pip install tinychart')"):
        with pytest.raises(InstallNotInProfile) as refused:
            client.execute_once(code)
        assert refused.value.facts["profiles"] == ["sandbox", "workspace", "computer"]
        assert refused.value.next_actions[0]["op"] == "sandbox.promote"
    assert {one.id for one in client.sandboxes.list(state=["running"])} <= before


@pytest.mark.req("T3.57")
def test_an_application_builder_has_a_route_that_others_open(client: SyncColdframe, agent_id: str) -> None:
    with client.sandboxes.create(agent_id, profile="workspace") as sandbox:
        sandbox.write_file("index.html", "<p>Total: 120.00</p>")
        serve = ["python3", "-m", "http.server", "8140", "--bind", "127.0.0.1"]
        made = client.previews.create(sandbox.id, 8140, start=serve, record=False)
        answer = Visitor(made).ask("/index.html")
        assert (answer.status, answer.body) == (200, b"<p>Total: 120.00</p>")


@pytest.mark.req("T3.57")
def test_a_programming_assistant_sees_what_changed_between_two_moments(client: SyncColdframe, agent_id: str) -> None:
    with client.sandboxes.create(agent_id) as sandbox:
        sandbox.write_file("total.py", "".join(f"line {number}\n" for number in range(40)))
        before = taken(sandbox).snapshot_id
        sandbox.edit_file_many("total.py", [("line 3\n", "third\n"), ("line 30\n", "thirtieth\n")])
        change = client.snapshots.compare_file(before, sandbox.id, "total.py")
        assert str(change).count("@@") >= 4, "two hunks"


@pytest.mark.req("T3.57")
def test_between_two_receipts_it_sees_each_file_and_each_hunk(
    client: SyncColdframe, agent_id: str, installation: Installation
) -> None:
    with client.sandboxes.create(agent_id) as sandbox:
        first = sandbox.write_file("total.py", "".join(f"line {number}\n" for number in range(40)))
        taken(sandbox)
        sandbox.edit_file_many("total.py", [("line 3\n", "third\n")])
        last = sandbox.run_command("sed -i 's/^line 30$/thirtieth/' total.py; echo new > added.txt")
        before, after = str(first.result.receipt_id), str(last.result.receipt_id)
        told = client.compare_receipts(before, after)
        assert [(one.path, one.change, len(one.receipts)) for one in told.files] == [
            ("added.txt", "added", 1),
            ("total.py", "changed", 2),
        ]
        assert told.complete and told.tree_sha256_before != told.tree_sha256_after
        hunks = client.compare_receipts_file(before, after, "total.py").hunks
        assert [[line for line in one.text.splitlines() if line[0] != " "] for one in hunks] == [
            ["-line 3", "+third"],
            ["-line 30", "+thirtieth"],
        ]
        shown = installation.cli("ledger", "diff", before, after, "--patch").stdout.decode()
        assert "+thirtieth" in shown and "+new" in shown
