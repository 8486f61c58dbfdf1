"""Tables of a study, drawn: rows of jobs and steps, and the same as plain dictionaries."""

import datetime

import numpy as np
import pyarrow as pa

from paceline.fleet.columns import JOBS, STEPS, arrow_schema

CAUSES = ("worker", "sequence-length", "gc")
KINDS = ("forward-compute", "backward-compute", "forward-pp-comm")
DAY = datetime.datetime(2026, 10, 5, 12, tzinfo=datetime.UTC)


def drawn_jobs(n: int, seed: int = 0) -> list[dict]:
    """Rows of ``jobs``; some are left out, some lack numbers."""
    rng = np.random.default_rng(seed)
    return [_row(i, rng) for i in range(n)]


def _row(i: int, rng: np.random.Generator) -> dict:
    slowdown = 1 + float(rng.gamma(0.6, 0.4)) + 2.5 * (i % 40 == 7)
    status = rng.choice(["analysed"] * 8 + ["discarded", "failed"])
    rule = {"analysed": None, "discarded": "discrepancy", "failed": "corrupt"}[status]
    cause = str(rng.choice(CAUSES)) if slowdown > 1.05 else "healthy"
    share = float(rng.uniform(0.3, 1.0))
    row = {
        "key": f"key-{i}",
        "path": f"traces/{i}.parquet",
        "name": f"job-{i}",
        "status": str(status),
        "rule": rule,
        "gpus": int(2 ** rng.integers(3, 11)),
        "pp": int(rng.choice([1, 4])),
        "gpu_hours": float(rng.lognormal(3, 1)),
        "gpu_hours_source": str(rng.choice(["given", "traced"])),
        "team": str(rng.choice(["ads", "search"])) if rng.random() < 0.8 else None,
        "started": DAY + datetime.timedelta(days=int(rng.integers(0, 30))),
        "labels": [("queue", str(rng.choice(["a", "b"])))],
        "max_seq_len": int(rng.choice([4096, 32768])) if rng.random() < 0.5 else None,
    }
    if status == "failed":
        return row
    return row | {
        "slowdown": slowdown,
        "waste": 1 - 1 / slowdown,
        "discrepancy": float(rng.exponential(0.02)),
        "m_w": float(rng.uniform(-0.2, 1.2)) if rng.random() < 0.9 else None,
        "m_s": float(rng.uniform(0, 1)),
        "forward_backward_correlation": float(rng.uniform(0.5, 1)),
        "waste_by_kind": [(kind, float(rng.uniform(-0.1, 0.4))) for kind in KINDS[: i % 4]],
        "cause": cause,
        "causes": [] if cause == "healthy" else [{"cause": cause, "share": share}],
        "remedy": None if cause == "healthy" else "replace-worker",
        "remedy_gain": None if cause == "healthy" else float(rng.uniform(0, 0.3)),
        "slow_hosts": [f"host-{rng.integers(0, 12)}"] if cause == "worker" else [],
    }


def jobs_table(rows: list[dict]) -> pa.Table:
    schema = arrow_schema(JOBS)
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema
    )


def steps_table(rows: list[dict], per_job: int = 5, seed: int = 0) -> pa.Table:
    """Steps of all analysed jobs, and of one that is not in the table."""
    rng = np.random.default_rng(seed)
    steps = [
        {
            "key": row["key"],
            "job": row["name"],
            "step": step,
            "slowdown": float(rng.uniform(0.9, 2)),
        }
        for row in [*rows, {"key": "gone", "name": "gone"}]
        if row.get("status", "analysed") == "analysed"
        for step in range(per_job)
    ]
    schema = arrow_schema(STEPS)
    return pa.Table.from_pylist([{n: row.get(n) for n in schema.names} for row in steps], schema)
