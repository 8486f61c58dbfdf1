"""Predicted gains against the changed job by the stopwatch, faults and launch delays kept."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import NotApplicableError, RemedyError
from paceline.graph import from_trace
from paceline.graph.computes import computes_of
from paceline.remedies import Remedy
from paceline.remedies.chunks import shares_by_layers
from paceline.remedies.microbatches import propose as move_microbatches
from paceline.remedies.placement import propose as swap_workers
from paceline.remedies.places import least_difference, typical_places
from paceline.remedies.replace import fix_link, replace_worker
from paceline.remedies.resize import resizer
from paceline.remedies.schedule import MARGIN, interleave, one_f_one_b
from paceline.remedies.stage_layout import propose as split_layers
from paceline.synth import SynthSpec, synthesize
from remedy_jobs import LayeredJob

#: How far a predicted step time may be from the stopwatch's.
CLOSE = 0.03

DELAYED = {"forward-compute": 0.006, "backward-compute": 0.006}

JOBS = {
    "healthy": LayeredJob(),
    "slow worker": LayeredJob(workers={(1, 2): 1.5}),
    "slow link": LayeredJob(links={(1, 1): 30.0}),
    "launch delays": LayeredJob(delays=DELAYED),
    "slow link and delays": LayeredJob(links={(2, 0): 30.0}, delays=DELAYED),
    "loading": LayeredJob(loading_s=0.3),
    "two stages": LayeredJob(pp=2, links={(1, 0): 30.0}),
    "one replica": LayeredJob(dp=1, links={(0, 1): 20.0}),
    "overlapped": LayeredJob(overlapped=True, workers={(0, 1): 1.3}),
    "loss layer, few microbatches": LayeredJob(microbatches=4, loss=5.0),
    "loss layer and a slow worker": LayeredJob(loss=5.0, workers={(3, 1): 1.4}),
    "noise": LayeredJob(noise=0.15, steps=6),
}


def answer_of(propose, case) -> Remedy | NotApplicableError:
    """The remedy, or why there is none."""
    try:
        return propose(case)
    except NotApplicableError as reason:
        return reason


@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize("name", JOBS)
def test_interleaving_keeps_what_is_wrong(name, chunks):
    job = JOBS[name]
    answer = answer_of(interleave, job.case((job.layers,) * job.pp, chunks=chunks))
    now, truth = job.step_s(), replace(job, chunks=chunks).step_s()
    if isinstance(answer, NotApplicableError):  # it gains nothing, and that is what it says
        assert truth > now * 0.99
        assert "longer" in str(answer) or "almost nothing" in str(answer)
        return
    assert answer.step_time_s == pytest.approx(truth, rel=CLOSE)
    assert answer.gain == pytest.approx(1 - truth / now, abs=CLOSE)


@pytest.mark.parametrize(("dp", "factor"), [(4, 60.0), (4, 120.0), (1, 60.0)])
def test_interleaving_is_not_offered_over_a_very_slow_link(dp, factor):
    """Issue: predicted to gain 25.8%, 35.1%, 36.8%; in truth it lost 37%, 93%, 87%."""
    job = LayeredJob(dp=dp, links={(0, 1): factor})
    truth = replace(job, chunks=4).step_s() / job.step_s() - 1
    assert truth > 0.3
    with pytest.raises(NotApplicableError, match=r"makes steps (\d+\.\d)% longer") as error:
        interleave(job.case((12,) * 4, chunks=4))
    said = float(str(error.value).split("makes steps ")[1].split("%")[0]) / 100
    assert said == pytest.approx(truth, abs=CLOSE)


def test_added_launches_pay_a_delay_and_loading_is_paid_once():
    """Issue: with 6 ms of launch delay 12.1% were promised and 2.4% lost."""
    job = LayeredJob(microbatches=16, delays=DELAYED, loading_s=0.2)
    case = job.case((12,) * 4, chunks=2)
    assert case.delays is not None
    assert case.before.mean_s == pytest.approx(job.step_s())
    remedy = interleave(case)
    assert remedy.step_time_s == pytest.approx(replace(job, chunks=2).step_s(), rel=0.01)
    with pytest.raises(NotApplicableError):
        interleave(job.case((12,) * 4, chunks=4))
    assert replace(job, chunks=4).step_s() > job.step_s()


def test_both_readings_of_delays_are_in_the_interval():
    job = LayeredJob(delays={"forward-compute": 0.020}, workers={(1, 1): 1.5})
    remedy = replace_worker(job.case())
    assert remedy.step_time_s == pytest.approx(replace(job, workers={}).step_s(), rel=0.01)
    case = job.case()
    bare = 1 - float(remedy_without_delays(case).mean() / case.result.simulated_s.mean())
    assert abs(bare - remedy.gain) > 0.01
    assert remedy.interval[0] <= min(bare, remedy.gain) < max(bare, remedy.gain)
    assert max(bare, remedy.gain) <= remedy.interval[1]
    assert any("launch delays" in note for note in remedy.notes)


def remedy_without_delays(case) -> np.ndarray:
    object.__setattr__(case, "__dict__", case.__dict__ | {"delays": None})
    changed = replace_worker(case)
    return np.array([changed.step_time_s])


@pytest.mark.parametrize(
    ("job", "propose", "repaired"),
    [
        (LayeredJob(workers={(1, 2): 1.5}, links={(2, 0): 30.0}), replace_worker, {"workers": {}}),
        (LayeredJob(workers={(1, 2): 1.5}, delays=DELAYED), replace_worker, {"workers": {}}),
        (LayeredJob(workers={(1, 2): 1.2}, links={(2, 0): 40.0}), fix_link, {"links": {}}),
        (LayeredJob(links={(2, 0): 40.0}, delays=DELAYED, loading_s=0.2), fix_link, {"links": {}}),
        (LayeredJob(dp=1, links={(0, 1): 40.0}), fix_link, {"links": {}}),
    ],
)
def test_repairs_leave_the_rest_as_it_is(job, propose, repaired):
    remedy = propose(job.case())
    assert remedy.step_time_s == pytest.approx(replace(job, **repaired).step_s(), rel=CLOSE)


def test_a_new_worker_varies_like_any_other():
    job = LayeredJob(dp=2, noise=0.15, steps=8, workers={(1, 2): 1.6})
    remedy = replace_worker(job.case(workers=[[1, 2]]))
    assert remedy.step_time_s == pytest.approx(replace(job, workers={}).step_s(), rel=CLOSE)


@pytest.mark.parametrize("more", [{}, {"delays": DELAYED}, {"links": {(2, 0): 20.0}}])
def test_moved_microbatches(more):
    job = LayeredJob(workers={(1, 2): 1.5}, **more)
    counts = np.full(4, 8)
    remedy = move_microbatches(job.case())
    for row in remedy.change["microbatches"]:
        counts[row["dp"]] = row["after"]
    truth = replace(job, counts=tuple(counts.tolist())).step_s()
    assert remedy.step_time_s == pytest.approx(truth, rel=CLOSE)


def test_moved_microbatches_answer_only_who_is_relieved():
    job = LayeredJob(microbatches=16, workers={(1, 2): 1.6}, links={(2, 0): 25.0})
    case = job.case()
    assert {"worker", "link"} <= {f.cause for f in case.diagnosis.findings}
    remedy = move_microbatches(case)
    relieved = {row["dp"] for row in remedy.change["microbatches"] if row["after"] < row["before"]}
    assert ("link" in remedy.findings) == (2 in relieved)
    assert ("worker" in remedy.findings) == (1 in relieved)


def test_swapped_workers_both_keep_their_speed():
    job = LayeredJob(dp=5, microbatches=8, workers={(1, 0): 1.5, (1, 3): 1.4, (2, 0): 1.2})
    remedy = swap_workers(job.case(workers=[[1, 0], [1, 3]]))
    place = {}
    for a, b in (map(tuple, swap) for swap in remedy.change["swaps"]):
        place[a], place[b] = place.get(b, b), place.get(a, a)
    at = {p: job.workers.get(place.get(p, p), 1.0) for p in np.ndindex(5, 4)}
    assert remedy.step_time_s == pytest.approx(replace(job, workers=at).step_s(), rel=CLOSE)


def test_a_slow_nic_is_not_swapped_away():
    """Both of its links are slow: it would take them along."""
    job = LayeredJob(links={(1, 1): 40.0, (1, 2): 40.0})
    with pytest.raises(NotApplicableError, match="NIC"):
        swap_workers(job.case())


def test_a_swapped_link_may_follow_one_of_its_ends():
    remedy = swap_workers(LayeredJob(links={(1, 1): 40.0}).case())
    assert remedy.interval[0] <= 0 < remedy.gain <= remedy.interval[1]
    assert remedy.findings == ("link",)


@pytest.mark.parametrize("more", [{}, {"links": {(1, 1): 30.0}}, {"delays": DELAYED}])
def test_from_gpipe_to_1f1b(more):
    job = LayeredJob(schedule="gpipe", workers={(0, 3): 1.6}, loss=4.0, **more)
    case = job.case()
    truth = replace(job, schedule="1f1b").step_s()
    answer = answer_of(one_f_one_b, case)
    after_s = job.step_s() if isinstance(answer, NotApplicableError) else answer.step_time_s
    assert after_s == pytest.approx(truth, rel=0.01)


def test_layers_decide_the_numbers_of_chunks():
    job = replace(JOBS["healthy"], layers=9)
    with pytest.raises(RemedyError, match="9, 9, 9, 9 layers cannot be cut into 4 chunks") as error:
        interleave(job.case((9,) * 4, chunks=4))
    assert not isinstance(error.value, NotApplicableError)  # it was asked for
    remedy = interleave(job.case((9,) * 4))
    assert [row["chunks"] for row in remedy.change["compared"]] == [3]
    with pytest.raises(NotApplicableError, match="2 or 3 or 4 chunks"):
        interleave(job.case((7,) * 4))


def test_unknown_layers_are_said():
    remedy = interleave(JOBS["healthy"].case())
    assert any("layers of the stages are unknown" in note for note in remedy.notes)
    known = interleave(JOBS["healthy"].case((12,) * 4))
    assert not any("unknown" in note for note in known.notes)


def test_a_heavy_last_stage_whose_layers_are_unknown_widens_the_interval():
    job = LayeredJob(loss=5.0, microbatches=16)
    remedy = interleave(job.case(chunks=2))
    spread = LayeredJob(microbatches=16, chunks=2, workers={(d, 3): 17 / 12 for d in range(4)})
    for truth in (replace(job, chunks=2), spread):
        gain = 1 - truth.step_s() / job.step_s()
        assert remedy.interval[0] - 0.005 <= gain <= remedy.interval[1] + 0.005
    known = interleave(job.case((12,) * 4, chunks=2))
    assert known.interval[1] - known.interval[0] > 2 * MARGIN
    assert known.interval[1] - known.interval[0] < remedy.interval[1] - remedy.interval[0]


def test_the_bound_without_layers_is_no_less_than_the_best_split():
    job = LayeredJob(loss=5.0, microbatches=16)
    bound = split_layers(job.case())
    best = split_layers(job.case((12,) * 4))
    assert bound.change["bound"] is True
    assert best.gain <= bound.gain + 0.005
    assert "at most" in bound.text
    assert any("--layers" in note for note in bound.notes)


def test_unequal_microbatches_and_noise_do_not_look_like_a_loss_layer():
    """Costs that differ by half: the stages' loads are compared microbatch by microbatch."""
    spec = SynthSpec(dp=2, pp=4, microbatches=4, steps=3, noise=0.02, sequence_imbalance=0.5)
    durations = from_trace(synthesize(spec)).durations
    loads = typical_places(durations)
    np.testing.assert_allclose(loads / loads.mean(axis=1, keepdims=True), 1.0, atol=0.02)
    share = shares_by_layers(loads, None, 4, np.maximum(0.01, least_difference(durations)))
    np.testing.assert_allclose(share, 0.25)


def test_chunks_take_their_share_of_the_layers():
    loads = np.array([[5.0, 4.0, 4.0, 6.0]] * 2)
    share = shares_by_layers(loads, (8, 8, 8, 8), 2)[0]
    np.testing.assert_allclose(share * loads[0][:, None], [[3, 2], [2, 2], [2, 2], [2, 4]])
    two = shares_by_layers(loads[:, [0, 3]], (8, 8), 2)[0]  # the lesser of two shows the layers
    np.testing.assert_allclose(two * loads[0, [0, 3], None], [[2.5, 2.5], [2.5, 3.5]])


@pytest.mark.parametrize("seed", [0, 1])
def test_moved_microbatches_bring_what_they_hold(seed):
    """Total cost stays: what a slow replica no longer computes, others do."""
    spec = SynthSpec(
        dp=4, pp=2, microbatches=6, steps=4, noise=0.0, sequence_imbalance=0.5, seed=seed
    )
    measured = from_trace(synthesize(spec))
    resize = resizer(measured)
    after = resize.resized(np.array([4, 7, 7, 6])).durations
    computes = computes_of(after.graph)
    before_s = computes_of(measured.graph).ops[0]
    total = measured.durations.block(0)[before_s].sum(axis=(0, 1, 2, 4))
    moved = sum(
        after.block(v)[computes.ops[v]].sum(axis=(0, 1, 2, 4))
        for v in range(after.graph.n_variants)
    )
    np.testing.assert_allclose(moved, total, rtol=1e-3)
