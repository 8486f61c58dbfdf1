"""Causes in the computes at their edges: workers, stages, microbatches; by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.diagnose import microbatches, waterfall
from paceline.diagnose.fit import _levels, _workers, fit_computes
from paceline.diagnose.levels import REPLICAS
from paceline.diagnose.microbatches import (
    _AMBIGUOUS,
    _level_in_doubt,
    sequence_cause,
)
from paceline.diagnose.stages import _ambiguity as stage_ambiguity
from paceline.diagnose.stages import stage_cause
from paceline.diagnose.workers import _bar, _step_deviations, worker_cause
from paceline.graph import from_trace
from paceline.synth import BASE_S, SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import analyze

# Slow workers.


def workers_fit(total, *, error=0.0, mostly_slow=(), level=0.0):
    """Two stages, as many replicas as there are; forward and backward take 1 s each.

    Args:
        total: [stage, dp] how much slower, logarithm; the same of forward and backward.
    """
    total = np.asarray(total, dtype=float)
    n_pp, n_dp = total.shape
    both = np.stack([total, total])
    residual = np.zeros((2, n_pp, 4, 10, n_dp))
    return SimpleNamespace(
        place=np.zeros((2, n_pp)), stage_of_place=np.arange(n_pp), worker_total=both + level,
        worker=both, level=np.full(n_dp, level), level_seen=np.full(n_dp, level),
        worker_error=np.full(total.shape, error), mostly_slow=frozenset(mostly_slow),
        sigma=np.zeros(2),
        variants=(SimpleNamespace(residual=residual, micro=np.zeros((4, 10, n_dp))),),
    )  # fmt: skip


def cause_of(fit):
    n_pp, n_dp = fit.worker_error.shape
    graph = SimpleNamespace(
        n_pp=n_pp, n_dp=n_dp, variant_dps=(np.arange(n_dp),),
        worker_name=lambda dp, pp: f"dp {dp}, stage {pp}",
    )  # fmt: skip
    durations = SimpleNamespace(graph=graph, n_steps=10)
    return worker_cause(durations, fit, np.arange(100, 110))


def slow(factors, n_dp=4):
    """[stage, dp] logarithms of (dp, stage) -> factor."""
    total = np.zeros((2, n_dp))
    for (dp, pp), factor in factors.items():
        total[pp, dp] = math.log(factor)
    return total


@pytest.mark.parametrize(
    ("factors", "n_dp", "error", "named"),
    [
        ({(2, 1): 1.0201}, 3, 0.0, [[2, 1]]),
        ({(2, 1): 1.0199}, 3, 0.0, None),
        ({(2, 1): 1.041}, 3, 0.01, [[2, 1]]),  # four standard errors
        ({(2, 1): 1.039}, 3, 0.01, None),
        ({(2, 1): 1.089}, 4, 0.0225, None),  # of an error above 5% the errors decide
        ({(2, 1): 1.03, (0, 0): 1.0601}, 3, 0.0, [[0, 0]]),  # half as far off as another
        ({(2, 1): 1.03, (0, 0): 1.0599}, 3, 0.0, [[0, 0], [2, 1]]),
        ({(2, 1): 1.0501, (0, 0): 3.0}, 3, 0.0, [[0, 0], [2, 1]]),  # 5% is slow in any case
        ({(2, 1): 1.0499, (0, 0): 3.0}, 3, 0.0, [[0, 0]]),
    ],
)
def test_who_is_slow_in_all_steps(factors, n_dp, error, named):
    cause = cause_of(workers_fit(slow(factors, n_dp), error=error))
    assert (cause and cause.where["workers"]) == named
    if named:
        worst = max(factors.values())
        assert cause.evidence["factors"][0] == pytest.approx(worst)
        assert cause.evidence["threshold"] == 1.02
        assert cause.evidence["steps"] == "all"
        assert cause.chance <= 1


@pytest.mark.parametrize(
    ("apparent", "n_dp", "bar"),
    [
        (0.005, 4, 4 * 1.4826 * 0.005),  # of 8 workers the spread counts, four times
        (0.004, 4, 4 * 1.4826 * 0.004),
        (0.005, 3, 0.02),  # of 6 there is none to speak of
        (0.020, 4, 0.05),  # 5% is slow in any job
        (0.001, 4, 0.02),
    ],
)
def test_the_bar_of_slow_workers(apparent, n_dp, bar):
    """Workers that are ``apparent`` faster and slower by turns: that is their deviation."""
    seen = np.tile([apparent, -apparent], n_dp).reshape(2, n_dp)
    fit = SimpleNamespace(worker_error=np.zeros((2, n_dp)))
    assert _bar(seen, fit) == pytest.approx(np.full((2, n_dp), bar))
    fit.worker_error[1, 0] = 0.03
    assert _bar(seen, fit)[1, 0] == pytest.approx(0.12)


def test_forward_and_backward_count_by_their_seconds():
    """Forwards of 1 s take 1.6 times as long, backwards of 3 s 1.2 times: 1.3 in all."""
    fit = workers_fit(slow({}))
    fit.place = np.log(np.array([[1.0, 1.0], [3.0, 3.0]]))
    fit.worker[:, 0, 2] = fit.worker_total[:, 0, 2] = np.log([1.6, 1.2])
    cause = cause_of(fit)
    assert cause.evidence["factors"] == pytest.approx([1.3])
    [factor] = cause.effect.factor  # [kind, place, microbatch, step, dp]
    expected = np.zeros((2, 2, 4))
    expected[:, 0, 2] = np.log([1.6, 1.2])
    assert factor.shape == (2, 2, 1, 10, 4)
    assert factor[:, :, 0] == pytest.approx(np.repeat(expected[:, :, None], 10, axis=2))


def in_steps(worker, factors, n_dp=10):
    """A fit in which a worker (dp, pp) is slow in single steps: step -> factor."""
    fit = workers_fit(slow({}, n_dp))
    dp, pp = worker
    for step, factor in factors.items():
        fit.variants[0].residual[:, pp, :, step, dp] = math.log(factor)
    return fit


def test_a_worker_that_is_slow_in_single_steps():
    cause = cause_of(in_steps((3, 1), {2: 1.2, 5: 1.3, 6: 1.4}))
    assert cause.text == "worker dp 3, stage 1 is 1.30x slow in 3 of 10 steps (102, 105, 106)"
    assert cause.evidence["steps"] == [102, 105, 106]
    assert cause.evidence["factors"] == pytest.approx([1.3])
    assert cause.chance == 0
    [factor] = cause.effect.factor
    assert factor[0, 1, 0, :, 3] == pytest.approx(np.log([1, 1, 1.2, 1, 1, 1.3, 1.4, 1, 1, 1]))
    assert np.count_nonzero(factor) == 2 * 3


@pytest.mark.parametrize(("n_slow", "named"), [(2, True), (3, False)])
def test_a_tenth_of_the_workers_may_be_slow_in_single_steps(n_slow, named):
    """Of 20 workers two; more are noise. One always may: of 4 workers it is a quarter."""
    fit = in_steps((0, 0), {0: 1.5})
    for dp in range(n_slow):
        fit.variants[0].residual[:, 0, :, dp, dp] = math.log(1.5)
    assert (cause_of(fit) is not None) == named
    assert cause_of(in_steps((0, 0), {0: 1.5}, n_dp=2)) is not None


def test_workers_that_are_slow_always_come_before_those_that_are_at_times():
    fit = in_steps((3, 1), {2: 1.4})
    fit.worker[:, 0, 5] = fit.worker_total[:, 0, 5] = math.log(1.1)
    cause = cause_of(fit)
    assert cause.where == {"workers": [[5, 0], [3, 1]]}
    assert cause.evidence["factors"] == pytest.approx([1.1, 1.4])
    assert cause.evidence["steps"] == "all"
    assert cause.text == "2 workers are slow, the worst (dp 5, stage 0) 1.10x"


@pytest.mark.parametrize(("factor", "named"), [(0.049, False), (0.051, True)])
def test_five_percent_is_slow_in_a_single_step(factor, named):
    assert (cause_of(in_steps((3, 1), {2: math.exp(factor)})) is not None) == named


@pytest.mark.parametrize(
    ("middle", "apart", "odd", "named"),
    [
        # error of a median of four: 1.2533 x 1.4826 x 0.04 / 2 = 0.0372; six of them 0.2230
        (0.0, 0.04, 0.222, False),
        (0.0, 0.04, 0.224, True),
        # the middles of 20 steps lie 0.01 about 0: six times 0.0148 is 0.0890
        (0.01, 0.001, 0.088, False),
        (0.01, 0.001, 0.090, True),
    ],
)
def test_a_single_step_at_one_stage_stands_out_of_its_microbatches(middle, apart, odd, named):
    """Four microbatches ``apart`` from the middle of their step, which alternates by ``middle``."""
    by_step = np.tile([middle, -middle], 10).reshape(10, 2).T.copy()  # [dp, step]
    by_step[0, 4] = odd
    micro = by_step.T[None] + apart * np.array([1, 1, -1, -1])[:, None, None]
    fit = SimpleNamespace(variants=(SimpleNamespace(micro=micro),), stage_of_place=np.zeros(1))
    graph = SimpleNamespace(n_pp=1, n_dp=2, variant_dps=(np.arange(2),))
    found = _step_deviations(SimpleNamespace(graph=graph, n_steps=10), fit)
    expected = np.zeros((1, 10, 2))
    expected[0, 4, 0] = odd if named else 0
    assert found == pytest.approx(expected)
    fit.variants[0].micro = micro[1:]  # three do not show how much they differ
    assert not _step_deviations(SimpleNamespace(graph=graph, n_steps=10), fit).any()


def test_stages_with_few_computes_say_nothing_of_single_steps_but_others_do():
    """Variant 0 has one microbatch, two computes a stage; variant 1 has two, four computes."""
    residuals = [np.zeros((2, 2, n, 10, 1)) for n in (1, 2)]
    for residual in residuals:
        residual[:, 1, :, 7] = 0.5
    fit = SimpleNamespace(
        variants=[SimpleNamespace(residual=residual) for residual in residuals],
        stage_of_place=np.arange(2), sigma=np.array([0.01, 0.02]),
    )  # fmt: skip
    graph = SimpleNamespace(n_pp=2, n_dp=2, variant_dps=(np.array([0]), np.array([1])))
    found = _step_deviations(SimpleNamespace(graph=graph, n_steps=10), fit)
    assert np.argwhere(found).tolist() == [[1, 7, 1]]
    assert found[1, 7, 1] == 0.5
    # six errors of the larger spread: 6 x 1.2533 x 0.02 / 2 = 0.0752
    for at, named in ((0.0745, False), (0.0759, True)):
        residuals[1][:, 1, :, 7] = at
        assert _step_deviations(SimpleNamespace(graph=graph, n_steps=10), fit).any() == named


def test_what_else_most_workers_of_a_stage_may_be():
    cause = cause_of(workers_fit(slow({(0, 1): 1.2, (1, 1): 1.2, (2, 1): 1.2}), mostly_slow={1}))
    assert cause.alternative == "stage-imbalance"
    assert cause.ambiguous.startswith("most workers of stage 1 are slow: the stage may have too")
    assert cause.evidence["pattern"] == "one stage"
    other = cause_of(workers_fit(slow({(0, 1): 1.2}), mostly_slow={0}))
    assert (other.ambiguous, other.alternative) == ("", "")
    replicas = cause_of(workers_fit(slow({(0, 1): 1.2}), mostly_slow={REPLICAS}))
    assert replicas.alternative == "sequence-length"
    assert replicas.ambiguous.startswith("most replicas are slower than a few")


# The error of a worker's factor.


@pytest.mark.parametrize("n_steps", [1, 3, 4, 6])
def test_microbatches_show_the_error_where_steps_are_few(n_steps):
    """Six microbatches, 0.1 off each way; the steps are alike. From four steps on, these count."""
    off = 0.1 * np.array([1, -1, 1, -1, 1, -1])
    residual = np.broadcast_to(off[None, None, :, None, None], (2, 1, 6, n_steps, 1))
    graph = SimpleNamespace(n_pp=1, n_dp=1, variant_dps=(np.arange(1),))
    _, error = _workers(graph, [residual], np.zeros(1), np.zeros(1, dtype=np.int64), [])
    values = 2 * 6 * n_steps
    pooled = 1.2533 * 1.4826 * 0.1 / math.sqrt(values)
    assert error.item() == pytest.approx(pooled if n_steps < 4 else 0.0)


# Levels of whole replicas.


def levels_of(seen, off, n_steps=10, alike=False):
    """Levels and errors of replicas whose six microbatches are ``off`` [dp] each way.

    Neighbours go opposite ways, or with ``alike`` all go the same. They go the other way in the
    next step.
    """
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])[:, None, None]
    signs = signs * np.where(np.arange(n_steps) % 2, -1.0, 1.0)[:, None]
    ways = 1.0 if alike else np.where(np.arange(len(off)) % 2, -1.0, 1.0)
    micro = signs * ways * np.asarray(off) * np.ones((6, n_steps, len(off)))
    graph = SimpleNamespace(n_dp=len(seen), variant_dps=(np.arange(len(seen)),))
    return _levels(graph, [micro], np.array(seen, dtype=float))


@pytest.mark.parametrize(
    ("level", "off", "counts"),
    [
        (0.02, 0.0, True),
        (0.0199, 0.0, False),
        (-0.02, 0.0, True),
        # error of a median of 6 x 10: 1.2533 x 1.4826 x 0.1 / sqrt(60) = 0.02399; four: 0.0960
        (0.097, 0.1, True),
        (0.095, 0.1, False),
    ],
)
def test_a_replica_is_slower_by_four_errors_of_its_microbatches(level, off, counts):
    found, error = levels_of([0.0, level, 0.0, 0.0], [off] * 4)
    assert found.tolist() == [0.0, level if counts else 0.0, 0.0, 0.0]
    assert error == pytest.approx(np.full(4, 1.2533 * 1.4826 * off / math.sqrt(60)))


@pytest.mark.parametrize("replicas", [3, 4, 5])
def test_what_makes_all_replicas_late_is_no_error_of_one(replicas):
    """Of fewer than four the others do not show it."""
    _, error = levels_of([0.0] * replicas, [0.1] * replicas, alike=True)
    assert (error < 1e-12).all() == (replicas >= 4)


def test_a_replica_of_even_microbatches_is_no_surer_than_the_others():
    """The middle 80% of all lie 0.2 apart: a standard deviation of 0.2 / 2.5631."""
    pooled = 1.2533 * 0.2 / 2.5631 / math.sqrt(60)
    for level, counts in ((4.02 * pooled, True), (3.98 * pooled, False)):
        found, error = levels_of([level, 0.0, 0.0, 0.0, 0.0], [0.0, 0.1, 0.1, 0.1, 0.1])
        assert error[0] == pytest.approx(pooled)
        assert (found[0] > 0) == counts


# Stages.


def stage_fit(factors, *, n_dp=8, worker=None, error=0.0):
    """Forwards of 1 s and backwards of 2 s on stages that take ``factors`` times as long."""
    n_pp = len(factors)
    place = np.log(np.outer([1.0, 2.0], factors))
    ops = np.arange(2 * n_pp * 3).reshape(2, n_pp, 3)
    fit = SimpleNamespace(
        place=place, stage_of_place=np.arange(n_pp), worker_error=np.full((n_pp, n_dp), error),
        worker=np.zeros((2, n_pp, n_dp)) if worker is None else worker,
        variants=(SimpleNamespace(ops=ops),),
    )  # fmt: skip
    block = np.exp(place)[:, :, None] * np.ones(3)
    block = np.repeat(block.reshape(-1)[:, None], 10, axis=1)[..., None] * np.ones(n_dp)
    graph = SimpleNamespace(n_dp=n_dp, n_pp=n_pp)
    return SimpleNamespace(graph=graph, n_steps=10, block=lambda v: block), fit


@pytest.mark.parametrize(
    ("factors", "named"),
    [
        ((1.0, 1.0, 1.0, 1.0272), 3),  # 1.0272 over 1.0068 is 1.0203
        ((1.0, 1.0, 1.0, 1.0262), None),  # 1.0195
        ((1.3, 1.0, 1.0, 1.0), 0),
        ((1.3,), None),
    ],
)
def test_a_stage_is_overfull(factors, named):
    cause = stage_cause(*stage_fit(factors))
    assert (cause and cause.where["stage"]) == named
    if cause:
        longest = max(factors)
        assert cause.evidence["forward_ratio"] == pytest.approx(longest)
        assert cause.evidence["backward_ratio"] == pytest.approx(longest)
        assert cause.evidence["load_over_mean"] == pytest.approx(longest / np.mean(factors))
        assert cause.evidence["loads_s"] == pytest.approx(3 * np.array(factors))
        assert cause.chance < 1e-12
        [factor] = cause.effect.factor
        expected = np.log(np.array(factors) / np.mean(factors))
        assert factor[:, :, 0, 0, 0] == pytest.approx(np.stack([expected, expected]))


@pytest.mark.parametrize(("jitter", "named"), [(0.031, True), (0.032, False)])
def test_a_stage_stands_out_by_four_errors_of_its_steps(jitter, named):
    """1.1 / 1.05 of the mean: 4.76%. Six steps off by ``jitter`` each way, of the load."""
    durations, fit = stage_fit((1.0, 1.1))
    block, n = durations.block(0), 6
    off = jitter * np.array([1, 1, -1, -1, 1, -1])
    table = block[:, :n].copy()
    table[fit.variants[0].ops[:, 1].ravel()] *= (1 + off)[None, :, None]
    changed = SimpleNamespace(graph=durations.graph, n_steps=n, block=lambda v: table)
    relative = 1.1 * (1 + off) / ((1 + 1.1 * (1 + off)) / 2)
    deviation = np.abs(relative - np.median(relative))
    error = 1.2533 * 1.4826 * np.median(deviation) / math.sqrt(n)
    assert (4 * error <= 1.1 / 1.05 - 1) == named
    assert (stage_cause(changed, fit) is not None) == named


@pytest.mark.parametrize(
    ("n_dp", "gap", "error", "words"),
    [
        (1, 0.0, 0.0, "with one replica"),
        (2, 0.029, 0.0, ""),
        (2, 0.031, 0.0, "the stage's two workers differ by 3%"),
        (2, 0.11, 0.028, ""),  # four errors are 0.112
        (2, 0.11, 0.027, "the stage's two workers differ by 12%"),
        (3, 0.5, 0.0, ""),
    ],
)
def test_what_else_a_long_stage_may_be(n_dp, gap, error, words):
    worker = np.zeros((2, 2, n_dp))
    worker[:, 1, 0] = gap
    _, fit = stage_fit((1.0, 1.3), n_dp=n_dp, worker=worker, error=error)
    said = stage_ambiguity(fit, 1, n_dp)
    assert said.startswith(words)
    assert bool(said) == bool(words)
    cause = stage_cause(*stage_fit((1.0, 1.3), n_dp=n_dp, worker=worker, error=error))
    assert cause.alternative == ("worker" if words else "")


# Microbatches.


def micro_fit(spread, *, doubt=()):
    """Microbatches of replicas that vary by ``spread`` [dp], the same forward and backward."""
    signs = np.array([1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0])
    micro = signs[:, None, None] * np.asarray(spread) * np.ones((8, 2, 1))
    variant = SimpleNamespace(micro=micro, residual=np.zeros((2, 2, *micro.shape)))
    return SimpleNamespace(
        variants=(variant,), slope=np.ones((2, 2)), stage_of_place=np.arange(2),
        level_in_doubt=np.array(doubt or [0.0] * len(spread)),
    )  # fmt: skip


def sequences_of(monkeypatch, fit, correlations, *, stages=1.0, neighbours=0.0, same=0.0):
    monkeypatch.setattr(microbatches, "_correlations", lambda *_: np.array(correlations))
    monkeypatch.setattr(microbatches, "_between_stages", lambda *_: stages)
    monkeypatch.setattr(microbatches, "_between_neighbours", lambda *_: neighbours)
    monkeypatch.setattr(microbatches, "_same_in_all_steps", lambda *_: same)
    return sequence_cause(SimpleNamespace(graph=SimpleNamespace(n_pp=2)), fit)


@pytest.mark.parametrize(
    ("spread", "correlations", "named"),
    [
        ([0.021] * 4, [1.0] * 4, True),
        ([0.019] * 4, [1.0] * 4, False),
        ([0.001, 0.019, 0.019, 0.051], [1.0] * 4, False),  # one replica's vary, but one of four
        ([0.001, 0.051], [1.0] * 2, True),  # half of the replicas show it
        ([0.001, 0.039], [1.0] * 2, True),  # the typical one varies by 2%
        ([0.001, 0.037], [1.0] * 2, False),
        ([0.1] * 4, [0.9, 0.9, 0.89, 0.89], True),
        ([0.1] * 4, [0.91, 0.89, 0.89, 0.89], False),
    ],
)
def test_which_microbatches_vary(monkeypatch, spread, correlations, named):
    cause = sequences_of(monkeypatch, micro_fit(spread), correlations)
    assert (cause is not None) == named
    if cause:
        cost = np.exp(np.concatenate([np.array(spread), -np.array(spread)]))
        cv = cost.std() / cost.mean()
        assert cause.evidence["coefficient_of_variation"] == pytest.approx(cv)
        assert cause.evidence["correlation"] == pytest.approx(np.median(correlations))
        varied = (np.array(spread) >= 0.02) & (np.array(correlations) >= 0.9)
        assert cause.evidence["replicas_showing_it"] == pytest.approx(varied.mean())


def test_a_replica_that_may_be_slow_instead(monkeypatch):
    fit = micro_fit([0.1] * 3, doubt=[0.0, 0.05, -0.08])
    cause = sequences_of(monkeypatch, fit, [1.0] * 3)
    assert cause.alternative == "worker"
    assert cause.ambiguous.startswith("replica 2 takes -8% compared with the typical one")
    assert cause.ambiguous == _level_in_doubt(fit)
    passing = sequences_of(monkeypatch, fit, [1.0] * 3, neighbours=0.9, same=0.9)
    assert (passing.alternative, passing.ambiguous) == ("", _AMBIGUOUS)


# The waterfall of a job without stragglers.


@pytest.mark.parametrize(("pp", "microbatches"), [(1, 3), (2, 4), (4, 8)])
def test_the_waterfall_by_hand(pp, microbatches):
    """A forward takes 0.1 s and a backward 0.2: 0.3 s a microbatch, and a stage of bubble each.

    Sends and recvs take 0, so only the ops of the step's ends and the bubble are left.
    """
    seconds = dict.fromkeys(BASE_S, 0.0) | {
        OpKind.FORWARD_COMPUTE: 0.1, OpKind.BACKWARD_COMPUTE: 0.2, OpKind.OPTIMIZER: 0.05,
        OpKind.PARAMS_ALL_GATHER: 0.02,
    }  # fmt: skip
    spec = SynthSpec(dp=3, pp=pp, microbatches=microbatches, steps=2, noise=0.0, base_s=seconds)
    measured = from_trace(synthesize(spec))
    fall = waterfall(measured, analyze(measured), ())
    drops = {drop.name: drop.seconds for drop in fall.drops}
    zero = dict.fromkeys(("launch-delay", "unexplained", "p2p"), 0.0)
    expected = zero | {"collectives": 0.07, "bubble": 0.3 * (pp - 1)}
    assert drops == pytest.approx(expected, abs=1e-9)
    assert fall.compute_s == pytest.approx(0.3 * microbatches)
    assert fall.actual_s == pytest.approx(0.3 * (microbatches + pp - 1) + 0.07)


def test_noise_of_short_computes_does_not_dilute_the_factor_of_a_worker():
    base_s = {**BASE_S, OpKind.FORWARD_COMPUTE: 0.080, OpKind.BACKWARD_COMPUTE: 0.003}
    spec = SynthSpec(
        dp=2, pp=1, microbatches=1, steps=30, base_s=base_s, slow_workers=(SlowWorker(1, 0, 3.7),)
    )
    trace = synthesize(spec)
    rng = np.random.default_rng(0)
    backward = np.flatnonzero(trace.kind == OpKind.BACKWARD_COMPUTE)
    # The slow worker's short backwards happen to be faster than the other's.
    share = rng.uniform(0.1, 1.0, len(backward)) / np.where(trace.dp[backward] == 1, 6.0, 1.0)
    trace.end[backward] = trace.start[backward] + share * (trace.end - trace.start)[backward]
    measured = from_trace(trace)
    cause = worker_cause(measured.durations, fit_computes(measured.durations), measured.steps)
    assert cause.where["workers"] == [[1, 0]]
    assert cause.evidence["factors"][0] == pytest.approx(3.7, rel=0.05)


@pytest.mark.parametrize("backward", [0.85, 1.0, 1.1])
def test_of_two_replicas_the_one_that_is_slow_in_its_forwards_alone_is_named(backward):
    """As of a real DDP job of two ranks, of which one did more in its forward passes."""
    base_s = {**BASE_S, OpKind.FORWARD_COMPUTE: 0.040, OpKind.BACKWARD_COMPUTE: 0.080}
    spec = SynthSpec(
        dp=2, pp=1, microbatches=1, steps=30, base_s=base_s, slow_workers=(SlowWorker(1, 0, 10.0),)
    )
    trace = synthesize(spec)
    at = np.flatnonzero((trace.kind == OpKind.BACKWARD_COMPUTE) & (trace.dp == 1))
    trace.end[at] = trace.start[at] + backward / 10.0 * (trace.end - trace.start)[at]
    measured = from_trace(trace)
    cause = worker_cause(measured.durations, fit_computes(measured.durations), measured.steps)
    assert cause is not None
    assert cause.where == {"workers": [[1, 0]]}
    healthy_s = 0.040 + 0.080 * min(backward, 1.0)
    factor = (10.0 * 0.040 + backward * 0.080) / healthy_s
    assert cause.evidence["factors"] == pytest.approx([factor], rel=0.1)
