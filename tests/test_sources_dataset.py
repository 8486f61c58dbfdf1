"""Traces in several parquet files: per step, per rank, or as a writer of tables split them."""

import errno
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import paceline
from paceline import sources
from paceline.cli.main import run
from paceline.errors import OutputError, TraceError
from paceline.graph import from_trace, measure
from paceline.sources import dataset_steps, load, load_stored
from paceline.synth import SynthSpec, synthesize
from paceline.trace import OpKind, stored
from program_jobs import Spec, programs_of, random_run, trace_of_runs

N_STEPS = 6
SPEC = Spec(pp=2, microbatches=(2, 2), units=2, one_by_one=True, clip=True, seed=1)


@pytest.fixture(scope="module")
def programmed():
    programs = programs_of(SPEC)
    return trace_of_runs([random_run(SPEC, programs, step) for step in range(N_STEPS)])


@pytest.fixture(scope="module")
def whole_passes():
    return synthesize(SynthSpec(dp=3, pp=2, microbatches=4, steps=N_STEPS, seed=3))


@pytest.fixture(scope="module")
def of_peers():
    spec = replace(SPEC, microbatches=(2,) * 4, peers=2, layers=1)
    programs = programs_of(spec)
    return trace_of_runs([random_run(spec, programs, step) for step in range(N_STEPS)])


@pytest.fixture(params=["programmed", "whole_passes", "of_peers"])
def trace(request):
    return request.getfixturevalue(request.param)


def table_of(trace, folder):
    paceline.write(trace, folder / "trace.parquet", force=True)
    return pq.read_table(folder / "trace.parquet")


def split(table, folder, *columns):
    """One file for each value of some columns, called by them."""
    folder.mkdir()
    keys = table.select(columns).group_by(list(columns)).aggregate([])
    for row in keys.to_pylist():
        mask = np.logical_and.reduce([pc.equal(table[name], row[name]) for name in columns])
        name = "-".join(f"{key}{value}" for key, value in row.items())
        pq.write_table(table.filter(pa.array(mask)), folder / f"{name}.parquet")
    return folder


def same_trace(one, other):
    assert one.job == other.job
    for name in ("steps", "counts", "chunk", "microbatch", "start", "end", "step_start_s", "rank"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    assert (one.program is None) == (other.program is None)
    if one.program is not None:
        np.testing.assert_array_equal(one.program.issued, other.program.issued)
        np.testing.assert_array_equal(one.program.awaited, other.program.awaited)
        np.testing.assert_array_equal(one.program.part, other.program.part)


def same_measured(one, other):
    np.testing.assert_array_equal(one.durations.values, other.durations.values)
    np.testing.assert_array_equal(one.delays.values, other.delays.values)
    for name in ("rank", "steps", "traced_step_s", "overlap_s"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    assert one.job == other.job
    assert one.left_out == other.left_out
    assert one.doubts == other.doubts


@pytest.mark.parametrize("columns", [("step",), ("dp_rank", "stage"), ("step", "rank")])
def test_a_folder_of_files_is_the_trace(columns, trace, tmp_path):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", *columns)
    same_trace(load(folder), load(tmp_path / "trace.parquet"))
    same_trace(load(sorted(folder.iterdir())), load(tmp_path / "trace.parquet"))


@pytest.mark.parametrize("columns", [("step",), ("dp_rank", "stage"), ("step", "rank")])
@pytest.mark.parametrize("block_rows", [1, 500, 10**6])
def test_stored_traces_measure_the_same(columns, block_rows, trace, tmp_path, monkeypatch):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", *columns)
    monkeypatch.setattr(dataset_steps, "BLOCK_ROWS", block_rows)
    expected = from_trace(load(tmp_path / "trace.parquet"))
    same_measured(from_trace(load_stored(folder)), expected)
    same_measured(from_trace(load_stored(tmp_path / "trace.parquet")), expected)


def test_steps_of_one_structure_share_it(programmed, tmp_path):
    folder = split(table_of(programmed, tmp_path), tmp_path / "split", "step")
    assert N_STEPS * len(load_stored(folder).chunk) == len(programmed)


def test_microbatches_numbered_over_all_steps_are_one_structure(programmed, tmp_path):
    named = programmed.microbatch >= 0
    numbers = programmed.microbatch + 2 * (programmed.step - programmed.steps[0])
    table = table_of(replace(programmed, microbatch=np.where(named, numbers, -1)), tmp_path)
    folder = split(table, tmp_path / "split", "step")
    assert N_STEPS * len(load_stored(folder).chunk) == len(programmed)
    same_measured(from_trace(load_stored(folder)), from_trace(load(folder)))


def test_a_step_of_another_structure_is_left_out_alike(trace, tmp_path):
    table = table_of(trace, tmp_path)
    lost = pc.and_(pc.equal(table["step"], 2), pc.equal(table["dp_rank"], 1))
    folder = split(table.filter(pc.invert(lost)), tmp_path / "split", "step")
    one, other = from_trace(load_stored(folder)), from_trace(load(folder))
    same_measured(one, other)
    assert "dp 1" in one.left_out[2]


def test_late_ends_are_estimated_alike(programmed, tmp_path):
    late = programmed.kind == OpKind.GRADS_REDUCE_SCATTER
    assert late.any()
    folder = split(table_of(replace(programmed, late=late), tmp_path), tmp_path / "split", "step")
    one = from_trace(load_stored(folder))
    same_measured(one, from_trace(load(tmp_path / "trace.parquet")))
    assert any(doubt.code == "late-ends" for doubt in one.doubts)


def test_hybrid_groups_measure_the_same(tmp_path):
    spec = replace(SPEC, microbatches=(2, 2, 2, 2))
    programs = programs_of(spec)
    trace = trace_of_runs([random_run(spec, programs, step) for step in range(3)])
    program = replace(trace.program, group=(trace.dp // 2).astype(np.int32))
    table = table_of(replace(trace, program=program), tmp_path)
    folder = split(table, tmp_path / "split", "step")
    one, other = from_trace(load_stored(folder)), from_trace(load(folder))
    same_measured(one, other)
    assert one.graph.has_families == other.graph.has_families


def test_what_pyarrow_and_spark_write(trace, tmp_path):
    table = table_of(trace, tmp_path)
    plain = table.set_column(
        table.schema.get_field_index("optype"), "optype", table["optype"].cast("string")
    )
    folder = tmp_path / "spark"
    partitions = ds.partitioning(pa.schema([("step", pa.int64())]), flavor="hive")
    ds.write_dataset(plain, folder, format="parquet", partitioning=partitions)
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").write_bytes(b"crc")
    expected = load(tmp_path / "trace.parquet")
    same_trace(load(folder), expected)
    same_measured(from_trace(load_stored(folder)), from_trace(expected))


def test_files_of_other_types_join(trace, tmp_path):
    table = table_of(trace, tmp_path)
    folder = split(table, tmp_path / "split", "step")
    path = folder / "step2.parquet"
    other = pq.read_table(path)
    at = other.schema.get_field_index("mb_id")
    other = other.set_column(at, "mb_id", other["mb_id"].cast("int16"))
    at = other.schema.get_field_index("optype")
    pq.write_table(other.set_column(at, "optype", other["optype"].cast("string")), path)
    same_trace(load(folder), load(tmp_path / "trace.parquet"))
    same_measured(from_trace(load_stored(folder)), from_trace(load(folder)))


@pytest.mark.parametrize("large", [False, True])
def test_analyze_of_a_folder_says_what_that_of_the_file_does(
    large, programmed, tmp_path, capsys, monkeypatch
):
    if large:
        monkeypatch.setattr(sources, "STORE_ABOVE", 0)
        monkeypatch.setattr(dataset_steps, "BLOCK_ROWS", 100)
    folder = split(table_of(programmed, tmp_path), tmp_path / "split", "step")
    assert run(["analyze", str(tmp_path / "trace.parquet"), "--json"]) == 0
    expected = capsys.readouterr()
    assert run(["analyze", str(folder), "--json"]) == 0
    assert capsys.readouterr() == expected
    files = [str(path) for path in sorted(folder.iterdir())]
    assert run(["analyze", *files, "--json", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == expected.out
    assert not (tmp_path / "out" / "trace.parquet").exists()


def test_only_files_with_the_steps_asked_for_are_read(trace, tmp_path, monkeypatch):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", "step")
    (folder / "step5.parquet").write_bytes(damaged((folder / "step5.parquet").read_bytes()))
    wanted = {1, 3}
    expected = from_trace(load(tmp_path / "trace.parquet", steps=wanted))
    same_measured(from_trace(load_stored(folder, steps=wanted)), expected)
    same_measured(from_trace(load(folder, steps=wanted)), expected)
    monkeypatch.setattr(sources, "STORE_ABOVE", 0)
    same_measured(measure(folder, steps=wanted), expected)


def damaged(content):
    """The same with the first rows overwritten; the metadata at the end are whole."""
    return content[:4] + b"\xff" * (len(content) // 3) + content[4 + len(content) // 3 :]


def test_nested_columns_of_a_user_move_no_other_column(programmed, tmp_path):
    """Parquet counts the fields of a nested column, a schema the columns."""
    table = table_of(programmed, tmp_path)
    for name, value in (("tags", {"a": 1, "b": 2}), ("sizes", {"a": 1, "b": 2, "c": 3})):
        table = table.add_column(0, name, pa.array([value] * table.num_rows))
    folder = split(table, tmp_path / "split", "step")
    same_trace(load(folder, steps=[2, 3]), load(tmp_path / "trace.parquet", steps=[2, 3]))
    same_measured(from_trace(load_stored(folder)), from_trace(load(folder)))


def test_warnings_of_another_form_are_ignored(programmed, tmp_path):
    table = table_of(programmed, tmp_path)
    job = programmed.job.to_mapping()
    for number, warnings in enumerate((5, "text")):
        stored = json.dumps({"version": 1, "job": job, "warnings": warnings})
        odd = table.replace_schema_metadata({"paceline": stored})
        folder = split(odd, tmp_path / f"split{number}", "step")
        assert load(folder).warnings == ()


def test_none_of_the_steps(trace, tmp_path):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", "step")
    for reader in (load, load_stored):
        with pytest.raises(TraceError, match=r"none of the 1 steps asked for .*0 to 5"):
            reader(folder, steps=[77])


@pytest.mark.parametrize(
    ("asked", "missed"),
    [
        (range(2, 40), None),  # a range asks for the steps within it
        ([2, 3, 77], "1 of the steps asked for are not in the trace: 77"),
        ([2, *range(30, 34)], "4 of the steps asked for are not in the trace: 30, 31, 32, 33"),
    ],
)
def test_steps_that_are_missed_and_left_out_are_those_asked_for(trace, tmp_path, asked, missed):
    left_out = {0: "an early step", 3: "a late step"}
    noted = replace(trace.select_steps(range(2, 6)), left_out=left_out)
    folder = split(table_of(noted, tmp_path), tmp_path / "split", "step")
    for reader in (load, load_stored):
        read = reader(folder, steps=asked)
        assert read.left_out == {s: why for s, why in left_out.items() if s in asked}
        assert [w for w in read.warnings if "asked for" in w] == ([missed] if missed else [])


def test_ignored_kinds(trace, tmp_path):
    table = table_of(trace, tmp_path)
    gone = frozenset({"optimizer"})
    folder = split(table, tmp_path / "split", "step")
    one = from_trace(load_stored(folder, ignore_kinds=gone))
    same_measured(one, from_trace(load(tmp_path / "trace.parquet", ignore_kinds=gone)))


# What is refused.


def refused(folder, capsys, *options):
    """The one line that the command says."""
    assert run(["analyze", str(folder), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    with pytest.raises((TraceError, OutputError)) as error:
        load_stored(folder)
    assert line == f"paceline: error: {error.value}"
    return line


def test_a_rank_without_a_file(trace, tmp_path, capsys):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", "dp_rank", "stage")
    (folder / "dp_rank1-stage0.parquet").unlink()
    n_workers = trace.job.dp_size * trace.job.pp_size
    words = f"{folder} lacks the file of 1 of {n_workers} workers: (dp 1, stage 0); a trace needs"
    assert words in refused(folder, capsys)


def test_an_impossible_rank_is_refused_at_once(programmed, tmp_path):
    """The missing ranks are counted, not listed: this one lacks four billion."""
    table = table_of(programmed, tmp_path).replace_schema_metadata(None)
    folder = split(table, tmp_path / "split", "dp_rank", "stage")
    path = folder / "dp_rank1-stage0.parquet"
    own = pq.read_table(path)
    at = own.schema.get_field_index("dp_rank")
    far = pa.array(np.full(own.num_rows, 2**31 - 1, np.int32))
    pq.write_table(own.set_column(at, "dp_rank", far), path)
    words = r"lacks the file of 4294967292 of 4294967296 workers: \(dp 1, stage 0\), \(dp 2"
    with pytest.raises(TraceError, match=words):
        load(folder)


def test_the_last_rank_without_a_file(programmed, tmp_path, capsys):
    folder = split(table_of(programmed, tmp_path), tmp_path / "split", "dp_rank", "stage")
    for stage in (0, 1):
        (folder / f"dp_rank1-stage{stage}.parquet").unlink()
    assert "lacks the file of 2 of 4 workers: (dp 1, stage 0), (dp 1" in refused(folder, capsys)


@pytest.mark.parametrize("columns", [("step",), ("dp_rank", "stage")])
def test_a_file_that_is_there_twice(columns, trace, tmp_path, capsys):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", *columns)
    path = min(folder.iterdir())
    copy = folder / "zz-copy.parquet"
    copy.write_bytes(path.read_bytes())
    line = refused(folder, capsys)
    assert f"{path} and {copy} both hold " in line
    assert "is one a copy" in line


def test_a_rank_of_another_run(trace, tmp_path, capsys):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", "dp_rank", "stage")
    table = pq.read_table(folder / "dp_rank1-stage0.parquet")
    at = table.schema.get_field_index("start_ts")
    later = table.set_column(at, "start_ts", pc.add(table["start_ts"], 1e-4))
    pq.write_table(later, folder / "again.parquet")
    line = refused(folder, capsys)
    assert f"{folder / 'again.parquet'} and {folder / 'dp_rank1-stage0.parquet'} both hold" in line


def test_pieces_of_one_rank_are_no_copies(trace, tmp_path):
    table = table_of(trace, tmp_path)
    folder = tmp_path / "pieces"
    folder.mkdir()
    for number, low in enumerate(range(0, table.num_rows, 97)):
        pq.write_table(table.slice(low, 97), folder / f"part-{number:05}.parquet")
    same_trace(load(folder), load(tmp_path / "trace.parquet"))
    same_measured(from_trace(load_stored(folder)), from_trace(load(folder)))


def test_files_with_and_without_programs(programmed, tmp_path, capsys):
    folder = split(table_of(programmed, tmp_path), tmp_path / "split", "rank")
    path = folder / "rank2.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["part", "issued", "awaited"]), path)
    line = refused(folder, capsys)
    assert f"{folder / 'rank0.parquet'} has awaited, issued, part, {path} has not" in line


def test_files_of_two_jobs(programmed, whole_passes, tmp_path, capsys):
    folder = tmp_path / "both"
    folder.mkdir()
    plain = replace(programmed, program=None)
    paceline.write(plain, folder / "a.parquet")
    paceline.write(whole_passes, folder / "b.parquet")
    line = refused(folder, capsys)
    assert (
        f"{folder / 'a.parquet'} and {folder / 'b.parquet'} are of two jobs: dp_size is 2" in line
    )


def test_empty_and_other_files_are_left_out_with_a_note(trace, tmp_path):
    table = table_of(trace, tmp_path)
    folder = split(table, tmp_path / "split", "step")
    pq.write_table(table.slice(0, 0), folder / "part-empty.parquet")
    (folder / "notes.txt").write_text("by hand")
    for warnings in (load(folder).warnings, load_stored(folder).warnings):
        assert f"{folder / 'part-empty.parquet'} is left out: without rows" in warnings
        assert f"{folder / 'notes.txt'} is left out: no parquet file" in warnings


def test_nothing_but_empty_files(trace, tmp_path, capsys):
    folder = tmp_path / "empty"
    folder.mkdir()
    pq.write_table(table_of(trace, tmp_path).slice(0, 0), folder / "part-0.parquet")
    assert f"{folder} has no rows in its 1 parquet files" in refused(folder, capsys)


def test_a_file_that_is_cut_off(trace, tmp_path, capsys):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", "step")
    path = folder / "step3.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{path} is not a readable parquet file" in refused(folder, capsys)


def test_a_file_without_a_column(trace, tmp_path, capsys):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", "step")
    path = folder / "step3.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["stage"]), path)
    assert f"{path} lacks the column stage; a trace has" in refused(folder, capsys)


def test_several_files_of_which_one_is_no_parquet(trace, tmp_path, capsys):
    folder = split(table_of(trace, tmp_path), tmp_path / "split", "step")
    other = tmp_path / "notes.txt"
    other.write_text("by hand")
    files = [str(path) for path in folder.iterdir()]
    assert run(["analyze", *files, str(other)]) == 2
    assert f"{other} is no parquet file" in capsys.readouterr().err


def test_a_folder_name_that_is_no_number(trace, tmp_path, capsys):
    table = table_of(trace, tmp_path).drop_columns(["step"])
    folder = tmp_path / "named"
    (folder / "step=one").mkdir(parents=True)
    pq.write_table(table, folder / "step=one" / "part-0.parquet")
    assert "the folder says step=one, no whole number" in refused(folder, capsys)


# Temporary files.


@pytest.fixture
def large(trace, tmp_path, monkeypatch):
    """A folder that is read step by step, and the folder of its temporary files."""
    monkeypatch.setattr(sources, "STORE_ABOVE", 0)
    monkeypatch.setattr(dataset_steps, "BLOCK_ROWS", 1)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return split(table_of(trace, tmp_path), tmp_path / "split", "rank"), temporary


def test_temporary_files_have_no_names(large):
    folder, temporary = large
    names = []
    trace = load_stored(folder, progress=lambda done, total: names.extend(temporary.iterdir()))
    assert names == []
    assert trace.start.shape == (trace.counts.sum(),)
    assert list(temporary.iterdir()) == []


def test_progress_reaches_the_end(large, trace):
    folder, _ = large
    calls = []
    load_stored(folder, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (len(trace), len(trace))
    assert len(calls) == N_STEPS


def test_a_full_disk_is_said_before_anything_is_read(large, capsys, monkeypatch):
    folder, temporary = large
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(stored.shutil, "disk_usage", lambda path: usage)
    line = refused(folder, capsys)
    assert f"{temporary} has 0.0 GB left" in line
    assert "TMPDIR" in line


def test_a_disk_that_becomes_full(large, capsys, monkeypatch):
    folder, temporary = large

    class Full(stored.SpillFile):
        def __init__(self):
            super().__init__()
            self._file.close()
            self._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115

    monkeypatch.setattr(stored, "SpillFile", Full)
    line = refused(folder, capsys)
    assert f"temporary files in {temporary} cannot be written: {os.strerror(errno.ENOSPC)}" in line
