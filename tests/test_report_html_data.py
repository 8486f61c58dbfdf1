"""What the HTML report's figures draw, and how its numbers read."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.graph import from_trace
from paceline.report.page import drawn, figures
from paceline.report.page.markup import percent, seconds, value
from paceline.report.page.pack import safe_json, slowdowns
from paceline.synth import SlowWorker, SynthSpec, synthesize
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
    kept = figures.figure_data(result, None)["workers_by_step"]["index"]
    assert len(kept) <= 6
    assert int(np.argmax(result.simulated_s / result.ideal_s)) in kept
    assert {0, 19} <= set(kept)


def floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def test_the_timeline_ends_when_the_slowest_step_did():
    spec = replace(SLOW, launch_delay=(0.05, 0.5), microbatches=(4, 6, 4, 4))
    result, measured = analysed(spec)
    data = drawn.timeline_data(measured, result)
    row = np.frombuffer(base64.b64decode(data["row"]), dtype="<u2")
    end = floats(data["start"]) + floats(data["length"])
    ideal = np.array([entry["ideal"] for entry in data["rows"]])[row]
    assert data["step"] == int(result.steps[np.argmax(result.traced_s)])
    assert end[~ideal].max() == pytest.approx(result.traced_s.max(), rel=1e-5)
    assert end[ideal].max() <= result.ideal_s.max() * 1.00001


def test_large_jobs_show_the_slowest_replicas_and_a_typical_one():
    spec = SynthSpec(dp=16, pp=8, microbatches=8, steps=2, slow_workers=(SlowWorker(11, 3, 1.5),))
    result, measured = analysed(spec)
    data = drawn.timeline_data(measured, result)
    assert data["replicas"][0] == 11
    assert len(data["rows"]) <= drawn.MAX_ROWS
    assert [row["what"] for row in data["rows"]].count("typical") == 8


def test_scatter_pairs_forward_and_backward_of_one_microbatch():
    _, measured = analysed(replace(SLOW, sequence_imbalance=0.3))
    data = drawn.scatter_data(measured)
    forward, backward = floats(data["x"]), floats(data["y"])
    assert data["stage"] == 1
    assert len(forward) == data["n_all"] == 4 * 4 * 3
    assert np.corrcoef(forward, backward)[0, 1] > 0.9


def test_scatter_is_sampled(monkeypatch):
    monkeypatch.setattr(drawn, "MAX_POINTS", 10)
    data = drawn.scatter_data(analysed(SLOW)[1])
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
