from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import MitigateError
from paceline.mitigate import oracle
from paceline.mitigate.fault import Fault
from paceline.mitigate.job_model import JobModel
from paceline.mitigate.life import FailSlow, Scenario, compare, live
from paceline.mitigate.life_yaml import load_scenario
from paceline.mitigate.oracle import best_policy
from paceline.mitigate.strategies import Strategies
from paceline.synth import SynthSpec

PAPER = Path(__file__).parents[1] / "benchmarks" / "falcon_64gpu.yaml"
SLOW = Fault("compute", (2, 1), 1.5)
LINK = Fault("link", (0, 1), 60.0, (1, 1))


@pytest.fixture(scope="module")
def model():
    return JobModel.of_spec(SynthSpec(dp=4, pp=4, microbatches=8), step_s=2.0)


def scenario(model, *fail_slows, **values):
    values = {"steps": 500, "noise": 0.0, "detect_steps": 0, **values}
    return Scenario(model, fail_slows=fail_slows, **values)


def test_without_fail_slows_nothing_is_lost(model):
    lives = compare(scenario(model))
    assert [life.completion_s for life in lives.lives.values()] == pytest.approx([1000.0] * 7)
    assert lives.competitive_ratio == 1.0


def test_an_unmitigated_life_by_hand(model):
    lives = compare(scenario(model, FailSlow(100.0, 300.0, SLOW), overhead_s={}))
    slow_s = model.step_s(model.plain, frozenset([SLOW]))
    slow_steps = int(np.ceil(300.0 / slow_s))
    assert lives.lives["none"].completion_s == pytest.approx(
        (500 - slow_steps) * 2.0 + slow_steps * slow_s
    )
    assert lives.slowdown("planner") == lives.slowdown("none")


def test_the_planner_acts_as_the_ski_rental_says(model):
    # For good: the planner pays s4 after as much was lost; the oracle pays it at once.
    lives = compare(
        scenario(model, FailSlow(0.0, np.inf, SLOW), steps=5000, overhead_s={"s4": 400.0})
    )
    healthy = lives.lives["healthy"].completion_s
    assert lives.lives["oracle"].completion_s == pytest.approx(healthy + 400.0)
    lost_s = lives.lives["planner"].completion_s - healthy
    step_loss_s = model.step_s(model.plain, frozenset([SLOW])) - 2.0
    assert 800.0 - 1e-6 <= lost_s <= 800.0 + step_loss_s
    assert lives.competitive_ratio == pytest.approx(2.0, rel=0.01)


def test_a_short_fail_slow_is_ignored(model):
    lives = compare(scenario(model, FailSlow(100.0, 3.0, SLOW)))
    assert lives.lives["planner"].actions == ()
    assert lives.competitive_ratio == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(8))
def test_the_oracle_loses_least(model, seed):
    rng = np.random.default_rng(seed)
    clock, found = 0.0, []
    for fault in (SLOW, LINK, Fault("compute", (0, 3), 1.3)):
        clock += float(rng.uniform(10, 400))
        found.append(FailSlow(clock, float(rng.lognormal(5, 1)), fault))
    lives = compare(scenario(model, *found, steps=1000))
    least = lives.lives["oracle"].completion_s
    longest_step_s = max(life.step_s.max() for life in lives.lives.values())
    # It acts between two steps, as all do: up to a step later than it would like to, per action.
    for name, life in lives.lives.items():
        if name != "healthy":
            assert least <= life.completion_s + 4 * longest_step_s, name


def test_the_oracle_tries_all_that_a_hand_would(model):
    strategies = Strategies(model, {"s2": 5.0, "s4": 100.0})
    visits, exact = best_policy(strategies, [(50.0, 10_000.0, SLOW)], 4000)
    assert exact
    assert [(visit.at_s, visit.overhead_s) for visit in visits] == [(50.0, 100.0)]
    visits, _ = best_policy(strategies, [(50.0, 150.0, SLOW)], 4000)
    assert [visit.overhead_s for visit in visits][:1] == [5.0]
    assert best_policy(strategies, [(50.0, 51.0, SLOW)], 4000)[0] == ()


def test_a_beam_is_said_to_be_one(model, monkeypatch):
    monkeypatch.setattr(oracle, "MAX_SETTINGS", 1)
    strategies = Strategies(model, {"s2": 1.0, "s3": 2.0, "s4": 50.0})
    fail_slows = [(50.0, 400.0, SLOW), (100.0, 600.0, LINK)]
    assert best_policy(strategies, fail_slows, 1000)[1] is False


def test_each_single_strategy_uses_only_itself(model):
    lives = compare(scenario(model, FailSlow(50.0, 800.0, SLOW), FailSlow(60.0, 700.0, LINK)))
    for name in ("s2", "s3", "s4"):
        (key,) = [key for key in lives.lives if key.startswith(name)]
        assert {a.option.strategy for a in lives.lives[key].actions} <= {name}
    assert {a.option.strategy for a in lives.lives["planner"].actions} == {"s2", "s3"}


def test_a_replaced_machine_is_not_slow_again(model):
    fail_slows = FailSlow(50.0, 900.0, SLOW), FailSlow(1000.0, 500.0, SLOW)
    found = live(scenario(model, *fail_slows, steps=1000), "x", {"s4": 5.0})
    assert [action.option.strategy for action in found.actions] == ["s4"]
    assert found.step_s[found.actions[0].step + 1 :] == pytest.approx(2.0)


def test_detection_and_validation_cost_time(model):
    event = FailSlow(100.0, 600.0, SLOW)
    quick = live(scenario(model, event), "x", {"s2": 5.0})
    slow = live(scenario(model, event, detect_steps=10, validate_s=7.0), "x", {"s2": 5.0})
    assert slow.pause_s.sum() == pytest.approx(quick.pause_s.sum() + 7.0)
    assert slow.actions[0].step > quick.actions[0].step
    assert slow.actions[0].since_step == quick.actions[0].since_step


def test_noise_is_of_its_size_and_repeatable(model):
    some = scenario(model, steps=20_000, noise=0.29, seed=3)
    factors = some.noise_factors()
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.29, abs=0.01)
    assert (some.noise_factors() == factors).all()
    assert (replace(some, seed=4).noise_factors() != factors).any()


def test_the_life_of_64_gpus_loses_at_least_60_percent_less():
    # Falcon paper, Table 7: 1.15x without mitigation, 1.05x with: 60.1% less.
    lives = compare(load_scenario(PAPER))
    assert lives.slowdown("none") == pytest.approx(1.155, abs=0.01)
    assert lives.reduced("planner") >= 0.601
    assert 1 <= lives.competitive_ratio < 3
    moves = [a for a in lives.lives["planner"].actions if a.option.strategy == "s3"]
    assert len(moves) == 2  # one for each slow link


def test_slow_transfers_then_slow_computes_then_a_restart():
    # Falcon paper, Figure 17: slow link, S3, slow compute, S2, restart at full speed.
    model = JobModel.of_spec(SynthSpec(dp=4, pp=4, microbatches=8), step_s=0.6)
    lives = compare(
        scenario(
            model,
            FailSlow(30.0, np.inf, LINK),
            FailSlow(200.0, np.inf, Fault("compute", (2, 1), 2.5)),
            steps=4000,
            overhead_s={"s2": 1.0, "s3": 30.0, "s4": 150.0},
        )
    )
    planner = lives.lives["planner"]
    assert [a.option.strategy for a in planner.actions] == ["s3", "s2", "s4"]
    speeds = [1 / a.option.step_s for a in planner.actions]
    assert speeds[1] < speeds[0] <= speeds[2] == pytest.approx(1 / 0.6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "steps must be 1"),
        ({"noise": 1.0}, "noise must be"),
        ({"noise": -0.1}, "noise must be"),
        ({"detect_steps": -1}, "must be 0 or more"),
        ({"fail_slows": (FailSlow(0.0, 9.0, Fault("nic", (9, 9), 2.0)),)}, "no worker dp 9"),
        (
            {"fail_slows": (FailSlow(0.0, 9.0, SLOW), FailSlow(5.0, 9.0, SLOW))},
            "compute 2,1 overlap, at 5 s",
        ),
    ],
)
def test_impossible_scenarios_are_refused(model, values, message):
    with pytest.raises(MitigateError, match=message):
        Scenario(model, **{"steps": 10, **values})


def test_a_fail_slow_needs_a_time():
    for start, duration in ((-1.0, 5.0), (0.0, 0.0), (0.0, float("nan")), (float("inf"), 1.0)):
        with pytest.raises(MitigateError, match="starts at 0 s or later"):
            FailSlow(start, duration, SLOW)


SCENARIO = """\
job: {dp: 4, pp: 4, microbatches: 8, base_s: {forward-compute: 30 ms}}
step: 2 s
steps: 300
noise: 0.01
overheads: {s2: 5 s, s3: 1 min, s4: null}
fail_slows:
  - {at: 1 min, for: 2 min, kind: compute, worker: [2, 1], factor: 1.4}
  - {at: 100, kind: link, worker: [2, 1], other: [3, 1], factor: 8}
"""


def test_a_scenario_is_read(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    found = load_scenario(path)
    assert found.model.healthy_s == pytest.approx(2.0)
    assert found.overhead_s == {"s2": 5.0, "s3": 60.0, "s4": None}
    assert found.fail_slows[0] == FailSlow(60.0, 120.0, Fault("compute", (2, 1), 1.4))
    assert found.fail_slows[1].end_s == np.inf


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps: 300", "stepz: 300", "line 3: stepz: unknown field; did you mean step"),
        ("steps: 300\n", "", "lacks steps"),
        ("dp: 4", "dp: 0", "job"),
        ("forward-compute", "forward", "not a kind of operation"),
        ("1 min, for", "soon, for", "number 1"),
        ("factor: 1.4", "factor: 0.5", "number 1: a fail-slow's factor must be above 1"),
        ("[2, 1], factor", "[2], factor", "number 1: a fail-slow has"),
        ("[2, 1], factor", "[7, 1], factor", "no worker dp 7"),
        ("other: [3, 1], ", "", "number 2: only a slow link, and every slow link, has two ends"),
        ("kind: compute", "kynd: compute", "unknown field 'kynd'"),
        ("fail_slows:", "fail_slows: 3\nnothing:", "nothing"),
        ("s4: null", "s5: 3", "unknown field"),
        ("noise: 0.01", "rule: luck", "must be one of loss, savings"),
        ("step: 2 s", "step: 0 s", "scale"),
    ],
)
def test_a_wrong_scenario_is_refused_with_its_place(tmp_path, old, new, message):
    path = tmp_path / "scenario.yaml"
    assert old in SCENARIO
    path.write_text(SCENARIO.replace(old, new, 1))
    with pytest.raises(MitigateError, match=message) as error:
        load_scenario(path)
    assert str(path) in str(error.value)
