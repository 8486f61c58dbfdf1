"""What a new stage of the workload takes, from its first samples."""

import numpy as np
import pytest

from paceline.detect.planned import Workloads

NONE = np.array([False])


def shares_of(first, second):
    """[even, odd] shares of a stage with twice the tokens, by its first samples."""
    loads, rows = Workloads(), []
    for step, value in enumerate([*first, *second]):
        tokens = 1 if step < len(first) else 2
        rows += loads.take(step, np.array([value]), NONE, 1.0, {"tokens": tokens})
    scales = {step: scale for step, _, scale in rows}
    last = len(first) + len(second) - 1
    return scales[last - last % 2], scales[last - 1 + last % 2]


def test_one_long_and_one_short_step_are_no_alternation():
    """A run of modded-nanogpt, milliseconds: the schedule changed a step before its times did."""
    even, odd = shares_of([34.0] * 40, [35, 63, 61, 83, 42, 69, 65, 65])
    assert even == odd == pytest.approx(63 / 34, rel=0.04)


def test_an_alternation_that_begins_with_the_stage():
    even, odd = shares_of([34.0, 35.0] * 20, [54, 61, 54, 62, 55, 61, 54, 61])
    assert even == pytest.approx(54 / 34, rel=0.04)
    assert odd == pytest.approx(61 / 35, rel=0.04)
