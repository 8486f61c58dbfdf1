"""A worker that pauses now and then, each time at another place: nothing of it lasts.

First met with a generator by another hand: FSDP2 and HSDP jobs that lost a fifth of their steps to
one rank's pauses were called healthy. The jobs here are of a simulator that shares no code.
"""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from paceline import analyze
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case
from paceline.remedies.advise import advise
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.results.headline import headline, is_healthy
from sharded_jobs import ShardedJob


@dataclass(frozen=True)
class PausingJob(ShardedJob):
    """FSDP; each compute of some ranks stands still for 0.15 s with a chance of 8%."""

    pausing: tuple[int, ...] = (2,)

    def seconds(self, step, dp, name):
        chance = random.Random(f"stall/{self.seed}/{step}/{dp}/{name}").random()
        stalls = name[0] in ("forward", "backward") and dp in self.pausing and chance < 0.08
        return super().seconds(step, dp, name) + 0.15 * stalls


def diagnosed(job):
    measured = from_trace(job.trace(), keep_clocks=True)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_worker_that_pauses_is_named(seed):
    job = PausingJob(units=5, dp=4, steps=24, ahead=1, seed=seed)
    case = diagnosed(job)
    assert case.result.lasting_slowdown < 1.03 < case.result.slowdown
    (finding,) = [f for f in case.diagnosis.findings if f.id == "pauses"]
    assert finding.where == {"workers": [[2, 0]]}
    assert finding.confidence > 0.9
    healthy_s = PausingJob(units=5, dp=4, steps=24, ahead=1, seed=seed, pausing=()).step_s()
    assert finding.share_of_step == pytest.approx(1 - healthy_s / job.step_s(), abs=0.02)
    report = JobReport.of(case.result, advise(case, REMEDIES))
    assert not is_healthy(report)
    assert headline(report).startswith("Lasting stragglers cost little (0.")
    lines = "\n".join(line.plain for line in screen(report, 120, colour=False))
    assert "one worker pauses" in lines
    assert "Healthy" not in lines


@pytest.mark.parametrize("pausing", [(), (0, 1, 2, 3)])
def test_nobody_is_named_where_all_or_none_pause(pausing):
    case = diagnosed(PausingJob(units=5, dp=4, steps=24, ahead=1, pausing=pausing))
    assert "pauses" not in {finding.id for finding in case.diagnosis.findings}


def test_few_steps_name_nobody():
    """Of four workers the same one is the slowest of three steps in one job of 16."""
    job = PausingJob(units=5, dp=4, steps=3, ahead=1)
    case = diagnosed(job)
    assert "pauses" not in {finding.id for finding in case.diagnosis.findings}
    assert np.isfinite(case.result.slowdown)
