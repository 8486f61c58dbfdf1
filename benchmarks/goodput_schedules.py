"""How much of the wall time ``paceline goodput`` calls a fail-slow in real runs with a schedule.

    python benchmarks/goodput_schedules.py

Each run of ``step-series`` becomes a log of step times. Runs with a schedule of batches or of
attention windows become slower by plan. Step times alone do not say so. ``paceline detect --json``
does where it has the tokens of each step, and ``--events`` takes its events.
"""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import numpy as np
from detect_series import Series

import paceline
from paceline.cli.main import run as command

KINDS = ("MLPerf", "with a schedule", "other")


def fail_slow(log: Path, events: Path | None = None) -> float:
    """The share of the wall time, percent."""
    rows = events and [json.loads(line) for line in events.read_text().splitlines()]
    ledger = paceline.goodput(log, events=rows)
    return 100 * (ledger.seconds["fail_slow"] or 0.0) / ledger.total_s


def events_with_workload(series: Series, run: int, folder: Path) -> Path:
    """What the detector tells of the run where it has the tokens and the window of each step."""
    rows = series.rows(run)
    columns = zip(series.durations(run), series.tokens[rows], series.window[rows], strict=True)
    table, found = folder / "steps.csv", folder / "events.jsonl"
    lines = (f"{step},{s:.6f},{n},{window}\n" for step, (s, n, window) in enumerate(columns))
    table.write_text("step,duration_s,tokens,window\n" + "".join(lines))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert command(["detect", str(table), "--json"]) == 0
    found.write_text(said.getvalue())
    return found


def main() -> None:
    """Print the shares of each kind of run."""
    series = Series.read()
    shares: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "train.csv"
        for run in range(len(series.offsets) - 1):
            scheduled = series.is_scheduled(run)
            kind = KINDS[0 if series.mlperf[run] else 1 if scheduled else 2]
            lines = (f"{step},{s:.6f}\n" for step, s in enumerate(series.durations(run)))
            log.write_text("step,duration_s\n" + "".join(lines))
            shares.setdefault((kind, False), []).append(fail_slow(log))
            if scheduled and not series.mlperf[run]:
                events = events_with_workload(series, run, Path(name))
                shares.setdefault((kind, True), []).append(fail_slow(log, events))
    for (kind, given), found in sorted(shares.items()):
        low, middle, high = np.percentile(found, [5, 50, 95])
        told = sum(share > 0.5 for share in found)
        print(
            f"{kind}{', workload given' if given else ''}: {told} of {len(found)} runs above 0.5%; "
            f"median {middle:.1f}%, 5th and 95th percentile {low:.1f} and {high:.1f}%"
        )


if __name__ == "__main__":
    main()
