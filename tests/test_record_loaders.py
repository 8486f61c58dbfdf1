"""Waits for the batches of real loaders, each in a process of its own, against its stopwatch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

import loader_job
import requires
from installed import PACKAGES
from paceline.sources.recording.files import read_files

#: Loader of ``loader_job.py`` -> the packages that it needs.
NEEDED = {
    "dali": ("nvidia.dali", "torch"),
    "dali-classification": ("nvidia.dali", "torch"),
    "dali-ragged": ("nvidia.dali", "torch"),
    "datasets": ("datasets",),
    "generator": (),
    "grain": ("grain",),
    "grain-dataset": ("grain",),
    "litdata": ("litdata",),
    "nodes": ("torchdata.nodes",),
    "ray": ("ray.data", "pandas", "torch"),
    "stateful": ("torchdata.stateful_dataloader",),
    "streaming": ("streaming",),
    "torch": ("torch",),
    "torch-line": ("torch",),
    "webdataset": ("webdataset",),
    "webloader": ("webdataset", "torch"),
}
HANG_S = 600


def test_each_loader_has_its_packages():
    assert set(NEEDED) == set(loader_job.LOADERS)


@pytest.mark.parametrize("loader", NEEDED)
def test_the_waits_are_those_of_the_stopwatch(loader, tmp_path):
    requires.installed(*NEEDED[loader])
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, loader_job.__file__, loader, str(folder)],
        env={**os.environ, "PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    took_ms = json.loads(done.stdout.splitlines()[-1])
    (file,) = read_files(Path(folder))
    assert list(file.data_ns) == list(range(loader_job.STEPS))
    waits_ms = [file.data_ns[step] / 1e6 for step in range(loader_job.STEPS)]
    assert all(wait <= took for wait, took in zip(waits_ms, took_ms, strict=True))
    assert median(waits_ms) >= 0.9 * median(took_ms)
    assert median(took_ms) >= 0.5e3 * loader_job.SLEEP_S  # Ray makes a batch behind the loop's back
