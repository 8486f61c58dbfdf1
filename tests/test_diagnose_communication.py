"""Exposed, hidden and waited communication against jobs run without those transfers."""

from dataclasses import dataclass, replace

import pytest

from paceline.diagnose import communication, diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.page.communication import communication_html
from paceline.report.page.path import path_html
from paceline.report.terminal import screen
from paceline.results.document import JobReport
from paceline.synth import SynthSpec, synthesize
from paceline.whatif import analyze
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs
from sharded_jobs import BucketedJob, ShardedJob

GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"


@dataclass(frozen=True)
class WithoutUnit(ShardedJob):
    """The job, one sort of its transfers taking no time."""

    sort: str = ""
    unit: int | None = None

    def seconds(self, step, dp, name):
        gone = name[0] == self.sort and self.unit in (None, name[-1])
        return 0.0 if gone else super().seconds(step, dp, name)


def told_of(job):
    measured = from_trace(job.trace(), keep_clocks=True)
    return communication(measured, analyze(measured))


def without(job, sort, unit=None):
    return WithoutUnit(**vars(job), sort=sort, unit=unit).step_s()


@pytest.mark.parametrize(
    "job",
    [
        ShardedJob(jitter=0.1),
        ShardedJob(ahead=1, microbatches=2, slow={1: 1.5}),
        ShardedJob(blocking=True, blocking_scatters=True, units=3),
    ],
)
def test_exposed_is_what_the_job_is_shorter_without_the_transfers(job):
    told, now_s = told_of(job), job.step_s()
    sorts = {GATHER: "gather", SCATTER: "scatter"}
    assert told.step_s == pytest.approx(now_s)
    for exposure in told.by_part:
        true_s = now_s - without(job, sorts[exposure.kind], exposure.part)
        assert exposure.exposed_s == pytest.approx(max(true_s, 0), abs=1e-9)
        assert exposure.exposed_s <= exposure.transfer_s + 1e-9
        assert exposure.hidden_s == pytest.approx(exposure.transfer_s - exposure.exposed_s)
    for exposure in told.by_kind:
        true_s = now_s - without(job, sorts[exposure.kind])
        assert exposure.exposed_s == pytest.approx(true_s, abs=1e-9)
    assert len(told.by_part) == 2 * job.units


def test_waits_by_hand():
    """Rank 1 computes 1 s longer. G takes 2 s, beside 1 s of forward: 1 s exposed, rank 0 waits 2.

    The second gather hides behind the backward of 4 s; nobody waits for it.
    """
    program = [
        Launch(GATHER, "a", 0),
        Compute("forward-compute", 0, 0),
        Wait("a"),
        Launch(GATHER, "b", 1),
        Compute("backward-compute", 0, 0),
        Wait("b"),
        Compute("optimizer"),
    ]
    took = (2.0, 1.0, 3.0, 4.0, 1.0)
    run = Run({(dp, 0): program for dp in (0, 1)}, lambda key: took[key[2]] + (key == (1, 0, 3)))
    told = communication(
        measured := from_trace(trace_of_runs([run] * 4), keep_clocks=True), analyze(measured)
    )
    first, second = told.by_part
    assert (first.transfer_s, first.exposed_s, first.waited_s) == pytest.approx((2.0, 1.0, 1.0))
    assert (second.transfer_s, second.exposed_s, second.waited_s) == pytest.approx((3.0, 0.0, 0.0))
    (both,) = told.by_kind
    assert (both.count, both.part, both.exposed_s) == (2, None, pytest.approx(1.0))
    assert told.exposed_s == pytest.approx(1.0)


def test_waits_for_peers_are_no_transfer():
    """Rank 1 reaches the reduction 2 s later: rank 0 waits 3 s for a transfer of 1 s."""
    program = [
        Compute("forward-compute", 0, 0),
        Compute("backward-compute", 0, 0),
        Launch(SCATTER, "s", 0),
        Wait("s"),
        Compute("optimizer"),
    ]
    took = (1.0, 2.0, 1.0, 0.5)
    run = Run(
        {(dp, 0): program for dp in (0, 1)}, lambda key: took[key[2]] + 2 * (key == (1, 0, 1))
    )
    measured = from_trace(trace_of_runs([run] * 4), keep_clocks=True)
    (told,) = communication(measured, analyze(measured)).by_part
    assert (told.transfer_s, told.exposed_s) == pytest.approx((1.0, 1.0))
    assert told.waited_s == pytest.approx((3.0 + 1.0) / 2)


CAUSES = {
    "first-gather-exposed": (ShardedJob(units=3), ShardedJob(units=12, gather_s=0.001)),
    "prefetch-late": (ShardedJob(), ShardedJob(ahead=1)),
    "bucket-too-large": (BucketedJob(per_bucket=8), BucketedJob(per_bucket=1, layer_s=0.001)),
    "reduced-each-microbatch": (
        ShardedJob(microbatches=3, blocking_scatters=True),
        ShardedJob(microbatches=3, blocking_scatters=True, every=False),
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_an_arrangement_is_told_where_it_is(cause):
    arranged, other = CAUSES[cause]
    (finding,) = [f for f in told_of(arranged).findings if f.cause == cause]
    assert finding.share is None
    assert finding.confidence > 0.9
    assert finding.interval[0] <= finding.share_of_step <= finding.interval[1]
    assert cause not in {f.cause for f in told_of(other).findings}


def test_what_an_arrangement_costs_is_what_the_job_gains_without_it():
    job = ShardedJob(uneven=0.0, jitter=0.0, ahead=0)
    costs = {finding.cause: finding.share_of_step for finding in told_of(job).findings}
    ahead_s = replace(job, ahead=1).step_s()
    assert costs["prefetch-late"] == pytest.approx(1 - ahead_s / job.step_s(), rel=0.02)


def test_arrangements_make_no_healthy_job_ill():
    measured = from_trace(ShardedJob().trace(), keep_clocks=True)
    result = analyze(measured)
    diagnosis = diagnose(measured, result)
    assert not diagnosis.findings
    report = JobReport.of(result, advise(Case(measured, result, diagnosis), REMEDIES))
    assert report.healthy
    assert report.communication.findings


def test_the_document_holds_it_and_older_ones_do_without():
    measured = from_trace(ShardedJob(units=3).trace(), keep_clocks=True)
    result = analyze(measured)
    case = Case(measured, result, diagnose(measured, result))
    report = JobReport.of(result, advise(case, REMEDIES))
    document = report.to_mapping()
    assert JobReport.from_mapping(document) == report
    part = document["communication"]["by_part"][0]
    assert part["hidden_s"] == pytest.approx(part["transfer_s"] - part["exposed_s"])
    del document["communication"]
    assert JobReport.from_mapping(document).communication is None


def test_pipelines_of_whole_passes_have_none():
    measured = from_trace(synthesize(SynthSpec(dp=2, pp=2, microbatches=4, steps=3)))
    result = analyze(measured)
    assert communication(measured, result) is None
    case = Case(measured, result, diagnose(measured, result))
    assert "communication" not in JobReport.of(result, advise(case, REMEDIES)).to_mapping()


def _report(job):
    measured = from_trace(job.trace(), keep_clocks=True)
    result = analyze(measured)
    advice = advise(Case(measured, result, diagnose(measured, result)), REMEDIES)
    return JobReport.of(result, advice), measured


def test_readers_of_a_ddp_job_see_a_gradient_all_reduce():
    """Files keep the label of the kind; sharded jobs have a reduce-scatter indeed."""
    name = "gradient all-reduce"
    for job, all_reduces in ((BucketedJob(), True), (ShardedJob(), False)):
        report, measured = _report(job)
        assert report.all_reduces is all_reduces
        assert measured.graph.kind_name(SCATTER) == (name if all_reduces else SCATTER)
        text = " ".join("\n".join(line.plain for line in screen(report, 120, colour=False)).split())
        assert (name in text) is all_reduces
        assert (SCATTER in text) is not all_reduces
        assert SCATTER in report.by_kind
        stored = report.to_mapping()
        assert ("all_reduces" in stored["communication"]) is all_reduces
        assert JobReport.from_mapping(stored).all_reduces is all_reduces
        kinds = path_html(report.critical_path, report.job, report.all_reduces)["path_kinds"]
        assert (SCATTER in kinds) is not all_reduces
        assert (name in communication_html(report.communication)) is all_reduces
        assert not any(SCATTER in w.text for w in report.warnings) or not all_reduces


def test_a_backward_in_one_piece_does_not_tell_how_gradients_are_reduced():
    """On a GPU only what is behind the backward is recorded; the optimizer may gather."""
    program = [Compute("forward-compute", 0, 0), Compute("backward-compute", 0, 0)]
    program += [Launch(SCATTER, "g"), Wait("g"), Compute("optimizer")]
    programs = dict.fromkeys([(dp, 0) for dp in range(4)], program)
    runs = [Run(programs, lambda key: 0.05) for _ in range(3)]
    graph = from_trace(trace_of_runs(runs), keep_clocks=True).graph
    assert graph.programmed
    assert graph.kind_name(SCATTER) == SCATTER
