"""What the isolation report says of a box with a system of its own: who its root is, and what stands in place of read-only.

Read from outside, as all of the report: the capability sets of each process, the maps of users, who owns the namespaces.
"""

import os
from typing import NamedTuple

from coldframe.contract.isolation import MountInfo, Property
from coldframe.host.box_view import CAPABILITY_SETS, REMEDY_BUG, Seen, View, fields_of
from coldframe.host.confine import ConfineError, owning_user_namespace
from coldframe.host.isolation.own_system import CAPABILITIES, HELD, HELD_BY_KEEPER

SYSTEM_SENTENCES = (
    "commands may run as root of the sandbox, who is nobody on the host and has rights inside alone",
    "what is installed in the sandbox, scripts of packages included, runs with the rights of that root",
    "nothing in the sandbox gains rights by being started: there is no `sudo`; a command is started as `user` or as `root`",
    "its changed system stays with the workspace over stop, end and later sandboxes of the agent, which have it too",
)
SHARED_SENTENCE = (
    "sandboxes of this host user that have a system of their own have the same users on the host, the subordinate ids of this "
    "user, as have containers that it starts otherwise: namespaces and closed directories alone keep them from each other"
)
"""Where there is no root to show a template as the users of each."""
_OWN_RANGE = "a range of host users that no other workspace has, in a user namespace that owns no other namespace"
_SHARED_RANGE = (
    "subordinate ids of the host's user, the same for all of its sandboxes with such a system, in a user namespace that owns no "
    "other namespace"
)
_KEEPER_MORE = "SYS_PTRACE, in use only while it adds up what is on disk"


class OwnSystem(NamedTuple):
    """What is read of such a box."""

    init: int
    template: str
    """Digest."""
    view: View

    def capabilities(self) -> tuple[list[str], str]:
        """What is wrong with them, and what is right if nothing is."""
        wrong = []
        keeper = (self.view.keeper,) if self.view.keeper is not None else ()
        for one in (*self.view.processes, *keeper):
            found = _beyond(one, HELD_BY_KEEPER if one is self.view.keeper else HELD)
            if found and not self._is_to_begin(one):
                wrong += found
        names = ", ".join(CAPABILITIES)
        right = (
            f"CapPrm and CapEff of {len(self.view.processes)} processes of the box are within {names}; of the keeper within "
            f"these and {_KEEPER_MORE}; CapInh and CapAmb: 0"
        )
        return wrong, right

    def _is_to_begin(self, one: Seen) -> bool:
        """Whether it is a child of the keeper's that was not its program yet, and so had the keeper's rights and memory, which
        nobody inside may get at. Anybody inside can stop one there."""
        if one.status.get("PPid") != "0" or not one.outside or self.view.keeper is None or _beyond(one, HELD_BY_KEEPER):
            return False
        place = f"/proc/{self.init}/root/proc/{one.name.partition(' ')[0]}"
        try:
            if os.path.samestat(os.stat(f"{place}/exe"), os.stat(f"/proc/{self.view.keeper.status.get('Pid')}/exe")):
                return True
            with open(f"{place}/status", encoding="utf-8", errors="replace") as now:
                return not _beyond(one._replace(status=fields_of(now.read())), HELD)  # its program meanwhile
        except FileNotFoundError:
            return True  # gone meanwhile
        except OSError:
            return False

    @property
    def shares_users(self) -> bool:
        """Whether `user` is whoever measures, who has one range for all, and is not root."""
        return os.getuid() != 0 and any(outside == os.getuid() for _, outside, _ in self.view.first.uid_map)

    def sentences(self) -> tuple[str, ...]:
        return (*SYSTEM_SENTENCES, SHARED_SENTENCE) if self.shares_users else SYSTEM_SENTENCES

    def judge_users(self) -> Property:
        """Whether the rights of root inside are rights over nothing but users: its user namespace must own no other one."""
        inner, owners = self.view.namespaces.get("user"), {}
        for kind in ("mnt", "net", "pid", "ipc", "uts", "cgroup"):
            owners[kind] = _owner(self.init, kind)
        wrong = [f"the owner of the {kind} namespace could not be read" for kind, one in owners.items() if one is None]
        wrong += [f"the {kind} namespace belongs to the commands" for kind, one in owners.items() if one == inner]
        maps = (*self.view.first.uid_map, *self.view.first.gid_map)
        if not maps or any(outside <= 0 for _, outside, _ in maps):
            wrong.append("the map of users could not be read, or holds the host's root")
        shown = "; ".join(
            f"{inside} to {inside + count - 1} are {outside} and on" for inside, outside, count in maps[:3]
        )
        return Property(
            name="system_users",
            state="absent" if wrong else "enforced",
            mechanism=_SHARED_RANGE if self.shares_users else _OWN_RANGE,
            evidence="; ".join(wrong)
            if wrong
            else f"user:[{inner}] of the commands owns nothing, user:[{owners['mnt']}] owns the box; users {shown}",
            required=True,
            caveat="other sandboxes of this host user have the same users on the host" if self.shares_users else None,
            remedy=REMEDY_BUG if wrong else None,
        )

    def judge_layer(self, root: MountInfo | None) -> Property:
        shown = [one.target for one in self.view.mounts if one.source == "system"]
        wrong = []
        if root is None or root.source != "layer" or not (root.nosuid and root.nodev):
            wrong.append("/ is no layer without devices and set-uid programs")
        if shown:
            wrong.append(f"of the host's system are shown: {', '.join(shown[:5])}")
        return Property(
            name="system_private",
            state="absent" if wrong else "enforced",
            mechanism="a layer of the workspace's own on a template that nobody writes to; nothing of the host's system is shown",
            evidence="; ".join(wrong) or f"/ is an overlay on the template {self.template}, nosuid and nodev",
            required=True,
            remedy=REMEDY_BUG if wrong else None,
        )


def _beyond(one: Seen, permitted: int) -> list[str]:
    """What it has more than it may."""
    found = []
    for key in CAPABILITY_SETS:
        most = permitted if key in ("CapPrm", "CapEff") else HELD if key == "CapBnd" else 0
        if key == "CapBnd" and _is_first(one) and one.status.get("NoNewPrivs") == "1":
            continue  # it never starts anything, and what it could start would gain nothing
        if not _is_within(one.status.get(key), most):
            found.append(f"{key}: {one.status.get(key)} of {one.name}")
    return found


def _is_first(one: Seen) -> bool:
    return one.name in ("the first process", "1 of the box")


def _is_within(mask: str | None, most: int) -> bool:
    try:
        return mask is not None and int(mask, 16) & ~most == 0
    except ValueError:
        return False


def _owner(process: int, kind: str) -> int | None:
    """Inode of the user namespace that owns one of a process's namespaces; None where it cannot be read."""
    try:
        space = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        owner = owning_user_namespace(space)
    except ConfineError:
        return None
    finally:
        os.close(space)
    try:
        return os.fstat(owner).st_ino
    finally:
        os.close(owner)
