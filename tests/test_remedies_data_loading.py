"""Hiding launch delays: compared on the step with all delays."""

import re
from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.delayed_ops import alike_s
from paceline.errors import NotApplicableError, RemedyError
from paceline.graph import from_trace
from paceline.remedies import Case
from paceline.remedies.hide_delays import propose
from paceline.synth import SynthSpec, synthesize
from paceline.whatif import analyze
from remedy_cases import analysed, case_of
from remedy_jobs import LayeredJob


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
    assert remedy.change["hide"] == ["step-start"]
    assert "prefetch" in remedy.action
    assert remedy.findings == ("launch-delay",)


HIDE = {"hide": "step-start"}


@pytest.mark.parametrize(("wait_s", "is_data"), [(0.005, False), (0.4, True)])
def test_prefetching_is_no_advice_where_recorded_waits_for_data_are_short(wait_s, is_data):
    """A newcomer's step began 200 ms late, by a call that logs; its waits for data took 5 ms."""
    spec = SynthSpec(dp=4, pp=1, microbatches=8, steps=6, launch_delay=(0.4, 0.5))
    trace = synthesize(spec)
    measured = from_trace(replace(trace, data_wait_s=np.full((6, 4, 1), wait_s)))
    result = analyze(measured)
    action = propose(Case(measured, result, diagnose(measured, result), options=HIDE)).action
    assert ("prefetch" in action) == is_data
    assert ("logging, checkpoints, synchronisation" in action) != is_data
    if not is_data:
        assert re.search(r"waits for data are [0-9.]+% of this delay\)$", action)


SEVERAL = LayeredJob(
    pp=2, delays={"forward-compute": 0.004, "backward-compute": 0.008}, loading_s=0.1
)
WITHOUT = {
    "step-start": {"loading_s": 0.0},
    "forward-compute": {"delays": {"backward-compute": 0.008}, "loading_s": 0.0},
    "backward-compute": {"delays": {"forward-compute": 0.004}},
    "all": {"delays": {}, "loading_s": 0.0},
}


def test_all_delays_are_offered_with_what_each_would_gain_alone():
    remedy = propose(SEVERAL.case())
    assert {"step-start", "forward-compute", "backward-compute"} <= set(remedy.change["hide"])
    assert remedy.step_time_s == pytest.approx(replace(SEVERAL, **WITHOUT["all"]).step_s())
    gains = {row["hide"]: row["gain"] for row in remedy.change["alone"]}
    assert gains["all"] == pytest.approx(remedy.gain)
    for sort in ("step-start", "forward-compute", "backward-compute"):
        assert 0.005 < gains[sort] < gains["all"]
    assert f"before backward-compute {gains['backward-compute']:.1%}" in remedy.text
    assert f"at the start of steps {gains['step-start']:.1%}" in remedy.text


def test_many_short_delays_of_a_kind_are_no_wait_of_all_workers():
    """Every worker has 8 ms before each of its backwards: the host's own overhead."""
    job = LayeredJob(pp=2, delays={"backward-compute": 0.008})
    assert alike_s(job.case().measured, "backward-compute", 0.004) is None


def test_the_data_loading_of_each_step_is_told_once():
    job = LayeredJob(pp=2, delays={"backward-compute": 0.008}, loading_s=0.1)
    remedy = propose(job.case())
    gains = {row["hide"]: row["gain"] for row in remedy.change["alone"]}
    assert gains["forward-compute"] == pytest.approx(gains["step-start"], rel=0.05)
    assert f"at the start of steps {gains['step-start']:.1%}" in remedy.text
    assert f"before backward-compute {gains['backward-compute']:.1%}" in remedy.text
    assert "before forward-compute" not in remedy.text


@pytest.mark.parametrize("hide", ["forward-compute", "backward-compute", "all"])
def test_the_user_chooses_which(hide):
    remedy = propose(SEVERAL.case(hide=hide))
    truth = replace(SEVERAL, **WITHOUT[hide]).step_s()
    assert remedy.step_time_s == pytest.approx(truth, rel=1e-6)
    assert remedy.gain == pytest.approx(1 - truth / SEVERAL.step_s())


def test_the_start_of_steps_also_holds_each_workers_first_launch():
    remedy = propose(SEVERAL.case(hide="step-start"))
    truth = replace(SEVERAL, **WITHOUT["step-start"]).step_s()
    assert remedy.step_time_s == pytest.approx(truth, rel=0.01)


def test_other_sorts_are_an_error():
    with pytest.raises(RemedyError, match="step-start, all, forward-compute, backward") as error:
        propose(SEVERAL.case(hide="coffee"))
    assert not isinstance(error.value, NotApplicableError)
    with pytest.raises(NotApplicableError, match="no gc operations"):
        propose(SEVERAL.case(hide="gc"))


def test_without_delays_it_does_not_apply():
    with pytest.raises(NotApplicableError, match="no time lost between operations"):
        propose(case_of(SynthSpec(dp=4, pp=2, microbatches=4, steps=3)))
