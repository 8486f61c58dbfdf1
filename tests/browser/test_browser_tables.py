"""Figures of the monitor have tables that say the same, and a table stays open when news come."""

import pytest

import requires

requires.installed("sqlalchemy")
requires.installed("starlette")
requires.installed("uvicorn")

from monitor_fleet import Monitor, add_showpiece, app_of, serving, synthetic
from paceline.monitor.store.tables import alerts

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(monitor, url) with one job that has all there is."""
    monitor, made = Monitor(tmp_path_factory.mktemp("site")), synthetic(2)
    add_showpiece(monitor, made[1], made[0])
    with serving(app_of(monitor)) as url:
        yield monitor, url
    monitor.close()


@pytest.fixture
def visit(browser, site):
    contexts = []

    def go(path, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.goto(site[1] + path)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield go
    for context in contexts:
        context.close()


@pytest.mark.parametrize(
    ("path", "figure", "head", "n_rows"),
    [
        ("/fleet", "fig-gpus", ["GPUs", "jobs", "median S", "largest S", "slowest job"], 1),
        (
            "/jobs/showpiece",
            "fig-steps",
            ["from step", "median", "longest", "which", "healthy"],
            20,
        ),
        (
            "/jobs/showpiece",
            "fig-workers-by-step",
            ["step", "S", "dp", "stage", "S of this worker", "host"],
            6,
        ),
    ],
)
def test_a_figure_has_a_table(visit, path, figure, head, n_rows):
    for options in ({"viewport": {"width": 1280, "height": 800}}, PHONE):
        page = visit(path, **options)
        table = page.locator(f"#{figure}-table")
        table.locator("summary").focus()
        page.keyboard.press("Enter")
        rows = table.locator("tr")
        rows.first.wait_for()
        assert rows.first.locator("th").all_inner_texts() == head
        assert rows.count() == n_rows + 1
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_slowest_worker_of_each_step_is_told(visit):
    page = visit("/jobs/showpiece")
    table = page.locator("#fig-workers-by-step-table")
    table.locator("summary").click()
    table.locator("td").first.wait_for()
    cells = [row.locator("th, td").all_inner_texts() for row in table.locator("tr").all()[1:]]
    assert {tuple(row[2:4]) for row in cells} == {("3", "1")}  # dp 3, stage 1 is made slow
    slowdowns = [float(row[1]) for row in cells]
    assert slowdowns == sorted(slowdowns, reverse=True)
    assert all(float(row[4]) > 1.1 for row in cells)


def test_a_table_stays_open_when_news_come(visit, site):
    page = visit("/jobs/showpiece")
    table = page.locator("#fig-steps-table")
    table.locator("summary").click()
    page.evaluate("document.getElementById('fig-steps').dataset.old = '1'")
    page.locator("#live[data-state='live']").wait_for()
    monitor, _ = site
    with monitor.engine.begin() as connection:
        from paceline.monitor.store.tables import events

        connection.execute(events.update().values(text="something else"))
    monitor.bus.publish("default", "steps", {"job": "showpiece"})
    page.locator("#fig-steps:not([data-old])").wait_for()
    page.locator("#fig-steps-table[open] td").first.wait_for()


@pytest.mark.parametrize("width", [1024, 1280, 1920])
def test_the_text_on_a_job_keeps_its_width_beside_ranges(visit, site, width):
    monitor, _ = site
    slow = {"slowdown": 1.656, "slowdown_lasting": 1.564, "slowdown_healthy": 2.044, "gpus": 4}
    lost = {"gpu_hours_lost": 0.00295, "gpu_hours_lost_most": 0.00381}
    job_id = monitor.add_job(f"ranged-{width}", waste=0.396, cause="worker", **slow, **lost)
    monitor.add(
        alerts,
        job_id=job_id,
        project="default",
        fingerprint=f"ranged-{width}",
        rule="slow-job",
        importance="warning",
        headline="slow",
        place="worker dp 2, stage 0; host vm",
        gain="replace worker dp 2, stage 0: a step takes 165 ms instead of 231 ms",
        status="firing",
        started_at=0.0,
        updated_at=0.0,
        labels={},
    )
    page = visit(f"/?q=ranged-{width}", viewport={"width": width, "height": 800})
    assert "1.656 to 2.044" in " ".join(page.locator("tbody tr").inner_text().split())
    assert page.locator("tbody th").bounding_box()["width"] >= 240
    assert page.locator("tbody tr").bounding_box()["height"] <= 160
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
