"""The site of `make docs` in a browser: it fits a phone, search finds, nothing comes from afar."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"

if not (SITE / "index.html").is_file():
    pytest.skip("no site in docs/_build/html: make docs", allow_module_level=True)


@pytest.fixture
def open_page(browser):
    """Opens a file of the site; fails the test if the page errs or asks for anything outside."""
    contexts, troubles = [], []

    def open_file(path: Path, query: str = "", **options):
        context = browser.new_context(offline=True, **options)
        context.set_default_timeout(120_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:")) or troubles.append(request.url)
            ),
        )
        page.goto(path.as_uri() + query)
        return page

    yield open_file
    for context in contexts:
        context.close()
    # Of a file, the search cannot fetch the pages for its excerpts; from a web server it does.
    assert [trouble for trouble in troubles if trouble != "Failed to fetch"] == []


PAGES = (
    "index.html",
    "tutorial.html",
    "gallery.html",
    "glossary.html",
    "codes.html",
    "whatif.html",
    "how-to/index.html",
    "how-to/watch-all-jobs.html",
    "reference/python.html",
    "reference/commands/predict.html",
    "reference/commands/index.html",
)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_the_window(open_page, name, width) -> None:
    page = open_page(SITE / name, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.locator("h1").count() == 1


#: Parts of a page that are wider than the place for them.
CUT_OFF = """selector => [...document.querySelectorAll(selector)]
  .filter(part => part.scrollWidth > part.clientWidth).map(part => part.textContent.slice(0, 60))"""


@pytest.mark.parametrize("name", ["tutorial.html", "gallery.html", "codes.html"])
@pytest.mark.parametrize("width", [390, 1280])
def test_commands_and_tables_of_three_columns_are_not_cut_off(open_page, name, width) -> None:
    page = open_page(SITE / name, viewport={"width": width, "height": 800})
    narrow = ".table-wrapper:not(:has(tr > :nth-child(4)))"
    parts = f".highlight-sh pre, .highlight-console pre, .highlight-python pre, {narrow}"
    assert page.evaluate(CUT_OFF, parts) == []


@pytest.mark.parametrize("name", ["tutorial.html", "detect.html", "reference/commands/plan.html"])
def test_paper_shows_whole_lines(open_page, name) -> None:
    page = open_page(SITE / name, viewport={"width": 700, "height": 800})
    page.emulate_media(media="print")
    assert page.evaluate(CUT_OFF, "pre") == []


def faults(page) -> list:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        (fault["id"], fault["impact"], [node["html"][:100] for node in fault["nodes"]][:3])
        for fault in found
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", "tutorial.html", "reference/commands/predict.html"])
def test_a_page_has_no_fault_of_accessibility(open_page, name, scheme) -> None:
    assert faults(open_page(SITE / name, color_scheme=scheme)) == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_no_page_of_the_site_has_one(open_page, width, scheme) -> None:
    window = {"width": width, "height": 800}
    page = open_page(SITE / "index.html", viewport=window, color_scheme=scheme)
    wrong = {}
    for path in sorted(SITE.rglob("*.html")):
        page.goto(path.as_uri())
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if found := faults(page) + [f"{too_wide} px too wide"] * (too_wide > 0):
            wrong[path.relative_to(SITE).as_posix()] = found
    assert wrong == {}


def test_search_finds_a_command(open_page) -> None:
    page = open_page(SITE / "search.html", "?q=fsdp")
    page.wait_for_selector("ul.search li a")
    titles = page.locator("ul.search li a").all_inner_texts()
    assert "My FSDP job is slow" in titles


def test_every_page_of_the_gallery_opens(open_page) -> None:
    pages = sorted((SITE / "gallery-pages").glob("*.html"))
    assert len(pages) >= 7
    links = open_page(SITE / "gallery.html").locator("a[href^='gallery-pages/']")
    assert {link.get_attribute("href") for link in links.all()} == {
        f"gallery-pages/{path.name}" for path in pages
    }
    for path in pages:
        assert open_page(path).locator("h1").count() == 1, path.name


class Links(HTMLParser):
    """The links of a page, and the places in it that others may link."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src", "srcset") and value:
                self.targets.add(value)


def test_every_link_leads_to_a_file_and_a_place() -> None:
    pages = {path: Links(path) for path in sorted(SITE.rglob("*.html"))}
    dead, count = [], 0
    for page, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            count += 1
            path = (page.parent / unquote(url.path)).resolve() if url.path else page
            place = unquote(url.fragment)
            drawn = "gallery-pages" in path.parts  # their scripts make places
            if not path.exists() or (
                place and not drawn and path in pages and place not in pages[path].places
            ):
                dead.append((page.relative_to(SITE).as_posix(), target))
    assert count > 5000
    assert dead == []


@pytest.mark.parametrize("name", ["tutorial.html", "reference/commands/predict.html"])
def test_a_page_prints(open_page, name) -> None:
    page = open_page(SITE / name, color_scheme="light")
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") <= 30
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
