"""The door: what ``arrange`` accepts, repairs, merges and refuses."""

import numpy as np
import pytest

from jobs import Spec, columns_of, make_rows, trace_of
from paceline.errors import TraceError
from paceline.trace import Job, OpKind, arrange
from paceline.whatif import analyze


def row(kind, start, duration, **more):
    base = {"step": 0, "dp": 0, "pp": 0, "kind": kind, "seq": 0, "chunk": 0, "microbatch": 0}
    return {**base, "start": start, "duration": duration, **more}


LITTLE = [
    row("forward-compute", 10.0, 1.0),
    row("forward-compute", 11.0, 2.0, seq=1, microbatch=1),
    row("backward-compute", 13.0, 3.0),
    row("backward-compute", 16.0, 4.0, seq=1, microbatch=1),
    row("optimizer-clip-main-grad", 20.0, 0.5),
]


def test_rows_stand_in_canonical_order():
    trace = trace_of(LITTLE[::-1])
    assert [OpKind(kind).label for kind in trace.kind] == [r["kind"] for r in LITTLE]
    assert trace.start.tolist() == [0, 1, 3, 6, 10]
    assert trace.end.tolist() == [1, 3, 6, 10, 10.5]
    assert trace.seq.tolist() == [0, 1, 0, 1, 0]
    assert trace.microbatch.tolist() == [0, 1, 0, 1, -1]  # only computes have one
    assert trace.step_start_s.tolist() == [10]
    assert trace.traced_step_s().tolist() == [10.5]
    assert trace.job == Job(1, 1)
    assert trace.warnings == ()


def test_seq_that_does_not_follow_the_starts_is_renumbered():
    rows = [dict(r, seq=1 - r["seq"]) if r["kind"] == "forward-compute" else r for r in LITTLE]
    trace = trace_of(rows)
    assert trace.start.tolist() == [0, 1, 3, 6, 10]
    assert any("seq_id does not rise" in warning for warning in trace.warnings)


@pytest.mark.parametrize("number", [lambda s: s + 1, lambda s: s * 7, lambda s: -s], ids="+*-")
def test_seq_with_another_base_or_holes_is_fine(number):
    trace = trace_of([dict(r, seq=number(r["seq"])) for r in LITTLE])
    assert trace.seq.tolist() == [0, 1, 0, 1, 0]
    assert trace.start.tolist() == [0, 1, 3, 6, 10]


def test_rows_that_are_there_twice_are_refused():
    with pytest.raises(TraceError, match="5 rows are there twice"):
        trace_of(LITTLE + LITTLE)
    with pytest.raises(TraceError, match="1 rows are there twice, the first is row 5"):
        trace_of([*LITTLE, LITTLE[0]])


@pytest.mark.parametrize("name", ["start", "duration"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_times_that_are_none_are_refused(name, value):
    rows = [*LITTLE[:2], dict(LITTLE[2], **{name: value}), *LITTLE[3:]]
    with pytest.raises(TraceError, match=r"1 rows have no finite .*row 2 .*backward-compute 0"):
        trace_of(rows)


def test_negative_durations_are_refused():
    rows = [*LITTLE[:2], dict(LITTLE[2], duration=-0.25), *LITTLE[3:]]
    with pytest.raises(TraceError, match=r"1 rows have a negative duration.*-0\.25 s"):
        trace_of(rows)


def test_no_time_at_all_is_said():
    """Every duration 0: there is nothing to compare with."""
    rows = [dict(r, duration=0.0) for r in LITTLE]
    with pytest.raises(TraceError):
        analyze(trace_of(rows))


def test_no_rows_are_refused():
    with pytest.raises(TraceError, match="no rows"):
        arrange(columns_of(LITTLE).take(np.zeros(5, dtype=bool)), None)


@pytest.mark.parametrize(
    "width", ["int8", "int16", "int32", "uint8", "uint32", "uint64", "float32"]
)
def test_every_width_of_every_column_at_once(width, rows):
    whole = ("step", "dp", "pp", "rank", "seq")
    if not width.startswith("u"):
        whole = (*whole, "chunk", "microbatch")
    expected = trace_of(rows)
    trace = arrange(columns_of(rows, **dict.fromkeys(whole, width)), None)
    np.testing.assert_array_equal(trace.start, expected.start)
    np.testing.assert_array_equal(trace.counts, expected.counts)


@pytest.mark.parametrize(
    "spec", [Spec(pp=1, microbatches=(2,)), Spec(pp=1), Spec(microbatches=(3,))]
)
def test_the_smallest_jobs(spec):
    spec = Spec(**{**vars(spec), "steps": 1})
    result = analyze(trace_of(make_rows(spec)))
    assert len(result.steps) == 1
    assert result.by_worker.shape == (spec.pp, len(spec.microbatches))
    if spec.pp == 1:
        assert result.m_s == 0
    assert np.isfinite(result.by_worker).all()


def peers(rows, **changes):
    """The rows as recorded by a second tensor-parallel rank, 100 above the first."""
    first = [r | {"rank": 2 * r["dp"] + r["pp"]} for r in rows]
    second = [r | {"rank": 100 + r["rank"]} for r in first]
    return first, second


def test_peers_are_merged_into_one_worker():
    """Compute: the longest. Communication: latest start, latest end."""
    first, second = peers(LITTLE)
    second[1] |= {"start": 10.5, "duration": 5.0}  # longer, though it starts earlier
    second[2] |= {"duration": 2.0}  # shorter
    first[4] |= {"start": 20.0, "duration": 1.0}
    second[4] |= {"start": 20.25, "duration": 0.5}  # starts later, ends earlier
    trace = trace_of(first + second)
    spans = list(zip(trace.start.tolist(), (trace.end - trace.start).tolist(), strict=True))
    assert spans == [(0, 1), (0.5, 5), (3, 3), (6, 4), (10.25, 0.75)]
    assert any("2 ranks recorded one" in warning for warning in trace.warnings)


def test_equal_peers_change_nothing(rows):
    first, second = peers(rows)
    expected = analyze(trace_of(first))
    merged = analyze(trace_of(second[::-1] + first))
    assert merged.slowdown == pytest.approx(expected.slowdown, rel=1e-12)
    np.testing.assert_allclose(merged.by_worker, expected.by_worker, rtol=1e-12)


def test_a_step_in_which_a_peer_lacks_an_op_is_left_out(rows):
    first, second = peers(rows)
    lost = next(
        i for i, r in enumerate(second) if r["step"] == 6 and r["kind"] == "forward-compute"
    )
    del second[lost]
    result = analyze(trace_of(first + second))
    assert result.steps.tolist() == [5, 7]
    assert "rank" in result.left_out_steps[6]


def test_a_step_that_a_peer_lacks_is_left_out(rows):
    first, second = peers(rows)
    result = analyze(trace_of(first + [r for r in second if r["step"] != 6 or r["dp"] != 1]))
    assert result.steps.tolist() == [5, 7]


def test_a_wrong_rank_in_one_step_costs_that_step(rows):
    first, _ = peers(rows)
    wrong = next(r for r in first if r["step"] == 6 and r["kind"] == "forward-compute")
    wrong["rank"] = 77
    assert analyze(trace_of(first)).steps.tolist() == [5, 7]


def test_a_worker_may_move_to_another_rank(rows):
    """After a restart the same worker is another global rank: no peers, one rank a step."""
    expected = analyze(trace_of(rows))
    first, second = peers(rows)
    moved = [r for r in first if r["step"] < 7] + [r for r in second if r["step"] == 7]
    result = analyze(trace_of(moved))
    assert result.steps.tolist() == [5, 6, 7]
    assert result.slowdown == pytest.approx(expected.slowdown, rel=1e-12)


def test_a_rank_too_many_for_the_rows_is_said():
    with pytest.raises(TraceError, match="corrupt"):
        trace_of([*LITTLE, dict(LITTLE[0], dp=10**9)])


def test_chosen_steps_keep_their_times(rows):
    for r in rows:
        r["start"] += 100.0 * r["step"]
    whole = trace_of(rows)
    part = whole.select_steps({6})
    assert part.steps.tolist() == [6]
    assert part.step_start_s.tolist() == pytest.approx([600.0])
    assert part.traced_step_s()[0] == whole.traced_step_s()[1]
    assert len(part) == len(whole) // 3
