"""Slowness that begins or ends within a trace: the worker or link is named, with its steps."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.graph.computes import computes_of
from paceline.jumps import find_jump, spans
from paceline.remedies import Case
from paceline.remedies.replace import replace_worker
from paceline.synth import BASE_S, SlowLink, SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import analyze
from recordings import RankStep, data_parallel_job

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


def test_spans_lie_between_jumps():
    rng = np.random.default_rng(0)
    times = np.repeat([1.0, 2.0, 1.0], [20, 30, 15]) * rng.normal(1, 0.01, 65)
    assert spans(times, 10) == [(0, 20), (20, 50), (50, 65)]
    assert spans(times, 16) == [(0, 20), (20, 65)]
    assert spans(times[:20], 4) == [(0, 20)]


def test_a_dozen_steps_of_noise_do_not_jump():
    """Two sides that do not overlap, in fewer than one of a thousand draws."""
    rng = np.random.default_rng(5)
    jumps = [find_jump(rng.normal(1, 0.05, 12)).p_value <= 0.001 for _ in range(2000)]
    assert sum(jumps) <= 2
    heavy = [find_jump(1 + 0.05 * rng.standard_t(2, 12)).p_value <= 0.001 for _ in range(2000)]
    assert sum(heavy) <= 2


def busy_pair(folder, slow_ms, seed=3):
    """Two ranks of a busy machine: steps of both take up to three times as long, by chance.

    From step 30 of 60 on, the forward of rank 1 takes ``slow_ms`` more.
    """
    rng = np.random.default_rng(seed)
    shared, own = rng.lognormal(0, 0.6, 60), rng.lognormal(0, 0.15, (60, 2, 2))

    def step_of(number, rank):
        forward, backward = shared[number] * own[number, rank] * (20, 40)
        late = slow_ms * (rank == 1 and number >= 30)
        return RankStep(forward=forward + late, backward=backward)

    measured = from_trace(data_parallel_job(folder, step_of, steps=60, ranks=2))
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


@pytest.mark.parametrize("first", [20, 30])
def test_pauses_of_all_forwards_of_a_slow_worker_are_no_garbage_collection(tmp_path, first):
    """Rank 1's forwards take 30 ms more from a step on: in every step there, and in none before."""
    trace = data_parallel_job(
        tmp_path,
        lambda step, rank: RankStep(forward=50.0 if rank == 1 and step >= first else 20.0),
        steps=45,
        ranks=2,
    )
    measured = from_trace(trace)
    findings = {f.cause: f for f in diagnose(measured, analyze(measured)).findings}
    assert findings["worker"].text.endswith(f"from step {first} on")
    assert "gc" not in findings


def test_noise_leaves_some_forwards_of_a_slow_worker_below_the_limit_of_pauses():
    """Only 54 of 80 forwards in the slow steps exceed the limit; the worker explains them all."""
    base = {**BASE_S, OpKind.FORWARD_COMPUTE: 0.046, OpKind.BACKWARD_COMPUTE: 0.008}
    spec = SynthSpec(dp=8, pp=1, microbatches=4, steps=60, noise=0.04, seed=1, base_s=base)
    measured = from_trace(synthesize(spec))
    forwards = computes_of(measured.graph).ops[0][0].ravel()
    measured.durations.block(0)[forwards, 20:40, 1] *= 1.61
    findings = {f.cause: f for f in diagnose(measured, analyze(measured)).findings}
    assert findings["worker"].text.endswith("in steps 20 to 39")
    assert findings["worker"].evidence["factors"] == [pytest.approx(82 / 54, rel=0.03)]
    assert findings["worker"].share > 0.8
    assert "gc" not in findings


def test_a_slow_worker_that_collects_garbage_has_both(tmp_path):
    """Rank 1 is 1.5 times slow from step 20 on, and pauses 200 ms in every fifth step."""

    def step(number, rank):
        factor = 1.5 if rank == 1 and number >= 20 else 1.0
        pause = 200.0 if rank == 1 and number % 5 == 2 else 0.0
        return RankStep(forward=20.0 * factor + pause, backward=40.0 * factor)

    measured = from_trace(data_parallel_job(tmp_path, step, steps=45, ranks=4))
    findings = {f.cause: f for f in diagnose(measured, analyze(measured)).findings}
    assert findings["worker"].where["workers"] == [[1, 0]]
    assert findings["gc"].evidence["pauses"] >= 8


def test_a_worker_begins_to_be_slow_while_the_whole_job_is_noisy(tmp_path):
    """The step times do not show the begin; the worker's times beside its peer's do."""
    case, healthy = busy_pair(tmp_path / "slow", 40.0), busy_pair(tmp_path / "healthy", 0.0)
    (worker,) = (f for f in case.diagnosis.findings if f.cause == "worker")
    assert not any(f.id == "jump" for f in case.diagnosis.findings)
    assert worker.where["workers"] == [[1, 0]]
    assert worker.text.endswith("from step 30 on")
    assert worker.evidence["steps"] == list(range(30, 60))
    assert not any(f.cause == "worker" for f in healthy.diagnosis.findings)
    # a new machine repairs the slow steps, and leaves the noise of the others
    true_s = float(case.result.traced_s.mean() - healthy.result.traced_s.mean())
    remedy = replace_worker(case)
    saved_s = float(case.result.traced_s.mean()) - remedy.step_time_s
    assert saved_s == pytest.approx(true_s, rel=0.15)
    assert float(worker.cost_s.mean()) == pytest.approx(true_s, rel=0.15)
    before = case.predicted(case.measured.durations)
    assert before.step_s[:30] == pytest.approx(case.result.traced_s[:30], rel=0.01)


def test_a_worker_that_is_slow_in_its_forwards_alone_has_their_factor(tmp_path):
    """A backward that varies with the machine tells nothing of the forward's slope."""
    rng = np.random.default_rng(1)
    own = rng.lognormal(0, 0.2, (40, 2))

    def step_of(number, rank):
        return RankStep(
            forward=15.0 * (8 if rank else 1),
            backward=20.0 * own[number, rank] * (1.08 if rank else 1),
        )

    measured = from_trace(data_parallel_job(tmp_path, step_of, steps=40, ranks=2))
    (worker,) = (f for f in diagnose(measured, analyze(measured)).findings if f.cause == "worker")
    assert worker.evidence["factors"] == [pytest.approx((120 + 21.6) / 35, rel=0.05)]
