CREATE TABLE access_tokens (
	digest BLOB NOT NULL,
	sandbox_id TEXT NOT NULL,
	token_id TEXT NOT NULL,
	PRIMARY KEY (digest)
);

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

CREATE TABLE announced_builds (
	build_id TEXT NOT NULL,
	name TEXT NOT NULL,
	tags TEXT NOT NULL,
	cpus INTEGER NOT NULL,
	memory_mib INTEGER NOT NULL,
	at TEXT NOT NULL,
	"by" TEXT NOT NULL,
	steps TEXT,
	PRIMARY KEY (build_id)
);

CREATE TABLE builds (
	build_id TEXT NOT NULL,
	pipeline_id TEXT NOT NULL,
	sandbox_id TEXT NOT NULL,
	agent_id TEXT,
	session_id TEXT NOT NULL,
	spec TEXT NOT NULL,
	inputs TEXT NOT NULL,
	rebuild_of TEXT,
	keep_sandbox INTEGER NOT NULL,
	started_by TEXT NOT NULL,
	started_at TEXT NOT NULL,
	ended_at TEXT,
	outcome TEXT,
	PRIMARY KEY (build_id)
);

CREATE TABLE contract_plans (
	sha256 TEXT NOT NULL,
	document TEXT NOT NULL,
	planned_at TEXT NOT NULL,
	PRIMARY KEY (sha256)
);

CREATE TABLE contracts (
	sandbox_id TEXT NOT NULL,
	version INTEGER NOT NULL,
	sha256 TEXT NOT NULL,
	document TEXT NOT NULL,
	PRIMARY KEY (sandbox_id, version)
);

CREATE TABLE credential_handles (
	handle TEXT NOT NULL,
	credential_id TEXT NOT NULL,
	sandbox_id TEXT NOT NULL,
	PRIMARY KEY (handle)
);

CREATE TABLE credentials (
	credential_id TEXT NOT NULL,
	name TEXT NOT NULL,
	terms TEXT NOT NULL,
	sealed BLOB NOT NULL,
	uses INTEGER NOT NULL,
	created_at TEXT NOT NULL,
	added_by TEXT NOT NULL,
	rotated_at TEXT,
	revoked_at TEXT,
	PRIMARY KEY (credential_id)
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

CREATE TABLE leases (
	sandbox_id TEXT NOT NULL,
	token_id TEXT NOT NULL,
	ends_at TEXT,
	terms TEXT NOT NULL,
	PRIMARY KEY (sandbox_id)
);

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

CREATE TABLE lineage_edges (
	step INTEGER NOT NULL,
	item INTEGER NOT NULL,
	certainty TEXT NOT NULL,
	PRIMARY KEY (step, item)
)
 WITHOUT ROWID;

CREATE TABLE lineage_heights (
	scope TEXT NOT NULL,
	rank INTEGER NOT NULL,
	PRIMARY KEY (scope)
);

CREATE TABLE lineage_items (
	number INTEGER NOT NULL,
	item_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	step INTEGER NOT NULL,
	call INTEGER,
	seq INTEGER NOT NULL,
	place TEXT NOT NULL,
	sandbox_id TEXT NOT NULL,
	agent_id TEXT,
	session_id TEXT,
	heard BOOLEAN NOT NULL,
	"left" BOOLEAN NOT NULL,
	path TEXT,
	sha256 TEXT,
	bytes INTEGER,
	host TEXT,
	port INTEGER,
	methods TEXT,
	outcome TEXT NOT NULL,
	rank INTEGER NOT NULL,
	reason TEXT NOT NULL,
	assigned_at TEXT NOT NULL,
	certainty TEXT NOT NULL,
	retention TEXT NOT NULL,
	PRIMARY KEY (number)
);

CREATE TABLE lineage_position (
	id INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	form INTEGER NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE lineage_shared (
	step INTEGER NOT NULL,
	shared TEXT NOT NULL,
	writes BOOLEAN NOT NULL,
	PRIMARY KEY (step, shared)
)
 WITHOUT ROWID;

CREATE TABLE lineage_steps (
	number INTEGER NOT NULL,
	kind TEXT NOT NULL,
	step_id TEXT NOT NULL,
	started INTEGER NOT NULL,
	ended INTEGER NOT NULL,
	ended_at TEXT,
	place TEXT NOT NULL,
	sandbox_id TEXT NOT NULL,
	session_id TEXT,
	leaves BOOLEAN NOT NULL,
	left_running BOOLEAN NOT NULL,
	rank INTEGER NOT NULL,
	PRIMARY KEY (number)
);

CREATE TABLE network_contacts (
	number INTEGER NOT NULL,
	change INTEGER NOT NULL,
	sandbox_id TEXT NOT NULL,
	agent_id TEXT,
	session_id TEXT NOT NULL,
	command_id TEXT,
	contact_id TEXT NOT NULL,
	host TEXT NOT NULL,
	dialled TEXT,
	outcome TEXT NOT NULL,
	began_at TEXT NOT NULL,
	open BOOLEAN NOT NULL,
	document TEXT NOT NULL, requests TEXT DEFAULT '[]' NOT NULL, looked_up BOOLEAN DEFAULT '0' NOT NULL,
	PRIMARY KEY (number)
);

CREATE TABLE networks (
	sandbox_id TEXT NOT NULL,
	role TEXT NOT NULL,
	seq INTEGER NOT NULL,
	closed INTEGER NOT NULL,
	denied_sums TEXT NOT NULL,
	PRIMARY KEY (sandbox_id)
);

CREATE TABLE open_calls_position (
	id INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	calls TEXT NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE previews (
	preview_id TEXT NOT NULL,
	label_id TEXT NOT NULL,
	port INTEGER NOT NULL,
	sandbox_id TEXT NOT NULL,
	name TEXT,
	public INTEGER NOT NULL,
	up_to TEXT NOT NULL,
	token_digest BLOB,
	cookie_key BLOB NOT NULL,
	terms TEXT NOT NULL,
	command_id TEXT,
	started_at TEXT,
	stopped_by TEXT,
	inputs TEXT,
	created_by TEXT NOT NULL,
	created_at TEXT NOT NULL,
	expires_at TEXT,
	revoked_at TEXT,
	PRIMARY KEY (preview_id)
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

CREATE TABLE snapshots (
	act_id TEXT NOT NULL,
	snapshot_id TEXT,
	state TEXT NOT NULL,
	agent_id TEXT,
	session_id TEXT,
	sandbox_id TEXT,
	name TEXT NOT NULL,
	label TEXT NOT NULL,
	reason TEXT NOT NULL,
	taken_by TEXT NOT NULL,
	created_at TEXT NOT NULL,
	expires_at TEXT,
	measured TEXT NOT NULL,
	sha256 TEXT,
	PRIMARY KEY (act_id)
);

CREATE TABLE template_archives (
	name TEXT NOT NULL,
	"key" TEXT NOT NULL,
	sha256 TEXT NOT NULL,
	bytes INTEGER NOT NULL,
	"by" TEXT NOT NULL,
	PRIMARY KEY (name, "key")
);

CREATE TABLE template_build_log (
	build_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	at TEXT NOT NULL,
	step INTEGER NOT NULL,
	stream TEXT NOT NULL,
	text TEXT NOT NULL,
	PRIMARY KEY (build_id, seq)
);

CREATE TABLE template_builds (
	build_id TEXT NOT NULL,
	name TEXT NOT NULL,
	version TEXT NOT NULL,
	state TEXT NOT NULL,
	recipe TEXT NOT NULL,
	recipe_sha256 TEXT NOT NULL,
	started_at TEXT NOT NULL,
	started_by TEXT NOT NULL,
	ended_at TEXT,
	steps INTEGER NOT NULL,
	steps_done INTEGER NOT NULL,
	steps_cached INTEGER NOT NULL,
	digest TEXT,
	failed_step INTEGER,
	error TEXT,
	last_seq INTEGER NOT NULL,
	PRIMARY KEY (build_id)
);

CREATE TABLE template_tags (
	name TEXT NOT NULL,
	tag TEXT NOT NULL,
	version TEXT NOT NULL,
	digest TEXT NOT NULL,
	build_id TEXT,
	at TEXT NOT NULL,
	"by" TEXT NOT NULL,
	PRIMARY KEY (name, tag)
);

CREATE TABLE templates (
	name TEXT NOT NULL,
	version TEXT NOT NULL,
	digest TEXT NOT NULL,
	state TEXT NOT NULL,
	tags TEXT NOT NULL,
	facts TEXT NOT NULL,
	created_at TEXT NOT NULL,
	created_by TEXT NOT NULL,
	build_id TEXT,
	known_good TEXT,
	withdrawn TEXT,
	PRIMARY KEY (name, version)
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

CREATE TABLE volume_uses (
	sandbox_id TEXT NOT NULL,
	volume_id TEXT NOT NULL,
	at TEXT NOT NULL,
	mode TEXT NOT NULL,
	attached_at TEXT,
	PRIMARY KEY (sandbox_id, volume_id)
);

CREATE TABLE volumes (
	volume_id TEXT NOT NULL,
	name TEXT NOT NULL,
	state TEXT NOT NULL,
	size_mib INTEGER NOT NULL,
	label TEXT NOT NULL,
	grants TEXT NOT NULL,
	created_by TEXT NOT NULL,
	created_at TEXT NOT NULL,
	PRIMARY KEY (volume_id)
);

CREATE TABLE webhooks (
	webhook_id TEXT NOT NULL,
	terms TEXT NOT NULL,
	sealed BLOB NOT NULL,
	created_at TEXT NOT NULL,
	created_by TEXT NOT NULL,
	position INTEGER NOT NULL,
	delivered_at TEXT,
	failing_since TEXT,
	attempts INTEGER NOT NULL,
	last_error TEXT,
	is_dead INTEGER NOT NULL,
	PRIMARY KEY (webhook_id)
);

CREATE UNIQUE INDEX access_tokens_of_sandbox ON access_tokens (sandbox_id, token_id);

CREATE UNIQUE INDEX agents_one_living ON agents (agent_id) WHERE state != 'deleted';

CREATE INDEX builds_agent_id ON builds (agent_id, started_at);

CREATE UNIQUE INDEX builds_pipeline_id ON builds (pipeline_id);

CREATE INDEX builds_sandbox_id ON builds (sandbox_id, started_at);

CREATE UNIQUE INDEX credential_handles_of_sandbox ON credential_handles (sandbox_id, credential_id);

CREATE UNIQUE INDEX credentials_one_living ON credentials (name) WHERE revoked_at IS NULL;

CREATE INDEX ix_announced_builds_name ON announced_builds (name);

CREATE INDEX ix_contract_plans_planned_at ON contract_plans (planned_at);

CREATE INDEX ix_rule_sets_sha256 ON rule_sets (sha256);

CREATE INDEX ix_template_builds_state ON template_builds (state);

CREATE INDEX ix_templates_digest ON templates (digest);

CREATE INDEX ledger_agent_id ON ledger (agent_id);

CREATE INDEX ledger_call_id ON ledger (call_id);

CREATE INDEX ledger_rare ON ledger (kind) WHERE call_id IS NULL AND kind NOT LIKE 'network.%';

CREATE INDEX ledger_rare_of ON ledger (sandbox_id, kind) WHERE call_id IS NULL AND kind NOT LIKE 'network.%';

CREATE TRIGGER ledger_refuses_delete BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;

CREATE TRIGGER ledger_refuses_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;

CREATE INDEX ledger_sandbox_id ON ledger (sandbox_id);

CREATE INDEX ledger_session_id ON ledger (session_id);

CREATE INDEX ledger_subject ON ledger (subject) WHERE subject IS NOT call_id;

CREATE INDEX lineage_edges_item ON lineage_edges (item);

CREATE INDEX lineage_items_agent_id ON lineage_items (agent_id);

CREATE INDEX lineage_items_file ON lineage_items (place, path);

CREATE INDEX lineage_items_host ON lineage_items (host);

CREATE UNIQUE INDEX lineage_items_item_id ON lineage_items (item_id);

CREATE INDEX lineage_items_path ON lineage_items (path);

CREATE INDEX lineage_items_place ON lineage_items (place);

CREATE INDEX lineage_items_sandbox_id ON lineage_items (sandbox_id);

CREATE INDEX lineage_items_session_id ON lineage_items (session_id);

CREATE INDEX lineage_items_sha256 ON lineage_items (sha256);

CREATE INDEX lineage_items_step ON lineage_items (step);

CREATE INDEX lineage_shared_shared ON lineage_shared (shared);

CREATE INDEX lineage_steps_ended ON lineage_steps (place, ended);

CREATE INDEX lineage_steps_ended_at ON lineage_steps (place, ended_at);

CREATE INDEX lineage_steps_left_running ON lineage_steps (place) WHERE left_running;

CREATE INDEX lineage_steps_place ON lineage_steps (place, started);

CREATE INDEX lineage_steps_sandbox ON lineage_steps (sandbox_id);

CREATE INDEX lineage_steps_session ON lineage_steps (session_id, started);

CREATE UNIQUE INDEX lineage_steps_step_id ON lineage_steps (step_id);

CREATE INDEX network_contacts_agent_id ON network_contacts (agent_id);

CREATE INDEX network_contacts_change ON network_contacts (sandbox_id, change);

CREATE INDEX network_contacts_command_id ON network_contacts (command_id);

CREATE INDEX network_contacts_contact_id ON network_contacts (sandbox_id, contact_id);

CREATE INDEX network_contacts_dialled ON network_contacts (dialled);

CREATE INDEX network_contacts_host ON network_contacts (host);

CREATE INDEX network_contacts_sandbox_id ON network_contacts (sandbox_id);

CREATE INDEX previews_address ON previews (label_id, port);

CREATE INDEX previews_sandbox_id ON previews (sandbox_id);

CREATE INDEX sandboxes_agent_id ON sandboxes (agent_id, created_at, sandbox_id);

CREATE INDEX sandboxes_created_at ON sandboxes (created_at, sandbox_id);

CREATE INDEX sandboxes_living ON sandboxes (created_at, sandbox_id) WHERE json_extract(state, '$.state') NOT IN ('failed', 'lost', 'terminated');

CREATE INDEX sessions_sandbox_id ON sessions (sandbox_id);

CREATE INDEX snapshots_agent_id ON snapshots (agent_id);

CREATE UNIQUE INDEX snapshots_snapshot_id ON snapshots (snapshot_id);

CREATE UNIQUE INDEX tokens_digest ON tokens (digest);

CREATE INDEX volume_uses_volume_id ON volume_uses (volume_id);

CREATE UNIQUE INDEX volumes_name ON volumes (name);

INSERT INTO alembic_version VALUES ('0022');
