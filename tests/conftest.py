import signal
from pathlib import Path

import pytest

from jobs import Spec, make_rows
from shared_data import DATA

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that; some
# tests end them by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_jobs() -> Path:
    """The folder of the three real jobs."""
    folder = DATA / "whatif"
    if not folder.is_dir():
        pytest.skip(f"the real jobs are not here ({folder}); set PACELINE_SHARED to their folder")
    return folder


@pytest.fixture(scope="session")
def _small_rows() -> list[dict]:
    return make_rows(Spec(pp=2, microbatches=(3, 3), steps=3, shared_transfers=True, first_step=5))


@pytest.fixture
def rows(_small_rows) -> list[dict]:
    """A job of dp 2 x pp 2 with 3 microbatches, steps 5 to 7; the test may change it."""
    return [dict(row) for row in _small_rows]
