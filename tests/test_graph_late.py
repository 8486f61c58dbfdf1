"""Ends that are only upper bounds: estimated by hand, and without effect on what others cost."""

import random

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.graph.late import queue_ends
from paceline.trace import OpKind
from paceline.whatif import analyze
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs

INF = float("inf")


@pytest.mark.parametrize(
    ("launch", "bound", "known", "usual_s", "ends"),
    [
        # The last was seen to end at 6: three in a row took 2 s each.
        ([0, 0, 0], [9, 9, 6], "..k", 1, [2, 4, 6]),
        # The last was launched at 5 and ended at 7: none took longer than 2 s.
        ([0, 1, 5], [10, 10, 7], "..k", 1, [2, 4, 7]),
        # Behind the last that was seen, each takes the usual 2 s.
        ([0, 0, 0], [4, 9, 9], "k..", 2, [4, 6, 8]),
        # Two usual ones of 3 s would end behind the bound of 8: 2 s each.
        ([0, 0, 0], [4, 9, 8], "k..", 3, [4, 6, 8]),
        # Nobody saw any end: the longest that the bounds allow.
        ([0, 0], [8, 6], "..", INF, [3, 6]),
        # A bound before the launch (clocks): no time is negative.
        ([5, 5], [4, 9], "..", 1, [5, 5]),
        # All were seen.
        ([0, 0], [1, 5], "kk", 1, [1, 5]),
        # The second waits for its own launch, not for the first.
        ([0, 7], [9, 9], "..", 1, [1, 8]),
    ],
)
def test_ends_of_a_queue(launch, bound, known, usual_s, ends):
    seen = [mark == "k" for mark in known]
    assert queue_ends(launch, bound, seen, usual_s) == pytest.approx(ends, abs=1e-9)


def pipeline(recv_ahead, dp=1):
    """Two stages, three microbatches; receives are posted a compute ahead, or when needed."""
    first = []
    for m in range(3):
        first += [Compute("forward-compute", m, 0), Launch("forward-send", ("s", m))]
    for m in range(3):
        first += [Launch("backward-recv", m), Wait(m), Compute("backward-compute", m, 0)]
    second = [Launch("forward-recv", 0)]
    for m in range(3):
        if recv_ahead and m < 2:
            second.append(Launch("forward-recv", m + 1))
        second += [Wait(m), Compute("forward-compute", m, 0)]
        if not recv_ahead and m < 2:
            second.append(Launch("forward-recv", m + 1))
    for m in range(3):
        second += [Compute("backward-compute", m, 0), Launch("backward-send", ("s", m))]
    return {(d, pp): program for d in range(dp) for pp, program in enumerate((first, second))}


def with_late_ends(run, unseen=()):
    """Rows as a recorder has them: what was over before it was awaited ends with the wait.

    ``unseen`` are kinds that are never awaited, and end for their recorder with the step.
    """
    rows = []
    for row in run.rows:
        row = dict(row)
        if row["kind"] in unseen:
            row |= {"end": run.step_s, "late": True}
        elif row.get("asked", 0.0) > row["end"]:
            row |= {"end": row["asked"], "late": True}
        rows.append(row)
    return rows


def seconds_of(programs, of_kind, noise=0.0):
    launched = {
        place: [step for step in program if not isinstance(step, Wait)]
        for place, program in programs.items()
    }

    def seconds(key):
        dp, pp, nth = key
        value = of_kind(launched[dp, pp][nth], dp, pp)
        return value * (1 + noise * random.Random(str(key)).random())

    return seconds


def transfer_s(measured, kind):
    ops = np.flatnonzero(measured.graph.kind == kind)
    return np.array([measured.durations.row(op) for op in ops])


def test_a_transfer_ends_when_one_member_saw_it():
    """A receive seen at 1.5 s; its send is awaited at 9 s, when it was long over."""
    rows = [
        ("forward-compute", 0, 0.0, 1.0, -1, False),
        ("forward-send", 0, 1.0, 9.0, 2, True),
        ("backward-compute", 0, 1.0, 9.0, -1, False),
        ("forward-recv", 1, 0.0, 1.5, 0, False),
        ("forward-compute", 1, 1.5, 2.5, -1, False),
        ("backward-compute", 1, 2.5, 3.5, -1, False),
    ]
    table, issued = [], [0, 0]
    for kind, pp, start, end, awaited, late in rows:
        row = {"dp": 0, "pp": pp, "kind": kind, "seq": 0, "chunk": 0, "microbatch": 0, "part": -1}
        row |= {"issued": issued[pp], "awaited": awaited, "start": start, "end": end, "late": late}
        table.append(row)
        issued[pp] += 1
    measured = from_trace(trace_of_runs([table]), keep_clocks=True)
    assert transfer_s(measured, OpKind.FORWARD_SEND).ravel() == pytest.approx([0.5])
    assert transfer_s(measured, OpKind.FORWARD_RECV).ravel() == pytest.approx([0.5])
    assert not any("estimated" in text for text in measured.warnings)  # nothing is estimated


def late_job(slow=1.0, link_s=0.02, unseen=("forward-send", "backward-send"), steps=4):
    """dp 2 x pp 2; dp 1's stage 0 computes ``slow`` times as long. As it was, and as recorded."""
    programs = pipeline(recv_ahead=True, dp=2)

    def of_kind(step, dp, pp):
        if isinstance(step, Launch):
            return link_s
        return (0.1 if step.kind == "forward-compute" else 0.2) * (
            slow if (dp, pp) == (1, 0) else 1
        )

    runs = [Run(programs, seconds_of(programs, of_kind, 0.001)) for _ in range(steps)]
    return runs, [with_late_ends(run, unseen) for run in runs]


@pytest.mark.parametrize("slow", [1.0, 1.5])
def test_late_ends_change_no_slowdown(slow):
    exact, recorded = (
        analyze(trace_of_runs(rows), keep_clocks=True) for rows in late_job(slow=slow)
    )
    assert recorded.slowdown == pytest.approx(exact.slowdown, abs=2e-3)
    np.testing.assert_allclose(recorded.by_worker, exact.by_worker, atol=2e-3)
    np.testing.assert_allclose(recorded.lasting.by_worker, exact.lasting.by_worker, atol=2e-3)
    assert recorded.by_kind["forward-pp-comm"] == pytest.approx(1.0, abs=2e-3)
    assert recorded.discrepancy < 0.005


def unhurried(dp):
    """Two stages that pause for a collection before they look at a receive: all are long there."""
    programs = pipeline(recv_ahead=True, dp=dp)
    for (_, pp), program in programs.items():
        waits = [step for step in program if isinstance(step, Wait)]
        for wait in waits[:1] if pp else waits:
            program.insert(program.index(wait), Compute("gc"))
    return programs


@pytest.mark.parametrize("slow", [1.0, 1.5, 3.0])
def test_transfers_of_which_nobody_saw_an_end(slow):
    """All bounds are far off: the transfers must not count as what the step waits for."""
    programs = unhurried(2)

    def of_kind(step, dp, pp):
        if isinstance(step, Launch):
            return 0.001
        base = {"forward-compute": 0.1, "backward-compute": 0.2, "gc": 2.0 if pp else 1.0}
        return base[step.kind] * (slow if (dp, pp) == (1, 0) else 1)

    runs = [Run(programs, seconds_of(programs, of_kind, 0.001)) for _ in range(4)]
    rows = [with_late_ends(run, ("forward-send", "backward-send")) for run in runs]
    exact, recorded = (analyze(trace_of_runs(some), keep_clocks=True) for some in (runs, rows))
    assert recorded.slowdown == pytest.approx(exact.slowdown, abs=0.01)
    np.testing.assert_allclose(recorded.by_worker, exact.by_worker, atol=0.01)
    assert recorded.by_kind["forward-pp-comm"] == pytest.approx(1.0, abs=0.01)
    assert recorded.by_kind["backward-pp-comm"] == pytest.approx(1.0, abs=0.01)


def test_a_late_end_is_no_finding():
    """One link's ends are bounds 30 times as late as its transfers took."""
    runs, _ = late_job()
    rows = [[dict(row) for row in run.rows] for run in runs]
    for run, some in zip(runs, rows, strict=True):
        for row in some:
            if row["dp"] == 1 and row["kind"] in ("forward-send", "forward-recv"):
                row |= {"end": run.step_s, "late": True}
    measured = from_trace(trace_of_runs(rows), keep_clocks=True)
    result = analyze(measured)
    diagnosis = diagnose(measured, result)
    assert not diagnosis.findings
    assert result.healthy
    assert any("6 operations" in t or "ends are estimated" in t for t in measured.warnings)
