"""Why a box cannot be built on this machine, in words, with what the user can do about it.

Looks at the switches by which distributions take unprivileged user namespaces away, after a build failed and never
before: a switch is no evidence that bubblewrap cannot do it. Ubuntu's and Debian's switches are written from their
documentation and marked untested, since this project's tests run on a machine without them.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from coldframe.host.isolation.namespaces import BWRAP

UNTESTED = "this remedy is from the distribution's documentation and untested by this project"
_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
_MOST = "/proc/sys/user/max_user_namespaces"
_PROFILE = "abi <abi/4.0>, profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }"
_CAPTURE = "capture the traffic of the box"
_DENIED = ("operation not permitted", "permission denied", "no space left on device", "creating new namespace")


class Diagnosis(NamedTuple):
    name: str
    """The wall that cannot be raised, as in a report."""
    reason: str
    remedy: str
    caveat: str | None = None


def read_switch(path: str) -> str | None:
    """The text of a kernel setting; None where there is no such setting."""
    try:
        with open(path, encoding="ascii", errors="replace") as source:
            return source.read().strip()
    except OSError:
        return None


def diagnose(
    failure: str,
    *,
    read: Callable[[str], str | None] = read_switch,
    can_start: Callable[[str], bool] = lambda path: os.access(path, os.X_OK),
) -> Diagnosis:
    """What stands behind *failure*, the words with which building a box ended."""
    if not can_start(BWRAP):
        return Diagnosis(
            "bubblewrap",
            f"`{BWRAP}` is not there or cannot be started",
            "install the distribution's package `bubblewrap`, version 0.8 or newer",
        )
    if _CAPTURE in failure:
        return Diagnosis(
            "resolver" if "look-up" in failure else "egress_broker",
            f"the kernel took the way to the egress broker and does not follow it ({failure})",
            "create the sandbox without network meanwhile, and report this with the output of `coldframe doctor`",
        )
    if any(word in failure.lower() for word in _DENIED):
        if read(_APPARMOR) == "1":
            return Diagnosis(
                "user_namespace",
                f"AppArmor restricts unprivileged user namespaces, as on Ubuntu since 23.10 ({failure})",
                f"write `{_PROFILE}` to /etc/apparmor.d/bwrap and load it with `apparmor_parser -r /etc/apparmor.d/bwrap`; "
                "weaker, for the whole machine: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
                UNTESTED,
            )
        if read(_CLONE) == "0":
            return Diagnosis(
                "user_namespace",
                f"the kernel setting `kernel.unprivileged_userns_clone` is 0, as on older Debian ({failure})",
                "`sysctl kernel.unprivileged_userns_clone=1`, and the same in /etc/sysctl.d to keep it",
                UNTESTED,
            )
        if read(_MOST) == "0":
            return Diagnosis(
                "user_namespace",
                f"the kernel setting `user.max_user_namespaces` is 0 ({failure})",
                "`sysctl user.max_user_namespaces=15000`, and the same in /etc/sysctl.d to keep it",
            )
        if "namespace" in failure.lower() or "proc" in failure.lower() or "mount" in failure.lower():
            return Diagnosis(
                "user_namespace",
                f"bubblewrap may not make its namespaces or mounts ({failure})",
                "inside a container, start that with a seccomp profile that allows `unshare` and `mount`, with /proc "
                "unmasked; or run Coldframe on the host itself",
                UNTESTED,
            )
    return Diagnosis(
        "box", failure, "the words of the failure are from the step that failed; correct what they name, then try again"
    )
