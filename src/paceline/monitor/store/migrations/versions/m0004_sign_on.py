"""Logins of the OpenID provider's users, service accounts, and a log of actions."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
#: Older versions can use the tables.
additive = True

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Existing tokens have no known creator."""
    op.create_table(
        "accounts",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("disabled_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.UniqueConstraint("project", "name", name="uq_accounts_project_name"),
    )
    with op.batch_alter_table("tokens") as tokens:
        tokens.add_column(sa.Column("account_id", _ID, nullable=True))
        tokens.add_column(sa.Column("made_by", sa.Text(), nullable=True))
        tokens.create_foreign_key("fk_tokens_account_id", "accounts", ["account_id"], ["id"])
    op.create_table(
        "logins",
        sa.Column("id", _ID, nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_logins"),
        sa.UniqueConstraint("sha256", name="uq_logins_sha256"),
    )
    op.create_index("ix_logins_expires_at", "logins", ["expires_at"])
    op.create_table(
        "audit",
        sa.Column("id", _ID, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_project_id", "audit", ["project", "id"])
    op.create_index("ix_audit_at", "audit", ["at"])


def downgrade() -> None:
    """Tokens of service accounts become tokens of persons."""
    op.drop_table("audit")
    op.drop_table("logins")
    with op.batch_alter_table("tokens") as tokens:
        tokens.drop_constraint("fk_tokens_account_id", type_="foreignkey")
        tokens.drop_column("account_id")
        tokens.drop_column("made_by")
    op.drop_table("accounts")
