"""What a rank map costs a job's detector: both in one run, fed with the same steps.

python benchmarks/rank_map.py --ranks 10000 --steps 2000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from paceline.monitor.live_job import LiveJob
from paceline.monitor.rank_file import NAME, save_rank_map
from paceline.monitor.rank_map import RankMap
from paceline.monitor.snapshot import SNAPSHOT, save_stream
from paceline.monitor.step_stream import Closed, Stream
from paceline.monitor.store.jobs import JobKey

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from step_batches import of_step

SAVED_EVERY = 1_000_000  # samples, as the service does


class TimedMap(RankMap):
    """A rank map that knows how long it took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def add(self, *args: object) -> None:
        """Count a step."""
        begin = time.thread_time()
        super().add(*args)
        self.seconds += time.thread_time() - begin


def main() -> None:
    """Print CPU seconds and bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=2_000)
    args = parser.parse_args()
    rng, rank_map = np.random.default_rng(0), TimedMap()
    live = LiveJob(JobKey(1, "project", "job"), Stream(), 0.0, rank_map)
    all_s, saves_s, unsaved = 0.0, np.zeros(2), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in range(args.steps):
            batch = of_step(step, 1 + 0.01 * rng.standard_normal(args.ranks))
            begin = time.thread_time()
            for closed in live.stream.take(batch):
                if isinstance(closed, Closed):
                    live.take(closed, None)
            all_s += time.thread_time() - begin
            unsaved += args.ranks
            if unsaved >= SAVED_EVERY or step == args.steps - 1:
                times = [time.thread_time()]
                for save, what in ((save_rank_map, rank_map), (save_stream, live.stream)):
                    save(what, folder)
                    times.append(time.thread_time())
                saves_s, unsaved = saves_s + np.diff(times), 0
        sizes = [(folder / file).stat().st_size / 2**20 for file in (NAME, SNAPSHOT)]
    without_s = all_s - rank_map.seconds
    print(f"{args.ranks:,} ranks x {args.steps:,} steps, CPU seconds: without the map", end=" ")
    print(f"{without_s:.2f}, the map {rank_map.seconds:.2f} ({rank_map.seconds / without_s:.1%})")
    print(f"saves: the map {saves_s[0]:.2f}, the stream {saves_s[1]:.2f}")
    print(f"files: {sizes[0]:.1f} and {sizes[1]:.1f} MiB; in memory {rank_map.n_bytes / 2**20:.1f}")


if __name__ == "__main__":
    main()
