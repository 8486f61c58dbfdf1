"""Draw analyze.svg: the screen of `paceline analyze` on the job of `make demo`.

python docs/images/make.py
"""

import io
from pathlib import Path

from rich.console import Console

from paceline import SynthSpec, analyze, from_trace, synthesize
from paceline.diagnose import diagnose
from paceline.remedies import REMEDIES, Case, advise
from paceline.report.terminal import print_result
from paceline.synth import SlowWorker


def main() -> None:
    """Analyse, print to a recording console, keep the picture."""
    job = SynthSpec(dp=8, pp=4, microbatches=16, steps=10, slow_workers=(SlowWorker(3, 1, 1.5),))
    console = Console(
        record=True, width=92, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    measured = from_trace(synthesize(job))
    result = analyze(measured)
    advice = advise(Case(measured, result, diagnose(measured, result)), REMEDIES)
    print_result(result, console, advice)
    svg = console.export_svg(title="paceline analyze trace.parquet")
    # The fonts would come from the network; any fixed-width font of the reader's will do.
    head, _, rest = svg.partition("@font-face")
    while rest:
        rest = rest[rest.index("}") + 1 :]
        before, _, rest = rest.partition("@font-face")
        head += before
    Path(__file__).with_name("analyze.svg").write_text(head.replace("Fira Code", "monospace"))


if __name__ == "__main__":
    main()
