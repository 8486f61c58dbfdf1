"""``paceline.write``: what is written is read again, all of it that the format holds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline
from jobs import make_rows, random_spec, table_of, trace_of
from paceline.errors import OutputError, TraceError
from paceline.synth import SlowWorker, SynthSpec, synthesize


def assert_same(again: paceline.Trace, trace: paceline.Trace) -> None:
    for name in ("steps", "counts", "chunk", "microbatch", "start", "rank", "step_start_s"):
        np.testing.assert_array_equal(getattr(again, name), getattr(trace, name), err_msg=name)
    np.testing.assert_allclose(again.end, trace.end, rtol=0, atol=1e-12)
    for name in ("job", "truth", "warnings", "left_out"):
        assert getattr(again, name) == getattr(trace, name), name


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [str, Path])
def test_a_round_trip_changes_nothing(tmp_path, seed, kind) -> None:
    trace = trace_of(make_rows(random_spec(seed)))
    paceline.write(trace, kind(tmp_path / "trace.parquet"))
    assert_same(paceline.load(kind(tmp_path / "trace.parquet")), trace)


def test_truth_warnings_left_out_steps_and_starts_are_in_the_file(tmp_path) -> None:
    trace = replace(
        synthesize(SynthSpec(dp=2, pp=2, steps=2, slow_workers=(SlowWorker(1, 1, 1.5),))),
        warnings=("imported from x files, confidence 0.70", "clocks differ"),
        left_out={7: "not whole"},
        step_start_s=np.array([1.7e9, 1.7e9 + 2.5]),
    )
    path = tmp_path / "trace.parquet"
    paceline.write(trace, path)
    again = paceline.load(path)
    assert again.truth is not None
    assert again.truth["causes"] == json.loads(json.dumps(trace.truth))["causes"]
    assert_same(again, replace(trace, truth=again.truth))
    paceline.write(again, path, force=True)  # what was noticed twice is said once
    assert paceline.load(path).warnings == trace.warnings
    some = paceline.load(path, steps=[1])
    assert some.step_start_s.tolist() == [1.7e9 + 2.5]
    assert some.left_out == {}


def test_what_the_door_notices_again_is_not_said_twice(tmp_path) -> None:
    rows = [
        r | {"duration": 1e3 * r["duration"], "start": 1e3 * r["start"]}
        for r in make_rows(random_spec(1))
    ]
    trace = trace_of(rows)
    paceline.write(trace, tmp_path / "trace.parquet")
    assert (
        len(
            [
                w
                for w in paceline.load(tmp_path / "trace.parquet").warnings
                if "unit" in w or "in seconds" in w
            ]
        )
        == 1
    )


def test_a_file_is_replaced_only_if_forced(tmp_path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"mine")
    trace = trace_of(make_rows(random_spec(3)))
    with pytest.raises(OutputError, match="exists already; choose another name or pass force=True"):
        paceline.write(trace, str(path))
    assert path.read_bytes() == b"mine"
    paceline.write(trace, str(path), force=True)
    assert len(paceline.load(path)) == len(trace)


def test_a_failing_write_leaves_nothing_half(tmp_path, monkeypatch) -> None:
    path = tmp_path / "trace.parquet"
    trace = trace_of(make_rows(random_spec(3)))
    paceline.write(trace, path)
    whole = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OutputError, match="No space left"):
        paceline.write(trace, path, force=True)
    assert path.read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == ["trace.parquet"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("", "is a folder"), ("absent/trace.parquet", "does not exist"), ("folder", "is a folder")],
)
def test_places_where_nothing_can_be_written_are_said(tmp_path, monkeypatch, name, said) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match=said):
        paceline.write(trace_of(make_rows(random_spec(3))), name)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_no_rows_are_not_written(tmp_path) -> None:
    trace = trace_of(make_rows(random_spec(3)))
    empty = np.zeros(0)
    none = replace(trace, start=empty, end=empty, counts=np.zeros_like(trace.counts))
    with pytest.raises(TraceError, match="no rows"):
        paceline.write(none, tmp_path / "trace.parquet")


@pytest.mark.parametrize(
    "stored",
    [
        {"warnings": "x", "left_out": [], "step_start_s": 5},
        {"warnings": [1, None, "kept"], "left_out": {"x": "y", "5": 5}, "step_start_s": {"0": "z"}},
        {"left_out": {"9" * 30: "y", "-1": "z"}, "step_start_s": None},
    ],
)
def test_metadata_of_another_form_is_ignored(tmp_path, stored) -> None:
    path = tmp_path / "trace.parquet"
    text = json.dumps({"version": 1, **stored})
    table: pa.Table = table_of(make_rows(random_spec(3)))
    pq.write_table(table.replace_schema_metadata({b"paceline": text}), path)
    trace = paceline.load(path)
    assert trace.left_out == {}
    assert set(trace.warnings) <= {"kept"}
    assert np.isnan(trace.step_start_s).all()
