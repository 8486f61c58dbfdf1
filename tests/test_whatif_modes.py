"""Steps of two lengths, and single longer steps, which are noise."""

import numpy as np
import pytest

from paceline.whatif.modes import step_modes, two_modes

#: Milliseconds of the traced steps of an even job: two gloo ranks of torch on two busy cores.
BUSY = (
    *(128, 123, 127, 266, 153, 125, 196, 137, 124, 120, 123, 128, 179, 173, 113, 119, 117, 116),
    *(119, 120, 113, 117, 123, 119, 121, 120, 119, 123, 120, 121, 125, 117, 117, 116, 116, 258),
    *(140, 123, 120),
)  # fmt: skip


def test_longer_steps_of_a_busy_machine_are_no_second_length():
    step_s = np.array(BUSY) / 1e3
    assert two_modes(step_s) is not None  # five steps of 173 to 266 ms are apart from the others
    assert step_modes(step_s) is None


@pytest.mark.parametrize("every", [2, 3, 4])
def test_steps_that_are_longer_in_turn_have_two_lengths(every):
    noise = np.random.default_rng(0).normal(1, 0.02, 40)
    is_long = np.arange(40) % every == 0
    modes = step_modes(noise * np.where(is_long, 1.3, 1.0))
    assert modes is not None
    assert modes.slow.tolist() == is_long.tolist()
    assert modes.ratio == pytest.approx(1.3, rel=0.02)


def test_one_step_in_ten_is_no_second_length():
    noise = np.random.default_rng(0).normal(1, 0.02, 40)
    assert step_modes(noise * np.where(np.arange(40) % 10 == 0, 1.3, 1.0)) is None
