"""Data-parallel runs on more GPUs, from the same source's smallest run; and rates by framework."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from shared_folder import SHARED

from paceline.model.cluster import Cluster
from paceline.model.cluster_presets import cluster_preset
from paceline.networks.scaling import Scaled, ScalingConstants, scaled_rate

PUBLIC = SHARED / "data" / "cnn" / "public_cnn_throughput.csv"
#: Millions of parameters, as the networks' own papers or torchvision and timm document them.
PARAMETERS = {
    "resnet18": 11.7, "resnet34": 21.8, "resnet50": 25.6, "resnet101": 44.5, "resnet152": 60.2,
    "resnext50": 25.0, "resnext101": 44.2, "se_resnext101": 49.0, "efficientnet-b0": 5.3,
    "efficientnet-b4": 19.3, "efficientnet-widese-b0": 7.6, "efficientnet-widese-b4": 34.8,
    "vgg16": 138.4, "vgg11": 132.9, "alexnet": 61.1, "inception": 27.2, "googlenet": 6.6,
    "nnunet": 31.0, "unet": 31.0, "vnet": 45.6, "ssd300": 23.0, "maskrcnn": 44.4,
    "mask_rcnn": 44.4, "densenet": 8.0, "mobilenet": 3.5, "cosmoflow": 2.0, "deepcam": 59.0,
}  # fmt: skip
_UNKNOWN = 25.0
#: Where a row does not say its batch: samples per GPU of NVIDIA's scripts, amp and fp32 or tf32.
BATCHES = {"resnext101": (128, 64), "efficientnet-b4": (64, 32), "efficientnet-widese-b4": (64, 32)}
_BATCH = (256, 128)


@dataclass(frozen=True)
class Pair:
    """A run and the smallest run of its source's series."""

    row: Mapping[str, str]
    base: Mapping[str, str]

    @property
    def is_suspect(self) -> bool:
        return bool(self.row["suspect"] or self.base["suspect"])

    @property
    def measured(self) -> float:
        return float(self.row["samples_per_s"])

    def predicted(self, constants: ScalingConstants) -> Scaled:
        return scaled_rate(
            float(self.base["samples_per_s"]),
            int(self.base["gpus"]),
            int(self.row["gpus"]),
            batch_per_gpu=batch_of(self.row),
            gradient_bytes=4e6 * parameters_of(self.row["model"]),
            cluster=cluster_of(self.row),
            constants=constants,
        )


def parameters_of(model: str) -> float:
    """Millions; of the longest known name that the model's has."""
    known = [name for name in PARAMETERS if name in model.lower()]
    return PARAMETERS[max(known, key=len)] if known else _UNKNOWN


def batch_of(row: Mapping[str, str]) -> float:
    if row["batch_per_gpu"]:
        return float(row["batch_per_gpu"])
    known = [name for name in BATCHES if name in row["model"].lower()]
    amp, other = BATCHES[max(known, key=len)] if known else _BATCH
    return amp if row["precision"].startswith("amp") else other


def cluster_of(row: Mapping[str, str]) -> Cluster:
    gpu = row["gpu"].upper()
    name = "h100" if "H100" in gpu else "a100-80g" if "A100" in gpu else "v100-16g"
    cluster = cluster_preset(name)
    per_node = int(row["gpus_per_node"] or cluster.node.gpus)
    cluster = replace(cluster, node=replace(cluster.node, gpus=max(per_node, 1)))
    if "100 Gb/s" in row["network"]:
        cluster = replace(cluster, network=replace(cluster.network, nics=1))
    return cluster


def pairs_of(rows: Iterable[Mapping[str, str]]) -> list[Pair]:
    names = ("source", "framework", "model", "input", "gpu", "precision", "batch_per_gpu")
    series: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        if row["samples_per_s"]:
            series[tuple(row[name] for name in names)].append(row)
    pairs = []
    for runs in series.values():
        base = min(runs, key=lambda row: int(row["gpus"]))
        pairs += [Pair(row, base) for row in runs if int(row["gpus"]) > int(base["gpus"])]
    return pairs


def fitted(pairs: Sequence[Pair]) -> ScalingConstants:
    """The constants of a coarse grid with the least mean error."""
    grid = product((0.0, 2e-3, 4e-3, 6e-3, 8e-3, 0.012), (0.0, 0.5, 1.0, 2.0), (0.5, 1.0, 2.0, 3.0))
    candidates = [ScalingConstants(join_s=j, inner=i, outer=o) for j, i, o in grid]
    return min(candidates, key=lambda constants: float(errors(pairs, constants).mean()))


def errors(pairs: Sequence[Pair], constants: ScalingConstants) -> np.ndarray:
    return np.array(
        [abs(p.predicted(constants).samples_per_s / p.measured - 1) for p in pairs], dtype=float
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scaling(worst: int = 5, path: Path | None = None, as_json: bool = False) -> None:
    """Rates relative to the smallest run, with the constants of the library."""
    pairs = pairs_of(rows_of(path or PUBLIC))
    usual = ScalingConstants()
    if as_json:
        print(json.dumps([answer(pair, usual) for pair in pairs]))
        return
    good = [pair for pair in pairs if not pair.is_suspect]
    linear = [float(p.base["samples_per_s"]) / int(p.base["gpus"]) for p in good]
    shares = np.array(
        [p.measured / (r * int(p.row["gpus"])) for p, r in zip(good, linear, strict=True)]
    )
    constant = abs(np.median(shares) / shares - 1)
    print(f"{len(good)} runs, and {len(pairs) - len(good)} suspect ones")
    tell("one share for all", constant)
    tell("library's constants", errors(good, usual))
    sources = sorted({pair.row["source"].partition(":")[0] for pair in good})
    left_out = []
    for source in sources:
        inside = [p for p in good if not p.row["source"].startswith(source)]
        outside = [p for p in good if p.row["source"].startswith(source)]
        if inside:
            left_out.append(errors(outside, fitted(inside)))
            tell(f"fitted without {source[:24]}", left_out[-1])
    print("fitted to all:", fitted(good))
    logs = [math.log(p.measured / p.predicted(usual).samples_per_s) for p in good]
    print(
        f"spread of the logarithm: {np.std(logs):.3f}; {coverage(good, usual):.0%} inside the 80%"
    )
    flagged = [p for p in pairs if p.predicted(usual).is_odd(p.measured)]
    suspects = [p for p in pairs if p.is_suspect]
    print(
        f"flagged: {sum(p in flagged for p in suspects)} of {len(suspects)} suspect, "
        f"{sum(p in flagged for p in good)} of {len(good)} others"
    )
    by_error = sorted(good, key=lambda p: -abs(p.predicted(usual).samples_per_s / p.measured - 1))
    for pair in by_error[:worst]:
        off = pair.predicted(usual).samples_per_s / pair.measured - 1
        row = pair.row
        print(
            f"  {off:+.0%} {row['framework']} {row['model']} {row['precision']} {row['gpus']} GPUs"
        )


def coverage(pairs: Sequence[Pair], constants: ScalingConstants) -> float:
    inside = [
        p.predicted(constants).low <= p.measured <= p.predicted(constants).high for p in pairs
    ]
    return float(np.mean(inside))


def answer(pair: Pair, constants: ScalingConstants) -> dict[str, object]:
    told = pair.predicted(constants)
    return {
        "id": pair.row["row"],
        "predicted": told.samples_per_s,
        "low": told.low,
        "high": told.high,
        "measured": pair.measured,
        "abnormal": int(told.is_odd(pair.measured)),
        "error": None,
    }


def tell(name: str, values: np.ndarray) -> None:
    print(
        f"  {name:36} median {np.median(values):6.1%}  mean {values.mean():6.1%}  ({len(values)})"
    )


def absolute(worst: int = 5, path: Path | None = None, as_json: bool = False) -> None:
    """ResNet-50's measured rates of one GPU by framework: what software makes of the same job."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows_of(path or PUBLIC):
        if row["gpus"] == "1" and row["samples_per_s"] and not row["model"].startswith("timm/"):
            key = row["model"], row["gpu"], row["precision"]
            groups[key].append(float(row["samples_per_s"]))
    several = {key: rates for key, rates in sorted(groups.items()) if len(rates) > 1}
    if as_json:
        print(json.dumps([{"of": key, "samples_per_s": rates} for key, rates in several.items()]))
        return
    for (model, gpu, precision), rates in several.items():
        name = f"{model} {gpu} {precision}"
        spread = max(rates) / min(rates) - 1
        print(
            f"{name:44} {min(rates):8,.0f} to {max(rates):8,.0f} samples/s: {spread:4.0%} apart, "
            f"median {np.median(rates):,.0f}, {len(rates)} sources and frameworks"
        )
