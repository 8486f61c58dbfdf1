"""Figures, summary and page of a fleet of a million drawn jobs with twenty million steps.

    python benchmarks/fleet_figures.py [JOBS [STEPS]]

CPU seconds of each part, and the largest resident memory before and after.
"""

import resource
import sys
import time

import numpy as np
import pyarrow as pa

from paceline.fleet.columns import JOBS, STEPS, arrow_schema
from paceline.fleet.summary import as_json, summarise
from paceline.report import fleet as fleet_page

CAUSES = np.array(["worker", "sequence-length", "stage-imbalance", "gc", "healthy"])
KINDS = ("forward-compute", "backward-compute", "forward-pp-comm", "grads-reduce-scatter")


def drawn_jobs(n, rng):
    slowdown = 1 + rng.gamma(0.6, 0.15, n)
    schema = arrow_schema(JOBS)
    keys = pa.array([f"job-{i}" for i in range(n)])
    cause = pa.array(CAUSES[rng.integers(0, len(CAUSES), n)])
    started = (1_760_000_000 + rng.integers(0, 10**7, n)).astype("datetime64[s]")
    one_each = pa.array(np.arange(n + 1, dtype=np.int32))
    finding = schema.field("causes").type.value_type
    empty = {"cause": cause, "share": pa.array(rng.uniform(0, 1, n))}
    findings = pa.StructArray.from_arrays(
        [empty.get(f.name, pa.nulls(n, f.type)) for f in finding], fields=list(finding)
    )
    wastes = pa.array(rng.exponential(0.05, len(KINDS) * n))
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * len(KINDS))
    columns = {
        "key": keys,
        "path": keys,
        "name": keys,
        "status": pa.array(["analysed"] * n),
        "gpus": pa.array(2 ** rng.integers(3, 13, n)),
        "pp": pa.array(rng.choice([1, 2, 4, 8], n)),
        "gpu_hours": pa.array(rng.lognormal(3, 1, n)),
        "slowdown": pa.array(slowdown),
        "waste": pa.array(1 - 1 / slowdown),
        "discrepancy": pa.array(rng.exponential(0.01, n)),
        "m_w": pa.array(rng.uniform(0, 1, n)),
        "m_s": pa.array(rng.uniform(0, 1, n)),
        "forward_backward_correlation": pa.array(rng.uniform(0, 1, n)),
        "max_seq_len": pa.array(rng.choice([4096, 8192, 32768, 131072], n)),
        "cause": cause,
        "team": pa.array(np.array(["a", "b", "c"])[rng.integers(0, 3, n)]),
        "started": pa.array(started).cast(pa.timestamp("us", tz="UTC")),
        "waste_by_kind": pa.MapArray.from_arrays(offsets, pa.array(list(KINDS) * n), wastes),
        "causes": pa.ListArray.from_arrays(one_each, findings),
        "slow_hosts": pa.ListArray.from_arrays(
            one_each, pa.array([f"host-{i}" for i in rng.integers(0, 5000, n)])
        ),
        "remedy": cause,
        "remedy_gain": pa.array(rng.uniform(0, 0.2, n)),
    }
    return pa.table(
        {
            field.name: columns[field.name].cast(field.type)
            if field.name in columns
            else pa.nulls(n, field.type)
            for field in schema
        },
        schema=schema,
    )


def drawn_steps(keys, each, rng):
    n = len(keys)
    job = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(n, dtype=np.int32), each)), keys.combine_chunks()
    )
    number = pa.array(np.tile(np.arange(each), n))
    value = pa.array(rng.uniform(0.9, 1.3, n * each))
    columns = {"key": job, "job": job, "step": number}
    return pa.table({field.name: columns.get(field.name, value) for field in arrow_schema(STEPS)})


class Drawn:
    """What the page asks of a study."""

    def __init__(self, jobs, steps):
        self.jobs, self.address, self.about = jobs, "study", {"traces": jobs.num_rows}
        self.figures, self.summary = summarise(jobs, steps)


def memory_gb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    n_steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20 * n
    rng = np.random.default_rng(0)
    jobs = drawn_jobs(n, rng)
    steps = drawn_steps(jobs["key"], n_steps // n, rng)
    print(f"{n:,} jobs, {steps.num_rows:,} steps: tables {memory_gb():.2f} GB")
    start = time.process_time()
    study = Drawn(jobs, steps)
    as_json(study.summary)
    print(f"figures and summary {time.process_time() - start:.1f} s of CPU, {memory_gb():.2f} GB")
    start = time.process_time()
    page = fleet_page.page(study)
    seconds = time.process_time() - start
    print(f"page {seconds:.1f} s, {len(page) / 1e3:,.0f} kB, {memory_gb():.2f} GB")


if __name__ == "__main__":
    main()
