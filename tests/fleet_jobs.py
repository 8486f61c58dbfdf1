"""Small fleets of synthesised traces, for the tests of studies."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pyarrow as pa

from paceline.fleet.columns import JOBS
from paceline.fleet.run import RunOptions
from paceline.sources import write
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace import Trace

#: This process alone: nothing to start, and buckets in memory can be seen.
HERE = RunOptions(processes=0)

#: What two runs of the same study may differ in.
VARYING = [column.name for column in JOBS if column.varies]


@cache
def job(seed: int = 0, steps: int = 2, factor: float = 1.0) -> Trace:
    slow = (SlowWorker(1, 0, factor),) if factor > 1 else ()
    spec = SynthSpec(dp=2, pp=2, microbatches=4, steps=steps, slow_workers=slow, seed=seed)
    return synthesize(spec)


def make_fleet(folder: Path, seeds: Sequence[int] = (0, 1, 2)) -> Path:
    """A trace for each seed; every second one has a slow worker."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        write(job(seed, factor=1.5 if seed % 2 else 1.0), folder / f"trace-{seed}.parquet")
    return folder


def settled(table: pa.Table) -> list[dict[str, object]]:
    """The rows of ``jobs`` that do not depend on who analysed them."""
    return list(table.drop_columns(VARYING).to_pylist())


def by_file(table: pa.Table) -> dict[str, dict[str, object]]:
    """File name -> row of ``jobs``."""
    return {Path(row["path"]).name: row for row in table.to_pylist()}
