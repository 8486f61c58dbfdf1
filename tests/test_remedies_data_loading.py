"""Hiding launch delays: compared on the traced step."""

from dataclasses import replace

import pytest

from paceline.errors import RemedyError
from paceline.remedies.data_loading import propose
from paceline.synth import SynthSpec
from remedy_cases import analysed, case_of


@pytest.mark.parametrize(
    ("dp", "pp", "seed", "noise"), [(4, 2, 0, 0.01), (8, 4, 1, 0.02), (8, 1, 2, 0.02)]
)
def test_the_gain_is_right(dp, pp, seed, noise):
    prompt = SynthSpec(dp=dp, pp=pp, microbatches=8, steps=6, seed=seed, noise=noise)
    case = case_of(replace(prompt, launch_delay=(0.4, 0.5)))
    remedy = propose(case)
    truth = float(analysed(prompt).traced_s.mean())
    assert remedy.step_time_s == pytest.approx(truth, rel=0.01)
    assert remedy.gain == pytest.approx(1 - truth / case.result.traced_s.mean(), abs=0.01)
    assert remedy.change["hide"] == "step-start"
    assert remedy.findings == ("launch-delay",)


def test_without_delays_it_does_not_apply():
    with pytest.raises(RemedyError, match="no time lost between operations"):
        propose(case_of(SynthSpec(dp=4, pp=2, microbatches=4, steps=3)))
