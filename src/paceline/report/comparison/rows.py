"""The tables of a comparison: the shown rows, with their cells as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.comparison import Change, Comparison, WorkerChange
from paceline.comparison.parts import DELAY, DELAY_AT_START
from paceline.results.words.names import CAUSES, OTHERS
from paceline.units import percent, seconds

Form = Callable[[float], str]

#: Rows with a change below this share of the step are counted, not listed.
MIN_SHARE = 0.001

_KINDS = {DELAY_AT_START: "launch delays, start of step", DELAY: "launch delays, elsewhere"}


@dataclass(frozen=True)
class Row:
    """A row: its name, its values before and after as text, its change in seconds per unit."""

    name: str
    before: str
    after: str
    change: Change | None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: causes, kinds, stages, workers or hosts.
        title: its heading.
        about: explanation of its numbers.
        heads: headings of ``Row``'s name, before and after.
        rows: the rows worth showing, in order.
        n_rows: number of all rows.
        note: text in place of rows, or about omitted rows; may be empty.
    """

    name: str
    title: str
    about: str
    heads: tuple[str, str, str]
    rows: tuple[Row, ...]
    n_rows: int
    note: str = ""


def tables(comparison: Comparison, most: int) -> list[Table]:
    """All tables that have rows, with at most ``most`` workers and hosts."""
    all_tables = (
        _causes(comparison),
        _kinds(comparison),
        _stages(comparison),
        _workers(comparison, most),
        _hosts(comparison, most),
    )
    return [table for table in all_tables if table.n_rows]


def _causes(comparison: Comparison) -> Table:
    rows = [
        Row(cause_name(r.name), seconds(r.before_s), seconds(r.after_s), r.change)
        for r in comparison.causes
    ]
    about = "drops of both waterfalls, and compute; the changes add up to the change of the step"
    return _fold(comparison, "causes", "By cause", about, ("cause", "before", "after"), rows)


def _kinds(comparison: Comparison) -> Table:
    rows = [Row(kind_name(r.name), *_seconds(r.mean_s), r.change) for r in comparison.kinds]
    about = "changes due to the durations of each kind; they add up to the change of the step"
    heads = ("kind", "an operation, before", "after")
    return _fold(comparison, "kinds", "By kind of operation", about, heads, rows)


def _stages(comparison: Comparison) -> Table:
    rows = [Row(f"stage {r.name}", *_seconds(r.mean_s), r.change) for r in comparison.stages]
    about = "changes due to the durations and delays of each stage; they add up, too"
    heads = ("stage", "computes, before", "after")
    return _fold(comparison, "stages", "By stage", about, heads, rows)


def _workers(comparison: Comparison, most: int) -> Table:
    rows = [
        Row(worker_name(r), f"S {r.slowdown[0]:.3f}", f"S {r.slowdown[1]:.3f}", r.change)
        for r in comparison.workers
    ]
    about = "the cost of each worker compared with its peers (S_w); costs do not add up"
    return _largest(comparison, ("workers", "By worker", about), rows, most)


def _hosts(comparison: Comparison, most: int) -> Table:
    rows = [Row(_host(r.host, r.workers), *_seconds(r.loss_s), r.change) for r in comparison.hosts]
    about = "the cost of each host's workers compared with their peers; costs do not add up"
    return _largest(comparison, ("hosts", "By host", about), rows, most)


def _fold(
    comparison: Comparison,
    name: str,
    title: str,
    about: str,
    heads: tuple[str, str, str],
    rows: Sequence[Row],
) -> Table:
    """All rows except rows that hardly change."""
    threshold = MIN_SHARE * comparison.time.before_s
    if all(row.change is None for row in rows):
        about = f"no changes: {comparison.left_out.get(name, 'they cannot be compared')}"
    large = tuple(r for r in rows if r.change is None or abs(r.change.seconds) >= threshold)
    n_small = len(rows) - len(large)
    small_rows = "" if not n_small else f"{n_small} more" if large else f"all {n_small}"
    note = small_rows and f"{small_rows} changed by under {MIN_SHARE:.1%} of the {comparison.unit}"
    return Table(name, title, about, heads, large, len(rows), note)


def _largest(
    comparison: Comparison, head: tuple[str, str, str], rows: Sequence[Row], most: int
) -> Table:
    """The largest changes beyond chance."""
    heads = (head[0].rstrip("s"), "before", "after")
    few = comparison.time.interval is None
    clear = [r for r in rows if r.change is not None and (few or r.change.clear)]
    least = MIN_SHARE * comparison.time.before_s
    large = [r for r in clear if r.change is not None and abs(r.change.seconds) >= least]
    note = ""
    if rows and not large:
        note = (
            f"none of {len(rows):,} changed by {MIN_SHARE:.1%} of the {comparison.unit} beyond "
            f"chance; the largest change is that of {rows[0].name}, "
            f"{seconds(rows[0].change.seconds if rows[0].change else 0.0)}"
        )
    elif len(large) > most:
        note = f"{len(large) - most:,} more changed, by less"
    elif few:
        note = "without intervals, the largest of many changes may be chance"
    return Table(*head, heads, tuple(large[:most]), len(rows), note)


def cause_name(name: str) -> str:
    """The name of a drop of the waterfall."""
    if name == "compute":
        return "Compute of a worker"
    return CAUSES.get(name) or OTHERS.get(name, (name,))[0]


def kind_name(name: str) -> str:
    """The name of a kind of operation or of launch delay."""
    return _KINDS.get(name, name)


def worker_name(row: WorkerChange) -> str:
    """``dp 3, stage 1 (node-7, GPU 5)``; if the worker moved, both hosts."""
    hosts = list(dict.fromkeys(host for host in row.hosts if host))
    return f"dp {row.dp}, stage {row.pp}" + (f" ({' -> '.join(hosts)})" if hosts else "")


def _host(name: str, workers: tuple[int, int]) -> str:
    n_before, n_after = workers
    counts = f"{n_before}" if n_before == n_after else f"{n_before} -> {n_after}"
    return f"{name} ({counts} worker{'s' * (workers != (1, 1))})"


def _seconds(pair: tuple[float | None, float | None]) -> tuple[str, str]:
    before, after = ("\N{EN DASH}" if s is None else seconds(s) for s in pair)
    return before, after


def key_numbers(comparison: Comparison) -> list[tuple[str, float, float, Form]]:
    """Key figures: name, before, after, and number format."""
    unit, one, other = comparison.unit, comparison.before, comparison.after
    return [
        (f"mean {unit}", comparison.time.before_s, comparison.time.after_s, seconds),
        (f"median {unit}", comparison.median.before_s, comparison.median.after_s, seconds),
        ("without launch delays", one.simulated_s, other.simulated_s, seconds),
        ("ideal: without stragglers", one.ideal_s, other.ideal_s, seconds),
        ("slowdown S", one.result.slowdown, other.result.slowdown, _ratio),
        ("waste, 1 - 1/S", one.result.waste, other.result.waste, percent),
    ]


def _ratio(value: float) -> str:
    return f"{value:.3f}".replace("-", "\N{MINUS SIGN}")


def with_sign(text: str) -> str:
    """The text with a plus, unless it is negative or zero."""
    return f"+{text}" if text[:1].isdigit() and any(c in text for c in "123456789") else text


def change_cells(change: Change | None) -> tuple[str, str]:
    """The change, and its interval."""
    if change is None:
        return "\N{EN DASH}", ""
    if change.interval is None:
        return with_sign(seconds(change.seconds)), "unknown"
    low, high = (with_sign(seconds(end)) for end in change.interval)
    return with_sign(seconds(change.seconds)), f"{low} to {high}"
