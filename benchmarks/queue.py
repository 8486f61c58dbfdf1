"""Queues: ElasticFlow's own jobs, the speed of a replay, and the study's free choices.

python benchmarks/queue.py                       # speed
python benchmarks/queue.py --elasticflow DIR     # DIR: ../shared/data/cluster
python benchmarks/queue.py --study DIR           # vTrain's case study, each free choice varied

All of it in one run on one machine. No public queue lies beside the checkout, so the speed is that
of drawn jobs: ten clusters of 6,935 jobs are as many as the ten of Microsoft's ITP trace.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ != "__main__":
    # Another script of this folder asked for the standard library's module of this name.
    import importlib.util
    import os

    _spec = importlib.util.spec_from_file_location("queue", Path(os.__file__).with_name("queue.py"))
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[__name__] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[__name__])
else:
    sys.path.remove(str(Path(__file__).parent.resolve()))

    import argparse
    import csv
    import json
    import time
    from typing import Any

    import numpy as np

    from paceline.scheduling.jobs import JobList, Throughputs, job_list
    from paceline.scheduling.read_jobs import read_jobs, read_throughputs
    from paceline.scheduling.replay import replay_queue
    from paceline.scheduling.study import Choices, read_windows, run_study

    SLOT_S, GPUS = 10, 64
    CLUSTERS, JOBS = 10, 6935
    RIGID = ("fifo", "backfill", "srtf", "tiresias")
    VARIED: tuple[dict[str, Any], ...] = (
        {},
        {"software": "today"},
        {"marginal": "added"},
        {"span_h": 25.0},
        {"span_h": 100.0},
        {"slot_s": 3600.0},
        {"rescale_s": 600.0},
        {"order": "shortest"},
        {"duration_gpus": (64,)},
        {"duration_gpus": (256,)},
        {"seed": 1},
        {"seed": 2},
    )

    def elasticflow(folder: Path) -> dict[str, Any]:
        """ElasticFlow's 300 jobs on 64 GPUs, no rescaling, slots of 10 s, beside its artifact."""
        throughputs = read_throughputs(folder / "elasticflow_throughputs_a100.csv")
        log = read_jobs(folder / "elasticflow_300jobs_lam400.csv", throughputs=throughputs)
        with (folder / "elasticflow_300jobs_artifact_slot10.csv").open() as file:
            artifact = {row["job_id"] for row in csv.DictReader(file)}
        done = replay_queue(log.jobs, GPUS, "elasticflow", throughputs, slot_s=SLOT_S)
        accepted = {log.jobs.job_id[i] for i in range(len(log.jobs)) if i not in done.refused}
        return {
            "accepted": len(accepted),
            "late": done.late,
            "artifact_accepted": len(artifact),
            "only_here": sorted(accepted - artifact),
            "only_there": sorted(artifact - accepted),
        }

    def rigid_jobs(rng: np.random.Generator) -> tuple[JobList, int]:
        """Two months of a cluster, and GPUs for 80% of utilisation."""
        span_s = 5.2e6
        work = np.exp(rng.normal(8.5, 1.6, JOBS))
        gpus = 2 ** rng.integers(0, 7, JOBS)
        jobs = job_list(
            [str(i) for i in range(JOBS)],
            np.sort(rng.uniform(0, span_s, JOBS)).tolist(),
            work.tolist(),
            gpus=gpus.tolist(),
        )
        return jobs, max(64, int((work * gpus).sum() / span_s * 1.25))

    def elastic_jobs(n: int, rng: np.random.Generator) -> JobList:
        """Jobs of one curve that come in 400 h, with deadlines."""
        submitted = np.sort(rng.uniform(0, 400 * 3600, n))
        hours = np.exp(rng.uniform(np.log(5), np.log(100), n)) * 64 / n
        return job_list(
            [str(i) for i in range(n)],
            submitted.tolist(),
            (hours * 3600 * 100).tolist(),
            curve=["x"] * n,
            deadline_s=(submitted + hours * 3600 * rng.uniform(0.5, 1.5, n)).tolist(),
        )

    def speed() -> dict[str, Any]:
        """Seconds of processor time; each after one run that compiles or loads the loops."""
        seconds: dict[str, Any] = {}
        rates = Throughputs.of({("x", 1 << k): (1 << k) ** 0.9 for k in range(11)})
        for n in (128, 1000):
            jobs = elastic_jobs(n, np.random.default_rng(0))
            replay_queue(jobs, 1024, "elasticflow", rates, slot_s=240)
            begin = time.process_time()
            done = replay_queue(jobs, 1024, "elasticflow", rates, slot_s=240)
            seconds[f"elasticflow, {n} jobs"] = time.process_time() - begin
            assert done.late == 0
        for policy in RIGID:
            rng = np.random.default_rng(0)
            replay_queue(*rigid_jobs(rng), policy, node_gpus=1)
            rng = np.random.default_rng(0)
            clusters = [rigid_jobs(rng) for _ in range(CLUSTERS)]
            begin = time.process_time()
            for jobs, gpus in clusters:
                replay_queue(jobs, gpus, policy, node_gpus=1)
            seconds[f"{policy}, {CLUSTERS} x {JOBS} jobs"] = time.process_time() - begin
        return seconds

    def study(folder: Path) -> list[dict[str, Any]]:
        """The study's figures for each free choice."""
        windows = read_windows(folder / "itp_windows_128.csv")
        return [{**varied, **run_study(windows, Choices(**varied)).summary()} for varied in VARIED]

    def main() -> None:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--elasticflow", metavar="DIR", type=Path)
        parser.add_argument("--study", metavar="DIR", type=Path)
        parser.add_argument("--json", action="store_true")
        args = parser.parse_args()
        result: Any = speed() if args.elasticflow is None and args.study is None else None
        if args.elasticflow is not None:
            result = elasticflow(args.elasticflow)
        elif args.study is not None:
            result = study(args.study)
        if args.json:
            print(json.dumps(result))
            return
        rows = result if isinstance(result, list) else [result]
        for row in rows:
            for name, value in row.items():
                print(
                    f"{name:32} {value:.4g}" if isinstance(value, float) else f"{name:32} {value}"
                )
            print()

    main()
