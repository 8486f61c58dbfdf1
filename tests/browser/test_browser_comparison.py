"""The page of a comparison in a browser: it shows all, fits, and asks for nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.comparison import compare
from paceline.report.comparison import page_writer
from paceline.synth import SlowWorker, SynthSpec, synthesize

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
BASE = SynthSpec(dp=6, pp=3, microbatches=4, steps=6)


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory) -> Path:
    slow = replace(BASE, slow_workers=(SlowWorker(3, 1, 1.5),))
    hosts = {(dp, pp): (f"node-{dp}{HOSTILE}", str(pp)) for dp in range(6) for pp in range(3)}
    comparison = compare(
        synthesize(slow),
        synthesize(replace(BASE, seed=1)),
        hosts_before=hosts,
        hosts_after=hosts,
        names=(HOSTILE, "after.parquet"),
    )
    path = tmp_path_factory.mktemp("comparison") / "comparison.html"
    with path.open("wb") as file:
        page_writer(comparison)(file)
    return path


def test_the_page_shows_the_verdict_and_every_table(open_page, comparison_page) -> None:
    page = open_page(comparison_page).page
    assert "shorter" in page.locator("h1").inner_text()
    for name in ("causes", "kinds", "stages", "workers", "hosts", "numbers", "warnings"):
        assert page.locator(f"#{name}").bounding_box()["height"] > 30, name
    bar = page.locator("#causes .track rect.gain").first.bounding_box()
    track = page.locator("#causes .track").first.bounding_box()
    middle = track["x"] + track["width"] / 2
    assert bar["x"] + bar["width"] == pytest.approx(middle, abs=2)  # to the left: less time
    assert bar["width"] > 20


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_window(open_page, comparison_page, width) -> None:
    page = open_page(comparison_page, viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_theme_can_be_changed(open_page, comparison_page) -> None:
    page = open_page(comparison_page).page
    button = page.locator("#theme")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button.click()
    button.click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
