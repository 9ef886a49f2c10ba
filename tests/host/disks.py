"""Whether this machine can give workspaces a disk of their own, found out by making one."""

import os
import shutil
import tempfile
from functools import cache

import pytest

from coldframe.contract.errors import IsolationUnavailable
from coldframe.host import loop_mounts
from coldframe.host.disk_images import DiskImages

LOOPS = "/sys/block"


@cache
def missing() -> str | None:
    """Why it cannot; None if it can."""
    folder = tempfile.mkdtemp(prefix="cf-disk-", dir="/tmp")
    try:
        os.mkdir(os.path.join(folder, "workspace"))
        images = DiskImages(folder)
        images.make("workspace/trial", 16, 65_533, lambda _: None)
        images.remove("workspace/trial")
    except IsolationUnavailable as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


@pytest.fixture
def needs_disks() -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


def unmount_all(folder: str) -> None:
    """What a test that failed has left mounted below *folder*."""
    for trace in traces(folder):
        place = trace.split()[4] if " - ext4 " in trace else ""
        if place.startswith(f"{folder}/"):
            loop_mounts.unmount(place, lazy=True)


def traces(folder: str) -> list[str]:
    """Mounts and loop devices of the whole machine that have to do with *folder*."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        found = [line.strip() for line in mounts if folder in line]
    for name in os.listdir(LOOPS):
        try:
            with open(f"{LOOPS}/{name}/loop/backing_file", encoding="utf-8", errors="surrogateescape") as source:
                behind = source.read().strip()
        except OSError:
            continue
        if folder in behind:
            found.append(f"{name}: {behind}")
    return found
