"""Empty stores of each kind, for tests that must hold on all of them."""

import contextlib
import os
import uuid
from contextlib import contextmanager
from functools import cache

import pytest
from sqlalchemy import create_engine, make_url, text

from monitor_postgres import Postgres, programs

#: The URL of a PostgreSQL that tests may make databases in; without it they start one.
POSTGRES = "PACELINE_TEST_POSTGRES"

#: Closed at the end of the session, by conftest.py.
closing = contextlib.ExitStack()


@cache
def server_url():
    """The PostgreSQL of this process; None where there is none and none can be started."""
    if url := os.environ.get(POSTGRES):
        return url
    return closing.enter_context(Postgres()).url if programs() else None


@contextmanager
def sqlite(folder):
    """The URL of a new SQLite file."""
    yield f"sqlite:///{folder / 'store.db'}"


@contextmanager
def postgresql(folder):
    """The URL of a new database of the PostgreSQL that the tests may use."""
    url = server_url()
    if url is None:
        pytest.skip(
            f"no PostgreSQL: apt-get install postgresql, or set {POSTGRES} to the URL of one in "
            "which tests may make databases"
        )
    server = make_url(url).set(drivername="postgresql+psycopg")
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
