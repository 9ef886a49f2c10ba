"""Rows of templates: their names, marks, builds, and what builds have said."""

import json
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.template import (
    BuildInfo,
    BuildLogEntry,
    KnownGood,
    Recipe,
    Settings,
    TemplateDetails,
    TemplateFacts,
    TemplateRecord,
    Withdrawn,
    packages_digest,
)
from coldframe.control.ledger import parse_time
from coldframe.control.store import metadata

templates = sa.Table(
    "templates",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, index=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("build_id", sa.Text, nullable=True),
    sa.Column("known_good", sa.Text, nullable=True),
    sa.Column("withdrawn", sa.Text, nullable=True),
)

builds = sa.Table(
    "template_builds",
    metadata,
    sa.Column("build_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("recipe", sa.Text, nullable=False),
    sa.Column("recipe_sha256", sa.Text, nullable=False),
    sa.Column("started_at", sa.Text, nullable=False),
    sa.Column("started_by", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Text, nullable=True),
    sa.Column("steps", sa.Integer, nullable=False),
    sa.Column("steps_done", sa.Integer, nullable=False),
    sa.Column("steps_cached", sa.Integer, nullable=False),
    sa.Column("digest", sa.Text, nullable=True),
    sa.Column("failed_step", sa.Integer, nullable=True),
    sa.Column("error", sa.Text, nullable=True),
    sa.Column("last_seq", sa.Integer, nullable=False),
)

log_lines = sa.Table(
    "template_build_log",
    metadata,
    sa.Column("build_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("stream", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)


tags = sa.Table(
    "template_tags",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("build_id", sa.Text, nullable=True),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
)

announced = sa.Table(
    "announced_builds",
    metadata,
    sa.Column("build_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, index=True),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("cpus", sa.Integer, nullable=False),
    sa.Column("memory_mib", sa.Integer, nullable=False),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("steps", sa.Text, nullable=True),
)

archives = sa.Table(
    "template_archives",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
)


class Row(NamedTuple):
    """One version of a name. Two names may be of one digest; what is marked of one is marked of all."""

    name: str
    version: str
    digest: str
    state: str
    """`ready`, or `removed`: a version never comes to name anything else."""
    tags: str
    facts: str
    created_at: str
    created_by: str
    build_id: str | None
    known_good: str | None
    withdrawn: str | None

    @property
    def ref(self) -> str:
        return f"{self.name}:{self.version}"

    @property
    def is_withdrawn(self) -> bool:
        return self.withdrawn is not None

    @property
    def told(self) -> TemplateFacts:
        return TemplateFacts.model_validate_json(self.facts)

    @property
    def settings(self) -> Settings:
        return Settings.model_validate(json.loads(self.facts)["settings"])

    def record(self, *, is_there: bool = True) -> TemplateRecord:
        return TemplateRecord(**self._shown(is_there))

    def details(self, recipe: Recipe | None, *, is_there: bool = True) -> TemplateDetails:
        return TemplateDetails(**self._shown(is_there), packages=self.told.packages, recipe=recipe)

    def _shown(self, is_there: bool) -> dict[str, Any]:
        facts = self.told
        return {
            "digest": self.digest,
            "name": self.name,
            "version": self.version,
            "tags": tuple(json.loads(self.tags)),
            "state": "ready" if is_there else "lost",
            "origin": facts.origin,
            "base": facts.base,
            "created_at": parse_time(self.created_at),
            "created_by": self.created_by,
            "recipe_sha256": facts.recipe_sha256,
            "build_id": self.build_id,
            "settings": facts.settings,
            "package_count": len(facts.packages),
            "packages_sha256": packages_digest(facts.packages),
            "bytes": facts.bytes,
            "known_good": None if self.known_good is None else KnownGood.model_validate_json(self.known_good),
            "withdrawn": None if self.withdrawn is None else Withdrawn.model_validate_json(self.withdrawn),
        }


class BuildRow(NamedTuple):
    build_id: str
    name: str
    version: str
    state: Any
    recipe: str
    recipe_sha256: str
    started_at: str
    started_by: str
    ended_at: str | None
    steps: int
    steps_done: int
    steps_cached: int
    digest: str | None
    failed_step: int | None
    error: str | None
    last_seq: int

    @property
    def info(self) -> BuildInfo:
        values = self._asdict()
        del values["recipe"]
        values["started_at"] = parse_time(self.started_at)
        values["ended_at"] = None if self.ended_at is None else parse_time(self.ended_at)
        values["error"] = None if self.error is None else json.loads(self.error)
        return BuildInfo(**values)


FIELDS = ", ".join(Row._fields)
BUILD_FIELDS = ", ".join(BuildRow._fields)
ADD_LINE = "INSERT INTO template_build_log (build_id, seq, at, step, stream, text) VALUES (?, ?, ?, ?, ?, ?)"
LINES = "SELECT seq, at, step, stream, text FROM template_build_log WHERE build_id = ? AND seq > ? ORDER BY seq LIMIT ?"


def entry_of(row: tuple[Any, ...]) -> BuildLogEntry:
    seq, at, step, stream, text = row
    return BuildLogEntry(seq=seq, at=parse_time(at), step=step, stream=stream, text=text)
