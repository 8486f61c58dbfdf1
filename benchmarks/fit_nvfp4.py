"""The fit behind ``paceline.model.efficiency.NVFP4_OVER_FP8``, and what it is worth out of sample.

    python benchmarks/fit_nvfp4.py

One number on the shared NVFP4 rows of MLPerf and of the published table. Either table weighs as
one, and so does each of its groups of one GPU and model. docs/accuracy.md tells more.
"""

import csv

import numpy as np
from one_constant import Row, ratios, report
from predict_table import published_job, published_seconds
from shared_folder import SHARED

from paceline.model.efficiency import NVFP4_OVER_FP8
from paceline.plan.runs import read_runs, run_clusters

GRID = np.arange(50, 101) / 100


def read():
    folder = SHARED / "data" / "llm"
    with (folder / "published_2026_part.csv").open(encoding="utf-8-sig", newline="") as file:
        for fields in csv.DictReader(file):
            if fields["precision"].startswith("NVFP4"):
                yield row("published", published_job(fields), published_seconds(fields))
    table = read_runs(folder / "mlperf_llm_runs.csv", skip_errors=True)
    for run, cluster in zip(table.runs, run_clusters(table.runs, None), strict=True):
        if run.plan.precision == "nvfp4":
            yield row("mlperf", (run.llm, run.plan, cluster), run.measured_s)


def row(table, job, measured):
    llm, _, cluster = job
    return Row(table, cluster.gpu.name, llm.name, ratios(job, measured, "nvfp4", GRID))


def main():
    report(
        list(read()),
        GRID,
        off=len(GRID) - 1,
        preset=NVFP4_OVER_FP8,
        parts=("table", "gpu", "model"),
        by_table=True,
        form="{:.2f}".format,
    )


if __name__ == "__main__":
    main()
