"""Tables of tools that end within a line: a copy that was cut off, or a file being written."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from paceline.sources.call_logs.files import load_call_log
from paceline.sources.step_logs.files import load_step_log
from paceline.sources.telemetry.files import load_telemetry

STEPS = "step,rank,duration_s\n" + "".join(f"{n},0,0.95\n" for n in range(5))
CHART = "Step,run - train/step_time_s,run - train/step_time_s__MIN,run - train/step_time_s__MAX\n"
CHART += "".join(f"{n},0.95,0.95,0.95\n" for n in range(5))
CALLS = "rank,time_s,op,size,communicator,duration_s\n"
CALLS += "".join(f"{rank},{n},AllReduce,8,dp,0.95\n" for n in range(5) for rank in (0, 1))
SMI = "timestamp, index, clocks.current.sm [MHz]\n"
SMI += "".join(f"2026/03/07 00:{n:02d}:37.071, 0, 1980 MHz\n" for n in range(5))


def steps(path: Path) -> tuple[Sequence[float], Sequence[str]]:
    table = load_step_log(path)
    return table.duration_s.ravel().tolist(), table.warnings


def calls(path: Path) -> tuple[Sequence[float], Sequence[str]]:
    log, notes = load_call_log([path])
    assert log.duration_s is not None
    return log.duration_s.tolist(), notes


def clocks(path: Path) -> tuple[Sequence[float], Sequence[str]]:
    telemetry = load_telemetry([path])
    (samples,) = telemetry.of.values()
    return samples.value.tolist(), telemetry.notes


@pytest.mark.parametrize(
    ("text", "read", "value", "kept"),
    [
        (STEPS, steps, 0.95, True),
        (CHART, steps, 0.95, False),
        (CALLS, calls, 0.95, True),
        (SMI, clocks, 1980, False),
    ],
)
def test_a_number_that_is_cut_off_is_left_out_or_told(
    text: str,
    read: Callable[[Path], tuple[Sequence[float], Sequence[str]]],
    value: float,
    kept: bool,
    tmp_path: Path,
) -> None:
    """People write tables of their own columns without a last line end, so these are kept."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    whole, notes = read(path)
    assert set(whole) == {value}
    assert not any("ends within a line" in note for note in notes)
    end = len("80 MHz\n") if read is clocks else len("5\n")
    path.write_text(text[:-end])
    values, notes = read(path)
    assert any("ends within a line" in note for note in notes)
    assert len(values) == len(whole) - (not kept)
    assert (set(values) == {value}) == (not kept)


def test_quoted_cells_need_no_line_end(tmp_path: Path) -> None:
    """As Weights & Biases writes a chart; cut off, its last cell is open."""
    path = tmp_path / "a.csv"
    rows = CHART.replace(",", '","').replace("\n", '"\n"')
    path.write_text(f'"{rows}'.removesuffix('\n"'))
    assert steps(path) == ([0.95] * 5, ())
    path.write_text(path.read_text()[:-2])
    values, notes = steps(path)
    assert values == [0.95] * 4
    assert any("ends within a line" in note for note in notes)


def test_lines_of_another_width_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CHART.replace("2,0.95,0.95,0.95", "2,0.95"))
    values, notes = steps(path)
    assert len(values) == 4
    assert any("1 lines are left out: their number of cells" in note for note in notes)
