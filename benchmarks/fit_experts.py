"""The fit behind ``paceline.model.efficiency.EXPERT_KERNEL_S``, and what it is worth out of sample.

    python benchmarks/fit_experts.py

One number on the shared published mixtures of experts: how long a GPU waits for each kernel of
routing and experts. Rows of one table, GPU and model weigh as one. docs/accuracy.md tells more.
"""

import csv
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from detect_levels import SHARED
from predict_table import published_job, published_seconds

from paceline.model.costs import CostModel
from paceline.model.efficiency import EXPERT_KERNEL_S
from paceline.plan.step import step_time_s

TABLES = ("published_2025.csv", "published_2026_part.csv")
GRID = np.arange(0, 41, 1) * 1e-6


@dataclass(frozen=True)
class Row:
    """A published step: what it is left out with, and [grid] predicted over measured."""

    table: str
    gpu: str
    model: str
    ratios: np.ndarray


def ratios(llm, plan, cluster, measured):
    """[grid] predicted over measured."""
    predicted = []
    for seconds in GRID:
        efficiency = replace(cluster.efficiency, expert_kernel_s=float(seconds))
        costs = CostModel(llm, replace(cluster, efficiency=efficiency)).costs(plan)
        predicted.append(step_time_s(costs, plan))
    return np.array(predicted) / measured


def read():
    for table in TABLES:
        with (SHARED / "data" / "llm" / table).open(encoding="utf-8-sig", newline="") as file:
            for fields in csv.DictReader(file):
                llm, plan, cluster = published_job(fields)
                if llm.moe is None:
                    continue
                values = ratios(llm, plan, cluster, published_seconds(fields))
                kind = "hybrid" if llm.pattern else "mixture"
                model = llm.name.removesuffix("-mtp")
                yield Row(f"{table} {kind}", fields["system"], model, values)


def fit(rows):
    """Index into the grid of the smallest error: the mean |log ratio| of groups."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.table, row.gpu, row.model].append(np.abs(np.log(row.ratios)))
    return int(np.argmin(np.mean([np.mean(group, axis=0) for group in groups.values()], axis=0)))


def report(name, rows, index_of):
    errors = defaultdict(list)
    for row in rows:
        errors[row.table].append(row.ratios[index_of(row)] - 1)
    for table, values in sorted(errors.items()):
        mape, bias = np.abs(values).mean(), np.mean(values)
        print(f"{name:34s} {table:34s} n {len(values):2d}  MAPE {mape:.1%}  bias {bias:+.1%}")


def main():
    rows = list(read())
    report("no waits", rows, lambda row: 0)
    best = fit(rows)
    print(f"fitted: {GRID[best] * 1e6:.0f} us")
    preset = int(np.argmin(np.abs(GRID - EXPERT_KERNEL_S)))
    report("the preset", rows, lambda row: preset)
    for part in ("model", "gpu"):
        without = {
            name: fit([row for row in rows if getattr(row, part) != name])
            for name in sorted({getattr(row, part) for row in rows})
        }
        fits = {name: f"{GRID[i] * 1e6:.0f} us" for name, i in without.items()}
        print(f"without one {part}:", fits)
        report(
            f"each {part} predicted without it",
            rows,
            lambda row, p=part, w=without: w[getattr(row, p)],
        )


if __name__ == "__main__":
    main()
