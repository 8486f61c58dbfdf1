"""Map of every worker's slowdown in coloured cells: stages down, data-parallel ranks across."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.text import Text

from paceline.trace.job import place_of

MAX_ROWS = 16  # more rows would not fit one screen

#: Least upper end of the scale. Otherwise noise in a healthy job would look like a fault.
MIN_TOP = 1.1

_VALUE_WIDTH = 5  # " 1.98": cells at least as wide show the number
_MAX_CELL_WIDTH = 7
_LEVELS = 10
_ZERO = "·"  # the lowest level, so that hot spots stand out in digits

# "inferno" (Matplotlib, CC0) without its ends. It is perceptually uniform, also in grey and for the
# colour-blind. Bright cells stand out on light and dark terminals.
_SCALE = (
    (43, 11, 87), (87, 16, 109), (120, 28, 109), (154, 41, 100), (188, 55, 84),
    (217, 77, 61), (237, 105, 37), (250, 142, 9), (250, 184, 34), (242, 225, 87),
)  # fmt: skip


@dataclass(frozen=True)
class _Map:
    """Selection and layout of the cells."""

    values: npt.NDArray[np.float64]  # [row, column]
    stages: list[int]
    dps: list[int]
    cell: int  # characters
    label: int  # characters of the row labels
    top: float  # upper end of the scale
    colour: bool
    peers: int

    def name(self, column: int) -> str:
        """``3``, or ``3.1`` of dp 3 and peer 1."""
        dp, _, *peers = place_of(self.dps[column], 0, self.peers)
        return ".".join(map(str, (dp, *peers)))


def heatmap(
    slowdown: npt.NDArray[np.float64], width: int, *, colour: bool, peers: int = 1
) -> list[Text]:
    """The lines of the map.

    Args:
        slowdown: [pp, replica] S_w.
        width: available characters.
        colour: whether the terminal shows at least 256 colours; otherwise digits replace them.
        peers: replicas of one data-parallel rank.
    """
    grid = _choose(slowdown, width, colour, peers)
    lines = [_title(slowdown.shape, grid), _ruler(grid)]
    for stage, row in zip(grid.stages, grid.values.tolist(), strict=True):
        line = Text(f"{stage:>{grid.label}} ", no_wrap=True)
        for value in row:
            line.append_text(_cell(value, grid))
        lines.append(line)
    return [*lines, *_legend(grid, float(slowdown.max()))]


def _choose(slowdown: npt.NDArray[np.float64], width: int, colour: bool, peers: int) -> _Map:
    n_pp, n_dp = slowdown.shape
    label = max(len("stage"), len(str(n_pp - 1)))
    room = width - label - 2
    rows = _worst(slowdown.max(axis=1), MAX_ROWS)
    if n_dp <= room:
        columns, cell = np.arange(n_dp), min(_MAX_CELL_WIDTH, room // n_dp)
        cell = cell if cell >= _VALUE_WIDTH else min(cell, 2)
    else:
        cell = max(_VALUE_WIDTH, len(str(n_dp - 1)) + 1 + 2 * (peers > 1))
        columns = _worst(slowdown.max(axis=0), max(1, room // cell))
    values = slowdown[np.ix_(rows, columns)]
    top = max(MIN_TOP, float(slowdown.max()))
    return _Map(values, rows.tolist(), columns.tolist(), cell, label, top, colour, peers)


def _worst(slowdown: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.int64]:
    """The ``n`` slowest, in their original order."""
    return np.sort(np.argsort(-slowdown, kind="stable")[:n])


def _title(shape: tuple[int, ...], grid: _Map) -> Text:
    n_pp, n_dp = shape
    title = Text().append("workers", style="bold")
    across = "data-parallel (dp) ranks" if grid.peers == 1 else "dp.peer"
    title.append(f": S of each alone; pipeline stages down, {across} across", style="dim")
    cuts = []
    if len(grid.dps) < n_dp:
        cuts.append(f"{len(grid.dps)} of {n_dp} {'dp ranks' if grid.peers == 1 else 'replicas'}")
    if len(grid.stages) < n_pp:
        cuts.append(f"{len(grid.stages)} of {n_pp} stages")
    if cuts:
        title.append(f"\nonly the worst {' and '.join(cuts)} fit here", style="yellow")
    return title


def _ruler(grid: _Map) -> Text:
    """Numbers of the dp ranks, as far as there is room."""
    digits = len(grid.name(len(grid.dps) - 1)) + 1
    steps = (m * 10**e for e in range(5) for m in (1, 2, 5))
    every = next(n for n in steps if n * grid.cell >= digits or n >= len(grid.dps))
    wide = grid.cell >= _VALUE_WIDTH
    text = ""
    for place in range(0, len(grid.dps), every):
        number = grid.name(place)
        if wide:
            text += number.center(grid.cell)
        else:
            text = text.ljust(place * grid.cell) + number
    return Text(f"{'stage':>{grid.label}} {text}".rstrip(), style="dim", no_wrap=True)


def _cell(value: float, grid: _Map) -> Text:
    place = min(max((value - 1) / (grid.top - 1), 0.0), 1.0)
    if grid.cell >= _VALUE_WIDTH:
        text = _four(value).center(grid.cell)
    elif grid.colour:
        text = " " * grid.cell
    else:
        text = _digit(place).ljust(grid.cell)
    return Text(text, style=_style(place) if grid.colour else "")


def _four(value: float) -> str:
    """The value in at most four characters, so that cells stay apart."""
    for decimals, below in ((2, 9.995), (1, 99.95), (0, 9999.5)):
        if value < below:
            return f"{value:.{decimals}f}"
    return "9999"


def _digit(place: float) -> str:
    return str(min(int(place * _LEVELS), _LEVELS - 1)) if place * _LEVELS >= 1 else _ZERO


def _style(place: float) -> str:
    """Background for a position 0..1 on the scale, and a readable foreground."""
    at = place * (len(_SCALE) - 1)
    low = min(int(at), len(_SCALE) - 2)
    red, green, blue = (
        round(a + (b - a) * (at - low)) for a, b in zip(_SCALE[low], _SCALE[low + 1], strict=True)
    )
    # Luma weights (ITU-R BT.601).
    bright = 0.299 * red + 0.587 * green + 0.114 * blue > 128
    return f"#{'000000' if bright else 'ffffff'} on #{red:02x}{green:02x}{blue:02x}"


def _legend(grid: _Map, worst: float) -> list[Text]:
    indent = " " * (grid.label + 1)
    if grid.colour:
        legend = Text(f"{indent}1.00 ", style="dim")
        for level in range(24):
            legend.append(" ", style=_style(level / 23))
        return [legend.append(f" {grid.top:.2f}", style="dim")]
    if grid.cell >= _VALUE_WIDTH:
        return []
    step = (grid.top - 1) / _LEVELS
    return [
        Text(
            f"{indent}{_ZERO} under {1 + step:.3f}, each digit {step:.3f} more; worst {worst:.3f}",
            style="dim",
        )
    ]
