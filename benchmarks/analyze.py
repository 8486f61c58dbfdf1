"""Whole analysis of large traces: rows, seconds per phase, peak memory, ns per simulated op.

    python benchmarks/analyze.py                       # dp 128, pp 16, 64 microbatches, 10 steps
    python benchmarks/analyze.py --dp 512 --microbatches 128 --steps 4
    python benchmarks/analyze.py --trace trace.parquet --job meta.yaml
    python benchmarks/analyze.py --cases               # 16,384 workers; programs layer by layer

The trace is synthesised by one process; each analysis runs in a process of its own, as a user's
would, first without numba's cache, then with it. The peer: the public what-if artifact takes 119 s
and 3.2 GB for its approximation on the default size (2 cores), 1.7 s on the real job AR.

``--cases`` runs ``paceline analyze`` with diagnosis and remedies, and prints beside it what the
machine allows: the time to read the files' bytes, and the time to copy the analysed times once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: A user's Python keeps compiled modules; without them each start compiles Paceline's sources.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

PHASES = ("import", "read", "graph", "simulate S, S_x, S_w", "shares and delays", "total")


def measure(trace: str, job: str | None) -> dict[str, float]:
    """One analysis in this process, phase by phase; seconds but for rows, ops and bytes."""
    begin = time.perf_counter()
    from paceline.graph import from_trace
    from paceline.sources import is_large, load, load_stored
    from paceline.whatif import analyze

    marks = [time.perf_counter()]
    loaded = load_stored(trace, job=job) if is_large(trace) else load(trace, job=job)
    marks.append(time.perf_counter())
    measured = from_trace(loaded)
    marks.append(time.perf_counter())
    lanes = [0]
    last_lane = [marks[-1]]

    def progress(done: int, total: int) -> None:
        lanes[0], last_lane[0] = total, time.perf_counter()

    analyze(measured, progress=progress)
    end = time.perf_counter()
    simulated_ops = lanes[0] * measured.graph.n_ops
    spent = last_lane[0] - marks[2]
    return {
        "rows": len(loaded.start),
        "import": marks[0] - begin,
        "read": marks[1] - marks[0],
        "graph": marks[2] - marks[1],
        "simulate S, S_x, S_w": spent,
        "shares and delays": end - last_lane[0],
        "total": end - begin,
        "simulated ops": simulated_ops,
        "ns per simulated op": 1e9 * spent / max(1, simulated_ops),
        "CPU": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
        "peak bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def child(trace: str, job: str | None, cache: str) -> dict[str, float]:
    """The same in a fresh process, with numba's cache in a folder of its own."""
    command = [
        sys.executable,
        __file__,
        "--measure",
        "--trace",
        trace,
        *(["--job", job] * bool(job)),
    ]
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "NUMBA_CACHE_DIR": cache},
    )
    result = json.loads(done.stdout)
    result["process"] = time.perf_counter() - begin
    return dict(result)


#: Name -> options of benchmarks/program_trace.py, and of ``paceline synth`` where passes are whole.
PROGRAMS = {
    "1,024 GPUs, dp 16 x tp 8, 10 steps": {"steps": 10},
    "the same, 40 steps": {"steps": 40},
    "1,024 workers, dp 128, 10 steps": {"dp": 128, "tp": 1, "steps": 10},
    "the same, weights sharded by 8": {"dp": 128, "tp": 1, "steps": 10, "shard": 8},
}
WHOLE = {"16,384 workers, whole passes, 1 step": {"dp": 1024, "pp": 16, "steps": 1}}


def cases() -> None:
    """Print a row for each large job."""
    print(f"{'':38}{'rows':>13}{'CPU s':>8}{'wall s':>8}{'GB':>6}{'read s':>8}{'copy s':>8}")
    for name, options in {**WHOLE, **PROGRAMS}.items():
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.parquet"
            flags = [word for key, value in options.items() for word in (f"--{key}", str(value))]
            if name in WHOLE:
                make = ["-m", "paceline", "synth", "-o", str(trace), "--microbatches", "32"]
            else:
                make = [str(Path(__file__).with_name("program_trace.py")), str(trace)]
            subprocess.run([sys.executable, *make, *flags], check=True, capture_output=True)
            print(f"{name:38}{one_case(trace)}", flush=True)


def one_case(trace: Path) -> str:
    """Rows, CPU and wall seconds, peak memory; seconds to read the bytes and to copy the times."""
    import numpy as np
    import pyarrow.parquet as pq

    files = sorted(trace.iterdir()) if trace.is_dir() else [trace]
    n_rows = sum(pq.read_metadata(file).num_rows for file in files)
    begin = time.perf_counter()
    for file in files:
        file.read_bytes()
    read_s = time.perf_counter() - begin
    times = np.ones(1 << 24)
    begin = time.perf_counter()
    times.copy()
    copy_s = (time.perf_counter() - begin) * 2 * n_rows / len(times)
    command = [sys.executable, "-m", "paceline", "analyze", str(trace)]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    cpu_s, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9
    return f"{n_rows:13,}{cpu_s:8.1f}{wall_s:8.1f}{peak:6.2f}{read_s:8.2f}{copy_s:8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dp", type=int, default=128)
    parser.add_argument("--pp", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--trace", help="analyse this file instead")
    parser.add_argument("--job")
    parser.add_argument("--runs", type=int, default=3, help="runs with a warm cache")
    parser.add_argument("--cases", action="store_true", help="large jobs, whole command")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.trace, args.job)))
        return
    if args.cases:
        cases()
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = args.trace or f"{folder}/trace.parquet"
        if not args.trace:
            command = [sys.executable, "-m", "paceline", "synth", "-o", trace]
            for flag in ("dp", "pp", "microbatches", "steps"):
                command += [f"--{flag}", str(getattr(args, flag))]
            command += ["--slow-worker", f"{args.dp // 2},{args.pp // 2},1.5"]
            subprocess.run([*command, "--sequence-imbalance", "0.1"], check=True)
        print(f"{Path(trace).stat().st_size / 1e6:.0f} MB on disk")
        cold = child(trace, args.job, f"{folder}/numba")
        warm = [child(trace, args.job, f"{folder}/numba") for _ in range(args.runs)]
    best = min(warm, key=lambda r: r["process"])
    print(f"{best['rows']:,.0f} rows, {best['simulated ops']:,.0f} simulated ops")
    print(
        f"{'seconds':24}{'no cache':>10}"
        + "".join(f"{f'run {i + 1}':>10}" for i in range(args.runs))
    )
    for phase in (*PHASES, "process", "CPU"):
        cells = "".join(f"{run[phase]:10.2f}" for run in (cold, *warm))
        print(f"{phase:24}{cells}")
    print(
        f"{'ns per simulated op':24}"
        + "".join(f"{r['ns per simulated op']:10.2f}" for r in (cold, *warm))
    )
    print(f"{'peak GB':24}" + "".join(f"{r['peak bytes'] / 1e9:10.2f}" for r in (cold, *warm)))


if __name__ == "__main__":
    main()
