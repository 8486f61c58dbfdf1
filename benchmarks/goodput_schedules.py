"""How much of the wall time ``paceline goodput`` calls a fail-slow in real runs that nobody slowed.

    python benchmarks/goodput_schedules.py

Each run of ``step-series`` becomes a log of step times. Runs with a schedule of batches or windows
become slower by plan, which step times alone do not say; the same runs are given their tokens, too.
"""

import tempfile
from pathlib import Path

import numpy as np
from detect_series import Series

import paceline
from paceline.cli.main import run as command


def share(path: Path, events: Path | None) -> float:
    """The fail-slow's share of the wall time."""
    rows = {row.name: row for row in paceline.goodput(path, events=events).rows}
    return rows["fail-slow"].seconds / sum(row.seconds or 0.0 for row in rows.values())


def main() -> None:
    series = Series.read()
    print(len(series.offsets) - 1)


if __name__ == "__main__":
    main()
