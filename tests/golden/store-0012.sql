BEGIN TRANSACTION;
CREATE TABLE accounts (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	project TEXT NOT NULL, 
	scope TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	made_by TEXT NOT NULL, 
	disabled_at FLOAT, 
	CONSTRAINT pk_accounts PRIMARY KEY (id), 
	CONSTRAINT uq_accounts_project_name UNIQUE (project, name)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0012');
CREATE TABLE alerts (
	id INTEGER NOT NULL, 
	fingerprint TEXT NOT NULL, 
	rule TEXT NOT NULL, 
	project TEXT NOT NULL, 
	job_id INTEGER NOT NULL, 
	session_id INTEGER, 
	importance TEXT NOT NULL, 
	labels JSON NOT NULL, 
	headline TEXT NOT NULL, 
	cause TEXT, 
	place TEXT, 
	gain TEXT, 
	status TEXT NOT NULL, 
	started_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	ended_at FLOAT, hosts TEXT, acknowledged_by TEXT, acknowledged_at FLOAT, acknowledged_until FLOAT, acknowledged_why TEXT, factor_least FLOAT, factor_most FLOAT, 
	CONSTRAINT pk_alerts PRIMARY KEY (id), 
	CONSTRAINT fk_alerts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	client TEXT NOT NULL, 
	project TEXT NOT NULL, 
	action TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE TABLE deliveries (
	id INTEGER NOT NULL, 
	alert_id INTEGER NOT NULL, 
	channel TEXT NOT NULL, 
	status TEXT NOT NULL, 
	state TEXT NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_at FLOAT NOT NULL, 
	error TEXT, told_cause TEXT, told_place TEXT, 
	CONSTRAINT pk_deliveries PRIMARY KEY (id), 
	CONSTRAINT fk_deliveries_alert_id FOREIGN KEY(alert_id) REFERENCES alerts (id) ON DELETE CASCADE, 
	CONSTRAINT uq_deliveries_alert_id_channel_status UNIQUE (alert_id, channel, status)
);
CREATE TABLE "events" (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	kind TEXT NOT NULL, 
	step BIGINT NOT NULL, 
	since_step BIGINT NOT NULL, 
	factor FLOAT, 
	lost_s FLOAT, 
	ranks JSON NOT NULL, 
	text TEXT NOT NULL, 
	start INTEGER, 
	CONSTRAINT pk_events PRIMARY KEY (id), 
	CONSTRAINT fk_events_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_events_job_id_kind_start_step UNIQUE (job_id, kind, start, step)
);
INSERT INTO "events" VALUES(1,1,180.0,'onset',82,80,1.5,1.5,'[0, 1]','step 82: 1.50x slower',NULL);
CREATE TABLE instances (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	started_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	CONSTRAINT pk_instances PRIMARY KEY (id)
);
CREATE TABLE job_states (
	job_id INTEGER NOT NULL, 
	position BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	saved_at FLOAT NOT NULL, 
	detector BLOB, 
	ranks BLOB, 
	CONSTRAINT pk_job_states PRIMARY KEY (job_id), 
	CONSTRAINT fk_job_states_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE jobs (
	id INTEGER NOT NULL, 
	project TEXT NOT NULL, 
	name TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	gpus INTEGER, 
	degrees JSON NOT NULL, 
	labels JSON NOT NULL, 
	status TEXT NOT NULL, 
	seen_at FLOAT NOT NULL, 
	last_step BIGINT, 
	step_s FLOAT, 
	healthy_s FLOAT, 
	slow_since_step BIGINT, 
	slowdown FLOAT, 
	waste FLOAT, 
	cause TEXT, 
	headline TEXT, 
	gpu_hours_lost FLOAT NOT NULL, 
	n_sessions INTEGER NOT NULL, 
	trend JSON NOT NULL, slowdown_lasting FLOAT, slowdown_healthy FLOAT, gpu_hours_lost_most FLOAT, slow_factor FLOAT, data_loading FLOAT, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT uq_jobs_project_name UNIQUE (project, name)
);
INSERT INTO "jobs" VALUES(1,'default','job',100.0,64,'{"dp_size": 4}','{"team": "a"}','running',200.0,99,1.5,1.0,80,1.25,NULL,NULL,NULL,2.5,1,'[1.25]',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE leases (
	name TEXT NOT NULL, 
	owner TEXT, 
	fence BIGINT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
CREATE TABLE logins (
	id INTEGER NOT NULL, 
	sha256 TEXT NOT NULL, 
	name TEXT NOT NULL, 
	issuer TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	groups JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	CONSTRAINT pk_logins PRIMARY KEY (id), 
	CONSTRAINT uq_logins_sha256 UNIQUE (sha256)
);
CREATE TABLE revisions (
	revision TEXT NOT NULL, 
	additive BOOLEAN NOT NULL, 
	CONSTRAINT pk_revisions PRIMARY KEY (revision)
);
CREATE TABLE session_facts (
	session_id INTEGER NOT NULL, 
	facts JSON NOT NULL, 
	CONSTRAINT pk_session_facts PRIMARY KEY (session_id), 
	CONSTRAINT fk_session_facts_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE sessions (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	sha256 TEXT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	file_name TEXT NOT NULL, 
	meta JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	status TEXT NOT NULL, 
	attempts INTEGER NOT NULL, 
	started_at FLOAT, 
	finished_at FLOAT, 
	reason TEXT, 
	first_step BIGINT, 
	last_step BIGINT, 
	step_s FLOAT, 
	slowdown FLOAT, 
	waste FLOAT, 
	cause TEXT, 
	headline TEXT, 
	best_gain FLOAT, 
	gpu_hours_lost FLOAT, worker TEXT, next_at FLOAT, slowdown_lasting FLOAT, place TEXT, cause_gain FLOAT, slowdown_healthy FLOAT, gpu_hours_lost_most FLOAT, data_loading FLOAT, 
	CONSTRAINT pk_sessions PRIMARY KEY (id), 
	CONSTRAINT fk_sessions_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_sessions_job_id_sha256 UNIQUE (job_id, sha256)
);
INSERT INTO "sessions" VALUES(1,1,'ab',1000,'trace.parquet','{}',150.0,'done',1,NULL,NULL,NULL,NULL,NULL,NULL,1.25,0.2,'slow-worker',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE shared_keys (
	name TEXT NOT NULL, 
	value BLOB NOT NULL, 
	CONSTRAINT pk_shared_keys PRIMARY KEY (name)
);
CREATE TABLE silences (
	id INTEGER NOT NULL, 
	project TEXT NOT NULL, 
	rule TEXT, 
	job TEXT, 
	until FLOAT NOT NULL, 
	comment TEXT NOT NULL, 
	created_at FLOAT NOT NULL, who TEXT, 
	CONSTRAINT pk_silences PRIMARY KEY (id)
);
CREATE TABLE span_log (
	seq INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	"key" BLOB NOT NULL, 
	line BLOB, 
	size INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_span_log PRIMARY KEY (seq), 
	CONSTRAINT fk_span_log_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_span_log_job_id_key UNIQUE (job_id, "key")
);
CREATE TABLE step_log (
	seq INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	shard INTEGER NOT NULL, 
	position BIGINT NOT NULL, 
	at FLOAT NOT NULL, 
	"key" BLOB NOT NULL, 
	block BLOB NOT NULL, 
	CONSTRAINT pk_step_log PRIMARY KEY (seq), 
	CONSTRAINT fk_step_log_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_step_log_job_id_key UNIQUE (job_id, "key")
);
CREATE TABLE step_rows (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	last_at FLOAT NOT NULL, 
	rows BLOB NOT NULL, 
	CONSTRAINT pk_step_rows PRIMARY KEY (id), 
	CONSTRAINT fk_step_rows_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE stores (
	name TEXT NOT NULL, 
	beat BIGINT NOT NULL, 
	last_job BIGINT, 
	created_at FLOAT NOT NULL, several BOOLEAN, 
	CONSTRAINT pk_stores PRIMARY KEY (name)
);
CREATE TABLE "tokens" (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	project TEXT NOT NULL, 
	scope TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT, 
	revoked_at FLOAT, 
	used_at FLOAT, 
	account_id INTEGER, 
	made_by TEXT, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT uq_tokens_sha256 UNIQUE (sha256), 
	CONSTRAINT fk_tokens_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);
INSERT INTO "tokens" VALUES(1,'ann','default','push','cd',50.0,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE upload_parts (
	upload_id TEXT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	size BIGINT NOT NULL, 
	"key" TEXT NOT NULL, 
	CONSTRAINT pk_upload_parts PRIMARY KEY (upload_id, "offset"), 
	CONSTRAINT fk_upload_parts_upload_id FOREIGN KEY(upload_id) REFERENCES uploads (id) ON DELETE CASCADE
);
CREATE TABLE uploads (
	id TEXT NOT NULL, 
	job_id INTEGER NOT NULL, 
	sha256 TEXT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	file_name TEXT NOT NULL, 
	meta JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	touched_at FLOAT NOT NULL, 
	CONSTRAINT pk_uploads PRIMARY KEY (id), 
	CONSTRAINT fk_uploads_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_jobs_project_seen_at ON jobs (project, seen_at);
CREATE INDEX ix_jobs_project_waste ON jobs (project, waste);
CREATE INDEX ix_alerts_fingerprint_status ON alerts (fingerprint, status);
CREATE INDEX ix_alerts_project_status_started_at ON alerts (project, status, started_at);
CREATE INDEX ix_sessions_created_at ON sessions (created_at);
CREATE INDEX ix_sessions_job_id_created_at ON sessions (job_id, created_at);
CREATE INDEX ix_sessions_status_created_at ON sessions (status, created_at);
CREATE INDEX ix_deliveries_state_next_at ON deliveries (state, next_at);
CREATE INDEX ix_events_job_id_at ON events (job_id, at);
CREATE INDEX ix_logins_expires_at ON logins (expires_at);
CREATE INDEX ix_audit_project_id ON audit (project, id);
CREATE INDEX ix_audit_at ON audit (at);
CREATE UNIQUE INDEX uq_alerts_firing ON alerts (fingerprint) WHERE status = 'firing';
CREATE INDEX ix_step_log_shard_position ON step_log (shard, position);
CREATE INDEX ix_step_rows_job_id_id ON step_rows (job_id, id);
COMMIT;
