"""Times below zero (clock error) in the kernel: what ends last need not be what comes last."""

from dataclasses import replace

import numpy as np
import pytest

import paceline.simulate as simulate
from jobs import Spec, make_rows, trace_of
from paceline.graph import Durations, from_trace
from paceline.simulate import Rules, all_lanes, step_times, timeline
from paceline.trace import OpKind
from paceline.whatif import analyze

WHOLE = Spec(pp=2, microbatches=(2, 2), overlapped=True, delays=False, optimizer=False)
ENDING = {  # kind -> a job whose steps end with it
    OpKind.OPTIMIZER_CLIP_MAIN_GRAD: WHOLE,
    OpKind.SEPARATE_GRADS_ALL_REDUCE: replace(WHOLE, clip=False),
    OpKind.GRADS_REDUCE_SCATTER: replace(WHOLE, clip=False, overlapped=False),
    OpKind.EMBEDDING_GRADS_ALL_REDUCE: replace(WHOLE, clip=False, overlapped=False, scatter=False),
}


def everything(graph, delays=False):
    keep = np.ones((1, graph.n_ops), dtype=bool)
    return Rules(keep, np.zeros(graph.n_ops), keep if delays else None)


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("kind", ENDING, ids=lambda kind: kind.label)
def test_a_step_lasts_until_its_last_end_not_until_its_last_op(kind, compile_it, monkeypatch):
    """The last transfer takes -5 ms: what comes before it ends later."""
    if compile_it:
        monkeypatch.setattr(simulate, "COLD_ABOVE_S", 0)
        monkeypatch.setattr(simulate, "WARM_ABOVE_S", 0)
    measured = from_trace(trace_of(make_rows(ENDING[kind])), keep_clocks=True)
    graph = measured.graph
    durations = Durations(graph, measured.durations.n_steps, measured.durations.values.copy())
    for op in np.flatnonzero(graph.kind == kind):
        durations.row(op)[:] = -0.005
    times = step_times(durations, everything(graph), all_lanes(graph, durations.n_steps))
    lines = timeline(durations)
    np.testing.assert_allclose(times, lines.step_times(), rtol=1e-12)
    last = np.max([lines.end.row(op).max(axis=1) for op in np.flatnonzero(graph.kind == kind)], 0)
    assert (times > last + 0.004).all()


def test_an_op_launched_early_may_end_before_what_it_waits_for():
    """Clip ends at 3.5 s; the optimizer of 1 ms is launched 9 ms before that, at 3.491 s."""
    spans = {
        "forward-compute": (0.0, 1.0),
        "backward-compute": (1.0, 2.0),
        "optimizer-clip-main-grad": (3.0, 0.5),
        "optimizer": (3.491, 0.001),
    }
    rows = []
    for kind, (start, duration) in spans.items():
        row = {"step": 0, "dp": 0, "pp": 0, "kind": kind, "seq": 0, "chunk": 0, "microbatch": 0}
        rows.append(row | {"start": start, "duration": duration})
    measured = from_trace(trace_of(rows))
    graph, delays = measured.graph, measured.delays
    lanes = all_lanes(graph, 1)
    times = step_times(measured.durations, everything(graph, delays=True), lanes, delays)
    assert times.tolist() == pytest.approx([3.5], abs=1e-12)
    assert timeline(measured.durations, delays=delays).step_times().tolist() == times.tolist()
    assert measured.traced_step_s.tolist() == [3.5]
    assert analyze(measured).replay_error < 1e-12
    without = step_times(measured.durations, everything(graph), lanes)
    assert without.tolist() == pytest.approx([3.501], abs=1e-12)
