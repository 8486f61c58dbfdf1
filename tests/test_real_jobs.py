"""Real jobs of four gloo ranks, one of them slow: FSDP, DDP, pipelines, DeepSpeed, Megatron-Core.

What is asserted holds on a busy machine, too; ``benchmarks/real_jobs.py`` holds S against the
measured times of the same jobs without the slow rank.
"""

import sys
from pathlib import Path

import pytest

import paceline
import requires
from paceline.comparison.analysis import compare
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies.prefetch import gather_ahead
from paceline.remedies.programs import Replica, needed_gathers, without
from paceline.remedies.reshard import gathered_again

requires.installed("torch")
sys.path.insert(0, str(Path(__file__).parent / "real_jobs"))

from harness import Job, factors_of, run_all

pytestmark = pytest.mark.alone

#: Case -> whether stages, not replicas, are the workers. ``benchmarks/real_jobs.py`` has more.
CASES = {
    "fsdp-prefetch2": False,
    "hsdp": False,
    "ddp": False,
    "zbv": True,
    "tp-fsdp": False,
    "zero1": False,
    "zero2-accumulate": False,
    "zero3-single": False,
    "zero3-plusplus": False,
    "megatron-overlap": False,
    "megatron-experts": False,
    "megatron-p2p": True,
    "megatron-both": False,
}


#: What runs in processes of its own, for it changes torch or needs a package -> the package.
APART = {"zero": "deepspeed", "megatron": "megatron.core"}

#: Cases of two groups of two ranks, which meet by neighbours and by turns.
GROUPED = ("hsdp", "zero3-plusplus", "megatron-experts")

#: Cases whose programs are compared, with that of fsdp-prefetch2.
CHANGED = ("fsdp", "fsdp-keep")

#: Cases in which the kernel paces what rank 1 sends -> bytes a second; layers sleep half as long.
SLOW_NICS = {"ddp-middle": 16_000_000, "hsdp-middle": 16_000_000, "1f1b-middle": 5_000_000}
HEALTHY_STEPS, SLOW_STEPS = (2, 3, 4), (5, 6, 7, 8)


def both(cases, folder, others=()):
    """Case -> losses plain, and recorded while one rank is slow; behind these run the ``others``.

    Sleeps change no number, so plain has none.
    """
    slow, _, _ = factors_of(3.0)
    plain = [Job(case, folder / case / "plain", [0.0] * len(slow), steps=4) for case in cases]
    recorded = [Job(case, folder / case, slow, "recorded", 4) for case in cases]
    losses = [[told.losses for told in run_all(jobs)] for jobs in (plain, [*recorded, *others])]
    return dict(zip(cases, zip(*losses, strict=False), strict=False))


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """(folder, case -> losses plain and recorded) of all that may share its processes."""
    folder = tmp_path_factory.mktemp("together")
    cases = [case for case in CASES if not case.startswith(tuple(APART))]
    others = [Job(case, folder / case, [1.0] * 4, "recorded", 3) for case in CHANGED]
    steps = 1 + max(SLOW_STEPS)
    others += [
        Job(case, folder / case, [0.5] * 4, "recorded", steps, [(1, rate, [*SLOW_STEPS])])
        for case, rate in SLOW_NICS.items()
    ]
    return folder, both(cases, folder, others)


@pytest.mark.parametrize("case", CASES)
def test_the_slow_rank_of_a_real_job_is_named_and_nothing_changes(case, request, tmp_path):
    apart = [package for name, package in APART.items() if case.startswith(name)]
    if apart:  # what of CUDA is replaced for Megatron: real_jobs/megatron_jobs.py
        requires.installed(*apart)
        folder, losses = tmp_path, both([case], tmp_path)
    else:
        folder, losses = request.getfixturevalue("together")
    plain, recorded = losses[case]
    assert recorded == plain  # bit by bit
    trace = paceline.load(folder / case / "run")
    assert trace.steps.tolist() == [2, 3]  # none is lost
    assert trace.warnings == ()
    measured = from_trace(trace)
    result = paceline.analyze(measured)
    assert measured.graph.programmed
    assert result.replay_error < 0.01
    assert result.discrepancy < 0.05
    by_rank = result.lasting.by_worker.ravel()
    assert by_rank.argmax() == 1
    assert by_rank[1] > 1.3
    first = diagnose(measured, result).findings[0]
    worst = first.where.get("stage", first.where.get("workers", [[None]])[0][0])
    assert (first.cause, worst) == ("stage-imbalance" if CASES[case] else "worker", 1)
    if case in GROUPED:
        kinds = {family: measured.graph.families[family].tolist() for family in (1, 2)}
        assert sorted(kinds.values()) == [[0, 0, 1, 1], [0, 1, 0, 1]]
    if case == "tp-fsdp":
        assert measured.job.peers == 2
        assert "dp 0, stage 0, peer 1" in first.text


@pytest.mark.parametrize("case", SLOW_NICS)
def test_a_slow_nic_is_no_slow_worker_and_its_rank_is_named_where_groups_differ(case, together):
    """Linux paces the sockets of rank 1 from step 5 on (SO_MAX_PACING_RATE)."""
    if sys.platform != "linux":
        pytest.skip("only Linux paces a socket's sends")
    folder, _ = together
    trace = paceline.load(folder / case / "run")
    before, slow = (trace.select_steps(steps) for steps in (HEALTHY_STEPS, SLOW_STEPS))
    measured = from_trace(slow)
    findings = diagnose(measured, paceline.analyze(measured)).findings
    assert not any("workers" in finding.where for finding in findings)
    named = [finding for finding in findings if "in_all" in finding.evidence]
    if case == "ddp-middle":  # all ranks are in one group, and end together: none stands out
        assert named == []
    else:
        assert named
        assert findings[0] is named[0]
        cause, worker = ("link", [0, 1]) if case == "1f1b-middle" else ("dp-network", [1, 0])
        assert (named[0].cause, named[0].evidence["in_all"]) == (cause, worker)
    kinds = compare(before, slow).kinds
    assert max(kinds, key=lambda row: row.change.seconds).name in COMMUNICATION[case]


#: Kinds of which one grows most by a slow NIC.
COMMUNICATION = {
    "ddp-middle": ("grads-reduce-scatter",),
    "hsdp-middle": ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"),
    "1f1b-middle": ("forward-pp-comm", "backward-pp-comm"),
}

#: Computes that are shorter are what torch does between a launch and a wait; layers take 30 ms.
SLIVER_S = 0.015


def program_of(folder):
    measured = from_trace(paceline.load(folder / "run"))
    return Replica.of(measured.programs[0], measured.durations.block(0))


def outline(replica):
    """Launches and waits of collectives by unit, and the passes between them."""
    entries = []
    for step in replica.steps[0]:
        op = step if step >= 0 else ~step
        kind = replica.kind(op).label
        if not replica.is_local(op):
            entries.append((kind, replica.unit(op)[1], "launch" if step >= 0 else "wait"))
        elif replica.typical_s[op] > SLIVER_S and (not entries or entries[-1] != (kind,)):
            entries.append((kind,))
    return entries


def test_changed_programs_are_those_that_torch_runs_with_the_change(together):
    """Parameters that are kept, and gathered two units ahead."""
    folder, _ = together
    kept, ahead = program_of(folder / "fsdp"), program_of(folder / "fsdp")
    without(kept, 0, gathered_again(kept, 0, needed_gathers(kept, 0)))
    assert outline(kept) == outline(program_of(folder / "fsdp-keep"))
    gather_ahead(ahead, 0, 2)
    assert outline(ahead) == outline(program_of(folder / "fsdp-prefetch2"))
    assert outline(program_of(folder / "fsdp")) not in (outline(kept), outline(ahead))
