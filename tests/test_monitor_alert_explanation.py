"""Which cause of a session is that of a fail-slow: not one that was there before."""

import pytest

import requires

requires.installed("starlette")

import monitor_alerts
from paceline.monitor.alerts.explanation import explanation_of
from paceline.monitor.store.tables import session_facts

world = monitor_alerts.world

#: A newcomer's job: rank 0 logs in each tenth step, and rank 2's loader is slow in steps 151 to
#: 280. Its healthy step takes 130 ms, its profiled steps 330 ms.
LOG, LOADER = "worker dp 0, stage 0; host vm", "worker dp 2, stage 0; host vm"
ONSET = {"at": 50.0, "since_step": 151, "factor": 1.31}
OVER = {**ONSET, "relieved_at": 500.0, "relieved_step": 281}
HEALTHY_S = 0.13


def session(number, steps, log, data, place=LOADER, **more):
    """A session whose log call costs the share ``log`` of its steps, waits for data ``data``."""
    causes = [
        {"cause": "launch-delay", "place": LOG, "gain": log},
        {"cause": "data-loading", "place": place, "gain": data},
    ]
    row = {"id": number, "created_at": number * 10.0, "first_step": steps[0]}
    row |= {"last_step": steps[1], "step_s": 0.33, "slowdown": 1.02, "slowdown_healthy": None}
    row |= {"cause": "launch-delay", "place": LOG, "cause_gain": log, "causes": causes}
    return row | more


BEFORE = session(1, (10, 100), 0.604, 0.0146, place=None)
SINCE = session(7, (110, 200), 0.524, 0.0804)


def told(sessions, onset=ONSET, episodes=(), healthy_s=HEALTHY_S):
    """(session, cause, place), or None; ``sessions`` come in order of time."""
    explanation = explanation_of(sessions[::-1], onset, episodes, healthy_s)
    if explanation is None:
        return None
    return explanation.session["id"], explanation.cause, explanation.place


def test_a_cause_that_was_there_before_is_not_that_of_the_fail_slow():
    assert told([SINCE]) == (7, "launch-delay", LOG)  # no session of before
    assert told([BEFORE, SINCE]) == (7, "data-loading", LOADER)


def test_without_another_cause_that_has_grown_it_is_unknown():
    as_before = session(7, (110, 200), 0.524, 0.0150)
    assert told([BEFORE, as_before]) is None
    small = session(7, (160, 250), 0.524, 0.0300)  # 5 ms more, where steps are 40 ms longer
    assert told([BEFORE, small]) is None
    old = {**SINCE, "causes": None}  # of an older version
    assert told([{**BEFORE, "causes": None}, old]) is None


def test_a_cause_that_grew_by_a_third_or_is_elsewhere_may_be_it():
    assert told([session(1, (10, 100), 0.38, 0.0146), SINCE]) == (7, "launch-delay", LOG)
    assert told([session(1, (10, 100), 0.40, 0.0146), SINCE]) == (7, "data-loading", LOADER)
    other = session(1, (10, 100), 0.604, 0.0146, place="worker dp 5, stage 0")
    elsewhere = [{**cause, "place": "worker dp 5, stage 0"} for cause in other["causes"]]
    other |= {"place": "worker dp 5, stage 0", "causes": elsewhere}
    assert told([other, SINCE]) == (7, "launch-delay", LOG)
    host_unknown = {**BEFORE, "place": "worker dp 0, stage 0", "causes": None}
    assert told([host_unknown, SINCE]) == (7, "data-loading", LOADER)


def test_a_fail_slow_before_does_not_show_what_is_usual():
    """A worker that is throttled twice is the cause both times."""
    first = {"at": 5.0, "since_step": 60, "factor": 1.3, "relieved_step": 140, "relieved_at": 30.0}
    assert told([BEFORE, SINCE], episodes=[first]) == (7, "launch-delay", LOG)
    calm = session(1, (10, 50), 0.01, 0.0146)
    again = {**BEFORE, "id": 2, "created_at": 20.0, "first_step": 70}
    assert told([calm, again, SINCE], episodes=[first]) == (7, "launch-delay", LOG)


def test_the_median_of_three_sessions_before_counts():
    cut = session(4, (110, 110), 0.0, 0.0)
    earlier = [{**BEFORE, "id": n, "created_at": n * 10.0} for n in (1, 2, 3)]
    assert told([*earlier, cut, SINCE]) == (7, "data-loading", LOADER)
    assert told([earlier[0], cut, {**cut, "id": 5}, SINCE]) == (7, "launch-delay", LOG)


def test_the_excess_counts_for_the_steps_of_a_session_that_lie_in_the_fail_slow():
    """Half of the session's steps are healthy: it shows half of the loader's cost."""
    half = session(7, (110, 200), 0.524, 0.055)  # 13 ms more than before
    assert told([BEFORE, half]) == (7, "data-loading", LOADER)
    whole = {**half, "first_step": 160, "last_step": 250}
    assert told([BEFORE, whole]) is None
    assert told([BEFORE, half], healthy_s=None) is None  # from the session's own long steps


@pytest.mark.parametrize("is_older", [False, True])
def test_the_alert_reads_the_causes_of_sessions_from_the_store(world, is_older):
    def stored(row):
        values = {name: row[name] for name in ("first_step", "last_step", "place", "cause_gain")}
        number = world.session(row["slowdown"], row["step_s"], cause=row["cause"], **values)
        facts = {} if is_older else {"causes": row["causes"]}
        world.row(session_facts, session_id=number, facts=facts)
        world.alerts.session_done(world.job.id, number)
        return number

    stored(BEFORE)
    world.set_job(healthy_s=HEALTHY_S)
    world.happened("onset", 151, ranks=(0, 1, 2), factor=1.31)
    world.set_job(slow_since_step=151, seen_at=world.now, status="running")
    number = stored(SINCE)
    (row,) = [row for row in world.rows() if row["rule"] == "fail-slow"]
    expected = ("fail-slow", None) if is_older else ("data-loading", number)
    assert (row["cause"], row["session_id"]) == expected
