"""Tags of templates: names of a version that can be moved, as `app:production`.

A version never comes to name anything else; a tag stands for the version that it was given to last. What a sandbox was made of
is on record by digest, so that a tag that moves changes nothing that runs.
"""

import builtins
from collections.abc import Callable, Sequence
from datetime import datetime

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import Conflict, LimitReached, NotFound, next_action
from coldframe.contract.template import TemplateTag
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.store import Store
from coldframe.control.template_rows import Row, tags
from coldframe.control.templates import Templates

MOST_TAGS = 1000
"""Of one name."""
_FIELDS = "name, tag, version, digest, build_id, at, by"


class TemplateTags:
    """Of one installation. Their right is `template.build`."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        templates: Templates,
        judged: JudgedActs,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._templates = templates
        self._judged = judged
        self._clock = clock

    async def assign(self, caller: Caller, ref: str, wanted: Sequence[str]) -> Row:
        """Have *wanted* stand for what *ref* stands for now; returns that version.

        Raises:
            GrantMissing, NotFound, Refused.
            Conflict: a version of the name is called so.
        """
        require(caller, "template.build")
        row = await self._templates.find(caller, ref)
        _, told = self._judged.allow_alone(
            caller, "tag_template", {"digest": row.digest, "tags": list(wanted)}, subject=row.digest
        )
        with self._store.transaction(durable=True) as connection:
            self.move(row, wanted, caller.name, connection, told)
        return row

    def move(
        self, row: Row, wanted: Sequence[str], by: str, connection: sa.Connection, told: dict[str, object] | None = None
    ) -> None:
        """The same for a version that is known, within the transaction of whoever calls. Raises Conflict, LimitReached."""
        for tag in wanted:
            self.check(row.name, tag)
            values = {"version": row.version, "digest": row.digest, "build_id": row.build_id}
            values |= {"at": format_time(self._clock()), "by": by}
            connection.execute(tags.delete().where(tags.c.name == row.name, tags.c.tag == tag))
            connection.execute(tags.insert().values(name=row.name, tag=tag, **values))
            body = {"name": row.name, "tag": tag, "version": row.version, "digest": row.digest, "caller": by}
            self._ledger.append("template.tagged", row.digest, {**body, **(told or {})}, connection=connection)
        if len(self.of(row.name)) > MOST_TAGS:
            raise LimitReached(
                f"a template has {MOST_TAGS} tags at most",
                hint="take some away",
                kind="template_tags",
                limit=MOST_TAGS,
            )

    def check(self, name: str, tag: str) -> None:
        """Raises Conflict: a version of the name is, or was, called so, and a version never comes to name anything else."""
        if self._store.read("SELECT 1 FROM templates WHERE name = ? AND version = ?", (name, tag)):
            raise Conflict(
                f"`{name}:{tag}` is a version, which cannot be moved",
                hint="use another word for the tag",
                template=f"{name}:{tag}",
            )

    async def remove(self, caller: Caller, name: str, unwanted: Sequence[str]) -> None:
        """Take tags away; those that are not there are gone already. Raises GrantMissing, Refused, NotFound: no such name."""
        require(caller, "template.build")
        if not self.of(name):
            await self._templates.find(caller, name)
        _, told = self._judged.allow_alone(caller, "tag_template", {"name": name, "tags": list(unwanted)}, subject=name)
        with self._store.transaction(durable=True) as connection:
            for one in self.of(name):
                if one.tag not in unwanted:
                    continue
                connection.execute(tags.delete().where(tags.c.name == name, tags.c.tag == one.tag))
                body = {"name": name, "tag": one.tag, "version": one.version, "digest": one.digest}
                body |= {"caller": caller.name, **told}
                self._ledger.append("template.untagged", one.digest, body, connection=connection, durable=True)

    def list(self, caller: Caller, name: str) -> builtins.list[TemplateTag]:
        """Those of a name. Raises GrantMissing."""
        require(caller, "template.read")
        return self.of(name)

    def of(self, name: str) -> builtins.list[TemplateTag]:
        rows = self._store.read(f"SELECT {_FIELDS} FROM template_tags WHERE name = ? ORDER BY tag", (name,))  # noqa: S608
        found = []
        for named, tag, version, digest, build_id, at, by in rows:
            values = {"version": version, "digest": digest, "build_id": build_id, "at": parse_time(at), "by": by}
            found.append(TemplateTag(name=named, tag=tag, **values))
        return found

    def get(self, name: str, tag: str) -> TemplateTag:
        """Raises NotFound."""
        for one in self.of(name):
            if one.tag == tag:
                return one
        raise NotFound(
            f"no tag `{name}:{tag}`",
            next_actions=[next_action("template.list", "lists the templates that there are")],
            template=f"{name}:{tag}",
        )
