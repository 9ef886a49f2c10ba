"""The promises that `coldframe doctor` tries from inside a throw-away box on the user's own machine.

Each trial is a line for bash that says `BREACH` and what it could do, and `HELD` when it has tried everything; or it
runs into a limit, and must be ended by that one and no other, on a slow machine too: what takes memory takes little CPU
time, and only the trial of CPU time has a tight limit of it. They are few, harmless where a wall is missing, and
need only bash and coreutils. The attacks proper are the test suite's, which wants a machine that can be thrown away.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from coldframe.contract.command import CommandResult, CommandSpec, Ended, OutputChunk
from coldframe.contract.errors import ColdframeError
from coldframe.contract.isolation import Trial
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import Limits

LIMITS = Limits(wall_s=60, cpu_s=60, memory_mib=96, disk_mib=64, pids=48, output_mib=1, io_mib_s=1024)
"""Of the box that is tried: small, so that meeting them costs little; but of CPU time so much that none is met by it, and of disk
bandwidth so much that nothing is slowed: that one is there to be reported."""
PATIENCE_S = 90.0
_MOST_OUTPUT_BYTES = 64 * 1024


class _Attempt(NamedTuple):
    name: str
    promise: str
    line: str
    limit: str | None = None
    """Kind of the limit that must end it."""
    timeout_s: float = 60.0
    cpu_s: float | None = None
    """Its own, if not that of the box."""


WALLS = (
    _Attempt(
        "host_files_unwritable",
        "nothing outside the workspace and private memory can be written",
        'for path in / /usr /usr/bin /etc /opt /home /var /sys /boot /root /lib; do (: > "$path/.coldframe-trial") '
        '2>/dev/null && { rm -f "$path/.coldframe-trial"; echo "BREACH wrote $path"; }; done; '
        '(echo x >> "$HOME/.exec_history") 2>/dev/null && echo "BREACH wrote the history"; echo HELD',
    ),
    _Attempt(
        "host_files_unreadable",
        "files of the host's users, its secrets and other workspaces are not there",
        "for path in /etc/shadow /etc/ssh /root/.ssh /root/.bash_history /var/lib /var/run/docker.sock /sys/class; do "
        '[ -e "$path" ] && echo "BREACH sees $path"; done; '
        'for path in /home/*; do [ "$path" = "$HOME" ] || echo "BREACH sees $path"; done; echo HELD',
    ),
    _Attempt(
        "host_processes_unseen",
        "no process of the host or of another sandbox is visible",
        'for pid in /proc/[0-9]*; do read -r name < "$pid/comm" 2>/dev/null || continue; '
        'case "$name" in sleep|bash|sh|env) ;; *) echo "BREACH sees $name";; esac; done; echo HELD',
    ),
    _Attempt(
        "no_way_out",
        "no address outside can be reached",
        "for address in 203.0.113.9/443 192.0.2.1/80 169.254.169.254/80; do "
        '(exec 3<>"/dev/tcp/$address") 2>/dev/null && echo "BREACH reached $address"; done; echo HELD',
    ),
    _Attempt(
        "no_rights",
        "no capability, no new privileges, and a system call filter on every process",
        'while read -r key value; do case "$key" in Cap*:) [ "$((16#$value))" = 0 ] || echo "BREACH $key $value";; '
        'NoNewPrivs:) [ "$value" = 1 ] || echo "BREACH $key $value";; '
        'Seccomp:) [ "$value" = 2 ] || echo "BREACH $key $value";; esac; done < /proc/self/status; echo HELD',
    ),
    _Attempt(
        "no_new_namespaces",
        "no user namespace and no mount can be made",
        "unshare --user true 2>/dev/null && echo BREACH made a user namespace; "
        "mount -t tmpfs none /tmp 2>/dev/null && echo BREACH mounted; "
        "mknod /tmp/device b 7 0 2>/dev/null && echo BREACH made a device; echo HELD",
    ),
    _Attempt(
        "kernel_settings_unwritable",
        "no setting of the kernel can be changed",
        "for path in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sysrq-trigger; do "
        '[ -w "$path" ] && (: >> "$path") 2>/dev/null && [ "${path%trigger}" = "$path" ] && echo "BREACH $path"; done; '
        "echo HELD",
    ),
    _Attempt(
        "limit_pids",
        "no more processes than allowed can be started",
        # No program is started to look with: there is no process left to start.
        "mkfifo /tmp/wait; exec 9<>/tmp/wait; { seq 200 | xargs -P 200 -n 1 sleep 60; } >/dev/null 2>&1 & "
        'for turn in {1..40}; do read -r -t 0.5 -u 9; set -- /proc/[0-9]*; [ $# = "$last" ] && break; last=$#; done; '
        '[ $# -le 60 ] || echo "BREACH started $# processes"; echo HELD',
    ),
)
WAY_OUT = (
    _Attempt(
        "broker_denies",
        "from a box with a way out, what no rule allows is denied, and only connections and look-ups are taken",
        'for address in 203.0.113.9/443 192.0.2.1/80 169.254.169.254/80 "[2001:db8::1]/443"; do '
        '(exec 3<>"/dev/tcp/${address//[][]/}" && printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3 && read -r -t 10 -n 1 -u 3) '
        '2>/dev/null && echo "BREACH was answered by $address"; done; '
        # Without nftables the first one is answered only after it was sent.
        "(exec 3>/dev/udp/203.0.113.9/9 && echo x >&3 && echo x >&3) 2>/dev/null && echo BREACH sent a datagram; "
        "(exec 3<>/dev/tcp/coldframe.example.org/443) 2>/dev/null && echo BREACH a name was known; echo HELD",
    ),
)
"""Of a box with a way out, for which no rule allows anything."""
LIMITED = (
    _Attempt("limit_wall", "a command over its time is ended", "sleep 60", limit="wall", timeout_s=1.0),
    _Attempt(
        "limit_cpu",
        "a command over its CPU time is ended",
        "for n in 1 2 3 4; do (while :; do :; done) & done; wait",
        limit="cpu",
        cpu_s=1.0,
    ),
    _Attempt("limit_output", "a command that writes too much is ended", "yes", limit="output"),
    _Attempt(
        "limit_memory",
        "a command over its memory is ended",
        # One read of all of it, and held: memory that no controller counts is looked at now and then.
        "dd if=/dev/zero bs=160M count=1 status=none | { read -r -d '' && sleep 20; }",
        limit="memory",
    ),
    _Attempt(
        "limit_disk",
        "a command that fills the workspace is ended",
        "n=0; while :; do n=$((n + 1)); head -c 8M /dev/zero > fill$n || exit; done",
        limit="disk",
    ),
)


async def try_promises(box: Box) -> tuple[Trial, ...]:
    """Run every trial in *box*, which was built with LIMITS. About 4 s; a trial that cannot run has not held."""
    return tuple([await _try(box, one) for one in (*WALLS, *LIMITED)])  # one by one: each looks at all processes


async def try_way_out(box: Box) -> tuple[Trial, ...]:
    """The same in a box with a way out that no rule opens."""
    return tuple([await _try(box, one) for one in WAY_OUT])


async def _try(box: Box, attempt: _Attempt) -> Trial:
    written = bytearray()
    result: CommandResult | None = None
    spec = CommandSpec(
        command_id=f"trial-{attempt.name}",
        shell=attempt.line,
        timeout_s=attempt.timeout_s,
        cpu_s=attempt.cpu_s,
        leftovers="end",
        track_files=False,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for event in box.run(spec):
                if isinstance(event, OutputChunk) and len(written) < _MOST_OUTPUT_BYTES:
                    written += event.data
                elif isinstance(event, Ended):
                    result = event.result
    except (ColdframeError, TimeoutError) as error:
        return _told(attempt, held=False, seen=f"could not be tried: {error or 'no end in time'}")
    if result is None:
        return _told(attempt, held=False, seen="could not be tried: no end was told")
    met = "no limit" if result.limit is None else f"the limit `{result.limit.kind}`"
    if attempt.limit is not None:
        return _told(attempt, held=met == f"the limit `{attempt.limit}`", seen=f"ended by {met}")
    lines = written.decode("utf-8", "replace").splitlines()
    breaches = [line for line in lines if line.startswith("BREACH")]
    return _told(
        attempt,
        held=not breaches and "HELD" in lines,
        seen=_shown(breaches) or ("tried" if "HELD" in lines else f"no answer; ended by {met}"),
    )


def _shown(breaches: Iterable[str]) -> str:
    return "; ".join(line.removeprefix("BREACH ") for line in breaches)[:500]


def _told(attempt: _Attempt, *, held: bool, seen: str) -> Trial:
    return Trial(name=attempt.name, promise=attempt.promise, held=held, seen=seen)
