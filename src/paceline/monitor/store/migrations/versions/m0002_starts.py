"""Events are of a start of their job; a job without an analysed session has no slowdown."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_OLD, _NEW = ["job_id", "kind", "step"], ["job_id", "kind", "start", "step"]


def upgrade() -> None:
    """Events that are there have no start: nobody knows which it was."""
    with op.batch_alter_table("events") as events:  # SQLite makes the table anew
        events.add_column(sa.Column("start", sa.Integer(), nullable=True))
        events.drop_constraint("uq_events_job_id_kind_step", type_="unique")
        events.create_unique_constraint("uq_events_job_id_kind_start_step", _NEW)
    op.execute(
        "UPDATE jobs "
        "SET slowdown = NULL, waste = NULL, cause = NULL, headline = NULL, trend = '[]' "
        "WHERE id NOT IN (SELECT job_id FROM sessions WHERE status = 'done')"
    )


def downgrade() -> None:
    """Of events of several starts at one step the first stays."""
    op.execute(
        "DELETE FROM events WHERE id NOT IN "
        "(SELECT MIN(id) FROM events GROUP BY job_id, kind, step)"
    )
    with op.batch_alter_table("events") as events:
        events.drop_constraint("uq_events_job_id_kind_start_step", type_="unique")
        events.create_unique_constraint("uq_events_job_id_kind_step", _OLD)
        events.drop_column("start")
