"""Split backwards: orders against torch's own schedules, and their step graphs."""

import numpy as np
import pytest

import requires
from paceline.errors import GraphError
from paceline.graph.zero_bubble import dualpipe, dualpipev, zb_h1, zbv
from paceline.trace import OpKind

LETTER = {
    OpKind.FORWARD_COMPUTE: "F",
    OpKind.BACKWARD_COMPUTE: "I",
    OpKind.WEIGHT_COMPUTE: "W",
}


def words(order):
    computes = zip(order.kind, order.chunk, order.microbatch, strict=True)
    return " ".join(f"{LETTER[OpKind(int(k))]}{chunk}.{batch}" for k, chunk, batch in computes)


def of_torch(name, pp, n_pp, m):
    """The blocks of a stage by torch's own class: [(letter, chunk, microbatch), ...] each."""
    requires.installed("torch")
    from types import SimpleNamespace

    from torch.distributed.pipelining import schedules

    chunks = 1 if name == "ScheduleInterleavedZeroBubble" else 2
    stages = [
        SimpleNamespace(
            group_size=n_pp, group_rank=0, num_stages=chunks * n_pp, is_last=False, submod=None
        )
        for _ in range(chunks)
    ]
    order = getattr(schedules, name)(stages, m).pipeline_order[pp]
    blocks = []
    for action in order:
        if action is None:
            continue
        block = []
        for one in action.sub_actions or (action,):
            letter = one.computation_type.value
            chunk = int(one.stage_index != pp)
            for part in {"B": "IW"}.get(letter, letter):
                block.append((part, chunk, one.microbatch_index))
        blocks.append(block)
    return blocks


def blocks_of(order):
    blocks = [[] for _ in range(order.block[-1] + 1)]
    for kind, chunk, microbatch, block in zip(
        order.kind, order.chunk, order.microbatch, order.block, strict=True
    ):
        blocks[block].append((LETTER[OpKind(int(kind))], int(chunk), int(microbatch)))
    return blocks


@pytest.mark.parametrize(
    ("schedule", "name", "cases"),
    [
        (zb_h1, "ScheduleInterleavedZeroBubble", [(1, 1), (2, 2), (2, 6), (4, 4), (4, 12), (8, 8)]),
        (zbv, "ScheduleZBVZeroBubble", [(1, 3), (2, 1), (2, 4), (3, 4), (4, 8), (4, 11), (8, 20)]),
        (dualpipev, "ScheduleDualPipeV", [(1, 2), (2, 4), (3, 9), (4, 8), (4, 13), (8, 17)]),
    ],
)
def test_orders_are_those_of_torch(schedule, name, cases):
    for n_pp, m in cases:
        for pp in range(n_pp):
            assert blocks_of(schedule(pp, n_pp, m)) == of_torch(name, pp, n_pp, m), (n_pp, m, pp)


def test_zb_h1_defers_the_weights_by_the_stage():
    assert words(zb_h1(0, 2, 3)) == "F0.0 F0.1 I0.0 W0.0 F0.2 I0.1 W0.1 I0.2 W0.2"
    assert words(zb_h1(1, 2, 3)) == "F0.0 I0.0 F0.1 I0.1 W0.0 F0.2 I0.2 W0.1 W0.2"


def test_zbv_by_hand():
    """Two stages: the second one's chunks are neighbours, the first one ends with the loss."""
    assert words(zbv(1, 2, 3)) == (
        "F0.0 F1.0 F0.1 F1.1 I1.0 W1.0 F0.2 I0.0 W0.0 F1.2 I1.1 W1.1 I0.1 I1.2 I0.2 W0.1 W1.2 W0.2"
    )


def test_dualpipe_is_two_halves_that_mirror_each_other():
    for pp in range(2):
        upper, lower = dualpipe(pp, 4, 8), dualpipe(3 - pp, 4, 8)
        assert (upper.chunk == 1 - lower.chunk).all()
        assert (upper.kind == lower.kind).all()
        assert set(upper.microbatch[upper.chunk == 0].tolist()) == {0, 1, 2, 3}
        assert set(lower.microbatch[lower.chunk == 0].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("schedule", [zb_h1, zbv, dualpipev, dualpipe])
def test_every_microbatch_goes_forward_backward_and_weight_once(schedule):
    order = schedule(1, 4, 8)
    computes = list(zip(order.kind, order.chunk, order.microbatch, strict=True))
    assert len(set(computes)) == len(computes)
    place = {compute: i for i, compute in enumerate(computes)}
    forward, backward, weight = (np.int64(int(kind)) for kind in LETTER)
    for kind, chunk, microbatch in computes:
        if kind == forward:
            back = place[backward, chunk, microbatch]
            assert place[kind, chunk, microbatch] < back < place[weight, chunk, microbatch]


def test_what_a_split_schedule_cannot_do_is_said():
    with pytest.raises(GraphError, match="at least 2 x 4 stages = 8 microbatches, not 7"):
        dualpipev(0, 4, 7)
    with pytest.raises(GraphError, match="even numbers of stages and microbatches, not 3 and 8"):
        dualpipe(0, 3, 8)
    with pytest.raises(GraphError, match="at least 2 x 4 stages = 8 microbatches, not 6"):
        dualpipe(0, 4, 6)
