import json

import pytest

from paceline.errors import MitigateError, OutputError
from paceline.mitigate.fault import Fault
from paceline.mitigate.forecast import forecast
from paceline.mitigate.job_model import JobModel, Setting
from paceline.mitigate.planner import Planner, State, load_state, save_state
from paceline.mitigate.strategies import Strategies
from paceline.synth import SynthSpec

SLOW = Fault("compute", (2, 1), 1.5)
LINK = Fault("link", (0, 1), 60.0, (1, 1))
OVERHEADS = {"s2": 5.0, "s3": 60.0, "s4": 600.0}


@pytest.fixture(scope="module")
def strategies():
    return Strategies(JobModel.of_spec(SynthSpec(dp=4, pp=4, microbatches=8)), OVERHEADS)


def run(planner, steps, faults, begin=0):
    """So many steps under the fail-slows; the actions."""
    actions = []
    for step in range(begin, begin + steps):
        model = planner.strategies.model
        action = planner.update(step, model.step_s(planner.state.setting, frozenset(faults)))
        if action is not None:
            actions.append(action)
    return actions


def test_a_strategy_is_applied_when_the_loss_equals_its_overhead(strategies):
    # Algorithm 1: the loss of a step times the steps >= the overhead.
    model = strategies.model
    loss_s = model.step_s(model.plain, frozenset([SLOW])) - model.healthy_s
    planner = Planner(strategies)
    planner.onset(SLOW, 100)
    (action,) = run(planner, 50, [SLOW], begin=100)
    due = next(n for n in range(1, 50) if n * loss_s >= 5.0)
    assert action.step == 100 + due - 1
    assert action.option.strategy == "s2"
    assert action.lost_s == pytest.approx(due * loss_s)
    assert planner.state.setting == action.option.setting


def test_strategies_follow_each_other_by_overhead(strategies):
    planner = Planner(strategies)
    planner.onset(SLOW, 0)
    actions = run(planner, 12_000, [SLOW])
    assert [action.option.strategy for action in actions] == ["s2", "s4"]  # s3 would not help
    assert planner.state.active == frozenset()
    assert SLOW.name in planner.state.setting.replaced


def test_a_pause_is_no_loss_to_the_fail_slow(strategies):
    # A checkpoint of 2,000 s would be worth a restart, were it the slow machine's doing.
    model = strategies.model
    slow_s = model.step_s(model.plain, frozenset([SLOW]))
    planner, other = Planner(strategies), Planner(strategies)
    for each in (planner, other):
        each.onset(SLOW, 0)
    assert planner.update(0, 2000.0) is None
    assert other.update(0, slow_s) is None
    assert planner.state == other.state


def test_steps_longer_than_five_healthy_ones_count_where_they_are_expected(strategies):
    model = strategies.model
    worse = Fault("compute", (2, 1), 12.0)
    slow_s = model.step_s(model.plain, frozenset([worse]))
    assert slow_s > 5 * model.healthy_s
    planner = Planner(strategies)
    planner.onset(worse, 0)
    planner.update(0, slow_s)
    assert planner.state.lost_s == pytest.approx(slow_s - model.healthy_s)


def test_a_new_machine_can_be_slow_too(strategies):
    planner = Planner(strategies)
    planner.onset(SLOW, 0)
    assert run(planner, 12_000, [SLOW])[-1].option.strategy == "s4"
    planner.onset(SLOW, 20_000)
    assert planner.state.active == frozenset([SLOW])
    assert SLOW.name not in planner.state.setting.replaced
    again = run(planner, 12_000, [SLOW], begin=20_000)
    fresh = Planner(strategies)
    fresh.onset(SLOW, 20_000)
    anew = run(fresh, 12_000, [SLOW], begin=20_000)
    assert [(a.step, a.option.strategy) for a in again] == [
        (a.step, a.option.strategy) for a in anew
    ]
    assert len(again) == 2


def test_a_link_is_the_same_from_either_end(strategies):
    planner = Planner(strategies)
    planner.onset(LINK, 0)
    back = Fault("link", LINK.other, LINK.factor, LINK.worker)
    planner.relief(back, 5)
    assert planner.state.active == frozenset()
    planner.onset(LINK, 6)
    planner.onset(back, 7)
    assert planner.state.active == frozenset([back])


def test_what_was_lost_before_it_was_found_counts(strategies):
    early, late = Planner(strategies), Planner(strategies)
    early.onset(SLOW, 0, lost_s=4.0)
    late.onset(SLOW, 0)
    assert run(early, 50, [SLOW])[0].step < run(late, 50, [SLOW])[0].step
    assert early.state.lost_s > 4.0


def test_what_does_not_help_is_skipped(strategies):
    # The paper's planner would share microbatches out on a slow link, the simulator says no.
    planner = Planner(strategies)
    planner.onset(LINK, 0)
    actions = run(planner, 2000, [LINK])
    assert [action.option.strategy for action in actions] == ["s3"]
    assert actions[0].lost_s >= 60.0


def test_a_healthy_job_is_left_alone(strategies):
    assert run(Planner(strategies), 1000, []) == []
    planner = Planner(strategies)
    for step in range(1000):  # a slow job without a cause: nothing helps
        assert planner.update(step, 2 * strategies.model.healthy_s) is None


def test_relief_takes_the_shares_back_when_that_pays(strategies):
    planner = Planner(strategies)
    planner.onset(SLOW, 0)
    run(planner, 50, [SLOW])
    assert planner.state.phase == "mitigated"
    planner.relief(SLOW, 50)
    assert planner.state.phase == "undoing"
    (action,) = run(planner, 200, [], begin=50)
    assert action.option.setting == strategies.model.plain
    assert action.lost_s >= 5.0
    run(planner, 1, [], begin=300)
    assert planner.state.phase == "healthy"
    assert "no fail-slow is left" in action.explain()


def test_a_fail_slow_that_comes_back_counts_on(strategies):
    planner = Planner(strategies, rule="loss")
    model = strategies.model
    loss_s = model.step_s(model.plain, frozenset([LINK])) - model.healthy_s
    first = int(40 / loss_s)
    planner.onset(LINK, 0)
    assert run(planner, first, [LINK]) == []
    planner.relief(LINK, first)
    run(planner, 100, [], begin=first)
    planner.onset(LINK, 1000)
    (action,) = run(planner, first, [LINK], begin=1000)
    assert action.option.strategy == "s3"
    assert action.step - 1000 < 0.6 * first  # 20 of 60 s were missing


def test_an_unrelated_fail_slow_starts_at_zero(strategies):
    planner = Planner(strategies)
    planner.onset(SLOW, 0)
    loss_s = strategies.model.step_s(strategies.model.plain, frozenset([SLOW]))
    loss_s -= strategies.model.healthy_s
    run(planner, int(4 / loss_s), [SLOW])
    planner.relief(SLOW, 10)
    other = Fault("compute", (0, 0), 1.5)
    planner.onset(other, 20)
    assert run(planner, 2, [other], begin=20) == []


def test_several_at_once(strategies):
    planner = Planner(strategies)
    both = [SLOW, LINK]
    for fault in both:
        planner.onset(fault, 0)
    actions = run(planner, 400, both)
    assert [action.option.strategy for action in actions][:2] == ["s2", "s3"]
    assert len(actions[0].faults) == 2
    planner.relief(LINK, 400)
    assert planner.state.active == frozenset([SLOW])


def test_a_changed_factor_replaces_the_old_one(strategies):
    planner = Planner(strategies)
    planner.onset(SLOW, 0)
    planner.onset(Fault("compute", (2, 1), 3.0), 5)
    assert {fault.factor for fault in planner.state.active} == {3.0}


def test_an_overhead_that_the_rest_of_the_job_cannot_save_is_not_paid(strategies):
    planner = Planner(strategies)
    planner.onset(SLOW, 0)
    model = strategies.model
    slow_s = model.step_s(model.plain, frozenset([SLOW]))
    assert all(planner.update(step, slow_s, steps_left=3) is None for step in range(40))
    assert planner.update(40, slow_s, steps_left=1000) is not None


def test_the_savings_rule_waits_for_what_the_strategy_would_save(strategies):
    planner = Planner(strategies, rule="savings")
    planner.onset(SLOW, 0)
    action = run(planner, 50, [SLOW])[0]
    saved_s = action.option.now_s - action.option.step_s
    assert (action.step + 1) * saved_s >= 5.0 > action.step * saved_s


def test_equal_steps_at_once_are_the_same_as_one_by_one(strategies):
    one, other = Planner(strategies), Planner(strategies)
    for planner in (one, other):
        planner.onset(SLOW, 0)
    slow_s = strategies.model.step_s(strategies.model.plain, frozenset([SLOW]))
    wait = one.steps_to_action(slow_s)
    action = one.update(wait, slow_s, steps=wait)
    assert action.option == run(other, wait, [SLOW])[-1].option
    assert one.state == other.state or one.state.lost_s == pytest.approx(other.state.lost_s)


def test_a_measured_overhead_counts():
    strategies = Strategies(JobModel.of_spec(SynthSpec(dp=4, pp=4, microbatches=8)), OVERHEADS)
    strategies.set_overhead("s2", 0.5)
    planner = Planner(strategies)
    planner.onset(SLOW, 0)
    assert run(planner, 5, [SLOW])[0].option.overhead_s == 0.5


def test_the_state_survives_a_restart(strategies, tmp_path):
    path = tmp_path / "planner.json"
    straight, stopped = Planner(strategies), Planner(strategies)
    expected, found = [], []
    for step in range(3000):
        if step in (0, 700):
            fault = SLOW if step == 0 else LINK
            straight.onset(fault, step)
            stopped.onset(fault, step)
        active = frozenset([SLOW] if step < 700 else [SLOW, LINK])
        expected += run(straight, 1, active, begin=step)
        found += run(stopped, 1, active, begin=step)
        if step % 97 == 0:
            save_state(stopped.state, path)
            stopped = Planner(strategies, state=load_state(path))
            assert stopped.state == straight.state
    assert [a.explain() for a in found] == [a.explain() for a in expected]
    assert len(found) >= 3


def test_equal_inputs_give_equal_decisions(strategies):
    texts = []
    for _ in range(2):
        planner = Planner(strategies)
        planner.onset(LINK, 0)
        planner.onset(SLOW, 3)
        texts.append([action.explain() for action in run(planner, 500, [LINK, SLOW])])
    assert texts[0] == texts[1] != []


def test_a_broken_state_is_refused(tmp_path, strategies):
    path = tmp_path / "planner.json"
    for text in ("", "{}", "[1]", '{"paceline_planner": 1, "counts": 3}', "\x00"):
        path.write_text(text)
        with pytest.raises(MitigateError, match="not a planner's state"):
            load_state(path)
    save_state(Planner(strategies).state, path)
    good = path.read_text()
    for old, new in (
        ('"counts": [8', '"counts": [1e999'),
        ('"counts": [8', '"counts": [8.5'),
        ('"lost_s": 0.0', '"lost_s": NaN'),
        ('"lost_s": 0.0', f'"lost_s": 1{"0" * 400}'),
        ('"since_step": null', '"since_step": 1.7'),
        ('"moved": []', '"moved": [[[1e999, 0], [0, 0]]]'),
    ):
        assert old in good
        path.write_text(good.replace(old, new))
        with pytest.raises(MitigateError, match="not a planner's state"):
            load_state(path)
    path.write_text(good.replace('"moved": []', '"moved": [[[0, 0], [9, 0]]]'))
    with pytest.raises(MitigateError, match="no worker dp 9"):
        Planner(strategies, state=load_state(path))
    path.write_text(json.dumps({"paceline_planner": 99}))
    with pytest.raises(MitigateError, match="version 99"):
        load_state(path)
    with pytest.raises(MitigateError, match="cannot be read"):
        load_state(tmp_path / "none.json")
    with pytest.raises(MitigateError, match="other replicas"):
        Planner(strategies, state=State(Setting((1, 2))))
    with pytest.raises(OutputError):
        save_state(Planner(strategies).state, tmp_path / "missing" / "planner.json")


def test_wrong_inputs_are_refused(strategies):
    planner = Planner(strategies)
    with pytest.raises(MitigateError, match="no worker dp 9"):
        planner.onset(Fault("compute", (9, 0), 2.0), 0)
    for lost_s in (-1e9, float("nan"), float("inf")):
        with pytest.raises(MitigateError, match="lost_s must be 0 s or more"):
            planner.onset(SLOW, 0, lost_s)
    assert planner.state.active == frozenset()
    for duration in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(MitigateError, match="above 0 s"):
            planner.update(0, duration)
    with pytest.raises(MitigateError, match="no rule"):
        Planner(strategies, rule="luck")


def test_an_action_says_who_what_and_how_much(strategies):
    planner = Planner(strategies)
    planner.onset(SLOW, 5098, lost_s=2.0)
    text = run(planner, 50, [SLOW], begin=5120)[0].explain()
    assert text.startswith("step 5,12")
    assert "dp 2, stage 1: 1.50x" in text
    assert "lost since step 5,098" in text
    assert "off replica 2 (8 to" in text
    assert "recovers" in text
    assert "for 5 s once (S2)" in text


def test_a_forecast_tells_the_actions_and_when(strategies):
    result = forecast(strategies, [SLOW], rule="loss")
    planner = Planner(strategies)
    planner.onset(SLOW, 0)
    actions = run(planner, 12_000, [SLOW])
    assert [due.action.option.strategy for due in result.due] == ["s2", "s4"]
    for due, action in zip(result.due, actions, strict=True):
        assert due.after_steps == action.step + 1
    assert forecast(strategies, [SLOW], rule="loss", steps_left=3).due == ()
