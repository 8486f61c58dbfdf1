"""A session has the slowdown that lasts, the place of its cause and the gain of its remedy."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
#: Older versions can use the tables.
additive = True

_COLUMNS = (
    ("sessions", "slowdown_lasting", sa.Float()),
    ("sessions", "place", sa.Text()),
    ("sessions", "cause_gain", sa.Float()),
    ("jobs", "slowdown_lasting", sa.Float()),
)


def upgrade() -> None:
    """Add the columns; sessions analysed before lack their values."""
    for table, name, kind in _COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Drop them."""
    for table, name, _ in _COLUMNS:
        with op.batch_alter_table(table) as batch:
            batch.drop_column(name)
