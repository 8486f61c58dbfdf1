"""Losses beside healthy hardware, and the level of a fail-slow."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
#: Older versions can use the tables.
additive = True

_COLUMNS = (
    ("sessions", "slowdown_healthy"),
    ("sessions", "gpu_hours_lost_most"),
    ("jobs", "slowdown_healthy"),
    ("jobs", "gpu_hours_lost_most"),
    ("jobs", "slow_factor"),
)


def upgrade() -> None:
    """Add the columns; sessions analysed before have no range."""
    for table, name in _COLUMNS:
        op.add_column(table, sa.Column(name, sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    for table, name in _COLUMNS:  # no batch: a copy of the jobs would lose their events
        op.drop_column(table, name)
