"""The monitor's pages in a browser: they draw, listen, fit, and can be used without a mouse."""

import gzip
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import requires

requires.installed("sqlalchemy")
requires.installed("starlette")
requires.installed("uvicorn")

import sqlalchemy

from monitor_fleet import (
    HOSTILE,
    NOW,
    Monitor,
    add_showpiece,
    app_of,
    fill,
    real,
    serving,
    synthetic,
)
from monitor_web import monitor
from paceline.client import Client
from paceline.monitor.store.tables import jobs
from paceline.monitor.store.tokens import revoke_token
from paceline.monitor.web import server_events
from paceline.sources import parquet
from paceline.synth import SlowWorker, SynthSpec, synthesize
from shared_data import DATA

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
PAGES = {
    "jobs": "/",
    "job": "/jobs/showpiece",
    "rank": "/jobs/showpiece?rank=11",
    "wide": "/jobs/wide",
    "bare": "/jobs/bare",
    "failed": "/jobs/failed",
    "hostile": "/jobs/hostile",
    "long": "/jobs/long",
    "compare": "/jobs/showpiece/compare",
    "one to compare": "/jobs/wide/compare",
    "fleet": "/fleet",
    "alerts": "/alerts",
}
EMPTY = {"jobs": "/", "fleet": "/fleet", "alerts": "/alerts"}
AXE = find_spec("axe_playwright_python")


@pytest.fixture(scope="module")
def made() -> list[Any]:
    return synthetic()


@pytest.fixture(scope="module")
def full(made, tmp_path_factory) -> Iterator[Any]:
    """(monitor, url) with 200 synthesised jobs, the real ones if they are here, and odd ones."""
    monitor = Monitor(tmp_path_factory.mktemp("full"))
    fill(monitor, made)
    folder = DATA / "whatif"
    for name, analysis in (real(folder) if folder.is_dir() else {}).items():
        number = monitor.add_job(f"real-{name}")
        monitor.add_session(number, NOW - 7200, analysis)
        monitor.sum_up(number, [analysis.columns["slowdown"]], analysis)
    add_showpiece(monitor, made[1], made[0])
    wide = monitor.add_job("wide")
    monitor.add_session(wide, NOW - 60, made[-1])
    monitor.sum_up(wide, [1.3], made[-1])
    monitor.add_job("bare", status="new")
    failed = monitor.add_job("failed")
    monitor.add_session(failed, NOW, None, status="failed", reason=HOSTILE)
    hostile = monitor.add_job("hostile", labels={HOSTILE: HOSTILE}, headline=HOSTILE)
    monitor.add_session(hostile, NOW, made[1], headline=HOSTILE, cause=HOSTILE)
    monitor.add_job("long", labels={"note": "x" * 150, "y" * 63: "z"})
    monitor.sum_up(hostile, [1.2], None, headline=HOSTILE, cause=HOSTILE, slowdown=1.2, waste=0.16)
    with serving(app_of(monitor)) as url:
        yield SimpleNamespace(monitor=monitor, url=url)
    monitor.close()


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Iterator[Any]:
    monitor = Monitor(tmp_path_factory.mktemp("empty"))
    with serving(app_of(monitor)) as url:
        yield SimpleNamespace(monitor=monitor, url=url)
    monitor.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; fails the test if it errs or asks another server for anything."""
    contexts: list[Any] = []
    troubles: list[str] = []

    def go(url: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(120_000)
        contexts.append(context)
        page = context.new_page()
        origin = re.match(r"https?://[^/]+", url)[0]
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append("dialog"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: request.url.startswith(origin) or troubles.append(request.url),
        )
        page.goto(url)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    go.troubles = troubles
    yield go
    for context in contexts:
        context.close()
    assert troubles == []


def overflow(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_and_is_accessible(visit, full, name):
    page = visit(full.url + PAGES[name])
    assert overflow(page) <= 0
    assert page.locator("h1").count() == 1
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert violations(page, "{resultTypes: ['violations']}") == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, "{runOnly: ['color-contrast']}") == []
    phone = visit(full.url + PAGES[name], color_scheme="dark", **PHONE)
    assert phone.evaluate("innerWidth") == 390
    assert overflow(phone) <= 0
    rules = "{runOnly: ['target-size', 'scrollable-region-focusable']}"
    assert violations(phone, rules) == []
    phone.set_viewport_size({"width": 320, "height": 700})
    assert overflow(phone) <= 0
    if AXE is None:
        how = requires.how_to_install("axe_playwright_python")
        pytest.skip(f"it fits; axe, which judges the rest, is not installed: {how}")


def violations(page: Any, options: str) -> list[str]:
    """What axe finds, if it is installed."""
    if AXE is None:
        return []
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate((Path(AXE.origin).parent / "axe.min.js").read_text())
    result = page.evaluate(f"axe.run(document, {options})")
    return [
        f"{v['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for v in result["violations"]
        for node in v["nodes"][:3]
    ]


@pytest.mark.parametrize("name", ["AR", "SE", "ST"])
def test_the_real_jobs(visit, full, real_jobs, name):
    page = visit(f"{full.url}/jobs/real-{name}")
    cells = {"AR": 16, "SE": 64, "ST": 8}[name]
    for figure in ("workers", "workers-by-step"):
        assert page.locator(f"#fig-{figure} .heatmap rect[class^=h]").count() == cells
    assert page.locator("h1").inner_text().startswith("This job wastes")
    assert page.locator("#findings .card").count() >= 2
    assert page.locator("#remedies .card").count() >= 1


def test_the_list_searches_sorts_and_pages(visit, full):
    page = visit(full.url + "/")
    rows = page.locator("table.jobs tbody tr")
    assert rows.count() == 50
    staked = page.locator("th[aria-sort=descending]").inner_text()
    assert staked.startswith("At stake")
    stakes = page.locator("table.jobs tbody td:nth-of-type(5)").all_inner_texts()
    known = [float(t.replace(",", "")) for t in stakes if t != "–"]
    assert known
    assert known == sorted(known, reverse=True)
    assert stakes[len(known) :] == ["–"] * (len(stakes) - len(known))  # unknown ones come last
    page.get_by_label("Sort by").select_option("waste")
    page.get_by_role("button", name="Show").click()
    page.wait_for_selector("th[aria-sort=descending] >> text=Lost")
    texts = rows.all_inner_texts()
    slow = next(i for i, text in enumerate(texts) if "slow since step" in text)
    shown = page.locator("td.waste").all_inner_texts()
    wastes = [float(t.split(" to ")[0].rstrip("%")) for t in shown]
    wastes[slow] = 100 * (1 - 2.0 / 2.71)  # of its fail-slow, which costs more than its session
    assert wastes == sorted(wastes, reverse=True)
    page.get_by_role("link", name="Next →").click()
    page.wait_for_selector("nav.pages >> text=Page 2 of")
    page.get_by_role("searchbox").fill("70b garbage")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=of 20")
    names = page.locator("table.jobs tbody th > a").all_inner_texts()
    assert names
    assert all("70b" in name for name in names)
    page.get_by_label("Sort by").select_option("name")
    page.get_by_role("button", name="Show").click()
    page.wait_for_selector("th[aria-sort=ascending]")
    names = page.locator("table.jobs tbody th > a").all_inner_texts()
    assert names == sorted(names)
    assert "70b garbage" in page.get_by_role("searchbox").input_value()
    page.get_by_role("searchbox").fill("no such thing")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=No job matches")


def test_a_job_shows_everything(visit, full):
    page = visit(full.url + "/jobs/showpiece")
    assert "(node-3)" in page.locator("h1").inner_text()
    assert "node-3, GPU 1" in page.locator("#head .lead").first.inner_text()
    assert "Slow since step 2,900" in page.locator("#head").inner_text()
    assert "no column 'step'" in page.locator("#head").inner_text()
    for name in ("sessions", "steps", "workers", "workers-by-step"):
        assert page.locator(f"#fig-{name} svg.drawing").bounding_box()["height"] > 60, name
    assert page.locator("#fig-sessions circle.dot").count() == 7
    assert page.locator("#fig-steps path.c-onset").count() == 2  # the mark and its key
    assert page.locator("#steps .events li").count() == 2
    assert page.locator("#waterfall rect.level").first.bounding_box()["width"] > 100
    assert page.locator("#remedies .card").count() >= 2
    assert "(node-3, GPU 1)" in page.locator("#findings .where").first.inner_text()
    link = page.get_by_role("link", name="Full report")
    assert re.fullmatch(r"/api/v1/sessions/\d+/report", link.get_attribute("href"))
    assert page.get_by_role("link", name="Ideal timeline for Perfetto").is_visible()
    page.locator("#session-list summary").click()
    page.locator("#session-list tbody a").nth(3).click()
    page.wait_for_selector("text=Show the latest")
    assert "session=" in page.url


def test_the_slider_chooses_the_step(visit, full):
    page = visit(full.url + "/jobs/showpiece")
    said = page.locator("#fig-workers-by-step output")
    page.locator("#step").fill("0")
    first = said.inner_text()
    page.locator("#step").press("ArrowRight")
    assert first.startswith("step 0: S 1.")
    assert said.inner_text().startswith("step 1: S 1.")
    assert page.locator("#step").get_attribute("aria-valuetext") == said.inner_text()


def test_heatmap_by_keyboard_and_pointer(visit, full):
    page = visit(full.url + "/jobs/showpiece")
    page.locator("#fig-workers .heatmap").focus()
    page.keyboard.press("Home")
    readout = page.locator("#fig-workers .readout")
    assert readout.inner_text().startswith("dp 3, stage 1: S 1.")
    assert "node-3, GPU 1" in readout.inner_text()
    page.keyboard.press("ArrowUp")
    assert readout.inner_text().startswith("dp 3, stage 0")
    page.locator("#fig-workers .heatmap rect[class^=h]").nth(5 + 2).hover()
    assert page.locator("#tip").inner_text().startswith("dp 2, stage 1")


@pytest.mark.parametrize("name", ["sessions", "steps"])
def test_curves_by_keyboard(visit, full, name):
    page = visit(full.url + "/jobs/showpiece")
    page.locator(f"#fig-{name} svg[role=application]").focus()
    page.keyboard.press("End")
    last = page.locator(f"#fig-{name} .readout").inner_text()
    page.keyboard.press("Home")
    assert page.locator(f"#fig-{name} .readout").inner_text() not in ("", last)


def test_all_that_moves_can_be_reached_by_tab(visit, full):
    page = visit(full.url + "/jobs/showpiece")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        where = "document.activeElement.closest('figure')?.id"
        reached.add(page.evaluate(f"{where} + ' ' + document.activeElement.tagName"))
    for figure in ("sessions", "steps", "workers", "workers-by-step"):
        assert f"fig-{figure} svg" in reached
    assert "fig-workers-by-step INPUT" in reached


def test_fleet_draws_all_figures(visit, full):
    page = visit(full.url + "/fleet")
    names = ("waste", "gpus", "kinds", "steps", "m_w", "m_s_slow", "correlation", "sequences")
    for name in names:
        assert page.locator(f"#fig-{name} svg.drawing").bounding_box()["height"] > 100, name
    assert page.locator("#fig-gpus circle.dot").count() >= 200
    assert page.locator("table.weeks tbody tr").count() == 11  # since the first session
    assert page.locator("table.causes rect").first.bounding_box()["width"] > 20
    page.locator("#fig-waste summary").click()
    page.wait_for_selector("#fig-waste td")
    assert page.locator("#fig-waste tr").count() == 2


def test_compare_two_sessions(visit, full):
    page = visit(full.url + "/jobs/showpiece/compare")
    assert "+0.1" in page.locator("#numbers").inner_text()
    assert page.locator("#numbers .worse").count() >= 2
    for figure in ("before", "after"):
        assert page.locator(f"#fig-{figure} .heatmap rect[class^=h]").count() == 15
    page.get_by_role("link", name="Swap").click()
    page.wait_for_url("**a=*")
    assert page.locator("#numbers .better").count() >= 2
    before = page.locator("select[name=a]")
    choice = before.locator("option").nth(3).get_attribute("value")
    before.select_option(choice)
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url(f"**a={choice}*")


def test_alerts_by_status(visit, full):
    page = visit(full.url + "/alerts")
    assert page.locator(".card.alert").count() == 2
    assert "1 given up" in page.locator(".card.alert.resolved").inner_text()
    assert "maintenance of the cluster" in page.locator("#alert-list").inner_text()
    assert page.locator("#firing").inner_text().split() == ["1", "firing"]
    page.get_by_role("link", name="Firing", exact=True).click()
    page.wait_for_url("**status=firing")
    assert page.locator(".card.alert").count() == 1
    page.get_by_role("link", name="showpiece").click()
    page.wait_for_url("**/jobs/showpiece*")


@pytest.mark.parametrize("name", EMPTY)
def test_empty_pages_say_what_to_do(visit, empty, name):
    page = visit(empty.url + EMPTY[name])
    assert page.locator(".empty").is_visible()
    assert overflow(page) <= 0


def test_a_job_without_sessions_and_one_that_failed(visit, full):
    page = visit(full.url + "/jobs/bare")
    assert page.locator("h1").inner_text() == "bare"
    assert "No session yet" in page.locator("#sessions").inner_text()
    assert "No step times yet" in page.locator("#steps").inner_text()
    failed = visit(full.url + "/jobs/failed")
    assert HOSTILE in failed.locator("#analysis").inner_text()


def test_names_from_outside_stay_text(visit, full):
    page = visit(full.url + "/jobs/hostile")
    assert HOSTILE in page.locator("h1").inner_text()
    assert page.locator("main img").count() == 0
    listed = visit(full.url + "/?q=hostile")
    assert listed.locator("main img").count() == 0
    assert listed.locator("table.jobs tbody tr").count() == 1


def test_scripts_that_got_in_would_not_run(visit, full):
    page = visit(full.url + "/")
    page.evaluate(
        """(() => { const s = document.createElement("script");
        s.textContent = "window.intruder = 1"; document.body.append(s); })()"""
    )
    assert page.evaluate("window.intruder") is None
    assert any("Content Security Policy" in trouble for trouble in visit.troubles)
    visit.troubles.clear()


def test_light_and_dark_by_system_and_by_button(visit, full):
    page = visit(full.url + "/", color_scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.locator("#theme").click()
    assert page.evaluate(colour) == "rgb(255, 255, 255)" != dark
    page.goto(full.url + "/fleet")  # it is remembered
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    page.wait_for_selector("html[data-ready]", state="attached")
    page.locator("#theme").click()
    assert page.evaluate(colour) == dark


def test_news_changes_the_open_list(visit, empty):
    page = visit(empty.url + "/")
    page.wait_for_selector("#live[data-state=live]")
    empty.monitor.add_job("fresh", slowdown=1.5, waste=1 / 3)
    empty.monitor.bus.publish("default", "job", {"job": "fresh"})
    page.wait_for_selector("text=fresh")
    page.get_by_role("link", name="fresh").focus()
    empty.monitor.add_job("fresher", slowdown=1.6, waste=0.375)
    empty.monitor.bus.publish("default", "job", {"job": "fresher"})
    page.wait_for_selector("text=fresher")
    assert page.evaluate("document.activeElement.textContent") == "fresh"  # the focus stays
    with empty.monitor.engine.begin() as connection:
        connection.execute(sqlalchemy.delete(jobs))


def test_news_changes_the_open_job(visit, empty, made):
    number = empty.monitor.add_job("growing")
    page = visit(empty.url + "/jobs/growing")
    page.wait_for_selector("#live[data-state=live]")
    empty.monitor.add_session(number, NOW, made[1])
    empty.monitor.sum_up(number, [1.2], made[1])
    empty.monitor.bus.publish("default", "session", {"job": "growing"})
    page.wait_for_selector("#fig-workers .heatmap rect")
    assert page.locator("h1").inner_text().startswith("This job wastes")
    page.locator("#step").focus()
    import numpy as np

    empty.monitor.add_steps(number, np.full(50, 2.0), 2.0)
    empty.monitor.bus.publish("default", "steps", {"job": "growing"})
    page.wait_for_selector("#fig-steps path.c-actual", state="attached")
    assert page.evaluate("document.activeElement.id") == "step"  # untouched parts stay
    with empty.monitor.engine.begin() as connection:
        connection.execute(sqlalchemy.delete(jobs))


def test_a_stream_that_ends_is_taken_up_again(visit, empty, monkeypatch):
    monkeypatch.setattr(server_events, "LIFE_S", 0.5)
    monkeypatch.setattr(server_events, "BEAT_S", 0.1)
    page = visit(empty.url + "/")
    page.wait_for_selector("#live[data-state=live]")
    page.wait_for_selector("#live[data-state=lost]")
    empty.monitor.add_job("meanwhile")
    monkeypatch.setattr(server_events, "LIFE_S", 60.0)
    page.wait_for_selector("#live[data-state=live]")
    page.wait_for_selector("text=meanwhile")  # what came in between is not missed
    with empty.monitor.engine.begin() as connection:
        connection.execute(sqlalchemy.delete(jobs))


def test_an_open_page_ends_with_its_token(visit, tmp_path, monkeypatch):
    monkeypatch.setattr(server_events, "LIFE_S", 0.5)
    monkeypatch.setattr(server_events, "BEAT_S", 0.1)
    with monitor(tmp_path / "data") as running:
        url = f"http://127.0.0.1:{running.port}"
        page = visit(url + "/fleet")
        log_in(page, running.token("read", "research"))
        page.wait_for_selector("#live[data-state=live]")
        revoke_token(running.service.engine, 1, running.service.clock())
        page.wait_for_url("**/login?next=%2Ffleet")
    visit.troubles.clear()  # the browser notes the 401


def log_in(page: Any, token: str) -> None:
    page.get_by_label("Access token").fill(token)
    page.keyboard.press("Enter")


def test_the_whole_service_from_login_to_report(visit, browser, tmp_path):
    with monitor(tmp_path / "data") as running:
        url = f"http://127.0.0.1:{running.port}"
        page = visit(url + "/jobs/job-7")
        assert page.url == f"{url}/login?next=%2Fjobs%2Fjob-7"
        assert violations(page, "{resultTypes: ['violations']}") == []
        log_in(page, "pcl_wrong")
        assert "not known" in page.get_by_role("alert").inner_text()
        visit.troubles.clear()  # the browser notes the 401
        log_in(page, running.token("read", "research"))
        page.wait_for_selector("text=no such job")
        visit.troubles.clear()  # and the 404
        page.get_by_role("link", name="All jobs").click()
        page.wait_for_selector("#live[data-state=live]")
        assert "No job yet" in page.locator("#list").inner_text()

        client = Client(url, running.token("push", "research"))
        session = client.push_trace("job-7", slow_trace(tmp_path), {"hosts": HOSTS})
        page.wait_for_selector("table.jobs >> text=job-7")  # by itself
        assert client_of(running, url).wait(session)["status"] == "done"
        page.wait_for_selector("table.jobs >> text=Worker fault")
        page.get_by_role("link", name="job-7").click()
        page.wait_for_selector("#fig-workers .heatmap rect")
        assert "node-3" in page.locator("h1").inner_text()
        page.locator("#fig-workers-by-step .heatmap").focus()
        page.keyboard.press("Home")
        assert "dp 3, stage 1" in page.locator("#fig-workers-by-step .readout").inner_text()
        assert page.locator("#workers .note").count() == 0  # exact, not estimated
        with page.expect_download() as download:
            page.get_by_role("link", name="Ideal timeline for Perfetto").click()
        assert gzip.decompress(download.value.path().read_bytes()).startswith(b"{")
        page.get_by_role("link", name="Full report").click()
        page.wait_for_url("**/report")
        page.wait_for_selector("html[data-ready]", state="attached")
        assert "node-3" in page.locator("h1").inner_text()
        page.go_back()
        page.wait_for_selector("#live[data-state=live]")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_selector("text=Access token")
        page.goto(url + "/fleet")
        assert "/login" in page.url


HOSTS = {str(rank): [f"node-{rank // 2}", str(rank % 2)] for rank in range(8)}


def slow_trace(folder: Path) -> Path:
    spec = SynthSpec(dp=4, pp=2, microbatches=4, steps=5, slow_workers=(SlowWorker(3, 1, 1.6),))
    parquet.write(synthesize(spec), folder / "slow.parquet")
    return folder / "slow.parquet"


def client_of(running: Any, url: str) -> Client:
    return Client(url, running.token("read", "research"))


def test_a_rank_is_reached_from_the_heatmap(visit, full):
    page = visit(full.url + PAGES["job"])
    assert page.locator("#fig-ranks rect.h15").count() > 10
    assert page.locator("#fig-ranks line.mark").count() == 1
    page.locator("#fig-ranks svg.heatmap").focus()
    page.keyboard.press("Home")
    said = page.locator("#fig-ranks .readout").inner_text()
    assert re.match(
        r"steps [\d,]+ to [\d,]+: 1\.3\d\d, rank 11 · node-2, 4 ranks from 8 to 11", said
    )
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.url.endswith("/jobs/showpiece?rank=11#ranks")
    assert "median of node-2's 4 ranks" in page.locator("#fig-rank .legend").inner_text()
    page.locator("#fig-ranks details summary").click()
    first = page.locator("#fig-ranks details tr").nth(1).inner_text()
    assert first.startswith("node-2, 4 ranks from 8 to 11\t1.3")
    page.locator("#rank").fill("40")
    with page.expect_navigation():
        page.locator("#ranks form button").click()
    assert page.url.endswith("/jobs/showpiece?rank=40#ranks")
    assert page.locator("#ranks h3").inner_text() == "Rank 40"
