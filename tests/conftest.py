import gc
import signal
import sys
from pathlib import Path

import pytest

import requires
from jobs import Spec, make_rows

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that; some
# tests end them by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Files that need a PostgreSQL throughout.
SERVICES = ("test_monitor_instances.py", "test_monitor_faults.py", "test_monitor_takeover.py")
#: The files that take longest, waiting included (`--durations=0`): begun last, they would keep one
#: worker busy after all others have ended.
LONGEST = (
    "test_docs_lessons.py",
    "test_docs_scenes.py",
    "test_docs_readme.py",
    "test_record_hooks.py",
    "test_monitor_faults.py",
    "test_monitor_takeover.py",
    "test_monitor_durability.py",
    "test_browser_monitor.py",
    "test_demo_live.py",
    "test_monitor_analysis_pool.py",
    "test_monitor_push.py",
    "test_browser_report.py",
    "test_monitor_hostile.py",
    "test_kineto_pipelines.py",
    "test_detect_validate.py",
    "test_critical_path.py",
    "test_detect_detector.py",
    "test_detect_state.py",
    "test_answers.py",
    "test_sources_json_stream.py",
    "test_plan_calibrate.py",
    "test_remedies_sequence_partition.py",
)


def pytest_collection():
    # Thousands of tests and their modules stay: no use in walking them again and again.
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


if requires.is_installed("hypothesis"):
    from hypothesis import HealthCheck, settings

    # How long an example takes is the machine's affair.
    settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("calm")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """The longest files first (xdist: with ``--no-loadscope-reorder``), and marked ``slow``.

    What needs a browser or a PostgreSQL is marked ``services``: files of :data:`SERVICES`, too.
    """
    order = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    for item in items:
        if item.path.name in order:
            item.add_marker("slow")
        is_named = "postgresql" in item.name or item.path.name in SERVICES
        if item.path.parent.name == "browser" or is_named:
            item.add_marker("services")


def pytest_sessionfinish():
    if stores := sys.modules.get("monitor_stores"):
        stores.closing.close()


@pytest.fixture(scope="session")
def real_jobs() -> Path:
    """The folder of the three real jobs."""
    return requires.data("whatif")


@pytest.fixture(scope="session")
def _small_rows() -> list[dict]:
    return make_rows(Spec(pp=2, microbatches=(3, 3), steps=3, shared_transfers=True, first_step=5))


@pytest.fixture
def rows(_small_rows) -> list[dict]:
    """A job of dp 2 x pp 2 with 3 microbatches, steps 5 to 7; the test may change it."""
    return [dict(row) for row in _small_rows]
