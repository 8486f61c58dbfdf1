"""The pause of a job: every interleaving of its model, and random ones of real processes.

    PYTHONPATH=src python benchmarks/nccl_pause.py model
    PYTHONPATH=src python benchmarks/nccl_pause.py stress --from 0 --to 1000

``stress`` starts eight processes of ``tests/native/harness.c`` with the plugin for each pause,
kills a rank or the asker at a random moment in half of them, and slows the file system in half of
them. It ends with an error where two ranks stopped at different collectives, or one stood for ever.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pause_model import Model, search
from pause_stress import build, interleaving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("model", "stress"))
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="last", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=3, help="pauses at a time")
    args = parser.parse_args()
    began = time.monotonic()
    if args.what == "model":
        for model in (Model(ranks=2, killed=2), Model(plans=(1, 2)), Model(killed=3)):
            print(model, search(model), f"{time.monotonic() - began:.0f} s", sep="\n  ")
        return
    seen: Counter[tuple[str, str, int]] = Counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        built = build(Path(folder), os.environ.get("CC", "cc"))
        for outcome in pool.map(lambda n: interleaving(built, n), range(args.first, args.last)):
            seen[(outcome.killed or "nobody", outcome.name, outcome.slow_ms)] += 1
    for (killed, name, slow_ms), n in sorted(seen.items()):
        print(f"killed {killed:7s} slow {slow_ms:4d} ms  {name:14s} {n:5d}")
    spent_s = time.monotonic() - began
    print(f"{seen.total():,} pauses, no split, nobody stood for ever, {spent_s:.0f} s")


if __name__ == "__main__":
    main()
