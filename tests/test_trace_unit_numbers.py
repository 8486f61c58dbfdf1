"""Units of gathers and reductions that a trace does not tell: jobs of another simulator, run with
the change, with the units told and not.
"""

from dataclasses import replace

import numpy as np
import pytest

import paceline
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case
from paceline.whatif import analyze
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs
from sharded_jobs import BucketedJob, HybridJob, ShardedJob

KEEP = next(kind for kind in REMEDIES if kind.name == "keep-parameters")

#: Units as unlike as an embedding and a norm, and no other variation to speak of.
UNLIKE = {"uneven": 1.0, "gather_s": 0.04, "scatter_s": 0.04, "jitter": 0.005}


def traces(job):
    """(with the units told, with none told)."""
    told, untold = (trace_of_runs(job.runs(), drop=drop) for drop in ((), ("part",)))
    return told, untold


def case_of(trace):
    measured = from_trace(trace, keep_clocks=True)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


@pytest.mark.parametrize(
    "job",
    [
        ShardedJob(units=4, **UNLIKE),
        ShardedJob(units=5, ahead=1, microbatches=2, **UNLIKE, seed=1),
        HybridJob(units=3, shard=2, dp=4, uneven=1.0, jitter=0.005, unit_s=0.2),
        BucketedJob(layers=15, per_bucket=4, jitter=0.005, layer_s=0.04),
    ],
)
def test_unlike_units_are_no_slowness(job):
    told, untold = (analyze(from_trace(t, keep_clocks=True)) for t in traces(job))
    assert told.slowdown < 1.03
    assert untold.slowdown == pytest.approx(told.slowdown, abs=0.01)


@pytest.mark.parametrize(("microbatches", "ahead"), [(1, 0), (1, 1), (2, 1), (3, 2)])
def test_parameters_that_are_kept(microbatches, ahead):
    job = ShardedJob(units=4, microbatches=microbatches, ahead=ahead, **UNLIKE, seed=3)
    promises = [KEEP.proposed(case_of(trace)) for trace in traces(job)]
    true_s = replace(job, reshard=False).step_s()
    for promise in promises:
        assert promise.step_time_s == pytest.approx(true_s, rel=0.01)
        assert promise.change == {
            "gathers_dropped": 4 * microbatches,
            "gathers": 8 * microbatches,
        }


def numbers(trace, label):
    """Numbers of one kind's ops on the first worker, in the order of their launches."""
    mine = (trace.kind == paceline.OpKind.from_label(label)) & (trace.dp == 0) & (trace.pp == 0)
    order = np.argsort(trace.program.issued[mine])
    return trace.program.part[mine][order].tolist()


def test_numbers_by_hand():
    """Three units: gathered forwards and backwards, then reduced, in each of two microbatches."""
    _, untold = traces(ShardedJob(units=3, dp=2, microbatches=2, steps=1))
    assert numbers(untold, "params-all-gather") == [0, 1, 2, 3, 4, 5] * 2
    assert numbers(untold, "grads-reduce-scatter") == [0, 1, 2] * 2
    assert numbers(untold, "optimizer") == [0]


def test_told_units_stay():
    told, _ = traces(ShardedJob(units=3, dp=2, microbatches=2, steps=1))
    assert numbers(told, "params-all-gather") == [0, 1, 2, 2, 1, 0] * 2
    assert numbers(told, "grads-reduce-scatter") == [2, 1, 0] * 2


def test_gathers_behind_the_last_pass():
    """ZeRO 1 gathers what the optimizer has updated: no pass of the step needs that."""
    program = [Compute("forward-compute", 0, 0), Compute("backward-compute", 0, 0)]
    program += [Compute("optimizer")]
    for name in "ab":
        program += [Launch("params-all-gather", name), Wait(name)]
    run = Run({(dp, 0): program for dp in range(2)}, lambda key: 1.0 + key[2])
    trace = trace_of_runs([run], drop=("part",))
    assert numbers(trace, "params-all-gather") == [0, 1]
    assert analyze(from_trace(trace)).slowdown == pytest.approx(1.0)
