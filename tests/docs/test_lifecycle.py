"""What docs/lifecycle.md says of states and of what survives is what the code has."""

import re

from coldframe.contract.persistence import EVENTS, ITEMS, fate
from coldframe.contract.sandbox import TRANSITIONS
from tests.installation import CHECKOUT

PAGE = (CHECKOUT / "docs" / "lifecycle.md").read_text(encoding="utf-8")


def rows(first: str) -> dict[str, list[str]]:
    """Of the table whose head begins with *first*, by the name in the first cell."""
    table = PAGE[PAGE.index(f"| {first} |") :].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {re.findall("`(.+?)`", cell[0])[0]: cell[1:] for cell in cells}


def test_every_state_is_there_with_all_its_ways() -> None:
    ways = {state: set(re.findall("`(.+?)`", cells[-1])) for state, cells in rows("state").items()}
    assert ways == {state: set(after) for state, after in TRANSITIONS.items()}


def test_every_cell_of_what_survives_is_there() -> None:
    told = rows("item")
    assert set(told) == set(ITEMS)
    for item, (whose, _, *fates) in told.items():
        assert (whose, fates) == (ITEMS[item].owner, [fate(item, event, background=False) for event in EVENTS])
