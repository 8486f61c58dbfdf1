"""Figures of finished results for notebooks and papers, with Matplotlib (the extra ``plot``).

    from paceline import plot

    plot.heatmap(result)

Every function draws on ``ax`` (default: a new figure's) and returns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import PacelineError
from paceline.extras import pip_install
from paceline.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from paceline.detect.waits import WaitGraph
    from paceline.diagnose import Waterfall
    from paceline.files import Writer
    from paceline.plan.memory_curve import MemoryCurve
    from paceline.whatif import WhatIf

__all__ = ["cdf", "figure_writer", "heatmap", "kinds", "memory", "step_times", "waits", "waterfall"]

#: The scale never ends below this, or noise would look like fire in a healthy job.
MIN_TOP = 1.1

_SLOW, _FAST, _LEVEL = "#c2334d", "#17693a", "#8a94a6"


def heatmap(result: WhatIf, ax: Axes | None = None) -> Axes:
    """S of every worker: stages down, data-parallel ranks across.

    Raises:
        PacelineError: Matplotlib is not installed.
    """
    ax = _axes(ax)
    top = max(MIN_TOP, float(np.nanmax(result.by_worker)))
    image = ax.imshow(result.by_worker, aspect="auto", cmap="inferno_r", vmin=1.0, vmax=top)
    ax.set(xlabel="data-parallel rank", ylabel="stage", title="Slowdown of each worker")
    ax.locator_params(integer=True)
    ax.figure.colorbar(image, ax=ax, label="S")
    return ax


def step_times(result: WhatIf, ax: Axes | None = None) -> Axes:
    """Step times: actual, without launch delays, ideal.

    Raises:
        PacelineError: Matplotlib is not installed.
    """
    ax = _axes(ax)
    ax.plot(result.steps, result.traced_s, "-", color="black", label="actual")
    ax.plot(result.steps, result.simulated_s, "--", color=_SLOW, label="without launch delays")
    ax.plot(result.steps, result.ideal_s, ":", color=_FAST, label="ideal")
    ax.set(xlabel="step", ylabel="seconds", title="Step time")
    ax.legend()
    return ax


def kinds(result: WhatIf, ax: Axes | None = None) -> Axes:
    """S of each kind of operation, the largest on top; bars start at 1.

    Raises:
        PacelineError: Matplotlib is not installed.
    """
    ax = _axes(ax)
    _bars(ax, dict(sorted(result.by_kind.items(), key=lambda item: item[1])))
    ax.set(xlabel="S", title="Slowdown by kind of operation")
    return ax


def _bars(ax: Axes, values: Mapping[str, float]) -> None:
    lengths = [value - 1 for value in values.values()]
    ax.barh(list(values), lengths, left=1, color=[_SLOW if x >= 0 else _FAST for x in lengths])
    ax.axvline(1, color="black", linewidth=0.8)


def cdf(result: WhatIf, ax: Axes | None = None) -> Axes:
    """Share of the steps against their slowdown over the job's.

    Raises:
        PacelineError: Matplotlib is not installed.
    """
    ax = _axes(ax)
    relative = np.sort(np.fromiter(result.by_step.values(), dtype=np.float64)) / result.slowdown
    shares = np.arange(len(relative) + 1) / len(relative)
    ax.step(np.concatenate([relative[:1], relative]), shares, where="post", color="black")
    ax.axvline(1, color=_LEVEL, linestyle=":")
    ax.set(xlabel="slowdown of the step / slowdown of the job", ylabel="share of steps")
    ax.set(ylim=(0, 1.03), title="Are all steps alike?")
    return ax


def waterfall(fall: Waterfall, ax: Axes | None = None) -> Axes:
    """From the actual step down to pure compute; negative drops (hatched) go back up.

    Raises:
        PacelineError: Matplotlib is not installed.
    """
    ax = _axes(ax)
    seconds = np.array([drop.seconds for drop in fall.drops])
    after = fall.actual_s - np.cumsum(seconds)
    names = ["actual step", *(drop.name for drop in fall.drops), "compute"]
    low = [0.0, *after, 0.0]
    lengths = [fall.actual_s, *seconds, fall.compute_s]
    colours = [_LEVEL, *(_SLOW if s >= 0 else _FAST for s in seconds), _LEVEL]
    hatches = ["", *("" if s >= 0 else "///" for s in seconds), ""]
    places = range(len(names))
    ax.barh(places, lengths, left=low, color=colours, hatch=hatches)
    ax.set_yticks(places, names)
    ax.invert_yaxis()
    ax.set(xlabel="seconds per step", title="Where the time goes")
    return ax


def memory(curve: MemoryCurve, capacity_bytes: float, ax: Axes | None = None) -> Axes:
    """A stage's memory over the predicted step, by its parts.

    The legend has the GPU's memory, the peak, and the parts at the peak.

    Raises:
        PacelineError: Matplotlib is not installed.
    """
    ax = _axes(ax)
    from paceline.model.memory_peak import PARTS

    total = curve.bytes.sum(axis=0)[curve.peak] / GIB
    labels = [f"{part} {curve.parts[part] / GIB:.1f}" for part in PARTS]
    areas = ax.stackplot(curve.time_s, curve.bytes / GIB, labels=labels, linewidth=0)
    capacity = capacity_bytes / GIB
    of_gpu = ax.axhline(
        capacity, color="black", linestyle="--", linewidth=0.8, label=f"the GPU has {capacity:.1f}"
    )
    (peak,) = ax.plot(
        [curve.time_s[curve.peak]],
        [total],
        "kv",
        markersize=6,
        clip_on=False,
        label=f"peak {total:.1f}, of which",
    )
    ax.set(xlabel="seconds", ylabel="GiB", title=f"Memory of stage {curve.stage} over a step")
    ax.set(xlim=(0, curve.time_s[-1]), ylim=(0, 1.08 * max(capacity, total)))
    handles = [of_gpu, peak, *areas[::-1]]
    ax.legend(handles=handles, title="GiB", loc="center left", bbox_to_anchor=(1.02, 0.5))
    return ax


#: Rows of :func:`waits` that can be told apart; names that its title has room for.
_MOST_ROWS, _MOST_NAMED = 64, 3
#: A rank is named there from this share of what others waited for the first one.
_NAMED_SHARE = 0.1


def waits(graph: WaitGraph, hosts: Mapping[int, str], ax: Axes | None = None) -> Axes:
    """Waits of ranks (down) for others (across), as a share of the time, of a rank on average.

    Ranks have a row each up to 64; more are grouped by host, and more hosts than that by equal
    numbers of ranks. The ranks that were waited for most are named in any case.

    Args:
        graph: the waits.
        hosts: rank -> its host.
        ax: where to draw.

    Raises:
        PacelineError: Matplotlib is not installed.
    """
    ax = _axes(ax)
    unit, names, row_of = _rows_of_waits(graph.ranks, hosts)
    share = np.zeros((len(names), len(names)))
    for wait in graph.waits:
        share[row_of[wait.waits], row_of[wait.late]] += wait.seconds
    members = np.bincount([row_of[rank] for rank in graph.ranks], minlength=len(names))
    share /= members[:, None] * (graph.seconds or 1.0)
    image = ax.imshow(share, cmap="inferno_r", vmin=0.0, vmax=max(share.max(), 1e-3))
    ax.figure.colorbar(image, ax=ax, label="share of the time", format="{x:.0%}")
    at = np.arange(0, len(names), -(-len(names) // 16))
    long = max(map(len, names)) > 4
    ax.set_xticks(at, [names[i] for i in at], rotation=90 if long else 0)
    ax.set_yticks(at, [names[i] for i in at])
    ax.set(xlabel=f"waited for ({unit})", ylabel=f"waits ({unit})")
    most = [
        f"rank {rank} ({seconds:,.0f} s)" if seconds >= 100 else f"rank {rank} ({seconds:.3g} s)"
        for rank, seconds in list(graph.late_s.items())[:_MOST_NAMED]
        if seconds >= _NAMED_SHARE * max(graph.late_s.values())
    ]
    ax.set_title(f"Waits between ranks; most waited for: {', '.join(most)}", fontsize="medium")
    return ax


def _rows_of_waits(
    ranks: Sequence[int], hosts: Mapping[int, str]
) -> tuple[str, list[str], dict[int, int]]:
    """The kind of a row, the rows' names, and the row of each rank."""
    if len(ranks) <= _MOST_ROWS:
        return "rank", [str(rank) for rank in ranks], {rank: row for row, rank in enumerate(ranks)}
    ordered = list(dict.fromkeys(hosts[rank] for rank in ranks))
    if len(ordered) <= _MOST_ROWS:
        return "host", ordered, {rank: ordered.index(hosts[rank]) for rank in ranks}
    size = -(-len(ranks) // _MOST_ROWS)
    blocks = [ranks[i : i + size] for i in range(0, len(ranks), size)]
    rows = {rank: row for row, block in enumerate(blocks) for rank in block}
    return "ranks", [f"{block[0]}-{block[-1]}" for block in blocks], rows


def figure_writer(ax: Axes, path: Path) -> Writer:
    """A writer of the figure of ``ax`` in the format of the file's name.

    Raises:
        PacelineError: Matplotlib does not know the format.
    """
    figure = ax.get_figure(root=True)
    kind = path.suffix[1:].lower() or "png"
    if figure is None or kind not in figure.canvas.get_supported_filetypes():
        raise PacelineError(f"{path}: a figure is written as .svg, .png or .pdf, not {path.suffix}")
    return lambda file: figure.savefig(file, format=kind, bbox_inches="tight")


def _axes(ax: Axes | None) -> Axes:
    """``ax``, or that of a new figure."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise PacelineError(
            f"paceline.plot needs Matplotlib ({error}); {pip_install('plot')}"
        ) from None
    axes: Axes = plt.subplots(layout="constrained")[1]
    return axes
