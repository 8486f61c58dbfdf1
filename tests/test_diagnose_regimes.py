"""Slowness that begins or ends within a trace: the worker or link is named, with its steps."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.regimes import find_jump
from paceline.graph import from_trace
from paceline.synth import SlowLink, SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze

SPEC = SynthSpec(dp=4, pp=2, microbatches=8, noise=0.02)
WORKER = {"slow_workers": (SlowWorker(3, 1, 1.5),)}


def joined(first, second):
    """One trace, the steps of the second behind those of the first."""
    behind = first.n_steps
    return replace(
        first,
        steps=np.concatenate([first.steps, second.steps + behind]),
        step_start_s=np.concatenate([first.step_start_s, second.step_start_s + 1e3]),
        **{
            name: np.concatenate([getattr(first, name), getattr(second, name)])
            for name in ("counts", "chunk", "microbatch", "start", "end")
        },
    )


def found(steps, *parts):
    """Findings of a job whose parts differ: each is so long, with what is slow in it."""
    traces = [
        synthesize(replace(SPEC, steps=n, seed=seed, **slow))
        for seed, (n, slow) in enumerate(zip(steps, parts, strict=True))
    ]
    measured = from_trace(joined(*traces))
    return {f.cause: f for f in diagnose(measured, analyze(measured)).findings}


@pytest.mark.parametrize(
    ("steps", "parts", "when", "named"),
    [
        ((10, 20), ({}, WORKER), "from step 10 on", range(10, 30)),
        ((15, 15), ({}, WORKER), "from step 15 on", range(15, 30)),
        ((20, 10), (WORKER, {}), "before step 20", range(20)),
        ((6, 5), ({}, WORKER), "from step 6 on", range(6, 11)),
    ],
)
def test_a_worker_that_is_slow_in_part_of_the_trace(steps, parts, when, named):
    findings = found(steps, *parts)
    worker = findings["worker"]
    assert worker.where["workers"] == [[3, 1]]
    assert worker.text.endswith(when)
    assert worker.evidence["steps"] == list(named)
    assert worker.evidence["factors"][0] == pytest.approx(1.5, abs=0.05)
    assert worker.confidence > 0.9
    assert worker.share > 0.8
    assert (worker.cost_s[list(named)] > 0).all()
    assert "drift" in findings


def test_a_link_that_becomes_slow():
    findings = found((12, 12), {}, {"slow_links": (SlowLink(1, 0, 40.0),)})
    assert findings["link"].text.endswith("from step 12 on")
    assert "worker" not in findings


def test_a_job_that_becomes_slower_as_a_whole_accuses_nobody():
    """Longer sequences from step 12 on: all computes take 1.3 times as long."""
    traces = [synthesize(replace(SPEC, steps=12, seed=seed)) for seed in range(2)]
    slower = replace(traces[1], start=traces[1].start * 1.3, end=traces[1].end * 1.3)
    measured = from_trace(joined(traces[0], slower))
    causes = [f.cause for f in diagnose(measured, analyze(measured)).findings]
    assert "drift" in causes
    assert not {"worker", "link"} & set(causes)


def test_three_slow_steps_are_no_part():
    findings = found((20, 3), {}, WORKER)
    assert "from step" not in findings["worker"].text
    assert "3 of 23 steps" in findings["worker"].text


def test_a_dozen_steps_of_noise_do_not_jump():
    """Two sides that do not overlap, in fewer than one of a thousand draws."""
    rng = np.random.default_rng(5)
    jumps = [find_jump(rng.normal(1, 0.05, 12)).p_value <= 0.001 for _ in range(2000)]
    assert sum(jumps) <= 2
    heavy = [find_jump(1 + 0.05 * rng.standard_t(2, 12)).p_value <= 0.001 for _ in range(2000)]
    assert sum(heavy) <= 2
