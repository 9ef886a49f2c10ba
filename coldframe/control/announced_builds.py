"""Builds that are announced before it is known what is built: name and tags first, then files, then the recipe.

So builders of E2B do it. An announcement holds nothing and changes nothing; what comes of it is a build like any other, of the
same id, which whoever announced it can ask for at any time. It keeps what such a builder says beside the recipe: how large
sandboxes are to be, and which of its own steps each step of the recipe stands for.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import Conflict, NotFound, next_action
from coldframe.contract.template import BuildInfo, BuildRequest
from coldframe.control.ledger import format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.store import Store
from coldframe.control.template_builds import TemplateBuilds, new_build_id
from coldframe.control.template_rows import announced, builds, templates
from coldframe.control.template_tags import TemplateTags

WAITING_FOR = timedelta(days=1)
"""After that, one that was not begun is forgotten, and one that was and came to nothing, or to what is removed by now."""
_FIELDS = "build_id, name, tags, cpus, memory_mib, at, by, steps"


class Announced(NamedTuple):
    """One of them."""

    build_id: str
    name: str
    tags: tuple[str, ...]
    cpus: int
    memory_mib: int
    at: datetime
    by: str
    steps: tuple[int, ...] | None
    """For each step of the recipe, the number of the builder's own that it stands for. None: it was not begun."""


class AnnouncedBuilds:
    """Of one installation. Their right is `template.build`."""

    def __init__(self, store: Store, builds: TemplateBuilds, tags: TemplateTags, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._builds = builds
        self._tags = tags
        self._clock = clock

    def announce(self, caller: Caller, name: str, wanted: Sequence[str], *, cpus: int, memory_mib: int) -> Announced:
        """Say that *name* is to be built, and which tags are to stand for what comes of it.

        Raises:
            GrantMissing: the caller may not build.
            Conflict: a tag is a version.
        """
        require(caller, "template.build")
        for tag in wanted:
            self._tags.check(name, tag)
        build_id, now = new_build_id(), self._clock()
        with self._store.transaction() as connection:
            since = format_time(now - WAITING_FOR)
            under_way = sa.select(builds.c.build_id).where(
                sa.or_(builds.c.state == "building", builds.c.ended_at >= since)
            )
            there = sa.select(templates.c.build_id).where(
                templates.c.state == "ready", templates.c.build_id.is_not(None)
            )
            over = announced.c.build_id.not_in(under_way.union(there))
            connection.execute(announced.delete().where(announced.c.at < since, over))
            values = {"build_id": build_id, "name": name, "tags": json.dumps(list(wanted)), "cpus": cpus}
            values |= {"memory_mib": memory_mib, "at": format_time(now), "by": caller.name}
            connection.execute(announced.insert().values(values))
        return self._find(build_id)

    async def begin(self, caller: Caller, build_id: str, request: BuildRequest, steps: Sequence[int]) -> BuildInfo:
        """Build it. The second time it is what the first has begun.

        Raises:
            NotFound: it was not announced. Conflict: it was begun with another recipe.
            And whatever `TemplateBuilds.begin` raises.
        """
        require(caller, "template.build")
        one = self._find(build_id)
        if request.recipe.name != one.name:
            raise Conflict(f"`{build_id}` was announced as a build of `{one.name}`", hint="announce another build")
        request = request.model_copy(update={"assign": one.tags})
        info = await self._builds.begin(caller, request, build_id=build_id)
        with self._store.transaction() as connection:
            chosen = announced.update().where(announced.c.build_id == build_id)
            connection.execute(chosen.values(steps=json.dumps(list(steps))))
        return info

    def get(self, caller: Caller, build_id: str) -> Announced:
        """Raises GrantMissing, NotFound."""
        require(caller, "template.read")
        return self._find(build_id)

    def of(self, caller: Caller, name: str) -> list[Announced]:
        """Those of a name, newest first. Raises GrantMissing."""
        require(caller, "template.read")
        return self._rows("name = ? ORDER BY at DESC, rowid DESC", name)

    def names(self, caller: Caller) -> list[str]:
        """Raises GrantMissing."""
        require(caller, "template.read")
        return [str(row[0]) for row in self._store.read("SELECT DISTINCT name FROM announced_builds", ())]

    def sizes(self, build_id: str | None) -> tuple[int, int] | None:
        """Processors and memory in MiB that sandboxes of it are to have; None for one that said nothing of that."""
        for one in self._rows("build_id = ?", build_id or ""):
            return one.cpus, one.memory_mib
        return None

    def _find(self, build_id: str) -> Announced:
        for one in self._rows("build_id = ?", build_id):
            return one
        raise NotFound(
            f"no build `{build_id[:80]}` was announced",
            next_actions=[next_action("template.list", "lists the templates")],
        )

    def _rows(self, where: str, *values: str) -> list[Announced]:
        rows = self._store.read(f"SELECT {_FIELDS} FROM announced_builds WHERE {where}", values)  # noqa: S608
        return [
            Announced(
                build_id=row[0],
                name=row[1],
                tags=tuple(json.loads(row[2])),
                cpus=row[3],
                memory_mib=row[4],
                at=parse_time(row[5]),
                by=row[6],
                steps=None if row[7] is None else tuple(json.loads(row[7])),
            )
            for row in rows
        ]
