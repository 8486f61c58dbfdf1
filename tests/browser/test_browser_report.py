"""The report in a browser: it draws, moves, prints, and asks for nothing."""

from pathlib import Path

import pytest

from advised_jobs import EXTREMES, JOBS, Advised, extreme, job, page_of, report_of
from paceline.diagnose import diagnose, waterfall
from paceline.graph import from_trace
from paceline.remedies import Advice, Remedy
from paceline.report.html import report_writer
from paceline.report.page.drawings import Drawings
from paceline.results.document import JobReport
from paceline.results.headline import headline
from paceline.synth import Layers, SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
CURE = Remedy("replace-worker", "replace it", ("worker",), 1.0, 0.2, (0.1, 0.3), {"with": "x"})
FIGURES = ("workers", "workers-by-step", "steps", "cdf", "kinds", "stages", "waterfall")


def write(spec: SynthSpec, path: Path) -> Path:
    measured = from_trace(synthesize(spec))
    result = analyze(measured)
    object.__setattr__(result.job, "name", HOSTILE)
    diagnosis = diagnose(measured, result)
    fall = waterfall(measured, result, diagnosis.findings)
    hosts = {(dp, pp): f"node-{dp}{HOSTILE}" for dp in range(spec.dp) for pp in range(spec.pp)}
    advice = Advice(diagnosis, fall, (CURE,))
    document = JobReport.of(result, advice, hosts=hosts, per_step_workers=True)
    with path.open("wb") as file:
        report_writer(document, Drawings.of(measured, result))(file)
    return path


@pytest.fixture(scope="session")
def report(tmp_path_factory) -> Path:
    spec = SynthSpec(dp=5, pp=3, microbatches=4, steps=4, slow_workers=(SlowWorker(3, 1, 1.5),))
    return write(spec, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="session")
def wide_report(tmp_path_factory) -> Path:
    spec = SynthSpec(dp=256, pp=2, microbatches=2, steps=2, slow_workers=(SlowWorker(200, 1, 2),))
    return write(spec, tmp_path_factory.mktemp("wide") / "report.html")


def overflow(page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def test_all_figures_are_there(open_page, report):
    page = open_page(report).page
    for name in FIGURES:
        assert page.locator(f"#fig-{name}").bounding_box()["height"] > 50, name
    assert page.locator("#fig-workers .heatmap rect[class^=h]").count() == 15
    assert page.locator("#fig-steps path.c-actual").count() == 2  # the curve and its key
    assert page.locator("#fig-scatter circle.dot").count() == 4 * 4 * 5
    assert page.locator("#fig-scatter circle.blamed").count() == 4 * 4
    colours = page.evaluate(
        """(() => { const c = document.querySelector("#fig-timeline canvas");
        const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        const seen = new Set(); for (let i = 0; i < d.length; i += 4)
          if (d[i + 3] === 255) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
        return seen.size; })()"""
    )
    assert colours > 4
    assert page.title().startswith(HOSTILE)


def test_the_slider_chooses_the_step(open_page, report):
    page = open_page(report).page
    said = page.locator("#fig-workers-by-step output")
    page.locator("#step").fill("0")
    first = said.inner_text()
    page.locator("#step").press("ArrowRight")
    assert first.startswith("step 0: S 1.")
    assert said.inner_text().startswith("step 1: S 1.")
    assert page.locator("#step").get_attribute("aria-valuetext") == said.inner_text()


def test_pointing_at_a_cell_gives_its_numbers_and_host(open_page, report):
    page = open_page(report).page
    page.locator("#fig-workers .heatmap rect[class^=h]").nth(5 + 3).hover()
    tip = page.locator("#tip").inner_text()
    assert tip.startswith("dp 3, stage 1: S 1.")
    assert f"node-3{HOSTILE}" in tip


def test_heatmap_by_keyboard(open_page, report):
    page = open_page(report).page
    page.locator("#fig-workers .heatmap").focus()
    page.keyboard.press("Home")
    readout = page.locator("#fig-workers .readout")
    assert readout.inner_text().startswith("dp 3, stage 1: S 1.")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    assert readout.inner_text().startswith("dp 4, stage 0: S ")
    for _ in range(3):  # at the edge it stays
        page.keyboard.press("ArrowUp")
    assert readout.inner_text().startswith("dp 4, stage 0: S ")


def test_all_that_moves_can_be_reached_by_tab(open_page, report):
    page = open_page(report).page
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        where = "document.activeElement.closest('figure')?.id"
        reached.add(page.evaluate(f"{where} + ' ' + document.activeElement.tagName"))
    for name, tag in {
        **dict.fromkeys(("workers", "workers-by-step", "steps", "cdf", "scatter"), "svg"),
        "timeline": "CANVAS",
    }.items():
        assert f"fig-{name} {tag}" in reached
    assert "fig-workers-by-step INPUT" in reached


@pytest.mark.parametrize("name", ["steps", "cdf", "scatter"])
def test_curves_and_points_by_keyboard(open_page, report, name):
    page = open_page(report).page
    page.locator(f"#fig-{name} svg[role=application]").focus()
    page.keyboard.press("ArrowRight")
    first = page.locator(f"#fig-{name} .readout").inner_text()
    page.keyboard.press("ArrowRight")
    assert first != page.locator(f"#fig-{name} .readout").inner_text() != ""


def picture(page) -> str:
    page.wait_for_timeout(80)  # it is painted in the next frame
    return page.evaluate('document.querySelector("#fig-timeline canvas").toDataURL()')


def picture_that(page, holds) -> str:
    """The picture once it is as wanted: events of a wheel come when the browser has time."""
    for _ in range(1200):
        if holds(now := picture(page)):
            break
    return now


def test_timeline_zooms_and_pans(open_page, report):
    page = open_page(report).page
    canvas = page.locator("#fig-timeline canvas")
    pictures = [picture(page)]
    page.get_by_label("Zoom in").click()
    pictures.append(picture_that(page, lambda now: now != pictures[-1]))
    canvas.focus()
    for key in ("+", "ArrowRight", "-"):
        page.keyboard.press(key)
        pictures.append(picture_that(page, lambda now: now != pictures[-1]))
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 120, y, steps=3)
    page.mouse.up()
    pictures.append(picture_that(page, lambda now: now != pictures[-1]))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    pictures.append(picture_that(page, lambda now: now != pictures[-1]))
    assert len(set(pictures)) == len(pictures)
    canvas.focus()
    page.keyboard.press("0")
    page.mouse.move(0, 0)
    assert picture_that(page, lambda now: now == pictures[0]) == pictures[0]


def test_timeline_tells_operations_by_keyboard(open_page, report):
    page = open_page(report).page
    page.locator("#fig-timeline canvas").focus()
    page.keyboard.press(".")
    page.keyboard.press(".")
    readout = page.locator("#fig-timeline .readout").inner_text()
    assert "dp 3, stage 0" in readout
    page.keyboard.press("ArrowDown")
    assert "dp 3, stage 1" in page.locator("#fig-timeline .readout").inner_text()


def test_a_collective_tells_its_unit_and_what_of_it_is_exposed(open_page, tmp_path):
    """Collectives of programs are painted beneath the computes that they run beside."""
    path = tmp_path / "report.html"
    path.write_text(page_of(job("sharded")), encoding="utf-8")
    page = open_page(path).page
    canvas = page.locator("#fig-timeline canvas")
    canvas.scroll_into_view_if_needed()
    tips = []
    for x in range(60, 400, 4):
        canvas.hover(position={"x": x, "y": 63})
        tips.append(page.locator("#tip").inner_text())
    assert any("unit 0: " in tip and "exposed in a mean step" in tip for tip in tips), tips
    assert page.locator("nav a[href='#communication']").count() == 1
    assert "Prefetch too late" in page.locator("#communication").inner_text()


def test_the_timeline_shows_any_step(open_page, report):
    page = open_page(report).page
    slider, said = page.locator("#timeline-step"), page.locator("#fig-timeline > p").first
    pictures, texts = [picture(page)], [said.inner_text()]
    for key in ("Home", "ArrowRight"):
        slider.press(key)
        pictures.append(picture(page))
        texts.append(said.inner_text())
    assert texts[1].startswith("Step 0 took ")
    assert texts[2].startswith("Step 1 took ")
    assert pictures[1] != pictures[2]
    assert slider.get_attribute("aria-valuetext").startswith("step 1")
    label = page.locator("#fig-timeline canvas").get_attribute("aria-label")
    assert label.startswith("Timeline of step 1: actual")
    slider.press("End")
    slider.press("ArrowLeft")
    slider.press("ArrowRight")
    assert said.inner_text().startswith("Step 3 took ")


def test_the_critical_path_by_keyboard_and_table(open_page, report):
    page = open_page(report).page
    page.locator("#fig-timeline canvas").focus()
    readout = page.locator("#fig-timeline .readout")
    visited = []
    for _ in range(6):
        page.keyboard.press("c")
        visited.append(readout.inner_text())
    assert len(set(visited)) == 6
    assert all("on the critical path" in text for text in visited)
    page.keyboard.press("Shift+C")
    assert readout.inner_text() == visited[-2]
    table = page.locator("#fig-timeline details").first
    table.locator("summary").click()
    table.locator("tr").nth(1).wait_for(state="attached")  # it is filled when it opens
    rows = table.locator("tr").all_inner_texts()
    assert rows[0].split("\t") == ["operation", "dp", "stage", "start", "length"]
    assert any(row.startswith("backward-compute of microbatch") for row in rows)
    page.locator("#timeline-step").press("Home")
    assert table.count() == 1


def test_the_critical_path_has_its_section(open_page, report):
    page = open_page(report).page
    page.get_by_role("link", name="Critical path").click()
    for name in ("path-kinds", "path-stages", "path-workers"):
        assert page.locator(f"#fig-{name}").bounding_box()["height"] > 50
    first = page.locator("#fig-path-workers tbody tr").first.inner_text()
    assert first.startswith("dp 3, stage 1")
    assert "4 of 4" in first


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_light_and_dark_by_system_and_by_button(open_page, report):
    page = open_page(report, color_scheme="dark").page
    dark, drawn_dark = background(page), picture(page)
    page.locator("#theme").click()
    assert page.locator("#theme").inner_text() == "Theme: light"
    light = background(page)
    assert light == "rgb(255, 255, 255)" != dark
    assert picture(page) != drawn_dark
    page.locator("#theme").click()
    assert background(page) == dark
    page.locator("#theme").click()
    page.emulate_media(color_scheme="light")
    assert background(page) == light


def test_every_figure_has_a_table(open_page, report):
    page = open_page(report).page
    for details in page.locator("figure details").all():
        details.locator("summary").click()
        details.locator("tr").nth(1).wait_for(state="attached")
    assert page.locator("#fig-workers tr").count() == 16
    assert "dp" in page.locator("#fig-workers tr").first.inner_text()


def test_it_prints_in_light_colours_without_controls(open_page, report):
    page = open_page(report, color_scheme="dark").page
    dark = picture(page)
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 3 <= printed.count(b"/Type /Page\n") <= 12
    assert picture(page) == dark  # afterwards as before
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert not page.locator("#theme").is_visible()


def test_it_fits_a_phone(open_page, report):
    phone = {"width": 390, "height": 844}
    page = open_page(report, viewport=phone, is_mobile=True, has_touch=True).page
    assert overflow(page) <= 0
    assert page.evaluate("innerWidth") == 390
    page.locator("#fig-workers .heatmap rect[class^=h]").nth(8).tap()
    assert page.locator("#fig-workers .readout").inner_text().startswith("dp 3, stage 1")


#: Labels of visible boxes whose content is wider than they are.
SCROLLING = """() => [...document.querySelectorAll(".scroll")]
  .filter((box) => box.offsetParent && box.scrollWidth > box.clientWidth)
  .map((box) => box.getAttribute("aria-label"))"""


@pytest.mark.parametrize("width", [390, 1024, 1280])
def test_no_table_needs_to_scroll(open_page, report, width):
    page = open_page(report, viewport={"width": width, "height": 844}).page
    assert page.evaluate(SCROLLING) == []
    assert overflow(page) <= 0


def test_a_table_of_workers_with_peers_needs_no_scrolling_at_1280_px(open_page, tmp_path):
    slow, layers = (SlowWorker(3, 1, 1.5, peer=1),), Layers(4)
    spec = SynthSpec(dp=4, pp=2, tp=2, layers=layers, microbatches=4, steps=12, slow_workers=slow)
    page = open_page(write(spec, tmp_path / "report.html")).page
    assert "peer" in page.locator("#fig-path-workers tbody").inner_text()
    assert page.evaluate(SCROLLING) == []


def test_many_replicas_go_on_in_bands_that_fit(open_page, wide_report):
    page = open_page(wide_report, viewport={"width": 800, "height": 800}).page
    assert overflow(page) <= 0
    cells = page.locator("#fig-workers .heatmap rect[class^=h]")
    assert cells.count() == 512
    cells.nth(256 + 200).hover()
    assert page.locator("#tip").inner_text().startswith("dp 200, stage 1: S 1.")
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_timeout(200)
    assert overflow(page) <= 0


def test_scripts_that_got_in_would_not_run(open_page, report):
    opened = open_page(report)
    opened.page.evaluate(
        """(() => { const s = document.createElement("script");
        s.textContent = "window.intruder = 1"; document.body.append(s); })()"""
    )
    assert opened.page.evaluate("window.intruder") is None
    assert any("Content Security Policy" in trouble for trouble in opened.troubles)
    opened.troubles.clear()


def lines_of(page, selector: str) -> float:
    """How many lines the text of an element takes."""
    return page.evaluate(
        """(selector) => { const box = document.querySelector(selector);
        const height = parseFloat(getComputedStyle(box).lineHeight);
        return box.getBoundingClientRect().height / height; }""",
        selector,
    )


def headline_of(known: Advised) -> str:
    return headline(report_of(known))


def test_the_headline_has_at_most_two_lines_at_1400_px(open_page, tmp_path):
    """Of the dozen jobs with the longest ones, and with the largest numbers there may be."""
    texts = {name: headline_of(job(name)) for name in JOBS}
    longest = sorted(texts, key=lambda name: -len(texts[name]))[:12]
    for name in longest:
        path = tmp_path / f"{name}.html"
        path.write_text(page_of(job(name)), encoding="utf-8")
        page = open_page(path, viewport={"width": 1400, "height": 900}).page
        assert page.locator("h1").inner_text() == texts[name]
        assert lines_of(page, "h1") < 2.01, name
        assert page.locator(".lead").count() >= 1
        assert overflow(page) <= 0, name
    for cause in EXTREMES:
        for straggling in (True, False):
            known, _, _ = extreme(cause, straggling=straggling)
            text = headline_of(known)
            page.locator("h1").evaluate("(box, text) => { box.textContent = text; }", text)
            assert lines_of(page, "h1") < 2.01, text


def test_a_healthy_job_has_its_figures(open_page, tmp_path):
    path = write(SynthSpec(dp=2, pp=2, microbatches=4, steps=2), tmp_path / "healthy.html")
    page = open_page(path).page
    assert page.locator("h1").inner_text().startswith("Healthy")
    assert page.locator("figure").count() > 3
    assert overflow(page) <= 0
