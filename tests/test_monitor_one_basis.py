"""One basis for each quantity: on the pages, in alerts, the API and metrics."""

import re
from dataclasses import replace

import numpy as np
import pytest

import requires

requires.installed("starlette")

from monitor_web import eventually, monitor
from paceline.client import Client
from paceline.monitor.analysis_process import analyse
from paceline.monitor.loss_range import (
    largest_lasting,
    largest_slowdown,
    loss_range,
    waste_range,
)
from paceline.monitor.store import alerts, jobs, sessions
from paceline.monitor.store.tables import jobs as job_table
from paceline.sources import parquet
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.units import gpu_hours


def step_s(step, rank):
    """Rank 3 is the slowest. The job is 1.30x slow since step 150, and 1.33x at its end."""
    level = 2.0 if step < 150 else 2.6 if step < 280 else 2.66
    return level * (1.0 + 0.04 * (rank == 3) + 0.002 * (step % 3))


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    with monitor(tmp_path_factory.mktemp("monitor")) as site:
        client = Client(f"http://127.0.0.1:{site.port}", site.token("push"))
        client.register("job", gpus=16)
        for first in range(0, 300, 20):
            steps = [step for step in range(first, first + 20) for _ in range(4)]
            ranks = [rank for _ in range(20) for rank in range(4)]
            times = [step_s(step, rank) for step, rank in zip(steps, ranks, strict=True)]
            client.push_steps("job", steps, ranks, times, source="a/b", batch=first, world=4)
        engine = site.service.engine

        def is_told():
            row = jobs.by_id(engine, 1)
            return row["last_step"] == 299 and row["slow_factor"] and alerts.firing(engine)

        eventually(is_told)
        yield site


def row_of(site):
    return site.ask("GET", "/api/v1/jobs/job", token=site.token("read")).json


def alerts_of(site):
    return site.ask("GET", "/api/v1/alerts", token=site.token("read")).json["alerts"]


def page(site, path):
    headers = {"Accept": "text/html"}
    html = site.ask("GET", path, token=site.token("read"), headers=headers).text
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def metric(site, name):
    lines = site.ask("GET", "/metrics", token=site.token("read")).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def test_the_level_of_a_fail_slow_is_that_of_its_event(slow):
    events = slow.ask("GET", "/api/v1/events?job=job", token=slow.token("read")).json["events"]
    factor = events[0]["factor"]
    row = row_of(slow)
    assert abs(row["step_s"] / row["healthy_s"] - factor) > 0.005  # the latest steps differ
    assert row["slow_factor"] == row["by_step_times"]["slowdown"] == factor
    assert row["by_step_times"]["waste"] == pytest.approx(1 - 1 / factor)
    assert metric(slow, "paceline_job_step_slowdown_ratio") == pytest.approx(factor)
    assert metric(slow, "paceline_job_step_waste_ratio") == pytest.approx(1 - 1 / factor)
    shown = f"{factor:.2f}"
    (alert,) = alerts_of(slow)
    assert f"steps take {shown}x as long" in alert["headline"]
    job, listed = page(slow, "/jobs/job"), page(slow, "/")
    assert f"Steps take {shown} times as long; slow since step 150." in job
    assert f"steps take {shown} times as long as healthy ones" in job
    assert f"{shown} by step times" in listed
    assert f"{shown}× healthy" in listed


def test_the_gpu_hours_at_stake_are_the_same_everywhere(slow):
    row = row_of(slow)
    hours = 16 * 24 * (1 - 1 / row["slow_factor"])
    shown = gpu_hours(hours)
    (alert,) = alerts_of(slow)
    assert f"; {shown} GPU-hours are at stake in 24 hours" in alert["headline"]
    job = page(slow, "/jobs/job")
    assert job.count(f"{shown} GPU-hours a day at stake at this level") == 2  # state and event
    assert f"At stake, GPU-h a day {shown} " in job
    assert f" {shown} " in page(slow, "/")
    assert metric(slow, "paceline_job_stake_gpu_hours") == pytest.approx(hours)


def test_the_latest_step_and_the_healthy_one_are_medians_of_the_ranks(slow):
    row = row_of(slow)
    assert row["step_s"] == pytest.approx(2.66, abs=0.012)  # rank 3 takes 2.77 s
    assert row["healthy_s"] == pytest.approx(2.0, abs=0.012)


#: One of two workers is 1.5x slow: the ideal is the mean of both.
OF_TWO = SynthSpec(dp=2, pp=1, microbatches=8, steps=10, slow_workers=(SlowWorker(1, 0, 1.5),))


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A session whose S has a range, analysed as the service does it."""
    folder = tmp_path_factory.mktemp("analysis")
    parquet.write(synthesize(OF_TWO), folder / "trace.parquet")
    return analyse(folder / "trace.parquet", folder, {})


def test_a_range_of_s_is_that_of_the_job_page(bounded, tmp_path):
    assert bounded["slowdown_healthy"] > 1.1 * bounded["slowdown"]
    low, high = waste_range(bounded)
    said = re.search(r"wastes (\d+)% to (\d+)% of its GPUs", bounded["headline"])
    assert [round(100 * low), round(100 * high)] == [int(number) for number in said.groups()]
    with monitor(tmp_path) as site:
        engine = site.service.engine
        job = jobs.register(engine, "default", "job", 0.0, gpus=16)
        trace = {"sha256": "a", "size_bytes": 1, "file_name": "t", "meta": {}}
        number = sessions.enqueue(engine, job.id, trace, site.service.clock())
        columns = ("slowdown", "slowdown_lasting", "slowdown_healthy", "waste", "headline")
        values = {name: bounded[name] for name in columns} | {"cause": "worker"}
        lost = {"gpu_hours_lost": 16 * low, "gpu_hours_lost_most": 16 * high}
        sessions.finish(engine, number, {**values, **lost, "status": "done"})
        with engine.begin() as connection:
            connection.execute(job_table.update().values(status="running"))
        s, most = bounded["slowdown"], largest_slowdown(bounded)
        spans = [
            *(f"{s:.3f} to {most:.3f}", f"{low:.1%} to {high:.1%}"),
            f"{gpu_hours(16 * low)} to {gpu_hours(16 * high)}",
        ]
        listed, fleet, of_job = (page(site, path) for path in ("/", "/fleet", "/jobs/job"))
        for text in (*spans, f"{gpu_hours(384 * low)} to {gpu_hours(384 * high)}"):
            assert text in listed
        at_stake = f"{gpu_hours(384 * low)} to {gpu_hours(384 * high)}"
        assert f"At stake, GPU-h a day {at_stake} " in of_job
        for text in spans[1:]:
            assert text in fleet
        for text in spans:
            assert text in of_job
        assert metric(site, "paceline_job_waste_ratio") == pytest.approx(low)
        assert metric(site, "paceline_job_waste_most_ratio") == pytest.approx(high)
        assert metric(site, "paceline_job_slowdown_most_ratio") == pytest.approx(most)
        stake = metric(site, "paceline_job_stake_most_gpu_hours")
        assert stake == pytest.approx(384 * high)
        lost_s = metric(site, "paceline_job_gpu_seconds_lost_most_total")
        assert lost_s == pytest.approx(16 * high * 3600)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A session whose worker (3, 0) waits for its data, before launches that are late."""
    folder = tmp_path_factory.mktemp("waiting")
    trace = synthesize(SynthSpec(dp=4, pp=1, microbatches=4, steps=8, launch_delay=(0.3, 1.0)))
    waits = np.full((trace.n_steps, *trace.rank.shape), 0.001)
    waits[:, 3] = 0.5
    parquet.write(replace(trace, data_wait_s=waits), folder / "trace.parquet")
    return analyse(folder / "trace.parquet", folder, {})


def test_waits_for_data_are_lost_beside_s(waiting, tmp_path):
    share = waiting["data_loading"]
    assert 0.1 < share < 0.9
    low, _ = loss_range(waiting)
    assert low == pytest.approx(1 - (1 - share) / max(waiting["slowdown"], 1.0))
    with monitor(tmp_path) as site:
        engine = site.service.engine
        job = jobs.register(engine, "default", "job", 0.0, gpus=16)
        trace = {"sha256": "a", "size_bytes": 1, "file_name": "t", "meta": {}}
        number = sessions.enqueue(engine, job.id, trace, site.service.clock())
        names = ("slowdown", "slowdown_lasting", "slowdown_healthy", "data_loading", "waste")
        values = {name: waiting[name] for name in (*names, "cause", "headline")}
        sessions.finish(engine, number, {**values, "gpu_hours_lost": 16 * low, "status": "done"})
        for path in ("/", "/jobs/job"):
            assert f"{low:.1%} {share:.1%} waits for data" in page(site, path)
        fleet = page(site, "/fleet")
        assert f"Lost, by GPUs {low:.1%} of all GPU time" in fleet
        assert "Straggling: 1.1 or more lasts 1 100.0% of the jobs" in fleet
        assert "Data loading 100.0%" in fleet
        assert metric(site, "paceline_job_data_loading_ratio") == pytest.approx(share)
        row = row_of(site)
        assert row["data_loading"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("cause", "kind", "words"),
    [
        ("unexplained", "beyond-chance", "is beyond chance"),
        ("worker", "lasts-or-has-a-cause", "lasts or has a cause"),
    ],
)
def test_the_part_of_s_for_alerts_has_its_own_name(tmp_path, cause, kind, words):
    """A newcomer's page said "1.046 lasts" of the report, and the API had 1.0 without a word."""
    with monitor(tmp_path) as site:
        engine = site.service.engine
        job = jobs.register(engine, "default", "job", 0.0, gpus=4)
        trace = {"sha256": "a", "size_bytes": 1, "file_name": "t", "meta": {}}
        number = sessions.enqueue(engine, job.id, trace, site.service.clock())
        values = {"slowdown": 1.118, "slowdown_lasting": 1.0, "waste": 0.105, "cause": cause}
        sessions.finish(engine, number, {**values, "gpu_hours_lost": 0.1, "status": "done"})
        assert f"Part of S for alerts 1.000 {words}" in page(site, "/jobs/job")
        token = site.token("read")
        of_job = site.ask("GET", "/api/v1/jobs/job/sessions", token=token).json["sessions"]
        session = site.ask("GET", f"/api/v1/sessions/{number}", token=token).json
        for row in (row_of(site), *of_job, session):
            assert (row["slowdown_lasting"], row["slowdown_lasting_kind"]) == (1.0, kind)
        with engine.begin() as connection:
            connection.execute(job_table.update().values(slowdown_lasting=None))
        assert row_of(site)["slowdown_lasting_kind"] is None


def test_the_table_of_sessions_says_why_a_larger_s_is_healthy(tmp_path):
    """A newcomer's page called S 1.110 healthy, S 1.079 unexplained, and gave no reason."""
    says = {
        "healthy": "No lasting straggler; variation that passes costs 7.5%.",
        "unexplained": "This job wastes 7% of its GPUs: 4% is variation that passes.",
        "worker": "Worker dp 2 is slow.",
    }
    with monitor(tmp_path) as site:
        engine = site.service.engine
        job = jobs.register(engine, "default", "job", 0.0, gpus=4)
        for (cause, headline), slowdown in zip(says.items(), (1.110, 1.079, 1.3), strict=True):
            trace = {"sha256": cause, "size_bytes": 1, "file_name": "t", "meta": {}}
            number = sessions.enqueue(engine, job.id, trace, site.service.clock())
            values = {"slowdown": slowdown, "waste": 0.1, "cause": cause, "headline": headline}
            sessions.finish(engine, number, {**values, "gpu_hours_lost": 0.1, "status": "done"})
        html = site.ask("GET", "/jobs/job", token=site.token("read")).text
    cells = re.findall(r'<td class="why">(\w+)[^<]*(?:<small><bdi>([^<]*)</bdi>)?', html)
    assert sorted(cells) == [
        ("Healthy", says["healthy"]),
        ("Unexplained", says["unexplained"]),
        ("Worker", ""),  # the cause is the reason
    ]


def test_ends_of_rows_without_a_range():
    row = {"slowdown": 1.25, "slowdown_lasting": 1.2, "slowdown_healthy": None, "waste": 0.2}
    assert (largest_slowdown(row), largest_lasting(row), waste_range(row)) == (
        1.25,
        1.2,
        (0.2, 0.2),
    )
    none = dict.fromkeys(row)
    assert (largest_slowdown(none), largest_lasting(none)) == (None, None)
    assert waste_range(none) == (0.0, 0.0)
    faster = {**row, "slowdown": 0.9, "slowdown_healthy": 1.1, "waste": 0.0}
    assert waste_range(faster) == pytest.approx((0.0, 1 / 11))


def test_a_session_from_before_the_fail_slow_is_not_its_headline(bounded, tmp_path):
    with monitor(tmp_path) as site:
        engine = site.service.engine
        job = jobs.register(engine, "default", "job", 0.0, gpus=16)
        trace = {"sha256": "a", "size_bytes": 1, "file_name": "t", "meta": {}}
        number = sessions.enqueue(engine, job.id, trace, site.service.clock())
        names = ("slowdown", "slowdown_lasting", "slowdown_healthy", "waste", "headline")
        values = {name: bounded[name] for name in (*names, "first_step", "last_step", "cause")}
        sessions.finish(engine, number, {**values, "gpu_hours_lost": 0.1, "status": "done"})
        for since, is_old in ((values["last_step"], False), (values["last_step"] + 1, True)):
            slow = {"status": "running", "slow_since_step": since, "slow_factor": 2.5}
            with engine.begin() as connection:
                connection.execute(job_table.update().values(**slow))
            text, listed = page(site, "/jobs/job"), page(site, "/")
            assert (f"Steps take 2.50 times as long; slow since step {since}." in text) == is_old
            assert ("No session is of this fail-slow yet." in text) == is_old
            assert bounded["headline"] in text
            assert ("no session of it yet" in listed) == is_old
            assert ("Worker fault" in listed) != is_old
            assert "2.50 by step times" in listed
            assert f"{1 - 1 / 2.5:.1%}" in listed  # more than the session shows


def test_a_listing_of_one_job_speaks_of_it_in_the_singular(tmp_path):
    with monitor(tmp_path) as site:
        job = jobs.register(site.service.engine, "default", "job", 0.0)
        words = "The only job does not have these words and this status."
        assert words in page(site, "/?q=nothing")
        jobs.end(site.service.engine, job.id, 1.0)
        assert "The only job has ended." in page(site, "/")
        jobs.register(site.service.engine, "default", "other", 0.0)
        assert "None of 2 jobs has these words" in page(site, "/?q=nothing")
