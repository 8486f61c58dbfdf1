"""Clock offsets where the ends of transfers are noisy, and how large an offset counts."""

from dataclasses import replace

import numpy as np
import pytest

from jobs import Spec, make_rows, retimed, trace_of
from paceline.graph import from_trace
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import analyze

EVEN = Spec(pp=2, microbatches=(4, 4), shared_transfers=True, delays=False, spread=0.2)


def shifted(rows, offset_s):
    """The rows as recorded by clocks that are ahead by ``offset_s`` [(dp, pp)] seconds."""
    return [r | {"start": r["start"] + offset_s.get((r["dp"], r["pp"]), 0.0)} for r in rows]


@pytest.mark.parametrize(("apart_s", "corrected"), [(0.0019, False), (0.0021, True)])
def test_the_spread_decides_whether_clocks_are_corrected(apart_s, corrected):
    """Half of the workers ahead, half behind: the standard deviation is ``apart_s``."""
    offsets = {(dp, pp): apart_s if dp == pp else -apart_s for dp in (0, 1) for pp in (0, 1)}
    clocks = from_trace(trace_of(shifted(make_rows(EVEN), offsets))).clocks
    assert clocks.std_s == pytest.approx(apart_s, rel=0.01)
    assert clocks.corrected is corrected


@pytest.mark.parametrize(("ahead_s", "corrected"), [(0.0046, False), (0.0056, True)])
def test_one_clock_far_off_is_corrected_in_a_large_job(ahead_s, corrected):
    """One of 20: its offset from the mean is 95% of it, the standard deviation 22%."""
    rows = make_rows(replace(EVEN, microbatches=(2,) * 10, steps=1))
    clocks = from_trace(trace_of(shifted(rows, {(7, 1): ahead_s}))).clocks
    assert clocks.std_s < 0.002
    assert clocks.offset_s[7, 1] == pytest.approx(0.95 * ahead_s, rel=0.02)
    assert clocks.corrected is corrected


def test_one_clock_of_512_is_corrected_and_nothing_else_changes():
    spec = SynthSpec(dp=64, pp=8, microbatches=8, steps=2, slow_workers=(SlowWorker(5, 3, 1.5),))
    trace = synthesize(spec)
    truth = analyze(trace)
    assert not truth.clocks.corrected
    ahead_s = np.where((trace.dp == 40) & (trace.pp == 6), 0.030, 0.0)
    result = analyze(replace(trace, start=trace.start + ahead_s, end=trace.end + ahead_s))
    assert result.clocks.corrected
    assert result.clocks.offset_s[40, 6] == pytest.approx(0.030, abs=5e-4)
    assert result.slowdown == pytest.approx(truth.slowdown, rel=1e-3)
    assert result.slowest_workers[0][:2] == truth.slowest_workers[0][:2] == (5, 3)
    assert not any("times are impossible" in warning for warning in result.warnings)


def test_a_slow_nic_is_no_clock():
    """One rank ends every reduce-scatter 50 ms late; all its other transfers end with the rest."""
    rows = make_rows(replace(EVEN, pp=4, microbatches=(4,) * 4))
    for row in rows:
        if row["kind"] in ("optimizer-clip-main-grad", "optimizer"):
            row["start"] += 0.050  # the next barrier waits for it
        elif (row["dp"], row["pp"], row["kind"]) == (2, 1, "grads-reduce-scatter"):
            row["duration"] += 0.050
    measured = from_trace(trace_of(rows))
    assert not measured.clocks.corrected
    assert np.abs(measured.clocks.offset_s).max() < 1e-3
    assert not any("clocks" in warning for warning in measured.warnings)


def test_pairs_of_which_a_few_end_late_show_no_offset():
    """Every fourth transfer ends 80 ms late on stage 0; there are no collectives."""
    spec = Spec(pp=2, microbatches=(8, 8), shared_transfers=True, delays=False)
    spec = replace(spec, gather=False, scatter=False, clip=False, embedding=False)
    rows = make_rows(spec)
    for row in rows:
        if row["pp"] == 0 and row["kind"].endswith(("-send", "-recv")) and row["seq"] % 4 == 0:
            row["duration"] += 0.080
    clocks = from_trace(trace_of(rows)).clocks
    assert not clocks.corrected
    np.testing.assert_allclose(clocks.offset_s, 0.0, atol=1e-6)


def test_collectives_of_which_a_few_end_late_show_no_offset():
    """All collectives end 80 ms late on one rank, in one step of five."""
    spec = Spec(pp=1, microbatches=(3, 3, 3), steps=5, shared_transfers=True, delays=False)
    rows = make_rows(spec)
    kinds = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")
    for row in rows:
        if row["step"] == 3 and row["dp"] == 1 and row["kind"] in kinds:
            row["duration"] += 0.080
    clocks = from_trace(trace_of(rows)).clocks
    assert not clocks.corrected
    np.testing.assert_allclose(clocks.offset_s, 0.0, atol=1e-6)


@pytest.mark.parametrize(("early_s", "kept_s"), [(0.0099, -0.0099), (0.0101, 0.0)])
def test_transfers_that_end_before_they_start(early_s, kept_s):
    """A reduce-scatter ends before its last member starts: by under 10 ms it is clock error."""
    rows = make_rows(Spec(pp=1, microbatches=(1, 1), steps=1, delays=False, spread=0.0))
    scatters = [r for r in rows if r["kind"] == "grads-reduce-scatter"]
    scatters[0] |= {"duration": 0.0}
    scatters[1] |= {"start": scatters[0]["start"] + early_s}
    measured = from_trace(trace_of(rows), keep_clocks=True)
    labels = list(measured.clamped["transfer"])
    assert labels == ([] if kept_s else ["grads-reduce-scatter"])
    op = int(np.flatnonzero(measured.graph.kind == OpKind.GRADS_REDUCE_SCATTER)[0])
    assert measured.durations.array[op, 0, 0] == pytest.approx(kept_s, abs=1e-12)


def test_clocks_that_jump_within_the_trace_are_said():
    """From step 3 on one worker is 300 ms ahead: no constant offset puts that right."""
    rows = make_rows(replace(EVEN, steps=6))
    for row in rows:
        if row["step"] >= 3 and (row["dp"], row["pp"]) == (1, 0):
            row["start"] += 0.300
    result = analyze(trace_of(rows))
    assert result.replay_error > 0.001
    (note,) = [warning for warning in result.warnings if "times are impossible" in warning]
    assert "--steps" in note


COLLECTIVES = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("kinds", [COLLECTIVES, COLLECTIVES[:1], COLLECTIVES[1:2]])
@pytest.mark.parametrize("late_s", [0.006, 0.030])
def test_a_member_that_always_ends_late_is_no_clock(pp, kinds, late_s):
    """Issue 12.5: the correction invented skew, and the discrepancy rose from 0 to 8.9%."""
    spec = replace(EVEN, pp=pp, microbatches=(4,) * 4, steps=4)
    rows = retimed(
        make_rows(spec),
        spec,
        lambda row: late_s * ((row["dp"], row["pp"]) == (2, 0) and row["kind"] in kinds),
    )
    result = analyze(trace_of(rows))
    assert not result.clocks.corrected
    assert result.discrepancy < 1e-3
    assert result.replay_error < 1e-9


def test_ends_that_differ_are_said_and_not_called_clocks():
    """All collectives of one rank end 30 ms late; its sends and recvs do not."""
    rows = make_rows(replace(EVEN, pp=2, microbatches=(4,) * 3))
    for row in rows:
        if (row["dp"], row["pp"]) == (1, 0) and row["kind"] in COLLECTIVES:
            row["duration"] += 0.030
    measured = from_trace(trace_of(rows))
    assert not measured.clocks.corrected
    for warning in measured.warnings:
        assert "corrected:" in warning or "clock" not in warning


@pytest.mark.parametrize("pp", [1, 2])
def test_a_skew_that_makes_times_impossible_is_corrected(pp):
    """40 ms ahead with collectives of 10 ms: they would end before the others have started."""
    rows = make_rows(replace(EVEN, pp=pp, microbatches=(4,) * 4, steps=4))
    clocks = from_trace(trace_of(shifted(rows, {(1, 0): 0.040}))).clocks
    assert clocks.corrected
    assert "before all members have started" in clocks.reason
    apart = clocks.offset_s[1, 0] - np.delete(clocks.offset_s[:, 0], 1)
    np.testing.assert_allclose(apart, 0.040, atol=1e-3)


def test_with_collectives_only_a_small_skew_stays_and_is_said():
    """8 ms ahead with collectives of 10 ms: a clock, or a member that ends late?"""
    rows = make_rows(replace(EVEN, pp=1, microbatches=(4,) * 4, steps=4, seed=3))
    measured = from_trace(trace_of(shifted(rows, {(1, 0): 0.008})))
    assert not measured.clocks.corrected
    assert measured.clocks.doubt_s > 0.004
    (warning,) = [w for w in measured.warnings if "look alike" in w]
    assert "not corrected" in warning


def test_two_replicas_show_their_offset_by_collectives_alone():
    """8 ms apart: 4 ms ahead and behind; that they are clocks two members cannot tell."""
    rows = make_rows(replace(EVEN, pp=1, microbatches=(4, 4), steps=4))
    clocks = from_trace(trace_of(shifted(rows, {(1, 0): 0.008}))).clocks
    np.testing.assert_allclose(clocks.offset_s, [[-0.004], [0.004]], atol=1e-4)
    assert clocks.std_s == pytest.approx(0.004, rel=0.02)
