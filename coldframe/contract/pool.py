"""Boxes that stand ready for the next sandboxes, as an operator sees them."""

from coldframe.contract.model import Model


class PoolStatus(Model):
    size: int
    """Most boxes that wait, as `ready_boxes` has it; 0 for none ever."""
    ready: int
    """Boxes that wait now. They are no sandboxes: in no list, and not counted against `max_running`."""
    used: int
    """Sandboxes that got such a box, since the host daemon started."""
    memory_bytes: int
    """What their processes hold: their share of what is shared where that can be read, all of it where not."""
    refused: str | None = None
    """Why there are none on this machine although there should be. Sandboxes are built when they are asked for then."""
