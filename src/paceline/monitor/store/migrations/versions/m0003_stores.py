"""A store has a name, which its data folder and bucket also keep; a silence has its creator."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """The service names the store at its next start; old silences have no creator."""
    op.add_column("silences", sa.Column("who", sa.Text(), nullable=True))
    op.create_table(
        "stores",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("last_job", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_stores"),
    )


def downgrade() -> None:
    """Drop the names."""
    with op.batch_alter_table("silences") as silences:
        silences.drop_column("who")
    op.drop_table("stores")
