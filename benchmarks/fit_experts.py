"""The fit behind ``paceline.model.efficiency.EXPERT_KERNEL_S``, and what it is worth out of sample.

    python benchmarks/fit_experts.py

One number on the shared published mixtures of experts: how long a GPU waits for each kernel of
routing and experts. Rows of one table, GPU and model weigh as one. docs/accuracy.md tells more.
"""

import csv

import numpy as np
from one_constant import Row, ratios, report
from predict_table import published_job, published_seconds
from shared_folder import SHARED

from paceline.model.efficiency import EXPERT_KERNEL_S

TABLES = ("published_2025.csv", "published_2026_part.csv")
GRID = np.arange(0, 41, 1) * 1e-6


def read():
    for table in TABLES:
        with (SHARED / "data" / "llm" / table).open(encoding="utf-8-sig", newline="") as file:
            for fields in csv.DictReader(file):
                job = published_job(fields)
                llm = job[0]
                if llm.moe is None:
                    continue
                values = ratios(job, published_seconds(fields), "expert_kernel_s", GRID)
                kind = "hybrid" if llm.pattern else "mixture"
                model = llm.name.removesuffix("-mtp")
                yield Row(f"{table} {kind}", fields["system"], model, values)


def main():
    report(
        list(read()),
        GRID,
        off=0,
        preset=EXPERT_KERNEL_S,
        parts=("model", "gpu"),
        by_table=False,
        form=lambda seconds: f"{seconds * 1e6:.0f} us",
    )


if __name__ == "__main__":
    main()
