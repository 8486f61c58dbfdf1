"""An alert has columns for its hosts and its acknowledgement."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
#: Older versions can use the tables.
additive = True

_COLUMNS = (
    ("hosts", sa.Text()),
    ("acknowledged_by", sa.Text()),
    ("acknowledged_at", sa.Float()),
    ("acknowledged_until", sa.Float()),
    ("acknowledged_why", sa.Text()),
)


def upgrade() -> None:
    """Take the hosts from the last phrase of the place."""
    for name, kind in _COLUMNS:
        op.add_column("alerts", sa.Column(name, kind, nullable=True))
    alerts = sa.table("alerts", sa.column("id", sa.Integer), sa.column("place"), sa.column("hosts"))
    connection = op.get_bind()
    query = sa.select(alerts.c.id, alerts.c.place).where(alerts.c.place.like("%host %"))
    for number, place in connection.execute(query).all():
        _, mark, hosts = f"; {place}".rpartition("; host ")
        if mark:
            change = alerts.update().where(alerts.c.id == number).values(hosts=hosts)
            connection.execute(change)


def downgrade() -> None:
    """Drop them."""
    with op.batch_alter_table("alerts") as alerts:
        for name, _ in _COLUMNS:
            alerts.drop_column(name)
