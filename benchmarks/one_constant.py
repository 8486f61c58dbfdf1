"""A fit of one constant of ``Efficiency`` to measured steps, and what it is worth out of sample."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from paceline.model.costs import CostModel
from paceline.plan.step import step_time_s


@dataclass(frozen=True)
class Row:
    """A measured step: what it is left out with, and [grid] predicted over measured."""

    table: str
    gpu: str
    model: str
    ratios: np.ndarray


def ratios(job, measured, field, grid):
    """[grid] predicted over measured; ``job`` is a model, a plan and a cluster."""
    llm, plan, cluster = job
    predicted = []
    for value in grid:
        efficiency = replace(cluster.efficiency, **{field: float(value)})
        costs = CostModel(llm, replace(cluster, efficiency=efficiency)).costs(plan)
        predicted.append(step_time_s(costs, plan))
    return np.array(predicted) / measured


def fit(rows, *, by_table):
    """Index into the grid of the smallest error: the mean |log ratio| of groups.

    Rows of one table, GPU and model are one group. ``by_table``: either table weighs as one.
    """
    groups = defaultdict(list)
    for row in rows:
        groups[row.table, row.gpu, row.model].append(np.abs(np.log(row.ratios)))
    parts = defaultdict(list)
    for (table, _, _), group in groups.items():
        parts[table if by_table else ""].append(np.mean(group, axis=0))
    return int(np.argmin(np.mean([np.mean(part, axis=0) for part in parts.values()], axis=0)))


def errors_text(name, rows, index_of):
    errors = defaultdict(list)
    for row in rows:
        errors[row.table].append(row.ratios[index_of(row)] - 1)
    for table, values in sorted(errors.items()):
        mape, bias = np.abs(values).mean(), np.mean(values)
        yield f"{name:34s} {table:34s} n {len(values):2d}  MAPE {mape:.1%}  bias {bias:+.1%}"


def report(rows, grid, *, off, preset, parts, by_table, form):
    """Print errors without the constant, with the preset's, and with parts left out in turn.

    Args:
        rows: measured steps.
        grid: values of the constant.
        off: index of the value that changes nothing.
        preset: value of the presets.
        parts: fields of a row that are left out in turn.
        by_table: as in :func:`fit`.
        form: text of a value.
    """
    lines = [*errors_text("without it", rows, lambda row: off)]
    lines.append(f"fitted: {form(grid[fit(rows, by_table=by_table)])}")
    nearest = int(np.argmin(np.abs(grid - preset)))
    lines += errors_text("the preset", rows, lambda row: nearest)
    for part in parts:
        without = {
            name: fit([row for row in rows if getattr(row, part) != name], by_table=by_table)
            for name in sorted({getattr(row, part) for row in rows})
        }
        lines.append(
            f"without one {part}: { {name: form(grid[i]) for name, i in without.items()} }"
        )
        name = f"each {part} predicted without it"
        lines += errors_text(name, rows, lambda row, p=part, w=without: w[getattr(row, p)])
    print("\n".join(lines))
