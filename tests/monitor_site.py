"""A small monitor for the tests of a file, what it logs, and bare connections.

A file of tests takes a fixture over by its name: ``site = monitor_site.site``.
"""

import logging

import pytest

from monitor_web import monitor
from paceline.monitor.log import JsonLines


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with monitor(tmp_path_factory.mktemp("site"), max_body_mib=1, max_upload_mib=8) as found:
        yield found


@pytest.fixture(autouse=True)
def lines():
    """What the service logs, as it would be written."""
    written = []

    class Keep(logging.Handler):
        def emit(self, record):
            written.append(JsonLines().format(record))

    handler = Keep()
    logger = logging.getLogger("paceline.monitor")
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    yield written
    logger.removeHandler(handler)


@pytest.fixture(autouse=True)
def log_as_before():
    """`serve` sets the process's log up."""
    loggers = [logging.getLogger(n) for n in ("paceline.monitor", "uvicorn", "uvicorn.error")]
    before = [(each, each.handlers, each.level, each.propagate) for each in loggers]
    yield
    for each, handlers, level, propagate in before:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


def until(connection, end):
    received = b""
    while end not in received:
        part = connection.recv(65536)
        if not part:
            return received
        received += part
    return received
