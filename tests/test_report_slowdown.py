"""What is said of S and the waste: bounds among few peers, what lasts and what passes."""

import random
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.page.fall import key_numbers
from paceline.report.page.findings import findings_html, remedies_html
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.results.headline import MIN_PASSING, details, headline, is_healthy
from paceline.results.words.shares import lost_s, share_of_loss
from paceline.synth import SlowLink, SlowWorker, SynthSpec, synthesize
from paceline.units import percent, seconds
from paceline.whatif import analyze
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs


def reported(trace, **options):
    """The report of a trace with its diagnosis."""
    measured = from_trace(trace, **options)
    result = analyze(measured)
    return JobReport.of(
        result, advise(Case(measured, result, diagnose(measured, result)), REMEDIES)
    )


@cache
def of_two_replicas(factor=2.0, dp=2, noise=0.003, **more):
    """The report of a job with one stage, whose replica 1 is slow by the factor."""
    slow = (SlowWorker(1, 0, factor),) if factor > 1 else ()
    spec = SynthSpec(dp=dp, pp=1, microbatches=8, steps=12, noise=noise, slow_workers=slow, **more)
    return reported(synthesize(spec))


def flowing(report):
    return " ".join(" ".join(line.plain for line in screen(report, 100, colour=False)).split())


def test_the_ideal_of_two_replicas_is_told_as_an_interval():
    slow, sound = of_two_replicas(), of_two_replicas(factor=1.0)
    healthy, mean = (seconds(float(r.ideal_s.mean())) for r in (sound, slow))
    # The two intervals differ by noise in the third digit.
    assert slow.healthy_step_s == pytest.approx(float(sound.ideal_s.mean()), rel=0.003)
    told = seconds(slow.healthy_step_s)
    low, high = 1 - 1 / slow.slowdown, 1 - 1 / slow.slowdown_healthy
    for text in (flowing(slow), key_numbers(slow, None)):
        assert f"{told} to {mean}" in text
        assert f"{percent(low)} to {percent(high)}" in text
        assert f"comes from all peers, including the slow workers ({mean})" in text
        assert f"as fast as the others ({told}). Of two replicas, the trace cannot show" in text
        assert f"{slow.slowdown:.3f} to {slow.slowdown_healthy:.3f}" in text
    assert f"{slow.slowdown:.2f} to {slow.slowdown_healthy:.2f} times as long" in flowing(slow)
    assert headline(slow).startswith(
        f"This job wastes {percent(low, 0)} to {percent(high, 0)} of its GPUs: worker dp 1"
    )
    assert "no contradiction" not in flowing(slow)
    assert f"T_ideal {healthy}, simulated T" in flowing(sound)


def test_cost_and_repair_of_one_slow_replica_are_one_number():
    report = of_two_replicas()
    (worker,) = [f for f in report.findings if f.cause == "worker"]
    (repair,) = [r for r in report.remedies if r.remedy == "replace-worker"]
    assert worker.share_of_step == pytest.approx(repair.gain, abs=0.005)
    assert worker.share == pytest.approx(share_of_loss(report, repair), abs=0.01)


def test_two_replicas_without_a_diagnosis_have_an_ideal_of_at_most_their_mean():
    report = replace(of_two_replicas(), findings=None, slowdown_healthy=None)
    ideal = seconds(float(report.ideal_s.mean()))
    assert f"T_ideal at most {ideal}, simulated T" in flowing(report)


def test_a_slow_worker_among_many_moves_the_ideal_too_little_to_be_told():
    report = of_two_replicas(factor=1.3, dp=40)
    assert 1 < report.slowdown_healthy / report.slowdown < report.MIN_BOUND
    assert " to " not in flowing(report).partition("why:")[0].partition(" steps, ")[2][8:]


def test_s_without_the_slow_workers_survives_the_document():
    report = of_two_replicas()
    document = report.to_mapping()
    assert document["slowdown_healthy"] == pytest.approx(report.slowdown_healthy)
    assert JobReport.from_mapping(document) == report
    older = {key: value for key, value in document.items() if key != "slowdown_healthy"}
    assert JobReport.from_mapping(older).healthy_step_s == pytest.approx(report.ideal_s.mean())


@cache
def in_parts(jitter, slow_from=None, slow_until=None):
    """Four ranks whose passes come in six parts, a tenth of which take ``jitter`` as long.

    Rank 1 takes twice as long from step ``slow_from`` on, or until step ``slow_until``.
    """
    program = []
    for kind in ("forward-compute", "backward-compute"):
        for part in range(6):
            name = (kind, part)
            program += [Compute(kind, 0, 0), Launch("grads-reduce-scatter", name, part), Wait(name)]
    ops = [op for op in program if not isinstance(op, Wait)]

    def op_s(step, key):
        dp, _, nth = key
        if not isinstance(ops[nth], Compute):
            return 0.002
        slow = slow_from is not None and step >= slow_from
        slow |= slow_until is not None and step < slow_until
        rng = random.Random(f"{step} {dp} {nth}")
        late = jitter if rng.random() < 0.1 else 1.0
        return 0.05 * late * (2.0 if slow and dp == 1 else 1.0)

    programs = dict.fromkeys([(dp, 0) for dp in range(4)], program)
    runs = [Run(programs, partial(op_s, step)) for step in range(24)]
    return reported(trace_of_runs(runs), keep_clocks=True)


def test_an_even_job_with_noise_has_one_statement_of_its_waste():
    report = in_parts(jitter=1.8)
    assert is_healthy(report)
    assert report.waste > 0.1
    lasting, passing = report.waste - report.passing_share, report.passing_share
    assert abs(lasting) < 0.02
    assert passing == pytest.approx(report.waste - lasting)
    parts = (
        f"No lasting straggler ({percent(max(lasting, 0))} of the GPU time); variation that passes "
        f"from worker to worker costs {percent(passing)}"
    )
    assert headline(report) == f"{parts}."
    assert parts in flowing(report)
    assert "Healthy" not in flowing(report)
    split = f"{percent(lasting)} lasts, {percent(passing)} is variation that passes"
    told = f"Of the {percent(report.waste)} waste, {split.replace(',', ' and')}. Without it, S is"
    assert f"{told} {report.lasting_slowdown:.3f}." in flowing(report)
    assert split in key_numbers(report, None)


@pytest.mark.parametrize(("slow_from", "passes"), [(20, True), (12, False)])
def test_the_first_line_blames_no_stragglers_for_variation_that_passes(slow_from, passes):
    """A newcomer read "Stragglers make steps 1.24 times as long" of a healthy FSDP2 job."""
    report = in_parts(jitter=1.8, slow_from=slow_from)
    text = flowing(report)
    assert (report.passing_share > report.waste / 2) is passes
    assert ("mostly by variation that passes; without it, S is 1.0" in text) is passes
    assert ("Stragglers make steps " in text) is not passes


def test_an_even_job_without_noise_is_healthy():
    report = in_parts(jitter=1.02)
    assert flowing(report).count("Healthy: lasting stragglers make steps") == 1
    assert headline(report).startswith("Healthy, within what these traces can show")


def test_passing_variation_has_one_basis_with_a_diagnosis_and_without():
    report = in_parts(jitter=1.8, slow_from=0)
    undiagnosed = replace(report, findings=None, waterfall=None, slowdown_healthy=None)
    assert report.findings[0].cause == "worker"
    passing = percent(report.passing_share)
    assert passing == percent(undiagnosed.passing_share)
    told = f"Of the {percent(report.waste)} waste, {passing} is variation that passes. Without it,"
    assert told in flowing(report)
    ideal = f"and {report.largest_slowdown:.3f} if the slow workers were as fast as the others"
    assert ideal in flowing(report)
    numbers = f"{report.largest_slowdown:.3f} waste = 1 - 1/S = {percent(report.waste)} to"
    assert numbers in flowing(report)
    assert f"{passing} is variation that passes" in flowing(undiagnosed)
    # The waterfall repairs the worker first, which no longer hides the others' variation.
    assert report.other_passing_s > 1.1 * report.passing_s
    assert f"variation that passes would cost {seconds(report.other_passing_s)}" in flowing(report)
    for shown in (report, undiagnosed):
        assert f"without variation that passes, S is {shown.slowdown_lasting:.2f}" in flowing(shown)
        assert f"Stragglers make steps {shown.slowdown:.2f}" in flowing(shown)
    of_waste = f"Of the {percent(report.waste)} waste, {passing} is variation that passes."
    assert (of_waste in details(report)) is (report.passing_share >= MIN_PASSING)


@pytest.mark.parametrize("slow_from", [20, 12])
def test_the_rows_of_the_why_table_have_one_base(slow_from):
    """A row had 10.2% of the step and 49.2% of the loss, the next one 8.4% and 50.8%."""
    report = in_parts(jitter=1.8, slow_from=slow_from)
    lost = lost_s(report)
    (rest,) = [f for f in report.findings if f.cause == "unexplained"]
    (drop,) = [d for d in report.waterfall.drops if d.name == "unexplained"]
    assert rest.share * lost == pytest.approx(drop.seconds)
    inside = [f.share for f in report.findings if f.share is not None]
    assert sum(inside) + report.other_passing_s / lost == pytest.approx(1.0)
    for finding in report.findings:
        if finding.share is not None:
            of_step = finding.share * lost / report.lasted_s
            assert finding.share_of_step == pytest.approx(of_step)
    passing_s = report.other_passing_s
    assert passing_s >= MIN_PASSING * report.lasted_s
    row = f"{percent(passing_s / report.lasted_s)} {percent(passing_s / lost)} variation that pas"
    assert row in flowing(report)


def test_variation_that_a_finding_explains_counts_for_the_verdict():
    report = in_parts(jitter=1.8)
    drops = tuple(
        replace(drop, seconds=0.0) if drop.name == "passing-variation" else drop
        for drop in report.waterfall.drops
    )
    explained = replace(report, waterfall=replace(report.waterfall, drops=drops))
    assert not report.straggling
    assert explained.straggling
    assert explained.passing_share == report.passing_share
    assert explained.judged_slowdown == pytest.approx(report.slowdown)


@pytest.mark.parametrize(
    ("when", "told", "slow"),
    [
        ({"slow_from": 12}, "steps become ", "is slow"),
        ({"slow_until": 12}, "the steps before step 12 take ", "was slow"),
    ],
)
def test_a_change_by_a_slow_worker_is_a_part_of_its_fault(when, told, slow):
    report = in_parts(jitter=1.05, **when)
    worker, change = (
        next(f for f in report.findings if f.id == name) for name in ("worker", "change-point")
    )
    assert worker.where["workers"] == [[1, 0]]
    assert change.part_of == "worker"
    # It names the same seconds, which are therefore not told a second time.
    assert change.share_of_step == pytest.approx(worker.share_of_step, abs=0.03)
    assert f"{percent(change.share_of_step)} " not in flowing(report).replace(
        f"{percent(worker.share_of_step)} ", ""
    )
    assert f"– – part of the worker fault above: {told}" in flowing(report)
    assert 'href="#finding-worker">Part of the worker fault above</a>' in findings_html(report)
    assert f"worker dp 1, stage 0 {slow}" in headline(report)


def test_the_first_steps_of_a_job_that_becomes_faster_cost_time():
    report = in_parts(jitter=1.05, slow_until=12)
    assert all(f.share_of_step >= 0 for f in report.findings)


@pytest.mark.parametrize(("share", "is_reason"), [(0.49, False), (0.5, True)])
def test_the_headline_gives_a_part_of_the_loss_no_reason_for_all_of_it(share, is_reason):
    report = of_two_replicas()
    (worker,) = [f for f in report.findings if f.cause == "worker"]
    part = replace(worker, share=share, share_of_step=0.07)
    text = headline(replace(report, findings=(part,)))
    assert (" of its GPUs: worker dp 1" in text) is is_reason
    assert (" of its GPUs, 7% of the step because worker dp 1" in text) is not is_reason


MASKED = "After a repair of the worker fault alone, steps still wait for the other causes."


@pytest.mark.parametrize(("last_stage", "is_masked"), [(1.3, True), (1.0, False)])
def test_a_repair_that_another_cause_hides_is_explained(last_stage, is_masked):
    spec = SynthSpec(
        dp=4,
        pp=4,
        microbatches=8,
        steps=6,
        noise=0.003,
        slow_workers=(SlowWorker(3, 1, 1.3),),
        slow_last_stage=(last_stage, last_stage),
    )
    report = reported(synthesize(spec))
    (repair,) = [r for r in report.remedies if r.remedy == "replace-worker"]
    (worker,) = [f for f in report.diagnosis.findings if f.cause == "worker"]
    assert (repair.gain < worker.share_of_step / 2) is is_masked
    assert (MASKED in flowing(report)) is is_masked
    assert (MASKED in remedies_html(report)) is is_masked
    document = report.to_mapping()
    assert document.get("masked") == (["worker"] if is_masked else None)
    assert (MASKED in flowing(JobReport.from_mapping(document))) is is_masked


def test_any_repair_of_hardware_may_be_hidden_by_another_cause():
    """A link beside a slow last stage: the remedy is no replacement."""
    spec = SynthSpec(
        dp=4,
        pp=4,
        microbatches=8,
        steps=6,
        noise=0.003,
        slow_links=(SlowLink(3, 1, 8.0),),
        slow_last_stage=(1.6, 1.6),
    )
    report = reported(synthesize(spec))
    (repair,) = [r for r in report.remedies if r.remedy == "fix-link"]
    (link,) = [f for f in report.diagnosis.findings if f.cause == "link"]
    assert repair.gain < link.share_of_step / 2
    assert report.masked == ("link",)
    assert MASKED.replace("worker fault", "slow link") in flowing(report)


@pytest.mark.parametrize(("gain", "is_named"), [(0.061, True), (0.034, False), (0.02, False)])
def test_a_small_fault_whose_repair_ends_the_delays_is_named(gain, is_named):
    """A link slow by 4 of an interleaved pipeline: 1.8% within S, but its repair gains 6.1%."""
    spec = SynthSpec(dp=2, pp=2, microbatches=6, steps=12, slow_links=(SlowLink(0, 0, 5.0),))
    report = reported(synthesize(spec))
    (link,) = [f for f in report.findings if f.cause == "link"]
    (repair,) = [r for r in report.remedies if r.remedy == "fix-link"]
    delays = replace(link, id="launch-delay", cause="launch-delay", share=None, where={})
    report = replace(
        report,
        slowdown_healthy=None,
        slowdown=1.01,
        waste=0.01,
        launch_slowdown=1.07,
        findings=(replace(link, share_of_step=0.018), replace(delays, share_of_step=0.069)),
        remedies=(replace(repair, gain=gain),),
    )
    assert not report.straggling
    assert ("the link of dp 0, stages 0 and 1 is slow" in headline(report)) is is_named
    assert ("passes between operations" in headline(report)) is not is_named


def test_time_between_the_steps_is_no_health():
    """Ranks that all wait for data in front of a step are late together: no step is longer."""
    trace = synthesize(SynthSpec(dp=4, pp=1, microbatches=4, steps=12, noise=0.003))
    step_s = trace.traced_step_s()
    for wait_s in (0.0, 0.5 * float(step_s.mean())):
        starts = np.cumsum(step_s + wait_s) - step_s
        report = reported(replace(trace, step_start_s=starts))
        assert is_healthy(report)
        waits = wait_s > 0
        assert headline(report).startswith("Healthy") is not waits
        told = "Pauses between steps take 33.3% of the time (checkpoint, evaluation, data loading?)"
        assert headline(report).startswith(told) is waits
        assert (told in flowing(report)) is waits
        assert ("Healthy: " in flowing(report)) is not waits
