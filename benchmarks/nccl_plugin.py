"""The NCCL plugin's cost per record, and the rate at which it loses none.

    PYTHONPATH=src python benchmarks/nccl_plugin.py
    PYTHONPATH=src python benchmarks/nccl_plugin.py --per-second 100000 1000000 --nice 19 --busy 4
    PYTHONPATH=src python benchmarks/nccl_plugin.py --profiles /work/shared/data/real

``tests/native/harness.c`` makes the records from two threads, as NCCL does: groups and collectives
by one, eight proxy operations and eight channels of each by the other. ``--busy`` spins beside it,
and ``--nice`` has every other process of the machine go first. ``--profiles`` counts what PyTorch's
profiles of real jobs would have made: of each NCCL or RCCL kernel the grid is the channels.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from paceline.sources.call_logs.nccl_profiler import SUFFIX, read_processes
from pause_stress import Built, build


def run(built: Built, folder: Path, nice: int, *mode: str) -> list[str]:
    """Lines that the harness prints."""
    command = ["nice", "-n", str(nice), built.harness, built.plugin, "6", *mode]
    environment = {**os.environ, "PACELINE_RECORD": str(folder)}
    return subprocess.check_output(command, env=environment, text=True).splitlines()


#: Records of a call (group and collective, each begun and ended), and of a channel: its begin and
#: end, and those of a send and a recv of the proxy (counted in a job of tests/native/nccl_job.c on
#: NCCL 2.30.7).
OF_CALL, OF_CHANNEL, OF_PROXIES = 4, 2, 6
#: The busiest stretch of a profile, microseconds.
STRETCH_US = 1e5


def count(path: Path) -> str | None:
    """Calls, channels and records a second of a profile; None where it has no calls."""
    with gzip.open(path) as file:
        profile = json.load(file)
    events = profile.get("traceEvents", []) if isinstance(profile, dict) else profile
    kernels = [one for one in events if isinstance(one, dict) and one.get("cat") == "kernel"]
    calls = [one for one in kernels if "ccl" in one["name"].lower() and "dur" in one]
    if not calls:
        return None
    begin = min(one["ts"] for one in kernels)
    seconds = (max(one["ts"] + one.get("dur", 0) for one in kernels) - begin) / 1e6
    rows = sorted((one["ts"], one["args"].get("grid", [0])[0]) for one in calls)
    records = [OF_CALL + (OF_CHANNEL + OF_PROXIES) * channels for _, channels in rows]
    most, first, inside = 0, 0, 0
    for (at, _), n in zip(rows, records, strict=True):
        inside += n
        while at - rows[first][0] > STRETCH_US:
            inside -= records[first]
            first += 1
        most = max(most, inside)
    channels = sum(n for _, n in rows)
    return (
        f"{len(calls) / seconds:,.0f} calls and {channels / seconds:,.0f} channels a second for "
        f"{seconds:.2f} s: {sum(records) / seconds:,.0f} records, at most {most:,} in 0.1 s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--per-second", type=int, nargs="+", default=[100_000, 500_000])
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--busy", type=int, default=0, help="processes that spin meanwhile")
    parser.add_argument("--profiles", type=Path, help="count those of a folder instead")
    args = parser.parse_args()
    for path in sorted(args.profiles.rglob("*.json.gz")) if args.profiles else ():
        if told := count(path):
            print(f"{path.relative_to(args.profiles)}: {told}")
    if args.profiles:
        return
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    try:
        with tempfile.TemporaryDirectory() as name:
            built = build(Path(name), os.environ.get("CC", "cc"))
            print(run(built, Path(name) / "cost", args.nice, "cost", "300")[0])
            for rate in args.per_second:
                folder = Path(name) / str(rate)
                lines = run(built, folder, args.nice, "rate", str(args.records), str(rate))
                (process,) = read_processes(sorted(folder.glob(f"*{SUFFIX}")))
                load = os.getloadavg()[0]
                print(
                    f"{rate:,} a second: {process.recorded:,} written, {process.dropped:,} lost, "
                    f"{len(process.records):,} read back; {lines[-2]}; load {load:.1f}"
                )
                for path in folder.glob(f"*{SUFFIX}"):
                    path.unlink()
    finally:
        for one in busy:
            one.kill()


if __name__ == "__main__":
    main()
