"""The share of the step that waits for data take, of sessions and jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
#: Older versions can use the tables.
additive = True

_TABLES = ("sessions", "jobs")


def upgrade() -> None:
    """Add the column; it is unknown for sessions analysed before."""
    for table in _TABLES:
        op.add_column(table, sa.Column("data_loading", sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    for table in _TABLES:  # no batch: a copy of the jobs would lose their events
        op.drop_column(table, "data_loading")
