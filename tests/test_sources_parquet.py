"""Parquet traces: every form that is fine, and every one that is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from jobs import Spec, make_rows, table_of, write_rows
from paceline import SynthSpec, synthesize
from paceline.errors import OutputError, TraceError
from paceline.sources import load, parquet
from paceline.sources.call_logs.table import read_calls
from paceline.sources.parquet import COLUMNS, write
from paceline.sources.seqlens import read_seqlens
from paceline.sources.step_times import load_step_times
from paceline.trace import Job
from paceline.whatif import analyze

WHOLE = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
WIDTHS = ("int8", "int16", "int32", "int64", "float16", "float32", "float64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.parquet"


@pytest.fixture
def save(path):
    def save(table):
        pq.write_table(table, path)
        return path

    return save


def with_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def with_value(table, name, row, value):
    values = table[name].to_pylist()
    values[row] = value
    return with_column(table, name, values)


def same(one, other):
    for name in ("steps", "counts", "chunk", "microbatch", "start", "end", "rank"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    return one.job == other.job


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_of_every_number(rows, save, name, width):
    table = table_of(rows)
    values = table[name].to_numpy().astype(width)
    expected = load(save(table))
    assert same(load(save(with_column(table, name, values))), expected)


@pytest.mark.parametrize("name", ["dp_rank", "stage", "rank", "step", "seq_id"])
@pytest.mark.parametrize("width", UNSIGNED)
def test_every_unsigned_width(rows, save, name, width):
    table = table_of(rows)
    expected = load(save(table))
    assert same(
        load(save(with_column(table, name, table[name].to_numpy().astype(width)))), expected
    )


@pytest.mark.parametrize("width", ["float32", "float64"])
def test_float_times(rows, save, width):
    table = table_of(rows)
    slowdown = analyze(load(save(table))).slowdown
    for name in ("start_ts", "duration"):
        table = with_column(table, name, table[name].to_numpy().astype(width))
    assert analyze(load(save(table))).slowdown == pytest.approx(slowdown, rel=1e-5)


def test_whole_seconds_may_be_integers(save):
    """Forward 200 s, backward 400 s, clip 100 s."""
    rows = []
    at = 0
    for kind, seconds in (
        ("forward-compute", 200),
        ("backward-compute", 400),
        ("optimizer-clip-main-grad", 100),
    ):
        row = {"step": 0, "dp": 0, "pp": 0, "kind": kind, "seq": 0, "chunk": 0, "microbatch": 0}
        rows.append(row | {"start": at, "duration": seconds})
        at += seconds
    table = table_of(rows)
    assert table["duration"].type == pa.int64()
    assert load(save(table)).traced_step_s().tolist() == [700.0]


@pytest.mark.parametrize("optype", ["string", "large_string", "categorical"])
def test_every_form_of_kind_names(rows, path, optype):
    expected = load(write_rows(rows, path))
    assert same(load(write_rows(rows, path, optype)), expected)


def test_unused_categories_do_not_matter(rows, save):
    table = table_of(rows, "categorical")
    column = table["optype"].combine_chunks()
    more = pa.array(["no-such-kind", *column.dictionary.to_pylist()])
    moved = pa.DictionaryArray.from_arrays(pa.array(column.indices.to_numpy() + 1), more)
    expected = load(save(table))
    assert same(load(save(with_column(table, "optype", moved))), expected)


def test_several_row_groups_with_other_dictionaries(rows, path):
    table = table_of(rows, "categorical")
    expected = load(write_rows(rows, path))
    pq.write_table(table, path, row_group_size=7)
    assert same(load(path), expected)


def test_any_order_of_rows(rows, save):
    table = table_of(rows)
    expected = load(save(table))
    order = np.random.default_rng(0).permutation(len(rows))
    assert same(load(save(table.take(order))), expected)


def test_extra_columns_are_ignored(rows, save):
    table = table_of(rows)
    expected = load(save(table))
    assert same(load(save(table.append_column("note", pa.array(["x"] * len(rows))))), expected)


def test_times_since_1970_equal_times_since_the_step(rows, save):
    expected = load(save(table_of(rows)))
    for row in rows:
        row["start"] += 1.7e9 + 10.0 * row["step"]
    trace = load(save(table_of(rows)))
    np.testing.assert_allclose(trace.start, expected.start, atol=1e-6)
    assert trace.step_start_s.tolist() == pytest.approx([1.7e9 + 10 * s for s in (5, 6, 7)])
    assert np.isnan(expected.step_start_s).all()
    slowdown = analyze(expected).slowdown
    assert analyze(trace).slowdown == pytest.approx(slowdown, rel=1e-4)


def test_absolute_float32_times_are_too_coarse(rows, save):
    for row in rows:
        row["start"] += 1.7e9
    table = table_of(rows)
    table = with_column(table, "start_ts", table["start_ts"].to_numpy().astype("float32"))
    with pytest.raises(TraceError, match="float64"):
        load(save(table))


def test_integer_seconds_are_too_coarse_for_short_ops(rows, save):
    """Computes last 0.1 s: starts in whole seconds say nothing about them."""
    table = table_of(rows)
    starts = table["start_ts"].to_numpy().astype("int64")
    with pytest.raises(TraceError, match="resolves"):
        load(save(with_column(table, "start_ts", starts)))


def test_int8_holds_128_replicas(path):
    rows = make_rows(Spec(pp=2, microbatches=(1,) * 128, steps=1, spread=0.1))
    table = table_of(rows)
    for name in ("dp_rank", "stage", "mc", "mb_id", "seq_id"):
        table = with_column(table, name, table[name].to_numpy().astype("int8"))
    pq.write_table(table, path)
    result = analyze(load(path))
    assert result.job.dp_size == 128
    assert result.by_worker.shape == (2, 128)


def test_int8_holds_the_place_of_many_chunks(path):
    """gmc reaches 63 and microbatch 63: products with pp must not overflow."""
    spec = Spec(pp=4, vpp=16, microbatches=(8,), steps=1)
    table = table_of(make_rows(spec))
    for name in ("dp_rank", "stage", "mc", "mb_id", "gmc"):
        table = with_column(table, name, table[name].to_numpy().astype("int8"))
    pq.write_table(table, path)
    assert load(path).job.vpp_size == 16


def test_step_numbers_may_be_huge(rows, save):
    expected = load(save(table_of(rows)))
    for row in rows:
        row["step"] = 10**12 + 10**9 * row["step"]
    trace = load(save(table_of(rows)))
    assert trace.steps.tolist() == [10**12 + 10**9 * s for s in (5, 6, 7)]
    np.testing.assert_array_equal(trace.start, expected.start)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 and more, then PAR1", b"step,dp\n1,2\n"])
def test_what_is_not_parquet_is_said(path, content):
    path.write_bytes(content)
    with pytest.raises(TraceError, match="not a readable parquet file"):
        load(path)


def test_a_truncated_file_is_said(rows, path):
    whole = write_rows(rows, path).read_bytes()
    for size in (len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError, match="parquet"):
            load(path)


def test_damage_inside_a_file_is_said(rows, path):
    whole = bytearray(write_rows(rows, path).read_bytes())
    whole[40:400] = b"\xff" * 360
    path.write_bytes(bytes(whole))
    with pytest.raises(TraceError):
        load(path)


def test_no_file_a_folder_and_another_format_are_said(tmp_path):
    with pytest.raises(TraceError, match="does not exist"):
        load(tmp_path / "absent.parquet")
    with pytest.raises(TraceError, match="folder"):
        load(tmp_path)
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(TraceError, match="not a trace file"):
        load(tmp_path / "trace.json")


def test_zero_rows_are_said(rows, save):
    for optype in ("string", "categorical"):
        with pytest.raises(TraceError, match="no rows"):
            load(save(table_of(rows, optype).slice(0, 0)))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_missing_column_is_named(rows, save, name):
    with pytest.raises(TraceError, match=f"lacks the column {name};"):
        load(save(table_of(rows).drop_columns([name])))


def test_all_missing_columns_are_named(rows, save):
    with pytest.raises(TraceError, match="lacks the columns stage, mc;"):
        load(save(table_of(rows).drop_columns(["mc", "stage"])))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_is_there_twice_is_said(rows, save, name):
    table = table_of(rows)
    with pytest.raises(TraceError, match=name):
        load(save(table.append_column(name, table[name])))


@pytest.mark.parametrize("name", COLUMNS)
def test_empty_values_are_said(rows, save, name):
    with pytest.raises(TraceError, match=f"column {name} has 1 empty value"):
        load(save(with_value(table_of(rows), name, 3, None)))


STRANGE = {
    "text": pa.array(["x"]),
    "truth": pa.array([True]),
    "list": pa.array([[1]]),
    "moment": pa.array([1], pa.timestamp("ns")),
    "span": pa.array([1], pa.duration("ns")),
    "date": pa.array([1], pa.date32()),
    "bytes": pa.array([b"x"]),
    "struct": pa.array([{"x": 1}]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("form", STRANGE)
def test_columns_of_another_type_are_said(rows, save, name, form):
    column = STRANGE[form].take(pa.array([0] * len(rows)))
    with pytest.raises(TraceError):
        load(save(with_column(table_of(rows), name, column)))


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in ("optype", "gmc")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_said(rows, save, name, value):
    table = table_of(rows)
    row = next(i for i, r in enumerate(rows) if r["kind"] == "forward-compute")
    with pytest.raises(TraceError):
        load(
            save(
                with_value(
                    with_column(table, name, table[name].to_numpy().astype(float)), name, row, value
                )
            )
        )


@pytest.mark.parametrize("name", ["dp_rank", "stage", "step", "rank", "seq_id", "mc", "mb_id"])
@pytest.mark.parametrize("value", [0.5, 1e300, -1e300])
def test_numbers_that_are_not_whole_are_said(rows, save, name, value):
    table = table_of(rows)
    table = with_column(table, name, table[name].to_numpy().astype(float))
    with pytest.raises(TraceError):
        load(save(with_value(table, name, 3, value)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dp_rank", 10**9),
        ("dp_rank", 2**62),
        ("dp_rank", -1),
        ("stage", 10**9),
        ("stage", 2**62),
        ("stage", -1),
        ("mc", 10**9),
        ("mc", 2**16),
        ("mc", -(2**16)),
        ("mb_id", 2**32),
    ],
)
def test_corrupt_ranks_are_said(rows, save, name, value):
    row = next(i for i, r in enumerate(rows) if r["kind"] == "forward-compute")
    with pytest.raises(TraceError, match=r"corrupt|negative"):
        load(save(with_value(table_of(rows), name, row, value)))


def test_another_placement_of_chunks_is_refused(rows, save):
    row = next(i for i, r in enumerate(rows) if r["kind"] == "forward-compute")
    with pytest.raises(TraceError, match=r"gmc of 1 rows is not mc \* pp_size \+ stage"):
        load(save(with_value(table_of(rows), "gmc", row, 3)))


def test_unknown_kinds_are_named_and_can_be_dropped(rows, save):
    expected = load(save(table_of(rows)))
    more = [
        {**rows[0], "kind": "gc", "step": step, "seq": 0, "name": kind}
        for kind in ("moe-all-to-all", "checkpoint")
        for step in (5, 6, 7)
    ]
    table = table_of([{k: v for k, v in r.items() if k != "name"} for r in rows + more])
    names = [r["kind"] for r in rows] + [r["name"] for r in more]
    save(with_column(table, "optype", names))
    with pytest.raises(
        TraceError, match=r"unknown operation kinds: checkpoint, moe-all-to-all; .*--ignore-kinds"
    ):
        load(save(with_column(table, "optype", names)))
    path = save(with_column(table, "optype", names))
    with pytest.raises(TraceError, match="unknown operation kinds: checkpoint;"):
        load(path, ignore_kinds=["moe-all-to-all"])
    trace = load(path, ignore_kinds=["moe-all-to-all", "checkpoint"])
    assert same(trace, expected)
    assert any("6 rows of the kinds" in warning for warning in trace.warnings)


def test_ignoring_everything_is_said(rows, path):
    kinds = {row["kind"] for row in rows}
    with pytest.raises(TraceError, match="no rows"):
        load(write_rows(rows, path), ignore_kinds=kinds)


def test_steps_can_be_chosen(rows, path):
    write_rows(rows, path)
    trace = load(path, steps=[7, 5, 99])
    assert trace.steps.tolist() == [5, 7]
    assert any("99" in warning for warning in trace.warnings)
    assert analyze(trace).steps.tolist() == [5, 7]
    for none in ([], [99], [10**30], [-(10**30)]):
        with pytest.raises(TraceError, match="none of"):
            load(path, steps=none)


def test_what_is_written_is_read_again(tmp_path, rows):
    spec = Spec(pp=2, vpp=2, microbatches=(4, 2), noops="random")
    job = Job(dp_size=2, pp_size=2, tp_size=4, dsp_size=2, vpp_size=2, name="two by two")
    for rows_, job_ in ((make_rows(spec), job), (rows, None)):
        trace = load(write_rows(rows_, tmp_path / "in.parquet"), job=job_)
        write(trace, tmp_path / "out.parquet", force=True)
        again = load(tmp_path / "out.parquet")
        np.testing.assert_allclose(again.end, trace.end, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(again.start, trace.start)
        np.testing.assert_array_equal(again.counts, trace.counts)
        np.testing.assert_array_equal(again.microbatch, trace.microbatch)
        assert again.job == trace.job


def test_a_file_is_not_overwritten_unless_asked(tmp_path, rows):
    trace = load(write_rows(rows, tmp_path / "in.parquet"))
    with pytest.raises(OutputError, match="exists"):
        write(trace, tmp_path / "in.parquet")
    write(trace, tmp_path / "in.parquet", force=True)
    with pytest.raises(OutputError, match="cannot be written"):
        write(trace, tmp_path / "absent" / "out.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["in.parquet"]


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (b"not json", "broken"),
        (b"[1]", "broken"),
        (b'{"job": {}}', "broken"),
        (b'{"version": 99}', "format 99"),
        (b'{"version": 1, "job": {"dp_size": 2}}', "pp_size"),
        (b'{"version": 1, "job": {"dp_size": 3, "pp_size": 2}}', "contradicts"),
        (b'{"version": 1, "job": [1, 2]}', "job"),
        (b'{"version": 1, "job": 5}', "job"),
        (b"\xff\xfe", "broken"),
    ],
)
def test_broken_metadata_is_said(rows, save, stored, said):
    path = save(table_of(rows).replace_schema_metadata({b"paceline": stored}))
    with pytest.raises(TraceError, match=said):
        load(path)


def test_a_job_file_makes_up_for_broken_metadata(rows, save):
    """The error says so."""
    expected = load(save(table_of(rows)))
    path = save(table_of(rows).replace_schema_metadata({b"paceline": b"not json"}))
    assert same(load(path, job=expected.job), expected)


def test_memory_that_does_not_suffice_is_not_the_files_fault(path, save, monkeypatch):
    save(table_of(make_rows(Spec())))

    def too_large(*_):
        raise pa.lib.ArrowMemoryError("malloc of size 166080000 failed")

    monkeypatch.setattr("paceline.sources.parquet._read_steps", too_large)
    with pytest.raises(MemoryError):
        load(path)


@pytest.mark.parametrize(
    ("reader", "function"),
    [
        (read_seqlens, "pyarrow.parquet.ParquetFile"),
        (read_calls, "pyarrow.parquet.read_table"),
        (load_step_times, "pyarrow.parquet.read_table"),
        (lambda path: load([path, path.with_name("b.parquet")]), "pyarrow.concat_tables"),
    ],
)
def test_memory_that_does_not_suffice_for_other_tables(reader, function, tmp_path, monkeypatch):
    table = table_of(make_rows(Spec()))
    for dp, name in enumerate(("a.parquet", "b.parquet")):
        pq.write_table(table.filter(pc.equal(table["dp_rank"], dp)), tmp_path / name)

    def too_large(*_, **__):
        raise pa.lib.ArrowMemoryError("malloc of size 166080000 failed")

    monkeypatch.setattr(function, too_large)
    with pytest.raises(MemoryError):
        reader(tmp_path / "a.parquet")


def test_row_groups_hold_whole_steps(tmp_path, monkeypatch):
    trace = synthesize(SynthSpec(dp=2, pp=2, microbatches=4, steps=5, seed=3))
    one, some = tmp_path / "one.parquet", tmp_path / "some.parquet"
    parquet.write(trace, one)
    monkeypatch.setattr(parquet, "GROUP_ROWS", len(trace) // 2)
    parquet.write(trace, some)
    file = pq.ParquetFile(some)
    assert (pq.ParquetFile(one).num_row_groups, file.num_row_groups) == (1, 2)
    assert file.read().equals(pq.read_table(one), check_metadata=True)
    steps = [set(file.read_row_group(i, ["step"])["step"].to_pylist()) for i in range(2)]
    assert not steps[0] & steps[1]
