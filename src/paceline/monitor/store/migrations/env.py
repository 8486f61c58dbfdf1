"""Alembic's way in: migrations run on the connection that ``database.upgrade`` opened."""

from alembic import context

from paceline.monitor.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
