"""The fit behind ``partial`` of the preset ``a100-80g-4nic``, and what it is worth out of sample.

    python benchmarks/fit_partial.py

One number on the shared A100 runs; each model size weighs as one. docs/accuracy.md tells more.
"""

import numpy as np
from one_constant import Row, ratios, report
from shared_folder import SHARED

from paceline.model.efficiency import PARTIAL_4NIC
from paceline.plan.runs import read_runs, runs_cluster

GRID = np.append(np.arange(16, 50) / 100, 1.0)


def read():
    path = SHARED / "data" / "llm" / "megatron_a100_calibration.csv"
    runs = read_runs(path, need_times=True).runs
    cluster = runs_cluster(runs, None)
    for run in runs:
        job = run.llm, run.plan, cluster
        predicted = ratios(job, run.measured_s, "partial", GRID)
        yield Row("A100", cluster.gpu.name, f"hidden {run.llm.hidden}", predicted)


def main():
    report(
        list(read()),
        GRID,
        off=len(GRID) - 1,
        preset=PARTIAL_4NIC,
        parts=("model",),
        by_table=False,
        form="{:.2f}".format,
    )


if __name__ == "__main__":
    main()
