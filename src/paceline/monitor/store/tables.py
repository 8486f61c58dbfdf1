"""The monitor's tables. Times are seconds since 1970 (float, UTC); large data are in blobs."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

#: SQLite numbers rows itself only in INTEGER columns, which hold 64 bits there.
ID = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: One row: the store's name, and a number that grows while a service runs.
stores = Table(
    "stores",
    metadata,
    Column("name", Text, primary_key=True),
    Column("beat", BigInteger, nullable=False),
    Column("last_job", BigInteger),  # largest number of a removed job
    Column("several", Boolean),  # whether instances share it, with step times in the tables below
    Column("created_at", Float, nullable=False),
)

#: Service accounts: tokens of one name, project and scope that end together.
accounts = Table(
    "accounts",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("made_by", Text, nullable=False),
    Column("disabled_at", Float),
    UniqueConstraint("project", "name"),
)

#: Tokens, of which only the SHA-256 is stored. scope: push, read, operate or admin.
tokens = Table(
    "tokens",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("sha256", Text, nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
    Column("used_at", Float),
    Column("account_id", ID, ForeignKey("accounts.id")),  # None: a person's token
    Column("made_by", Text),  # None: an older version's
)

#: Logins of the OpenID provider's users; only the SHA-256 of the cookie is stored.
logins = Table(
    "logins",
    metadata,
    Column("id", ID, primary_key=True),
    Column("sha256", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("groups", JSON, nullable=False, default=list),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("ended_at", Float),
    Index(None, "expires_at"),
)

#: Log of actions by people and programs: logins, tokens, silences, removals.
audit = Table(
    "audit",
    metadata,
    Column("id", ID, primary_key=True),
    Column("at", Float, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),  # kind of actor: user, token, account, ...
    Column("client", Text, nullable=False, default=""),  # address
    Column("project", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Index(None, "project", "id"),
    Index(None, "at"),
)

#: Training jobs; the columns from ``status`` on are the current state, for the list of jobs.
jobs = Table(
    "jobs",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("gpus", Integer),
    Column("degrees", JSON, nullable=False, default=dict),
    Column("labels", JSON, nullable=False, default=dict),
    Column("status", Text, nullable=False, default="new"),  # new, running, silent, ended
    Column("seen_at", Float, nullable=False),
    Column("last_step", BigInteger),
    Column("step_s", Float),  # median of the latest steps and their ranks
    Column("healthy_s", Float),  # median of the ranks
    Column("slow_since_step", BigInteger),
    Column("slow_factor", Float),  # step time over the healthy one, of the latest fail-slow
    Column("slowdown", Float),  # S of the latest session
    Column("slowdown_lasting", Float),  # the same without variation that passes
    Column("slowdown_healthy", Float),  # S beside healthy hardware; None if S has no range
    Column("data_loading", Float),  # share of the step that waits for data take, outside S
    Column("waste", Float),
    Column("cause", Text),
    Column("headline", Text),
    Column("gpu_hours_lost", Float, nullable=False, default=0.0),
    Column("gpu_hours_lost_most", Float),  # beside healthy hardware
    Column("n_sessions", Integer, nullable=False, default=0),
    Column("trend", JSON, nullable=False, default=list),  # S of the last 20 sessions
    UniqueConstraint("project", "name"),
    Index(None, "project", "waste"),
    Index(None, "project", "seen_at"),
)

#: Profiling sessions: an uploaded trace and its analysis.
sessions = Table(
    "sessions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("file_name", Text, nullable=False),
    Column("meta", JSON, nullable=False, default=dict),  # degrees and other data, as pushed
    Column("created_at", Float, nullable=False),
    Column("status", Text, nullable=False, default="queued"),  # queued, running, done, failed
    Column("attempts", Integer, nullable=False, default=0),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("reason", Text),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("step_s", Float),
    Column("slowdown", Float),
    Column("waste", Float),
    Column("cause", Text),
    Column("headline", Text),
    Column("best_gain", Float),
    Column("slowdown_lasting", Float),  # S without variation that passes
    Column("slowdown_healthy", Float),  # S beside healthy hardware; None if S has no range
    Column("data_loading", Float),  # share of the step that waits for data take, outside S
    Column("place", Text),  # of the cause, or None
    Column("cause_gain", Float),  # gain of its best remedy, or None
    Column("gpu_hours_lost", Float),
    Column("gpu_hours_lost_most", Float),  # beside healthy hardware
    Column("worker", Text),  # the analysing instance
    Column("next_at", Float),  # earliest next attempt
    UniqueConstraint("job_id", "sha256"),
    Index(None, "status", "created_at"),
    Index(None, "job_id", "created_at"),
    Index(None, "created_at"),
)

#: For the sessions of one job. An expression, so that the index of all states is not taken for it:
#: SQLite would walk through every analysed session of the store.
IS_DONE = sessions.c.status.concat("") == "done"

#: Fields of a session for the fleet's figures (results/facts.py), and its causes for alerts
#: (results/causes.py).
session_facts = Table(
    "session_facts",
    metadata,
    Column("session_id", ID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("facts", JSON, nullable=False),
)

#: Unfinished uploads; their bytes are in a file of the data folder.
uploads = Table(
    "uploads",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("file_name", Text, nullable=False),
    Column("meta", JSON, nullable=False, default=dict),
    Column("created_at", Float, nullable=False),
    Column("touched_at", Float, nullable=False),
)

#: Detector events of the step times.
events = Table(
    "events",
    metadata,
    Column("id", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("at", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("start", Integer),  # number of restarts before it; None: stored by an older version
    Column("step", BigInteger, nullable=False),
    Column("since_step", BigInteger, nullable=False),
    Column("factor", Float),
    Column("lost_s", Float),
    Column("ranks", JSON, nullable=False, default=list),
    Column("text", Text, nullable=False),
    UniqueConstraint("job_id", "kind", "start", "step"),
    Index(None, "job_id", "at"),
)

#: Order of the events of one job; likewise, by which SQLite does not walk through all events.
EVENT_ORDER = events.c.id + 0

#: Alerts: one row from firing to resolved. fingerprint: rule and job, which prevents duplicates.
alerts = Table(
    "alerts",
    metadata,
    Column("id", ID, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("session_id", ID),
    Column("importance", Text, nullable=False),
    Column("labels", JSON, nullable=False, default=dict),
    Column("headline", Text, nullable=False),
    Column("cause", Text),
    Column("place", Text),
    Column("hosts", Text),  # hosts of the place, as shown, or None
    Column("gain", Text),
    Column("status", Text, nullable=False),  # firing, resolved
    Column("started_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("acknowledged_by", Text),  # person working on it, or None
    Column("acknowledged_at", Float),
    Column("acknowledged_until", Float),
    Column("acknowledged_why", Text),
    Column("factor_least", Float),  # factors of a fail-slow's levels that it has said, or None
    Column("factor_most", Float),
    Index(None, "fingerprint", "status"),
    Index(
        "uq_alerts_firing",
        "fingerprint",
        unique=True,
        postgresql_where=text("status = 'firing'"),
        sqlite_where=text("status = 'firing'"),
    ),
    Index(None, "project", "status", "started_at"),
)

silences = Table(
    "silences",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project", Text, nullable=False),
    Column("rule", Text),  # None: any
    Column("job", Text),  # name; None: any
    Column("until", Float, nullable=False),
    Column("comment", Text, nullable=False, default=""),
    Column("who", Text),  # the token's name; None: stored by an older version
    Column("created_at", Float, nullable=False),
)

#: Messages to be delivered at least once, also after a restart.
deliveries = Table(
    "deliveries",
    metadata,
    Column("id", ID, primary_key=True),
    Column("alert_id", ID, ForeignKey("alerts.id", ondelete="CASCADE"), nullable=False),
    Column("channel", Text, nullable=False),
    Column("status", Text, nullable=False),  # content: firing, updated or resolved
    Column("state", Text, nullable=False, default="waiting"),  # waiting, delivered, given-up
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_at", Float, nullable=False),
    Column("error", Text),
    Column("told_cause", Text),  # what the delivered message said, or None
    Column("told_place", Text),
    UniqueConstraint("alert_id", "channel", "status"),
    Index(None, "state", "next_at"),
)

#: Revisions of the tables that older versions can use.
revisions = Table(
    "revisions",
    metadata,
    Column("revision", Text, primary_key=True),
    Column("additive", Boolean, nullable=False),
)

#: Processes that share the store; an expired one has no leases.
instances = Table(
    "instances",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),  # serve, work
    Column("started_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),  # by the clock of the database
)

#: Work that one instance does for all. fence: increases with each owner.
leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text),  # instances.id; no foreign key, so that a heartbeat locks nothing
    Column("fence", BigInteger, nullable=False),
)

#: Pushed step times of all instances, read in the order of (position, seq).
step_log = Table(
    "step_log",
    metadata,
    Column("seq", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("shard", Integer, nullable=False),
    Column("position", BigInteger, nullable=False),  # number of the transaction
    Column("at", Float, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("block", LargeBinary, nullable=False),
    UniqueConstraint("job_id", "key"),
    Index(None, "shard", "position"),
)

#: Requests with spans. line: compressed content; None: it is in a session.
span_log = Table(
    "span_log",
    metadata,
    Column("seq", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("line", LargeBinary),
    Column("size", Integer, nullable=False),
    Column("at", Float, nullable=False),
    UniqueConstraint("job_id", "key"),
)

#: Series of the jobs' steps, in parts (step_series.ROW).
step_rows = Table(
    "step_rows",
    metadata,
    Column("id", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("n", Integer, nullable=False),
    Column("last_at", Float, nullable=False),
    Column("rows", LargeBinary, nullable=False),
    Index(None, "job_id", "id"),
)

#: Last saved detectors and rank maps, and the place in the log up to which they have seen all.
job_states = Table(
    "job_states",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("saved_at", Float, nullable=False),
    Column("detector", LargeBinary),
    Column("ranks", LargeBinary),
)

#: Parts of unfinished uploads in the bucket.
upload_parts = Table(
    "upload_parts",
    metadata,
    Column("upload_id", Text, ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True),
    Column("offset", BigInteger, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
)

#: Secrets shared by all instances.
shared_keys = Table(
    "shared_keys",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
