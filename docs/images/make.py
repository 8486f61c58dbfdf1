"""Draw the pictures of README and docs with the present version, for light and for dark pages.

    python docs/images/make.py

analyze: the screen of `paceline analyze`. report: the first screen of its page. monitor: a job's
page. Needs ``paceline[monitor]``, playwright and Chromium (PACELINE_BROWSER).
"""

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

from paceline import SynthSpec, WhatIf, analyze, from_trace, synthesize
from paceline.client import Client
from paceline.diagnose import diagnose
from paceline.files import write_files
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.html import report_writer
from paceline.report.page.drawings import Drawings
from paceline.report.terminal import print_report
from paceline.results.document import JobReport
from paceline.sources import parquet
from paceline.synth import SlowWorker

HERE = Path(__file__).parent
SIZE = {"dp": 8, "pp": 4, "microbatches": 16}
HEALTHY = SynthSpec(**SIZE, steps=10)
JOB = SynthSpec(**SIZE, steps=10, slow_workers=(SlowWorker(3, 1, 1.5),))
#: The heading before which a picture ends.
END = "Remedies: changes and their gains"
BROWSER = os.environ.get("PACELINE_BROWSER", "/usr/bin/chromium")
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}


def main() -> None:
    """Analyse once; keep all pictures."""
    measured = from_trace(synthesize(JOB))
    result = analyze(measured)
    advice = advise(Case(measured, result, diagnose(measured, result)), REMEDIES)
    report = JobReport.of(result, advice, per_step_workers=True)
    for theme in THEMES:
        draw_screen(report, theme)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = Path(folder) / "report.html"
        write_files({page: report_writer(report, Drawings.of(measured, result))})
        for theme in THEMES:
            shoot(browser, theme, "report", page.as_uri(), 1400, END)
        with service(Path(folder) / "data") as (url, token):
            push_job(Client(url, token), Path(folder), result)
            for theme in THEMES:
                address = f"{url}/jobs/llm-pretrain-17"
                shoot(browser, theme, "monitor", address, 1240, END, token)
        browser.close()


def draw_screen(report: JobReport, theme: str) -> None:
    """analyze-light.svg or analyze-dark.svg, from a recording console."""
    console = Console(
        record=True, width=92, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    print_report(report, console)
    svg = console.export_svg(title="paceline analyze trace.parquet", theme=THEMES[theme])
    # The fonts would come from the network; any fixed-width font of the reader's will do.
    head, _, rest = svg.partition("@font-face")
    while rest:
        rest = rest[rest.index("}") + 1 :]
        before, _, rest = rest.partition("@font-face")
        head += before
    (HERE / f"analyze-{theme}.svg").write_text(head.replace("Fira Code", "monospace"))


def shoot(
    browser: Browser, theme: str, name: str, url: str, width: int, end: str, token: str = ""
) -> None:
    """NAME-light.png or NAME-dark.png, a page from its top to the heading ``end``."""
    viewport = {"width": width, "height": 2400}
    context = browser.new_context(viewport=viewport, color_scheme=theme)
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(url)
    if token:
        page.fill("input[name=token]", token)
        page.click("form.login button")
    page.wait_for_selector("html[data-ready]", state="attached")
    if token:
        page.wait_for_selector(".notice:has-text('Critical alert')")  # the page follows by itself
    box = page.get_by_role("heading", name=end).first.bounding_box()
    height = int(box["y"]) - 16
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(path=HERE / f"{name}-{theme}.png", clip=clip)
    context.close()


@contextmanager
def service(data: Path) -> Iterator[tuple[str, str]]:
    """A monitor of its own: its address and the token that it shows."""
    command = [sys.executable, "-m", "paceline", "serve", "--data", str(data)]
    log = data.with_suffix(".log")  # a pipe that nobody reads would fill up and stop the service
    with log.open("w") as out:
        serving = subprocess.Popen([*command, "--bind", "127.0.0.1:0"], stderr=out, stdout=out)
    try:
        while not (found := re.search(r"(http://[\w.:]+).*(pcl_[\w-]+)", log.read_text(), re.S)):
            if serving.poll() is not None:
                raise SystemExit(f"the service did not start: {log.read_text()}")
            time.sleep(0.1)
        yield found[1], found[2]
    finally:
        serving.terminate()
        serving.wait()


def push_job(client: Client, folder: Path, slow: WhatIf) -> None:
    """Three healthy sessions, then one within a fail-slow; step times that change at step 3,200."""
    name = "llm-pretrain-17"
    client.register(name, gpus=32, labels={"importance": "critical", "team": "core"})
    hosts = {str(rank): [f"node-{rank // 8}", str(rank % 8)] for rank in range(32)}
    healthy_s, slow_s = float(np.mean(slow.ideal_s)), float(np.mean(slow.traced_s))
    sessions = ((HEALTHY, 500), (HEALTHY, 1500), (HEALTHY, 2500), (JOB, 3900))
    for number, (spec, first) in enumerate(sessions):
        trace = synthesize(SynthSpec(**{**vars(spec), "seed": number}))
        trace = replace(trace, steps=trace.steps + first)
        path = folder / f"{number}.parquet"
        parquet.write(trace, path)
        client.wait(client.push_trace(name, path, {"hosts": hosts}))
    rng = np.random.default_rng(1)
    for first in range(0, 4200, 100):
        level_s = healthy_s if first < 3200 else slow_s
        times_s = level_s * (1 + 0.002 * rng.standard_normal(100))
        client.push_steps(name, range(first, first + 100), [11] * 100, times_s.tolist())
    while (client.job(name)["last_step"] or 0) < 4199:  # the detector comes behind
        time.sleep(0.5)


if __name__ == "__main__":
    main()
