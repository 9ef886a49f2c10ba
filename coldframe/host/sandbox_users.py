"""Whom boxes run as where the host daemon is root: each workspace has a sandbox user of its own, and with it a range of users
for a system of its own. Far above people and services; one whom a user of the host could become by subordinate ids is left out."""

from collections.abc import Iterable

from coldframe.host.layers.mapping import COUNT, INSIDE, Users
from coldframe.host.templates.id_range import FIRST_UID as FIRST_OF_TEMPLATES
from coldframe.host.templates.id_range import Given

FIRST_UID = 2_000_000
"""Of the sandbox users: one per workspace."""
UID_COUNT = 60_000


def range_of(user: int) -> int:
    """The first of a range that no other workspace has; the one before them all is that of templates."""
    return FIRST_OF_TEMPLATES + (user - FIRST_UID + 1) * COUNT


def is_nobodys(user: int, given: Iterable[Given]) -> bool:
    """Whether nobody who was given ids may become the sandbox user or one of its range."""
    return not any(one.reaches(user, 1) or one.reaches(range_of(user), COUNT) for one in given)


def users_of(user: tuple[int, int]) -> Users | None:
    """Whom the users of a box are whose sandbox user and group these are; None for whoever is no sandbox user."""
    if not all(FIRST_UID <= number <= FIRST_UID + UID_COUNT for number in user):
        return None
    return Users((range_of(user[0]), range_of(user[1])), user)


def users_of_template(first: tuple[int, int]) -> Users:
    """Whom they are in the files of a template, whose range has no hole."""
    return Users(first, (first[0] + INSIDE, first[1] + INSIDE))
