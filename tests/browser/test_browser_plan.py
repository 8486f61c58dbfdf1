"""The page of ``paceline plan --serve`` in a browser: its sliders, wide and on a phone."""

import pytest

import requires

requires.installed("starlette")
requires.installed("uvicorn")

from monitor_fleet import serving
from paceline.cli.plan_page import PlanPage, create_app
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.plan.search import search
from paceline.report.search_page import page as page_of_search

OPTIONS = {"max_vpp": 1, "micro_batches": (1,), "zeros": (1, 3)}


@pytest.fixture(scope="module")
def url():
    page = PlanPage(llm_preset("llama3-8b"), cluster_preset("h100"), 16, 64, OPTIONS, 5)
    with serving(create_app(page)) as address:
        yield address


@pytest.fixture(params=[1280, 390], ids=["wide", "phone"])
def page(request, browser, url):
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    problems = []
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    yield page
    assert problems == []
    context.close()


def test_nothing_lies_beyond_the_side_and_sliders_stand_in_a_column(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    lefts = page.eval_on_selector_all(
        ".slider input", "inputs => inputs.map(x => x.getBoundingClientRect().left)"
    )
    assert len(lefts) == 4
    assert len(set(lefts)) == 1


def test_no_table_of_plans_needs_to_scroll(page):
    """The name of a plan has two lines at most on a phone, as common parts are said once."""
    boxes = page.eval_on_selector_all(
        ".scroll", "boxes => boxes.map(x => x.scrollWidth - x.clientWidth)"
    )
    assert boxes
    assert max(boxes) <= 0
    heights = page.eval_on_selector_all(
        ".plans tbody tr", "rows => rows.map(x => x.getBoundingClientRect().height)"
    )
    assert max(heights) <= 56
    assert page.get_by_text("All plans below: ").count() == 1


def test_a_label_follows_its_slider_and_the_search_follows_the_change(page):
    slider = page.locator("#gpus")
    slider.evaluate("x => { x.value = 1; x.dispatchEvent(new Event('input', {bubbles: true})); }")
    assert page.locator('label[for="gpus"]').inner_text() == "32 GPUs"
    assert "on 16 GPUs" in page.locator("h1").inner_text()
    with page.expect_navigation():
        slider.dispatch_event("change")
    assert "on 32 GPUs" in page.locator("h1").inner_text()
    assert page.evaluate("document.activeElement.id") == "gpus"
    price = page.locator("#price")
    price.evaluate("x => { x.value = 2.5; x.dispatchEvent(new Event('input', {bubbles: true})); }")
    assert page.locator('label[for="price"]').inner_text() == "$2.50 per GPU and hour"


def test_sliders_lead_away_from_a_page_without_a_plan(page, url):
    page.goto(f"{url}/?gpus=-4&seq_len=4")
    assert page.locator("h1").inner_text() == "No plan"
    slider = page.locator("#gpus")
    slider.evaluate("x => { x.value = 2; x.dispatchEvent(new Event('input', {bubbles: true})); }")
    assert page.locator('label[for="gpus"]').inner_text() == "64 GPUs"
    page.locator("#seq_len").evaluate("x => { x.value = 0; }")
    with page.expect_navigation():
        slider.dispatch_event("change")
    assert "on 64 GPUs" in page.locator("h1").inner_text()


@pytest.fixture(scope="module")
def search_page(tmp_path_factory):
    plans = search(llm_preset("llama3-8b"), cluster_preset("h100"), [16], 64, **OPTIONS)
    path = tmp_path_factory.mktemp("plan") / "report.html"
    line = "torchrun --nnodes 4 " + " ".join(f"--an-option-{i} value" for i in range(20))
    path.write_bytes(page_of_search(plans, 5, launch=("torchtitan", f"# {line}\nnext = 1")))
    return path


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_line_of_the_launch_file_is_cut(open_page, search_page, width, scheme):
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    page = open_page(search_page, **options).page
    assert page.eval_on_selector("#launch pre", "x => x.scrollWidth <= x.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_plot_names_its_front_and_draws_it_above_the_other_plans(open_page, search_page):
    page = open_page(search_page).page
    words = page.eval_on_selector_all("#fig-front .legend span", "x => x.map(y => y.innerText)")
    assert [word.strip() for word in words] == [
        "front: no other plan is faster and needs less memory",
        "another plan",
    ]
    names = page.eval_on_selector_all(
        "#fig-front svg.drawing circle.dot", "x => x.map(y => y.getAttribute('class'))"
    )
    assert names == sorted(names)
    assert {"dot faint", "dot front"} == set(names)
    colours = page.eval_on_selector_all(
        "#fig-front circle.front", "x => [...new Set(x.map(y => getComputedStyle(y).fill))]"
    )
    assert len(colours) == 1  # in the plot and in its legend
