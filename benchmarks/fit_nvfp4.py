"""The fit behind ``paceline.model.efficiency.NVFP4_OVER_FP8``, and what it is worth out of sample.

    python benchmarks/fit_nvfp4.py

One number on the shared NVFP4 rows of MLPerf and of the published table. Either table weighs as
one, and so does each of its groups of one GPU and model. docs/accuracy.md tells more.
"""

import csv
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from detect_levels import SHARED
from predict_table import published_job, published_seconds

from paceline.model.costs import CostModel
from paceline.model.efficiency import NVFP4_OVER_FP8
from paceline.plan.runs import read_runs, run_clusters
from paceline.plan.step import step_time_s

GRID = np.arange(50, 101) / 100


@dataclass(frozen=True)
class Row:
    """A measured step: what it is left out with, and [grid] predicted over measured."""

    table: str
    gpu: str
    model: str
    ratios: np.ndarray


def ratios(llm, plan, cluster, measured):
    """[grid] predicted over measured."""
    predicted = []
    for share in GRID:
        efficiency = replace(cluster.efficiency, nvfp4=float(share))
        costs = CostModel(llm, replace(cluster, efficiency=efficiency)).costs(plan)
        predicted.append(step_time_s(costs, plan))
    return np.array(predicted) / measured


def read():
    folder = SHARED / "data" / "llm"
    with (folder / "published_2026_part.csv").open(encoding="utf-8-sig", newline="") as file:
        for fields in csv.DictReader(file):
            if not fields["precision"].startswith("NVFP4"):
                continue
            llm, plan, cluster = published_job(fields)
            values = ratios(llm, plan, cluster, published_seconds(fields))
            yield Row("published", cluster.gpu.name, llm.name, values)
    table = read_runs(folder / "mlperf_llm_runs.csv", skip_errors=True)
    for run, cluster in zip(table.runs, run_clusters(table.runs, None), strict=True):
        if run.plan.precision == "nvfp4":
            values = ratios(run.llm, run.plan, cluster, run.measured_s)
            yield Row("mlperf", cluster.gpu.name, run.llm.name, values)


def fit(rows):
    """Index into the grid of the smallest error: the mean |log ratio| of tables, of groups."""
    tables = defaultdict(lambda: defaultdict(list))
    for row in rows:
        tables[row.table][row.gpu, row.model].append(np.abs(np.log(row.ratios)))
    errors = [
        np.mean([np.mean(group, axis=0) for group in groups.values()], axis=0)
        for groups in tables.values()
    ]
    return int(np.argmin(np.mean(errors, axis=0)))


def report(name, rows, index_of):
    errors = defaultdict(list)
    for row in rows:
        errors[row.table].append(row.ratios[index_of(row)] - 1)
    for table, values in sorted(errors.items()):
        mape, bias = np.abs(values).mean(), np.mean(values)
        print(f"{name:34s} {table:10s} n {len(values):2d}  MAPE {mape:.1%}  bias {bias:+.1%}")


def main():
    rows = list(read())
    report("as fp8", rows, lambda row: len(GRID) - 1)
    print(f"fitted: {GRID[fit(rows)]:.2f}")
    preset = int(np.argmin(np.abs(GRID - NVFP4_OVER_FP8)))
    report("the preset", rows, lambda row: preset)
    for part in ("table", "gpu", "model"):
        without = {
            name: fit([row for row in rows if getattr(row, part) != name])
            for name in sorted({getattr(row, part) for row in rows})
        }
        print(f"without one {part}:", {name: f"{GRID[i]:.2f}" for name, i in without.items()})
        report(
            f"each {part} predicted without it",
            rows,
            lambda row, p=part, w=without: w[getattr(row, p)],
        )


if __name__ == "__main__":
    main()
