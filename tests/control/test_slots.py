"""Who lines up by the hundred holds up nobody but themselves."""

import asyncio

import pytest

from coldframe.contract.errors import TooManySandboxes
from coldframe.control.slots import MOST_WAITING_OF_ONE, Slots


@pytest.mark.req("T3.60")
def test_whoever_has_fewest_boxes_comes_first_and_then_who_waited_longest() -> None:
    async def scenario() -> None:
        slots, came = Slots(2), list[str]()
        for name in ("red-0", "red-1"):
            slots.take(name, "red")
        for number in range(2, 2 + MOST_WAITING_OF_ONE):
            slots.queue(f"red-{number}", "red")
        with pytest.raises(TooManySandboxes):
            slots.queue("red-more", "red")
        for name in ("blue-0", "blue-1"):
            slots.queue(name, "blue")
        with pytest.raises(TooManySandboxes):
            slots.take("green-0", "green")  # nobody passes those that wait

        async def wait(name: str) -> None:
            assert await slots.turn(name, 60)
            came.append(name)

        waiting = [asyncio.ensure_future(wait(name)) for name in ("red-2", "red-3", "red-4", "blue-0", "blue-1")]
        await asyncio.sleep(0)
        for ended in ("red-0", "red-1", "blue-0", "red-2"):
            slots.release(ended)
            for _ in range(5):
                await asyncio.sleep(0)
        assert came == ["blue-0", "red-2", "blue-1", "red-3"]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(scenario())
