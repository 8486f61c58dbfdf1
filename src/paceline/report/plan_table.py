"""Tables of the plans that a search found: their cells, and their lines on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from paceline.model.plan import Plan, part_text
from paceline.plan.interval import LEVEL
from paceline.plan.search import SearchResult
from paceline.units import day_count, dollars, gib, seconds_range, significant

Row = tuple[str, ...]

#: Parts of a plan that always have a column on the terminal; others have one where they differ.
_DEGREES = ("tp", "pp", "dp", "mb")
#: Heads of these columns, in their order.
_PARTS = (
    *("tp", "pp", "dp", "cp", "ep", "mb", "vpp", "schedule", "recompute", "offload", "zero"),
    *("shards", "kernels", "sp", "precision", "layers"),
)
#: Short forms of heads and cells.
_SHORT = {"recompute": "rec", "selective": "sel"}
#: Columns that a narrow window leaves out, the first one first.
_OPTIONAL = ("causal", "MFU", "days")
_MILLION = 1e6


def columns(result: SearchResult) -> Row:
    """Heads of the columns of :func:`row`."""
    optional = [*(["days"] if result.days is not None else [])]
    if result.dollars is not None:
        optional.append("million $" if _in_millions(result) else "cost")
    return ("plan", "GPUs", "step s", f"{LEVEL:.0%} within", "MFU", "causal", "GiB", *optional)


def row(result: SearchResult, i: int) -> Row:
    """The cells of plan ``i`` as text."""
    within = result.interval(i)
    cells = [
        result.plan(i).describe(),
        f"{result.gpus[i]:,}",
        significant(result.step_time_s[i], 4),
        seconds_range(within.low_s, within.high_s),
        f"{result.mfu[i]:.1%}",
        f"{result.mfu_causal[i]:.1%}",
        gib(result.memory_bytes[i]) + "+" * bool(result.expandable[i]),
    ]
    if result.days is not None:
        cells.append(day_count(float(result.days[i])))
    if result.dollars is not None:
        price = float(result.dollars[i])
        cells.append(f"{price / _MILLION:,.2f}" if _in_millions(result) else dollars(price))
    return tuple(cells)


def _in_millions(result: SearchResult) -> bool:
    """Whether all plans cost at least a million dollars."""
    return result.dollars is not None and float(result.dollars.min()) >= _MILLION


class CommonParts:
    """The common parts of all plans in a search's tables.

    Attributes:
        names: short names of the parts that differ, and of :data:`_DEGREES`.
        words: the others as text.
    """

    def __init__(self, result: SearchResult, places: Sequence[int]) -> None:
        plans = [result.plan(i).parts() for i in places]
        names = [name for name in _PARTS if any(name in parts for parts in plans)]
        values = {name: {parts.get(name, "") for parts in plans} for name in names}
        self.names = [name for name in names if name in _DEGREES or len(values[name]) > 1]
        others = (name for name in names if name not in self.names)
        self.words = [part_text(name, values[name].pop()) for name in others]

    @property
    def text(self) -> str:
        """A sentence on the common parts; "" if there are none."""
        return f"All plans below: {', '.join(self.words)}." if self.words else ""

    def short_name(self, plan: Plan) -> str:
        """The plan's text without the common parts."""
        return " ".join(part_text(*part) for part in plan.parts().items() if part[0] in self.names)


class PlanTable:
    """Lines of plans on a terminal, with the same columns in each table of a search.

    :attr:`shared` says the common parts of all plans once. If a line is too long even without
    :data:`_OPTIONAL`, the plan has a line of its own.

    Args:
        result: the search.
        places: plans of all tables.
        width: available characters.

    Attributes:
        shared: a sentence on the common parts; "" if there are none.
        left_out: heads of the columns that the window is too narrow for.
        legend: a sentence on :data:`_SHORT` if a table has them.
    """

    def __init__(self, result: SearchResult, places: Sequence[int], width: int) -> None:
        common = CommonParts(result, places)
        plans = {i: result.plan(i).parts() for i in places}
        numbers = {i: dict(zip(columns(result), row(result, i), strict=True)) for i in places}
        heads = list(columns(result)[1:])
        if len({cells["GPUs"] for cells in numbers.values()}) == 1:
            heads.remove("GPUs")
            common.words.insert(0, f"{numbers[places[0]]['GPUs']} GPUs")
        self.shared, differ = common.text, common.names
        self._result, self._names = result, differ
        self._plans, self._numbers = plans, numbers
        for self._is_alone in (False, True):
            self._heads, self.left_out = list(heads), list[str]()
            for name in _OPTIONAL:
                if name in heads and self._width() > width:
                    self._heads.remove(name)
                    self.left_out.append(name)
            if self._width() <= width:
                break
        has_short = "recompute" in differ and not self._is_alone
        self.legend = ["rec: recomputation (sel: selective)."] if has_short else []

    def lines(self, places: Sequence[int]) -> list[Text]:
        """The head, and a line of each plan."""
        rows = [None, *places]
        return [
            Text(line, style="" if n else "dim")
            for n, i in enumerate(rows)
            for line in self._row(i)
        ]

    def _row(self, i: int | None) -> list[str]:
        """The lines of a plan; of the head for None."""
        sizes = self._sizes()
        cells = {name: f"{self._cell(name, i):>{size}}" for name, size in sizes.items()}
        numbers = "  ".join(cells[head] for head in self._heads)
        rank = cells["rank"]
        if not self._is_alone:
            return [f"{rank} {' '.join(cells[name] for name in self._names)}  {numbers}"]
        name = "plan" if i is None else self._result.plan(i).describe()
        return [f"{rank} {name}", f"    {numbers}"]

    def _cell(self, name: str, i: int | None) -> str:
        if name == "rank":
            if i is None:
                return "rank "
            is_marked = self._result.pareto[i] and not self._result.has_one_count
            return f"{i + 1}{'*' if is_marked else ' '}"
        if i is None:
            return _SHORT.get(name, name)
        if name in self._names:
            value = self._plans[i].get(name, "–")
            return _SHORT.get(value, value)
        return self._numbers[i][name]

    def _sizes(self) -> dict[str, int]:
        names = ("rank", *self._names, *self._heads)
        places = (None, *self._plans)
        return {name: max(len(self._cell(name, i)) for i in places) for name in names}

    def _width(self) -> int:
        """Characters of the longest line of numbers, which mostly has the plan, too."""
        sizes = self._sizes()
        if self._is_alone:
            return sum(2 + sizes[head] for head in self._heads) + 2
        return sum(sizes.values()) + len(self._names) + 2 * len(self._heads)
