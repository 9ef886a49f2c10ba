"""A real bubblewrap box for tests of what joins and measures one; no keeper, no product code but the filter."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from coldframe.host import confine, seccomp

BWRAP = "/usr/bin/bwrap"
NOBODY = 65534


def become_ordinary() -> None:
    """In a child: no right left, as on a laptop without root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


@contextmanager
def bare_box(*extra: str, filtered: bool = True) -> Iterator[int]:
    """The pid of the first process of a box, as the caller's pid namespace numbers it. Never of host uid 0."""
    info_read, info_write = os.pipe()
    ready_read, ready_write = os.pipe()
    program = os.memfd_create("filter")
    os.write(program, seccomp.build_filter())
    os.lseek(program, 0, os.SEEK_SET)
    line = [BWRAP, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    line += ["--uid", "1000", "--gid", "1000", "--clearenv", "--new-session", "--die-with-parent", "--as-pid-1"]
    line += ["--info-fd", str(info_write), "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"]
    line += ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev"]
    line += ["--tmpfs", "/tmp", *(["--seccomp", str(program)] if filtered else [])]
    line += ["--remount-ro", "/dev", *(extra or ("--remount-ro", "/"))]
    line += ["/bin/sh", "-c", "echo ready; exec >&-; while :; do sleep 1000000 & wait; done"]
    ordinary = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    process = subprocess.Popen(line, env={}, stdout=ready_write, pass_fds=(info_write, program), **ordinary)
    for descriptor in (info_write, ready_write, program):
        os.close(descriptor)
    try:
        with os.fdopen(ready_read) as ready, os.fdopen(info_read) as info:
            assert ready.readline() == "ready\n"
            first = json.load(info)["child-pid"]
        yield first
    finally:
        process.kill()
        process.wait(10)


def give_up_all_rights() -> None:
    """What the keeper does after its join."""
    confine.drop_all_capabilities()
    confine.set_no_new_privs()
    seccomp.load_filter(seccomp.build_filter())
    confine.set_not_dumpable()
