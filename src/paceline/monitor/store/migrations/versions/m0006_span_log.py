"""Instances share spans that belong to no session yet."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
#: Older versions can use the tables.
additive = True

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "span_log",
        sa.Column("seq", _ID, nullable=False),
        sa.Column("job_id", _ID, nullable=False, autoincrement=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("line", sa.LargeBinary(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_span_log_job_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("seq", name="pk_span_log"),
        sa.UniqueConstraint("job_id", "key", name="uq_span_log_job_id_key"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("span_log")
