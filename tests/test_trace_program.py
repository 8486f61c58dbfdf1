"""Programs in trace files and recordings: what is refused, in which words, and what reads back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline
from paceline.blockfile import PROGRAM, PROGRAM_OP, STEP_HEAD, block
from paceline.cli.main import run
from paceline.errors import GraphError, TraceError
from paceline.graph import from_trace
from paceline.trace import Job, OpKind, arrange
from program_jobs import Spec, columns_of, programs_of, random_run, trace_of_runs
from recordings import BASE_NS, record_trace

SPEC = Spec(pp=2, microbatches=(2, 2), units=2, one_by_one=True, clip=True, seed=1)


@pytest.fixture(scope="module")
def runs():
    programs = programs_of(SPEC)
    return [random_run(SPEC, programs, step) for step in range(3)]


@pytest.fixture(scope="module")
def trace(runs):
    return trace_of_runs(runs)


@pytest.fixture
def table(trace, tmp_path):
    paceline.write(trace, tmp_path / "trace.parquet")
    return pq.read_table(tmp_path / "trace.parquet")


def column(table, name):
    values = table.column(name)
    return np.array(values.to_pylist()) if name == "optype" else values.to_numpy().copy()


def with_column(table, name, values):
    if name not in table.column_names:
        return table.append_column(name, pa.array(values))
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))


def refused(table, tmp_path, capsys):
    """The one line that the command says; reading and analysing from Python raise the same."""
    path = tmp_path / "bad.parquet"
    pq.write_table(table, path)
    assert run(["analyze", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    with pytest.raises((TraceError, GraphError)) as error:
        paceline.analyze(paceline.load(path))
    assert line == f"paceline: error: {error.value}"
    return line


def broken(name, row, value):
    """A change of one value."""

    def change(table):
        values = column(table, name).astype(np.asarray(value).dtype)
        values[row] = value
        return with_column(table, name, values)

    return change


def on_rank_1(table, *kinds):
    """Rows of dp 1, stage 0, of some kinds."""
    mask = (column(table, "dp_rank") == 1) & (column(table, "stage") == 0)
    return mask & np.isin(column(table, "optype"), kinds) if kinds else mask


def awaited_compute(table):
    issued, awaited = column(table, "issued"), column(table, "awaited")
    compute = column(table, "optype") == "forward-compute"
    return with_column(table, "awaited", np.where(compute, issued, awaited))


def wait_before_launch(table):
    issued, awaited = column(table, "issued"), column(table, "awaited")
    early = (column(table, "optype") == "params-all-gather") & (issued > 0)
    return with_column(table, "awaited", np.where(early, issued - 1, awaited))


def swapped(table):
    """Rank 1 launches its third unit and its second forward the other way round."""
    issued = column(table, "issued")
    rank_1 = on_rank_1(table)
    new = np.where(rank_1 & (issued == 3), 4, np.where(rank_1 & (issued == 4), 3, issued))
    return with_column(table, "issued", new)


def later_wait(table):
    awaited = column(table, "awaited")
    rows = on_rank_1(table, "params-all-gather") & (awaited >= 0)
    return with_column(table, "awaited", np.where(rows, awaited + 1, awaited))


def other_part(table):
    part = column(table, "part")
    return with_column(table, "part", np.where(on_rank_1(table, "forward-compute"), part + 5, part))


def without_rows(chosen):
    return lambda table: table.filter(pa.array(~chosen(table)))


def second_parts(table):
    return on_rank_1(table, "backward-compute") & (column(table, "part") == 1)


def second_backwards(table):
    rows = (column(table, "stage") == 0) & (column(table, "optype") == "backward-compute")
    return rows & (column(table, "mb_id") == 1)


def groups_of_some(table):
    """Rank 1 names a group in a collective of which rank 0 says that all meet in it."""
    return with_column(table, "group", np.where(on_rank_1(table, "params-all-gather"), 3, -1))


def groups_that_change(table):
    step, dp = column(table, "step"), column(table, "dp_rank")
    return with_column(table, "group", np.where(step == 2, 0, dp))


def groups_of_one(table):
    """Each rank writes its own number instead of one that all write who meet."""
    gathers = column(table, "optype") == "params-all-gather"
    return with_column(table, "group", np.where(gathers, column(table, "dp_rank"), -1))


def of_kind(label):
    return lambda table: column(table, "optype") == label


HUGE = np.int64(2**40)
POSITIONS = [
    (broken("issued", 5, -3), "1 rows have an issued that is no position"),
    (broken("issued", 5, HUGE), "1 rows have an issued that is no position"),
    (broken("awaited", 5, -3), "1 rows have an awaited that is no position"),
    (broken("awaited", 5, HUGE), "1 rows have an awaited that is no position"),
    (broken("part", 5, -3), "1 rows have a part that is no number of one"),
    (broken("part", 5, HUGE), "1 rows have a part that is no number of one"),
    *(
        (broken(name, 5, value), f"column {name} has 1 values that are no whole number")
        for name in ("issued", "awaited", "part")
        for value in (0.5, np.nan, np.inf)
    ),
    (awaited_compute, "48 rows have a compute that is awaited; only communication is"),
    (wait_before_launch, "have a wait that comes before the launch"),
    (broken("issued", 0, 0), "1 ops share a position of their worker's program, for example"),
    (lambda t: t.drop(["issued"]), "has the column awaited but not issued; a program needs both"),
    (lambda t: t.drop(["awaited"]), "has the column issued but not awaited; a program needs both"),
    (lambda t: t.drop(["issued", "awaited"]), "has the column part but not issued and awaited"),
    (lambda t: with_column(t, "late", np.full(len(t), 7)), "values other than 0 and 1"),
    (lambda t: with_column(t, "late", np.full(len(t), np.nan)), "values other than 0 and 1"),
    (lambda t: with_column(t, "late", ["no"] * len(t)), "column late holds string, not numbers"),
    (lambda t: with_column(t, "issued", ["1"] * len(t)), "column issued holds string"),
    (lambda t: with_column(t, "late", [None] * len(t)), "column late has"),
]
PROGRAMS = [
    (swapped, "dp 1, stage 0 launches forward-compute 1 at position 3, usual is params-all-gather"),
    (later_wait, "dp 1, stage 0 waits behind position 2 for params-all-gather 0, usual is behind"),
    (other_part, "dp 1, stage 0 has forward-compute 0 as part 5, usual is part 0"),
    (
        without_rows(second_parts),
        "ranks recorded different programs: dp 1, stage 0 launches grads-reduce-scatter 1 at "
        "position 17, dp 0 has backward-compute 1 at 16",
    ),
    (without_rows(second_backwards), "stage 0 has 1 backward-compute passes where 2 belong"),
    (without_rows(of_kind("backward-compute")), "stage 0 has no backward-compute op"),
    (without_rows(of_kind("forward-compute")), "stage 0 has no forward-compute op"),
    (
        groups_of_some,
        "the groups of params-all-gather 0 of stage 0 are no partition of the data-parallel ranks: "
        "dp 1 names group 3, dp 0 says -1",
    ),
    (groups_that_change, "of stage 0 change from step to step"),
]


@pytest.mark.parametrize(("change", "words"), POSITIONS, ids=[words for _, words in POSITIONS])
def test_columns_that_are_no_program(change, words, table, tmp_path, capsys):
    assert words in refused(change(table), tmp_path, capsys)


@pytest.mark.parametrize(("change", "words"), PROGRAMS, ids=[words for _, words in PROGRAMS])
def test_programs_that_differ_name_the_first_op(change, words, table, tmp_path, capsys):
    assert words in refused(change(table), tmp_path, capsys)


@pytest.mark.parametrize("change", [swapped, later_wait, other_part, without_rows(second_parts)])
def test_one_step_with_another_program_is_left_out(change, table, tmp_path):
    changed, number = change(table), column(table, "step")
    odd = pa.array(column(changed, "step") == 1)
    mixed = pa.concat_tables([table.filter(pa.array(number != 1)), changed.filter(odd)])
    pq.write_table(mixed, tmp_path / "mixed.parquet")
    measured = from_trace(paceline.load(tmp_path / "mixed.parquet"))
    assert list(measured.left_out) == [1]
    assert "dp 1, stage 0" in measured.left_out[1]


def test_ranks_that_all_name_groups_of_their_own_are_said(table, tmp_path):
    pq.write_table(groups_of_one(table), tmp_path / "alone.parquet")
    (doubt,) = [
        d
        for d in from_trace(paceline.load(tmp_path / "alone.parquet")).doubts
        if d.code == "groups-of-one"
    ]
    assert doubt.text.startswith("each rank is alone in its groups of params-all-gather, so")
    assert doubt.numbers == {"kinds": 1}
    pq.write_table(table, tmp_path / "all.parquet")
    usual = from_trace(paceline.load(tmp_path / "all.parquet"))
    assert "groups-of-one" not in {d.code for d in usual.doubts}


def test_rows_without_a_program_beside_rows_with_one(table, tmp_path, capsys):
    """Tables of two files put together: the positions of one are empty."""
    rows = [None if n < 10 else value for n, value in enumerate(table["issued"].to_pylist())]
    changed = with_column(table, "issued", pa.array(rows, pa.int32()))
    assert "column issued has 10 empty values" in refused(changed, tmp_path, capsys)


def test_parts_are_counted_where_none_are_given(runs, trace):
    counted = trace_of_runs(runs, drop=("part",))
    local = np.isin(trace.kind, (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE))
    assert counted.program.part[local].tolist() == trace.program.part[local].tolist()
    assert set(trace.program.part[local].tolist()) == {0, 1}


def test_what_is_written_reads_back(trace, tmp_path):
    path = tmp_path / "trace.parquet"
    late = trace.kind == OpKind.PARAMS_ALL_GATHER
    paceline.write(replace(trace, late=late), path)
    again = paceline.load(path)
    for name in ("part", "issued", "awaited"):
        assert getattr(again.program, name).tolist() == getattr(trace.program, name).tolist()
    assert again.late.tolist() == late.tolist()
    assert again.program.issued.dtype == np.int32
    few = paceline.load(path, steps=[2])
    rows = trace.step == 2
    assert few.program.issued.tolist() == trace.program.issued[rows].tolist()
    assert few.late.tolist() == late[rows].tolist()
    assert paceline.load(path, ignore_kinds=["optimizer"]).program is not None


def test_any_integer_or_float_width_and_any_order_of_rows(runs, trace):
    columns = columns_of(runs)
    order = np.random.default_rng(0).permutation(len(columns))
    other = replace(
        columns,
        issued=columns.issued.astype(np.float32),
        awaited=columns.awaited.astype(np.int16),
        part=columns.part.astype(np.uint64) if (columns.part >= 0).all() else columns.part,
        late=np.zeros(len(columns), dtype=np.float64),
    ).take(order)
    again = arrange(other, None)
    assert again.program.issued.tolist() == trace.program.issued.tolist()
    assert not again.late.any()


def with_peers(columns, **changes):
    """Two tensor-parallel peers for each worker; ``changes`` are columns of the second ones."""
    first = replace(columns, rank=2 * columns.rank)
    second = replace(columns, rank=2 * columns.rank + 1, **changes)
    names = [name for name, value in vars(first).items() if value is not None]
    return type(columns)(
        **{name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in names}
    )


JOB = Job(dp_size=2, pp_size=2, tp_size=2)


def test_peers_with_one_program_become_one_worker(runs, trace):
    merged = arrange(with_peers(columns_of(runs)), JOB)
    assert merged.program.issued.tolist() == trace.program.issued.tolist()


def test_a_step_in_which_peers_run_different_programs_is_left_out(runs):
    columns = columns_of(runs)
    odd = (columns.step == 1) & (columns.kind == OpKind.PARAMS_ALL_GATHER) & (columns.pp == 0)
    later = np.where(odd, columns.awaited + 1, columns.awaited)
    merged = arrange(with_peers(columns, awaited=later), JOB)
    assert merged.steps.tolist() == [0, 2]
    assert "peers recorded different programs: rank 1 launches or awaits" in merged.left_out[1]


def test_a_merged_end_is_a_bound_only_if_no_peer_saw_it(runs):
    """The second peer's ends are bounds, 0.1 s later on stage 0, equal on stage 1."""
    columns = columns_of(runs)
    columns = replace(columns, late=np.zeros(len(columns), dtype=bool))
    gather = columns.kind == OpKind.PARAMS_ALL_GATHER
    longer = columns.duration + np.where(gather & (columns.pp == 0), 0.1, 0.0)
    merged = arrange(with_peers(columns, late=gather, duration=longer), JOB)
    expected = (merged.kind == OpKind.PARAMS_ALL_GATHER) & (merged.pp == 0)
    assert merged.late.tolist() == expected.tolist()


def record_programs(trace, folder, ranks=range(4), session="one", offset_ns=0):
    """Some ranks of a trace as the recorder writes them, with programs."""
    ahead_ns = np.full(trace.rank.shape, offset_ns)
    record_trace(trace, folder / "plain", ahead_ns=ahead_ns, session=session)
    for rank in ranks:
        dp, pp = divmod(rank, trace.job.pp_size)
        path = next((folder / "plain").glob(f"rank-{rank:05d}-*.blocks"))
        data = path.read_bytes()
        data = data[: data.index(b"\xb1BLK")]
        for i, number in enumerate(trace.steps.tolist()):
            rows = np.flatnonzero((trace.step == number) & (trace.dp == dp) & (trace.pp == pp))
            ops = [
                PROGRAM_OP.pack(
                    *(int(trace.kind[r]), 0, int(trace.chunk[r]), int(trace.microbatch[r])),
                    *(round(trace.start[r] * 1e9), round(trace.end[r] * 1e9)),
                    *(int(getattr(trace.program, n)[r]) for n in ("part", "issued", "awaited")),
                    -1,
                )
                for r in rows
            ]
            zero = BASE_NS + offset_ns + i * 10**11
            head = STEP_HEAD.pack(number, zero, 10**11, len(ops))
            data += block(PROGRAM, head + b"".join(ops))
        path.write_bytes(data)
    for path in (folder / "plain").iterdir():
        path.rename(folder / path.name)
    (folder / "plain").rmdir()


def test_a_recording_of_programs_is_the_trace_and_imports(trace, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    record_programs(trace, folder)
    read = paceline.load(folder)
    assert read.program.issued.tolist() == trace.program.issued.tolist()
    assert read.program.awaited.tolist() == trace.program.awaited.tolist()
    out = tmp_path / "out.parquet"
    paceline.write(read, out)
    assert paceline.load(out).program.part.tolist() == trace.program.part.tolist()


def test_ranks_with_and_without_programs_are_refused(trace, tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    record_programs(trace, folder, ranks=(0, 1, 3))
    assert run(["analyze", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "rank 0 recorded when it launches and waits, rank 2 did not" in line


def test_starts_with_programs_win_over_earlier_ones_without(trace, tmp_path):
    """Paceline was brought up to date at a restart: steps 0 and 1 before it, 1 and 2 after."""
    folder = tmp_path / "run"
    record_trace(trace.select_steps([0, 1]), folder, session="before")
    later = tmp_path / "later"
    later.mkdir()
    record_programs(trace.select_steps([1, 2]), later, session="behind", offset_ns=10**13)
    for path in later.iterdir():
        path.rename(folder / path.name.replace("-0.", "-1."))
    read = paceline.load(folder)
    assert read.steps.tolist() == [1, 2]
    assert read.program is not None
    assert read.left_out == {0: "its start recorded no programs, unlike the latest start"}


def documented_writer():
    """The Python block of docs/trace-format.md that defines ``Program`` and ``write``."""
    text = (Path(__file__).parents[1] / "docs" / "trace-format.md").read_text(encoding="utf-8")
    (code,) = (
        part.split("```")[0] for part in text.split("```python")[1:] if "class Program" in part
    )
    names = {}
    exec(code, names)
    return names["Program"], names["write"]


def test_the_documented_writer(tmp_path):
    """FSDP with two units on two ranks; the second one's forward takes 2 s, not 1 s, a unit."""
    program, write = documented_writer()
    ranks = []
    for dp in (0, 1):
        rank = program(dp, 0, dp)
        for number in range(2):
            forward = 1.0 + dp
            rank.step(number)
            first = rank.op("params-all-gather", 0.0, 0.0, part=0)
            second = rank.op("params-all-gather", 0.0, 0.0, part=1)
            rank.wait(first, 0.5)
            rank.op("forward-compute", 0.5, 0.5 + forward, microbatch=0)
            rank.wait(second, 0.5 + forward, late=True)
            rank.op("forward-compute", 0.5 + forward, 0.5 + 2 * forward, microbatch=0)
            rank.op("backward-compute", 0.5 + 2 * forward, 1.5 + 2 * forward, microbatch=0)
            scatter = rank.op("grads-reduce-scatter", 1.5 + 2 * forward, 0.0)
            rank.wait(scatter, 6.0)
            rank.op("optimizer", 6.0, 6.25)
        ranks.append(rank)
    write(ranks, tmp_path / "own.parquet")
    result = paceline.analyze(paceline.load(tmp_path / "own.parquet"))
    # Ideal: 0.5 + 2 x 1.5 + 1 + 0.5 + 0.25 s; measured: forwards of 2 s in place of 1.5 s.
    assert result.traced_s.tolist() == [6.25, 6.25]
    assert result.simulated_s == pytest.approx([6.25, 6.25])
    assert result.slowdown == pytest.approx(6.25 / 5.25)
    assert result.lasting.by_worker.ravel() == pytest.approx([1.0, 6.25 / 5.25])
