"""What the HTML report's figures draw, and how its numbers read."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from paceline.graph import from_trace
from paceline.report.page import drawn, figures, scatter
from paceline.report.page.markup import value
from paceline.report.page.pack import safe_json, slowdowns
from paceline.results.document import JobReport
from paceline.synth import Layers, SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.units import percent, seconds
from paceline.whatif import analyze

SLOW = SynthSpec(dp=4, pp=2, microbatches=4, steps=3, slow_workers=(SlowWorker(2, 1, 1.5),))


def analysed(spec: SynthSpec):
    measured = from_trace(synthesize(spec))
    return analyze(measured), measured


@given(st.text())
def test_json_in_the_page_says_the_same_and_closes_nothing(text):
    packed = safe_json({"key": text})
    assert "<" not in packed
    assert ">" not in packed
    assert json.loads(packed) == {"key": text}


def test_slowdowns_survive_the_packing():
    values = np.array([[1.0, 2.3456, np.nan], [0.5, 64.0, 1.0004]])
    packed = slowdowns(values)
    numbers = np.frombuffer(base64.b64decode(packed["u16"]), dtype="<u2").reshape(values.shape)
    assert numbers[0, 2] == 65535
    back = numbers * packed["unit"]
    assert np.nanmax(np.abs(np.where(numbers == 65535, np.nan, back) - values)) <= 0.0006


def test_of_many_steps_the_worst_and_an_even_sample_are_kept(monkeypatch):
    result, _ = analysed(replace(SLOW, steps=20))
    monkeypatch.setattr(figures, "MAX_STEP_VALUES", 6 * result.by_worker.size)
    kept = figures.figure_data(JobReport.of(result))["workers_by_step"]["index"]
    assert len(kept) <= 6
    assert int(np.argmax(result.simulated_s / result.ideal_s)) in kept
    assert {0, 19} <= set(kept)


def floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def ints(text: str, kind: str = "<i4") -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def test_every_step_ends_when_it_did():
    spec = replace(SLOW, launch_delay=(0.05, 0.5), microbatches=(4, 6, 4, 4))
    result, measured = analysed(spec)
    data = drawn.timeline_data(measured, result)
    assert [step["step"] for step in data["steps"]] == result.steps.tolist()
    assert data["first"] == int(np.argmax(result.traced_s))
    for index, step in enumerate(data["steps"]):
        start, length = floats(step["start"]), floats(step["length"])
        variants = ints(data["replica_variant"])[step["replicas"]]
        assert len(start) == sum(
            len(base64.b64decode(data["variants"][v]["kind"])) for v in variants
        )
        assert (start + length).max() == pytest.approx(result.traced_s[index], rel=1e-5)
        assert step["replicas"][0] == np.argmax(result.by_replica_by_step[index])
    ideal = floats(data["ideal"]["start"]) + floats(data["ideal"]["length"])
    assert ideal.max() <= result.ideal_s.max() * 1.00001


def test_every_step_carries_its_critical_path():
    result, measured = analysed(replace(SLOW, microbatches=(4, 6, 4, 4)))
    data = drawn.timeline_data(measured, result)
    graph, path = measured.graph, result.critical_path
    for index, step in enumerate(data["steps"]):
        part = slice(path.ptr[index], path.ptr[index + 1])
        assert ints(step["path"]["dp"]).tolist() == path.dp[part].tolist()
        variants = [data["variants"][graph.replica_variant[dp]] for dp in path.dp[part]]
        for op, variant, kind, pp in zip(
            ints(step["path"]["op"]), variants, path.kind[part], path.pp[part], strict=True
        ):
            assert ints(variant["kind"], "u1")[op] == kind
            assert ints(variant["pp"], "<u2")[op] == pp
        assert step["path"]["end_s"] == path.step_s[index]
    ideal = data["ideal"]["path"]
    assert ideal["end_s"] == pytest.approx(result.ideal_s[0], rel=1e-12)
    assert set(ints(ideal["dp"])) <= {0, 1}  # one of each structure


def test_of_many_steps_the_slowest_the_typical_the_fastest_and_others_are_drawn(monkeypatch):
    step_s = np.array([5.0, 9.0, 1.0, 4.0, 3.0, 2.0, 6.0, 7.0, 8.0])
    assert drawn.chosen_steps(step_s, 1).tolist() == [1]
    assert drawn.chosen_steps(step_s, 3).tolist() == [0, 1, 2]
    assert drawn.chosen_steps(step_s, 5).tolist() == [0, 1, 2, 3, 8]
    assert drawn.chosen_steps(step_s, 9).tolist() == list(range(9))
    result, measured = analysed(replace(SLOW, steps=12))
    monkeypatch.setattr(drawn, "MAX_ALL_EVENTS", 5 * 4 * measured.graph.n_ops)
    data = drawn.timeline_data(measured, result)
    assert len(data["steps"]) == 5
    assert data["n_steps"] == 12
    first = data["steps"][data["first"]]
    assert first["step"] == int(result.steps[np.argmax(result.traced_s)])


def test_large_jobs_show_the_slowest_replicas_and_a_typical_one():
    spec = SynthSpec(dp=16, pp=8, microbatches=8, steps=2, slow_workers=(SlowWorker(11, 3, 1.5),))
    result, measured = analysed(spec)
    data = drawn.timeline_data(measured, result)
    for step in data["steps"]:
        assert step["replicas"][0] == step["slowest"] == 11
        assert (len(step["replicas"]) + 1) * data["n_pp"] <= drawn.MAX_ROWS
        assert step["typical"] in step["replicas"]


def test_scatter_pairs_forward_and_backward_of_one_microbatch():
    _, measured = analysed(replace(SLOW, sequence_imbalance=0.3))
    data = scatter.scatter_data(measured)
    forward, backward = floats(data["x"]), floats(data["y"])
    assert data["stage"] == 1
    assert len(forward) == data["n_all"] == 4 * 4 * 3
    assert np.corrcoef(forward, backward)[0, 1] > 0.9


def test_scatter_takes_passes_in_parts_as_one():
    spec = SynthSpec(dp=2, pp=1, microbatches=4, steps=3, layers=Layers(3, fsdp=True))
    _, measured = analysed(spec)
    data = scatter.scatter_data(measured)
    assert data["n_all"] == len(floats(data["x"])) == 2 * 4 * 3
    kind, block = measured.graph.kind, measured.durations.array
    for name, one in (("x", OpKind.FORWARD_COMPUTE), ("y", OpKind.BACKWARD_COMPUTE)):
        assert floats(data[name]).sum() == pytest.approx(block[kind == one].sum(), rel=1e-6)


def test_scatter_is_sampled(monkeypatch):
    monkeypatch.setattr(scatter, "MAX_POINTS", 10)
    data = scatter.scatter_data(analysed(SLOW)[1])
    assert len(floats(data["x"])) == 10
    assert data["n_all"] == 48


def test_numbers_read_well():
    assert percent(-0.123) == "−12.3%"
    assert percent(-0.0001) == "0.0%"
    assert seconds(0.0123) == "12.3 ms"
    assert (seconds(0.9994), seconds(0.9997)) == ("999 ms", "0.9997 s")
    assert seconds(12.3456) == "12.35 s"
    assert seconds(-0.5) == "−500 ms"
    assert seconds(0.0) == "0 s"
    assert value([0.12345, True, None, 3]) == "0.1235, yes, –, 3"
