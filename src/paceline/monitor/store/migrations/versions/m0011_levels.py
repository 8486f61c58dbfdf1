"""The factors of a fail-slow that its alert has said."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
#: Older versions can use the table.
additive = True

_NAMES = ("factor_least", "factor_most")


def upgrade() -> None:
    """Add the columns; they are unknown for earlier alerts."""
    for name in _NAMES:
        op.add_column("alerts", sa.Column(name, sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in _NAMES:  # no batch: a copy of the alerts would lose their messages
        op.drop_column("alerts", name)
