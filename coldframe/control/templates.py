"""Templates as a thing that teams share: named, looked at, marked, withdrawn, removed, and found for a sandbox.

The machine keeps them by digest; which version of a name is which digest stands here, and never changes. One that
`coldframe setup` has built is taken into the list when it is first seen. What is said of a template (known good, withdrawn)
is said of its digest, under whichever name.
"""

import builtins
import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    Conflict,
    NotFound,
    TemplateChanged,
    TemplateWithdrawn,
    WrongState,
    next_action,
)
from coldframe.contract.ports import Host
from coldframe.contract.recipes import ready_made_names
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import WorkspacePoint
from coldframe.contract.template import (
    HOST,
    BuildOrder,
    KnownGood,
    Recipe,
    Settings,
    TemplateDetails,
    TemplateFacts,
    TemplateRecord,
    Withdrawn,
    split_ref,
)
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.ledger import Ledger, format_time
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store
from coldframe.control.template_rows import FIELDS, Row, tags, templates

SETUP = "coldframe setup"
SETUP_VERSION_CHARACTERS = 12
"""Of the digest, which is the version of one that was built without any."""


class Templates:
    """Those of one installation."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        sandboxes: Sandboxes,
        judged: JudgedActs,
        host: Host,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._judged = judged
        self._host = host
        self._clock = clock
        self._settings: dict[str, Settings] = {}
        """Of digests that were asked for since the server began; a digest never comes to mean others."""

    # -- looking -------------------------------------------------------------------------------------------------------

    async def list(self, caller: Caller, *, name: str | None = None) -> builtins.list[TemplateRecord]:
        """All of them, or those of a name, newest first. Raises GrantMissing, HostUnreachable."""
        require(caller, "template.read")
        there = await self._refresh()
        rows = self._rows("state = 'ready' ORDER BY created_at DESC, rowid DESC")
        return [row.record(is_there=row.digest in there) for row in rows if name in (None, row.name)]

    async def get(self, caller: Caller, ref: str) -> TemplateDetails:
        """One of them, with what it has installed and the recipe that builds just that again.

        Raises GrantMissing, NotFound, HostUnreachable."""
        require(caller, "template.read")
        there = await self._refresh()
        row = self._find(ref)
        return row.details(self._recipe_of(row), is_there=row.digest in there)

    def _recipe_of(self, row: Row) -> Recipe | None:
        if row.build_id is None:
            return None
        found = self._store.read("SELECT recipe FROM template_builds WHERE build_id = ?", (row.build_id,))
        if not found:
            return None
        recipe = Recipe.model_validate_json(found[0][0])
        return recipe.model_copy(update={"version": None, "locked": row.told.packages})

    async def verify(self, caller: Caller, ref: str) -> TemplateRecord:
        """Have all of it read. Raises GrantMissing, NotFound; TemplateChanged if it is not what was built, on record."""
        require(caller, "template.verify")
        await self._refresh()
        row = self._find(ref)
        try:
            await self._host.templates.verify(row.digest)
        except TemplateChanged as error:
            self._ledger.append("template.changed", row.digest, {**_told(row), "message": error.message})
            raise
        return row.record()

    # -- what is said of them ------------------------------------------------------------------------------------------

    def mark(self, caller: Caller, digest: str, known: KnownGood) -> TemplateRecord:
        """That somebody says so, and a check has passed; whoever has run the check calls this."""
        require(caller, "template.mark")
        row = self._find(f"sha256:{digest}")
        with self._store.transaction(durable=True) as connection:
            values = {"known_good": known.model_dump_json()}
            connection.execute(templates.update().where(templates.c.digest == digest).values(values))
            body = {**_told(row), **known.model_dump(mode="json", exclude={"at", "by"}), "caller": caller.name}
            self._ledger.append("template.marked", digest, body, connection=connection, durable=True)
        return self._find(f"sha256:{digest}").record()

    async def withdraw(self, caller: Caller, ref: str, why: str) -> TemplateRecord:
        """Nothing new starts from it; sandboxes that run on it go on, and are told. To withdraw it again changes nothing.

        Raises GrantMissing, NotFound, Refused."""
        require(caller, "template.withdraw")
        await self._refresh()
        row = self._find(ref)
        if row.is_withdrawn:
            return row.record()
        _, told = self._judged.allow_alone(caller, "withdraw_template", {"digest": row.digest}, subject=row.digest)
        mark = Withdrawn(by=caller.name, why=why, at=self._clock())
        with self._store.transaction(durable=True) as connection:
            values = {"withdrawn": mark.model_dump_json()}
            connection.execute(templates.update().where(templates.c.digest == row.digest).values(values))
            users = self._sandboxes.on_template(row.digest)
            body = {**_told(row), "why": why, "caller": caller.name, "sandbox_ids": users, **told}
            self._ledger.append("template.withdrawn", row.digest, body, connection=connection, durable=True)
        return self._find(row.ref).record()

    async def remove(self, caller: Caller, ref: str) -> None:
        """Take a name off it, and have the machine forget what has no name any more. Nothing happens the second time.

        Raises:
            GrantMissing, NotFound, Refused: not by this caller, or there never was one.
            WrongState: a workspace or another template stands on it.
        """
        require(caller, "template.remove")
        await self._refresh()
        name, version, digest = split_ref(ref)
        rows = self._matching(ref)
        if not rows:
            where = "digest = ?" if digest is not None else "name = ? AND version = ?"
            if not self._rows(where, *((digest,) if digest is not None else (name or "", version or ""))):
                raise self._missing(ref)
            return
        if digest is None:
            rows = rows[:1]
        row = rows[0]
        if digest is None and version not in (None, row.version):
            raise WrongState(
                f"`{ref}` is a tag, which stands for the version `{row.ref}`",
                hint="remove that version, or take the tag away",
                template=row.ref,
            )
        _, told = self._judged.allow_alone(caller, "remove_template", {"digest": row.digest}, subject=row.digest)
        others = {one.ref for one in self._rows("digest = ? AND state = 'ready'", row.digest)} - {
            one.ref for one in rows
        }
        if not others:
            await self._host.templates.remove(row.digest)
        with self._store.transaction(durable=True) as connection:
            for one in rows:
                gone = templates.update().where(templates.c.name == one.name, templates.c.version == one.version)
                connection.execute(gone.values(state="removed"))
                connection.execute(tags.delete().where(tags.c.name == one.name, tags.c.version == one.version))
                body = {**_told(one), "caller": caller.name, "is_gone": not others, **told}
                self._ledger.append("template.removed", one.digest, body, connection=connection, durable=True)

    # -- for sandboxes -------------------------------------------------------------------------------------------------

    async def settled(
        self, spec: SandboxSpec, workspace: WorkspacePoint, *, standing: str | None = None
    ) -> SandboxSpec:
        """*spec* with the digest of the template that a box is to have: the one from which the system of the workspace
        began, or on which that is *standing* with which it is to begin, or else what is asked for.

        Raises:
            NotFound: there is no such version.
            WrongState: the system of the workspace began from another one.
            TemplateWithdrawn: somebody took it back.
        """
        if spec.template == HOST:
            return spec
        await self._refresh()
        begun = await self._host.templates.begun(workspace) or standing
        rows = self._matching(spec.template)
        if begun is not None:
            if (other := self.other_than(spec.template, begun)) is not None:
                raise WrongState(
                    f"the system of this workspace began from `{other}`, and not from `{spec.template}`",
                    hint=f"ask for `{other}`, or give the sandbox an agent of its own",
                    template=other,
                )
            chosen = self._rows("digest = ? AND state = 'ready'", begun)
            if not chosen:
                return spec  # the machine says what is wrong with that
            self._check_usable(chosen[0])
            return spec.model_copy(update={"template": f"sha256:{begun}"})
        if not rows:
            if spec.template == "debian" or spec.template in ready_made_names():
                return spec  # the machine says how it is built
            raise self._missing(spec.template)
        return spec.model_copy(update={"template": f"sha256:{self._choose(spec.template, rows).digest}"})

    def other_than(self, ref: str, digest: str) -> str | None:
        """What the template of a digest is called, if *ref* does not name it. None also for one that is not known."""
        known = self._rows("digest = ? AND state = 'ready'", digest)
        return known[0].ref if known and digest not in {row.digest for row in self._matching(ref)} else None

    async def usable(self, ref: str) -> str:
        """Digest of one that something new may begin from. Raises NotFound, TemplateWithdrawn."""
        await self._refresh()
        rows = self._matching(ref)
        if not rows:
            raise self._missing(ref)
        return self._choose(ref, rows).digest

    def settings_of(self, digest: str | None) -> Settings:
        """What a template says to sandboxes; nothing for none, and for one that is not known any more."""
        if digest is None:
            return Settings()
        if digest not in self._settings:
            rows = self._rows("digest = ?", digest)
            if not rows:
                return Settings()
            self._settings[digest] = rows[0].settings
        return self._settings[digest]

    def environment(self, info: SandboxInfo) -> dict[str, str]:
        """Variables for every command of a sandbox, below all that it is given besides."""
        return self.settings_of(info.template_sha256).env

    def warnings(self, info: SandboxInfo) -> tuple[str, ...]:
        """What whoever uses the sandbox is to be told of its template."""
        if info.template_sha256 is None:
            return ()
        for row in self._rows("digest = ? AND withdrawn IS NOT NULL LIMIT 1", info.template_sha256):
            mark = Withdrawn.model_validate_json(row.withdrawn or "")
            return (f"the template `{row.ref}` was withdrawn at {mark.at.isoformat(timespec='seconds')}: {mark.why}",)
        return ()

    # -- rows ----------------------------------------------------------------------------------------------------------

    def free_version(self, name: str, asked: str | None, building: Collection[str]) -> str:
        """*asked*, or the next number. Raises Conflict if it is taken: a version never comes to name anything else."""
        taken = {row.version for row in self._rows("name = ?", name)} | set(building)
        taken |= {str(row[0]) for row in self._store.read("SELECT tag FROM template_tags WHERE name = ?", (name,))}
        if asked is None:
            return str(1 + max((int(one) for one in taken if one.isdecimal() and len(one) < 9), default=0))
        if asked in taken:
            raise Conflict(
                f"`{name}:{asked}` is there already, was there, is being built, or is a tag",
                hint="give it another version, or none for the next number",
                next_actions=[next_action("template.list", "lists the versions that there are")],
                template=f"{name}:{asked}",
            )
        return asked

    def add(self, facts: TemplateFacts, order: BuildOrder, by: str, connection: sa.Connection) -> Row:
        """The name of one that was built. What is said of the same content under another name holds of it too."""
        recipe = order.recipe
        values = _values(facts, recipe.name, recipe.version or "", by, format_time(self._clock()))
        values |= {"tags": json.dumps(recipe.tags), "build_id": order.build_id}
        values |= self._marks_of(facts.digest)
        connection.execute(templates.insert().values(values))
        return self._rows("name = ? AND version = ?", recipe.name, recipe.version or "")[0]

    async def _refresh(self) -> set[str]:
        """Take in what was built beside this server; digests of all that are on the machine."""
        there = await self._host.templates.digests()
        found = []
        for digest in there - self._known():
            with contextlib.suppress(NotFound, TemplateChanged):  # removed meanwhile, or no use any more
                found.append(await self._host.templates.get(digest))
        known = self._known()  # others have looked as well
        for facts in sorted(found, key=lambda one: one.created_at):
            if facts.digest in known:
                continue
            state, by = self._built_by(facts.build_id)
            if state == "building":  # it is named by whoever builds it, in a moment
                continue
            version = facts.version or facts.digest[:SETUP_VERSION_CHARACTERS]
            if self._rows("name = ? AND version = ?", facts.name, version):
                version = facts.digest[:SETUP_VERSION_CHARACTERS]
            values = _values(facts, facts.name, version, by, format_time(facts.created_at))
            values["build_id"] = facts.build_id
            values |= self._marks_of(facts.digest)
            with self._store.transaction() as connection:
                gone = templates.c.name == facts.name, templates.c.version == version
                connection.execute(templates.delete().where(*gone, templates.c.digest == facts.digest))
                connection.execute(templates.insert().values(values))
                body = {**_told(self._rows("digest = ? AND state = 'ready'", facts.digest)[0]), "caller": "setup"}
                self._ledger.append("template.found", facts.digest, body, connection=connection)
        return there

    def _known(self) -> set[str]:
        return {row[0] for row in self._store.read("SELECT digest FROM templates WHERE state = 'ready'", ())}

    def _marks_of(self, digest: str) -> dict[str, str | None]:
        """What is said of the same content, under whichever name, also of one that was removed."""
        for row in self._rows("digest = ? ORDER BY rowid DESC LIMIT 1", digest):
            return {"known_good": row.known_good, "withdrawn": row.withdrawn}
        return {}

    def _built_by(self, build_id: str | None) -> tuple[str | None, str]:
        """State of its build, if that was begun here, and who began it."""
        query = "SELECT state, started_by FROM template_builds WHERE build_id = ?"
        for state, by in self._store.read(query, (build_id,)) if build_id is not None else ():
            return str(state), str(by)
        return None, "setup"

    def _matching(self, ref: str) -> builtins.list[Row]:
        """Newest first."""
        name, version, digest = split_ref(ref)
        order = "AND state = 'ready' ORDER BY created_at DESC, rowid DESC"
        if digest is not None:
            return self._rows(f"digest = ? {order}", digest)
        if version is not None:
            rows = self._rows(f"name = ? AND version = ? {order}", name or "", version)
            if rows or (version := self._tagged(name or "", version)) is None:
                return rows
            return self._rows(f"name = ? AND version = ? {order}", name or "", version)
        return self._rows(f"name = ? {order}", name or "")

    def _tagged(self, name: str, tag: str) -> str | None:
        """The version that a tag stands for."""
        found = self._store.read("SELECT version FROM template_tags WHERE name = ? AND tag = ?", (name, tag))
        return str(found[0][0]) if found else None

    async def find(self, caller: Caller, ref: str) -> Row:
        """The version that a name, tag or digest stands for, also one that was withdrawn. Raises GrantMissing, NotFound."""
        require(caller, "template.read")
        await self._refresh()
        return self._find(ref)

    async def find_first(self, caller: Caller, refs: Sequence[str]) -> Row | None:
        """The first of *refs* that there is, as `find` tells it. The machine is asked once. Raises GrantMissing."""
        require(caller, "template.read")
        await self._refresh()
        return next((self._find(ref) for ref in refs if self._matching(ref)), None)

    def _find(self, ref: str) -> Row:
        rows = self._matching(ref)
        if not rows:
            raise self._missing(ref)
        return next((row for row in rows if not row.is_withdrawn), rows[0])

    def _choose(self, ref: str, rows: builtins.list[Row]) -> Row:
        """The newest that was not withdrawn. Raises TemplateWithdrawn."""
        row = next((one for one in rows if not one.is_withdrawn), rows[0])
        self._check_usable(row)
        return row

    def _check_usable(self, row: Row) -> None:
        if row.withdrawn is None:
            return
        mark = Withdrawn.model_validate_json(row.withdrawn)
        raise TemplateWithdrawn(
            f"template `{row.ref}` was withdrawn by {mark.by}: {mark.why}",
            template=row.ref,
            digest=row.digest,
            why=mark.why,
            by=mark.by,
            at=mark.at.isoformat(),
        )

    def _missing(self, ref: str) -> NotFound:
        return NotFound(
            f"no template `{ref[:160]}`",
            hint="`coldframe template list` shows those that there are",
            next_actions=[next_action("template.list", "lists the templates that there are")],
            template=ref[:160],
        )

    def _rows(self, where: str, *values: str) -> builtins.list[Row]:
        rows = self._store.read(f"SELECT {FIELDS} FROM templates WHERE {where}", values)  # noqa: S608  texts of ours
        return [Row._make(row) for row in rows]


def _values(facts: TemplateFacts, name: str, version: str, by: str, at: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "digest": facts.digest,
        "state": "ready",
        "tags": "[]",
        "facts": facts.model_dump_json(),
        "created_at": at,
        "created_by": by,
        "build_id": None,
        "known_good": None,
        "withdrawn": None,
    }


def _told(row: Row) -> dict[str, Any]:
    """What every entry about it says."""
    return {"name": row.name, "version": row.version, "digest": row.digest}
