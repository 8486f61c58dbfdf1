"""How sure and how soon the detector is: all its benchmarks, and the table of their bars.

    python benchmarks/detect.py [--half unseen] [--seed 1901] [--jobs 100] [--runs 300]
    python benchmarks/detect.py --only levels --half develop --seed 1 --misses

    streams  labelled streams, beside BOCD and a sliding window (detect_streams.py)
    levels   jobs whose level changes, with noise of real runs (detect_levels.py)
    real     real runs as they are, and with faults put into them (detect_real.py)
    gpus     a GPU that is 10% slow among its peers, by validations (detect_gpus.py)

Rules were chosen on the half ``develop`` of the real series; ``unseen`` judges them. The exit code
is 0 whatever is met.
"""

from __future__ import annotations

import argparse

import detect_gpus
import detect_levels
import detect_real
import detect_streams
from detect_series import CASES, HALVES, Series

from paceline.detect import levels

PARTS = ("streams", "levels", "real", "gpus")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--half", choices=HALVES, default="unseen")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=100, help="of each case of levels")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="of levels")
    parser.add_argument("--runs", type=int, default=300, help="real runs of each kind on 8 GPUs")
    parser.add_argument("--trials", type=int, default=400, help="fleets of 16 GPUs")
    parser.add_argument("--stream-seeds", type=int, nargs="*", default=[], help="more streams")
    parser.add_argument("--ours", action="store_true", help="streams: no other methods")
    parser.add_argument("--misses", action="store_true", help="print each miss of levels and real")
    args = parser.parse_args()
    levels.INTERPRETED_SAMPLES = 0  # compiled code tells the same, sooner
    bars = []
    if "streams" in args.only:
        methods = [detect_streams.ours] if args.ours else detect_streams.METHODS
        bars += detect_streams.report(args.stream_seeds, methods)
    if {"levels", "real"} & set(args.only):
        series = Series.read()
    if "levels" in args.only:
        bars += detect_levels.report(
            series, args.half, args.seed, args.jobs, args.cases, args.misses
        )
    if "real" in args.only:
        bars += detect_real.report(series, args.half, args.seed, args.runs, args.misses)
    if "gpus" in args.only:
        bars += detect_gpus.report(args.trials, args.seed)
    print("\n" + "\n".join(bar.line() for bar in bars))


if __name__ == "__main__":
    main()
