"""paceline.plot: Matplotlib figures of finished results."""

import subprocess
import sys

import numpy as np
import pytest

import requires
from paceline import plot
from paceline.cli.main import run
from paceline.detect.waits import Wait, WaitGraph
from paceline.diagnose import diagnose, waterfall
from paceline.errors import PacelineError
from paceline.graph import from_trace
from paceline.plan.memory_curve import memory_curve
from paceline.plan.predict import predict
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze


@pytest.fixture(scope="module")
def job():
    spec = SynthSpec(dp=4, pp=2, microbatches=4, steps=3, slow_workers=(SlowWorker(2, 1, 1.5),))
    measured = from_trace(synthesize(spec))
    result = analyze(measured)
    return result, waterfall(measured, result, diagnose(measured, result).findings)


@pytest.fixture
def pyplot():
    requires.installed("matplotlib")
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot

    yield matplotlib.pyplot
    matplotlib.pyplot.close("all")


def test_each_figure_draws_on_the_axes_it_is_given_or_on_its_own(job, pyplot):
    result, fall = job
    for draw, what in (
        *((f, result) for f in (plot.heatmap, plot.step_times, plot.kinds, plot.cdf)),
        (plot.waterfall, fall),
    ):
        given = pyplot.figure().add_subplot()
        assert draw(what, given) is given
        own = draw(what)
        own.figure.canvas.draw()
        assert own.get_title()


def test_the_heatmap_holds_the_slowdowns(job, pyplot):
    ax = plot.heatmap(job[0])
    assert np.array_equal(ax.images[0].get_array(), job[0].by_worker)


def test_the_waterfall_ends_at_the_compute(job, pyplot):
    _, fall = job
    bars = plot.waterfall(fall).patches
    assert len(bars) == len(fall.drops) + 2
    assert bars[-2].get_x() == pytest.approx(fall.compute_s)


def test_without_matplotlib_it_says_what_to_install(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(PacelineError, match=r"pip install .*\[plot\]"):
        plot.heatmap(job[0])


def test_matplotlib_is_loaded_when_first_needed():
    code = "import paceline.plot, sys; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False"


def test_memory_over_a_step_is_drawn_to_its_peak_and_written(pyplot, tmp_path):
    prediction = predict("llama3-8b", {"pp": 4, "dp": 2, "global_batch": 16}, "h100")
    curve = memory_curve(prediction)
    ax = plot.memory(curve, 80e9)
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    most = max(prediction.memory, key=lambda stage: stage.total_bytes)
    assert words == [
        "the GPU has 74.5",
        f"peak {most.total_bytes / 2**30:.1f}, of which",
        *(f"{name} {size / 2**30:.1f}" for name, size in reversed(most.parts.items())),
    ]
    assert not ax.texts  # a word inside the axes may lie across an edge
    top = max(path.vertices[:, 1].max() for c in ax.collections for path in c.get_paths())
    assert top == pytest.approx(max(prediction.memory_bytes) / 2**30)
    path = tmp_path / "memory.svg"
    with path.open("wb") as file:
        plot.figure_writer(ax, path)(file)
    assert b"<svg" in path.read_bytes()
    with pytest.raises(PacelineError, match=r"\.svg, \.png or \.pdf"):
        plot.figure_writer(ax, tmp_path / "memory.txt3")


def graph_of_waits(n):
    """All wait 2 s in 10 s for rank 3, and rank 0 waits 1 s for rank 1."""
    found = [Wait(rank, 3, 2.0, 4) for rank in range(n) if rank != 3]
    return WaitGraph(
        tuple(range(n)), 10.0, 4, (*found, Wait(0, 1, 1.0, 4)), {3: 2.0 * (n - 1), 1: 1.0}, (),
        "exact", (),
    )  # fmt: skip


def test_waits_of_few_ranks_have_a_row_each(pyplot):
    ax = plot.waits(graph_of_waits(4), dict.fromkeys(range(4), "a"))
    share = np.asarray(ax.images[0].get_array())
    assert share[:, 3].tolist() == [0.2, 0.2, 0.2, 0.0]
    assert share[0, 1] == pytest.approx(0.1)
    assert "rank 3 (6 s), rank 1 (1 s)" in ax.get_title()


@pytest.mark.parametrize(("per_host", "unit", "first"), [(32, "host", "h0"), (8, "ranks", "0-15")])
def test_waits_of_a_thousand_ranks_stay_readable(pyplot, per_host, unit, first):
    n = 1024
    ax = plot.waits(graph_of_waits(n), {rank: f"h{rank // per_host}" for rank in range(n)})
    share = np.asarray(ax.images[0].get_array())
    assert len(share) <= 64
    assert share[1:, 0] == pytest.approx(0.2)
    members = n // len(share)
    assert share[0, 0] == pytest.approx((0.2 * (members - 1) + 0.1) / members)
    assert ax.get_xlabel() == f"waited for ({unit})"
    assert ax.get_xticklabels()[0].get_text() == first
    assert len(ax.get_xticklabels()) <= 16
    assert "rank 3 (2,046 s)" in ax.get_title()
    assert "rank 1 " not in ax.get_title()


@pytest.mark.parametrize("options", [[], ["--framework", "torchtitan"], ["--framework", "nemo"]])
def test_the_picture_of_a_prediction_has_the_peak_of_its_text(pyplot, tmp_path, capsys, options):
    path = tmp_path / "memory.png"
    job = ["--model", "qwen3-14b", "--gpu", "h100", "--gpus", "32", "--global-batch", "256"]
    plan = ["--zero", "3" if "nemo" not in options else "1", "--tp", "2", "--sequence-parallel"]
    command = ["predict", *job, *plan, *options]
    assert run([*command, "--plot", str(path)]) == 0
    text = capsys.readouterr().out
    words = [text.get_text() for text in pyplot.gca().get_legend().get_texts()]
    peak = words[1].removeprefix("peak ").removesuffix(", of which")
    assert f"fullest is stage 0: {peak} of {words[0].removeprefix('the GPU has ')} GiB" in text
    for part in words[2:]:
        assert part in " ".join(text.split())
