"""The slow workers behind an onset: by the job's sessions, on the page and in the API."""

import pytest

import requires

requires.installed("starlette")

from monitor_fleet import NOW
from monitor_web import monitor
from paceline.detect.event import Event
from paceline.detect.job import job_events
from paceline.monitor.store import events as event_rows
from paceline.monitor.store import jobs
from paceline.monitor.store.tables import events, session_facts, sessions

ONSET = {"start": 0, "kind": "onset", "step": 120, "since_step": 100, "factor": 1.5}
ONSET |= {"lost_s": 60.0, "ranks": [0, 1], "text": "step 120: 1.50x slower since step 100"}
DONE = {"sha256": "a", "size_bytes": 1, "file_name": "t", "meta": {}, "status": "done"}
DONE |= {"slowdown": 1.5, "cause": "worker", "place": "worker dp 1, stage 0; host n1"}


@pytest.fixture
def site(tmp_path):
    with monitor(tmp_path, clock=lambda: NOW) as site:
        site.job = jobs.register(site.service.engine, "default", "job", NOW, gpus=8)
        yield site


def add(site, table, **values):
    with site.service.engine.begin() as connection:
        row = connection.execute(table.insert().values(job_id=site.job.id, **values))
        return row.inserted_primary_key[0]


def whos(site):
    answer = site.ask("GET", "/api/v1/events?job=job", token=site.token("read"))
    return [(row["kind"], row["who"], row["session_id"]) for row in answer.json["events"]][::-1]


def page(site):
    headers = {"Accept": "text/html"}
    return site.ask("GET", "/jobs/job", token=site.token("read"), headers=headers).text


def test_an_onset_names_who_its_latest_session_names(site):
    add(site, sessions, **DONE, created_at=NOW - 500)  # before the onset
    add(site, events, **ONSET, at=NOW - 400)
    assert whos(site) == [("onset", None, None)]
    add(site, sessions, **{**DONE, "sha256": "b", "cause": "unexplained"}, created_at=NOW - 300)
    assert whos(site) == [("onset", None, None)]
    number = add(site, sessions, **{**DONE, "sha256": "c"}, created_at=NOW - 200)
    assert whos(site) == [("onset", DONE["place"], number)]
    assert f"Slow: <bdi>{DONE['place']}</bdi>, by <a" in page(site)


def test_a_session_behind_the_relief_tells_nothing_about_the_onset(site):
    add(site, events, **ONSET, at=NOW - 400)
    relief = {**ONSET, "kind": "relief", "step": 200, "since_step": 190, "text": "healthy again"}
    add(site, events, **relief, at=NOW - 300)
    add(site, sessions, **DONE, created_at=NOW - 200)
    assert whos(site) == [("onset", None, None), ("relief", None, None)]


def test_a_rank_that_is_relieved_just_before_becomes_slow_with_the_others(site):
    """A newcomer's job: both events came in one batch, so that their times are equal."""
    relief = {**ONSET, "kind": "relief", "step": 115, "since_step": 110, "ranks": [1]}
    add(site, events, **relief, at=NOW - 400)
    add(site, events, **ONSET, at=NOW - 400)
    number = add(site, sessions, **DONE, created_at=NOW - 300)
    assert whos(site) == [("relief", None, None), ("onset", DONE["place"], number)]


def test_a_session_while_one_rank_is_slow_names_who(site):
    """Ranks wait for each other: the reliefs of some leave the job slow."""
    add(site, events, **ONSET, at=NOW - 400)
    relief = {**ONSET, "kind": "relief", "since_step": 190, "text": "healthy again"}
    add(site, events, **{**relief, "step": 200, "ranks": [0]}, at=NOW - 300)
    number = add(site, sessions, **DONE, created_at=NOW - 200)
    add(site, events, **{**relief, "step": 300, "ranks": [1]}, at=NOW - 100)
    add(site, sessions, **{**DONE, "sha256": "b", "place": "another"}, created_at=NOW - 50)
    assert whos(site)[0] == ("onset", DONE["place"], number)


def test_an_event_that_a_rank_joins_has_the_step_of_its_text(site):
    """A newcomer's event: since_step 172 beside "since step 173"."""
    row = {**ONSET, "job_id": site.job.id, "at": NOW - 400}
    event_rows.add(site.service.engine, {**row, "since_step": 172, "text": "since step 172"})
    joined = {**row, "since_step": 173, "ranks": [0, 1, 2], "text": "since step 173"}
    event_rows.add(site.service.engine, joined)
    answer = site.ask("GET", "/api/v1/events?job=job", token=site.token("read"))
    (event,) = answer.json["events"]
    assert (event["since_step"], event["text"]) == (173, "since step 173")


def test_the_page_says_where_the_name_comes_from_while_there_is_none(site):
    add(site, events, **ONSET, at=NOW - 400)
    assert "No session of" not in page(site)  # it does not go on
    with site.service.engine.begin() as connection:
        connection.execute(jobs.jobs.update().values(slow_since_step=100, status="running"))
    command = "To test the ranks, run paceline validate --world-size 8 --run"
    assert f"No session of this fail-slow names the slow worker yet. {command}" in page(site)


def test_three_events_stand_before_the_others(site):
    with site.service.engine.begin() as connection:
        connection.execute(jobs.jobs.update().values(status="running"))
    for k in range(30):
        add(site, events, **{**ONSET, "step": 120 + k, "text": f"text {k:02d}"}, at=NOW - 400 + k)
    html = page(site)
    head, _, rest = html.partition('<details id="earlier-events">')
    assert "Earlier events (17 of 27)" in rest
    assert [f"text {k}" in head for k in (29, 28, 27, 26)] == [True, True, True, False]
    assert html.count('<li class="onset">') == 20
    assert "GPU-hours a day at stake at this level" in head


def test_the_monitors_text_leaves_out_what_a_session_tells():
    onsets = [Event("onset", rank, 120, 100, 1.5, 60.0, 1.0) for rank in (0, 1)]
    (event,) = job_events(onsets, 2)
    assert "who: unknown, run paceline validate --world-size 2 --run; " in event.explain()
    text = event.explain("by noon", says_unknown=False)
    assert text == "step 120: 1.50x slower since step 100; 60 s lost by noon"


def test_a_cause_that_was_there_before_the_onset_is_not_named(site):
    """A newcomer's job: one rank logs from the start on, another one's loader becomes slow."""
    loader = {"cause": "data-loading", "place": "worker dp 2, stage 0", "gain": 0.4}
    steps = {"step_s": 1.0, "cause_gain": 0.5}
    add(site, sessions, **DONE, **steps, last_step=90, created_at=NOW - 500)
    add(site, events, **ONSET, at=NOW - 400)
    since = {**DONE, **steps, "sha256": "b", "last_step": 150, "created_at": NOW - 300}
    number = add(site, sessions, **since)
    assert whos(site) == [("onset", None, None)]
    with site.service.engine.begin() as connection:
        values = {"session_id": number, "facts": {"causes": [loader]}}
        connection.execute(session_facts.insert().values(values))
    assert whos(site) == [("onset", "worker dp 2, stage 0", number)]
