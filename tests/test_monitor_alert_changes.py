"""One change of a job is told by one alert, with the cause and place that belong together."""

import threading

import pytest

pytest.importorskip("starlette", reason="the monitor is an extra")

from sqlalchemy import event as database_event

from monitor_alerts import DAY, HOUR, World, hooked
from monitor_alerts import hook as hook
from monitor_alerts import world as world
from monitor_web import eventually
from paceline.monitor.alerts.news import News
from paceline.monitor.levels import Levels
from paceline.monitor.store import alerts as store
from paceline.monitor.store import events as event_rows
from paceline.monitor.store import jobs
from paceline.monitor.store.tables import deliveries

CHANNELS = """
channels:
  all: {{type: webhook, url: '{url}'}}
  sessions: {{type: webhook, url: '{url}', rules: [slow-job]}}
"""


def started(world):
    """Rules of all alerts that ever started, in order."""
    return [row["rule"] for row in world.rows()]


def usual_days(world, n=3):
    """Sessions with the usual step, a day apart."""
    for _ in range(n):
        world.now += DAY
        world.session(1.0)


def test_sessions_of_a_fail_slow_wake_nobody_again(world):
    usual_days(world)
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    for _ in range(3):  # S is high, and a step takes longer than in the days before
        world.session(1.4, step_s=1.5)
    assert started(world) == ["fail-slow"]
    world.happened("relief", 900)
    world.set_job(slow_since_step=None)
    world.pass_time(100)
    assert (started(world), world.firing()) == (["fail-slow"], [])  # the sessions are of before
    world.session(1.4, step_s=1.5)  # slow without a fail-slow
    assert started(world)[0] == "fail-slow"
    assert len(started(world)) == 2


def test_a_small_fail_slow_does_not_hide_a_large_slowdown(world):
    usual_days(world)
    world.happened("onset", 100, factor=1.15)
    world.set_job(slow_since_step=100)
    for _ in range(2):
        world.session(1.2, step_s=1.2)
    assert started(world) == ["fail-slow"]
    for _ in range(2):
        world.session(3.0, cause="sequence-length")
    assert started(world) == ["fail-slow", "slow-job"]
    assert world.rows()[1]["headline"].startswith("Worker dp 3, stage 1 is slow. S = 3.000: ")


def test_a_slower_step_and_a_higher_s_are_one_change(world):
    usual_days(world)
    world.session(1.3, step_s=1.3)
    assert started(world) == ["regression"]
    world.session(1.3, step_s=1.3)  # two sessions in a row: slow-job holds, too
    assert started(world) == ["regression"]
    world.now += 8 * DAY
    for _ in range(3):
        world.session(1.0)
    assert world.firing() == []


def test_a_new_change_of_a_job_that_was_slow_before_is_told(world):
    for _ in range(4):
        world.session(1.2)
        world.now += DAY
    assert started(world) == ["slow-job"]
    world.session(1.8, step_s=1.5)
    assert started(world) == ["slow-job", "regression"]


def test_an_alert_that_began_with_the_onset_ends_when_the_fail_slow_is_told(world):
    world.set_job(last_step=110, healthy_s=1.0, slow_since_step=100, seen_at=world.now + DAY)
    world.happened("onset", 100, factor=1.3, lost_s=1.0)  # 3 s more in ten steps
    world.session(1.3)
    world.session(1.3)
    assert world.firing() == ["slow-job"]
    world.set_job(last_step=400)
    world.pass_time(10)
    assert world.firing() == ["fail-slow"]
    (slow, fail_slow) = world.rows()
    assert slow["headline"].endswith("The alert fail-slow tells the same change.")
    assert fail_slow["cause"] == "worker"
    world.session(1.3)
    assert world.firing() == ["fail-slow"]


def test_a_channel_that_only_one_rule_reaches_is_told(tmp_path, hook):
    world = World(tmp_path, CHANNELS.format(url=hook.url))
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    world.session(1.4)
    world.session(1.4)
    assert started(world) == ["fail-slow", "slow-job"]
    told = {(row["channel"], row["alert_id"]) for row in world.rows(deliveries)}
    assert told == {("all", 1), ("all", 2), ("sessions", 2)}


def test_a_silent_alert_stands_for_no_other(tmp_path, hook):
    world = hooked(tmp_path, hook)
    store.add_silence(
        world.engine, "llm", rule="fail-slow", job=None, until=world.now + DAY, comment="", now=0.0
    )
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    world.session(1.4)
    world.session(1.4)
    assert started(world) == ["fail-slow", "slow-job"]


def test_variation_that_passes_is_no_slow_job(world):
    for _ in range(3):
        world.session(1.4, slowdown_lasting=1.01, cause="drift")
    assert started(world) == []
    world.session(1.4, slowdown_lasting=1.2)
    world.session(1.4, slowdown_lasting=1.2)
    (row,) = world.rows()
    assert row["headline"] == (
        "Worker dp 3, stage 1 is slow. "
        "S = 1.400, of which 1.200 lasts or has a cause: 1.1 or more in 2 sessions in a row."
    )


def test_waits_for_data_make_a_slow_job_although_s_is_low(world):
    """A newcomer's job: its S is 1.112, and each step waits 54.6% of its time for one loader."""
    waits = {"slowdown_lasting": 1.008, "data_loading": 0.546, "cause": "data-loading"}
    for _ in range(2):
        world.session(1.112, headline="Worker dp 1, stage 0 waits for data.", **waits)
    (row,) = world.rows()
    assert (row["rule"], row["cause"]) == ("slow-job", "data-loading")
    assert row["headline"] == (
        "Worker dp 1, stage 0 waits for data. "
        "S = 1.112, of which 1.008 lasts or has a cause; with data loading, 54.6% of the step, it "
        "is 2.220: 1.1 or more in 2 sessions in a row."
    )


def test_of_a_loss_without_a_cause_the_part_beyond_chance_is_told(world):
    for _ in range(2):
        world.session(1.4, slowdown_lasting=1.2, cause="unexplained")
    (row,) = world.rows()
    assert " S = 1.400, of which 1.200 is beyond chance: 1.1 or more" in row["headline"]


def test_a_slow_job_is_judged_by_the_upper_end_of_s(world):
    """One of two workers is 1.16x slow: S is 1.07, for the ideal is the mean of both."""
    for _ in range(2):
        world.session(1.07, slowdown_lasting=1.06, slowdown_healthy=1.16)
    (row,) = world.rows()
    said = " S = 1.070 to 1.160, of which 1.060 to 1.149 lasts or has a cause: 1.1 or more in 2"
    assert said in row["headline"]


def test_two_workers_name_the_slow_one_although_s_is_low(world):
    """The ideal is the mean of both: S is 1.4 if one takes 2.3 times as long."""
    world.happened("onset", 100, factor=2.3)
    world.set_job(slow_since_step=100)
    world.session(1.4, cause_gain=0.1)
    assert world.rows()[0]["cause"] == "fail-slow"
    world.session(1.4, cause_gain=0.5)
    assert world.rows()[0]["cause"] == "worker"


def test_an_unexplained_session_and_one_of_earlier_steps_name_nobody(world):
    world.happened("onset", 100)
    world.set_job(slow_since_step=100)
    world.session(1.6, cause="unexplained")
    world.session(1.6, last_step=99, cause="data-loading")
    assert world.rows()[0]["cause"] == "fail-slow"
    world.session(1.6, last_step=130)
    assert world.rows()[0]["cause"] == "worker"


def test_many_jobs_are_judged_in_a_few_statements(world):
    def statements(n_jobs, first):
        for k in range(first, first + n_jobs):
            job = jobs.register(world.engine, "llm", f"many-{k}", world.now, gpus=64)
            row = {"job_id": job.id, "at": world.now, "kind": "onset", "start": 0, "step": 5}
            row |= {"since_step": 5, "factor": 1.5, "lost_s": 100.0, "ranks": [3], "text": "slow"}
            event_rows.add(world.engine, row)
            with world.engine.begin() as connection:
                connection.execute(
                    jobs.jobs.update()
                    .where(jobs.jobs.c.id == job.id)
                    .values(status="running", slow_since_step=5, last_step=9)
                )
        asked = []

        def note(connection, cursor, statement, parameters, context, many):
            asked.append(statement)

        database_event.listen(world.engine, "before_cursor_execute", note)
        world.alerts.tick(world.now)
        database_event.remove(world.engine, "before_cursor_execute", note)
        return len(asked)

    few, many = statements(2, 0), statements(60, 2)
    assert len(world.firing()) == 62
    assert many <= few


def test_slow_jobs_that_are_told_are_not_judged_at_every_tick(world, monkeypatch):
    world.set_job(status="running", last_step=9)
    world.happened("onset", 100)
    world.set_job(slow_since_step=100, seen_at=world.now)
    world.pass_time(10)  # the full round after the start
    judged = []
    monkeypatch.setattr(world.alerts, "judge_many", lambda jobs, now: judged.extend(jobs))
    world.pass_time(10)
    assert judged == []
    world.set_job(slow_since_step=None)
    world.pass_time(10)
    assert judged == [world.job.id]


def test_news_are_judged_together_and_again_after_an_error(monkeypatch):
    monkeypatch.setattr("paceline.monitor.alerts.news._RETRY_S", 0.01)
    judged, may_go_on = [], threading.Event()

    def judge(news):
        judged.append(dict(news))
        assert may_go_on.wait(60)
        if len(judged) == 2:
            raise RuntimeError("the store is away")

    may_go_on.set()
    news = News(judge)
    news.add(1, None)  # without a thread: at once
    assert judged == [{1: None}]
    may_go_on.clear()
    news.begin()
    news.add(2, False)
    eventually(lambda: len(judged) == 2)
    for job_id in (3, 4, 3):  # while the first is judged
        news.add(job_id, None)
    may_go_on.set()
    eventually(lambda: len(judged) == 3)
    assert judged[2] == {2: False, 3: None, 4: None}
    news.end()
    news.add(5, None)
    assert judged[3:] == [{5: None}]


def test_levels_are_read_again_only_when_an_event_changes(world):
    row = {"job_id": world.job.id, "at": 5.0, "kind": "onset", "start": 0, "step": 5}
    row |= {"since_step": 5, "factor": 1.5, "lost_s": 9.0, "ranks": [3], "text": "slow"}
    event_rows.add(world.engine, row)
    levels, asked = Levels(), []

    @database_event.listens_for(world.engine, "before_cursor_execute")
    def note(connection, cursor, statement, parameters, context, many):
        asked.append(statement)

    def slow_ranks():
        asked.clear()
        with world.engine.connect() as connection:
            changes = levels.of(connection, [world.job.id])
        level = changes.get(world.job.id)
        return level and (level.slow["ranks"] if level.slow else []), len(asked)

    assert slow_ranks() == ([3], 2)
    assert slow_ranks() == ([3], 1)
    event_rows.add(world.engine, {**row, "ranks": [3, 4]})  # one more rank joins
    assert slow_ranks() == ([3, 4], 2)
    event_rows.add(world.engine, {**row, "kind": "relief", "step": 9, "ranks": [4], "text": "ok"})
    assert slow_ranks() == ([3], 2)
    event_rows.remove_older(world.engine, 1e9, "llm")
    assert slow_ranks() == (None, 1)


def test_a_fail_slow_ends_with_the_cause_that_became_known(tmp_path, hook):
    """Later changes of the level, and a relief, do not take the place away."""
    world = hooked(tmp_path, hook)
    world.happened("onset", 100, ranks=range(4), factor=4.0)
    world.set_job(slow_since_step=100)
    world.session(3.0, last_step=180)
    (named,) = world.rows()
    assert named["cause"] == "worker"
    world.pass_time(10)
    world.happened("partial-relief", 200, ranks=(0, 1, 2), factor=3.0)
    world.happened("partial-relief", 210, ranks=(3,), factor=2.5)
    world.session(1.2, cause="unexplained", last_step=230)
    world.set_job(status="ended")
    world.pass_time(400)
    (ended,) = world.rows()
    assert (ended["status"], ended["cause"]) == ("resolved", "worker")
    assert ended["session_id"] == named["session_id"]
    text = "Fail-slow: steps took 3.00x to 4.00x as long since step 100"
    assert ended["headline"].startswith(text)


def test_the_loss_of_a_rank_that_recovered_counts_no_step_twice(world):
    """Rank 1's loss reaches step 599. The onset of the ranks that are still slow was at 477."""
    world.set_job(healthy_s=1.0, last_step=477, slow_since_step=452, seen_at=world.now + DAY)
    world.happened("onset", 477, ranks=(0, 1, 2), factor=1.5, lost_s=12.5)
    world.happened("relief", 599, ranks=(1,), factor=1.5, lost_s=73.5)
    world.set_job(last_step=599)
    jobs.end(world.engine, world.job.id, world.now)
    world.alerts.judge(world.job.id, world.now)
    (row,) = world.rows()
    assert "; 73.5 s lost in all. The job has ended." in row["headline"]


def test_an_ended_fail_slow_tells_its_last_loss_and_nothing_at_stake(world):
    """The rank whose level is the latest has lost most; another one is slow since later."""
    world.set_job(healthy_s=1.0, last_step=120, slow_since_step=100, seen_at=world.now + DAY)
    world.happened("onset", 100, ranks=(0,), factor=1.5, lost_s=90.0)
    world.happened("onset", 110, ranks=(1,), factor=1.6, lost_s=70.0)
    world.happened("partial-relief", 200, ranks=(0,), factor=1.4, lost_s=140.0)
    (row,) = world.rows()
    assert "; 2.3 minutes lost by 1970" in row["headline"]
    assert "GPU-hours are at stake" in row["headline"]
    world.set_job(last_step=300)
    jobs.end(world.engine, world.job.id, world.now)
    world.alerts.judge(world.job.id, world.now)
    (row,) = world.rows()
    assert row["headline"] == (  # 140 s, then 100 steps that take 0.6 s more
        "Fail-slow: steps took 1.50x to 1.60x as long since step 100; "
        "3.3 minutes lost in all. The job has ended."
    )


def test_a_relieved_fail_slow_tells_the_loss_of_its_relief(world):
    world.set_job(healthy_s=1.0, last_step=120, slow_since_step=100, seen_at=world.now + DAY)
    world.happened("onset", 100, factor=1.5, lost_s=60.0)
    world.happened("relief", 400, factor=1.5, lost_s=150.0)
    world.set_job(last_step=900, slow_since_step=None)
    world.pass_time(100)
    (row,) = world.rows()
    assert row["status"] == "resolved"
    assert row["headline"] == (
        "Fail-slow: steps took 1.50x as long since step 100; 2.5 minutes lost in all. "
        "Steps are healthy again since step 400."
    )


def test_a_recording_pushed_by_hand_starts_no_fail_slow_alert(world):
    """Its last step lies in the past: nothing is at stake. Its status stays as it is."""
    world.set_job(last_step=400, healthy_s=1.0, slow_since_step=100)
    world.happened("onset", 100)
    assert started(world) == ["fail-slow"]  # of live steps
    world.job = jobs.register(world.engine, "llm", "recorded", world.now, gpus=64)
    world.set_job(last_step=400, healthy_s=1.0, slow_since_step=100)
    world.happened("onset", 100, is_live=False)
    world.pass_time(400)
    assert started(world) == ["fail-slow"]
    assert world.rows()[0]["job_id"] != world.job.id


def test_a_session_of_before_a_partial_relief_is_of_the_fail_slow(world):
    world.happened("onset", 100, ranks=range(4), factor=6.0)
    world.set_job(slow_since_step=100)
    for _ in range(2):
        world.session(5.0)
    world.pass_time(10)
    world.happened("partial-relief", 300, ranks=range(4), factor=2.0)
    world.pass_time(10)
    assert started(world) == ["fail-slow"]
    for _ in range(2):
        world.session(5.0, last_step=290)  # analysed late: its steps lie before the relief
    assert started(world) == ["fail-slow"]
    world.session(5.0)  # at the lower level it is another change
    assert started(world) == ["fail-slow", "slow-job"]


ONE_SESSION = "rules: {slow-job: {at_least: 1.2, sessions: 1}}"


def session_after(world, seconds, last_step):
    """A session of a slow worker among two: S says little, its upper end all."""
    world.now += seconds - HOUR
    world.session(1.57, slowdown_healthy=3.5, last_step=last_step)


def test_a_session_of_before_a_relief_is_not_held_against_the_next_fail_slow(tmp_path):
    """A real job's times: the alert goes on over the relief, and a smaller fail-slow follows."""
    world = World(tmp_path, ONE_SESSION)
    world.happened("onset", 80, factor=2.29)
    world.set_job(slow_since_step=80)
    session_after(world, 50, 190)
    world.pass_time(18)
    world.happened("relief", 230, factor=2.29)
    world.set_job(slow_since_step=None)
    world.pass_time(8)
    world.happened("onset", 293, factor=1.83)
    world.set_job(slow_since_step=293)
    assert started(world) == ["fail-slow"]
    session_after(world, 1, 290)  # it comes late, with steps of before the onset
    world.pass_time(1)
    assert started(world) == ["fail-slow"]
    session_after(world, 10, 390)  # much slower than the present fail-slow
    assert started(world) == ["fail-slow", "slow-job"]


def test_a_session_of_before_the_first_fail_slow_shows_another_change(tmp_path):
    world = World(tmp_path, ONE_SESSION)
    world.happened("onset", 293, factor=1.2)
    world.set_job(slow_since_step=293)
    session_after(world, 1, 290)
    assert started(world) == ["fail-slow", "slow-job"]


def test_a_fail_slow_that_a_second_rank_joins_began_with_the_first(world):
    world.happened("onset", 100, ranks=(0,))
    world.now += 10
    world.happened("onset", 150, ranks=(1,))
    with world.engine.connect() as connection:
        (level,) = Levels().of(connection, [world.job.id]).values()
    assert (level.slow["began_step"], level.slow["began_at"]) == (100, world.now - 10)


def test_a_warning_of_before_a_worsening_ends_when_the_fail_slow_is_told(world):
    """The largest rise may be later than the onset: the change began with the onset."""
    world.set_job(last_step=110, healthy_s=1.0, slow_since_step=100, seen_at=world.now + DAY)
    world.happened("onset", 100, factor=1.3, lost_s=1.0)
    world.session(1.3)
    world.session(1.3)
    assert world.firing() == ["slow-job"]
    world.pass_time(10)
    world.happened("worsening", 200, factor=2.0, lost_s=30.0)
    world.set_job(last_step=400)
    world.pass_time(10)
    assert world.firing() == ["fail-slow"]
    slow = world.rows()[0]
    assert slow["headline"].endswith("The alert fail-slow tells the same change.")


def test_an_alert_that_ends_tells_the_loss_of_all_fail_slows_that_it_covered(world):
    """An earlier fail-slow had no alert. This one goes on over a relief and a disturbance."""
    world.set_job(healthy_s=1.0, last_step=120, slow_since_step=50, seen_at=world.now + DAY)
    world.happened("onset", 50, factor=1.3, lost_s=7.0)
    world.happened("relief", 80, factor=1.3, lost_s=9.0)
    world.pass_time(10)
    world.set_job(last_step=220, slow_since_step=200)
    world.happened("onset", 200, factor=2.0, lost_s=100.0)
    assert world.firing() == ["fail-slow"]
    world.pass_time(10)
    world.happened("relief", 600, factor=2.0, lost_s=400.0)
    world.pass_time(10)
    world.happened("onset", 620, factor=1.4, lost_s=2.0)
    world.set_job(last_step=620, slow_since_step=620)
    world.pass_time(10)
    world.happened("faster", 650, factor=0.9, lost_s=8.0)
    world.set_job(last_step=900, slow_since_step=None)
    world.pass_time(100)
    (row,) = world.rows()
    assert row["headline"] == (
        "Fail-slow: steps took 1.40x to 2.00x as long since step 200, with 1 relief between; "
        "6.8 minutes lost in all. Steps are healthy again since step 650. "
        "Steps 200 to 599 lost 6.7 minutes of it: rank 3."
    )


def test_an_alert_takes_the_factor_of_all_steps_of_the_level(world):
    """The factor of the event rests on its first steps; the page has that of the job's row."""
    world.set_job(healthy_s=1.0, last_step=100, slow_since_step=100, seen_at=world.now + DAY)
    world.set_job(slow_factor=1.0)  # the row has not followed the onset yet
    world.happened("onset", 103, factor=1.9, lost_s=100.0)
    (row,) = world.rows()
    assert "steps take 1.90x as long" in row["headline"]
    world.set_job(last_step=180, slow_factor=1.6)
    world.pass_time(40)
    (row,) = world.rows()
    assert "steps take 1.60x as long" in row["headline"]
    jobs.end(world.engine, world.job.id, world.now)
    world.alerts.judge(world.job.id, world.now)
    (row,) = world.rows()
    assert "steps took 1.60x as long since step 103; " in row["headline"]
