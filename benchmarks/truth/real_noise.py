"""How real jobs vary: the figures that ``tests/world/noise.py`` cites.

python benchmarks/truth/real_noise.py ../shared/data/whatif/trace-*.parquet
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

COMPUTES = ("forward-compute", "backward-compute")
COLLECTIVES = ("params-all-gather", "grads-reduce-scatter")


def robust_cv(values: np.ndarray) -> float:
    """1.4826 times the median absolute deviation over the median."""
    middle = np.median(values)
    return float(1.4826 * np.median(np.abs(values - middle)) / middle)


def computes(columns: dict[str, np.ndarray], kind: str) -> str:
    """Spread of a compute beside its worker, of workers, of steps, and neighbours' correlation."""
    at = columns["optype"] == kind
    logs, step = np.log(columns["duration"][at]), columns["step"][at]
    stage, dp, microbatch = (columns[name][at] for name in ("stage", "dp_rank", "mb_id"))
    worker = stage * 1000 + dp
    spreads, levels, lags = [], [], []
    rest = logs.copy()
    for one in np.unique(worker):
        own = worker == one
        rest[own] -= np.median(logs[own])
        levels.append(np.median(logs[own]) - np.median(logs[stage == one // 1000]))
        spreads.append(1.4826 * np.median(np.abs(rest[own])))
        series = rest[own][np.lexsort((microbatch[own], step[own]))]
        lags.append(np.corrcoef(series[:-1], series[1:])[0, 1])
    common = np.std([np.median(rest[step == one]) for one in np.unique(step)])
    return (
        f"{kind:21} op {np.median(spreads):.4f}  workers {np.std(levels):.4f}  steps {common:.4f}  "
        f"neighbours {np.median(lags):.2f}"
    )


def collective(columns: dict[str, np.ndarray], kind: str) -> str:
    """Spread of the transfer time of a collective, and how far apart its members end."""
    at = columns["optype"] == kind
    group = columns["step"][at] * 1000 + columns["stage"][at]
    order = np.argsort(group, kind="stable")
    _, first = np.unique(group[order], return_index=True)
    start = columns["start_ts"][at][order]
    end = start + columns["duration"][at][order]
    latest = np.maximum.reduceat(end, first)
    took = latest - np.maximum.reduceat(start, first)
    apart = latest - np.minimum.reduceat(end, first)
    return (
        f"{kind:21} median {np.median(took):.4f} s  spread {robust_cv(took):.3f}  99% over median "
        f"{np.quantile(took, 0.99) / np.median(took):.2f}  ends apart {np.median(apart):.5f} s"
    )


def messages(columns: dict[str, np.ndarray]) -> str:
    """Tail of the transfer times of forward sends."""
    start, end = columns["start_ts"], columns["start_ts"] + columns["duration"]
    names = ("step", "dp_rank", "stage", "seq_id")
    keys = list(zip(*(columns[name].astype(int).tolist() for name in names), strict=True))
    sends = {
        (s, d, stage + 1, k): i
        for i, (s, d, stage, k) in enumerate(keys)
        if columns["optype"][i] == "forward-send"
    }
    took = np.array(
        [
            end[i] - max(start[i], start[sends[key]])
            for i, key in enumerate(keys)
            if columns["optype"][i] == "forward-recv" and key in sends
        ]
    )
    tail = np.quantile(took, [0.99, 1.0]) / np.median(took)
    middle = f"{'forward messages':21} median {np.median(took):.5f} s"
    return f"{middle}  99% {tail[0]:.1f}x  most {tail[1]:.1f}x"


def main() -> None:
    for name in sys.argv[1:]:
        table = pq.read_table(name)
        columns = {
            column: np.array(table[column].to_pylist())
            if column == "optype"
            else table[column].to_numpy().astype(float)
            for column in table.column_names
        }
        print(Path(name).name)
        for kind in COMPUTES:
            print("  " + computes(columns, kind))
        for kind in COLLECTIVES:
            print("  " + collective(columns, kind))
        print("  " + messages(columns))


if __name__ == "__main__":
    main()
