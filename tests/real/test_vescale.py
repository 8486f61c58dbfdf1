"""NDTimeline's raw log, written by veScale's own handler.

Its modules run out of a clone of volcengine/veScale (Apache-2.0, commit 20cf5c7), below
``legacy/vescale/ndtimeline``, without the package around them.
"""

import importlib
import logging
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import requires
from fused_jobs import play
from paceline.sources import ndtimeline
from paceline.whatif import analyze

REVISION, FOLDER = "20cf5c7", "legacy/vescale/ndtimeline"
MODULES = ("world_info", "variables", "handlers/handler_base", "handlers/local_raw_handler")
BASE_S = 1_710_332_816.0
STAGES, DP = 4, 2


def raw_log(folder: Path, slow: dict[tuple[int, int], float], monkeypatch) -> Path:
    """The log of a job of 1F1B with fused calls, that ``play`` makes up."""
    package = folder / f"vescale_{folder.name}"
    (package / "handlers").mkdir(parents=True)
    for name in MODULES:
        text = requires.source("volcengine/veScale", REVISION, f"{FOLDER}/{name}.py")
        (package / f"{name}.py").write_text(text)
    for inside in (package, package / "handlers"):
        (inside / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    handlers = importlib.import_module(f"{package.name}.handlers.local_raw_handler")
    world_info = importlib.import_module(f"{package.name}.world_info")
    handler = handlers.LocalRawNDHandler(run_id=0, log_path=str(folder))
    parts = defaultdict(list)
    for dp, stage, step, name, start_s, end_s in play(STAGES, DP, slow=slow):
        parts[dp, stage, name].append((step, start_s, end_s))
    for (dp, stage, name), own in parts.items():
        own.sort()
        handler(
            name,
            sum(end_s - start_s for _, start_s, end_s in own),
            [end_s - start_s for _, start_s, end_s in own],
            [BASE_S + start_s for _, start_s, _ in own],
            [{"_inner_global_step": step} for step, _, _ in own],
            range(4),
            world_info.WorldInfo(
                stage * DP + dp, 0, dp_rank=dp, pp_rank=stage, dp_size=DP, pp_size=STAGES
            ),
            {},
        )
    logger = logging.getLogger("LocalRawNDHandler")
    for file in logger.handlers[:]:
        logger.removeHandler(file)
        file.close()
    return folder / "timeline_run0_raw.log"


def test_a_level_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = ndtimeline.read([raw_log(tmp_path, {}, monkeypatch)])
    assert got.unplaced == {}
    result = analyze(got.trace)
    assert result.slowdown == pytest.approx(1, abs=0.01)
    assert result.discrepancy < 0.02


def test_a_slow_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = ndtimeline.read([raw_log(tmp_path, {(1, 2): 1.5}, monkeypatch)])
    assert got.unplaced == {}
    result = analyze(got.trace)
    assert result.discrepancy < 0.02
    worst = np.unravel_index(np.argmax(result.by_worker), result.by_worker.shape)
    assert worst == (2, 1)  # [stage, replica]
