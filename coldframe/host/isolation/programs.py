"""Leave a box only the programs that it may start: a restriction of runtimes that holds against what runs inside.

Nothing is taken away by name. The box's /usr is covered by an empty file system that holds the allowed runtimes'
libraries and nothing else, and every other mount becomes noexec, so that no file that is written, copied or handed
in can be started, or mapped as code by the loader that stays. (The loader has to: the kernel opens it to start any
dynamic program.) Files in memory are the one place left, and the filter `no-native` refuses to make them.

Done inside the box while it is privileged, after bubblewrap has built it as always: its first process then runs from
a file that nobody else can start.

What this does not hold: a runtime that is told to load machine code into itself (`deno run --allow-ffi`) runs it in
its own process. It stays behind the walls of the box like everything else.
"""

import os
import re

from coldframe.host import confine

STAGE = "/tmp/.programs"
"""Inside the box, before any of its commands."""
_OCTAL = re.compile(r"\\([0-7]{3})")
_LOADED = re.compile(r"(/\S+) \(0x[0-9a-f]+\)$")
_FLAGS = {
    "ro": confine.MS_RDONLY,
    "nosuid": confine.MS_NOSUID,
    "nodev": confine.MS_NODEV,
}


def files_of(listing: str) -> list[str]:
    """The files that `ldd` names: libraries and the loader."""
    found = (_LOADED.search(line.strip()) for line in listing.splitlines())
    return [match.group(1) for match in found if match is not None]


def mount_points() -> dict[str, set[str]]:
    """Where something is mounted in the box, with the flags of the uppermost mount. Asked of its first process."""
    found = {}
    with open("/proc/1/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split()
            found[unescape(fields[4])] = set(fields[5].split(","))
    return found


def unescape(target: str) -> str:
    """A path as the table of mounts writes it."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), target)


def leave_only(programs: list[str], libraries: list[str], mounted: dict[str, set[str]]) -> None:
    """Cover everything but `programs` (mounts of their own) and `libraries`, as the box sees them.

    `mounted`: the mount points of the box before this.

    Raises ConfineError, and OSError, for what does not take; the box must end then.
    """
    os.mkdir(STAGE, 0o755)
    confine.mount("programs", STAGE, "tmpfs", confine.MS_NOSUID | confine.MS_NODEV, "mode=0755,size=1m,nr_inodes=256")
    for library in libraries:
        place = os.path.join(os.path.realpath(os.path.dirname(library)), os.path.basename(library))
        if not place.startswith("/usr/"):
            raise confine.ConfineError("restrict the programs", f"`{place}` is not below /usr")
        target = STAGE + place.removeprefix("/usr")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o555))
        confine.bind(library, target)
        confine.remount(target, confine.MS_RDONLY | confine.MS_NOSUID | confine.MS_NODEV)
    confine.remount(STAGE, confine.MS_RDONLY | confine.MS_NOSUID | confine.MS_NODEV | confine.MS_NOEXEC)
    confine.bind(STAGE, "/usr", recursive=True)
    confine.detach(STAGE)
    os.rmdir(STAGE)
    for target, held in mounted.items():
        # What was mounted below /usr is covered now, and cannot be reached.
        if target in programs or target.startswith("/usr") or "noexec" in held:
            continue
        flags = confine.MS_NOEXEC
        for name, flag in _FLAGS.items():
            flags |= flag if name in held else 0
        confine.remount(target, flags)
