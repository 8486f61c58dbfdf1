"""The page of a fleet in a browser: all figures are drawn, it fits, and asks for nothing."""

from pathlib import Path

import pytest

from fleet_tables import drawn_jobs, jobs_table, steps_table
from paceline.fleet.definitions import DEFINITIONS
from paceline.fleet.study import Study
from paceline.report import fleet as fleet_page

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def fleet_report(tmp_path_factory) -> Path:
    rows = drawn_jobs(120)
    rows = [row | {"name": f"{row['name']}{HOSTILE}", "team": HOSTILE} for row in rows]
    study = Study.__new__(Study)
    study.__dict__ |= {"jobs": jobs_table(rows), "steps": steps_table(rows), "_by": ("queue",)}
    study.address, study.about = HOSTILE, {"traces": len(rows)}
    path = tmp_path_factory.mktemp("fleet") / "report.html"
    path.write_text(fleet_page.page(study), encoding="utf-8")
    return path


def test_every_figure_is_drawn(open_page, fleet_report) -> None:
    page = open_page(fleet_report).page
    for name in DEFINITIONS:
        assert page.locator(f"#fig-{name} svg").first.bounding_box()["height"] > 100, name
    assert page.locator("#groups h3").count() == 5


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_is_wider_than_the_window(open_page, fleet_report, width) -> None:
    page = open_page(fleet_report, viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
