"""Alembic's entry point: migrations run on the connection of ``database.upgrade``."""

from alembic import context

from paceline.monitor.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
