"""Commands that take all they can get of one thing, and boxes in which each meets its own limit and no other.

A limit is only seen to be met if no other can be met before it, on a machine that is many times slower too. So none of
them costs CPU time but the one that is about CPU time, which has a box of its own.
"""

from coldframe.contract.sandbox import Limits

LIMITS = Limits(memory_mib=96, disk_mib=64, pids=40, output_mib=1)
"""For all but `cpu`: the costliest takes a tenth of a second of the 300 that there are by default."""
BRIEF = LIMITS.model_copy(update={"cpu_s": 1.0})
"""For `cpu`."""
PATIENCE_S = 100.0
"""Longest wall time of each; those that hold something give up after half of it."""
GREEDY = {
    # Several at once, which wait less for processors that others use too.
    "cpu": "for n in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait",
    # One read of all of it; held until the reader goes, and the reader goes as soon as it is killed.
    "memory": "dd if=/dev/zero bs=160M count=1 status=none | { read -r -d '' && sleep 50; }",
    "disk": "n=0; while :; do n=$((n + 1)); head -c 8M /dev/zero > fill$n || exit; done",
    "output": "yes 'a line of a log that never ends'",
}
"""By the kind of limit."""
