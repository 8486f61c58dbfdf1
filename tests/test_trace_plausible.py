"""Times that no job can have are refused at the door; what is merely odd is told."""

import numpy as np
import pytest

from jobs import Spec, columns_of, make_rows, replace, table_of, trace_of
from paceline.errors import TraceError
from paceline.sources import load
from paceline.trace import arrange

DAY_S = 86_400.0
SPEC = Spec(steps=3, microbatches=(4, 4), spread=0.1)


def rows_with(kind: str, seconds: float, spec: Spec = SPEC, step: int = 1) -> list[dict]:
    """A consistent trace in which one operation lasts ``seconds``, and its worker waits for it."""
    rows = make_rows(spec)
    long = next(r for r in rows if r["kind"] == kind and r["step"] == step and r["seq"] == 0)
    end = long["start"] + long["duration"]
    for row in rows:
        same = (row["step"], row["dp"], row["pp"]) == (step, long["dp"], long["pp"])
        if same and row["start"] >= end - 1e-9:
            row["start"] += seconds - long["duration"]
    long["duration"] = seconds
    return rows


def odd(trace) -> list[str]:
    return [warning for warning in trace.warnings if "typical of its kind" in warning]


def test_an_operation_of_thirty_thousand_years_is_refused() -> None:
    rows = rows_with("forward-compute", 1e12)
    row = next(i for i, r in enumerate(rows) if r["duration"] == 1e12)
    said = rf"row {row}, step 1, dp 0, stage 0, forward-compute 0, lasts 1e\+12 s.*Drop such rows"
    with pytest.raises(TraceError, match=said):
        trace_of(rows)


@pytest.mark.parametrize("kind", ["forward-compute", "optimizer", "grads-reduce-scatter"])
@pytest.mark.parametrize(("seconds", "refused"), [(DAY_S * 1.01, True), (DAY_S * 0.99, False)])
def test_more_than_a_day_is_refused_and_less_is_told(kind, seconds, refused) -> None:
    rows = rows_with(kind, seconds)
    if refused:
        with pytest.raises(TraceError, match=f"longer than any job has: row .*{kind}"):
            trace_of(rows)
    else:
        (warning,) = odd(trace_of(rows))
        assert warning.startswith("1 operation lasts over 1000 times as long as is typical")


def test_long_is_told_only_beyond_a_step_and_a_thousand_times_its_kind() -> None:
    """A forward takes 0.09 to 0.11 s, a step about 2 s."""
    assert len(odd(trace_of(rows_with("forward-compute", 115.0)))) == 1
    assert odd(trace_of(rows_with("forward-compute", 85.0))) == []
    assert odd(trace_of(make_rows(SPEC))) == []
    short = [
        r | {"duration": 1e-6} if r["kind"] == "grads-reduce-scatter" else r
        for r in make_rows(SPEC)
    ]
    first = next(r for r in short if r["kind"] == "grads-reduce-scatter")
    first["duration"] = 0.5  # 500,000 times the others, and well within a step
    assert odd(trace_of(short)) == []


def test_one_step_alone_has_its_work_to_compare_with() -> None:
    spec = Spec(steps=1, microbatches=(4, 4), spread=0.1)
    assert odd(trace_of(make_rows(spec))) == []
    with pytest.raises(TraceError, match="longer than any job has"):
        trace_of(rows_with("forward-compute", 1e12, spec, step=0))
    assert len(odd(trace_of(rows_with("forward-compute", 3600.0, spec, step=0)))) == 1


def test_an_operation_that_is_alone_of_its_kind_is_not_typical_of_itself() -> None:
    spec = Spec(steps=1, pp=1, microbatches=(1,), gather=False, scatter=False, delays=False)
    rows = make_rows(spec)
    next(r for r in rows if r["kind"] == "optimizer")["duration"] = 1e12
    with pytest.raises(TraceError, match="optimizer 0, lasts"):
        trace_of(rows)


def test_several_are_counted() -> None:
    rows = rows_with("forward-compute", 5000.0, replace(SPEC, steps=5))
    for row in rows:
        if row["kind"] == "backward-compute" and row["step"] == 2 and row["seq"] == 0:
            row["duration"] = 4000.0
    (warning,) = odd(trace_of(rows))
    assert warning.startswith("5 operations last")
    assert "forward-compute 0, lasts 5000 s" in warning


@pytest.mark.parametrize(("pause_s", "refused"), [(2 * DAY_S, True), (DAY_S / 2, False)])
def test_a_pause_of_days_inside_a_step_is_refused(pause_s, refused) -> None:
    rows = make_rows(SPEC)
    for row in rows:
        if row["step"] == 1 and row["start"] > 1.0:
            row["start"] += pause_s
    if refused:
        said = r"4 workers pause inside a step.*in step 1: .* within 1\.7\d+e\+05 s"
        with pytest.raises(TraceError, match=said):
            trace_of(rows)
    else:
        trace_of(rows)


def test_a_start_that_was_never_written_is_refused() -> None:
    """Absolute times since 1970, one of them 0."""
    rows = [r | {"start": r["start"] + 1.7e9 + 10 * r["step"]} for r in make_rows(SPEC)]
    assert trace_of(rows).n_steps == 3
    rows[5]["start"] = 0.0
    with pytest.raises(TraceError, match="1 workers pause inside a step"):
        trace_of(rows)


def test_clocks_of_workers_may_differ_by_years() -> None:
    """They are corrected later (graph/clocks.py)."""
    rows = [r | {"start": r["start"] + 1e8 * r["dp"]} for r in make_rows(SPEC)]
    assert odd(trace_of(rows)) == []


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e9])
def test_a_file_in_another_unit_is_doubted_not_refused(factor) -> None:
    scaled = [
        r | {"start": factor * r["start"], "duration": factor * r["duration"]}
        for r in make_rows(SPEC)
    ]
    assert any("in seconds?" in warning for warning in trace_of(scaled).warnings)


def test_of_merged_peers_no_row_is_named() -> None:
    rows = [r | {"rank": 2 * r["dp"] + r["pp"]} for r in rows_with("forward-compute", 1e12)]
    peers = [r | {"rank": 100 + r["rank"]} for r in rows]
    with pytest.raises(TraceError, match="any job has: step 1, dp 0, stage 0, forward-compute 0"):
        arrange(columns_of(rows + peers), None)


def test_leaving_the_step_out_reads_the_rest(tmp_path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "trace.parquet"
    pq.write_table(table_of(rows_with("forward-compute", 1e12)), path)
    with pytest.raises(TraceError, match="--steps"):
        load(path)
    assert load(path, steps=[0, 2]).steps.tolist() == [0, 2]


def test_many_rows_are_judged_by_some_of_them(monkeypatch) -> None:
    monkeypatch.setattr("paceline.trace.plausible._MOST_ROWS", 10)
    assert odd(trace_of(make_rows(SPEC))) == []
    with pytest.raises(TraceError, match="longer than any job has"):
        trace_of(rows_with("forward-compute", 1e12))
    assert np.isfinite(trace_of(make_rows(SPEC)).end).all()
