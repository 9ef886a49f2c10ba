"""A box that cannot be built says what takes its namespaces away on this machine, and what to do about it."""

import pytest

from coldframe.host.remedies import UNTESTED, diagnose, read_switch

DENIED = "bwrap: setting up uid map: Permission denied"
RESTRICTED = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
MOST = "/proc/sys/user/max_user_namespaces"


@pytest.mark.parametrize(
    ("switches", "named", "remedy", "untested"),
    [
        ({RESTRICTED: "1"}, "AppArmor", "/etc/apparmor.d/bwrap", True),
        ({CLONE: "0"}, "unprivileged_userns_clone", "sysctl kernel.unprivileged_userns_clone=1", True),
        ({MOST: "0"}, "max_user_namespaces", "sysctl user.max_user_namespaces", False),
    ],
    ids=["Ubuntu", "older Debian", "no namespaces"],
)
def test_each_switch_of_a_distribution_is_named_with_its_remedy(
    switches: dict[str, str], named: str, remedy: str, *, untested: bool
) -> None:
    found = diagnose(DENIED, read=switches.get, can_start=lambda _: True)
    assert found.name == "user_namespace"
    assert named in found.reason and DENIED in found.reason
    assert remedy in found.remedy
    assert found.caveat == (UNTESTED if untested else None)


def test_a_machine_without_bubblewrap_is_told_to_install_it() -> None:
    found = diagnose("bubblewrap ended without a word", can_start=lambda _: False)
    assert (found.name, "package `bubblewrap`" in found.remedy) == ("bubblewrap", True)


def test_a_denied_namespace_without_any_switch_points_at_the_container_around() -> None:
    found = diagnose(
        "bwrap: Creating new namespace failed: Operation not permitted", read=lambda _: None, can_start=lambda _: True
    )
    assert found.name == "user_namespace" and "container" in found.remedy


def test_any_other_failure_is_told_in_its_own_words() -> None:
    found = diagnose("could not mount `/tmp`: no such device", read=lambda _: "1", can_start=lambda _: True)
    assert (found.name, found.reason) == ("box", "could not mount `/tmp`: no such device")
    assert read_switch("/proc/sys/no/such/setting") is None
