"""The evidence behind ``paceline.plan.interval``: measured over predicted steps, by kind of job.

    python benchmarks/fit_intervals.py

All shared rows, predicted with the presets. Rows of one source, GPU, model and precision are one
group, which weighs as one row: they err together. Each A100 run is a group of its own: they have
one source and cluster. An 80% interval of n groups leaves out (n + 1) / 10 of them at either end
(split conformal prediction: Vovk et al. 2005). It is then widened about its middle (in logarithms)
until 80% of the groups lie inside an interval that was made without their model, and one that was
made without their GPU. Fewer than nine groups cannot carry 80%: their extremes, and those of
"quantised", whichever is further out.
"""

import csv
from collections import defaultdict

import numpy as np
from predict_table import TABLES, published_job
from shared_folder import SHARED

from paceline.model.cluster_presets import cluster_preset
from paceline.plan.calibrate import calibrate, cross_validate, folds
from paceline.plan.interval import LEVEL, kind_of
from paceline.plan.predict import predict
from paceline.plan.runs import read_runs, run_clusters

LLM_DATA = SHARED / "data" / "llm"
GPU, MODEL = 1, 2  # parts of a group's key
LEAST = 9  # groups that can carry the level


def published(name):
    """(kind, group, GPU, model, measured over predicted) of each row that can be expressed."""
    path = LLM_DATA / name
    with path.open(encoding="utf-8-sig", newline="") as file:
        fields = list(csv.DictReader(file))
    for row in TABLES["published"](path):
        if row["error"] is None:
            llm, plan, cluster = published_job(fields[row["id"]])
            key = ("published", cluster.name, llm.name, plan.precision)
            yield kind_of(llm, plan), key, row["measured"] / row["predicted"]


def runs(name, source):
    """The same of a table of runs; A100 runs have no GPU column."""
    table = read_runs(LLM_DATA / name, skip_errors=True)
    fields = dict(zip(table.lines, table.rows, strict=True))
    clusters = run_clusters(table.runs, "a100-80g-4nic" if source == "a100" else None)
    for run, cluster in zip(table.runs, clusters, strict=True):
        row = fields[run.line]
        which = row["submitter"] if source == "mlperf" else run.line
        model = f"{run.llm.name} {run.llm.hidden}"
        key = (f"{source} {which}", cluster.name, model, run.plan.precision)
        seconds = predict(run.llm, run.plan, cluster).step_time_s
        yield kind_of(run.llm, run.plan), key, run.measured_s / seconds


def ends(groups, factor=1.0):
    """Low and high end of the interval over the groups' medians, widened by ``factor``."""
    values = np.sort([np.log(np.median(ratios)) for ratios in groups])
    out = max(1, int((len(values) + 1) * (1 - LEVEL) / 2))
    low, high = values[out - 1], values[-out]
    more = (factor - 1) * (high - low) / 2
    return np.exp(low - more), np.exp(high + more)


def coverage(groups, part, factor):
    """Share of the groups inside an interval made without those that share their ``part``."""
    inside = []
    for key, ratios in groups.items():
        others = [x for name, x in groups.items() if name[part] != key[part]]
        if len(others) >= LEAST:
            low, high = ends(others, factor)
            inside.append(np.mean([low <= ratio <= high for ratio in ratios]))
    return np.mean(inside) if inside else 1.0


def widened(groups):
    """The smallest widening with which both coverages reach the level."""
    for factor in np.arange(1.0, 3.0, 0.02):
        if min(coverage(groups, part, factor) for part in (GPU, MODEL)) >= LEVEL:
            return factor
    return 3.0


def calibrated():
    """80% of the errors of runs left out of a calibration, over the mean error of those in it."""
    runs_ = read_runs(LLM_DATA / "megatron_a100_calibration.csv").runs
    jobs = [(run.llm, run.plan) for run in runs_]
    measured = np.array([run.measured_s for run in runs_])
    cluster = cluster_preset("a100-80g-4nic")
    inside = calibrate(jobs, measured, cluster).calibration.mape
    factors = []
    for seed in range(3):
        predicted = cross_validate(jobs, measured, cluster, folds(len(jobs), 5, seed))
        share = np.quantile(np.abs(np.log(measured / predicted)), LEVEL)
        factors.append(float(share / inside))
    return factors


def main():
    kinds = defaultdict(lambda: defaultdict(list))
    sources = (
        published("published_2025.csv"),
        published("published_2026_part.csv"),
        runs("mlperf_llm_runs.csv", "mlperf"),
        runs("megatron_a100_calibration.csv", "a100"),
    )
    for source in sources:
        for kind, key, ratio in source:
            kinds[kind][key].append(ratio)
            if kind == "sinks":  # of mixtures, too, whose interval stays as wide as with them
                kinds["moe"][key].append(ratio)
    anchor = kinds["quantised"]
    for kind, groups in sorted(kinds.items()):
        if len(groups) < LEAST:
            ratios = [ratio for group in groups.values() for ratio in group]
            low, high = ends(anchor.values(), widened(anchor))
            low, high = min(low, *ratios), max(high, *ratios)
        else:
            low, high = ends(groups.values(), widened(groups))
        rows = sum(map(len, groups.values()))
        print(f"{kind}: low {low:.2f}, high {high:.2f}, rows {rows}, groups {len(groups)}")
        if len(groups) >= LEAST:
            factor = widened(groups)
            model, gpu = (coverage(groups, part, factor) for part in (MODEL, GPU))
            print(f"    widened by {factor:.2f}; inside: model left out {model:.0%}, GPU {gpu:.0%}")
    print("calibrated: 80% of errors left out over the mean error within:", calibrated())


if __name__ == "__main__":
    main()
