"""Whether other work of this machine is at fault for what a test measured.

A file of tests takes the fixture over by its name: ``timed = peace.timed``.
"""

import contextlib
import os
import time
from pathlib import Path

import pytest

from paceline.errors import DemoError

#: Cores that others may take before times say nothing.
MOST_OF_OTHERS = 0.15


def cpu_seconds():
    """(of ours that ended, of all processes of this machine and what its host took from it)."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, irq, soft, steal = (int(field) for field in fields)
    own = os.times()
    ticks = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
    return own.user + own.system + own.children_user + own.children_system, ticks


@pytest.fixture
def timed():
    """A context for what depends on times: where the machine was busy, skip and say so."""
    linux = Path("/proc/stat").exists()
    begin, before = time.monotonic(), cpu_seconds() if linux else None

    @contextlib.contextmanager
    def context():
        try:
            yield
        except (AssertionError, DemoError) as error:
            if not linux or (isinstance(error, DemoError) and "very busy" not in str(error)):
                raise
            ours, all_of_it = (after - b for after, b in zip(cpu_seconds(), before, strict=True))
            share = (all_of_it - ours) / (time.monotonic() - begin)
            if share > MOST_OF_OTHERS:
                pytest.skip(
                    f"this machine is busy: other work took {share:.2f} of a core, so times say "
                    f"nothing; run it while nothing else runs ({error})"
                )
            raise

    return context
