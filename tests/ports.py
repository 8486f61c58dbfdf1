"""Ports that the documentation names, one test at a time.

A file of tests takes the fixture over by its name: ``own_port = ports.own_port``.
"""

import contextlib
import fcntl
import socket
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def own_port():
    """Take a port until the test ends; skip if a process that is no test has it.

    Tests run beside each other, and several pages name the same port.
    """
    own = set()
    with contextlib.ExitStack() as taken:

        def take(port: int) -> None:
            if port in own:
                return
            own.add(port)
            path = Path(tempfile.gettempdir()) / f"paceline-tests-port-{port}"
            lock = taken.enter_context(path.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    pytest.skip(f"port {port} is taken: end what listens there")

        yield take
