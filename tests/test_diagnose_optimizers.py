"""Workers whose optimizer alone is slow: named, with what replacing them gains."""

from dataclasses import replace

import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.optimizers import slow_optimizers
from paceline.graph import from_trace
from paceline.mitigate.findings import faults_of
from paceline.remedies import REMEDIES, Case, advise
from paceline.remedies.replace import replace_worker
from paceline.report.page.findings import findings_html
from paceline.results.document import JobReport
from paceline.results.headline import headline
from paceline.results.words.evidence import evidence_phrases
from paceline.synth import Layers, SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import analyze
from recordings import RankStep, data_parallel_job


def case_of(trace):
    measured = from_trace(trace)
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result))


def job(folder, optimizer, ranks=3, forward=None, **kept):
    """Ranks whose optimizer takes ``optimizer[rank]`` ms; ``forward`` [rank] ms."""
    forward = forward or [20.0] * ranks

    def step(_, rank):
        return RankStep(forward=forward[rank], optimizer=optimizer[rank])

    return case_of(data_parallel_job(folder, step, steps=24, ranks=ranks, **kept))


def workers_of(case):
    return [f for f in case.diagnosis.findings if f.cause == "worker"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_host_that_pauses_in_each_optimizer_step(tmp_path, ranks):
    """A newcomer's rank slept 30 ms in each optimizer: "no known pattern" was said of 90%."""
    case = job(tmp_path, [3.0, 33.0, 3.0][:ranks], ranks)
    (worker,) = workers_of(case)
    assert worker.text == (
        "the optimizer of worker dp 1, stage 0 takes 11.00x as long as its peers' (33.0 ms, "
        "peers 3.00 ms)"
    )
    assert (worker.where["workers"], worker.evidence["steps"]) == ([[1, 0]], "all")
    assert (worker.confidence > 0.99, worker.ambiguous) == (True, "")
    before_s = float(case.result.simulated_s.mean())
    assert worker.cost_s.mean() == pytest.approx(0.030, rel=0.02)
    assert worker.share > 0.9
    assert replace_worker(case).gain == pytest.approx(0.030 / before_s, rel=0.02)
    # The ideal of the paper is the mean of all ranks; beside healthy ranks, S is larger.
    healthy_s = before_s - 0.030
    low, high = case.result.slowdown, float(case.diagnosis.healthy.step_s.mean())
    assert low < before_s / high == pytest.approx(before_s / healthy_s, rel=0.02)


def test_the_words_name_the_optimizer(tmp_path):
    case = job(tmp_path, [3.0, 33.0, 3.0])
    report = JobReport.of(case.result, advise(case, REMEDIES))
    assert "the optimizer of worker dp 1, stage 0 is slow" in headline(report)
    phrases = evidence_phrases(workers_of(case)[0])
    assert phrases[0].startswith("its optimizer takes 33.0 ms a step, that of its peers 3.00 ms")
    assert faults_of(case) == ()  # no microbatch is moved away: its computes are healthy


def test_a_rest_below_zero_has_no_card(tmp_path):
    case = job(tmp_path, [3.0, 33.0, 3.0])
    report = JobReport.of(case.result, advise(case, REMEDIES))
    (worker,) = workers_of(case)
    rest = replace(worker, id="unexplained", cause="unexplained", text="no known pattern")
    cards = [
        findings_html(replace(report, findings=(worker, replace(rest, share_of_step=share))))
        for share in (-0.003, 0.05)
    ]
    assert ["finding-unexplained" in html for html in cards] == [False, True]


def test_a_worker_that_is_slow_in_all_it_does_is_one_finding(tmp_path):
    case = job(tmp_path, [3.0, 9.0, 3.0], forward=[20.0, 40.0, 20.0])
    (worker,) = workers_of(case)
    assert worker.evidence["factors"][0] > 1.1
    assert worker.evidence["optimizer_factors"] == [pytest.approx(3.0, rel=0.01)]
    assert worker.text == "worker dp 1, stage 0 is 1.33x slow, its optimizer 3.00x"
    before_s = float(case.result.simulated_s.mean())
    assert replace_worker(case).gain == pytest.approx(0.026 / before_s, rel=0.03)


def test_beside_slow_computes_of_another_worker(tmp_path):
    """Both are told, and each remedy gains what its own fault costs."""
    case = job(tmp_path, [3.0, 33.0, 3.0], forward=[20.0, 20.0, 44.0], meets=True)
    optimizer, worker = workers_of(case)
    assert (optimizer.id, optimizer.where["workers"]) == ("optimizer", [[1, 0]])
    assert (worker.id, worker.where["workers"]) == ("worker", [[2, 0]])
    assert optimizer.cost_s.mean() == pytest.approx(0.030, rel=0.02)
    assert worker.cost_s.mean() == pytest.approx(0.024, rel=0.03)
    assert optimizer.share + worker.share == pytest.approx(1, abs=0.02)
    before_s = float(case.result.simulated_s.mean())
    remedies = {remedy.remedy: remedy for remedy in advise(case, REMEDIES).remedies}
    mended, replaced = remedies["mend-optimizer"], remedies["replace-worker"]
    assert mended.gain == pytest.approx(0.030 / before_s, rel=0.02)
    assert replaced.gain == pytest.approx(0.024 / before_s, rel=0.03)
    assert (mended.findings, replaced.findings) == (("optimizer",), ("worker",))
    assert mended.change["workers"] == [[1, 0]]
    assert replaced.change["workers"] == [[2, 0]]
    assert [fault.worker for fault in faults_of(case)] == [(2, 0)]


def test_a_late_end_hides_behind_slow_computes(tmp_path):
    """Without a barrier, rank 1 begins 30 ms late while rank 2 computes 24 ms longer: 97 ms a step.

    Without the slow optimizer rank 2 sets the pace (91 ms). Without the slow computes rank 1 still
    does. By themselves, steps would count both: 121 ms.
    """
    case = job(tmp_path, [3.0, 33.0, 3.0], forward=[20.0, 20.0, 44.0])
    remedies = {remedy.remedy: remedy for remedy in advise(case, REMEDIES).remedies}
    mended, replaced = remedies["mend-optimizer"], remedies["replace-worker"]
    assert mended.gain == pytest.approx(6 / 97, abs=0.003)
    assert mended.step_time_s == pytest.approx(0.091, abs=0.001)
    assert replaced.gain == pytest.approx(0, abs=0.003)


def test_beside_another_worker_that_becomes_slow(tmp_path):
    """The optimizer is slow in all steps; the computes are from step 12 on."""

    def step(number, rank):
        slow = rank == 2 and number >= 12
        optimizer = 33.0 if rank == 1 else 3.0
        return RankStep(forward=44.0 if slow else 20.0, optimizer=optimizer)

    case = case_of(data_parallel_job(tmp_path, step, steps=24, ranks=3, meets=True))
    optimizer, worker = workers_of(case)
    assert (optimizer.id, optimizer.evidence["steps"]) == ("optimizer", "all")
    assert (worker.id, worker.evidence["steps"]) == ("worker", list(range(12, 24)))
    assert optimizer.cost_s.mean() == pytest.approx(0.030, rel=0.02)
    assert worker.cost_s.mean() == pytest.approx(0.012, rel=0.05)


def test_sharded_jobs_tell_both(tmp_path):
    """FSDP: an optimizer 11 times as long as its peers' is no uneven shard."""
    spec = SynthSpec(dp=4, pp=1, microbatches=1, steps=12, layers=Layers(4, fsdp=True))
    measured = from_trace(synthesize(replace(spec, slow_workers=(SlowWorker(2, 0, 1.4),))))
    ops = measured.graph.kind == OpKind.OPTIMIZER
    measured.durations.block(0)[ops, :, 1] += 0.2
    result = analyze(measured)
    diagnosis = diagnose(measured, result)
    found = {f.id: f.where.get("workers") for f in diagnosis.findings}
    assert (found["optimizer"], found["worker"]) == ([[1, 0]], [[2, 0]])
    (optimizer,) = (f for f in diagnosis.findings if f.id == "optimizer")
    assert optimizer.cost_s.mean() == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("optimizer", [[3.0, 3.6, 3.0], [3.0, 3.0, 3.0]])
def test_optimizers_of_healthy_ranks_differ_a_little(tmp_path, optimizer):
    case = job(tmp_path, optimizer)
    assert slow_optimizers(case.measured.durations) == []
    assert workers_of(case) == []


def test_of_shards_the_work_may_differ():
    """ZeRO: each rank updates its own shard, and one may have more parameters."""
    spec = SynthSpec(dp=4, pp=2, microbatches=4, steps=12)
    measured = from_trace(synthesize(spec))
    assert not measured.graph.all_reduces
    graph = measured.graph
    ops = (graph.kind == OpKind.OPTIMIZER) & (graph.pp == 1)
    measured.durations.block(0)[ops, :, 2] *= 3
    result = analyze(measured)
    found = [f for f in diagnose(measured, result).findings if "optimizer" in f.text]
    slow = slow_optimizers(measured.durations)
    assert [(one.dp, one.stage, round(one.factor)) for one in slow] == [(2, 1, 3)]
    assert all("uneven shards" in f.ambiguous and f.confidence <= 0.6 for f in found)


def test_one_step_or_one_replica_judges_nobody():
    spec = SynthSpec(dp=1, pp=2, microbatches=4, steps=12)
    assert slow_optimizers(from_trace(synthesize(spec)).durations) == []
    assert slow_optimizers(from_trace(synthesize(replace(spec, dp=4, steps=1))).durations) == []
    slow = replace(spec, dp=4, slow_workers=(SlowWorker(1, 0, 2.0),))
    assert slow_optimizers(from_trace(synthesize(slow)).durations) == []
