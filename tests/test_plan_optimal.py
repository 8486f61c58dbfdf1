"""The compute-optimal size: the paper's numbers exactly, and what really fits."""

import pytest

from paceline.errors import ModelError
from paceline.model.cluster_presets import cluster_preset
from paceline.plan.optimal import (
    PAPER_GRID,
    compute_budget,
    default_grid,
    gpt,
    optimal,
)

A100 = cluster_preset("a100-80g")

#: vTrain, Table III: parameters and tokens in billions.
TABLE = {
    (12288, 80): (145.61, 2912),
    (12288, 70): (127.49, 2550),
    (12288, 60): (109.37, 2187),
    (10240, 80): (101.21, 2024),
    (10240, 60): (76.04, 1521),
    (9216, 80): (82.03, 1641),
    (9216, 60): (61.64, 1233),
    (8192, 70): (56.81, 1136),
    (8192, 60): (48.75, 975),
}


@pytest.mark.parametrize("shape", TABLE)
def test_the_grid_has_the_papers_sizes(shape: tuple[int, int]) -> None:
    parameters, tokens = TABLE[shape]
    count = gpt(*shape).parameters
    assert round(count / 1e9, 2) == parameters
    assert round(20 * count / 1e9) == pytest.approx(tokens, abs=1)
    assert shape in PAPER_GRID


def test_the_papers_constants_give_the_papers_point() -> None:
    """V-C: 3,360 A100s, 30 days."""
    flops = compute_budget(3360, 312e12, 30)
    assert f"{flops:.2e}" == "2.72e+24"
    result = optimal(A100, 3360, 30, grid=((8192, 60),))
    parameters, tokens = result.points["vtrain"]
    assert round(parameters / 1e9, 1) == 146.8
    assert round(tokens / 1e9) == 3092
    assert result.flops == flops


def test_the_other_laws() -> None:
    points = optimal(A100, 3360, 30, grid=((8192, 60),)).points
    parameters, tokens = points["ratio"]
    assert tokens == pytest.approx(20 * parameters)
    assert 6 * parameters * tokens == pytest.approx(compute_budget(3360, 312e12, 30))
    parameters, tokens = points["hoffmann"]
    assert 6 * parameters * tokens == pytest.approx(compute_budget(3360, 312e12, 30))
    # The gradient of its loss along 6 N D = C vanishes: alpha A / N^alpha = beta B / D^beta.
    assert 0.34 * 406.4 / parameters**0.34 == pytest.approx(0.28 * 410.7 / tokens**0.28)


def test_what_fits_at_peak_and_what_really_fits() -> None:
    result = optimal(A100, 3360, 30)
    assert [(c.llm.hidden, c.llm.layers) for c in result.candidates[:3]] == list(PAPER_GRID[:3])
    naive, real = result.naive, result.realistic
    assert naive is not None
    assert real is not None
    assert round(naive.llm.parameters / 1e9, 2) == 145.61
    assert naive.days > 30 >= real.days
    assert real.gpus <= 3360
    larger = [c for c in result.candidates if c.llm.parameters > real.llm.parameters]
    assert all(c.days > 30 for c in larger)
    # 6 N T FLOPs at peak take that long; the rest is that GPUs do not reach it.
    assert real.ideal_days == pytest.approx(
        6 * real.llm.parameters * real.tokens / result.flops * 30
    )
    assert real.ideal_days < real.days


def test_software_as_of_the_paper_gives_about_its_answer() -> None:
    """It finds 76.04 billion; its simulator is faster than MT-NLG was."""
    result = optimal(
        *(A100, 3360, 30),
        recomputes=("full",),
        flash=False,
        max_vpp=1,
        sequence_parallels=(False,),
        micro_batches=(1,),
        zeros=(1,),
        uneven=False,
        global_batch=1680,
    )
    assert result.realistic is not None
    assert 60e9 < result.realistic.llm.parameters < 90e9


def test_a_model_too_large_for_any_plan_says_why() -> None:
    result = optimal(A100, 8, 30, grid=((20480, 105), (768, 12)))
    large, small = result.candidates
    assert large.plan is None
    assert "needs" in large.why_not
    assert small.plan is not None


@pytest.mark.parametrize("parameters", [1e8, 1e9, 1e10, 1e12])
def test_grids_of_other_sizes_lie_below_the_size(parameters: float) -> None:
    sizes = [gpt(*shape).parameters for shape in default_grid(parameters)]
    assert len(sizes) >= 5
    assert max(sizes) < 1.05 * parameters
    assert min(sizes) < 0.6 * parameters


def test_numbers_out_of_range() -> None:
    with pytest.raises(ModelError, match="days must be above 0"):
        optimal(A100, 8, 0)
    with pytest.raises(ModelError, match="hidden 1000 is no multiple of 128"):
        optimal(A100, 8, 1, grid=((1000, 10),))
