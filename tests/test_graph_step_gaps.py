"""The time between steps: pauses that no step holds, and steps that overlap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.graph.computes import KINDS
from paceline.graph.step_gaps import step_gaps
from paceline.trace import Trace
from paceline.trace.kinds import P2P_KINDS


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
