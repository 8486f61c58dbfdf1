"""Several instances share a store: leases, the log of step times, series, states, parts."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
#: Older versions can use the tables.
additive = True

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NAMES = (
    *("shared_keys", "upload_parts", "job_states", "step_rows", "step_log", "leases"),
    *("instances", "revisions"),
)


def _job() -> sa.Column[int]:
    return sa.Column("job_id", _ID, nullable=False, autoincrement=False)


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_job_id"
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    """Keep the first of alerts that fire twice."""
    op.add_column("stores", sa.Column("several", sa.Boolean(), nullable=True))
    op.add_column("sessions", sa.Column("worker", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("next_at", sa.Float(), nullable=True))
    op.execute(
        "UPDATE alerts SET status = 'resolved', ended_at = updated_at WHERE status = 'firing' "
        "AND id NOT IN (SELECT MIN(id) FROM alerts WHERE status = 'firing' GROUP BY fingerprint)"
    )
    firing = sa.text("status = 'firing'")
    op.create_index(
        "uq_alerts_firing",
        "alerts",
        ["fingerprint"],
        unique=True,
        postgresql_where=firing,
        sqlite_where=firing,
    )
    op.create_table(
        "revisions",
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("additive", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_revisions"),
    )
    op.create_table(
        "instances",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_instances"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "step_log",
        sa.Column("seq", _ID, nullable=False),
        _job(),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("block", sa.LargeBinary(), nullable=False),
        _of_job("step_log"),
        sa.PrimaryKeyConstraint("seq", name="pk_step_log"),
        sa.UniqueConstraint("job_id", "key", name="uq_step_log_job_id_key"),
    )
    op.create_index("ix_step_log_shard_position", "step_log", ["shard", "position"])
    op.create_table(
        "step_rows",
        sa.Column("id", _ID, nullable=False),
        _job(),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("last_at", sa.Float(), nullable=False),
        sa.Column("rows", sa.LargeBinary(), nullable=False),
        _of_job("step_rows"),
        sa.PrimaryKeyConstraint("id", name="pk_step_rows"),
    )
    op.create_index("ix_step_rows_job_id_id", "step_rows", ["job_id", "id"])
    op.create_table(
        "job_states",
        _job(),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("saved_at", sa.Float(), nullable=False),
        sa.Column("detector", sa.LargeBinary(), nullable=True),
        sa.Column("ranks", sa.LargeBinary(), nullable=True),
        _of_job("job_states"),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_states"),
    )
    op.create_table(
        "upload_parts",
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name="fk_upload_parts_upload_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("upload_id", "offset", name="pk_upload_parts"),
    )
    op.create_table(
        "shared_keys",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_shared_keys"),
    )


def downgrade() -> None:
    """Drop the tables that instances share."""
    for name in _NAMES:
        op.drop_table(name)
    op.drop_index("uq_alerts_firing", "alerts")
    with op.batch_alter_table("sessions") as sessions:
        sessions.drop_column("worker")
        sessions.drop_column("next_at")
    with op.batch_alter_table("stores") as stores:
        stores.drop_column("several")
