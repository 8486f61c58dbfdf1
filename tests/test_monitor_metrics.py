"""/metrics as Prometheus reads it: both formats, one value per series, no state of the process."""

import math
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the monitor is an extra")

import prometheus_client
from prometheus_client import exposition
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from monitor_web import monitor
from paceline.errors import MonitorError
from paceline.monitor.config import Config
from paceline.monitor.store import jobs
from paceline.monitor.store.tables import events
from paceline.monitor.store.tables import jobs as job_table
from paceline.monitor.web.job_metrics import job_lines

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def site(tmp_path):
    with monitor(tmp_path) as found:
        service = found.service
        odd = {"dp_size": 2, "tp": 'a"b\\c\nd'}
        jobs.register(service.engine, "default", "job", service.clock(), degrees=odd)
        yield found


def ask(site, accept="*/*", token=None):
    return site.ask(
        "GET", "/metrics", token=token or site.token("read"), headers={"Accept": accept}
    )


def samples(families):
    """(name, labels) -> value; each but once."""
    rows = [
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in families
        for sample in family.samples
    ]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_both_formats_say_the_same(site):
    ask(site)
    plain, openmetrics = ask(site), ask(site, OPENMETRICS)
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text;")
    assert openmetrics.text.endswith("# EOF\n")
    rows, others = samples(read_text(plain.text)), samples(read_openmetrics(openmetrics.text))
    moving = ("process_", "paceline_http_")
    assert {key for key in rows if not key[0].startswith(moving)} == {
        key for key in others if not key[0].startswith(moving)
    }
    kinds = {family.name: family.type for family in read_openmetrics(openmetrics.text)}
    assert kinds["paceline_http_request_duration_seconds"] == "histogram"
    assert kinds["paceline_http_requests"] == "counter"
    assert kinds["paceline_job_info"] == "gauge"


def test_labels_are_escaped_and_empty_ones_left_out(site):
    info = next(
        labels for name, labels in samples(read_text(ask(site).text)) if name == "paceline_job_info"
    )
    assert dict(info) == {
        "project": "default", "job": "job", "status": "new", "dp": "2", "tp": 'a"b\\c\nd',
    }  # fmt: skip


def test_the_histogram_counts_every_answer_once(site):
    for _ in range(3):
        ask(site)
    rows = samples(read_text(ask(site).text))
    name, labels = "paceline_http_request_duration_seconds", {"handler": "metrics"}
    ends = {
        float(dict(key)["le"]): value
        for (sample, key), value in rows.items()
        if sample == f"{name}_bucket" and labels.items() <= dict(key).items()
    }
    assert list(ends.values()) == sorted(ends.values())
    assert ends[float("inf")] == rows[f"{name}_count", frozenset(labels.items())] == 3
    assert rows[f"{name}_sum", frozenset(labels.items())] > 0


def test_what_the_service_does_is_for_tokens_of_all_projects(site):
    names = {name for name, _ in samples(read_text(ask(site, token=site.token("read", "a")).text))}
    assert names == {"paceline_build_info"}


def test_the_registry_of_the_process_stays_as_it_is(site):
    before = set(prometheus_client.REGISTRY._names_to_collectors)
    ask(site)
    assert set(prometheus_client.REGISTRY._names_to_collectors) == before
    assert not any(name.startswith("paceline") for name in before)


def test_labels_of_jobs_are_in_the_metrics_where_the_settings_say_so(tmp_path):
    with monitor(tmp_path, metric_labels="team, queue") as site:
        engine, now = site.service.engine, site.service.clock()
        labels = {"team": "vision", "secret": "x"}
        jobs.register(engine, "default", "job", now, labels=labels)
        text = ask(site).text
    (info,) = [line for line in text.splitlines() if line.startswith("paceline_job_info{")]
    assert 'label_team="vision"' in info
    assert "queue" not in info
    assert "secret" not in text
    with pytest.raises(MonitorError, match="metric_labels are names"):
        Config(metric_labels="team,a b")


def test_a_fail_slow_without_a_trace_has_waste_and_gpu_time_lost(tmp_path):
    with monitor(tmp_path) as site:
        engine, now = site.service.engine, site.service.clock()
        for name in ("slow", "well"):
            jobs.register(engine, "default", name, now, gpus=8)
        slow = {"healthy_s": 2.0, "step_s": 2.5, "slow_since_step": 90, "last_step": 200}
        onset = {"job_id": 1, "at": now, "start": 0, "kind": "onset", "step": 100}
        onset |= {"since_step": 90, "factor": 1.25, "lost_s": 5.0, "ranks": [3], "text": "slow"}
        with engine.begin() as connection:
            mine = job_table.c.name == "slow"
            connection.execute(job_table.update().where(mine).values(status="running", **slow))
            connection.execute(events.insert().values(**onset))
        rows = samples(read_text(ask(site).text))
        pages = [
            site.ask("GET", path, token=site.token("read"), headers={"Accept": "text/html"}).text
            for path in ("/", "/jobs/slow")
        ]
    found = {name: value for (name, labels), value in rows.items() if ("job", "slow") in labels}
    assert found["paceline_job_step_waste_ratio"] == pytest.approx(0.2)
    # 5 s until step 100, then 100 steps that take 0.5 s longer, of 8 GPUs.
    assert found["paceline_job_fail_slow_gpu_seconds_lost"] == pytest.approx((5 + 50) * 8)
    assert not [key for key in rows if "fail_slow_gpu" in key[0] and ("job", "well") in key[1]]
    for page in pages:
        assert "1.25" in page
        assert "20.0%" in page
        assert "0.122" in page
    assert "Steps take 1.25 times as long; slow since step 90." in pages[1]


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_lines_of_jobs_are_those_of_prometheus_client(is_openmetrics):
    """Read and written again by it, they are the same bytes."""
    odd = {"project": 'a"b', "name": "x\\y\nz", "labels": {"team": "\u00fc"}, "status": "running"}
    rows = [
        {
            "id": k,
            "gpus": 8 * k or None,
            "cause": None,
            "degrees": {"dp_size": 2},
            **odd,
            "seen_at": 1_790_000_000.5,
            "last_step": 12_345_678 * k,
            "step_s": 1e-7 * k,
            "healthy_s": None if k else 0.5,
            "slow_since_step": None,
            "slowdown": math.inf,
            "slowdown_lasting": 1.0,
            "slowdown_healthy": None,
            "data_loading": 0.25,
            "slow_factor": None,
            "waste": None,
            "stake_gpu_hours": -0.5,
            "stake_gpu_hours_most": 0.25,
            "gpu_hours_lost_most": None,
            "n_sessions": k,
            "gpu_hours_lost": 1e9 / 3,
            "name": f"{odd['name']}{k}",
        }
        for k in range(3)
    ]
    text = job_lines(rows, ["team"], {}, openmetrics=is_openmetrics)
    end = "# EOF\n" if is_openmetrics else ""
    read = read_openmetrics if is_openmetrics else read_text
    write = openmetrics_exposition if is_openmetrics else exposition
    families = list(read(text + end))
    assert len(families) > 8
    again = write.generate_latest(SimpleNamespace(collect=lambda: families)).decode()
    assert again == text + end


def test_names_stay_as_they_are_where_escaping_by_dots_is_asked_for(site):
    text = ask(site, f"{OPENMETRICS}; escaping=dots").text
    assert "\npaceline_job_info{" in text
    assert "\npaceline_build_info{" in text
