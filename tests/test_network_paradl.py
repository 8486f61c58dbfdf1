"""Table 3 of the ParaDL paper, cell by cell, in numbers written out by hand."""

import pytest

from paceline.errors import ModelError
from paceline.networks.paradl import PaperLayer, PaperMachine, project
from paceline.networks.strategy import Strategy

# Sums: |x| + |y| = 30 + 50 + 25 = 105, |w| = 100, |bi| = 7, FW = 6, BW = 12, WU = 0.6.
LAYERS = (
    PaperLayer(x=10, y=20, w=30, bias=4, filters=4, channels=3, extents=(4, 4),
               forward_s=1, backward_s=2, update_s=0.1, halo_x=2, halo_dy=0),
    PaperLayer(x=20, y=30, w=60, bias=2, filters=8, channels=4, extents=(4, 2),
               forward_s=2, backward_s=4, update_s=0.2, halo_x=3, halo_dy=5),
    PaperLayer(x=20, y=5, w=10, bias=1, filters=16, channels=8, extents=(2, 3),
               forward_s=3, backward_s=6, update_s=0.3),
)  # fmt: skip
MACHINE = PaperMachine(alpha=0.5, beta=0.01, delta=4, gamma=0.5)
D, B = 80, 8  # ten steps

# strategy, options -> computation, communication, elements of memory, last column
TABLE = [
    ("data", {"gpus": 1}, 80 * 18 + 10 * 0.6, 0, 2 * 8 * 105 + 200 + 7, 8),
    (
        *("data", {"gpus": 4}, 20 * 18 + 10 * 0.6, 2 * 10 * 3 * (0.5 + 25 * 0.04)),
        *(2 * 2 * 105 + 200 + 7, 8),
    ),
    (
        *("spatial", {"gpus": 2}, 40 * 18 + 10 * 0.6),
        2 * 10 * (1 * (0.5 + 50 * 0.04) + (1 + 8 * 2 * 0.04) + (1 + 8 * 8 * 0.04) + 1),
        *(2 * 8 * 105 / 2 + 200 + 7, 6),
    ),
    (
        *("filter", {"gpus": 4}, 20 * 18 + 10 / 4 * 0.6),
        3 * 10 * 3 * ((0.5 + 8 * 20 / 4 * 0.04) + (0.5 + 8 * 30 / 4 * 0.04)),
        *(2 * 8 * 105 + 200 / 4 + 7, 4),
    ),
    (
        *("channel", {"gpus": 2}, 40 * 18 + 10 / 2 * 0.6),
        3 * 10 * 1 * ((0.5 + 8 * 20 / 2 * 0.04) + (0.5 + 8 * 30 / 2 * 0.04)),
        *(2 * 8 * 105 + 200 / 2 + 7, 3),
    ),
    (
        *("data+filter", {"gpus": 4, "split": 2}, 20 * 18 + 10 / 2 * 0.6),
        3 * 10 * 1 * ((0.5 + 8 * 20 / 4 * 0.04) + (0.5 + 8 * 30 / 4 * 0.04))
        + 2 * 10 * 1 * (0.5 + 100 / 4 * 0.04),
        *(2 * 8 * 105 / 2 + 200 / 2 + 7, 8 * 4),
    ),
]


@pytest.mark.parametrize(("name", "options", "compute", "communicate", "elements", "most"), TABLE)
def test_every_cell_of_table_3(name, options, compute, communicate, elements, most):
    row = project(LAYERS, Strategy(name=name, global_batch=B, **options), MACHINE, D)
    assert row.computation_s == pytest.approx(compute)
    assert row.communication_s == pytest.approx(communicate)
    assert row.memory_bytes == pytest.approx(0.5 * 4 * elements)
    assert row.most_gpus == most
    assert row.step_time_s == pytest.approx((compute + communicate) / 10)


def test_the_pipeline_row_and_its_misprint():
    strategy = Strategy(name="pipeline", gpus=2, global_batch=B, microbatches=4)
    row = project(LAYERS, strategy, MACHINE, D, stages=(2, 1))
    # Both stages need 3 forward and 6 backward; their updates 0.3 and 0.3.
    passes = 80 * (2 + 4 - 1) / 4 * (3 + 6)
    assert row.computation_s == pytest.approx(passes + 0.3)
    assert row.communication_s == pytest.approx(2 * 80 * 4 / 8 * (0.5 + 8 / 4 * 30 * 0.04))
    assert row.memory_bytes == pytest.approx(0.5 * 4 * (2 * 8 * 80 + 180 + 6))
    assert row.most_gpus == 3
    again = project(LAYERS, strategy, MACHINE, D, stages=(2, 1), corrected=True)
    assert again.computation_s == pytest.approx(passes + 10 * 0.3)


def test_phi_of_2_doubles_the_gradients_bytes_alone():
    strategy = Strategy(name="data+filter", gpus=4, split=2, global_batch=B)
    congested = PaperMachine(alpha=0.5, beta=0.01, phi=2)
    once = project(LAYERS, strategy, MACHINE, D).communication_s
    assert project(LAYERS, strategy, congested, D).communication_s == pytest.approx(
        once + 2 * 10 * 100 / 4 * 0.04
    )


def test_what_table_3_has_no_row_for_is_refused():
    with pytest.raises(ModelError, match="no row for data\\+pipeline"):
        project(LAYERS, Strategy(name="data+pipeline", gpus=4, split=2, global_batch=8), MACHINE, D)
    with pytest.raises(ModelError, match="2 stages of 3 layers"):
        project(LAYERS, Strategy(name="pipeline", gpus=2, global_batch=8), MACHINE, D)
