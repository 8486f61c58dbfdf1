"""Empty stores of each kind, for tests that must hold on all of them."""

import os
import uuid
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, make_url, text

#: The URL of a PostgreSQL that tests may make databases in; .ci/run sets it.
POSTGRES = "PACELINE_TEST_POSTGRES"


@contextmanager
def sqlite(folder):
    """The URL of a new SQLite file."""
    yield f"sqlite:///{folder / 'store.db'}"


@contextmanager
def postgresql(folder):
    """The URL of a new database of the PostgreSQL that the tests may use."""
    if not os.environ.get(POSTGRES):
        pytest.skip(
            f"no PostgreSQL: set {POSTGRES} to the URL of one in which tests may make databases, "
            "or run .ci/run, which starts one"
        )
    server = make_url(os.environ[POSTGRES]).set(drivername="postgresql+psycopg")
    name = f"paceline_{uuid.uuid4().hex[:12]}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


STORES = {"sqlite": sqlite, "postgresql": postgresql}
