"""Rules, judged on facts that are written down by hand."""

from dataclasses import replace

import pytest

import requires

requires.installed("starlette")

from monitor_alerts import DAY
from paceline.errors import MonitorError
from paceline.monitor.alerts.judgement import Facts, gpu_hours_at_stake, judge
from paceline.monitor.alerts.rule import DEFAULTS, Rule
from paceline.monitor.levels import LevelChanges
from paceline.monitor.web.event_cost import event_cost, lost_by_now, with_cost

RULES = {rule.name: rule for rule in DEFAULTS}


def facts(sessions=(), onset=None, now=1000.0, **job):
    usual = {"gpus": 64, "status": "running", "seen_at": now, "last_step": 7, "slow_since_step": 1}
    usual |= {"healthy_s": None}
    return Facts({**usual, **job}, list(sessions), onset, now)


def session(slowdown=1.0, step_s=1.0, at=0.0):
    about = {"id": 1, "headline": "", "cause": None, "cause_gain": None, "last_step": None}
    about["place"] = about["slowdown_lasting"] = about["slowdown_healthy"] = None
    return {"slowdown": slowdown, "step_s": step_s, "created_at": at, **about}


@pytest.mark.parametrize(
    ("slowdowns", "fires"),
    [
        ((1.2,), 0),
        ((1.2, 1.2), 1),
        ((1.1, 1.1), 1),
        ((1.09, 1.3), 0),
        ((1.3, 1.09, 1.3), 0),
        ((), 0),
    ],
)
def test_slow_in_two_sessions_in_a_row(slowdowns, fires):
    latest_first = [session(s) for s in slowdowns]
    assert bool(judge(RULES["slow-job"], facts(latest_first))) == fires


def test_gpu_hours_at_stake():
    assert gpu_hours_at_stake(64, 1.5, 24) == pytest.approx(64 * 24 / 3)
    assert gpu_hours_at_stake(64, 0.5, 24) == 0
    assert gpu_hours_at_stake(None, 1.5, 24) is None
    onset = {"factor": 1.5, "since_step": 7, "ranks": [3, 4], "lost_s": 100.0, "at": 0.0}
    onset["kind"] = "onset"
    rule = RULES["fail-slow"]
    alarm = judge(rule, facts(onset=onset))
    lost, stake = "100 s lost by 1970-01-01 00:00 UTC", "512 GPU-hours are at stake in 24 hours"
    assert f"; {lost}; {stake} at this level." in alarm.headline
    assert alarm.place == "ranks 3-4"
    assert judge(rule, facts(onset=onset, gpus=1)) is None  # 8 of them
    assert "are unknown" in judge(rule, facts(onset=onset, gpus=None)).headline
    assert judge(rule, facts()) is None


def test_what_an_event_costs():
    event = {"kind": "onset", "step": 90, "factor": 1.5, "lost_s": 225.0, "at": 7380.0}
    job = {"gpus": 64, "status": "running"}
    lost = "4 GPU-hours lost by 1970-01-01 02:03 UTC"
    assert event_cost(event, job).text == f"{lost}; 512 GPU-hours a day at stake at this level"
    assert event_cost({**event, "kind": "relief"}, job).text == lost
    assert event_cost(event, {**job, "gpus": None}).text == ""  # how many GPUs is not known
    row = with_cost({**event, "gpus": 8, "job_status": "running"})
    assert (row["lost_gpu_hours"], row["at_stake_gpu_hours"]) == (0.5, 64)
    assert "job_status" not in row


@pytest.mark.parametrize("status", ["new", "ended"])
def test_a_job_that_does_not_run_has_no_daily_stake(status):
    """A recording pushed by hand is new. Its fail-slow lasts from step 10 to the last one."""
    job = {"status": status, "gpus": 64, "seen_at": 7380.0, "healthy_s": 2.0, "last_step": 685}
    onset = {"kind": "onset", "factor": 1.5, "lost_s": 225.0, "at": 6480.0, "step": 10}
    onset |= {"ranks": [0], "text": "slow"}
    changes = LevelChanges.of([onset])
    assert event_cost(onset, job, changes).text == "16 GPU-hours lost by step 685"
    relief = {**onset, "kind": "relief", "at": 7000.0, "step": 685, "lost_s": 900.0}
    changes = LevelChanges.of([relief, onset])
    assert event_cost(onset, job, changes).text == "4 GPU-hours lost by step 10"
    assert event_cost(relief, job, changes).text == "16 GPU-hours lost by step 685"
    row = with_cost({**onset, "gpus": 64, "job_status": status})
    assert row["at_stake_gpu_hours"] is None


def test_what_goes_on_has_cost_more_since():
    job = {"status": "running", "slow_since_step": 7, "gpus": 64, "seen_at": 7380.0}
    job |= {"healthy_s": None, "last_step": 1000}
    event = {"kind": "onset", "factor": 1.5, "lost_s": 225.0, "at": 6480.0}
    event |= {"ranks": [0], "text": "", "step": 10}
    now = "9.33 GPU-hours lost by 1970-01-01 02:03 UTC"  # 225 s and a third of 900 s
    assert lost_by_now(job, LevelChanges.of([event])) == now
    assert lost_by_now({**job, "gpus": None}, LevelChanges.of([event])) == ""
    assert lost_by_now({**job, "slow_since_step": None}, LevelChanges.of([event])) == ""
    assert lost_by_now(job, LevelChanges()) == ""


def test_steps_that_come_late_have_cost_what_they_took():
    job = {"status": "running", "slow_since_step": 7, "gpus": 64, "seen_at": 6490.0}
    job |= {"healthy_s": 2.0, "last_step": 685}
    event = {"kind": "onset", "factor": 1.5, "lost_s": 225.0, "at": 6480.0}
    event |= {"ranks": [0], "text": "", "step": 10}
    now = "16 GPU-hours lost by 1970-01-01 01:48 UTC"  # 225 s and a second of 675 steps
    assert lost_by_now(job, LevelChanges.of([event])) == now
    again = {**job, "last_step": 5}  # the job runs steps again: by the clock
    assert lost_by_now(again, LevelChanges.of([event])).startswith("4.06 GPU-hours")


def test_silence_of_a_job_begins_and_is_forgotten():
    rule = RULES["job-silent"]
    assert judge(rule, facts(seen_at=101)) is None
    assert judge(rule, facts(seen_at=100)).headline.startswith("No step for 15 minutes")
    minute = replace(rule, after_s=60.0)
    assert judge(minute, facts(seen_at=100)).headline.startswith("No step for 1 minute;")
    assert judge(rule, facts(seen_at=100, status="ended")) is None
    assert judge(rule, facts(seen_at=100, last_step=None)) is None
    assert judge(rule, facts(seen_at=0, now=DAY)) is None


def test_regression_against_the_last_week():
    rule = RULES["regression"]
    week = [session(step_s=s, at=10 * DAY - i * DAY) for i, s in enumerate((1.2, 1.0, 1.1, 1.0))]
    assert "1.20 times the median of the last 3 days (1.000 s)" in judge(rule, facts(week)).headline
    assert judge(rule, facts([session(step_s=1.09, at=10 * DAY), *week[1:]])) is None
    assert judge(rule, facts(week[:3])) is None  # too few before
    healthy = {**week[0], "cause": "healthy"}
    assert judge(rule, facts([healthy, *week[1:]])).cause is None
    old = [week[0], *(session(step_s=1.0, at=2.9 * DAY) for _ in range(9))]
    assert judge(rule, facts(old)) is None
    assert judge(rule, facts([session(step_s=None)])) is None


def test_rules_check_themselves():
    with pytest.raises(MonitorError, match="after_s must be above 0"):
        Rule("x", "silent", after_s=0)


def test_a_rule_says_when_it_alerts():
    assert Rule("a", "slowdown", sessions=1).explain() == "S of 1.1 or more in one session"
    assert Rule("a", "slowdown", sessions=3).explain() == "S of 1.1 or more in 3 sessions in a row"
    text = Rule("a", "fail-slow", lost_s=60).explain()
    assert text.endswith("at stake in 24 hours, once it has lost 1 minute")


def test_an_alert_that_got_worse_says_when_the_fail_slow_began():
    onset = {"factor": 1.5, "since_step": 70, "ranks": [3], "lost_s": 100.0, "at": 0.0}
    worse = {**onset, "kind": "worsening"}
    alarm = judge(RULES["fail-slow"], facts(onset=worse, slow_since_step=20))
    assert "1.50x as long since step 70; " in alarm.headline
    assert alarm.headline.endswith(" at this level. They have been slow since step 20.")
    for same in ({**onset, "kind": "onset"}, {**worse, "since_step": 20}):
        alarm = judge(RULES["fail-slow"], facts(onset=same, slow_since_step=20))
        assert "They have been" not in alarm.headline


#: A fault of one rank from step 200 on, on a machine that was busy before: the detector's events
#: of a real job. Ranks wait for each other.
CHANGES = [
    ("onset", 73, 57, 1.52, [0, 1, 2, 3]),
    ("partial-relief", 106, 98, 1.21, [1]),
    ("worsening", 202, 200, 4.73, [0, 1, 2, 3]),
    ("partial-relief", 241, 236, 4.25, [0, 1, 2, 3]),
    ("partial-relief", 311, 303, 2.38, [0, 1, 2, 3]),
    ("worsening", 344, 332, 4.26, [0, 2, 3]),
    ("partial-relief", 369, 365, 3.72, [0, 2, 3]),
    ("partial-relief", 397, 366, 2.81, [3]),
]


def level_after(n, changes=CHANGES):
    """The fail-slow after the first n of these events; an event's time is its step."""
    names = ("kind", "step", "since_step", "factor", "ranks")
    events = [dict(zip(names, change, strict=True)) for change in changes[:n]]
    events = [{**e, "at": float(e["step"]), "lost_s": 90.0, "text": f"{e}"} for e in events]
    return LevelChanges.of(events[::-1]).slow


@pytest.mark.parametrize(
    ("n_events", "text", "end"),
    [
        (1, "1.52x as long since step 57;", ""),
        (3, "4.73x as long since step 200;", " They have been slow since step 57."),
        (6, "4.26x as long since step 332;",
            " They have been slow since step 57, mostly since step 200."),
        (8, "3.72x as long since step 365;",
            " They have been slow since step 57, mostly since step 200."),
    ],
)  # fmt: skip
def test_the_steps_at_which_a_fail_slow_began_stay(n_events, text, end):
    alarm = judge(RULES["fail-slow"], facts(onset=level_after(n_events), slow_since_step=57))
    assert text in alarm.headline
    assert alarm.headline.endswith(f" at this level.{end}")


#: A fault from step 300 on, with disturbances that pass: the detector's events of a real job.
DISTURBED = [
    ("onset", 306, 300, 1.743, [0, 1]),
    ("worsening", 407, 397, 2.189, [1]),
    ("partial-relief", 427, 417, 1.612, [1]),
    ("worsening", 471, 461, 2.562, [0, 1]),
    ("partial-relief", 491, 478, 1.662, [0, 1]),
    ("worsening", 880, 856, 2.5, [0, 1]),
]


def test_a_disturbance_that_passed_is_not_the_largest_rise():
    for n_events, step in ((5, 478), (6, 856)):
        onset = level_after(n_events, DISTURBED)
        alarm = judge(RULES["fail-slow"], facts(onset=onset, slow_since_step=300))
        assert f"as long since step {step}; " in alarm.headline
        assert alarm.headline.endswith(" They have been slow since step 300.")


def test_the_first_step_of_a_fail_slow_is_that_of_its_first_event():
    """The median of the ranks' steps lies elsewhere, and the row has none after the relief."""
    for median in (57, 200, 205, None):
        for n_events, text in ((3, "as long since step 200"), (6, "mostly since step 200")):
            onset = level_after(n_events)
            alarm = judge(RULES["fail-slow"], facts(onset=onset, slow_since_step=median))
            assert "They have been slow since step 57" in alarm.headline
            assert text in alarm.headline


def test_a_session_since_the_largest_rise_names_the_cause_at_each_later_level():
    named = {"id": 9, "headline": "Worker dp 2 is slow.", "cause": "worker", "last_step": 290}
    before = {**session(5.0, at=150.0), **named, "id": 8, "last_step": 150}
    of_fault = {**session(4.0, at=295.0), **named}
    unexplained = {**session(1.4, at=390.0), "cause": "unexplained", "last_step": 385}
    for n_events in (4, 6, 8):
        onset = level_after(n_events)
        alarm = judge(RULES["fail-slow"], facts([unexplained, of_fault, before], onset))
        assert (alarm.cause, alarm.session_id, alarm.since) == ("worker", 9, 202.0)
        assert judge(RULES["fail-slow"], facts([before], onset)).cause == "fail-slow"


def test_slow_sessions_without_a_cause_keep_the_one_that_became_known():
    named = {"id": 9, "headline": "Worker dp 2 is slow.", "cause": "worker", "last_step": 290}
    unexplained = {**session(1.4), "cause": "unexplained", "headline": "No known pattern."}
    alarm = judge(RULES["slow-job"], facts([unexplained, {**session(4.0), **named}]))
    assert (alarm.cause, alarm.session_id, alarm.factor) == ("worker", 9, 1.4)
    said = "S = 1.400: 1.1 or more in 2 sessions in a row. A session up to step 290 said: "
    assert alarm.headline == said + "Worker dp 2 is slow."
    usual = session(1.0)
    alarm = judge(RULES["slow-job"], facts([unexplained] * 2 + [usual, {**usual, **named}]))
    assert (alarm.cause, alarm.session_id) == ("unexplained", 1)
