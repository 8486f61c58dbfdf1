"""PyTorch profiles of CUDA ranks in their format, for tests of several files.

A file of tests takes a fixture over by its name: ``truth = kineto_profiles.truth``.
"""

from pathlib import Path

import pytest

from import_files import PROFILED, dump, load, make_trace
from paceline.trace import OpKind, Trace

WRITTEN = PROFILED | {OpKind.OPTIMIZER_CLIP_MAIN_GRAD}


@pytest.fixture(scope="module")
def truth() -> Trace:
    return make_trace(WRITTEN)


def strip(path: Path, gone) -> None:
    """Rewrite a profile without the events of which ``gone`` is true."""
    value = load(path)
    value["traceEvents"] = [event for event in value["traceEvents"] if not gone(event)]
    dump(value, path)
