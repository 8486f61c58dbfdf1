"""What the pages read, from both kinds of store."""

import re

import pytest
from sqlalchemy import event

import requires

requires.installed("starlette")

from monitor_fleet import DAY_S, NOW, Monitor
from monitor_stores import STORES
from paceline.monitor.store import alerts as alert_rows
from paceline.monitor.store import events, jobs, queries, sessions
from paceline.monitor.store.database import open_database
from paceline.monitor.store.tables import alerts, deliveries, session_facts, silences

WEEK_S = 7 * DAY_S
MONDAY = 4 * DAY_S + 100 * WEEK_S


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    """An empty store of each kind, as `Monitor` fills it."""
    with STORES[request.param](tmp_path) as url:
        monitor = Monitor(tmp_path, store=url)
        yield monitor
        monitor.close()


def read(store, query, *args, **options):
    with store.engine.connect() as connection:
        return query(connection, *args, **options)


def names(page):
    return [row["name"] for row in page.rows]


def test_the_list_is_worst_first_and_unknown_last(store):
    for name, waste in (("a", 0.1), ("b", None), ("c", 0.3), ("d", 0.3)):
        store.add_job(name, waste=waste)
    assert names(read(store, queries.list_jobs, "*")) == ["c", "d", "a", "b"]
    assert names(read(store, queries.list_jobs, "*", order="name")) == ["a", "b", "c", "d"]


def test_jobs_that_have_ended_are_shown_to_those_who_ask(store):
    for name, status in (("a", "running"), ("b", "ended"), ("c", "silent"), ("d", "new")):
        store.add_job(name, status=status)
    page = read(store, queries.list_jobs, "*", order="name")
    assert (names(page), page.n_found, page.n_all) == (["a", "c", "d"], 3, 4)
    asked = {"ended": ["b"], "running": ["a"], queries.ANY: ["a", "b", "c", "d"]}
    for status, expected in asked.items():
        page = read(store, queries.list_jobs, "*", order="name", status=status)
        assert names(page) == expected


def test_a_fail_slow_that_goes_on_counts_as_waste(store):
    slow = {"slow_since_step": 9, "step_s": 1.5, "healthy_s": 1.0}
    store.add_job("healthy", waste=0.0)
    store.add_job("slow", **slow)
    store.add_job("slow and wasteful", waste=0.4, **slow)
    store.add_job("wasteful", waste=0.2)
    store.add_job("it is over", **{**slow, "slow_since_step": None})
    store.add_job("new")
    found = names(read(store, queries.list_jobs, "*"))
    assert found[:4] == ["slow and wasteful", "slow", "wasteful", "healthy"]
    assert found[4:] == ["it is over", "new"]


def test_the_list_tells_of_the_latest_session(store):
    job, _ = store.add_job("a"), store.add_job("b")
    store.add_session(job, NOW - 9, None, status="done")
    store.add_session(job, NOW - 5, None, status="failed", reason="no column 'step'")
    first, second = read(store, queries.list_jobs, "*").rows
    assert (first["latest"]["status"], first["latest"]["reason"]) == ("failed", "no column 'step'")
    assert second["latest"] is None


def test_pages_of_the_list_cover_it_once(store):
    for i in range(queries.PAGE + 7):
        store.add_job(f"job-{i:03d}", waste=i / 100)
    first = read(store, queries.list_jobs, "*")
    last = read(store, queries.list_jobs, "*", page=999)
    assert (first.n_found, first.n_all, first.n_pages, last.page) == (57, 57, 2, 2)
    assert len(first.rows) == queries.PAGE
    assert len({*names(first), *names(last)}) == 57


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("", ["vision-1", "llm-2", "llm-10%"]),
        ("LLM", ["llm-2", "llm-10%"]),
        ("llm core", ["llm-2"]),
        ("10%", ["llm-10%"]),
        ("l_m", []),
        ("équipe", ["llm-10%"]),
        ('say "hi"', []),
        ("worker", ["vision-1"]),
        ("wasteful", ["llm-2"]),
        ("no such", []),
    ],
)
def test_search_finds_all_words_in_names_labels_cause_and_headline(store, search, found):
    store.add_job("vision-1", waste=0.3, cause="worker")
    store.add_job("llm-2", waste=0.2, labels={"team": "core"}, headline="a wasteful job")
    store.add_job("llm-10%", waste=0.1, labels={"équipe": "b"})
    assert names(read(store, queries.list_jobs, "*", search=search)) == found


def test_status_and_project_choose(store):
    store.add_job("a", project="p", status="silent")
    store.add_job("a", project="q", status="running")
    store.add_job("b", project="p", status="running")
    assert names(read(store, queries.list_jobs, "p")) == ["a", "b"]
    assert names(read(store, queries.list_jobs, "p", status="running")) == ["b"]
    assert read(store, queries.list_jobs, "p", status="running").n_all == 2
    assert len(read(store, queries.list_jobs, "*").rows) == 3


def test_a_job_is_found_within_its_project(store):
    store.add_job("a", project="p", seen_at=NOW - 9)
    store.add_job("a", project="q", seen_at=NOW)
    assert read(store, queries.find_job, "p", "a")["project"] == "p"
    assert read(store, queries.find_job, "*", "a")["project"] == "q"
    assert read(store, queries.find_job, "r", "a") is None


def test_sessions_events_and_alerts_of_a_job(store):
    mine, other = store.add_job("mine"), store.add_job("other")
    first = store.add_session(mine, NOW - 9, None, meta={"hosts": {"0": ["n", "0"]}})
    second = store.add_session(mine, NOW - 5, None, status="failed", reason="x")
    store.add_session(other, NOW, None)
    found = read(store, queries.job_sessions, mine)
    assert [row["id"] for row in found] == [second, first]
    assert "meta" not in found[0]  # it may hold the hosts of 10,000 ranks
    assert read(store, queries.job_session, mine, first)["status"] == "queued"
    assert read(store, queries.job_session, other, first) is None


def alert(store, job_id, name, status, started_at, **more):
    values = {"fingerprint": name, "rule": "slow-job", "project": "p", "importance": "critical"}
    values |= {"headline": name, "status": status, "started_at": started_at}
    return store.add(alerts, job_id=job_id, updated_at=started_at, **{**values, **more})


def test_alerts_that_fire_come_first_with_what_became_of_their_messages(store):
    job = store.add_job("a", project="p")
    over = alert(store, job, "over", "resolved", NOW)
    fires = alert(store, job, "fires", "firing", NOW - 99)
    alert(store, job, "other", "firing", NOW, project="q")
    states = ("delivered", "delivered", "waiting", "given-up")
    for i, state in enumerate(states):
        message = {"channel": f"c{i}", "status": "firing", "state": state, "next_at": NOW}
        store.add(deliveries, alert_id=fires, **message)
    found = read(store, queries.list_alerts, "p")
    assert [row["id"] for row in found] == [fires, over]
    counts = ("n_delivered", "n_waiting", "n_failed")
    assert [tuple(row[name] for name in counts) for row in found] == [(2, 1, 1), (0, 0, 0)]
    assert found[0]["job"] == "a"
    assert [row["id"] for row in read(store, queries.list_alerts, "p", "resolved")] == [over]
    assert read(store, queries.count_firing, "p") == 1
    assert read(store, queries.count_firing, "*") == 2
    assert [row["headline"] for row in read(store, queries.job_alerts, job)] == ["other", "fires"]


def test_silences_that_hold_for_the_project(store):
    for project, until in (("p", NOW + 9), ("p", NOW - 9), ("q", NOW + 5), ("*", NOW + 1)):
        store.add(silences, project=project, until=until, created_at=0.0)
    found = read(store, queries.active_silences, "p", NOW)
    assert [(row["project"], row["until"] - NOW) for row in found] == [("*", 1), ("p", 9)]


def test_weeks_sum_what_was_lost_by_cause(store):
    job, other = store.add_job("a", project="p"), store.add_job("b", project="q")
    done = {"status": "done", "cause": "gc", "gpu_hours_lost": 2.0, "waste": 0.2}
    store.add_session(job, MONDAY, None, **done)
    store.add_session(job, MONDAY + WEEK_S - 1, None, **{**done, "waste": 0.4})
    store.add_session(job, MONDAY - 1, None, **{**done, "cause": None})
    store.add_session(job, MONDAY + 1, None, status="failed")
    store.add_session(other, MONDAY + 2, None, **done)
    before, now = read(store, queries.weeks, "p", MONDAY + 3 * DAY_S, 2)
    assert (before.start, now.start) == (MONDAY - WEEK_S, MONDAY)
    assert (before.lost, before.n_sessions, before.mean_waste) == ({"": 2.0}, 1, 0.2)
    assert (now.lost, now.n_sessions) == ({"gc": 4.0}, 2)
    assert now.mean_waste == pytest.approx(0.3)
    everything = read(store, queries.weeks, "*", MONDAY + 3 * DAY_S, 3)
    assert [week.n_sessions for week in everything] == [0, 1, 3]


def test_the_fleet_has_the_facts_of_the_latest_analysed_session(store):
    job = store.add_job("a", slowdown=1.2)
    numbers = [store.add_session(job, NOW - 9 + i, None, status="done") for i in range(2)]
    store.add_session(job, NOW, None, status="failed")
    for number in numbers:
        store.add(session_facts, session_id=number, facts={"m_w": number})
    without = store.add_job("b", slowdown=1.0)
    store.add_session(without, NOW, None, status="done")
    store.add_job("never analysed")
    found = read(store, queries.fleet_jobs, "default")
    assert [(row["name"], row["facts"]) for row in found] == [
        ("a", {"m_w": numbers[1]}),
        ("b", None),
    ]


def test_the_list_begins_with_the_loss_that_lasts_or_has_a_cause(store):
    """A newcomer's three jobs: variation that passes is no loss to act on, waits for data are."""
    passing = {"slowdown": 1.588, "slowdown_lasting": 1.0, "waste": 0.37}
    passing |= {"slow_since_step": 133, "slow_factor": 1.14}
    store.add_job("healthy2", status="new", gpus=2, **passing)
    slow = {"slowdown": 1.516, "slowdown_lasting": 1.41, "waste": 0.34}
    store.add_job("slow2", status="new", gpus=2, **slow, slow_since_step=67, slow_factor=1.55)
    waits = {"slowdown": 1.112, "slowdown_lasting": 1.008, "waste": 0.101, "data_loading": 0.546}
    store.add_job("gru-data", status="new", gpus=2, **waits)
    page = read(store, queries.list_jobs, "*")
    assert names(page) == ["gru-data", "slow2", "healthy2"]
    runs = {"status": "running", "gpus": 2}
    store.add_job("passes", **runs, slowdown=1.588, slowdown_lasting=1.0, waste=0.37)
    store.add_job("waits", **runs, **waits)
    rows = {row["name"]: row for row in read(store, queries.list_jobs, "*").rows}
    assert rows["passes"]["stake_gpu_hours"] == pytest.approx(0.0)
    at_stake = pytest.approx(48 * (1 - (1 - 0.546) / 1.008))
    assert rows["waits"]["stake_gpu_hours"] == at_stake


def test_the_list_begins_with_what_is_at_stake_in_the_next_day(store):
    """A day of a large job's small waste is more than a small job's large one."""
    store.add_job("large", waste=0.05, gpus=4096, status="running")
    store.add_job("small", waste=0.4, gpus=8, status="running")
    slow = {"slow_since_step": 9, "step_s": 1.25, "healthy_s": 1.0}
    store.add_job("slow", gpus=512, status="running", **slow)
    store.add_job("unknown size", waste=0.5, gpus=None, status="running")
    page = read(store, queries.list_jobs, "*")
    assert names(page) == ["large", "slow", "small", "unknown size"]
    stakes = [row["stake_gpu_hours"] for row in page.rows]
    assert stakes[:3] == pytest.approx([4096 * 24 * 0.05, 512 * 24 * 0.2, 8 * 24 * 0.4])
    assert stakes[3] is None


def test_the_list_tells_the_most_important_alert(store):
    job, other = store.add_job("a"), store.add_job("b")
    for rule, importance, at, status in (
        ("slow-job", "warning", NOW - 9, "firing"),
        ("fail-slow", "critical", NOW - 5, "firing"),
        ("job-silent", "critical", NOW - 50, "resolved"),
    ):
        store.add(
            alerts, fingerprint=rule, rule=rule, job_id=job, project="default", headline="x",
            importance=importance, started_at=at, updated_at=at, status=status, labels={},
        )  # fmt: skip
    rows = {row["name"]: row for row in read(store, queries.list_jobs, "*").rows}
    assert rows["a"]["alert"]["rule"] == "fail-slow"
    assert rows["b"]["alert"] is None
    assert other != job


def test_what_is_asked_of_one_job_looks_at_its_rows_only(tmp_path):
    """Not at all events and sessions of the store, of which 5,000 jobs have many."""
    engine = open_database(f"sqlite:///{tmp_path / 'db'}")
    job, asked = jobs.register(engine, "p", "job", 1.0), []
    trace = {"sha256": "a" * 64, "size_bytes": 1, "file_name": "t", "meta": {}}

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, parameters, context, many):
        asked.append((statement, parameters))

    sessions.enqueue(engine, job.id, trace, 1.0)  # summarises the job
    with engine.connect() as connection:
        alert_rows.facts_of(connection, [job.id])
        queries.latest_metas(connection, [job.id])
        events.level_marks(connection, [job.id])
        list(events.level_events_of(connection, [job.id]))
    sessions.latest_done(engine, job.id)
    events.list_events(engine, "*", job.id, None, 10)
    plans = []
    with engine.connect() as connection:
        for statement, parameters in asked:
            if statement.startswith("SELECT"):
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                plans += [row[3] for row in rows if re.search(r" (events|sessions)\b", row[3])]
    engine.dispose()
    assert len(plans) >= 6
    of_one = ("job_id=?", "rowid=?")
    assert [plan for plan in plans if not any(key in plan for key in of_one)] == []
