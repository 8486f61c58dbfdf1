"""Events belong to a start of their job; a job without an analysed session has no slowdown."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_OLD, _NEW = ["job_id", "kind", "step"], ["job_id", "kind", "start", "step"]


def upgrade() -> None:
    """Existing events get no start, as it is unknown."""
    with op.batch_alter_table("events") as events:  # SQLite recreates the table
        events.add_column(sa.Column("start", sa.Integer(), nullable=True))
        events.drop_constraint("uq_events_job_id_kind_step", type_="unique")
        events.create_unique_constraint("uq_events_job_id_kind_start_step", _NEW)
    op.execute(
        "UPDATE jobs "
        "SET slowdown = NULL, waste = NULL, cause = NULL, headline = NULL, trend = '[]' "
        "WHERE id NOT IN (SELECT job_id FROM sessions WHERE status = 'done')"
    )


def downgrade() -> None:
    """Keep the first of several starts' events at one step."""
    op.execute(
        "DELETE FROM events WHERE id NOT IN "
        "(SELECT MIN(id) FROM events GROUP BY job_id, kind, step)"
    )
    with op.batch_alter_table("events") as events:
        events.drop_constraint("uq_events_job_id_kind_start_step", type_="unique")
        events.create_unique_constraint("uq_events_job_id_kind_step", _OLD)
        events.drop_column("start")
