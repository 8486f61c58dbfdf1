"""Is the product right? Physical jobs of another hand, with every remedy applied for real.

    python benchmarks/truth.py                          # all parts, about ten minutes on two cores
    python benchmarks/truth.py --part remedies          # predicted gains against the changed job
    python benchmarks/truth.py --part healthy           # ten kinds of noise: false findings
    python benchmarks/truth.py --part weak              # weak causes and pairs of them
    python benchmarks/truth.py --part clocks            # late members, skew, drift
    python benchmarks/truth.py --seed 7 --json out.json # other draws; every record
    python benchmarks/truth.py --case s0/remedies/017-link+worker/8x4m16   # one case, all of it
    python benchmarks/truth.py --case ID --dump trace.parquet              # and its trace

The jobs come from ``tests/world``: a simulator and a generator of physical jobs that share no code
with Paceline. A remedy is applied to the job that the world describes, with the same random
numbers, and the job is run again; its gain is 1 - new / old of the mean step time that a stopwatch
shows, launch delays included. What a remedy does physically is written in ``truth/apply.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from truth.main import main

if __name__ == "__main__":
    sys.exit(main())
