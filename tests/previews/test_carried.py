"""Whatever the web is made of comes through a preview as it comes from the server itself."""

import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation
from tests.previews import carried
from tests.previews.visiting import Visitor, serve

PROGRAM = Path(carried.__file__).read_text(encoding="utf-8")
SLOW = bool(os.environ.get("COLDFRAME_SLOW"))
LARGE_BYTES = 1 << 30 if SLOW else 8 << 20
MOST_LATE_MS = 200
MOST_ADDED_MS = 5


@pytest.fixture(scope="module")
def beside(installation: Installation) -> Iterator[tuple[SyncSandbox, Visitor]]:
    """A sandbox with the server of `app.py`, which is asked from within as well."""
    with (
        SyncColdframe(installation.url, installation.token) as client,
        client.sandboxes.create(agent_id="carried") as sandbox,
    ):
        yield sandbox, Visitor(serve(client, sandbox, carried.APP_PORT))


@pytest.mark.req("T4.44")
def test_eleven_kinds_of_traffic_are_the_same_through_a_preview_as_without_it(
    beside: tuple[SyncSandbox, Visitor],
) -> None:
    sandbox, visitor = beside
    sandbox.write_file("carried.py", PROGRAM)
    words = ["python3", "carried.py", str(carried.APP_PORT), f"localhost:{carried.APP_PORT}", str(LARGE_BYTES)]
    done = sandbox.run_command(words)
    assert done.exit_code == 0, done.stderr
    direct = json.loads(str(done.stdout))
    through = carried.observe(visitor.port, visitor.host, visitor.own, LARGE_BYTES)
    assert len(direct) == 11
    assert {name: through[name] for name in direct} == direct
    # and that what is the same is what was meant
    assert direct["large bodies"] == {"up": [LARGE_BYTES, True], "down": [LARGE_BYTES, True]}
    assert direct["events"]["first"] == "data: one\n\n"
    assert direct["long poll"] == {"asked": "asked", "told": ["something has happened"]}
    assert direct["host check"]["status"] == 200
    assert [status for _, status in direct["absolute links"]["links"]] == [200, 200, 200]
    assert direct["redirect"]["found"][0] == [302, "(here)/a?b=c"]
    assert direct["web socket"] == {
        "status": "http/1.1 101",
        "accept": direct["web socket"]["accept"],
        "said": "rELOAD",
    }


@pytest.mark.req("T4.44")
def test_events_are_there_at_once_and_requests_take_hardly_longer(beside: tuple[SyncSandbox, Visitor]) -> None:
    """By medians, which hold on a busy machine too."""
    sandbox, visitor = beside
    asker = carried.Asker(visitor.port, visitor.host, visitor.own)
    assert statistics.median(asker.ticks_ms(50)) <= MOST_LATE_MS
    sandbox.write_file("carried.py", PROGRAM)
    words = ["python3", "carried.py", str(carried.APP_PORT), f"localhost:{carried.APP_PORT}", "requests"]
    direct = statistics.median(json.loads(str(sandbox.run_command(words).stdout)))
    assert statistics.median(asker.requests_ms(100)) - direct <= MOST_ADDED_MS
