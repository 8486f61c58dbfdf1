"""Tensor- and context-parallel ranks in a trace: workers of their own, or merged, and why."""

from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.trace import Job, OpKind, arrange
from paceline.trace.job import place_name
from program_jobs import Spec, columns_of, programs_of, random_run

SPEC = Spec(pp=2, microbatches=(2,) * 6, peers=3, layers=1, buckets=1)


def steps(spec=SPEC, n=2):
    programs = programs_of(spec)
    return [random_run(spec, programs, step) for step in range(n)]


def without(columns, rows):
    return columns.take(~rows)


def test_peers_are_replicas():
    trace = arrange(columns_of(steps()), None)
    assert trace.job == Job(dp_size=2, pp_size=2, tp_size=3, peers=3)
    assert trace.job.replicas == 6
    assert trace.job.workers == trace.job.world_size == 12
    assert trace.counts.shape[:3] == (2, 6, 2)
    assert set(trace.dp.tolist()) == {0, 1}
    assert trace.job.place(5, 1) == (1, 1, 2)
    assert trace.job.worker_at((1, 1, 2)) == (5, 1)
    assert trace.job.worker_name(5, 1) == place_name((1, 1, 2)) == "dp 1, stage 1, peer 2"


def test_peers_are_numbered_by_rank_where_no_column_tells():
    columns = columns_of(steps())
    told = arrange(columns, None)
    by_rank = arrange(columns_of(steps(), peer=None), None)
    assert by_rank.job == told.job
    np.testing.assert_array_equal(by_rank.rank, told.rank)
    np.testing.assert_array_equal(by_rank.start, told.start)
    np.testing.assert_array_equal(by_rank.program.group, told.program.group)


def test_who_meets():
    """Gradients meet across dp on one tensor-parallel rank, layers within one dp."""
    graph = from_trace(arrange(columns_of(steps()), None)).graph
    sets = {}
    for members in graph.dp_groups:
        label = paceline.OpKind(int(graph.kind[members[0]])).label
        sets.setdefault(label, graph.sets_of(int(members[0])).tolist())
    assert sets["tensor-comm"] == [0, 0, 0, 1, 1, 1]
    assert sets["grads-reduce-scatter"] == [0, 1, 2, 0, 1, 2]


def test_context_ranks_share_parameters():
    """tp 2 x cp 2: gradients meet across dp and cp, keys and values across cp."""
    spec = Spec(microbatches=(1,) * 8, peers=4, layers=1, buckets=1)
    columns = columns_of(steps(spec))
    context = columns.kind == paceline.OpKind.TENSOR_COMM
    kind = np.where(context, paceline.OpKind.CONTEXT_COMM, columns.kind).astype(np.int8)
    job = Job(dp_size=2, pp_size=1, tp_size=2, dsp_size=2)
    trace = arrange(columns_of(steps(spec), kind=kind), job)
    graph = from_trace(trace).graph
    sets = {
        paceline.OpKind(int(graph.kind[m[0]])).label: graph.sets_of(int(m[0])).tolist()
        for m in graph.dp_groups
    }
    assert sets["context-comm"] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert sets["grads-reduce-scatter"] == [0, 1, 0, 1, 0, 1, 0, 1]


def test_without_collectives_within_passes_peers_are_merged():
    spec = Spec(microbatches=(2,) * 4, peers=2, buckets=1)
    trace = arrange(columns_of(steps(spec)), None)
    assert trace.job.peers == 1
    assert trace.job.replicas == 2
    assert any("not known who waited" in text for text in trace.warnings)


def test_an_absent_peer_is_said_and_the_others_are_merged():
    columns = columns_of(steps())
    gone = (columns.dp == 1) & (columns.pp == 0) & (columns.peer == 2)
    trace = arrange(without(columns, gone), Job(dp_size=2, pp_size=2, tp_size=3))
    assert trace.job.peers == 1
    said = "dp 1, stage 0 has 2 of 3 of them, so no single GPU can be named"
    assert any(said in text for text in trace.warnings)
    doubts = paceline.analyze(from_trace(trace)).doubts
    assert "groups-of-one" not in {doubt.code for doubt in doubts}


@pytest.mark.parametrize("command", [["diagnose"], ["remedy", "replace-worker"]])
def test_commands_say_that_a_peer_is_absent(command, tmp_path, capsys):
    columns = columns_of(steps())
    gone = (columns.dp == 1) & (columns.pp == 0) & (columns.peer == 2)
    path = tmp_path / "absent.parquet"
    paceline.write(arrange(without(columns, gone), None), path)
    assert run([command[0], str(path), *command[1:]]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "dp 1, stage 0 has 2 of 3 of them, so no single GPU can be named" in said


def test_a_single_recorded_peer_is_said_too():
    columns = columns_of(steps())
    others = columns.peer > 0
    trace = arrange(replace(without(columns, others), peer=None), None)
    assert trace.job.peers == 1
    assert any("waits for them count as transfer" in text for text in trace.warnings)
    every = arrange(columns_of(steps()), None)
    assert not every.warnings


def test_a_peer_absent_from_one_step_costs_that_step():
    columns = columns_of(steps())
    gone = (columns.dp == 1) & (columns.pp == 0) & (columns.peer == 2) & (columns.step == 0)
    trace = arrange(without(columns, gone), None)
    assert trace.job.peers == 3
    measured = from_trace(trace)
    assert list(measured.left_out) == [0]
    assert "dp 1, stage 0, peer 2 has no rows" in measured.left_out[0]


def test_peers_that_ran_different_programs_name_the_first_op():
    columns = columns_of(steps())
    own = (columns.dp == 1) & (columns.peer == 2) & (columns.kind == OpKind.TENSOR_COMM)
    last = own & (columns.seq == columns.seq[own].max())
    with pytest.raises(TraceError, match=r"dp 1, stage 0, peer 2 launches .* has tensor-comm"):
        from_trace(arrange(without(columns, last), None))


def test_a_peer_outside_the_degrees_is_refused():
    with pytest.raises(TraceError, match=r"peer outside 0 to 1 \(tp 2 x dsp 1\)"):
        arrange(columns_of(steps()), Job(dp_size=2, pp_size=2, tp_size=2))


def test_collectives_within_passes_need_a_program():
    columns = columns_of(steps(), drop=("issued", "awaited", "part"))
    with pytest.raises(TraceError, match="need the columns issued and awaited"):
        arrange(columns, None)


def test_written_and_read_again(tmp_path):
    trace = arrange(columns_of(steps()), None)
    paceline.write(trace, tmp_path / "t.parquet")
    again = paceline.load(tmp_path / "t.parquet")
    assert again.job == trace.job
    np.testing.assert_array_equal(again.counts, trace.counts)
    np.testing.assert_allclose(again.end, trace.end)
    np.testing.assert_array_equal(again.program.group, trace.program.group)
