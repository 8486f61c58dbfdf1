"""A detector's state: whatever it has seen, it can be taken up again, and goes on alike."""

import numpy as np
import pytest

from paceline.detect.columns import N_FLOATS, N_WHOLES
from paceline.detect.detector import Detector
from paceline.detect.state import ArrayField, StateReader
from paceline.errors import StateError


def odd_times(rng, steps, ranks):
    """Noise, fail-slows, pauses, missing samples, ranks that join late, clocks that jump."""
    times = 1 + 0.02 * rng.normal(size=(steps, ranks))
    begin = rng.integers(steps)
    times[begin : begin + 60] *= 1.4
    times[rng.random(steps) < 0.01] *= 30
    times[rng.random((steps, ranks)) < 0.05] = np.nan
    times[: rng.integers(steps), rng.integers(ranks)] = np.nan
    values = [0.0, -1.0, np.inf, 1e-300, 1e30, 1e12]
    for value in values:
        times[rng.integers(steps), rng.integers(ranks)] = value
    return times


@pytest.mark.parametrize("seed", range(8))
def test_it_goes_on_alike(seed):
    rng = np.random.default_rng(seed)
    times = odd_times(rng, 700, 3)
    whole, cut = Detector(3, threshold=0.1, warm_up=20), Detector(3, threshold=0.1, warm_up=20)
    for step, row in enumerate(times):
        if step % 23 == seed:
            cut = Detector.from_state_dict(cut.state_dict())
        assert repr(cut.update(step, row)) == repr(whole.update(step, row))
    assert (cut.threshold, cut.warm_up, cut.steps) == (0.1, 20, 700)


def test_a_state_is_a_copy():
    detector = Detector(2)
    state = detector.state_dict()
    taken_up = Detector.from_state_dict(state)
    state["wholes"][:] = 1
    assert not detector.slow.any()
    assert not taken_up.slow.any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other"}, "this is no state of paceline-detector"),
        ({"version": 1}, "paceline-detector has version 1, this Paceline reads 6"),
        ({"version": True}, "has version True"),
        ({"more": 1}, "has unknown more"),
        ({"ranks": 10**12}, r"ring is float32\(2, 512\), not float32\(1000000000000, 512\)"),
        ({"ranks": 2.0}, "ranks must be a whole number >= 1, not 2.0"),
        ({"threshold": 20.0}, "threshold must be above 0 and below 10, not 20"),
        ({"warm_up": 3}, "warm_up must be from 10 to 512 steps, not 3"),
        ({"steps": -1}, "steps must be a whole number >= 0, not -1"),
        ({"evidence": np.full((2, 512), 3, np.uint8)}, "evidence has values outside 0 to 1"),
        ({"floats": np.full((2, N_FLOATS), np.inf)}, "floats has infinite values"),
        ({"wholes": np.full((2, N_WHOLES), -1)}, "wholes has a negative count of samples"),
        (
            {"wholes": np.zeros((2, N_WHOLES), np.int8)},
            rf"wholes is int8\(2, {N_WHOLES}\), not int64",
        ),
        ({"ring": [0.0, 0.0]}, "ring must be an array"),
        ({"expected": {"scale": 1.0}}, "expected has missing or invalid fields"),
    ],
)
def test_what_does_not_fit_is_said(change, said):
    with pytest.raises(StateError, match=said):
        Detector.from_state_dict({**Detector(2).state_dict(), **change})


def test_a_field_that_lacks_is_said():
    state = Detector(2).state_dict()
    del state["evidence"]
    with pytest.raises(StateError, match="paceline-detector lacks evidence"):
        Detector.from_state_dict(state)
    with pytest.raises(StateError, match="this is no state"):
        Detector.from_state_dict([])


def test_texts():
    reader = StateReader({"schema": "s", "version": 1, "a": ["x"], "b": 1}, "s", 1, ("a", "b"))
    assert reader.texts("a") == ["x"]
    for take in (reader.text, reader.texts):
        with pytest.raises(StateError, match="s: b must be a"):
            take("b")
    with pytest.raises(StateError, match="s: a must be an array"):
        reader.array("a", ArrayField("<f8", (1,)), {})


@pytest.mark.parametrize(("value", "good"), [(3, True), (9, True), (2, False), (10, False)])
def test_whole_numbers_between_bounds(value, good):
    reader = StateReader({"schema": "s", "version": 1, "a": value}, "s", 1, ("a",))
    if good:
        assert reader.whole("a", 3, 9) == value
        return
    with pytest.raises(StateError, match="s: a must be a whole number >= 3"):
        reader.whole("a", 3, 9)


@pytest.mark.parametrize(
    ("value", "good"),
    [(1, True), (-0.5, True), (1e300, False), (float("nan"), False), (True, False), ("1", False)],
)
def test_finite_numbers(value, good):
    reader = StateReader({"schema": "s", "version": 1, "a": value}, "s", 1, ("a",))
    if good:
        assert reader.number("a") == value
        return
    with pytest.raises(StateError, match="s: a must be a finite number"):
        reader.number("a")


@pytest.mark.parametrize(
    ("values", "field", "good"),
    [
        ([0.0, 2.0], ArrayField("<f8", (2,), least=0.0, most=2.0), True),
        ([-0.1, 2.0], ArrayField("<f8", (2,), least=0.0, most=2.0), False),
        ([0.0, 2.1], ArrayField("<f8", (2,), least=0.0, most=2.0), False),
        ([0.0, np.nan], ArrayField("<f8", (2,)), False),
        ([0.0, np.nan], ArrayField("<f8", (2,), nan=True), True),
        ([0.0, np.inf], ArrayField("<f8", (2,)), False),
        ([0.0, np.inf], ArrayField("<f8", (2,), inf=True), True),
        ([0.0, np.inf], ArrayField("<f8", (2,), inf=True, most=9.0), False),
        ([0.0, 1.0], ArrayField("<f8", (3,)), False),
        ([0.0, 1.0], ArrayField("<f8", ("n",)), True),
        ([0.0, 1.0], ArrayField("<f4", (2,)), False),
    ],
)
def test_arrays_within_bounds(values, field, good):
    array = np.array(values)
    reader = StateReader({"schema": "s", "version": 1, "a": array}, "s", 1, ("a",))
    if not good:
        with pytest.raises(StateError, match="s: a "):
            reader.array("a", field, {"n": 2})
        return
    copy = reader.array("a", field, {"n": 2})
    assert np.array_equal(copy, array, equal_nan=True)
    assert copy is not array
