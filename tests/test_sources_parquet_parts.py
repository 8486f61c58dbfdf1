"""Large files are read in parts: the same traces, errors and warnings as when read whole."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import Spec, make_rows, random_spec, table_of
from paceline.errors import TraceError
from paceline.sources import load, parquet_parts


@pytest.fixture
def read_both(monkeypatch):
    """Load a file in parts (whatever its size) and whole; whether the parts were taken."""

    def read(path, **kwargs):
        taken = []
        original = parquet_parts.parts_of

        def watched(file):
            parts = original(file)
            taken.append(parts is not None)
            return parts

        outcomes = []
        for above in (0, 2**60):
            monkeypatch.setattr(parquet_parts, "PLACE_ABOVE", above)
            monkeypatch.setattr("paceline.sources.parquet.parts_of", watched)
            try:
                outcomes.append(load(path, **kwargs))
            except TraceError as error:
                outcomes.append(str(error))
            monkeypatch.setattr("paceline.sources.parquet.parts_of", original)
        return (*outcomes, taken[0])

    return read


def equal(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        else:
            assert a == b, field.name
    return True


@pytest.fixture
def write(tmp_path):
    def to_file(table, **kwargs):
        path = tmp_path / "trace.parquet"
        pq.write_table(table, path, **kwargs)
        return path

    return to_file


def categorical(rows):
    return table_of(rows, "categorical")


@pytest.mark.parametrize("seed", range(25))
def test_random_jobs(seed, write, read_both):
    rows = make_rows(random_spec(seed))
    order = np.random.default_rng(seed).permutation(len(rows))  # rows come in any order
    path = write(categorical([rows[i] for i in order]), row_group_size=37)
    in_parts, whole, taken = read_both(path)
    assert taken
    assert equal(in_parts, whole)


ROWS = make_rows(Spec(pp=2, microbatches=(3, 3), steps=3, first_step=5, shared_transfers=True))


def changed(column, row, value):
    table = categorical(ROWS)
    values = table.column(column).to_pylist()
    values[row] = value
    index = table.column_names.index(column)
    kind = table.schema.field(column).type
    return table.set_column(index, column, pa.array(values, kind))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("start_ts", float("nan")),
        ("start_ts", float("inf")),
        ("start_ts", -5.0),
        ("start_ts", 1e12),
        ("duration", -1.0),
        ("duration", float("nan")),
        ("duration", 1e12),
        ("duration", 1e5),
        ("seq_id", 1),
        ("seq_id", -1),
        ("seq_id", 10_000),
        ("dp_rank", 7),
        ("stage", -1),
        ("step", -3),
        ("step", 2_000_000_000),
        ("rank", 3),
        ("rank", -9),
        ("mc", 3),
        ("gmc", 1),
        ("mb_id", -2),
    ],
)
@pytest.mark.parametrize("row", [0, 20])
def test_a_strange_value_is_said_alike(column, value, row, write, read_both):
    in_parts, whole, _ = read_both(write(changed(column, row, value), row_group_size=50))
    assert equal(in_parts, whole)


def test_an_unknown_kind_is_said_alike(write, read_both):
    table = categorical(ROWS)
    labels = table.column("optype").to_pylist()
    labels[4] = "all-to-all"
    index = table.column_names.index("optype")
    table = table.set_column(index, "optype", pa.array(labels).dictionary_encode())
    in_parts, whole, taken = read_both(write(table))
    assert taken
    assert "all-to-all" in in_parts
    assert in_parts == whole


@pytest.mark.parametrize("column", ["start_ts", "stage", "optype"])
def test_empty_values_are_said_alike(column, write, read_both):
    in_parts, whole, _ = read_both(write(changed(column, 3, None)))
    assert column in in_parts
    assert in_parts == whole


def test_a_missing_row_is_left_to_the_graph_alike(write, read_both):
    in_parts, whole, _ = read_both(write(categorical(ROWS[:10] + ROWS[11:])))
    assert equal(in_parts, whole)


def test_rows_there_twice_are_said_alike(write, read_both):
    in_parts, whole, _ = read_both(write(categorical(ROWS + ROWS[-3:])))
    assert "there twice" in in_parts
    assert in_parts == whole


def test_peers_are_merged_alike(write, read_both):
    peers = [dict(row, rank=4 + row["dp"] * 2 + row["pp"]) for row in ROWS]
    mine = [dict(row, rank=row["dp"] * 2 + row["pp"]) for row in ROWS]
    in_parts, whole, _ = read_both(write(categorical(mine + peers)))
    assert equal(in_parts, whole)
    assert any("tensor-parallel peers" in warning for warning in in_parts.warnings)


def test_files_that_cannot_be_read_in_parts(write, read_both):
    table = categorical(ROWS)
    start = table.column_names.index("start_ts")
    single = table.set_column(start, "start_ts", table.column("start_ts").cast(pa.float32()))
    for path in (
        write(table, write_statistics=False),
        write(table_of(ROWS, "string")),
        write(single),
    ):
        in_parts, whole, taken = read_both(path)
        assert not taken
        assert equal(in_parts, whole)


def test_a_job_that_contradicts_the_file_is_said_alike(write, read_both, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("dp_size: 4\npp_size: 2\ntp_size: 1\nworld_size: 8\n")
    in_parts, whole, taken = read_both(write(categorical(ROWS)), job=job)
    assert taken
    assert "dp_size is 4" in in_parts
    assert in_parts == whole
