import numpy as np
import pytest

from paceline.errors import MitigateError, SynthError
from paceline.graph import from_trace
from paceline.mitigate.fault import Fault
from paceline.mitigate.job_model import JobModel, Setting
from paceline.remedies.remedy import predicted_step_s
from paceline.synth import SlowLink, SlowWorker, SynthSpec, synthesize

SPEC = SynthSpec(dp=4, pp=4, microbatches=8, steps=1, noise=0.0)


def truth_s(**causes):
    """Step time of the synthesised trace that has the causes: the whole job is simulated."""
    spec = SynthSpec(**{"dp": 4, "pp": 4, "microbatches": 8, "steps": 1, "noise": 0.0, **causes})
    return float(predicted_step_s(from_trace(synthesize(spec)).durations)[0])


def step_s(model, *faults, setting=None):
    return model.step_s(model.plain if setting is None else setting, frozenset(faults))


@pytest.fixture(scope="module")
def model():
    return JobModel.of_spec(SPEC)


def test_a_healthy_step_is_that_of_the_trace(model):
    assert model.healthy_s == pytest.approx(truth_s(), rel=1e-12)


def test_slow_workers_and_links_cost_what_a_trace_with_them_shows(model):
    slow = truth_s(slow_workers=(SlowWorker(2, 1, 1.5), SlowWorker(0, 3, 1.2)))
    faults = Fault("compute", (2, 1), 1.5), Fault("compute", (0, 3), 1.2)
    assert step_s(model, *faults) == pytest.approx(slow, rel=1e-9)
    slow = truth_s(slow_links=(SlowLink(1, 2, 40.0),))
    assert step_s(model, Fault("link", (1, 2), 40.0, (1, 3))) == pytest.approx(slow, rel=1e-9)


def test_a_moved_machine_costs_what_it_would_there(model):
    setting = model.plain.swap((2, 1), (0, 3))
    assert setting.moved == (((0, 3), (2, 1)), ((2, 1), (0, 3)))
    there = truth_s(slow_workers=(SlowWorker(0, 3, 1.5),))
    assert step_s(model, Fault("compute", (2, 1), 1.5), setting=setting) == pytest.approx(there)
    assert setting.swap((2, 1), (2, 1)) == model.plain


def test_other_shares_of_the_microbatches_cost_what_such_a_job_shows(model):
    counts = (9, 9, 5, 9)
    there = truth_s(microbatches=counts, slow_workers=(SlowWorker(2, 1, 1.5),))
    fault = Fault("compute", (2, 1), 1.5)
    assert step_s(model, fault, setting=Setting(counts)) == pytest.approx(there, rel=1e-9)


def test_many_settings_at_once_are_the_same_as_one_by_one(model):
    fault = Fault("compute", (2, 1), 1.5)
    settings = [model.plain.swap((2, 1), (dp, pp)) for dp in range(4) for pp in range(4)]
    settings.append(Setting((9, 9, 5, 9)))
    together = model.steps_s(settings, frozenset([fault]))
    assert together == pytest.approx([step_s(model, fault, setting=s) for s in settings], rel=1e-12)


def test_a_link_slows_only_what_passes_it(model):
    ring = step_s(
        model, Fault("link", (0, 1), 50.0, (3, 1))
    )  # first and last replica are neighbours
    assert ring > model.healthy_s * 1.1
    assert step_s(model, Fault("link", (0, 1), 50.0, (2, 1))) == model.healthy_s
    assert step_s(model, Fault("link", (0, 1), 50.0, (1, 2))) == model.healthy_s
    assert step_s(model, Fault("link", (0, 0), 50.0, (0, 3))) == model.healthy_s


def test_a_nic_slows_transfers_and_the_rings_of_its_stage(model):
    nic = step_s(model, Fault("nic", (1, 2), 5.0))
    ring = step_s(model, Fault("link", (1, 2), 5.0, (2, 2)))
    pipeline = step_s(model, Fault("link", (1, 2), 5.0, (1, 3)))
    assert nic > max(ring, pipeline)


def test_replicas_that_are_slow_alike_are_simulated_once():
    model = JobModel.of_spec(SynthSpec(dp=1000, pp=2, microbatches=8))
    faults = [Fault("compute", (dp, 1), 1.5) for dp in (3, 500, 999)]
    found = model._factors(model.plain, frozenset([*faults, Fault("compute", (4, 1), 1.2)]))
    assert found.rows[:, 0, 1].tolist() == [1.0, 1.2, 1.5]
    assert found.lane[[0, 3, 4, 500, 999]].tolist() == [0, 2, 1, 2, 2]
    assert found.counts.tolist() == [8, 8, 8]


def test_of_several_causes_on_one_machine_the_slowest_counts(model):
    faults = Fault("compute", (2, 1), 1.5), Fault("compute", (2, 1), 1.3)
    assert step_s(model, *faults) == step_s(model, faults[0])


def test_replaced_machines_are_healthy(model):
    fault = Fault("compute", (2, 1), 1.5)
    setting = Setting(model.plain.counts, replaced=frozenset([fault.name]))
    assert step_s(model, fault, setting=setting) == model.healthy_s


def test_a_trace_with_a_slow_worker_gives_the_healthy_job(model):
    spec = SynthSpec(dp=4, pp=4, microbatches=8, steps=3, slow_workers=(SlowWorker(2, 1, 1.5),))
    found = JobModel(from_trace(synthesize(spec)))
    assert found.healthy_s == pytest.approx(model.healthy_s, rel=0.01)
    slow = step_s(found, Fault("compute", (2, 1), 1.5))
    assert slow == pytest.approx(step_s(model, Fault("compute", (2, 1), 1.5)), rel=0.01)


def test_of_two_replicas_the_fast_one_is_healthy():
    spec = SynthSpec(dp=2, pp=2, microbatches=4, steps=1, noise=0.0)
    slow = SynthSpec(
        dp=2, pp=2, microbatches=4, steps=1, noise=0.0, slow_workers=(SlowWorker(0, 0, 2.0),)
    )
    found = JobModel(from_trace(synthesize(slow)))
    assert found.healthy_s == pytest.approx(JobModel.of_spec(spec).healthy_s)


def test_a_job_is_scaled_to_a_step_time():
    assert JobModel.of_spec(SPEC, step_s=3.5).healthy_s == pytest.approx(3.5)


def test_the_factor_of_a_machine_follows_from_the_slowdown_of_the_step(model):
    fault = Fault("compute", (2, 1), 1.5)
    slowdown = step_s(model, fault) / model.healthy_s
    assert model.factor_of(fault, slowdown) == pytest.approx(1.5, rel=1e-6)
    with pytest.raises(MitigateError, match="cannot make the step"):
        model.factor_of(Fault("link", (0, 0), 2.0, (2, 2)), 1.5)


@pytest.mark.parametrize(("dp", "pp", "vpp"), [(1, 1, 1), (1, 4, 1), (4, 1, 1), (2, 4, 2)])
def test_every_shape_works(dp, pp, vpp):
    model = JobModel.of_spec(SynthSpec(dp=dp, pp=pp, vpp=vpp, microbatches=8))
    slow = step_s(model, Fault("compute", (dp - 1, pp - 1), 1.5))
    assert model.healthy_s < slow <= 1.5 * model.healthy_s


def test_every_replica_alone(model):
    alone = model.replica_s(8, model.plain, frozenset([Fault("compute", (2, 1), 1.5)]))
    assert alone.shape == (4,)
    assert np.argmax(alone) == 2
    assert alone[0] == alone[1] == alone[3]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("disk", (0, 0), 2.0), "kind compute, link, nic"),
        (("compute", (0, 0), 1.0), "above 1"),
        (("compute", (0, 0), float("nan")), "above 1"),
        (("link", (0, 0), 2.0), "two ends"),
        (("link", (0, 0), 2.0, (0, 0)), "two different ends"),
        (("nic", (0, 0), 2.0, (0, 1)), "two ends"),
    ],
)
def test_impossible_faults_are_refused(values, message):
    with pytest.raises(MitigateError, match=message):
        Fault(*values)


@pytest.mark.parametrize("worker", [[1.5, 1], [1e999, 1], [True, 1], [10**23, 1], [10**400, 1]])
def test_places_are_whole_numbers(worker):
    with pytest.raises(MitigateError, match="a fail-slow has kind, worker"):
        Fault.from_mapping({"kind": "compute", "worker": worker, "factor": 2.0})
    with pytest.raises(MitigateError, match="a fail-slow has kind, worker"):
        Fault.from_mapping({"kind": "compute", "worker": [1, 1], "factor": 10**400})


def test_machines_that_the_job_lacks_are_refused(model):
    with pytest.raises(MitigateError, match="no worker dp 4, stage 0; the job has dp 0 to 3"):
        step_s(model, Fault("compute", (4, 0), 2.0))


def test_uneven_jobs_cannot_be_described_by_a_spec():
    with pytest.raises(SynthError, match="one number of microbatches"):
        JobModel.of_spec(SynthSpec(dp=2, microbatches=(4, 5)))
