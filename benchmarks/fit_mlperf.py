"""The fit behind ``paceline.model.efficiency.SHARED_FIT``, and what it is worth out of sample.

    python benchmarks/fit_mlperf.py

Five numbers on the shared MLPerf fp8 rows: for each of three GPUs the fp8 rate over that of its
preset, the share of data-parallel traffic that hides, seconds of a layer and pass. Rows of one
submitter, GPU and model weigh as one; those of round v3.0 (older software) nothing.
docs/accuracy.md tells which of it the presets took over.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares
from shared_folder import SHARED

from paceline.model.costs import CostModel
from paceline.plan.runs import read_runs, run_clusters
from paceline.plan.step import step_time_s

GPUS = ("h100", "b200", "gb200")
#: Logarithms of the three rates, the hidden share, microseconds: where they start, and how far off
#: they may well be.
PRIOR, SPREAD = np.array([0, 0, 0, 0.8, 10.0]), np.array([0.2, 0.2, 0.2, 0.3, 20.0])
ERROR = 0.05  # of a row that the model gets right
OLD_ROUND = "v3.0"


@dataclass(frozen=True)
class Row:
    """A measured run: what it ran on what, and the groups that it is left out with."""

    run: object
    cluster: object
    round: str
    gpu: str
    group: tuple[str, str, str]

    def error(self, constants):
        """Predicted over measured, minus 1."""
        base = self.cluster.efficiency
        efficiency = replace(
            base,
            gemm_fp8=min(1.0, base.gemm_fp8 * float(np.exp(constants[GPUS.index(self.gpu)]))),
            hidden_dp=float(np.clip(constants[3], 0, 1)),
            layer_s=max(0.0, constants[4]) * 1e-6,
        )
        costs = CostModel(self.run.llm, replace(self.cluster, efficiency=efficiency))
        return step_time_s(costs.costs(self.run.plan), self.run.plan) / self.run.measured_s - 1


def read():
    table = read_runs(SHARED / "data" / "llm" / "mlperf_llm_runs.csv", skip_errors=True)
    fields = dict(zip(table.lines, table.rows, strict=True))
    for run, cluster in zip(table.runs, run_clusters(table.runs, None), strict=True):
        row = fields[run.line]
        group = row["submitter"], row["gpu"], row["model"]
        # Without what the presets took over from an earlier fit.
        bare = replace(cluster.efficiency, hidden_dp=1.0, layer_s=0.0)
        yield Row(run, replace(cluster, efficiency=bare), row["round"], row["gpu"], group)


def fit(rows):
    sizes = Counter(row.group for row in rows)
    weight = [(row.round != OLD_ROUND) / np.sqrt(sizes[row.group]) for row in rows]

    def residuals(constants):
        errors = [w * row.error(constants) / ERROR for w, row in zip(weight, rows, strict=True)]
        return np.append(errors, (constants - PRIOR) / SPREAD)

    return least_squares(residuals, PRIOR, diff_step=0.02, max_nfev=12, x_scale=SPREAD).x


def report(name, errors):
    size = np.abs(errors)
    print(
        f"{name}: mean {size.mean():.1%}, median {np.median(size):.1%}, "
        f"bias {np.mean(errors):+.1%}",
        flush=True,
    )


def main():
    rows = list(read())
    report("as they are", [row.error(np.array([0, 0, 0, 1.0, 0])) for row in rows])
    constants = fit(rows)
    print(dict(zip((*GPUS, "hidden_dp", "layer_us"), constants.round(3).tolist(), strict=True)))
    report("in sample", [row.error(constants) for row in rows])
    for name, key in (("submitter, GPU and model", "group"), ("GPU", "gpu")):
        errors = []
        for left_out in {getattr(row, key) for row in rows}:
            others = fit([row for row in rows if getattr(row, key) != left_out])
            errors += [row.error(others) for row in rows if getattr(row, key) == left_out]
        report(f"each {name} predicted from the others", errors)


if __name__ == "__main__":
    main()
