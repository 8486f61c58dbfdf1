"""Clock offsets: found from transfers that end together, taken off; sane traces stay."""

import random

import numpy as np
import pytest

from jobs import Spec, make_rows, trace_of
from paceline.graph import from_trace
from paceline.whatif import analyze

SKEWED = Spec(
    pp=4,
    microbatches=(6, 6, 6),
    steps=3,
    shared_transfers=True,
    delays=False,
    spread=0.2,
    slow=((1, 2, 1.5),),
)


def skew(rows, std_s, seed=0):
    """The rows as recorded by clocks that are off; and the offsets, mean 0."""
    rng = random.Random(seed)
    workers = sorted({(r["dp"], r["pp"]) for r in rows})
    off = {worker: rng.gauss(0, std_s) for worker in workers}
    mean = sum(off.values()) / len(off)
    off = {worker: value - mean for worker, value in off.items()}
    return [r | {"start": r["start"] + off[r["dp"], r["pp"]]} for r in rows], off


@pytest.mark.parametrize("seed", range(3))
def test_offsets_are_recovered_and_the_slowdown_kept(seed):
    rows = make_rows(SKEWED)
    truth = analyze(trace_of(rows))
    assert not truth.clocks.corrected
    skewed, off = skew(rows, 0.020, seed)
    result = analyze(trace_of(skewed))
    assert result.clocks.corrected
    expected = np.array([[off[dp, pp] for pp in range(4)] for dp in range(3)])
    np.testing.assert_allclose(result.clocks.offset_s, expected, atol=5e-4)
    assert result.slowdown == pytest.approx(truth.slowdown, rel=0.02)
    assert result.by_worker.argmax() == truth.by_worker.argmax()
    assert any("worker clocks differ" in w and "corrected" in w for w in result.warnings)


def test_offsets_are_recovered_under_noise_and_launch_delays():
    spec = Spec(pp=3, microbatches=(8, 8), steps=4, shared_transfers=True)
    rng = random.Random(1)
    rows = [r | {"duration": max(0.0, r["duration"] + rng.gauss(0, 1e-4))} for r in make_rows(spec)]
    truth = analyze(trace_of(rows))
    skewed, off = skew(rows, 0.020)
    result = analyze(trace_of(skewed))
    expected = np.array([[off[dp, pp] for pp in range(3)] for dp in range(2)])
    np.testing.assert_allclose(result.clocks.offset_s, expected, atol=5e-4)
    assert result.slowdown == pytest.approx(truth.slowdown, rel=0.02)


def test_keep_clocks_keeps_them_and_says_so():
    skewed, _ = skew(make_rows(SKEWED), 0.020)
    trace = trace_of(skewed)
    kept = from_trace(trace, keep_clocks=True)
    assert not kept.clocks.corrected
    assert kept.clocks.std_s > 0.010
    assert any("kept as they are" in warning for warning in kept.warnings)
    np.testing.assert_array_equal(kept.traced_step_s, trace.traced_step_s())


def test_small_offsets_stay():
    skewed, _ = skew(make_rows(SKEWED), 0.001)
    measured = from_trace(trace_of(skewed))
    assert not measured.clocks.corrected
    assert not any("clocks" in warning for warning in measured.warnings)


def test_offsets_are_found_with_replicas_of_other_sizes():
    spec = Spec(pp=2, microbatches=(4, 2, 6), shared_transfers=True, delays=False)
    skewed, off = skew(make_rows(spec), 0.020)
    found = from_trace(trace_of(skewed)).clocks.offset_s
    expected = np.array([[off[dp, pp] for pp in range(2)] for dp in range(3)])
    np.testing.assert_allclose(found, expected, atol=5e-4)


def test_interleaved_pipelines_show_their_offsets():
    spec = Spec(pp=2, vpp=2, microbatches=(4, 4), shared_transfers=True, delays=False)
    skewed, off = skew(make_rows(spec), 0.020)
    found = from_trace(trace_of(skewed, spec.job)).clocks.offset_s
    expected = np.array([[off[dp, pp] for pp in range(2)] for dp in range(2)])
    np.testing.assert_allclose(found, expected, atol=5e-4)


def test_one_worker_has_no_offset():
    measured = from_trace(trace_of(make_rows(Spec(pp=1, microbatches=(3,)))))
    assert measured.clocks.offset_s.tolist() == [[0.0]]
