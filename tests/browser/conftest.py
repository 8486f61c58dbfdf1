"""A browser for the tests of pages, where there is one."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import requires

BROWSER = Path(os.environ.get("PACELINE_BROWSER", "/usr/bin/chromium"))
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium with a new, empty profile.

    Of one module: playwright keeps an event loop in this thread, where later tests may run theirs.
    """
    requires.installed("playwright")
    from playwright import sync_api

    if not BROWSER.exists():
        pytest.skip(f"no browser at {BROWSER}: apt-get install chromium, or set PACELINE_BROWSER")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(BROWSER), args=FLAGS)
        yield running
        running.close()


class Opened:
    """A page, and all that must not have happened on it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.troubles: list[str] = []
        page.on("console", lambda message: self.troubles.append(message.text))
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: (self.troubles.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith("file:"):
            self.troubles.append(f"asked for {url}")


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens a file in a fresh session; fails the test if the page errs or asks for anything."""
    contexts, opened = [], []

    def open_file(path: Path, **options: Any) -> Opened:
        size = {"width": 1280, "height": 800}
        context = browser.new_context(offline=True, **{"viewport": size, **options})
        context.set_default_timeout(120_000)
        contexts.append(context)
        found = Opened(context.new_page())
        opened.append(found)
        found.page.goto(path.as_uri())
        found.page.wait_for_selector("html[data-ready]", state="attached")
        return found

    yield open_file
    for context in contexts:
        context.close()
    assert [trouble for each in opened for trouble in each.troubles] == []
