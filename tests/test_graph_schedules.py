import numpy as np
import pytest

from paceline.errors import GraphError
from paceline.graph import build_graph
from paceline.graph.schedules import SCHEDULES, gpipe, interleaved, one_f_one_b, replica_ops
from paceline.trace import Job, OpKind


def words(order):
    return " ".join(
        f"{'B' if back else 'F'}{chunk}.{batch}"
        for back, chunk, batch in zip(order.backward, order.chunk, order.microbatch, strict=True)
    )


def test_gpipe_runs_all_forwards_first():
    assert words(gpipe(0, 2, 2, 1)) == "F0.0 F0.1 B0.0 B0.1"
    assert words(gpipe(1, 2, 2, 2)) == "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1"


def test_1f1b_warms_up_by_the_stages_behind():
    assert words(one_f_one_b(0, 3, 4, 1)) == "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"
    assert words(one_f_one_b(1, 3, 4, 1)) == "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3"
    assert words(one_f_one_b(2, 3, 4, 1)) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3"


def test_1f1b_with_fewer_microbatches_than_stages():
    assert words(one_f_one_b(0, 4, 2, 1)) == "F0.0 F0.1 B0.0 B0.1"


def test_interleaved_sends_groups_of_microbatches_through_the_chunks():
    # Two stages, two chunks: the last stage runs one group ahead, the first two more.
    assert words(interleaved(1, 2, 4, 2)) == (
        "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3"
    )
    assert words(interleaved(0, 2, 4, 2)).startswith("F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1")


def test_interleaved_with_one_group_is_all_warmup():
    assert words(interleaved(1, 2, 2, 2)) == "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1"


def test_what_a_schedule_cannot_do_is_said():
    with pytest.raises(GraphError, match="multiple of the 4 stages"):
        interleaved(0, 4, 6, 2)
    with pytest.raises(GraphError, match="one chunk per stage, not 2"):
        one_f_one_b(0, 4, 8, 2)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n_pp", [1, 2, 4])
@pytest.mark.parametrize("overlap", [False, True])
def test_every_schedule_makes_a_graph(name, n_pp, overlap):
    n_chunks = 1 if name == "1f1b" else 2
    ops = replica_ops(SCHEDULES[name], n_pp, 8, n_chunks, overlap=overlap)
    job = Job(dp_size=2, pp_size=n_pp, vpp_size=n_chunks)
    graph = build_graph([ops], np.zeros(2, dtype=np.int64), job)
    place = np.empty(graph.n_ops, dtype=np.int64)
    place[graph.order] = np.arange(graph.n_ops)
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    assert (place[graph.dep] < place[after]).all()
    forwards = graph.kind == OpKind.FORWARD_COMPUTE
    assert forwards.sum() == 8 * n_chunks * n_pp
    assert (graph.kind == OpKind.SEPARATE_GRADS_ALL_REDUCE).sum() == (n_pp if overlap else 0)


def test_noops_are_recorded_under_vpp_only():
    with_noops = replica_ops(interleaved, 2, 4, 2)
    without = replica_ops(interleaved, 2, 4, 2, noops=False)
    plain = replica_ops(one_f_one_b, 2, 4)
    count = [np.isin(ops.kind, (2, 3, 4, 5)).sum() for ops in (with_noops, without, plain)]
    assert count == [4 * 2 * 8, 4 * 2 * 8 - 4 * 4, 4 * 4]
