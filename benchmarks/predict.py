"""How far predictions are from measured steps: the tables of docs/accuracy.md.

    python benchmarks/predict.py [--data ../shared/data/llm] [--published FILE] [--runs FILE]
    python benchmarks/predict.py --calculon CHECKOUT --llm-analysis CHECKOUT
    python benchmarks/predict.py --table mlperf|published|memory FILE [--json]

1. Measured A100 runs (``megatron_a100_calibration.csv``): datasheet presets, no calibration.
2. The same, calibrated, each run predicted without itself: five folds, and each model size in turn.
3. Throughput published for newer GPUs (``published_2025.csv``): presets, and one efficiency factor
   per GPU and precision, fitted on the dense models, each row predicted without itself.

With checkouts of other predictors, the first table alone with theirs beside it (``peers.py``).
With ``--table``, one file of the columns of a shared table, row by row (``predict_table.py``).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from peers import PEERS
from predict_table import TABLES, published_job, published_seconds
from shared_folder import SHARED

from paceline.plan.calibrate import calibrate, cross_validate, folds
from paceline.plan.predict import predict
from paceline.plan.ranking import rank
from paceline.plan.runs import error_table, read_runs, runs_cluster

DATA = SHARED / "data" / "llm"


def show(name, measured, predicted):
    errors = error_table(measured, predicted)
    share = np.asarray(predicted) / np.asarray(measured) - 1
    print(
        f"{name:58s} n {len(share):3d}  "
        f"MAPE {errors['mape']:6.1%}  median {errors['median']:6.1%}  "
        f"p90 {errors['p90']:6.1%}  R2 {errors['r2'] or 0:.4f}  mean {share.mean():+.1%}"
    )


def worst(names, measured, predicted, count=5):
    share = np.asarray(predicted) / np.asarray(measured) - 1
    for i in np.argsort(-np.abs(share))[:count]:
        print(f"    {share[i]:+.0%}  {names[i]}")


def beside_peers(path, checkouts):
    """The A100 runs by this predictor's presets and by others."""
    runs = read_runs(path, need_times=True).runs
    cluster = runs_cluster(runs, None)
    measured = np.array([run.measured_s for run in runs])
    ours = [predict(run.llm, run.plan, cluster).step_time_s for run in runs]
    for name, seconds in {
        "Paceline, presets": ours,
        **{name: PEERS[name](path, runs, cluster) for name, path in checkouts.items()},
    }.items():
        done = [i for i, value in enumerate(seconds) if value is not None]
        show(f"A100, {name}", measured[done], [seconds[i] for i in done])
        jobs = [(runs[i].llm, runs[i].plan) for i in done]
        order = rank(jobs, measured[done], [seconds[i] for i in done])
        print(
            f"    pairs of plans in the right order: {order.right} of {order.pairs}; "
            f"regret {order.regret:.1%}, worst {order.worst_regret:.1%}"
        )


def a100(path):
    runs = read_runs(path, need_times=True).runs
    cluster = runs_cluster(runs, None)
    jobs = [(run.llm, run.plan) for run in runs]
    measured = [run.measured_s for run in runs]
    names = [f"h{llm.hidden} {plan.describe()}" for llm, plan in jobs]
    preset = [predict(llm, plan, cluster).step_time_s for llm, plan in jobs]
    show("A100, presets", measured, preset)
    worst(names, measured, preset)
    start = time.perf_counter()
    fit = calibrate(jobs, measured, cluster)
    seconds = time.perf_counter() - start
    show("A100, calibrated, in sample", measured, fit.predicted_s)
    for name, error in fit.calibration.constants.items():
        value = getattr(fit.cluster.efficiency, name)
        before = getattr(cluster.efficiency, name)
        print(f"    {name:10s} {before:.4g} -> {value:.4g}  (±{error:.0%})")
    print(f"    not determined: {', '.join(fit.calibration.fixed)}; {seconds:.1f} s")
    for seed in range(3):
        predicted = cross_validate(jobs, measured, cluster, folds(len(jobs), 5, seed))
        show(f"A100, calibrated, five folds, seed {seed}", measured, predicted)
    worst(names, measured, predicted)
    sizes = sorted({llm.hidden for llm, _ in jobs})
    parts = [[i for i, (llm, _) in enumerate(jobs) if llm.hidden == size] for size in sizes]
    predicted = cross_validate(jobs, measured, cluster, parts)
    show("A100, calibrated, each model size left out in turn", measured, predicted)
    for size, part in zip(sizes, parts, strict=True):
        show(f"    hidden {size}", np.array(measured)[part], predicted[part])


def published(path):
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured, predicted, names, groups = [], [], [], []
    for row in rows:
        llm, plan, cluster = published_job(row)
        measured.append(published_seconds(row))
        predicted.append(predict(llm, plan, cluster).step_time_s)
        names.append(f"{row['system']} {llm.name} {plan.describe()}")
        groups.append((row["system"], plan.precision, llm.moe is not None))
    measured, predicted = np.array(measured), np.array(predicted)
    dense = np.array([not moe for *_, moe in groups])
    show("published 2025, presets", measured, predicted)
    worst(names, measured, predicted, 8)
    show("    dense", measured[dense], predicted[dense])
    show("    mixture of experts", measured[~dense], predicted[~dense])
    # One factor per GPU and precision: the geometric mean of the others' ratios.
    by_group = defaultdict(list)
    for i, key in enumerate(groups):
        if dense[i]:
            by_group[key].append(i)
    scaled, fitted = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for key, members in by_group.items():
        ratio = np.log(measured[members] / predicted[members])
        print(f"    factor {key[0]} {key[1]}: {np.exp(ratio.mean()):.3f} from {len(members)} rows")
        for place, i in enumerate(members):
            fitted[i] = predicted[i] * np.exp(ratio.mean())
            others = np.delete(ratio, place)
            scaled[i] = predicted[i] * np.exp(others.mean() if len(others) else 0.0)
    show("published 2025, dense, one factor, in sample", measured[dense], fitted[dense])
    show("published 2025, dense, one factor, row left out", measured[dense], scaled[dense])


def table(name, path, as_json):
    rows = TABLES[name](path)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        if row["error"]:
            print(f"    {row['id']}: {row['error']}")
    done = [row for row in rows if row["error"] is None and row["measured"] is not None]
    if not done:
        sys.exit("no row has both a prediction and a measured value")
    show(name, [row["measured"] for row in done], [row["predicted"] for row in done])
    inside = [row["low"] <= row["measured"] <= row["high"] for row in done]
    print(f"    inside the 80% interval: {sum(inside)} of {len(inside)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--runs", type=Path, help="measured A100 runs (default: of --data)")
    parser.add_argument("--published", type=Path, help="published throughputs (default: of --data)")
    parser.add_argument("--table", choices=TABLES, help="predict the rows of one file")
    parser.add_argument("file", nargs="?", type=Path, help="with --table: the file")
    parser.add_argument("--json", action="store_true", help="with --table: print a list")
    for name in PEERS:
        parser.add_argument(f"--{name.lower()}", type=Path, help=f"a checkout of {name}")
    args = parser.parse_args()
    if (args.table is None) != (args.file is None):
        parser.error("--table takes a FILE, and only --table does")
    if args.table is not None:
        table(args.table, args.file, args.json)
        return
    runs = args.runs or args.data / "megatron_a100_calibration.csv"
    throughputs = args.published or args.data / "published_2025.csv"
    for path in (runs, throughputs):
        if not path.is_file():
            sys.exit(f"{path} is not there; give --data")
    checkouts = {name: getattr(args, name.lower().replace("-", "_")) for name in PEERS}
    checkouts = {name: path for name, path in checkouts.items() if path is not None}
    if checkouts:
        beside_peers(runs, checkouts)
        return
    a100(runs)
    print()
    published(throughputs)


if __name__ == "__main__":
    main()
