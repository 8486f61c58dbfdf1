"""The monitor's pages without a browser: what is answered, what is refused, what is told."""

import asyncio
import http.client
import json
import re
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

import requires

requires.installed("starlette")

from monitor_fleet import (
    HOSTILE,
    NOW,
    SLOW,
    Monitor,
    add_showpiece,
    analysed,
    app_of,
    real,
    serving,
)
from paceline.monitor.bus import Bus
from paceline.monitor.web import fleet, server_events
from paceline.synth import SynthSpec, synthesize


@pytest.fixture(scope="module")
def made():
    hosts = {(dp, pp): (f"node-{dp}", str(pp)) for dp in range(SLOW.dp) for pp in range(SLOW.pp)}
    return analysed(synthesize(SLOW), hosts), analysed(synthesize(SynthSpec(dp=5, pp=3, steps=3)))


@pytest.fixture(scope="module")
def full(made, tmp_path_factory):
    monitor = Monitor(tmp_path_factory.mktemp("full"))
    monitor.showpiece = add_showpiece(monitor, *made)
    other = monitor.add_job("secret", project="other")
    monitor.foreign = monitor.add_session(other, NOW, made[0])
    number = monitor.add_job("hostile", labels={HOSTILE: HOSTILE, "half": "\ud800"})
    monitor.add_session(number, NOW, None, status="failed", reason=HOSTILE)
    monitor.add_session(monitor.add_job("traces", status="new"), NOW, None)
    gone = monitor.add_job("gone")
    monitor.add_session(gone, NOW, None, status="done", **made[0].columns)
    yield monitor
    monitor.close()


@contextmanager
def asking(app):
    with serving(app) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)

        def ask(path, method="GET"):
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()

        yield ask
        connection.close()


@pytest.fixture(scope="module")
def ask(full):
    with asking(app_of(full)) as ask:
        yield ask


PAGES = ("/", "/jobs/showpiece", "/jobs/showpiece/compare", "/fleet", "/alerts", "/jobs/hostile")


@pytest.mark.parametrize("path", PAGES)
def test_pages_hold_to_the_content_security_policy(ask, path):
    status, headers, html = ask(path)
    assert status == 200
    assert "script-src 'self'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert not re.search(r"<[^>]* (style|on\w+)=", html)
    inline = re.findall(r"<script(?![^>]* src=)([^>]*)>", html)
    assert set(inline) <= {' type="application/json"'}
    outside = re.findall(r'(?:src|href)="((?!/|#)[^"]*)"', html)
    assert outside == []
    assert HOSTILE not in html


@pytest.mark.parametrize(
    "path",
    [
        *("/jobs/none", "/jobs/secret", "/jobs/secret/compare", "/jobs/showpiece?session=999999"),
        *("/jobs/showpiece?session=x", "/jobs/showpiece/compare?a=999999", "/?project=other"),
        *("/static/none.css", "/static/x/../../assets.py", "/static/x/..%2f..%2fassets.py"),
        *("/static/%2fetc%2fpasswd", "/nowhere"),
    ],
)
def test_what_is_not_there_or_not_yours_is_404(ask, path):
    assert ask(path)[0] == 404


def test_a_session_of_another_job_is_404(ask, full):
    assert ask(f"/jobs/showpiece?session={full.foreign}")[0] == 404
    assert ask(f"/jobs/showpiece/compare?a={full.foreign}")[0] == 404


@pytest.mark.parametrize(
    "query",
    ["sort=nothing", "status=nothing", "page=-1", "page=9999999999999999999", "q=%00", "q=%ff%25_"],
)
def test_odd_queries_are_no_errors(ask, query):
    assert ask(f"/?{query}")[0] == 200


def test_odd_names_are_refused(ask):
    assert ask("/jobs/a%00b")[0] == ask("/jobs/a%20b")[0] == 400


def test_pages_only_read(ask):
    assert {ask(path, "POST")[0] for path in PAGES} == {405}


def test_a_result_that_is_gone_is_said(ask):
    status, _, html = ask("/jobs/gone")
    assert status == 200
    assert "The result is gone" in html
    assert "Full report" not in html


def test_the_list_says_that_an_analysis_failed_and_what_has_only_traces(ask):
    rows = {
        name: row
        for row in ask("/")[2].split("<tr")
        for name in re.findall(r'href="/jobs/([\w-]+)"', row)
    }
    assert "latest analysis failed" in rows["showpiece"]
    assert "line 3: no column &#39;step&#39;" in rows["showpiece"]
    assert "not analysed yet" not in rows["hostile"]
    assert '<span class="status traces">traces</span>' in rows["traces"]
    assert "not analysed yet" in rows["traces"]
    assert '<span class="status traces">' in ask("/jobs/traces")[2]


def test_sessions_are_told_apart_by_their_numbers(ask):
    numbers = re.findall(
        r'href="/jobs/showpiece\?session=(\d+)">[^<]* · #(\d+)<', ask("/jobs/showpiece")[2]
    )
    assert len(numbers) == 8
    assert all(asked == said for asked, said in numbers)
    options = re.findall(
        r'<option value="(\d+)"[^>]*>[^<]* · #(\d+) · S', ask("/jobs/showpiece/compare")[2]
    )
    assert len(options) == 14
    assert all(asked == said for asked, said in options)


@pytest.mark.parametrize("path", ["/jobs/showpiece", "/jobs/showpiece/compare"])
def test_a_figure_says_that_it_needs_javascript(ask, path):
    html = ask(path)[2]
    assert html.count("<noscript>") == html.count("<figure data-figure") > 0


def test_files_are_kept_under_names_that_change_with_them(ask):
    _, _, html = ask("/")
    paths = re.findall(r'(?:src|href)="(/static/[^"]+)"', html)
    assert len(paths) == len(set(paths)) >= 8
    for path in paths:
        status, headers, _ = ask(path)
        assert status == 200
        assert "immutable" in headers["cache-control"]
    old = re.sub("/static/[0-9a-f]+/", "/static/000000000000/", paths[0])
    assert ask(old)[1]["cache-control"] == "no-cache"


def test_who_sees_all_projects_gets_links_that_name_them(full):
    with asking(app_of(full, "*")) as ask:
        html = ask("/")[2]
        assert '<a href="/jobs/secret?project=other">' in html
        assert ask("/jobs/secret?project=other")[0] == 200
        assert ask("/jobs/secret?project=default")[0] == 404
        assert "secret" not in ask("/?project=default")[2]
        asked = ask("/?project=other&status=running")[2]
        assert '<input type="hidden" name="project" value="other">' in asked
        assert 'href="/?project=other&amp;status=running&amp;sort=name"' in asked
        assert 'href="/alerts?status=firing&amp;project=other"' in ask("/alerts?project=other")[2]


def test_the_address_to_push_to_is_the_one_that_was_asked(ask):
    html = ask("/jobs/hostile")[2]
    assert re.search(r"PACELINE_MONITOR=http://127\.0\.0\.1:\d+<", html)


def test_the_real_jobs_have_a_page(real_jobs, tmp_path):
    monitor = Monitor(tmp_path)
    for name, analysis in real(real_jobs).items():
        number = monitor.add_job(name)
        monitor.add_session(number, NOW, analysis)
        monitor.sum_up(number, [analysis.columns["slowdown"]], analysis)
    with asking(app_of(monitor)) as ask:
        for name in ("AR", "SE", "ST"):
            status, _, html = ask(f"/jobs/{name}")
            assert status == 200
            assert "This job wastes" in html
        assert ask("/fleet")[2].count("data-figure") >= 6
    monitor.close()


# What is told to open pages.


def news(bus, project, n, publish):
    """What a reader of a project is told, up to ``n`` messages."""

    async def collect():
        told = []
        async for message in server_events._news(bus, project):
            told.append(message.decode())
            if len(told) == 1:
                publish()
            if len(told) == n:
                return told
        return told

    return asyncio.run(asyncio.wait_for(collect(), 120))


def test_news_of_the_own_project_only():
    bus = Bus()

    def publish():
        bus.publish("other", "job", {"job": "secret"})
        bus.publish("mine", "session", {"job": "a", "text": "two\nlines"})

    retry, told = news(bus, "mine", 2, publish)
    assert retry.startswith("retry: ")
    kind, data, *rest = told.split("\n")
    assert (kind, rest) == ("event: session", ["", ""])
    assert json.loads(data.removeprefix("data: "))["job"] == "a"


def test_a_stream_ends_when_the_service_does_and_after_a_while(monkeypatch):
    bus = Bus()
    assert len(news(bus, "*", 9, bus.close)) == 1
    monkeypatch.setattr(server_events, "BEAT_S", 0.01)
    monkeypatch.setattr(server_events, "LIFE_S", 0.2)
    bus = Bus()
    _, *beats = news(bus, "*", 99, lambda: None)
    assert beats
    assert set(beats) == {": still here\n\n"}
    assert not bus._readers  # nobody is left behind


def test_the_fleet_is_worked_out_anew_once_a_session_is_analysed_and_no_sooner(
    tmp_path, monkeypatch
):
    monitor = Monitor(tmp_path)
    calls, view = [], fleet.view
    monkeypatch.setattr(fleet, "view", lambda *given: calls.append(given) or view(*given))
    job = monitor.add_job("one")
    with asking(app_of(monitor)) as ask:
        for _ in range(3):
            assert ask("/fleet")[0] == 200
        assert len(calls) == 1
        done = {"status": "done", "finished_at": NOW, "cause": "gc", "gpu_hours_lost": 1.0}
        monitor.add_session(job, NOW, None, **done, slowdown=1.5, waste=0.3)
        monitor.sum_up(job, [1.5], None, slowdown=1.5, waste=0.3, cause="gc", gpus=8)
        assert "Straggling" in ask("/fleet")[2]
        assert len(calls) == 2
    monitor.close()


def test_a_session_of_one_step_says_so_at_the_top_and_links_the_one_before(tmp_path, made):
    """A newcomer's page told the last step of his job, one that logged, as the job's state."""
    monitor = Monitor(tmp_path)
    cut = analysed(synthesize(SynthSpec(dp=4, pp=1, steps=1, launch_delay=(0.4, 0.5))))
    number = monitor.add_job("cut")
    longer = monitor.add_session(number, NOW - 100, made[0])
    monitor.add_session(number, NOW - 50, None, status="failed", reason="odd")
    monitor.add_session(number, NOW, cut)
    alone = monitor.add_job("alone")
    monitor.add_session(alone, NOW, cut)
    with asking(app_of(monitor)) as ask:
        html = ask("/jobs/cut")[2]
        head, notice, rest = html.partition("<b>This session has only 1 step.</b>")
        assert notice
        assert f'href="/jobs/cut?session={longer}">Show session #{longer}</a>, of steps' in rest
        assert "<h1" in head
        assert "Possible (" not in head
        assert "Possible (" in rest
        assert "This session has only" not in ask(f"/jobs/cut?session={longer}")[2]
        html = ask("/jobs/alone")[2]
        assert "This session has only 1 step." in html
        assert "Show session #" not in html
    monitor.close()
