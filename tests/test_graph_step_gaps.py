"""The time between steps: pauses that no step holds, and steps that overlap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.diagnose.waterfall import waterfall
from paceline.graph import from_trace
from paceline.graph.computes import KINDS
from paceline.graph.step_gaps import step_gaps
from paceline.record.recorder import Recorder
from paceline.remedies import Case
from paceline.remedies.hide_delays import propose
from paceline.trace import Trace
from paceline.trace.kinds import P2P_KINDS
from paceline.trace.warning import LAUNCH_DELAYS, STEPS_OVERLAP
from recordings import SetClock, play


def _trace(starts: list[float]) -> Trace:
    spec = paceline.SynthSpec(dp=2, pp=2, microbatches=4, steps=len(starts), seed=0)
    trace = paceline.synthesize(spec)
    return replace(trace, step_start_s=np.array(starts))


def test_a_pause_between_steps_is_said() -> None:
    step_s = float(_trace([0.0] * 4).traced_step_s().mean())
    at = [0.0, 2 * step_s, 4 * step_s, 9 * step_s]
    (note,) = [w for w in paceline.analyze(_trace(at)).warnings if "between the steps" in w]
    assert "before step 3" in note
    quiet = [i * 1.01 * step_s for i in range(4)]
    assert not any("between the steps" in w for w in paceline.analyze(_trace(quiet)).warnings)


def test_gaps_are_unknown_without_absolute_times_or_where_a_step_is_missing() -> None:
    trace = _trace([0.0, 100.0, 200.0, 300.0])
    assert np.isnan(step_gaps(replace(trace, step_start_s=np.full(4, np.nan))).gap_s).all()
    gaps = step_gaps(trace.select_steps([0, 1, 3]))
    assert np.isnan(gaps.gap_s).tolist() == [True, False, True]
    assert gaps.gap_s[1] == pytest.approx(100.0 - trace.traced_step_s()[0])


def test_a_step_begun_while_the_one_before_runs_has_no_launch_delay() -> None:
    """Without a barrier a stage goes ahead: the others' start is late beside it, not delayed."""
    trace = _trace([0.0] * 10)
    step_s, ahead = float(trace.traced_step_s().mean()), 0.1
    late = trace.dp == 1  # replica 0 begins each step a tenth of a step before replica 1
    shift = np.where(late, ahead * step_s, 0.0)
    start, end = trace.start + shift, trace.end + shift
    # Nothing ties the replicas.
    keep = np.isin(trace.kind, [int(kind) for kind in (*KINDS, *P2P_KINDS)])
    counts = trace.counts.copy()
    gone = sorted({int(k) for k in np.unique(trace.kind[~keep])})
    counts[..., gone] = 0
    apart = replace(
        trace,
        counts=counts,
        chunk=trace.chunk[keep],
        microbatch=trace.microbatch[keep],
        start=start[keep],
        end=end[keep],
    )
    for overlap, expected in ((False, True), (True, False)):
        period = apart.traced_step_s() - (ahead * step_s if overlap else 0.0)
        at = replace(apart, step_start_s=np.cumsum(period) - period)
        measured = from_trace(at)
        findings = diagnose(measured, paceline.analyze(measured)).findings
        assert any(f.cause == "launch-delay" for f in findings) is expected
        assert any("overlap" in w for w in measured.warnings) is overlap


MS = 1_000_000

#: [rank] begin and end of a step, begin of its first operation, ms. A step computes for 99 ms.
AHEAD = ((0, 100, 0), (30, 130, 30))  # rank 1 begins each step 30 ms after rank 0
WAITS = ((0, 130, 0), (0, 130, 30))  # rank 1 loads data for 30 ms


def _recorded(folder, ranks, period_ms, every=2):
    for rank, (begin, end, first) in enumerate(ranks):
        clock = SetClock()
        given = {"rank": rank, "world": 2, "dp": 2}
        steps = range(0, 24, every)
        rec = Recorder(folder, steps=steps, flush_s=60, given=given, clock=clock)
        for number in range(24):
            zero = (number + 1) * period_ms
            cuts = [(zero + first + ms) * MS for ms in (0, 40, 99)]
            ops = [
                ("forward-compute", 0, 0, cuts[0], cuts[1]),
                ("backward-compute", 0, 0, cuts[1], cuts[2]),
            ]
            play(rec, clock, number, ops, ((zero + begin) * MS, (zero + end) * MS))
        rec.close()
    return paceline.load(folder)


def _delay(trace):
    measured = from_trace(trace)
    found = diagnose(measured, paceline.analyze(measured)).findings
    return measured, next((f for f in found if f.cause == "launch-delay"), None)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_unprofiled_steps_tell_the_overlap(tmp_path, every):
    trace = _recorded(tmp_path, AHEAD, period_ms=100, every=every)
    measured, delay = _delay(trace)
    assert delay is None
    (note,) = [w for w in measured.doubts if w.code == STEPS_OVERLAP]
    assert note.numbers["share"] == pytest.approx(29 / 129)
    result = paceline.analyze(measured)  # overlap is no delay anywhere
    assert result.discrepancy == pytest.approx(1 / 129)  # its operations end 1 ms before it
    assert result.launch_slowdown == pytest.approx(100 / 99)
    assert result.launch_delay.step_start == pytest.approx(100 / 99)
    assert not any(w.code == LAUNCH_DELAYS for w in result.doubts)
    fall = waterfall(measured, result, diagnose(measured, result).findings)
    drops = {drop.name: drop.seconds for drop in fall.drops}
    assert drops["steps-overlap"] == pytest.approx(0.029, abs=1e-6)
    assert drops["launch-delay"] == pytest.approx(0.001, abs=1e-6)
    assert fall.actual_s - sum(drops.values()) == pytest.approx(fall.compute_s)
    assert measured.overlap_s == pytest.approx(np.full(len(measured.steps), 0.029), abs=1e-6)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_wait_for_data_is_no_overlap(tmp_path, every):
    trace = _recorded(tmp_path, WAITS, period_ms=130, every=every)
    measured, delay = _delay(trace)
    assert not any(w.code == STEPS_OVERLAP for w in measured.doubts)
    assert delay is not None
    assert delay.confidence > 0.99
    assert not delay.ambiguous
    assert delay.share_of_step == pytest.approx(30 / 129, rel=0.01)
    result = paceline.analyze(measured)  # one basis: finding, warning, waterfall
    (doubt,) = [w for w in result.doubts if w.code == LAUNCH_DELAYS]
    assert doubt.numbers["discrepancy"] == pytest.approx(delay.share_of_step)
    fall = waterfall(measured, result, diagnose(measured, result).findings)
    assert fall.drops[0].name == "launch-delay"
    assert fall.drops[0].seconds / fall.actual_s == pytest.approx(delay.share_of_step)


def test_a_pause_before_a_profiled_step_is_told(tmp_path):
    trace = _recorded(tmp_path, WAITS, period_ms=200)
    assert step_gaps(trace).gap_s[1:] == pytest.approx(np.full(11, 0.071), abs=1e-6)


def test_ends_of_steps_before_stay_with_their_steps(tmp_path):
    trace = _recorded(tmp_path / "run", AHEAD, period_ms=100)
    paceline.write(trace, tmp_path / "trace.parquet")
    stored = paceline.load(tmp_path / "trace.parquet")
    for part in (stored, trace.step_range(0, 12), trace.select_steps(trace.steps.tolist())):
        np.testing.assert_allclose(part.previous_end_s, trace.previous_end_s)
    few = trace.select_steps([4, 8])
    assert few.previous_end_s.tolist() == trace.previous_end_s[[2, 4]].tolist()
    np.testing.assert_allclose(
        paceline.load(tmp_path / "run", steps=[4, 8]).previous_end_s, few.previous_end_s
    )


def test_a_restarted_numbering_has_no_step_before(tmp_path):
    """The loop counts from 0 again: the later step 3 is not the one before the earlier step 4."""
    clock = SetClock()
    rec = Recorder(tmp_path, steps=range(0, 7, 2), flush_s=60, clock=clock)
    for place, number in enumerate([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3]):
        zero = (place + 1) * 100 * MS
        op = ("forward-compute", 0, 0, zero, zero + 90 * MS)
        play(rec, clock, number, [op], (zero, zero + 95 * MS))
    rec.close()
    gap_s = step_gaps(paceline.load(tmp_path)).gap_s
    assert gap_s[1:] == pytest.approx([0.010] * 3, abs=1e-6)


@pytest.mark.parametrize("period_ms", [100, 130])
def test_without_the_steps_between_a_delay_is_possible_only(tmp_path, period_ms):
    """Steps that are shorter from start to start than each of them leave the overlap open."""
    ranks = AHEAD if period_ms == 100 else WAITS
    trace = replace(_recorded(tmp_path, ranks, period_ms), previous_end_s=None)
    measured, delay = _delay(trace)
    is_open = period_ms == 100
    assert (measured.open_overlap_s > 0) is is_open
    assert bool(delay.ambiguous) is is_open
    assert (delay.confidence <= 0.6) is is_open
    result = paceline.analyze(measured)
    remedy = propose(Case(measured, result, diagnose(measured, result)))
    assert (remedy.interval[0] <= 0) is is_open
    assert any("may be 0" in note for note in remedy.notes) is is_open
    unknown = replace(trace, step_start_s=np.full(trace.n_steps, np.nan))
    assert _delay(unknown)[1].ambiguous
