"""The cause and place that a channel has been told."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
#: Older versions can use the table.
additive = True

_NAMES = ("told_cause", "told_place")


def upgrade() -> None:
    """Add the columns; they are unknown for earlier messages."""
    for name in _NAMES:
        op.add_column("deliveries", sa.Column(name, sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in _NAMES:
        op.drop_column("deliveries", name)
