"""What earlier releases have written is read: files of tests/golden, one per format and version.

Their numbers are those of ``tests/golden/make.py``, whose docstrings say them.
"""

import gzip
import importlib.util
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import paceline
import requires
from paceline.cli.main import run
from paceline.errors import MitigateError, ModelError, TraceError
from paceline.mitigate.fault import COMPUTE, Fault
from paceline.mitigate.planner import load_state
from paceline.model.cluster_presets import cluster_preset
from paceline.model.cluster_yaml import load_cluster
from paceline.model.profile import load_profile
from paceline.sources.recording import files as recording_files
from paceline.sources.seqlens import read_seqlens

GOLDEN = Path(__file__).parent / "golden"

_spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make.py")
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)


def files(pattern):
    found = sorted(GOLDEN.glob(pattern))
    assert found
    return pytest.mark.parametrize("path", found, ids=[path.name for path in found])


def test_every_current_version_has_a_file():
    """A release that changes a format adds a file: run tests/golden/make.py and commit it."""
    requires.installed("sqlalchemy")
    missing = [name for name in make.formats() if not (GOLDEN / name).exists()]
    assert missing == []


def test_no_file_of_an_earlier_version_is_gone():
    there = {path.name for path in GOLDEN.iterdir()}
    assert there >= {
        *(
            "snapshot-0.npz",
            "snapshot-1.1.npz",
            "snapshot-1.2.npz",
            "snapshot-1.3.npz",
            "snapshot-1.4.npz",
            "result-1.json",
            "trace-1.parquet",
            "recording-1",
        ),
        *("profile-1.json", "cluster-0.yaml", "cluster-1.yaml", "planner-1.json"),
        *("seqlens-0.parquet", "seqlens-1.parquet", "steps-1.steps", "series-1.rows"),
        "ranks-1.npz",
        *("backup-1.tar.gz", "store-0001.sql", "store-0002.sql", "store-0003.sql"),
        *("store-0004.sql", "store-0005.sql", "store-0006.sql", "store-0007.sql"),
        "store-0008.sql",
        "store-0009.sql",
        "store-0010.sql",
        "store-0011.sql",
        "store-0012.sql",
    }


def test_they_are_small():
    files = [path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) < 20_000
    assert sum(sizes) < 300_000


def members(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_equal_runs_make_equal_files(tmp_path):
    requires.installed("sqlalchemy")
    for name, made in make.formats().items():
        if not name.startswith(("snapshot", "cluster", "profile", "planner", "steps", "series")):
            continue  # times, words, or what depends on the versions of libraries
        folder = tmp_path / name
        folder.mkdir()
        now, then = (path.read_bytes() for path in (made(folder), GOLDEN / name))
        if name.endswith(".npz"):  # Python before 3.11.4 writes other headers of a zip archive
            assert members(now) == members(then), name
        elif name.startswith("cluster"):  # fields that are added do not change its version
            assert set(now.splitlines()) >= set(then.splitlines())
        else:
            assert now == then, name


@files("trace-*.parquet")
def test_trace(path):
    trace = paceline.load(path)
    assert (trace.job.dp_size, trace.job.pp_size, trace.steps.tolist()) == (2, 2, [0, 1])
    # The slow stage computes 2 x (0.12 + 0.24) s and waits 0.063 s for the other's first
    # microbatch (0.06 + 0.12 + 3 x 0.001 - 0.12); collectives and optimizer take 0.0941 s.
    assert trace.traced_step_s() == pytest.approx([0.8771, 0.8771], abs=1e-6)
    (cause,) = trace.truth["causes"]
    assert (cause["dp"], cause["pp"], cause["factor"]) == (1, 0, 2.0)


def test_a_trace_without_programs_gives_the_result_that_it_gave(tmp_path):
    """pipeline-1.json.gz: `paceline analyze` of commit 3a2f3b0, the last that knew no programs.

    dp 2 x pp 2, 3 and 2 microbatches, overlapped reductions. Equal byte for byte where it was made;
    the last digits of floats may depend on the version of NumPy.
    """
    trace = GOLDEN / "pipeline-1.parquet"
    assert run(["analyze", str(trace), "--out", str(tmp_path / "out")]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text(), object_pairs_hook=list)
    before = json.loads(
        gzip.decompress((GOLDEN / "pipeline-1.json.gz").read_bytes()), object_pairs_hook=list
    )
    assert _rounded(result) == _rounded(before)


def _rounded(value):
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


@files("recording-*")
def test_recording(path):
    ranks = recording_files.read_files(path)
    assert [rank.rank for rank in ranks] == [0, 1, 2, 3]
    trace = paceline.load(path)
    assert (trace.job.dp_size, trace.job.pp_size, trace.steps.tolist()) == (2, 2, [0, 1])
    assert trace.traced_step_s() == pytest.approx([0.8771, 0.8771], abs=1e-6)


@files("profile-*.json")
def test_profile(path):
    profile = load_profile(path)
    assert (profile.device, profile.processors) == ("NVIDIA A100-SXM4-80GB", 108)
    assert [timing.seconds for timing in profile.timings] == [1e-6, 5e-7]
    assert profile.timings[0].operator.flops == 2 * 64**3
    assert profile.left_out == ("tp 16: no such split",)


@files("cluster-*.yaml")
def test_cluster(path):
    cluster, preset = load_cluster(path), cluster_preset("a100-80g")
    assert (cluster.name, cluster.price_per_gpu_hour) == ("ours", 1.25)
    node = replace(preset.node, host_bandwidth=None)  # younger than these files
    assert (cluster.gpu, cluster.node, cluster.network) == (preset.gpu, node, preset.network)


def test_a_cluster_file_of_a_later_version_is_refused(tmp_path):
    later = (GOLDEN / "cluster-1.yaml").read_text().replace("version: 1", "version: 2", 1)
    (tmp_path / "later.yaml").write_text(later)
    with pytest.raises(ModelError, match="line 1: version: this Paceline reads cluster"):
        load_cluster(tmp_path / "later.yaml")


@files("seqlens-*.parquet")
def test_sequence_lengths(path):
    seqlens = read_seqlens(path)
    assert seqlens.steps.tolist() == [3, 4]
    assert seqlens.ptr.shape == (2, 2, 2, 2)
    last = [seqlens.lengths[slice(*pair)].tolist() for pair in seqlens.ptr[:, :, 1].reshape(-1, 2)]
    assert last == [[11], [13], [15], [17, 5]]


def test_sequence_lengths_of_a_later_version_are_refused(tmp_path):
    import pyarrow.parquet as pq

    table = pq.read_table(GOLDEN / "seqlens-1.parquet")
    later = table.replace_schema_metadata({b"paceline-seqlens": b"2"})
    pq.write_table(later, tmp_path / "later.parquet")
    with pytest.raises(TraceError, match="of version '2'; this Paceline reads version 1"):
        read_seqlens(tmp_path / "later.parquet")


@files("planner-*.json")
def test_planner(path):
    state = load_state(path)
    fault = Fault(COMPUTE, (1, 0), 1.5)
    assert (state.active, state.lost_s, state.since_step) == (frozenset({fault}), 12.5, 40)
    assert (state.setting.counts, state.setting.moved) == ((7, 9), (((0, 0), (1, 0)),))
    assert state.accrued_s == {("s2", fault.name): 4.25}
    assert state.applied == ("s2",)


def test_a_planner_of_a_later_version_is_refused(tmp_path):
    text = (GOLDEN / "planner-1.json").read_text().replace('planner": 1', 'planner": 2')
    (tmp_path / "later.json").write_text(text)
    with pytest.raises(MitigateError, match="state of version 2, this is 1"):
        load_state(tmp_path / "later.json")


def test_a_recording_keeps_clocks_apart(tmp_path):
    """Rank 1's clock is 5 ms ahead, and its file says so."""
    ranks = recording_files.read_files(GOLDEN / "recording-1")
    starts = np.array([rank.times[0][1] for rank in ranks], dtype=np.int64)
    assert (starts - starts[0]).tolist() == [0, 5_000_000, 0, 0]
