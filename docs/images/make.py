"""Draw analyze.svg and report.png: screen and report of `paceline analyze`, job of `make demo`.

python docs/images/make.py (report.png needs playwright and Chromium: PACELINE_BROWSER)
"""

import io
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright
from rich.console import Console

from paceline import SynthSpec, analyze, from_trace, synthesize
from paceline.diagnose import diagnose
from paceline.files import write_files
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.html import report_writer
from paceline.report.page.drawings import Drawings
from paceline.report.terminal import print_report
from paceline.results.document import JobReport
from paceline.synth import SlowWorker

HERE = Path(__file__).parent
JOB = SynthSpec(dp=8, pp=4, microbatches=16, steps=10, slow_workers=(SlowWorker(3, 1, 1.5),))
BROWSER = os.environ.get("PACELINE_BROWSER", "/usr/bin/chromium")


def main() -> None:
    """Analyse once; keep both pictures."""
    measured = from_trace(synthesize(JOB))
    result = analyze(measured)
    advice = advise(Case(measured, result, diagnose(measured, result)), REMEDIES)
    report = JobReport.of(result, advice, per_step_workers=True)
    draw_screen(report)
    draw_report(report, Drawings.of(measured, result))


def draw_screen(report: JobReport) -> None:
    """analyze.svg, from a recording console."""
    console = Console(
        record=True, width=92, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    print_report(report, console)
    svg = console.export_svg(title="paceline analyze trace.parquet")
    # The fonts would come from the network; any fixed-width font of the reader's will do.
    head, _, rest = svg.partition("@font-face")
    while rest:
        rest = rest[rest.index("}") + 1 :]
        before, _, rest = rest.partition("@font-face")
        head += before
    (HERE / "analyze.svg").write_text(head.replace("Fira Code", "monospace"))


def draw_report(report: JobReport, drawings: Drawings) -> None:
    """report.png, the first screen of the page."""
    write = report_writer(report, drawings)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        write_files({path: write})
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1160})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.screenshot(path=HERE / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
