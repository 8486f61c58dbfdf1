"""Numbers at the door: units, resolution, step numbers, step starts, and who recorded a worker."""

import numpy as np
import pytest

from jobs import Spec, columns_of, make_rows, trace_of
from paceline.errors import TraceError
from paceline.trace import arrange
from paceline.whatif import analyze


def little(step=0, at=0.0, compute_s=1.0, **more):
    """One worker's step: a forward, a backward and the clip, one after the other."""
    rows = []
    for kind in ("forward-compute", "backward-compute", "optimizer-clip-main-grad"):
        row = {"step": step, "dp": 0, "pp": 0, "kind": kind, "seq": 0, "chunk": 0, "microbatch": 0}
        rows.append(row | {"start": at, "duration": compute_s, **more})
        at += compute_s
    return rows


@pytest.mark.parametrize(("compute_s", "refused"), [(101, False), (99, True)])
def test_starts_may_be_as_coarse_as_a_hundredth_of_a_compute(compute_s, refused):
    """Whole seconds: 1% of a compute of 100 s."""
    columns = columns_of(little(at=0, compute_s=compute_s))
    assert columns.start.dtype == np.int64
    if refused:
        with pytest.raises(TraceError, match="resolves only 1 s"):
            arrange(columns, None)
    else:
        assert arrange(columns, None).traced_step_s().tolist() == [3 * compute_s]


@pytest.mark.parametrize(("factor", "doubted"), [(1, False), (1e3, True), (1e6, True), (1e9, True)])
def test_other_units_than_seconds_are_doubted(rows, factor, doubted):
    """Computes of 0.1 to 0.2 s, written in s, ms, us and ns."""
    scaled = [r | {"start": factor * r["start"], "duration": factor * r["duration"]} for r in rows]
    notes = [warning for warning in trace_of(scaled).warnings if "in seconds?" in warning]
    assert len(notes) == doubted


@pytest.mark.parametrize("first", [0, 100])
def test_int8_steps_up_to_127(first):
    rows = [row for step in range(first, 128) for row in little(step, 10.0 * step)]
    trace = arrange(columns_of(rows, step="int8"), None)
    assert trace.steps.tolist() == list(range(first, 128))
    np.testing.assert_array_equal(trace.start, trace_of(rows).start)
    np.testing.assert_array_equal(trace.step_start_s, 10.0 * np.arange(first, 128))


@pytest.mark.parametrize("width", ["int8", "int64"])
def test_negative_steps_are_refused(width):
    with pytest.raises(TraceError, match=r"step -1 is negative"):
        arrange(columns_of(little(-1) + little(0, 10.0), step=width), None)


@pytest.mark.parametrize("begin_s", [0.0, 0.5, -0.25])
def test_steps_that_all_begin_alike_have_no_absolute_start(begin_s):
    trace = trace_of([row for step in range(3) for row in little(step, begin_s)])
    assert np.isnan(trace.step_start_s).all()
    assert trace.start.tolist() == [0.0, 1.0, 2.0] * 3


def test_steps_that_begin_one_after_the_other_keep_their_starts():
    trace = trace_of([row for step in range(3) for row in little(step, 0.5 + 10 * step)])
    assert trace.step_start_s.tolist() == [0.5, 10.5, 20.5]


def test_the_longest_peer_need_not_be_the_last():
    """Peers compute from 10 to 15 s and from 13 to 16 s: together 5 s, until 16 s."""
    rows = [
        *little(at=10.0, compute_s=5.0, rank=0),
        *little(at=13.0, compute_s=3.0, rank=1),
    ]
    rows[1] |= {"start": 20.0}
    rows[2] |= {"start": 30.0}
    rows[4] |= {"start": 20.0}
    rows[5] |= {"start": 30.0}
    trace = trace_of(rows)
    forward = slice(0, 1)
    assert (trace.end - trace.start)[forward].tolist() == [5.0]
    # The forward, from 11 to 16 s, opens the step; the clip starts at 30 s.
    assert (trace.start[2] - trace.end[forward]).tolist() == [14.0]


def peers(rows, n):
    """The rows as recorded by ``n`` tensor-parallel ranks."""
    return [r | {"rank": 100 * k + 2 * r["dp"] + r["pp"]} for k in range(n) for r in rows]


@pytest.mark.parametrize("fewer", [5, 6])
def test_of_two_steps_that_with_more_peers_is_usual(rows, fewer):
    steps = {step: [r for r in rows if r["step"] == step] for step in (5, 6)}
    trace = trace_of([r for step in steps for r in peers(steps[step], 2 if step == fewer else 3)])
    assert trace.steps.tolist() == [11 - fewer]
    assert "not as many ranks as usual" in trace.left_out[fewer]


def test_of_three_steps_the_usual_number_of_peers_is_that_of_two(rows):
    steps = {step: [r for r in rows if r["step"] == step] for step in (5, 6, 7)}
    trace = trace_of([r for step in steps for r in peers(steps[step], 3 if step == 6 else 2)])
    assert trace.steps.tolist() == [5, 7]


@pytest.mark.parametrize("restart", [6, 7])
def test_a_restart_makes_no_peers(restart):
    """From some step on other ranks record the workers: still one rank a worker."""
    rows = make_rows(Spec(pp=2, microbatches=(3, 3), steps=3, first_step=5))
    expected = analyze(trace_of(peers(rows, 1)))
    moved = [r | {"rank": r["rank"] + 8 * (r["step"] >= restart)} for r in peers(rows, 1)]
    result = analyze(trace_of(moved))
    assert result.steps.tolist() == [5, 6, 7]
    assert result.warnings == expected.warnings
    assert not any("peers were merged" in warning for warning in result.warnings)
    np.testing.assert_array_equal(result.by_worker, expected.by_worker)
