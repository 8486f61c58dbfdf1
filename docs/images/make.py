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
from paceline.graph import Measured
from paceline.remedies import REMEDIES, Advice, Case, advise
from paceline.report.html import report_writer
from paceline.report.terminal import print_result
from paceline.synth import SlowWorker
from paceline.whatif import WhatIf

HERE = Path(__file__).parent
JOB = SynthSpec(dp=8, pp=4, microbatches=16, steps=10, slow_workers=(SlowWorker(3, 1, 1.5),))
BROWSER = os.environ.get("PACELINE_BROWSER", "/usr/bin/chromium")


def main() -> None:
    """Analyse once; keep both pictures."""
    measured = from_trace(synthesize(JOB))
    result = analyze(measured)
    advice = advise(Case(measured, result, diagnose(measured, result)), REMEDIES)
    draw_screen(result, advice)
    draw_report(result, advice, measured)


def draw_screen(result: WhatIf, advice: Advice) -> None:
    """analyze.svg, from a recording console."""
    console = Console(
        record=True, width=92, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    print_result(result, console, advice)
    svg = console.export_svg(title="paceline analyze trace.parquet")
    # The fonts would come from the network; any fixed-width font of the reader's will do.
    head, _, rest = svg.partition("@font-face")
    while rest:
        rest = rest[rest.index("}") + 1 :]
        before, _, rest = rest.partition("@font-face")
        head += before
    (HERE / "analyze.svg").write_text(head.replace("Fira Code", "monospace"))


def draw_report(result: WhatIf, advice: Advice, measured: Measured) -> None:
    """report.png, the first screen of the page."""
    remedies = (*advice.remedies, *advice.architecture)
    write = report_writer(
        *(result, advice.diagnosis, advice.fall, remedies, measured),
        not_applicable=advice.not_applicable,
    )
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
