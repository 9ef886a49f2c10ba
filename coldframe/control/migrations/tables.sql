CREATE TABLE agents (
	agent_id TEXT NOT NULL,
	generation INTEGER NOT NULL,
	state TEXT NOT NULL,
	workspace_label TEXT NOT NULL,
	created_at TEXT NOT NULL,
	deleted_at TEXT,
	PRIMARY KEY (agent_id, generation)
);

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE contracts (
	sandbox_id TEXT NOT NULL,
	version INTEGER NOT NULL,
	sha256 TEXT NOT NULL,
	document TEXT NOT NULL,
	PRIMARY KEY (sandbox_id, version)
);

CREATE TABLE history_position (
	id INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE judged_outputs (
	call_id TEXT NOT NULL,
	sha256 TEXT NOT NULL,
	output BLOB NOT NULL,
	PRIMARY KEY (call_id)
);

CREATE TABLE keyed_calls (
	token_id TEXT NOT NULL,
	"key" TEXT NOT NULL,
	request_sha256 TEXT NOT NULL,
	call_id TEXT NOT NULL,
	result TEXT,
	PRIMARY KEY (token_id, "key")
)
 WITHOUT ROWID;

CREATE TABLE ledger (
	seq INTEGER NOT NULL,
	at TEXT NOT NULL,
	kind TEXT NOT NULL,
	subject TEXT NOT NULL,
	body TEXT NOT NULL,
	previous TEXT NOT NULL,
	hash TEXT NOT NULL,
	sandbox_id TEXT,
	agent_id TEXT,
	session_id TEXT,
	call_id TEXT,
	PRIMARY KEY (seq)
);

CREATE TABLE rule_sets (
	number INTEGER NOT NULL,
	sha256 TEXT NOT NULL,
	origin TEXT NOT NULL,
	loaded_at TEXT NOT NULL,
	text TEXT NOT NULL,
	PRIMARY KEY (number)
);

CREATE TABLE sandboxes (
	sandbox_id TEXT NOT NULL,
	agent_id TEXT,
	session_id TEXT NOT NULL,
	spec TEXT NOT NULL,
	state TEXT NOT NULL,
	report TEXT,
	workspace_label TEXT NOT NULL,
	created_at TEXT NOT NULL,
	PRIMARY KEY (sandbox_id)
);

CREATE TABLE sessions (
	session_id TEXT NOT NULL,
	sandbox_id TEXT NOT NULL,
	agent_id TEXT,
	taint TEXT NOT NULL,
	opened_at TEXT NOT NULL,
	closed_at TEXT,
	reset_from TEXT,
	PRIMARY KEY (session_id)
);

CREATE TABLE tokens (
	token_id TEXT NOT NULL,
	name TEXT NOT NULL,
	role TEXT NOT NULL,
	agent_id TEXT,
	digest BLOB NOT NULL,
	created_at TEXT NOT NULL,
	expires_at TEXT,
	revoked_at TEXT,
	PRIMARY KEY (token_id)
);

CREATE UNIQUE INDEX agents_one_living ON agents (agent_id) WHERE state != 'deleted';

CREATE INDEX ix_rule_sets_sha256 ON rule_sets (sha256);

CREATE INDEX ix_sandboxes_agent_id ON sandboxes (agent_id);

CREATE INDEX ledger_agent_id ON ledger (agent_id);

CREATE INDEX ledger_call_id ON ledger (call_id);

CREATE TRIGGER ledger_refuses_delete BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;

CREATE TRIGGER ledger_refuses_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;

CREATE INDEX ledger_sandbox_id ON ledger (sandbox_id);

CREATE INDEX ledger_session_id ON ledger (session_id);

CREATE INDEX ledger_subject ON ledger (subject) WHERE subject IS NOT call_id;

CREATE INDEX sessions_sandbox_id ON sessions (sandbox_id);

CREATE UNIQUE INDEX tokens_digest ON tokens (digest);

INSERT INTO alembic_version VALUES ('0003');
