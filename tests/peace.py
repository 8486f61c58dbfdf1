"""Whether other work of this machine is at fault for what a test measured.

A file of tests takes the fixture over by its name: ``timed = peace.timed``.
"""

import contextlib

import pytest

from paceline.demo.busy import MOST_OF_OTHERS, OtherWork
from paceline.errors import DemoError, DemoLateError


@pytest.fixture
def timed():
    """A context for what depends on times: where the machine was busy, skip and say so."""
    other = OtherWork()

    @contextlib.contextmanager
    def context():
        try:
            yield
        except (AssertionError, DemoError) as error:
            if isinstance(error, DemoError) and not isinstance(error, DemoLateError):
                raise
            if (cores := other.cores()) > MOST_OF_OTHERS:
                pytest.skip(
                    f"this machine is busy: other work took {cores:.2f} of a core, so times say "
                    f"nothing; run it while nothing else runs ({error})"
                )
            raise

    return context
