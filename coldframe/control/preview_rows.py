"""The table of previews: shared ports, by the label of their address."""

import json
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.policy import Label
from coldframe.contract.preview import PreviewInfo, PreviewInputs, ServerStart
from coldframe.control.ledger import format_time, parse_time
from coldframe.control.store import Kept, Store, metadata
from coldframe.policy.labels import parse

previews = sa.Table(
    "previews",
    metadata,
    sa.Column("preview_id", sa.Text, primary_key=True),
    sa.Column("label_id", sa.Text, nullable=False),
    sa.Column("port", sa.Integer, nullable=False),
    sa.Column("sandbox_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=True),
    sa.Column("public", sa.Integer, nullable=False),
    sa.Column("up_to", sa.Text, nullable=False),
    sa.Column("token_digest", sa.LargeBinary, nullable=True),
    sa.Column("cookie_key", sa.LargeBinary, nullable=False),
    sa.Column("terms", sa.Text, nullable=False),
    sa.Column("command_id", sa.Text, nullable=True),
    sa.Column("started_at", sa.Text, nullable=True),
    sa.Column("stopped_by", sa.Text, nullable=True),
    sa.Column("inputs", sa.Text, nullable=True),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Text, nullable=True),
    sa.Column("revoked_at", sa.Text, nullable=True),
)
sa.Index("previews_address", previews.c.label_id, previews.c.port)
sa.Index("previews_sandbox_id", previews.c.sandbox_id)

EVERY_PORT = 0
_FIELDS = ", ".join(column.name for column in previews.c)


class PreviewRow(NamedTuple):
    preview_id: str
    label_id: str
    """Which sandbox its address names: the one that it was made on."""
    port: int
    sandbox_id: str
    """Which serves it now."""
    name: str | None
    public: bool
    up_to: Label
    token_digest: bytes | None
    cookie_key: bytes
    terms: dict[str, Any]
    """`start`, `setup`, `health_path`, `answer_timeout_s`, as asked for."""
    command_id: str | None
    started_at: datetime | None
    stopped_by: str | None
    """Who has stopped what it shows; None if nobody has."""
    inputs: PreviewInputs | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    @property
    def start(self) -> ServerStart | None:
        found = self.terms.get("start")
        return None if found is None else ServerStart.model_validate(found)

    @property
    def address(self) -> str:
        return f"{self.port}-{self.label_id}" if self.port else f"PORT-{self.label_id}"

    def info(self) -> PreviewInfo:
        start = self.start
        command = None if start is None else start.command
        return PreviewInfo(
            preview_id=self.preview_id,
            sandbox_id=self.sandbox_id,
            port=self.port,
            name=self.name,
            address=self.address,
            public=self.public,
            up_to=self.up_to,
            created_by=self.created_by,
            created_at=self.created_at,
            expires_at=self.expires_at,
            revoked_at=self.revoked_at,
            command=command if command is None or isinstance(command, str) else " ".join(command),
            command_id=self.command_id,
            inputs=self.inputs,
        )

    def values(self) -> dict[str, Any]:
        """As columns."""
        return {
            **self._asdict(),
            "public": int(self.public),
            "up_to": self.up_to.value,
            "terms": json.dumps(self.terms),
            "inputs": None if self.inputs is None else self.inputs.model_dump_json(),
            **{
                name: None if (at := getattr(self, name)) is None else format_time(at)
                for name in ("started_at", "created_at", "expires_at", "revoked_at")
            },
        }


def _row(found: tuple[Any, ...]) -> PreviewRow:
    values = dict(zip((column.name for column in previews.c), found, strict=True))
    for name in ("started_at", "created_at", "expires_at", "revoked_at"):
        values[name] = None if values[name] is None else parse_time(values[name])
    values["public"], values["up_to"] = bool(values["public"]), parse(values["up_to"])
    values["terms"] = json.loads(values["terms"])
    values["inputs"] = None if values["inputs"] is None else PreviewInputs.model_validate_json(values["inputs"])
    return PreviewRow(**values)


class PreviewRows:
    """Reads and writes it. Those that are visited are kept as they were read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: Kept[PreviewRow] = Kept(store, self._load)

    def at(self, label_id: str, port: int) -> PreviewRow | None:
        """The newest at an address, or for every port of that sandbox; a revoked one too."""
        return self._kept.get(f"{port}-{label_id}") or self._kept.get(f"{EVERY_PORT}-{label_id}")

    def by_id(self, preview_id: str) -> PreviewRow | None:
        return next(iter(self._select("preview_id = ?", preview_id)), None)

    def of_sandbox(self, sandbox_id: str | None) -> list[PreviewRow]:
        """Those that it serves, newest first; of every sandbox without one."""
        if sandbox_id is None:
            return self._select("1 ORDER BY created_at DESC, preview_id")
        return self._select("sandbox_id = ? ORDER BY created_at DESC, preview_id", sandbox_id)

    def _select(self, where: str, *values: str | int) -> list[PreviewRow]:
        found = self._store.read(f"SELECT {_FIELDS} FROM previews WHERE {where}", values)  # noqa: S608  texts of ours
        return [_row(one) for one in found]

    def _load(self, address: str) -> PreviewRow | None:
        port, _, label_id = address.partition("-")
        found = self._select(
            "label_id = ? AND port = ? ORDER BY revoked_at IS NULL DESC, created_at DESC LIMIT 1", label_id, int(port)
        )
        return found[0] if found else None

    def add(self, row: PreviewRow, connection: sa.Connection) -> None:
        self._forget(row)
        connection.execute(previews.insert().values(row.values()))

    def put(self, row: PreviewRow, connection: sa.Connection) -> None:
        """As it is from now on."""
        self._forget(row)
        connection.execute(previews.update().where(previews.c.preview_id == row.preview_id).values(row.values()))

    def _forget(self, row: PreviewRow) -> None:
        self._kept.forget(f"{row.port}-{row.label_id}")
