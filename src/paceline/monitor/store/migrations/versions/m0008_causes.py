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


#: The pages tell who is slow beside the text, as a later session may name them.
_UNKNOWN = ("; who: unknown, run paceline validate", "; why: unknown, run paceline validate")


def upgrade() -> None:
    """Add the columns; sessions analysed before lack their values."""
    for table, name, kind in _COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=True))
    events = sa.table("events", sa.column("text", sa.Text()))
    for words in _UNKNOWN:
        change = events.update().where(events.c.text.like(f"%{words}%"))
        op.execute(change.values(text=sa.func.replace(events.c.text, words, "")))


def downgrade() -> None:
    """Drop them."""
    for table, name, _ in _COLUMNS:  # no batch: a copy of the jobs would lose their events
        op.drop_column(table, name)
