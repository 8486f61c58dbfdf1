import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from paceline.report.heatmap import heatmap
from paceline.report.terminal import print_report, screen
from paceline.results.document import JobReport
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace import Job
from paceline.trace.warning import STEPS_LEFT_OUT, Warning
from paceline.whatif import analyze

LEFT_OUT = Warning(
    STEPS_LEFT_OUT, "10 of 20 steps left out, for example step 10: dp 1 has no rows", {"step": 10}
)


def synth(**changes: Any) -> JobReport:
    spec = SynthSpec(dp=4, pp=2, microbatches=4, steps=3, slow_workers=(SlowWorker(2, 1, 1.5),))
    return JobReport.of(analyze(synthesize(replace(spec, **changes))))


@pytest.fixture(scope="module")
def slow() -> JobReport:
    return synth()


def text_of(result: JobReport, width: int = 100, *, colour: bool = False) -> str:
    return "\n".join(line.plain for line in screen(result, width, colour=colour))


def resized(result: JobReport, n_dp: int, n_pp: int) -> JobReport:
    """The result with as many workers as wished, one of them (the last) slow."""
    by_worker = np.full((n_pp, n_dp), 1.01)
    by_worker[-1, -1] = 1.87
    return replace(
        result,
        job=Job(dp_size=n_dp, pp_size=n_pp),
        by_worker=by_worker,
        by_stage=dict(enumerate(by_worker.max(axis=1).tolist())),
        by_replica=dict(enumerate(by_worker.max(axis=0).tolist())),
    )


def test_a_slow_job_is_told_with_its_numbers(slow: JobReport) -> None:
    text = text_of(slow)
    assert "synthesised: dp 4 × pp 2 on 8 GPUs · 3 steps, 0 to 2" in text
    assert f"Stragglers make steps {slow.slowdown:.2f} times as long as they could be" in text
    assert f"S = T / T_ideal = {slow.slowdown:.3f}" in text
    assert f"waste = 1 - 1/S = {slow.waste:.1%}: {slow.waste * 8:.1f} of 8 GPUs" in text
    assert "% off: fine)" in text
    assert f"2,1      {slow.by_worker[1, 2]:.3f}" in text
    assert f"backward-compute  {slow.by_kind['backward-compute']:.3f}"[:16] in text
    assert "slowest 3% of workers (1 of 8)" in text
    assert re.search(rf"M_W .* {slow.m_w:.2f} +{slow.m_w_only:.2f}", text)
    assert re.search(r"M_S +last stage", text)
    assert "step" in text
    flowing = " ".join(text_of(slow, 132).split())
    assert all(warning in flowing for warning in slow.warning_texts)


def test_a_healthy_job_is_said_to_be_so_with_all_numbers() -> None:
    healthy = synth(slow_workers=())
    text = text_of(healthy)
    assert f"Healthy: stragglers make steps {healthy.slowdown - 1:.1%} longer (under 3%)" in text
    assert f"S = T / T_ideal = {healthy.slowdown:.3f}" in text
    assert "M_W" in text
    assert "stage 0 " in re.sub(" +", " ", text)


def test_a_doubtful_analysis_is_said_to_be_so() -> None:
    doubtful = synth(launch_delay=(1.0, 1.0))
    assert doubtful.doubtful
    text = text_of(doubtful)
    assert "of the step passes between operations; see the warnings" in text
    assert "off: over 5%)" in text


def test_without_loss_the_shares_are_dashes(slow: JobReport) -> None:
    none = replace(slow, m_w=None, m_w_only=None, m_s=None, m_s_only=None)
    text = text_of(none)
    assert re.search(r"M_W .* - +-", text)
    assert "T - T_ideal is under 0.1% of T, so it has no shares." in text


def test_a_share_over_1_is_said_to_be_possible(slow: JobReport) -> None:
    title = "share of T - T_ideal (may be over 1)"
    for at, over in ((1.0, False), (1.004, False), (1.02, True)):
        text = text_of(replace(slow, m_w=at, m_w_only=0.9, m_s=0.5, m_s_only=0.5))
        assert (title in text) is over
        heading, row = text.split("share of T - T_ideal")[1].splitlines()[:2]
        assert len("share of T - T_ideal" + heading) == len(row)


def test_no_share_is_minus_zero(slow: JobReport) -> None:
    assert "-0.00" not in text_of(replace(slow, m_s=-0.001, m_s_only=-1e-9))


def test_what_is_alone_is_not_compared() -> None:
    text = text_of(synth(dp=1, pp=1, steps=1, slow_workers=()))
    assert "M_S" not in text
    assert "dp,stage" not in text
    assert "workers:" not in text
    assert "worst steps" not in text
    assert "on 1 GPU · step 0" in text


def test_left_out_steps_and_clamped_times_are_counted(slow: JobReport) -> None:
    reasons = dict.fromkeys(range(10, 20), "dp 1 has no rows")
    clamped = {"transfer": {"forward-send": 2}, "launch_delay": {"gc": 3}}
    text = text_of(replace(slow, left_out_steps=reasons, clamped=clamped))
    assert "left out steps: 10, 11, 12, 13, 14, 15, 16, 17, ... (10: dp 1 has no rows)" in text
    assert "5 negative times below -10 ms were set to 0" in text
    told = replace(slow, left_out_steps=reasons, warnings=(LEFT_OUT,))
    assert text_of(told).count("dp 1 has no rows") == 1


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 1), (64, 4), (100, 16), (1024, 64)])
@pytest.mark.parametrize("colour", [True, False])
def test_no_line_is_too_wide_and_all_fits_one_screen(
    slow: JobReport, shape: tuple[int, int], width: int, *, colour: bool
) -> None:
    lines = screen(resized(slow, *shape), width, colour=colour)
    rows = [row for line in lines for row in line.plain.split("\n")]
    if width >= 80:
        assert max(len(row.rstrip()) for row in rows) <= width
        assert len(rows) <= 50


def test_a_map_that_fits_shows_every_worker() -> None:
    lines = heatmap(np.array([[1.0, 1.5], [1.25, 2.0]]), 80, colour=True)
    plain = [line.plain for line in lines]
    assert plain[1].split() == ["stage", "0", "1"]
    assert plain[2].split() == ["0", "1.00", "1.50"]
    assert plain[3].split() == ["1", "1.25", "2.00"]
    assert plain[4].split() == ["1.00", "2.00"]
    assert "only the worst" not in plain[0]


def test_a_map_without_colours_has_digits() -> None:
    slowdown = np.full((2, 60), 1.0)
    slowdown[0, 10], slowdown[1, 59], slowdown[1, 0] = 2.0, 1.5, 1.05
    lines = [line.plain for line in heatmap(slowdown, 80, colour=False)]
    assert lines[2] == "    0 " + "·" * 10 + "9" + "·" * 49
    assert lines[3] == "    1 " + "·" * 59 + "5"
    assert "under 1.100, each digit 0.100 more; worst 2.000" in lines[4]
    assert lines[1].split() == ["stage", *map(str, range(0, 60, 5))]
    assert lines[1].index("10") == len("    0 ") + 10


def test_a_healthy_map_has_no_hot_spots() -> None:
    slowdown = np.full((1, 60), 1.0)
    slowdown[0, 10] = 1.009
    assert "9" not in heatmap(slowdown, 80, colour=False)[2].plain


def test_a_map_too_wide_and_high_shows_the_worst_and_says_so() -> None:
    slowdown = np.full((64, 1024), 1.01)
    slowdown[40, 777], slowdown[63, 3] = 1.9, 12.5
    lines = [line.plain for line in heatmap(slowdown, 80, colour=True)]
    assert "only the worst 14 of 1024 dp ranks and 16 of 64 stages fit here" in lines[0]
    ruler = lines[1].split()
    assert {"3", "777"} <= set(ruler)
    row = next(line for line in lines if line.startswith("   40 ")).split()
    assert row[ruler.index("777")] == "1.90"
    row = next(line for line in lines if line.startswith("   63 ")).split()
    assert row[ruler.index("3")] == "12.5"


def test_hot_cells_are_brighter_than_cold_ones() -> None:
    lines = heatmap(np.array([[1.0, 1.3, 1.6, 2.0]]), 80, colour=True)
    backgrounds = [re.search("on #(..)(..)(..)", str(span.style)) for span in lines[2].spans]
    levels = [
        0.299 * int(found[1], 16) + 0.587 * int(found[2], 16) + 0.114 * int(found[3], 16)
        for found in backgrounds
        if found
    ]
    assert len(levels) == 4
    assert levels == sorted(levels)


def printed(result: JobReport, **console: Any) -> str:
    file = io.StringIO()
    print_report(result, Console(file=file, width=80, **console))
    return file.getvalue()


def test_escape_codes_go_to_terminals_only(slow: JobReport) -> None:
    assert "\x1b[" not in printed(slow)
    assert "48;2;" in printed(slow, force_terminal=True, color_system="truecolor")
    # Not "48;5;": rich renders a style once per process, and it may have been in true colours.
    assert "48;" in printed(slow, force_terminal=True, color_system="256")


@pytest.mark.parametrize("few", [{"no_color": True}, {"color_system": "standard"}])
def test_digits_where_colours_are_few(slow: JobReport, few: dict[str, Any]) -> None:
    wide = resized(slow, 60, 2)
    text = printed(wide, force_terminal=True, **{"color_system": "truecolor", **few})
    assert "·" * 59 + "9" in text
    assert "48;" not in text


def test_brackets_in_texts_are_no_markup(slow: JobReport) -> None:
    bracketed = (Warning("", "a [b] c"),)
    named = replace(slow, job=replace(slow.job, name="[red]x[/red]"), warnings=bracketed)
    text = printed(named)
    assert "[red]x[/red]: dp 4" in text
    assert "! a [b] c" in text
