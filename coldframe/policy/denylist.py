"""The default deny list: what no agent's command needs, refused before it starts, with a reason.

It is code, in force for everybody, and no configuration reaches it. It is help, not the wall: the box holds no
privilege that these programs could use, whatever the spelling. So entries aim at what is plainly meant and let
`rm -rf ./build` pass; what text cannot decide (`rm -rf "$X"`) is refused in strict mode only.

Emptying one's own home (`rm -rf ~`) is not on the list: it is the agent's workspace, and its own to empty.
"""

from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from coldframe.contract.policy import CommandReading, ProgramCall

HOME = "/home/user"
"""Where the workspace is mounted in every box."""

_SYSTEM = [
    "bin",
    "boot",
    "dev",
    "etc",
    "home",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "media",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "srv",
    "sys",
    "usr",
    "var",
]
"""First components whose removal as a whole is removal of the system. `/tmp` is the agent's own."""


class Finding(NamedTuple):
    """What the list says of one reading."""

    entry: str
    reason: str
    certain: bool
    """False if only the run time would tell."""


Check = Callable[[ProgramCall, str], bool | None]
"""Given a call and the directory it runs in: matches, does not, or None if that is only known at run time."""


class DenyEntry(NamedTuple):
    """One entry. Ids are stable: they stand in ledgers and in rules of other people's tests."""

    id: str
    programs: tuple[str, ...]
    """Names or glob patterns of names."""
    what: str
    """Completes the sentence "`NAME` …"."""
    check: Check | None = None


# --- paths ---


def _absolute(path: str, directory: str) -> str:
    """The path without `.`, `..`, doubled slashes and a home sign."""
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    elif path == "~root" or path.startswith("~root/"):
        path = "/root" + path[5:]
    elif not path.startswith("/"):
        path = f"{directory}/{path}"
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _is_system(path: str, directory: str) -> bool:
    """Whether the path, perhaps a pattern, means the root or a system directory as a whole."""
    parts = _absolute(path, directory).split("/")[1:]
    while parts and set(parts[-1]) <= set("*.?") and "*" in parts[-1]:
        parts.pop()  # `/etc/*` empties `/etc`
    if not parts or parts == [""]:
        return True
    return len(parts) == 1 and any(fnmatchcase(name, parts[0]) for name in _SYSTEM)


_RAW_DEVICES = [
    "sd[a-z]*",
    "hd[a-z]*",
    "vd[a-z]*",
    "xvd[a-z]*",
    "nvme[0-9]*",
    "mmcblk[0-9]*",
    "loop[0-9]*",
    "md[0-9]*",
    "dm-*",
    "mapper/*",
    "disk/*",
    "ram[0-9]*",
    "nbd[0-9]*",
    "sr[0-9]*",
    "fd[0-9]",
    "mem",
    "kmem",
    "port",
    "mtd*",
]


def _is_device(path: str, directory: str) -> bool:
    place = _absolute(path, directory)
    return place.startswith("/dev/") and any(fnmatchcase(place[5:], pattern) for pattern in _RAW_DEVICES)


# --- arguments ---


def _operands(call: ProgramCall) -> list[str]:
    found: list[str] = []
    plain = False
    for index, word in enumerate(call.arguments):
        if plain or not word.startswith("-") or word == "-":
            if index not in call.unresolved:
                found.append(word)
        elif word == "--":
            plain = True
    return found


def _has(call: ProgramCall, letters: str, *names: str) -> bool:
    """Whether an option is there: a letter alone or merged, a long name whole or shortened."""
    for word in call.arguments:
        if word == "--":
            break
        if word.startswith("--"):
            key = word[2:].partition("=")[0]
            if len(key) > 1 and any(name.startswith(key) for name in names):
                return True
        elif word.startswith("-") and any(letter in word[1:] for letter in letters):
            return True
    return False


def _unknown(call: ProgramCall) -> bool | None:
    return None if call.unresolved else False


def _removes_system(call: ProgramCall, directory: str) -> bool | None:
    if "--no-preserve-root" in call.arguments:
        return True
    if not _has(call, "rR", "recursive"):
        return _unknown(call)
    return any(_is_system(path, directory) for path in _operands(call)) or _unknown(call)


def _finds_system(call: ProgramCall, directory: str) -> bool | None:
    """`find / -delete`, or with `rm`, unless a test narrows it."""
    words = list(call.arguments)
    if "-delete" not in words and not any(word.rpartition("/")[2] in ("rm", "shred", "unlink") for word in words):
        return False
    tests = {"-name", "-iname", "-path", "-ipath", "-regex", "-iregex", "-user", "-newer", "-mtime", "-mmin", "-empty"}
    if tests & set(words):
        return False
    starts: list[str] = []
    for index, word in enumerate(words):
        if (word.startswith("-") and word not in ("-H", "-L", "-P")) or word in ("(", "!"):
            break
        if index not in call.unresolved:
            starts.append(word)
    return any(_is_system(path, directory) for path in starts) or _unknown(call)


def _changes_system(call: ProgramCall, directory: str) -> bool | None:
    if not _has(call, "R", "recursive"):
        return _unknown(call)
    return any(_is_system(path, directory) for path in _operands(call)) or _unknown(call)


def _writes_device(call: ProgramCall, directory: str) -> bool | None:
    if call.name == "dd":
        targets = [word[3:] for word in call.arguments if word.startswith("of=")]
    elif call.name in ("tee", "shred"):
        targets = _operands(call)
    else:
        return any(_is_device(path, directory) for path in _operands(call)[-1:])
    return any(_is_device(path, directory) for path in targets) or _unknown(call)


def _changes_partitions(call: ProgramCall, directory: str) -> bool | None:
    return not _has(call, "lVh", "list", "version", "help") or _unknown(call)


def _sets_runlevel(call: ProgramCall, directory: str) -> bool | None:
    return any(word in tuple("0123456sSqQ") for word in _operands(call)) or _unknown(call)


_POWER = frozenset(
    [
        "poweroff",
        "reboot",
        "halt",
        "kexec",
        "suspend",
        "hibernate",
        "hybrid-sleep",
        "rescue",
        "emergency",
        "soft-reboot",
        "default",
        "isolate",
    ]
)


def _powers_off(call: ProgramCall, directory: str) -> bool | None:
    return bool(_POWER & set(_operands(call)[:1])) or _unknown(call)


def _mounts(call: ProgramCall, directory: str) -> bool | None:
    """Plain `mount` and `losetup -a` only list."""
    return bool(_operands(call)) or _has(call, "aofBRMd", "all", "bind", "move", "make-") or _unknown(call)


def _swaps(call: ProgramCall, directory: str) -> bool | None:
    return not _has(call, "sVh", "show", "summary", "version", "help") or _unknown(call)


def _loops(call: ProgramCall, directory: str) -> bool | None:
    return bool(_operands(call)) or _has(call, "dDfc", "detach", "detach-all", "find") or _unknown(call)


def _sets_kernel(call: ProgramCall, directory: str) -> bool | None:
    if _has(call, "wp", "write", "load", "system"):
        return True
    return any("=" in word for word in _operands(call)) or _unknown(call)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_PRIVILEGE = "asks for privileges that no command of a sandbox gets"
_DISK = "works on disks and file systems"
_POWER_WHAT = "stops or restarts the machine"
_USERS = "changes users, groups or passwords"

DENYLIST: tuple[DenyEntry, ...] = (
    DenyEntry("denylist:remove-system", ("rm",), "would remove the root or a system directory", _removes_system),
    DenyEntry("denylist:remove-system", ("find",), "would remove the root or a system directory", _finds_system),
    DenyEntry(
        "denylist:change-system",
        _names("chmod chown chgrp chattr setfacl"),
        "would change modes or owners of a whole system directory",
        _changes_system,
    ),
    DenyEntry(
        "denylist:privilege",
        _names("sudo sudoedit su doas pkexec runuser gosu su-exec setpriv capsh setcap"),
        _PRIVILEGE,
    ),
    DenyEntry(
        "denylist:disk",
        _names(
            "mkfs mkfs.* mke2fs mkswap mkdosfs mkntfs wipefs blkdiscard cryptsetup mdadm debugfs tune2fs resize2fs "
            "pvcreate pvremove vgcreate vgremove lvcreate lvremove"
        ),
        _DISK,
    ),
    DenyEntry("denylist:disk", _names("fdisk sfdisk cfdisk gdisk sgdisk parted"), _DISK, _changes_partitions),
    DenyEntry("denylist:device", _names("dd tee shred cp mv install"), "would write to a raw device", _writes_device),
    DenyEntry("denylist:power", _names("shutdown reboot halt poweroff"), _POWER_WHAT),
    DenyEntry("denylist:power", _names("init telinit"), _POWER_WHAT, _sets_runlevel),
    DenyEntry("denylist:power", ("systemctl",), _POWER_WHAT, _powers_off),
    DenyEntry("denylist:kernel", _names("insmod modprobe rmmod kexec"), "changes the running kernel"),
    DenyEntry("denylist:kernel", ("sysctl",), "sets kernel parameters", _sets_kernel),
    DenyEntry(
        "denylist:mount",
        _names("umount pivot_root chroot unshare nsenter fusermount fusermount3 mount.*"),
        "changes what file systems or namespaces are in view",
    ),
    DenyEntry("denylist:mount", ("mount",), "changes what file systems are in view", _mounts),
    DenyEntry("denylist:mount", ("losetup",), "sets up loop devices", _loops),
    DenyEntry("denylist:mount", _names("swapon swapoff"), "changes swap space", _swaps),
    DenyEntry(
        "denylist:users",
        _names(
            "useradd userdel usermod adduser deluser addgroup delgroup groupadd groupdel groupmod groupmems gpasswd "
            "passwd chpasswd chgpasswd chage chsh chfn newusers vipw vigr visudo pwconv pwunconv"
        ),
        _USERS,
    ),
    DenyEntry(
        "denylist:firewall",
        _names(
            "iptables iptables-* ip6tables ip6tables-* nft ufw firewall-cmd firewalld ebtables arptables ipset "
            "xtables-* pfctl"
        ),
        "changes the firewall",
    ),
)

_EXACT: dict[str, list[DenyEntry]] = {}
_PATTERNS: list[tuple[str, DenyEntry]] = []
for _entry in DENYLIST:
    for _name in _entry.programs:
        if "*" in _name:
            _PATTERNS.append((_name, _entry))
        else:
            _EXACT.setdefault(_name, []).append(_entry)


OF_A_ROOT = frozenset({"denylist:privilege", "denylist:users"})
"""Entries that mean nothing bad of a root of a sandbox who has a system of its own: its users are the sandbox's own."""


def find_denied(reading: CommandReading, cwd: str = "", *, spared: Collection[str] = ()) -> Finding | None:
    """The first certain finding of the list, else the first possible one, else None.

    `cwd` is relative to the workspace. Entries of the ids `spared` are passed over.
    """
    possible: Finding | None = None
    for finding in _findings(reading, cwd):
        if finding.entry in spared:
            continue
        if finding.certain:
            return finding
        possible = possible or finding
    return possible


def _findings(reading: CommandReading, cwd: str) -> Iterator[Finding]:
    for name in reading.self_spawning:
        yield Finding("denylist:fork-bomb", f"function `{name}` starts itself without end", certain=True)
    directory = _absolute(cwd, HOME)
    for path in reading.written_paths:
        if _is_device(path, directory):
            yield Finding("denylist:device", f"output would go to the raw device `{path}`", certain=True)
    for call in reading.programs:
        if call.name in ("cd", "pushd"):
            targets = _operands(call)
            directory = _absolute(targets[0], directory) if targets else HOME
            continue
        entries = [*_EXACT.get(call.name, ()), *(entry for name, entry in _PATTERNS if fnmatchcase(call.name, name))]
        for entry in entries:
            verdict = True if entry.check is None else entry.check(call, directory)
            if verdict is not False:
                yield Finding(entry.id, f"`{call.name}` {entry.what}", certain=verdict is True)
