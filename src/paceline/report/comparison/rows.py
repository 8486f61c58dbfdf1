"""The tables of a comparison: the shown rows, with their cells as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.comparison import Change, Comparison, WorkerChange
from paceline.comparison.parts import DELAY, DELAY_AT_START
from paceline.results.words.names import CAUSES, OTHERS
from paceline.trace.kinds import kind_name
from paceline.units import percent, seconds

Form = Callable[[float], str]

#: Rows with a change below this share of the step are counted, not listed.
MIN_SHARE = 0.001

#: A smaller remainder, as a share of the step, is rounding of the rows.
MIN_REMAINDER = 0.0002

_KINDS = {DELAY_AT_START: "launch delays, start of step", DELAY: "launch delays, elsewhere"}


#: An interval without a clear sign that is wider than this share, 10 points, may hide a large
#: change.
MAX_WIDTH = 0.10


@dataclass(frozen=True)
class Row:
    """A row: its name, its values before and after as text, its change in seconds per unit.

    A sum of changes has ``sum_s`` and neither a change nor an interval. ``unclear`` says that the
    interval has no clear sign.
    """

    name: str
    before: str
    after: str
    change: Change | None
    sum_s: float | None = None
    unclear: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: causes, kinds, stages, workers or hosts.
        title: its heading.
        about: explanation of its numbers.
        heads: headings of ``Row``'s name, before, after and change.
        rows: the rows worth showing, in order.
        n_rows: number of all rows.
        sums: rows that complete ``rows`` to the change of the step, and this change.
        note: text in place of rows, or about omitted rows; may be empty.
    """

    name: str
    title: str
    about: str
    heads: tuple[str, str, str, str]
    rows: tuple[Row, ...]
    n_rows: int
    sums: tuple[Row, ...] = ()
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
    step_s = comparison.time.before_s
    return [
        replace(table, rows=tuple(replace(r, unclear=_unclear(r, step_s)) for r in table.rows))
        for table in all_tables
        if table.n_rows
    ]


def _unclear(row: Row, step_s: float) -> str:
    """The words on an interval without a clear sign: a narrow one, or one that may hide much."""
    if row.change is None or row.change.interval is None or row.change.clear:
        return ""
    low, high = row.change.interval
    return "cannot be told" if high - low > MAX_WIDTH * step_s else "no difference"


def _causes(comparison: Comparison) -> Table:
    rows = [
        Row(cause_name(r.name), seconds(r.before_s), seconds(r.after_s), r.change)
        for r in comparison.causes
    ]
    about = "drops of both waterfalls, and compute; they add up to the step"
    heads = ("cause", "before", "after", "change")
    time = comparison.time
    total = _sum(comparison, (seconds(time.before_s), seconds(time.after_s)))
    remainder_s = comparison.remainder_s(comparison.causes)
    return _fold(comparison, ("causes", "By cause", about), heads, rows, total, remainder_s)


def _kinds(comparison: Comparison) -> Table:
    rows = [
        Row(name_of_kind(r.name, comparison.all_reduces), *_seconds(r.mean_s), r.change)
        for r in comparison.kinds
    ]
    unit = comparison.unit
    about = (
        f"the mean of one operation, then the change of the {unit} that all durations of the kind "
        "make; these changes add up"
    )
    heads = ("kind", "op before", "op after", f"{unit} change")
    remainder_s = comparison.remainder_s(comparison.kinds)
    head = ("kinds", "By kind of operation", about)
    return _fold(comparison, head, heads, rows, _sum(comparison), remainder_s)


def _stages(comparison: Comparison) -> Table:
    rows = [Row(f"stage {r.name}", *_seconds(r.mean_s), r.change) for r in comparison.stages]
    unit = comparison.unit
    about = (
        f"the computes of a worker in a step, then the change of the {unit} that all durations "
        "and delays of the stage make; these changes add up"
    )
    heads = ("stage", "computes before", "computes after", f"{unit} change")
    remainder_s = comparison.remainder_s(comparison.stages)
    head = ("stages", "By stage", about)
    return _fold(comparison, head, heads, rows, _sum(comparison), remainder_s)


def _workers(comparison: Comparison, most: int) -> Table:
    rows = [
        Row(worker_name(r), f"S {r.slowdown[0]:.3f}", f"S {r.slowdown[1]:.3f}", r.change)
        for r in comparison.workers
    ]
    about = (
        "S_w of each worker, then the change of its cost compared with its peers; costs do not "
        "add up"
    )
    heads = ("worker", "before", "after", "cost change")
    return _largest(comparison, ("workers", "By worker", about), heads, rows, most)


def _hosts(comparison: Comparison, most: int) -> Table:
    rows = [Row(_host(r.host, r.workers), *_seconds(r.loss_s), r.change) for r in comparison.hosts]
    about = "the cost of each host's workers compared with their peers; costs do not add up"
    heads = ("host", "before", "after", "change")
    return _largest(comparison, ("hosts", "By host", about), heads, rows, most)


def _sum(comparison: Comparison, times: tuple[str, str] = ("", "")) -> Row:
    """The last row of a table whose changes add up: the change of the unit."""
    return Row(f"the {comparison.unit}", *times, None, comparison.change_s)


def _fold(
    comparison: Comparison,
    head: tuple[str, str, str],
    heads: tuple[str, str, str, str],
    rows: Sequence[Row],
    total: Row,
    remainder_s: float | None,
) -> Table:
    """Rows that change, the sum of the others, the remainder, and the total."""
    name, title, about = head
    if remainder_s is None:
        about = f"no changes: {comparison.left_out.get(name, 'they cannot be compared')}"
        return Table(name, title, about, heads, tuple(rows), len(rows))
    threshold = MIN_SHARE * comparison.time.before_s
    small = [r.change.seconds for r in rows if r.change and abs(r.change.seconds) < threshold]
    large = tuple(r for r in rows if r.change is None or abs(r.change.seconds) >= threshold)
    sums = []
    if small:
        each = "each " if len(small) > 1 else ""
        name_of_rest = f"{len(small)} more, {each}under {MIN_SHARE:.1%}"
        sums.append(Row(name_of_rest, "", "", None, sum(small)))
    if abs(remainder_s) >= MIN_REMAINDER * comparison.time.before_s:
        overlap = any(side.overlap_s > 0 for side in (comparison.before, comparison.after))
        name_of_rest = f"remainder: {'overlap of steps, ' if overlap else ''}error of the replay"
        sums.append(Row(name_of_rest, "", "", None, remainder_s))
    return Table(name, title, about, heads, large, len(rows), (*sums, total))


def _largest(
    comparison: Comparison,
    head: tuple[str, str, str],
    heads: tuple[str, str, str, str],
    rows: Sequence[Row],
    most: int,
) -> Table:
    """The largest changes beyond chance."""
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
    return Table(*head, heads, tuple(large[:most]), len(rows), note=note)


def cause_name(name: str) -> str:
    """The name of a drop of the waterfall."""
    if name == "compute":
        return "Compute of a worker"
    return CAUSES.get(name) or OTHERS.get(name, (name,))[0]


def name_of_kind(name: str, all_reduces: bool = False) -> str:
    """The name of a kind of operation or of launch delay."""
    return _KINDS.get(name) or kind_name(name, all_reduces)


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


def key_numbers(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """Key figures: name, before, after, and after minus before."""
    unit, one, other = comparison.unit, comparison.before, comparison.after
    numbers: list[tuple[str, float, float, Form]] = [
        (f"mean {unit}", comparison.time.before_s, comparison.time.after_s, seconds),
        (f"median {unit}", comparison.median.before_s, comparison.median.after_s, seconds),
        ("without launch delays", one.simulated_s, other.simulated_s, seconds),
        ("ideal: without stragglers", one.ideal_s, other.ideal_s, seconds),
        ("slowdown S", one.result.slowdown, other.result.slowdown, _ratio),
        ("waste, 1 - 1/S", one.result.waste, other.result.waste, percent),
    ]
    changes: dict[Form, Form] = {percent: _points}
    return [
        (name, form(before), form(after), with_sign(changes.get(form, form)(after - before)))
        for name, before, after, form in numbers
    ]


def _points(value: float) -> str:
    """``−3.9 points``: a difference of two percentages."""
    return percent(value).replace("%", " points")


def _ratio(value: float) -> str:
    return f"{value:.3f}".replace("-", "\N{MINUS SIGN}")


def with_sign(text: str) -> str:
    """The text with a plus, unless it is negative or zero."""
    return f"+{text}" if text[:1].isdigit() and any(c in text for c in "123456789") else text


def change_cells(row: Row) -> tuple[str, str]:
    """The change, and its interval; a sum has none."""
    change = row.change
    if row.sum_s is not None:
        return with_sign(seconds(row.sum_s)), ""
    if change is None:
        return "\N{EN DASH}", ""
    if change.interval is None:
        return with_sign(seconds(change.seconds)), "unknown"
    low, high = (with_sign(seconds(end)) for end in change.interval)
    return with_sign(seconds(change.seconds)), f"{low} to {high}"
